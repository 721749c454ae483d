//! Whole runs that run ahead: bounds on the age of tokens, one schedule on any number of threads, resume to the bit.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

#[path = "tiny/runs.rs"]
mod runs;
mod tiny;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use episode::{Episode, Group};
use policy::{Ask, Checkpoint, Under, values};
use runs::{StopAt, column, cpu, fingerprint};
use serde_json::Value;
use store::{RunDir, hash_bytes};
use surefoot_run::{Ended, Phase, Progress, Quiet, RunError, StepSummary};
use tensor::Isa;
use tiny::Place;

/// Long and short replies, and more rows than a step has episodes, so that the sampler has something to run ahead with.
const AHEAD: [&str; 4] = ["sampling.max_tokens=40", "engine.batch=24", "engine.prompt_rows=64", "eval.tasks=2"];

fn with<'a>(changes: &[&'a str]) -> Vec<&'a str> {
    [&AHEAD, changes].concat()
}

fn episodes(run: &RunDir) -> Vec<(u64, Group)> {
    let steps = run.episode_steps().unwrap();
    steps.into_iter().flat_map(|s| run.episodes(s).unwrap().into_iter().map(move |g| (s, g))).collect()
}

/// How many tokens of an episode are how old when they are trained on at a step.
fn ages(step: u64, episode: &Episode) -> BTreeMap<u64, u64> {
    let mut ages = BTreeMap::new();
    for s in &episode.sequences {
        for (version, _) in s.version().iter().zip(s.sampled()).filter(|(_, sampled)| **sampled) {
            *ages.entry(step - 1 - u64::from(*version)).or_default() += 1;
        }
    }
    ages
}

fn file(run: &RunDir, name: &str) -> String {
    let lines: Vec<Value> = run.read_lines(name).unwrap();
    hash_bytes(serde_json::to_string(&lines).unwrap().as_bytes())
}

#[test]
fn no_token_is_older_than_max_lag_and_some_are_older_than_none() {
    let place = Place::new();
    for max_lag in [1_u64, 4] {
        let run = place.run(&format!("{max_lag}"), cpu(Isa::best(), 2), &with(&[&format!("max_lag={max_lag}")]));
        let (mut oldest, mut n_spanning, mut seen) = (0, 0, BTreeMap::<u64, BTreeMap<String, u64>>::new());
        for (step, group) in episodes(&run) {
            assert_eq!(group.episodes.len(), 4, "a group stays whole");
            for episode in &group.episodes {
                let ages = ages(step, episode);
                oldest = oldest.max(ages.keys().copied().max().unwrap_or(0));
                n_spanning += usize::from(ages.len() > 1);
                for (age, n) in ages {
                    *seen.entry(step).or_default().entry(age.to_string()).or_default() += n;
                }
                let s = &episode.sequences[0];
                assert!(s.version().is_sorted_by_key(|v| *v) || !s.sampled()[0], "versions only rise in an episode");
                assert_eq!(s.turns().len(), 2, "a turn that went on under other weights is one turn");
                assert!(episode.n_sampled() <= 40);
            }
        }
        println!("max_lag {max_lag}: oldest {oldest}, {n_spanning} episodes span versions, {seen:?}");
        assert!(oldest > 0 && oldest <= max_lag, "the oldest token is {oldest} versions old");
        assert!(n_spanning > 3, "{n_spanning} episodes span versions");
        let lines: Vec<Value> = run.read_lines("metrics.jsonl").unwrap();
        for line in lines {
            let lags: BTreeMap<String, u64> = serde_json::from_value(line["lags"].clone()).unwrap();
            assert_eq!(lags, seen[&line["step"].as_u64().unwrap()]);
        }
        assert_eq!(column(&run, "n_episodes"), [16.0; 10]);
        let left = (column(&run, "n_in_flight"), column(&run, "n_queued"));
        assert!(left.0[..9].iter().any(|n| *n > 0.0), "{left:?}");
        assert_eq!((left.0[9], left.1[9]), (0.0, 0.0), "I3: nothing is begun that no step takes");
    }
}

#[test]
fn one_schedule_and_one_set_of_bits_on_any_number_of_threads() {
    let place = Place::new();
    let changes = with(&["max_lag=2"]);
    let want = place.run("one", cpu(Isa::best(), 1), &changes);
    for (name, isa, n_threads, change) in [
        ("two", Isa::best(), 2, "rollout.graders=2"),
        ("graders", Isa::best(), 2, "rollout.graders=5"),
        ("scalar", Isa::Scalar, 2, "rollout.graders=1"),
        ("micro", Isa::best(), 2, "engine.micro_batch_rows=1"),
    ] {
        let run = place.run(name, cpu(isa, n_threads), &[&changes[..], &[change]].concat());
        assert_eq!(fingerprint(&run), fingerprint(&want), "{name}");
        assert_eq!(file(&run, "schedule.jsonl"), file(&want, "schedule.jsonl"), "{name}");
    }
}

#[test]
fn j1_i4_a_run_ahead_stopped_anywhere_and_resumed_ends_in_the_same_bits() {
    let place = Place::new();
    let changes = with(&["max_lag=3", "checkpoint.every=2"]);
    let whole = place.run("whole", cpu(Isa::best(), 1), &changes);
    for after in [0, 1, 5, 8] {
        let name = format!("after {after}");
        let cancel = AtomicBool::new(false);
        let mut session = place.start(&name, cpu(Isa::best(), 2), &changes, &cancel).unwrap();
        let mut stop = StopAt { cancel: &cancel, phase: Phase::Collecting, after };
        let error = session.run(&mut stop, &cancel).unwrap_err();
        assert!(matches!(error, RunError::Interrupted), "{error}");
        drop(session);
        cancel.store(false, Ordering::Relaxed);
        let mut session = place.resume(&name, cpu(Isa::best(), 2), &cancel).unwrap();
        assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
        drop(session);
        let run = RunDir::read(&place.path(&name)).unwrap();
        assert_eq!(fingerprint(&run)[1..], fingerprint(&whole)[1..], "{name}");
        assert_eq!(file(&run, "schedule.jsonl"), file(&whole, "schedule.jsonl"), "{name}");
    }
}

/// Ends the process, as far as a test can: nothing is written any more.
struct Killed(u64);

impl Progress for Killed {
    fn step(&mut self, summary: &StepSummary) {
        assert_ne!(summary.step, self.0, "killed");
    }
}

#[test]
fn j1_a_run_ahead_killed_between_checkpoints_and_resumed_ends_in_the_same_bits() {
    let place = Place::new();
    let changes = with(&["max_lag=2", "checkpoint.every=3", "replay={ own_steps = 2 }"]);
    let whole = place.run("whole", cpu(Isa::best(), 2), &changes);
    for step in [2, 5, 9] {
        let name = format!("killed in {step}");
        let cancel = AtomicBool::new(false);
        let mut session = place.start(&name, cpu(Isa::best(), 2), &changes, &cancel).unwrap();
        let died = catch_unwind(AssertUnwindSafe(|| session.run(&mut Killed(step), &cancel)));
        assert!(died.is_err());
        drop(session);
        // What came after the last checkpoint is there, half a step of it, and is done again.
        let run = RunDir::read(&place.path(&name)).unwrap();
        assert_eq!(run.episode_steps().unwrap().last(), Some(&step));
        let checkpoint = run.checkpoints().latest().unwrap();
        assert_eq!(checkpoint.as_ref().map_or(0, |c| c.step), (step - 1) / 3 * 3);
        assert_eq!(checkpoint.is_some_and(|c| c.path.join("in_flight.jsonl").exists()), step > 3);
        let mut session = place.resume(&name, cpu(Isa::best(), 1), &cancel).unwrap();
        assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
        drop(session);
        let run = RunDir::read(&place.path(&name)).unwrap();
        assert_eq!(fingerprint(&run), fingerprint(&whole), "{name}");
        assert_eq!(file(&run, "schedule.jsonl"), file(&whole, "schedule.jsonl"), "{name}");
    }
}

#[test]
fn lag_that_is_held_is_that_of_every_token_once_it_is_there() {
    let place = Place::new();
    let run = place.run("run", cpu(Isa::best(), 2), &with(&["max_lag=3", "control.hold_lag=true", "steps=7"]));
    let (mean, max) = (column(&run, "lag_mean"), column(&run, "lag_max"));
    assert_eq!(mean, [0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0]);
    assert_eq!(max, mean);
    assert_eq!(column(&run, "n_in_flight"), [0.0; 7]);
    assert_eq!(column(&run, "n_queued"), [12.0, 12.0, 12.0, 12.0, 8.0, 4.0, 0.0]);
}

/// CASES C16: what a token was recorded with is what the version that sampled it thinks of it after everything before it,
/// also where an older version sampled that: nothing computed under one version's weights is used under another's.
#[test]
fn c15_c16_a_token_is_sampled_by_one_version_alone_whatever_it_goes_on_from() {
    let place = Place::new();
    let changes = with(&["max_lag=2", "checkpoint.every=1", "checkpoint.keep_last=20", "steps=6"]);
    let run = place.run("run", cpu(Isa::best(), 2), &changes);
    let cancel = AtomicBool::new(false);
    let mut session = place.start("other", cpu(Isa::best(), 2), &changes, &cancel).unwrap();
    let banned = session.state.banned.clone();
    let (mut n_alike, mut n_across) = (0, 0);
    for version in 1..6_u32 {
        let checkpoint = run.checkpoints().at(u64::from(version)).unwrap();
        session.engine.load(&checkpoint.path).unwrap();
        for (_, group) in episodes(&run) {
            let groups = [group];
            let found = values(&mut session.engine, &Ask::plain(Under::Now), &groups, 1.0, &banned).unwrap();
            for (episode, found) in groups[0].episodes.iter().zip(&found[0]) {
                let (s, thinks) = (&episode.sequences[0], &found[0].logp);
                for t in (0..s.len()).filter(|t| s.sampled()[*t] && s.version()[*t] == version) {
                    assert_eq!(s.logp()[t].to_bits(), thinks[t].to_bits(), "token {t} of version {version}");
                    n_alike += 1;
                    n_across += usize::from(s.version()[t - 1] < version && s.sampled()[t - 1]);
                }
            }
        }
    }
    assert!(
        n_alike > 1000 && n_across > 20,
        "{n_alike} tokens, {n_across} of them the first after a change of weights"
    );
}
