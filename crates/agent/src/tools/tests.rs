use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use serde_json::json;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.0.path().join("work/sub")).unwrap();
        fs::write(place.0.path().join("secret"), "key").unwrap();
        fs::write(place.0.path().join("work/a.txt"), "one\ntwo needle\n").unwrap();
        fs::write(place.0.path().join("work/sub/b.txt"), "needle again").unwrap();
        symlink("../secret", place.0.path().join("work/out")).unwrap();
        symlink("/", place.0.path().join("work/root")).unwrap();
        symlink("sub/b.txt", place.0.path().join("work/in")).unwrap();
        place
    }

    fn call(&self, name: &str, arguments: Value) -> Answer {
        let mut tool = tool(name, &Workplace::new(self.0.path().join("work"))).unwrap();
        tool.call(arguments.as_object().unwrap()).unwrap()
    }

    fn check(&self, name: &str, arguments: Value, ok: bool, want: &str) {
        let answer = self.call(name, arguments.clone());
        assert_eq!((answer.ok, answer.text.as_str()), (ok, want), "{name} {arguments}");
    }
}

#[test]
fn every_tool_of_the_table_says_who_it_is_in_classes_that_rules_know() {
    for name in NAMES {
        let spec = tool(name, &Workplace::new(".")).unwrap().spec();
        assert_eq!(spec.name, *name);
        assert!(guard::ActionClass::parse(&spec.action).is_some(), "{name}: `{}`", spec.action);
        assert!(spec.data.iter().all(|d| guard::DataClass::parse(d).is_some()), "{name}");
    }
    assert!(tool("rm", &Workplace::new(".")).is_none());
}

#[test]
fn files_are_read_written_listed_found_and_deleted() {
    let place = Place::new();
    place.check("read_file", json!({"path": "a.txt"}), true, "one\ntwo needle\n");
    place.check("read_file", json!({"path": "in"}), true, "needle again");
    place.check("list_files", json!({"path": ""}), true, "a.txt\nin\nout\nroot\nsub/");
    place.check("list_files", json!({"path": "sub"}), true, "b.txt");
    place.check("search_files", json!({"text": "needle"}), true, "a.txt:2:two needle\nsub/b.txt:1:needle again");
    place.check("write_file", json!({"path": "new/deep/c", "text": "x"}), true, "wrote 1 bytes to `new/deep/c`");
    place.check("read_file", json!({"path": "new/deep/c"}), true, "x");
    place.check("delete_file", json!({"path": "new/deep/c"}), true, "deleted `new/deep/c`");
    place.check("read_file", json!({"path": "new/deep/c"}), false, "`new/deep/c`: there is no such file or folder");
}

#[test]
fn no_path_and_no_link_leads_out_of_the_folder() {
    let place = Place::new();
    let out = |path: &str| format!("`{path}`: it lies outside of the folder");
    for path in ["../secret", "sub/../../secret", "/etc/passwd", "out", "root/etc/passwd"] {
        place.check("read_file", json!({"path": path}), false, &out(path));
        assert!(!place.call("write_file", json!({"path": path, "text": "pwned"})).ok, "{path}");
    }
    for path in ["..", "/", "root"] {
        place.check("list_files", json!({"path": path}), false, &out(path));
    }
    for path in ["../secret", "root/tmp/x", ".."] {
        assert!(!place.call("delete_file", json!({"path": path})).ok, "{path}");
    }
    assert_eq!(fs::read_to_string(place.0.path().join("secret")).unwrap(), "key");
    // A link is deleted itself, never what it points to.
    place.check("delete_file", json!({"path": "out"}), true, "deleted `out`");
    assert!(place.0.path().join("secret").exists());
    assert!(!place.call("search_files", json!({"text": "key"})).text.contains("secret"));
}

#[test]
fn what_makes_no_sense_is_an_answer_and_no_fault() {
    let place = Place::new();
    place.check("read_file", json!({}), false, "needed `path`");
    place.check("read_file", json!({"path": 3}), false, "needed a text for `path`, got 3");
    place.check("read_file", json!({"path": "sub"}), false, "`sub`: it is no file");
    place.check("read_file", json!({"path": "a.txt/x"}), false, "`a.txt/x`: a part of its path is no folder");
    place.check("search_files", json!({"text": ""}), false, "needed a text to find, got an empty one");
    assert!(!place.call("read_file", json!({"path": "a\u{0}b"})).ok);
    assert!(!place.call("delete_file", json!({"path": ""})).ok);
    let gone =
        tool("read_file", &Workplace::new("/no/such/folder")).unwrap().call(json!({"path": "x"}).as_object().unwrap());
    assert_eq!(gone.unwrap_err().class, "folder");
}

#[test]
fn a_long_answer_is_cut_and_says_so_and_what_lies_in_files_is_not_trusted() {
    let place = Place::new();
    fs::write(place.0.path().join("work/long"), "ä".repeat(20_000)).unwrap();
    let answer = place.call("read_file", json!({"path": "long"}));
    assert!(answer.text.len() < MAX_ANSWER_BYTES + 100 && answer.text.ends_with("more bytes are left out"));
    assert!(answer.labels.untrusted);
    assert!(!place.call("write_file", json!({"path": "x", "text": ""})).labels.untrusted);
}

#[test]
fn a_toolbox_has_each_name_once_and_ends_with_a_turn_without_calls() {
    let place = Workplace::new(".");
    let mut toolbox = Toolbox::new();
    toolbox.add(tool("read_file", &place).unwrap()).unwrap();
    assert_eq!(toolbox.add(tool("read_file", &place).unwrap()), Err("read_file".to_owned()));
    assert_eq!(toolbox.specs().len(), 1);
    assert_eq!(toolbox.answer("done").unwrap(), Reaction::End);
    assert_eq!(toolbox.call(&ToolCall::new("rm", json!({}))).unwrap_err().class, "no_such_tool");
}

#[test]
fn f15_a_command_runs_in_the_folder_behind_walls_and_its_exit_status_decides() {
    let place = Place::new();
    let run = |command: &str| place.call("shell", json!({"command": command}));
    if !jail::layers().missing(&jail::Rules::default()).is_empty() {
        // This system cannot confine, so a command is a fault of the tool and never runs.
        let mut tool = tool("shell", &Workplace::new(place.0.path().join("work"))).unwrap();
        assert_eq!(tool.call(json!({"command": "true"}).as_object().unwrap()).unwrap_err().class, "jail");
        return;
    }
    let listed = run("cat a.txt && echo x > made");
    assert!(listed.ok && listed.text.contains("two needle") && listed.labels.untrusted, "{listed:?}");
    assert_eq!(fs::read_to_string(place.0.path().join("work/made")).unwrap(), "x\n");
    let failed = run("echo fine; exit 3");
    assert!(!failed.ok && failed.text.contains("exit status 3"), "{failed:?}");
    let secret = run("cat ../secret");
    assert!(!secret.ok && !secret.text.contains("key"), "{secret:?}");
    // What is written outside goes into a private place that vanishes, or is refused.
    run("echo pwned > ../secret");
    assert_eq!(fs::read_to_string(place.0.path().join("secret")).unwrap(), "key");
}
