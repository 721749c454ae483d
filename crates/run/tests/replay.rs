//! Whole runs that train on episodes of their own past, of other runs, and of other systems.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

#[path = "tiny/runs.rs"]
mod runs;
mod tiny;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use runs::{StopAt, column, cpu, fingerprint};
use serde_json::{Value, json};
use store::RunDir;
use surefoot_run::{Ended, Phase, Progress, Quiet};
use tensor::Isa;
use tiny::Place;

fn schedule(run: &RunDir) -> Vec<Value> {
    run.read_lines("schedule.jsonl").unwrap()
}

/// Where the groups of each step were replayed from.
fn origins(run: &RunDir) -> Vec<Vec<String>> {
    let from = |line: &Value| {
        let groups = line["groups"].as_array().unwrap().iter();
        groups.filter_map(|g| g["from"].as_str().map(str::to_owned)).collect()
    };
    schedule(run).iter().map(from).collect()
}

fn file(place: &Place, name: &str, lines: &[Value]) {
    let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
    std::fs::write(place.path(name), text).unwrap();
}

/// An attempt of another system: the least that is enough.
fn foreign(task: &str, said: [u32; 2], reward: f64) -> Value {
    json!({
        "task": task, "tokens": [65, 66, said[0], said[1]], "sampled": [0, 0, 1, 1],
        "logp": [null, null, -2.5, -0.1], "reward": reward,
    })
}

fn foreign_file(place: &Place) {
    let lines: Vec<Value> = ["a", "b", "c"]
        .iter()
        .flat_map(|task| [foreign(task, [67, 258], 1.0), foreign(task, [68, 258], 0.0), foreign(task, [69, 69], 0.5)])
        .collect();
    file(place, "others.jsonl", &lines);
}

#[test]
fn a_share_of_each_step_comes_from_the_latest_steps_of_the_run_itself() {
    let place = Place::new();
    let changes = ["replay={ own_steps = 3 }", "checkpoint.every=2"];
    let run = place.run("run", cpu(Isa::best(), 2), &changes);
    let origins = origins(&run);
    assert!(origins[0].is_empty(), "nothing is there to replay in the first step");
    let mut seen = BTreeSet::new();
    for (step, from) in (1_u64..).zip(&origins).skip(1) {
        assert_eq!(from.len(), 1, "a quarter of 4 groups");
        let words: Vec<u64> = from[0].split(' ').filter_map(|w| w.parse().ok()).collect();
        let [of, group] = words[..] else { panic!("{from:?}") };
        assert!(of < step && of + 3 >= step && group < 3, "{from:?} in step {step}");
        let groups = run.episodes(step).unwrap();
        assert_eq!(groups.len(), 4);
        assert_eq!(groups[3], run.episodes(of).unwrap()[group as usize], "the very episodes");
        let lags = &run.read_lines::<Value>("metrics.jsonl").unwrap()[step as usize - 1]["lags"];
        assert!(lags[(step - of).to_string()].as_u64().unwrap() > 0, "{lags}");
        seen.insert(step - of);
    }
    assert!(seen.len() > 1, "{seen:?}");
    assert_eq!(column(&run, "replay_share"), [&[0.0][..], &[0.25; 9]].concat());
    assert_eq!(column(&run, "n_episodes"), [12.0; 10], "what episodes are like is said of the fresh ones");
    let again = place.run("again", cpu(Isa::best(), 1), &changes);
    assert_eq!((fingerprint(&again), schedule(&again)), (fingerprint(&run), schedule(&run)));
    for after in [2, 5] {
        let name = format!("after {after}");
        let cancel = AtomicBool::new(false);
        let mut session = place.start(&name, cpu(Isa::best(), 2), &changes, &cancel).unwrap();
        session.run(&mut StopAt { cancel: &cancel, phase: Phase::Collecting, after }, &cancel).unwrap_err();
        drop(session);
        cancel.store(false, Ordering::Relaxed);
        let mut session = place.resume(&name, cpu(Isa::best(), 2), &cancel).unwrap();
        assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
        drop(session);
        let resumed = RunDir::read(&place.path(&name)).unwrap();
        assert_eq!(fingerprint(&resumed)[1..], fingerprint(&run)[1..]);
        assert_eq!(schedule(&resumed), schedule(&run));
    }
}

#[test]
fn episodes_of_other_runs_and_systems_count_as_sampled_by_version_0() {
    let place = Place::new();
    place.run("other", cpu(Isa::best(), 2), &["seed=8", "steps=3", "replay={ own_steps = 1 }"]);
    foreign_file(&place);
    let changes = ["replay={ from = ['other', 'others.jsonl'], share = 0.5 }", "max_lag=1", "steps=6"];
    let run = place.run("run", cpu(Isa::best(), 2), &changes);
    let all: Vec<String> = origins(&run).concat();
    assert_eq!(all.len(), 12);
    let of_others = all.iter().filter(|f| f.starts_with("others.jsonl:")).count();
    assert!(of_others > 0 && of_others < 12, "{all:?}");
    assert!(
        all.iter().all(|f| f.starts_with("others.jsonl:") || f.starts_with("other/episodes/step-00000")),
        "{all:?}"
    );
    for step in 1..=6 {
        let groups = run.episodes(step).unwrap();
        for (group, from) in groups[2..].iter().zip(&origins(&run)[step as usize - 1]) {
            let sequences = group.episodes.iter().flat_map(|e| &e.sequences);
            assert!(sequences.clone().all(|s| s.version().iter().all(|v| *v == 0)), "{from}");
            if let Some(line) = from.strip_prefix("others.jsonl:") {
                assert_eq!((group.episodes.len(), (line.parse::<usize>().unwrap() - 1) % 3), (3, 0));
                assert_eq!(group.rewards(), [1.0, 0.0, 0.5]);
                assert_eq!(sequences.map(|s| s.logp()[2]).collect::<Vec<_>>(), [-2.5; 3]);
                assert_eq!(group.episodes.iter().map(|e| e.key.sample).collect::<Vec<_>>(), [0, 1, 2]);
            } else {
                // What the other run had replayed itself is not replayed again.
                let (file, number) = from.split_once(':').unwrap();
                let text = std::fs::read_to_string(place.path(file)).unwrap();
                let line = text.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
                let line: Value = serde_json::from_str(line).unwrap();
                assert!(line["group"].as_u64().unwrap() < 3, "{from}");
                assert_eq!(line["task"]["id"], json!(group.task.id));
            }
        }
    }
    assert_eq!(column(&run, "lag_max")[5], 5.0);
}

#[test]
fn a_run_may_learn_from_given_episodes_alone() {
    let place = Place::new();
    foreign_file(&place);
    let run = place.run("run", cpu(Isa::best(), 2), &["replay={ from = ['others.jsonl'], share = 1.0 }", "steps=3"]);
    assert_eq!(column(&run, "n_tokens"), [0.0; 3], "nothing is sampled");
    assert_eq!(column(&run, "replay_share"), [1.0; 3]);
    // There are 3 groups, and none is there twice in a step.
    assert!(origins(&run).iter().all(|f| f.iter().collect::<BTreeSet<_>>().len() == 3));
    assert_eq!(column(&run, "n_updates"), [2.0; 3]);
    assert!(column(&run, "grad_norm").iter().all(|g| *g > 0.0));
}

#[test]
fn i18_a_file_that_changed_is_refused_when_the_run_goes_on() {
    let place = Place::new();
    foreign_file(&place);
    place.run("run", cpu(Isa::best(), 2), &["replay={ from = ['others.jsonl'] }", "steps=1"]);
    let text = std::fs::read_to_string(place.path("others.jsonl")).unwrap();
    std::fs::write(place.path("others.jsonl"), text.replace("-2.5", "-2.25")).unwrap();
    let cancel = AtomicBool::new(false);
    let error = place.resume("run", cpu(Isa::best(), 1), &cancel).err().unwrap().to_string();
    assert!(error.contains("its replayed episodes is not what it began with"), "{error}");
}

#[test]
fn an_episode_that_does_not_fit_is_refused_with_its_place_and_before_anything_is_written() {
    let place = Place::new();
    let change = |key: &str, value: Value| {
        let mut line = foreign("a", [67, 258], 1.0);
        line[key] = value;
        line
    };
    let cancel = AtomicBool::new(false);
    for (bad, want) in [
        (change("tokens", json!([65, 66, 67, 259])), "token 259 at position 3 is outside the vocabulary of 259"),
        (change("tokens", json!([65, 66, 67])), "`sampled` has 4 entries, needed 3, one a token"),
        (change("sampled", json!([1, 0, 1, 1])), "log-probability NaN at token 0 is not a finite number at most 0"),
        (
            change("logp", json!([-1, null, -2.5, 0.5])),
            "log-probability 0.5 at token 3 is not a finite number at most 0",
        ),
        (
            change("logp", json!([null, null, null, -0.1])),
            "log-probability NaN at token 2 is not a finite number at most 0",
        ),
        (change("reward", Value::Null), "needed `tokens`, `sampled`, `logp` and `reward`, or a whole `episode`"),
        (change("task", json!(3)), "`task` is neither a name nor a task of a record: "),
        (change("colour", json!(3)), "unknown field `colour`, expected one of "),
        (
            change("turns", json!([{"role": "user", "span": {"start": 0, "end": 3}}])),
            "the turn of tokens 0 to 3 is sampled in part",
        ),
        (
            change("turns", json!([{"role": "user", "span": {"start": 0, "end": 2}}])),
            "`turns` do not cover the 4 tokens in order",
        ),
    ] {
        file(&place, "bad.jsonl", &[foreign("a", [68, 258], 0.0), bad]);
        let changes = ["replay={ from = ['bad.jsonl'] }"];
        let error = place.start("run", cpu(Isa::best(), 1), &changes, &cancel).err().unwrap().to_string();
        let start = format!("`{}` line 2: {want}", place.path("bad.jsonl").display());
        assert!(error.starts_with(&start), "{error}\n{start}");
        assert!(!place.path("run").exists());
    }
    let long: Vec<u32> = vec![65; 300];
    let mut line = change("tokens", json!(long));
    line["sampled"] = json!([&[0_u8; 299][..], &[1]].concat());
    line["logp"] = json!(vec![Some(-1.0); 300]);
    file(&place, "bad.jsonl", &[line]);
    let changes = ["replay={ from = ['bad.jsonl'] }"];
    let error = place.start("run", cpu(Isa::best(), 1), &changes, &cancel).err().unwrap().to_string();
    assert!(error.ends_with("line 1: 300 tokens do not fit the context window of 256"), "{error}");
    file(&place, "bad.jsonl", &[]);
    let error = place.start("run", cpu(Isa::best(), 1), &changes, &cancel).err().unwrap().to_string();
    assert_eq!(error, "`replay.from` has `bad.jsonl`, which holds no episodes");
}

#[derive(Default)]
struct Notes(Vec<String>);

impl Progress for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

#[test]
fn that_nothing_corrects_for_lag_is_said_once_and_only_then() {
    let place = Place::new();
    foreign_file(&place);
    for (name, changes, want) in [
        ("plain", &["steps=3"][..], &[][..]),
        (
            "replay",
            &["steps=3", "replay={ from = ['others.jsonl'] }"],
            &["tokens up to 1 versions old are trained on as if the policy had just sampled them: \
               `algorithm.correction.rule` is `none`"],
        ),
        ("corrected", &["steps=3", "replay={ from = ['others.jsonl'] }", "algorithm.correction.rule='token_tis'"], &[]),
    ] {
        let cancel = AtomicBool::new(false);
        let mut session = place.start(name, cpu(Isa::best(), 2), changes, &cancel).unwrap();
        let mut notes = Notes::default();
        session.run(&mut notes, &cancel).unwrap();
        assert_eq!(notes.0, want, "{name}");
    }
}
