//! kill −9 at any moment, then `train --resume`: the run ends in the bits of one that was never touched.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

#[path = "../../run/tests/tiny/mod.rs"]
mod tiny;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use store::{RunDir, hash_file};

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

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        tiny::write(&model, 1);
        let text = RUN.replace("MODEL", model.to_str().unwrap());
        std::fs::write(folder.path().join("run.toml"), text).unwrap();
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn surefoot(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.args(args).env("SUREFOOT_HOME", self.path("home")).current_dir(self.folder.path());
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
    let place = Place::new();
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
fn ctrl_c_leaves_a_run_that_resume_finishes() {
    let place = Place::new();
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
