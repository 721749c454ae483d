//! kill −9 at any moment, then `train --resume`: the run ends in the bits of one that was never touched.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

#[path = "../../run/tests/tiny/mod.rs"]
mod tiny;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use store::{RunDir, hash_file};
use tiny::Place;

const RUN: &str = r#"
model = "MODEL"
seed = 3
steps = 12

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
max_tokens = 10

[eval]
tasks = 10
every = 4

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
    let text = RUN.replace("MODEL", place.model().to_str().unwrap());
    std::fs::write(place.path("run.toml"), text).unwrap();
    place
}

impl Place {
    fn surefoot(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.args(args).env("SUREFOOT_HOME", self.path("home")).current_dir(self.folder());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

/// What must be the same: the last checkpoint's weights and moments, metrics and evaluations without their run's id.
fn fingerprint(folder: &Path) -> Vec<String> {
    let run = RunDir::read(folder).unwrap();
    let latest = run.checkpoints().latest().unwrap().unwrap();
    let mut all = vec![latest.digest()];
    for name in ["weights.safetensors", "moment1.safetensors", "moment2.safetensors"] {
        all.push(hash_file(&latest.path.join(name)).unwrap());
    }
    for name in ["metrics.jsonl", "evals.jsonl"] {
        let lines: Vec<serde_json::Value> = run.read_lines(name).unwrap();
        all.push(serde_json::to_string(&lines).unwrap());
    }
    all
}

#[test]
fn j5_killed_at_random_moments_and_resumed_ends_in_the_same_bits() {
    let place = place();
    let output = place.surefoot(&["train", "run.toml", "--out", "whole", "--threads", "1"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let began = Instant::now();
    let mut command = place.surefoot(&["train", "run.toml", "--out", "killed"]);
    let mut kills = 0;
    // Moments from a fixed sequence, short and long: before the run directory is there, inside a step, while saving.
    let mut moments = [40_u64, 90, 150, 210, 120, 330, 70, 260, 180, 400].into_iter().cycle();
    loop {
        let mut child = command.spawn().unwrap();
        let wait = Duration::from_millis(moments.next().unwrap() * (1 + kills / 10));
        let killed_at = Instant::now() + wait;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() >= killed_at {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if let Some(status) = status {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut text).unwrap();
            assert!(status.success(), "{text}");
            break;
        }
        kills += 1;
        assert!(began.elapsed() < Duration::from_secs(240), "{kills} kills and no end");
        // Killed before the run directory was whole, it is not a run yet: it is started anew.
        let is_run = RunDir::read(&place.path("killed")).is_ok_and(|r| {
            let manifest: Option<serde_json::Value> = r.read_json("manifest.json").unwrap();
            manifest.is_some() && r.settings().unwrap().is_some() && r.summary().unwrap().is_some()
        });
        command = if is_run {
            place.surefoot(&["train", "--resume", "killed"])
        } else {
            let _ = std::fs::remove_dir_all(place.path("killed"));
            place.surefoot(&["train", "run.toml", "--out", "killed"])
        };
    }
    assert!(kills >= 5, "only {kills} kills");
    assert_eq!(fingerprint(&place.path("killed")), fingerprint(&place.path("whole")));
}

#[test]
fn f11_no_grader_and_no_child_of_one_outlives_a_killed_program() {
    let place = place();
    std::fs::write(place.path("tasks.jsonl"), "{\"prompt\": \"a\", \"gold\": 1}\n{\"prompt\": \"b\", \"gold\": 2}")
        .unwrap();
    let script = "echo $$ >> pids; sleep 300 & echo $! >> pids; wait";
    let env = format!("env=[{{ kind = 'command', tasks = 'tasks.jsonl', command = ['sh', '-c', '{script}'] }}]");
    let mut child = place.surefoot(&["train", "run.toml", "--out", "run", "--set", &env]).spawn().unwrap();
    let pids = || {
        let text = std::fs::read_to_string(place.path("pids")).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let is_alive = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    };
    let began = Instant::now();
    let wait_for = |done: &dyn Fn() -> bool| {
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", pids());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(&|| pids().len() >= 2);
    assert!(pids().iter().any(is_alive));
    // A program runs for a moment before the watcher is told of it, on a loaded machine for longer: not what is tested.
    std::thread::sleep(Duration::from_secs(1));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(&|| !pids().iter().any(is_alive));
}

#[test]
fn a_model_path_starts_from_the_run_file_and_the_run_goes_on_from_any_folder() {
    let place = place();
    for name in ["files", "elsewhere"] {
        std::fs::create_dir(place.path(name)).unwrap();
    }
    let ok = |command: &mut Command| {
        let output = command.stdout(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    ok(&mut place.surefoot(&["init", "files/run.toml", "--model", "model"]));
    let short =
        ["--set", "steps=1", "--set", "batch.tasks=2", "--set", "sampling.max_tokens=4", "--set", "eval.tasks=2"];
    let more = ["--set", "control.coin_flips=true"];
    let train = |words: &[&str]| place.surefoot(&[&["train", "files/run.toml"], &short[..], &more, words].concat());
    let model_of = |name: &str| {
        let out = ok(&mut train(&["--dry-run", "--json", "--set", name]));
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["settings"]["model"].as_str().unwrap().to_owned()
    };
    // What `init` writes from where it stands, what the run file says from its own folder, and a name.
    let path = std::path::absolute(place.path("files").join("../model")).unwrap();
    assert_eq!(Path::new(&model_of("seed=1")), place.model());
    assert_eq!(Path::new(&model_of("model=../model")), path);
    ok(&mut place.surefoot(&["models", "import", "model", "--name", "mine"]));
    assert_eq!(model_of("model=mine"), "mine");
    let output = train(&["--set", "model=model"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no model `model`") && error.contains("start from its folder, `files`"), "{error}");

    ok(&mut train(&["--set", "model=../model", "--out", "run"]));
    let settings = RunDir::read(&place.path("run")).unwrap().settings().unwrap().unwrap();
    assert!(settings.contains(path.to_str().unwrap()), "{settings}");
    let run = place.path("run").display().to_string();
    for words in [&["train", "--resume", &run][..], &["sample", "--model", &run, "hi", "--max-tokens", "2"]] {
        ok(place.surefoot(words).current_dir(place.path("elsewhere")));
    }
}

#[test]
fn ctrl_c_leaves_a_run_that_resume_finishes() {
    let place = place();
    let output = place.surefoot(&["train", "run.toml", "--out", "whole"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let child = place.surefoot(&["train", "run.toml", "--out", "stopped"]).spawn().unwrap();
    let metrics = place.path("stopped").join("metrics.jsonl");
    while std::fs::read_to_string(&metrics).map_or(0, |t| t.lines().count()) < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("surefoot train --resume stopped"), "{text}");
    let output = place.surefoot(&["train", "--resume", "stopped"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (stopped, whole) = (fingerprint(&place.path("stopped")), fingerprint(&place.path("whole")));
    // Which checkpoints there were differs; what they hold does not.
    assert_eq!(stopped[1..], whole[1..]);
}
