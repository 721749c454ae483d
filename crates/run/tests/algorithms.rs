//! Every algorithm as a whole run of the tiny model: it moves the weights, says the same on any number of threads, and
//! goes on from a checkpoint to the bit.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

#[path = "tiny/runs.rs"]
mod runs;
mod tiny;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use runs::{RUN, StopAt, column, cpu, fingerprint};
use store::RunDir;
use surefoot_run::{Begin, Ended, Phase, Quiet, RunError, RunFile, Session};
use tensor::Isa;
use tiny::Place;

/// What an algorithm needs beside its name for a run of a few steps.
fn changes(name: &str) -> Vec<String> {
    let mut all: Vec<String> = ["steps=4", "eval.every=2", "checkpoint.every=2"].map(str::to_owned).to_vec();
    all.push(match name {
        // Tables of the run file's own algorithm go with it.
        "distill" => "algorithm={ kind = 'distill', teacher = 'other' }".to_owned(),
        "raft" => "algorithm={ kind = 'raft', raft.threshold = 1.0 }".to_owned(),
        "sdpo" => "algorithm={ kind = 'sdpo', top_k = 8 }".to_owned(),
        "ppo" => "algorithm={ kind = 'ppo', epochs = 2, minibatch_groups = 2 }".to_owned(),
        _ => format!("algorithm={{ kind = '{name}' }}"),
    });
    let answers = ["control.coin_flips=false", "batch.group_size=1", "data={ file = 'answers.jsonl' }"];
    let told = ["control.coin_flips=false", "env.0.grader=[{ kind = 'last_number', tells = true }]"];
    match name {
        "sft" => all.extend(answers.map(str::to_owned)),
        "sdpo" => all.extend(told.map(str::to_owned)),
        _ => {}
    }
    all
}

/// Given pairs and answers beside the model, and another model to be taught by.
fn furnished() -> Place {
    let place = Place::new();
    tiny::write(&place.path("other"), 2);
    let lines = |of: &dyn Fn(usize) -> String| (0..8).map(of).collect::<Vec<_>>().join("\n");
    let asked = |i: usize| format!(r#"[{{"role": "user", "content": "say {i}"}}]"#);
    let answer = |i: usize| format!(r#"{{"prompt": "say {i}", "completion": "{i}"}}"#);
    let pair = |i: usize| format!(r#"{{"prompt": {}, "chosen": "{i}", "rejected": "no, {}"}}"#, asked(i), i + 1);
    std::fs::write(place.path("answers.jsonl"), lines(&answer)).unwrap();
    std::fs::write(place.path("pairs.jsonl"), lines(&pair)).unwrap();
    place
}

struct Desk {
    place: Place,
}

impl Desk {
    fn start(&self, run: &str, n_threads: usize, changes: &[String], cancel: &AtomicBool) -> Result<Session, RunError> {
        let mut file = RunFile::parse(RUN)?;
        changes.iter().try_for_each(|change| file.set(change))?;
        let (model, folder, other) = (self.place.model(), self.place.path(run), self.place.path("other"));
        let teacher = changes.iter().any(|c| c.contains("distill")).then_some(other.as_path());
        let base: &Path = self.place.folder();
        let cpu = cpu(Isa::best(), n_threads);
        let begin = Begin { model: &model, base, folder: &folder, from: None, teacher, cpu };
        Session::start(file.resolve()?, begin, &mut Quiet, cancel)
    }

    fn run(&self, run: &str, n_threads: usize, changes: &[String]) -> RunDir {
        let cancel = AtomicBool::new(false);
        let ended = self.start(run, n_threads, changes, &cancel).unwrap().run(&mut Quiet, &cancel).unwrap();
        assert_eq!(ended, Ended::Finished);
        RunDir::read(&self.place.path(run)).unwrap()
    }

    /// A run that moves its weights, has equal bits on one thread and two, and after an interruption.
    fn check(&self, name: &str, changes: &[String]) {
        let whole = self.run(&format!("{name}-whole"), 1, changes);
        assert!(column(&whole, "grad_norm").iter().any(|g| *g > 0.0), "{name} moves nothing");
        let want = fingerprint(&whole);
        assert_eq!(fingerprint(&self.run(&format!("{name}-threads"), 2, changes)), want, "{name} on two threads");
        let (stop, cut) = (AtomicBool::new(false), format!("{name}-cut"));
        let mut watch = StopAt { cancel: &stop, phase: Phase::Collecting, after: 2 };
        let error = self.start(&cut, 1, changes, &stop).unwrap().run(&mut watch, &stop).unwrap_err();
        assert!(matches!(error, RunError::Interrupted), "{name}: {error}");
        let go = AtomicBool::new(false);
        let (folder, model) = (self.place.path(&cut), self.place.model());
        let mut session = Session::resume(&folder, &model, cpu(Isa::best(), 1), &mut Quiet, &go).unwrap();
        session.run(&mut Quiet, &go).unwrap();
        assert_eq!(fingerprint(&RunDir::read(&folder).unwrap()), want, "{name} after an interruption");
    }
}

#[test]
fn every_algorithm_runs_with_equal_bits_on_any_threads_and_after_an_interruption() {
    let desk = Desk { place: furnished() };
    for name in algo::Settings::NAMES {
        desk.check(name, &changes(name));
    }
}

#[test]
fn references_and_teachers_that_follow_survive_an_interruption() {
    let desk = Desk { place: furnished() };
    let kl = |rest: &str| format!("algorithm={{ kind = 'grpo', kl = {{ coefficient = 0.1, {rest} }} }}");
    let cases = [
        ("base", kl("reference = 'base'")),
        ("ema", kl("reference = 'ema', ema_rate = 0.5")),
        ("every", kl("reference = 'every_n', every = 2")),
    ];
    let mut ends = Vec::new();
    for (name, change) in cases {
        let mut all = changes("grpo");
        all.push(change);
        desk.check(name, &all);
        let run = RunDir::read(&desk.place.path(&format!("{name}-whole"))).unwrap();
        ends.push(run.checkpoints().latest().unwrap().unwrap().digest());
    }
    ends.sort_unstable();
    ends.dedup();
    assert_eq!(ends.len(), 3, "each reference leads elsewhere");
}

#[test]
fn given_pairs_train_dpo_and_a_reward_model_that_tells_them_apart() {
    let desk = Desk { place: furnished() };
    for name in ["dpo", "reward_model"] {
        let mut all = changes(name);
        for change in ["control.coin_flips=false", "batch.group_size=2", "data={ file = 'pairs.jsonl' }", "steps=12"] {
            all.push(change.to_owned());
        }
        all.push("optimiser.learning_rate=1e-2".to_owned());
        let run = desk.run(&format!("{name}-pairs"), 2, &all);
        let accuracy = column(&run, "pair_accuracy");
        println!("{name}: {accuracy:?}");
        assert_eq!(accuracy.last(), Some(&1.0), "{name} orders every pair in the end");
        assert!(accuracy[0] < 1.0, "and not from the start");
    }
}

#[test]
fn what_an_algorithm_cannot_learn_from_is_refused_by_name() {
    let desk = Desk { place: furnished() };
    let cancel = AtomicBool::new(false);
    let refused = |name: &str, more: &[&str]| {
        let mut all = changes(name);
        all.extend(more.iter().map(|c| (*c).to_owned()));
        desk.start("refused", 1, &all, &cancel).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let answers = "data={ file = 'answers.jsonl' }";
    let quiet = "control.coin_flips=false";
    assert_eq!(refused("rloo", &[answers]), "`[data]` would be ignored by `rloo`, which learns from its own episodes");
    assert_eq!(
        refused("dpo", &[answers, quiet]),
        "`batch.group_size` is 4, needed 2 with `[data]` and `dpo`: a line's own"
    );
    let got = refused("dpo", &[answers, quiet, "batch.group_size=2"]);
    assert!(got.contains(r#"needed `{"prompt": …, "chosen": …, "rejected": …}`"#), "{got}");
    assert!(!desk.place.path("refused").exists(), "nothing is written");
}
