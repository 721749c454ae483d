//! A small study of a tiny model: a grid of runs, its report, and what an interrupt changes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

mod tiny;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use eval::study::{Call, Cell, Ended, Report};
use serde_json::Value;
use store::RunDir;
use surefoot_run::study::{Grid, Plan, Study, StudyError};
use surefoot_run::{Begin, Ended as RunEnded, Phase, Progress, Quiet, RunFile, Session};
use tensor::{Cpu, Isa};
use tiny::Place;

/// One token a reply, right when it is the letter asked for: chance decides at first, and it can be learned.
const RUN: &str = r#"
model = "tiny"
seed = 5
steps = 6

[train]
kind = "lora"
rank = 4
alpha = 8
targets = ["all"]

[algorithm]
kind = "grpo"
minibatch_groups = 3

[optimiser]
learning_rate = 2e-2

[batch]
tasks = 5
group_size = 16

[sampling]
max_tokens = 1
temperature = 0.4

[eval]
tasks = 20
every = 2
attempts = 4
temperature = 0.4

[checkpoint]
every = 2

[[env]]
kind = "jsonl"
tasks = "tasks.jsonl"
held_out = "held_out.jsonl"
[[env.grader]]
kind = "text"
"#;

const LAGS: &[u64] = &[0, 1];

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap()
}

fn place() -> Place {
    let place = Place::new();
    // The letters that the untrained model says most often, so that some groups have a spread.
    let letters = ["P", "J", ")", "m", "?"];
    let lines = |from: usize, n: usize| -> String {
        let line = |i: usize| format!("{{\"prompt\": \"say {i}\", \"gold\": \"{}\"}}\n", letters[i % 5]);
        (from..from + n).map(line).collect()
    };
    std::fs::write(place.path("tasks.jsonl"), lines(0, 30)).unwrap();
    std::fs::write(place.path("held_out.jsonl"), lines(100, 20)).unwrap();
    place
}

fn grid() -> Grid {
    let corrections = ["none", "tis"].map(str::to_owned).to_vec();
    Grid { lags: LAGS.to_vec(), corrections, n_seeds: 2, tokens: None, target: None }
}

fn file(changes: &[&str]) -> RunFile {
    let mut file = RunFile::parse(RUN).unwrap();
    changes.iter().for_each(|c| file.set(c).unwrap());
    file
}

fn plan(place: &Place, changes: &[&str], grid: Grid) -> Result<Plan, StudyError> {
    Plan::new(&file(changes).resolve().unwrap(), place.folder(), grid)
}

/// Makes every run that is left.
fn finish(study: &Study, place: &Place, progress: &mut dyn Progress, cancel: &AtomicBool) -> Result<usize, StudyError> {
    let mut n = 0;
    while let Some(next) = study.next()? {
        study.run(&next, &place.model(), cpu(), progress, cancel)?;
        n += 1;
    }
    Ok(n)
}

fn whole(place: &Place, name: &str, changes: &[&str], grid: Grid) -> (Study, Report) {
    let study = Study::create(&place.path(name), plan(place, changes, grid).unwrap()).unwrap();
    finish(&study, place, &mut Quiet, &AtomicBool::new(false)).unwrap();
    let report = study.report().unwrap();
    (study, report)
}

fn cell(lag: u64, correction: &str) -> Cell {
    Cell { lag, correction: correction.to_owned() }
}

fn lines(folder: &Path, name: &str) -> Vec<Value> {
    RunDir::read(folder).unwrap().read_lines(name).unwrap()
}

/// Raises a flag when a phase begins for the n-th time.
struct StopAt<'a> {
    cancel: &'a AtomicBool,
    phase: Phase,
    left: usize,
}

impl Progress for StopAt<'_> {
    fn phase(&mut self, phase: Phase, _: usize) {
        if phase == self.phase {
            if self.left == 0 {
                self.cancel.store(true, Ordering::Relaxed);
            }
            self.left = self.left.wrapping_sub(1);
        }
    }
}

/// Every number of the table, computed again from the files of the run directories alone.
#[test]
fn the_table_is_what_the_run_directories_say() {
    let place = place();
    let (study, report) = whole(&place, "study", &[], grid());
    report.verdicts.iter().for_each(|v| println!("{}: {}", v.cell, v.sentence));
    let folder = |c: &Cell, seed: u64| study.cell_folder(c, seed);
    let tokens = |f: &Path| lines(f, "metrics.jsonl").iter().map(|l| l["n_tokens"].as_f64().unwrap()).sum::<f64>();
    let tasks = |f: &Path| -> BTreeMap<String, (i64, i64)> {
        let value: Value = RunDir::read(f).unwrap().read_json("cell.json").unwrap().unwrap();
        let all = value["held_out"].as_array().unwrap().clone();
        let one = |t: Value| {
            let number = |key: &str| t[key].as_i64().unwrap();
            (t["task"].as_str().unwrap().to_owned(), (number("solved"), number("attempts")))
        };
        all.into_iter().map(one).collect()
    };
    assert_eq!(report.setup.seeds, [5, 6]);
    let base = cell(0, "none");
    assert_eq!(report.setup.budget as f64, tokens(&folder(&base, 5)));
    // Every run ended at the first step that reached the budget.
    for line in report.cells.iter().flat_map(|c| &c.runs) {
        let steps: Vec<f64> = lines(&study.folder().join(&line.folder), "metrics.jsonl")
            .iter()
            .map(|l| l["n_tokens"].as_f64().unwrap())
            .collect();
        assert_eq!((line.steps, line.tokens as f64), (steps.len() as u64, steps.iter().sum::<f64>()));
        let before_last: f64 = steps[..steps.len() - 1].iter().sum();
        assert!(before_last < report.setup.budget as f64 && line.tokens >= report.setup.budget, "{line:?}");
        assert_eq!(line.ended, Ended::Budget);
        let evals = lines(&study.folder().join(&line.folder), "evals.jsonl");
        assert_eq!(evals.first().unwrap()["accuracy"].as_f64(), line.before);
        assert_eq!(evals.last().unwrap()["accuracy"].as_f64(), Some(line.after));
        assert_eq!(evals.last().unwrap()["step"], line.steps);
        let (solved, attempts) =
            tasks(&study.folder().join(&line.folder)).values().fold((0, 0), |a, t| (a.0 + t.0, a.1 + t.1));
        assert_eq!((attempts, solved as f64 / attempts as f64), (80, line.after));
    }
    for verdict in report.verdicts.iter().filter(|v| v.call != Call::Same) {
        let mut by_task: BTreeMap<String, i64> = BTreeMap::new();
        let (mut sum, mut gained, mut lost) = (0, 0, 0);
        for seed in [5, 6] {
            let (ours, theirs) = (tasks(&folder(&verdict.cell, seed)), tasks(&folder(&base, seed)));
            for (task, (solved, _)) in &ours {
                let d = solved - theirs[task].0;
                *by_task.entry(task.clone()).or_default() += d;
                sum += d;
                gained += d.max(0);
                lost += (-d).max(0);
            }
        }
        assert!((verdict.effect - sum as f64 / 160.0).abs() < 1e-12, "{verdict:?}");
        assert_eq!((verdict.gained as i64, verdict.lost as i64), (gained, lost));
        // All choices of signs, one by one.
        let d: Vec<i64> = by_task.values().copied().filter(|d| *d != 0).collect();
        assert!(d.len() <= 20);
        let far = (0..1_u32 << d.len()).filter(|signs| {
            let flipped = d.iter().enumerate().map(|(i, d)| if signs >> i & 1 == 1 { -d } else { *d });
            flipped.sum::<i64>().abs() >= sum.abs()
        });
        let p = far.count() as f64 / f64::from(1_u32 << d.len());
        assert!((verdict.p - p).abs() < 1e-12, "{} {p}", verdict.p);
        assert!(verdict.interval.low <= verdict.effect && verdict.effect <= verdict.interval.high);
    }
    for c in &report.cells {
        let all: Vec<f64> = c
            .runs
            .iter()
            .flat_map(|r| lines(&study.folder().join(&r.folder), "metrics.jsonl"))
            .filter_map(|l| l["kl_mismatch"].as_f64())
            .collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((c.kl_mismatch.mean.unwrap() - mean).abs() < 1e-15, "{}", c.cell);
        assert!((c.lags.iter().map(|l| l.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(c.lags.iter().all(|l| l.lag >= 0 && l.lag <= c.cell.lag as i64), "{:?}", c.lags);
        // The lag is held: only the steps before it can be reached are trained on earlier.
        let early = c.lags.iter().filter(|l| l.lag < c.cell.lag as i64).map(|l| l.share).sum::<f64>();
        let steps = c.runs.iter().map(|r| r.steps as f64).sum::<f64>() / c.runs.len() as f64;
        assert!((early - c.cell.lag as f64 / steps).abs() < 1e-9, "{:?}", c.lags);
        assert_eq!(c.kl_mismatch.mean == Some(0.0), c.cell.lag == 0, "late tokens were sampled by another policy");
    }
    assert_eq!(report.smallest_p_seeds, 0.5);
    let before = report.cells[0].runs[0].before.unwrap();
    assert!(report.cells[0].accuracy > before + 0.1, "the task can be learned: {before} {}", report.cells[0].accuracy);
}

#[test]
fn a_correction_that_is_one_everywhere_is_run_once_and_said_to_be_the_same() {
    let place = place();
    let (study, report) = whole(&place, "study", &[], Grid { lags: vec![0], ..grid() });
    assert!(study.cell_folder(&cell(0, "tis"), 5).exists(), "at the first seed both are run");
    assert!(!study.cell_folder(&cell(0, "tis"), 6).exists());
    let [verdict] = &report.verdicts[..] else { panic!("{:?}", report.verdicts) };
    assert_eq!((verdict.call, verdict.p), (Call::Same, 1.0));
    let weights = |c: &str| {
        let run = RunDir::read(&study.cell_folder(&cell(0, c), 5)).unwrap();
        store::hash_file(&run.checkpoints().latest().unwrap().unwrap().path.join("weights.safetensors")).unwrap()
    };
    assert_eq!(weights("tis"), weights("none"));
    // The run file's own rule keeps what it was given, and a cap above 1 never binds at a ratio of 1.
    let own = ["algorithm.correction={ rule = 'token_tis', cap = 1.5 }"];
    let (study, report) = whole(&place, "own", &own, Grid { lags: vec![0], n_seeds: 1, ..grid() });
    let settings = |c: &str| study.plan().settings_of(&cell(0, c), 5).unwrap().to_toml().unwrap();
    assert!(settings("tis").contains("cap = 1.5") && !settings("none").contains("cap"));
    assert_eq!(report.verdicts[0].call, Call::Same);
}

/// CASES H7, J1: a report of a study that was stopped is the report of one that was not, byte for byte.
#[test]
fn h7_j1_a_study_stopped_anywhere_gives_the_same_report_bytes() {
    let place = place();
    let grid = || Grid { tokens: Some(250), ..grid() };
    let (_, report) = whole(&place, "whole", &[], grid());
    let want = serde_json::to_string(&report).unwrap();
    let study = Study::create(&place.path("stopped"), plan(&place, &[], grid()).unwrap()).unwrap();
    drop(study);
    let cancel = AtomicBool::new(false);
    let mut n_stops = 0;
    // Inside steps, before and in evaluations, while saving; each process goes a little further.
    for (phase, left) in [
        (Phase::Evaluating, 0),
        (Phase::Collecting, 2),
        (Phase::Evaluating, 2),
        (Phase::Saving, 1),
        (Phase::Evaluating, 3),
        (Phase::Collecting, 7),
        (Phase::Evaluating, 1),
        (Phase::Saving, 3),
    ] {
        let study = Study::open(&place.path("stopped")).unwrap();
        cancel.store(false, Ordering::Relaxed);
        let mut stop = StopAt { cancel: &cancel, phase, left };
        match finish(&study, &place, &mut stop, &cancel) {
            Err(error) if error.is_interrupt() => n_stops += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(n_stops, 8);
    cancel.store(false, Ordering::Relaxed);
    let study = Study::open(&place.path("stopped")).unwrap();
    finish(&study, &place, &mut Quiet, &cancel).unwrap();
    assert_eq!(serde_json::to_string(&study.report().unwrap()).unwrap(), want);
    assert_eq!(finish(&study, &place, &mut Quiet, &cancel).unwrap(), 0, "nothing is left");
}

#[test]
fn what_a_killed_process_left_half_done_is_put_in_order() {
    let place = place();
    let (study, report) = whole(&place, "study", &[], Grid { lags: vec![0], ..grid() });
    let want = serde_json::to_string(&report).unwrap();
    let folder = study.cell_folder(&cell(0, "none"), 6);
    let settings = || std::fs::read_to_string(folder.join("settings.toml")).unwrap();
    let sealed = settings();
    // Killed between the settings and the manifest that names their hash.
    let run = RunDir::open(&folder).unwrap();
    let mut summary = run.summary().unwrap().unwrap();
    summary.status = "interrupted".to_owned();
    run.write_summary(&summary).unwrap();
    let manifest: Value = run.read_json("manifest.json").unwrap().unwrap();
    run.write_json("manifest.json", &{
        let mut other = manifest.clone();
        other["settings"] = "of the unfinished run".into();
        other
    })
    .unwrap();
    drop(run);
    // Killed while a run directory was being made.
    let half = study.cell_folder(&cell(0, "tis"), 5);
    std::fs::remove_file(half.join("manifest.json")).unwrap();
    std::fs::remove_file(half.join("cell.json")).unwrap();
    assert_eq!(finish(&study, &place, &mut Quiet, &AtomicBool::new(false)).unwrap(), 2);
    assert_eq!(RunDir::read(&folder).unwrap().read_json::<Value>("manifest.json").unwrap().unwrap(), manifest);
    assert_eq!(settings(), sealed);
    assert_eq!(serde_json::to_string(&study.report().unwrap()).unwrap(), want);
}

#[test]
fn a_cell_is_an_ordinary_run_of_as_many_steps() {
    let place = place();
    let (study, report) = whole(&place, "study", &[], Grid { tokens: Some(230), ..grid() });
    let last = *LAGS.last().unwrap();
    for (lag, correction, seed) in [(0, "none", 5), (last, "tis", 6)] {
        let c = cell(lag, correction);
        let folder = study.cell_folder(&c, seed);
        let settings = study.plan().settings_of(&c, seed).unwrap();
        let steps =
            report.cells.iter().find(|r| r.cell == c).unwrap().runs.iter().find(|r| r.seed == seed).unwrap().steps;
        let (model, plain): (PathBuf, PathBuf) = (place.model(), place.path(&format!("plain-{lag}-{correction}")));
        let begin =
            Begin { model: &model, base: place.folder(), folder: &plain, from: None, teacher: None, cpu: cpu() };
        let cancel = AtomicBool::new(false);
        let settings = surefoot_run::Settings { steps, ..settings };
        Session::start(settings, begin, &mut Quiet, &cancel).unwrap().run(&mut Quiet, &cancel).unwrap();
        // A run that does not know its end runs ahead beyond it; nothing that was learned shows that.
        let ahead = ["n_in_flight", "n_queued", "held_up"];
        let numbers = |f: &Path| {
            let mut all = lines(f, "metrics.jsonl");
            all.iter_mut().for_each(|l| ahead.iter().for_each(|key| drop(l.as_object_mut().unwrap().remove(*key))));
            all
        };
        assert_eq!(numbers(&folder), numbers(&plain));
        assert_eq!(lines(&folder, "evals.jsonl"), lines(&plain, "evals.jsonl"));
        let text = |f: &Path, name: &str| std::fs::read_to_string(f.join(name)).unwrap();
        let after_id = |text: String| text.split_once('\n').unwrap().1.to_owned();
        assert_eq!(after_id(text(&folder, "settings.toml")), after_id(text(&plain, "settings.toml")));
        let weights = |f: &Path| {
            let run = RunDir::read(f).unwrap();
            let checkpoint = run.checkpoints().latest().unwrap().unwrap();
            (checkpoint.step, store::hash_file(&checkpoint.path.join("weights.safetensors")).unwrap())
        };
        assert_eq!(weights(&folder), weights(&plain));
        let samples = |f: &Path| RunDir::read(f).unwrap().read_json::<Value>("samples.json").unwrap().unwrap();
        assert_eq!(samples(&folder), samples(&plain));
        // `train --resume` finds it finished and adds nothing.
        let ended = Session::resume(&folder, &model, cpu(), &mut Quiet, &cancel).unwrap().run(&mut Quiet, &cancel);
        assert_eq!(ended.unwrap(), RunEnded::Finished);
        assert_eq!(lines(&folder, "metrics.jsonl").len() as u64, steps);
    }
}

/// All runs begin with the same weights, also when the model was changed between two of them.
#[test]
fn a_run_that_would_begin_with_other_weights_is_refused() {
    let place = place();
    let grid = Grid { lags: vec![0], n_seeds: 1, ..grid() };
    let study = Study::create(&place.path("study"), plan(&place, &[], grid).unwrap()).unwrap();
    let cancel = AtomicBool::new(false);
    let run = || study.run(&study.next().unwrap().unwrap(), &place.model(), cpu(), &mut Quiet, &cancel);
    run().unwrap();
    tiny::write(&place.model(), 2);
    let error = run().unwrap_err().to_string();
    assert!(error.contains("its weights is not that of the study's first run: needed `"), "{error}");
    tiny::write(&place.model(), 1);
    run().unwrap();
    assert_eq!(study.next().unwrap(), None, "and with the first ones it goes on");
}

/// A way of training that stops learning is a result, not a fault of the study.
#[test]
fn a_run_that_cannot_go_on_is_reported_as_such() {
    let place = place();
    // No such letter is ever said, so no group has a spread.
    let tasks: String = (0..30).map(|i| format!("{{\"prompt\": \"say {i}\", \"gold\": \"wörd {i}\"}}\n")).collect();
    std::fs::write(place.path("tasks.jsonl"), tasks).unwrap();
    let grid = Grid { lags: vec![0], n_seeds: 1, ..grid() };
    let (study, report) = whole(&place, "study", &["max_idle_steps=2"], grid);
    let line = &report.cells[0].runs[0];
    let Ended::GaveUp { why } = &line.ended else { panic!("{line:?}") };
    assert!(why.starts_with("2 steps in a row taught nothing"), "{why}");
    assert_eq!((line.steps, line.before), (2, Some(line.after)), "and it was tried where it ended");
    assert_eq!(study.next().unwrap(), None);
    assert_eq!(report.target, None, "nothing was gained, so there is nothing to reach");
}

#[test]
fn every_correction_and_each_algorithm_in_its_place_makes_a_plan() {
    let place = place();
    let all = loss::Correction::NAMES.iter().chain(&["oapl", "dro"]).map(|w| (*w).to_owned()).collect();
    let plan = plan(&place, &[], Grid { lags: vec![0, 4], corrections: all, ..grid() }).unwrap();
    assert_eq!(plan.cells().len(), 2 * (loss::Correction::NAMES.len() + 2));
    for c in plan.cells() {
        let settings = plan.settings_of(&c, 6).unwrap();
        assert_eq!((settings.seed, settings.max_lag, settings.control.hold_lag), (6, c.lag, c.lag > 0), "{c}");
        let toml = settings.to_toml().unwrap();
        if ["oapl", "dro"].contains(&c.correction.as_str()) {
            assert_eq!(settings.algorithm.name(), c.correction);
        } else {
            assert_eq!(settings.algorithm.name(), "grpo");
            assert!(toml.contains(&format!("rule = \"{}\"", c.correction)), "{toml}");
        }
    }
}

#[test]
fn h12_what_makes_no_study_is_refused_by_name_before_anything_is_opened() {
    let place = place();
    let check = |changes: &[&str], grid: Grid, want: &str| {
        let error = plan(&place, changes, grid).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    check(&[], Grid { lags: vec![], ..grid() }, "`--lags` is empty, needed at least 1");
    check(&[], Grid { lags: vec![0, 4, 4], ..grid() }, "`--lags` has 4 twice");
    check(&[], Grid { corrections: vec![], ..grid() }, "`--corrections` is empty");
    check(&[], Grid { corrections: words(&["none", "tsi"]), ..grid() }, "`--corrections` has `tsi`, needed `tis`");
    check(&[], Grid { corrections: words(&["tis", "token_tis"]), ..grid() }, "`--corrections` has `token_tis` twice");
    check(&[], Grid { lags: vec![0], corrections: words(&["none"]), ..grid() }, "has nothing to compare");
    check(&[], Grid { n_seeds: 0, ..grid() }, "`--seeds` is 0, needed 1 to 1000");
    check(&[], Grid { tokens: Some(0), ..grid() }, "`--tokens` is 0, needed at least 1");
    check(&[], Grid { target: Some(1.5), ..grid() }, "`--target` is 1.5, needed a share above 0, at most 1");
    check(&[], Grid { target: Some(f64::NAN), ..grid() }, "`--target` is NaN");
    check(&["algorithm.kind=oapl"], grid(), "`algorithm.kind` is `oapl`, which takes no correction");
    check(&["eval.tasks=0"], grid(), "`eval.tasks` is 0, needed held-out tasks");
    check(&["eval.patience=2"], grid(), "`eval.patience` is 2, needed 0");
    check(&["replay={ own_steps = 2, share = 0.5 }"], grid(), "`[replay]` trains on more than what is generated");
    check(&["optimiser.schedule='linear'"], grid(), "needed `optimiser.decay_updates`");
    check(&["seed=9223372036854775807"], grid(), "are too many");
    let reinforce = ["algorithm={ kind = 'reinforce' }"];
    assert!(plan(&place, &reinforce, grid()).is_ok());
    let error = Study::open(&place.path("nowhere")).unwrap_err().to_string();
    assert!(
        error.ends_with("`nowhere` is no study: it has no `study.json`") || error.contains("is no study"),
        "{error}"
    );
    std::fs::create_dir_all(place.path("full/x")).unwrap();
    let error = Study::create(&place.path("full"), plan(&place, &[], grid()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("is not empty, needed a new or empty folder"), "{error}");
}
