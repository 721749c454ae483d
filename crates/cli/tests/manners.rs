//! How the program behaves among others: exit codes, closed pipes, Ctrl-C, errors as a person and as a program read them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod program;

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use program::{Desk, golden, speaking};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A command that would print for minutes.
const LONG: [&str; 9] = ["sample", "--prompts", "p.jsonl", "--n", "200000", "--max-tokens", "50", "--json", "--model"];

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let desk = Desk::new();
    desk.file("p.jsonl", "{\"tokens\":[1]}");
    let mut child = desk.command(&[&LONG[..], &[&golden("llama")]].concat()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"prompt_index\":0,"), "{line}");
    let started = Instant::now();
    let ran = program::ran(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn ctrl_c_ends_with_130_and_leaves_whole_lines() {
    let desk = Desk::new();
    desk.file("p.jsonl", "{\"tokens\":[1]}");
    let mut child = desk.command(&[&LONG[..], &[&golden("llama")]].concat()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    out.read_to_string(&mut text).unwrap();
    let ran = program::ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((error["error"].as_str(), error["code"].as_u64()), (Some("interrupted"), Some(130)));
    assert!(text.ends_with("}\n") && text.lines().all(|l| serde_json::from_str::<Value>(l).is_ok()), "{text}");
}

#[test]
fn a_second_ctrl_c_ends_what_the_first_could_not() {
    let desk = Desk::new();
    // Waits for its input, which never comes.
    let words = ["sample", "--model", &golden("llama"), "--prompts", "-"];
    let mut child = desk.command(&words).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let listens = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).map(|m| u64::from_str_radix(m.trim(), 16));
        caught.is_some_and(|mask| mask.unwrap() & (1 << (Signal::INT.as_raw() - 1)) != 0)
    };
    let started = Instant::now();
    while !listens() {
        assert!(started.elapsed() < Duration::from_secs(60), "the program never listened for Ctrl-C");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(pid, Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(child.try_wait().unwrap(), None, "the first one only asks");
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn help_and_version_are_results() {
    let desk = Desk::new();
    assert!(desk.ok(&["--help"]).contains("Usage: surefoot"));
    assert_eq!(desk.ok(&["--version"]), format!("surefoot {}\n", env!("CARGO_PKG_VERSION")));
    assert!(desk.ok(&["env", "check", "--help"]).contains("Usage: surefoot env check"));
}

#[test]
fn looking_makes_nothing() {
    let desk = Desk::new();
    for words in [&["models", "list"][..], &["runs", "list", "--json"], &["doctor", "--json"]] {
        desk.ok(words);
    }
    assert_eq!(desk.run(&["sample", "hi", "--model", "nothing"]).code, 2);
    assert!(!desk.home().exists());
}

#[test]
fn the_doctor_measures_and_says_what_is_missing() {
    let desk = Desk::new();
    let found: Value = serde_json::from_str(&desk.ok(&["doctor", "--json", "--threads", "1"])).unwrap();
    let ceilings = found["ceilings"].as_array().unwrap();
    for isa in tensor::Isa::available() {
        let is_meant = |c: &&Value| c["vector_set"] == isa.to_string() && c["what"] == "f32 fused multiply-add";
        let ceiling = ceilings.iter().find(is_meant).unwrap();
        assert!(ceiling["per_second"].as_f64().unwrap() > 1e6 && ceiling["threads"] == 1, "{ceiling}");
    }
    assert!(ceilings.iter().any(|c| c["what"] == "memory read"));
    assert!(found["missing"].to_string().contains("surefoot models pull smollm2-135m"));
}

#[test]
fn models_come_and_go() {
    let desk = Desk::new();
    let model = speaking(&desk);
    desk.ok(&["models", "import", &model, "--name", "mine", "--json"]);
    let info: Value = serde_json::from_str(&desk.ok(&["models", "info", "mine", "--verify", "--json"])).unwrap();
    assert_eq!((info["family"].as_str(), info["vocabulary"].as_u64()), (Some("llama"), Some(97)));
    assert!(desk.ok(&["models", "list"]).contains("\nmine "), "the model is listed");
    let words = |model| ["sample", "hi", "--temperature", "0", "--max-tokens", "4", "--model", model];
    assert_eq!(desk.ok(&words("mine")), desk.ok(&words(&model)));
    desk.ok(&["models", "rm", "mine"]);
    assert_eq!(desk.run(&words("mine")).code, 2);
}

#[test]
fn an_environment_that_pays_for_anything_fails_its_audit() {
    let desk = Desk::new();
    let tasks: String = (0..8).map(|i| format!("{{\"prompt\":\"q{i}\",\"gold\":{}}}\n", 100 + i)).collect();
    desk.file("tasks.jsonl", tasks);
    let env = "[[env]]\nkind = \"command\"\ntasks = \"tasks.jsonl\"\nheld_out_share = 0.0\n";
    let grader = "command = [\"sh\", \"-c\", \"cat > /dev/null; echo '{\\\"reward\\\": 1}'\"]\n";
    let file = desk.file("run.toml", format!("steps = 3\n{env}{grader}"));
    let ran = desk.run(&["env", "check", &file, "--n-tasks", "2"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.out.contains("FAIL null"), "{}", ran.out);
    assert!(ran.err.starts_with("error: 1 of 1 environments cannot be trusted: `command`\n"), "{}", ran.err);
    let passed: Value = serde_json::from_str(&desk.ok(&["env", "check", "--kind", "sums", "--json"])).unwrap();
    assert_eq!(passed["passed"], true);
}

#[test]
fn a_full_disk_behind_standard_output_is_a_failure() {
    let desk = Desk::new();
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let ran = program::ran(desk.command(&["models", "list"]).stdout(full).output().unwrap());
    assert_eq!(ran.code, 1);
    assert!(ran.err.starts_with("error: cannot write to standard output\n  why:   No space left"), "{}", ran.err);
}

/// Everything that can be typed wrong at once, as one text: the words, the exit code, the message.
#[test]
fn every_error_is_as_written() {
    let desk = Desk::new();
    let (silent, model) = (golden("llama"), speaking(&desk));
    desk.file("bad-json.jsonl", "{\"tokens\":[1]}\n{\"tokens\":[1\n");
    desk.file("unknown-key.jsonl", "{\"prompt\":\"a\",\"temperature\":0}\n");
    desk.file("two.jsonl", "\n{\"prompt\":\"a\",\"tokens\":[1]}\n");
    desk.file("none.jsonl", "{}\n");
    desk.file("empty.jsonl", "\n");
    desk.file("empty-prompt.jsonl", "{\"prompt\":\"\"}\n");
    desk.file("no-messages.jsonl", "{\"messages\":[]}\n");
    desk.file("bad-role.jsonl", "{\"messages\":[{\"role\":\"bot\",\"content\":\"x\"}]}\n");
    desk.file("outside.jsonl", "{\"tokens\":[1]}\n{\"tokens\":[3,97]}\n");
    desk.file("negative.jsonl", "{\"tokens\":[-1]}\n");
    desk.file("text.jsonl", "{\"prompt\":\"a\"}\n");
    desk.file("ok.jsonl", "{\"tokens\":[1]}\n");
    let long: Vec<String> = (0..1024).map(|i| (i % 90).to_string()).collect();
    desk.file("long.jsonl", format!("{{\"tokens\":[{}]}}\n", long.join(",")));
    desk.file("longer.jsonl", format!("{{\"tokens\":[1,{}]}}\n", long.join(",")));
    desk.file("bad.toml", "[[env]]\nkind = \"sums\"\nlevel = 3\n");
    desk.file("no-env.toml", "steps = 3\n");
    desk.file("cut/config.json", std::fs::read(format!("{silent}/config.json")).unwrap());
    let weights = std::fs::read(format!("{silent}/model.safetensors")).unwrap();
    desk.file("cut/model.safetensors", &weights[..weights.len() / 2]);
    desk.file("junk.gguf", "not a model");

    let sample = |file: &'static str| ["sample", "--model", "MODEL", "--prompts", file];
    let with = |more: &[&'static str]| [&["sample", "--model", "MODEL", "hi"], more].concat();
    let mut cases: Vec<Vec<&str>> = [
        "bad-json.jsonl",
        "unknown-key.jsonl",
        "two.jsonl",
        "none.jsonl",
        "empty.jsonl",
        "empty-prompt.jsonl",
        "no-messages.jsonl",
        "bad-role.jsonl",
        "outside.jsonl",
        "negative.jsonl",
        "long.jsonl",
        "missing.jsonl",
    ]
    .map(|file| sample(file).to_vec())
    .to_vec();
    cases.extend([
        with(&["--n", "0"]),
        with(&["--batch", "0"]),
        with(&["--max-tokens", "0"]),
        with(&["--temperature", "-1"]),
        with(&["--temperature", "nan"]),
        with(&["--top-k", "0"]),
        with(&["--top-p", "1.5"]),
        with(&["--min-p", "0"]),
        with(&["--stop", ""]),
        with(&["--threads", "0"]),
        with(&["--seed", "-1"]),
        with(&["--adapter", "missing"]),
        with(&["--frobnicate"]),
        with(&["--prompts", "ok.jsonl"]),
        vec!["sample", "--model", "MODEL"],
        vec!["sample", "--model", "SILENT", "hi"],
        vec!["sample", "--model", "SILENT", "--prompts", "text.jsonl"],
        vec!["sample", "--model", "SILENT", "--prompts", "ok.jsonl", "--stop", "x"],
        vec!["sample", "--model", "smollm2-135m", "hi"],
        vec!["sample", "--model", "nothing", "hi"],
        vec!["sample", "--model", "cut", "--prompts", "ok.jsonl"],
        vec!["sample", "--model", "junk.gguf", "hi"],
        vec!["logprobs", "--model", "MODEL", "--tokens", "outside.jsonl"],
        vec!["logprobs", "--model", "MODEL", "--tokens", "text.jsonl"],
        vec!["logprobs", "--model", "MODEL", "--tokens", "longer.jsonl"],
        vec!["models", "pull", "nothing"],
        vec!["models", "pull", "hf:x"],
        vec!["models", "import", "missing.gguf"],
        vec!["models", "import", "MODEL", "--name", "../x"],
        vec!["models", "info", "nothing"],
        vec!["models", "info", "MODEL", "--verify"],
        vec!["models", "rm", "nothing"],
        vec!["runs", "rm", "nothing"],
        vec!["runs", "rm", "MODEL"],
        vec!["show", "nothing"],
        vec!["report", "nothing"],
        vec!["env", "check", "bad.toml"],
        vec!["env", "check", "no-env.toml"],
        vec!["env", "check", "missing.toml"],
        vec!["env", "check", "--kind", "sum"],
        vec!["env", "check", "--kind", "gsm8k"],
        vec!["env", "check", "--kind", "sums", "--set", "levels=3"],
        vec!["env", "check", "--kind", "sums", "--n-tasks", "0"],
        vec!["env", "check"],
        vec!["model", "list"],
        vec![],
    ]);
    let mut report = String::new();
    for case in &cases {
        let words: Vec<&str> = case
            .iter()
            .map(|w| match *w {
                "MODEL" => &*model,
                "SILENT" => &*silent,
                w => w,
            })
            .collect();
        let ran = desk.run(&words);
        assert_eq!(ran.out, "", "an error prints no result: {words:?}");
        report.push_str(&format!("$ surefoot {}\n[{}] {}\n", case.join(" "), ran.code, ran.err));
    }
    let ran = desk.run_with(&["runs", "list"], b"", &[("SUREFOOT_ISA", "sse2")]);
    report.push_str(&format!("$ SUREFOOT_ISA=sse2 surefoot runs list\n[{}] {}\n", ran.code, ran.err));
    let ran = desk.run(&["sample", "--model", "nothing", "hi", "--json"]);
    report.push_str(&format!("$ surefoot sample --model nothing hi --json\n[{}] {}\n", ran.code, ran.err));
    let report = report.replace(&model, "MODEL").replace(&silent, "SILENT");
    let report = report.replace(&desk.folder.path().canonicalize().unwrap().display().to_string(), "DESK");
    insta::assert_snapshot!(report.replace(&desk.folder.path().display().to_string(), "DESK"));
}
