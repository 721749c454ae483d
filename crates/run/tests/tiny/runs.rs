//! Whole runs of the tiny model.

#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use store::{RunDir, hash_bytes};
use surefoot_run::{Begin, Ended, Phase, Progress, Quiet, RunError, RunFile, Session};
use tensor::{Cpu, Isa};

use crate::tiny::Place;

/// Ten steps on sums with coin flips for rewards: a tiny random model never adds right, and a coin gives every group a
/// spread, so that every part of a step is exercised.
pub(crate) const RUN: &str = r#"
model = "tiny"
seed = 7
steps = 10

[train]
kind = "lora"
rank = 4
alpha = 8
targets = ["all"]

[algorithm]
kind = "grpo"
minibatch_groups = 2

[optimiser]
learning_rate = 2e-2
warmup_updates = 3

[batch]
tasks = 4
group_size = 4

[sampling]
max_tokens = 8

[eval]
tasks = 6
every = 5

[checkpoint]
every = 3
kl_every = 2

[control]
coin_flips = true

[[env]]
kind = "sums"
n_train = 40
n_held_out = 20
"#;

impl Place {
    pub(crate) fn start(
        &self,
        name: &str,
        cpu: Cpu,
        changes: &[&str],
        cancel: &AtomicBool,
    ) -> Result<Session, RunError> {
        let mut file = RunFile::parse(RUN).unwrap();
        for change in changes {
            file.set(change).unwrap();
        }
        let (model, folder) = (self.model(), self.path(name));
        let begin = Begin { model: &model, base: self.folder(), folder: &folder, from: None, teacher: None, cpu };
        Session::start(file.resolve()?, begin, &mut Quiet, cancel)
    }

    pub(crate) fn resume(&self, name: &str, cpu: Cpu, cancel: &AtomicBool) -> Result<Session, RunError> {
        Session::resume(&self.path(name), &self.model(), cpu, &mut Quiet, cancel)
    }

    /// Runs to the end and gives the run.
    pub(crate) fn run(&self, name: &str, cpu: Cpu, changes: &[&str]) -> RunDir {
        let cancel = AtomicBool::new(false);
        let ended = self.start(name, cpu, changes, &cancel).unwrap().run(&mut Quiet, &cancel).unwrap();
        assert_eq!(ended, Ended::Finished);
        RunDir::read(&self.path(name)).unwrap()
    }
}

pub(crate) fn cpu(isa: Isa, n_threads: usize) -> Cpu {
    Cpu::new(isa, n_threads).unwrap()
}

/// Everything of a run that must follow from settings and seed: the final checkpoint, metrics, evaluations and episodes.
pub(crate) fn fingerprint(run: &RunDir) -> Vec<String> {
    let mut all = vec![run.checkpoints().latest().unwrap().unwrap().digest()];
    for name in ["metrics.jsonl", "evals.jsonl"] {
        let lines: Vec<Value> = run.read_lines(name).unwrap();
        all.push(hash_bytes(serde_json::to_string(&lines).unwrap().as_bytes()));
    }
    for step in run.episode_steps().unwrap() {
        all.push(hash_bytes(serde_json::to_string(&run.episodes(step).unwrap()).unwrap().as_bytes()));
    }
    all
}

pub(crate) fn column(run: &RunDir, key: &str) -> Vec<f64> {
    let lines: Vec<Value> = run.read_lines("metrics.jsonl").unwrap();
    lines.iter().map(|l| l[key].as_f64().unwrap_or(f64::NAN)).collect()
}

/// Raises a flag when a run comes to some point.
pub(crate) struct StopAt<'a> {
    pub(crate) cancel: &'a AtomicBool,
    pub(crate) phase: Phase,
    pub(crate) after: usize,
}

impl Progress for StopAt<'_> {
    fn phase(&mut self, phase: Phase, _: usize) {
        if phase == self.phase {
            if self.after == 0 {
                self.cancel.store(true, Ordering::Relaxed);
            }
            self.after = self.after.wrapping_sub(1);
        }
    }
}
