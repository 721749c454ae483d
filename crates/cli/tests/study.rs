//! `surefoot study lag`: a small study as a user runs it, stopped and finished, and what it refuses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

#[path = "../../run/tests/tiny/mod.rs"]
mod tiny;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tiny::Place;

const RUN: &str = r#"
model = "model"
seed = 3
steps = 4

[train]
kind = "lora"
rank = 4
alpha = 8
targets = ["all"]

[algorithm]
kind = "grpo"

[optimiser]
learning_rate = 1e-2

[batch]
tasks = 4
group_size = 4

[sampling]
max_tokens = 6

[eval]
tasks = 10
every = 2

[checkpoint]
every = 2

[control]
coin_flips = true

[[env]]
kind = "sums"
n_train = 40
n_held_out = 20
"#;

fn place() -> Place {
    let place = Place::new();
    std::fs::write(place.path("run.toml"), RUN).unwrap();
    place
}

impl Place {
    fn surefoot(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.args(args).env("SUREFOOT_HOME", self.path("home")).current_dir(self.folder());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, args: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.surefoot(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (status.code().unwrap_or(-1), text(stdout), text(stderr))
    }
}

const SMALL: [&str; 8] = ["study", "lag", "run.toml", "--lags", "0,1", "--corrections", "none,tis,oapl", "--seeds=2"];

#[test]
fn a_study_that_was_stopped_prints_and_writes_what_an_unbroken_one_does() {
    let place = place();
    let (code, out, error) = place.output(&[&SMALL[..], &["--out", "whole"]].concat());
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("run 1 of at most 12: lag 0 / none, seed 3\n"), "{error}");
    assert!(out.contains("lag 0 / tis: The same run as lag 0 / none"), "{out}");
    assert!(
        out.contains("lag 1 / none: No difference shown: ")
            && out.contains("a test over the seeds alone cannot give less than p = 0.5"),
        "{out}"
    );
    assert!(out.ends_with("report: whole/report.html\n"), "{out}");

    let child = place.surefoot(&[&SMALL[..], &["--out", "stopped"]].concat()).spawn().unwrap();
    // While the third run is in its steps.
    let metrics = place.path("stopped/cells/lag-1_none_seed-3/metrics.jsonl");
    let began = Instant::now();
    while std::fs::read_to_string(&metrics).map_or(0, |t| t.lines().count()) < 1 {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("hint: `surefoot study lag --resume stopped` finishes it"), "{text}");
    assert!(!place.path("stopped/report.html").exists());

    let (code, resumed, error) = place.output(&["study", "lag", "--resume", "stopped"]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(resumed.replace("stopped/", "whole/"), out);
    for name in ["report.html", "report.json", "study.json"] {
        let read = |study: &str| std::fs::read_to_string(place.path(study).join(name)).unwrap();
        assert!(read("whole") == read("stopped"), "{name}");
    }
    // Finished, it only says again what came of it; a cell is a run like any other.
    let (code, again, _) = place.output(&["study", "lag", "--resume", "whole", "--json"]);
    assert_eq!((code, again.lines().count()), (0, 1), "{again}");
    let value: Value = serde_json::from_str(&again).unwrap();
    assert_eq!((value["verdicts"].as_array().unwrap().len(), value["report"].as_str()), (5, Some("whole/report.html")));
    let (code, out, error) = place.output(&["report", "whole/cells/lag-1_tis_seed-4"]);
    assert_eq!((code, out.trim_end()), (0, "whole/cells/lag-1_tis_seed-4/report.html"), "{error}");
}

#[test]
fn a_dry_run_lists_the_runs_and_writes_nothing() {
    let place = place();
    let (code, out, error) = place.output(&[&SMALL[..], &["--dry-run", "--out", "study"]].concat());
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(
        out.contains("# would start. At most 12 runs: seeds [3, 4] of each of\n#   lag 0 / none\n#   lag 0 / tis\n"),
        "{out}"
    );
    let (code, out, _) = place.output(&[&SMALL[..], &["--dry-run", "--json", "--set", "steps=1"]].concat());
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, value["runs"].as_u64(), value["cells"][4]["lag"].as_u64()), (0, Some(12), Some(1)));
    assert_eq!(
        value["notes"][0],
        "Lag 1 cannot be reached in 1 steps: nothing there is trained on later than 0 versions."
    );
    assert!(!place.path("study").exists() && !place.path("home/runs").exists());
}

#[test]
fn bad_arguments_are_refused_by_name_with_code_2() {
    let place = place();
    let check = |args: &[&str], want: &str| {
        let (code, out, error) = place.output(&[&["study", "lag", "run.toml", "--out", "study"], args].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {error}");
        assert!(error.contains(want), "{args:?}: {error}");
        assert!(!place.path("study").exists(), "{args:?}");
    };
    check(&["--lags", "0,x"], "invalid value `x` for `--lags <N,…>`");
    check(&["--lags", "0,1,1"], "error: `--lags` has 1 twice\nhint: `surefoot study lag --help` explains\n");
    check(
        &["--corrections", "none,tsi"],
        "error: `--corrections` has `tsi`, needed `tis` (`token_tis`) or one of `none`, `token_tis`",
    );
    check(&["--seeds", "0"], "error: `--seeds` is 0, needed 1 to 1000");
    check(&["--tokens", "0"], "error: `--tokens` is 0, needed at least 1");
    check(&["--target", "40"], "error: `--target` is 40, needed a share above 0, at most 1");
    check(&["--set", "eval.tasks=0"], "error: `eval.tasks` is 0, needed held-out tasks to compare by");
    check(&["--set", "stepz=3"], "unknown field `stepz`");
    check(&["--set", "optimiser.schedule=cosine"], "needed `optimiser.decay_updates`");
    let (code, _, error) = place.output(&["study", "lag", "--resume", "nowhere"]);
    assert_eq!(code, 2);
    assert!(error.starts_with("error: `nowhere` is no study: it has no `study.json`\n"), "{error}");
    let (code, _, error) = place.output(&["study", "lag", "--resume", "nowhere", "--seeds", "2"]);
    assert!(code == 2 && error.contains("cannot be used with"), "{error}");
    std::fs::create_dir_all(place.path("full/x")).unwrap();
    for dry in [&["--out", "full"][..], &["--out", "full", "--dry-run"]] {
        let (code, _, error) = place.output(&[&SMALL[..], dry].concat());
        assert!(code == 2 && error.contains("`full`") && error.contains("needed a new or empty folder"), "{error}");
    }
}
