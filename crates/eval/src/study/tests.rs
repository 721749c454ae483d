//! Studies with made-up runs, whose every number can be worked out by hand.

use episode::{Message, Role, Task, TaskId};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{holm, mcnemar_exact};

fn task(n: usize) -> TaskId {
    Task::new("t", vec![Message::new(Role::User, format!("{n:04}"))], json!(n), Value::Null).id
}

fn cell(lag: u64, correction: &str) -> Cell {
    Cell { lag, correction: correction.to_owned() }
}

/// A run that solved these of its tasks, one attempt each, with 100 tokens a step.
fn run(cell: &Cell, seed: u64, solved: &[bool]) -> CellRun {
    let held_out =
        solved.iter().enumerate().map(|(n, s)| TaskResult { task: task(n), attempts: 1, solved: u64::from(*s) });
    let share = solved.iter().filter(|s| **s).count() as f64 / solved.len() as f64;
    let step = |step: u64| StepNumbers {
        step,
        tokens: 100 * step,
        kl_mismatch: Some(0.5 * step as f64),
        ess: (step == 2).then_some(0.5),
        clip_share: None,
        lags: vec![(0, 30), (cell.lag as i64, 70)],
    };
    let score = |step: u64, accuracy| ScoreAt { step, tokens: 100 * step, accuracy };
    CellRun {
        cell: cell.clone(),
        seed,
        folder: format!("{cell} {seed}"),
        steps: (1..=3).map(step).collect(),
        scores: vec![score(0, 0.0), score(2, share / 2.0), score(3, share)],
        held_out: held_out.collect(),
        ended: Ended::Budget,
    }
}

fn setup(lags: &[u64], corrections: &[&str], seeds: &[u64]) -> Setup {
    Setup {
        model: "m".to_owned(),
        algorithm: "grpo".to_owned(),
        budget: 300,
        budget_from: "as named".to_owned(),
        seeds: seeds.to_vec(),
        lags: lags.to_vec(),
        corrections: corrections.iter().map(|c| (*c).to_owned()).collect(),
        n_tasks: 0,
        attempts: 1,
        temperature: 0.0,
        target: None,
        notes: Vec::new(),
        settings: String::new(),
    }
}

/// The first `n` of 40 solved.
fn first(n: usize) -> Vec<bool> {
    (0..40).map(|i| i < n).collect()
}

#[test]
fn with_one_seed_and_one_attempt_a_row_is_mcnemars_exact_test() {
    let (base, other) = (Cell::baseline(), cell(4, "none"));
    let mut theirs = first(20);
    // Two lost, nine gained.
    for i in [0, 1] {
        theirs[i] = false;
    }
    for task in &mut theirs[25..34] {
        *task = true;
    }
    let runs = [run(&base, 1, &first(20)), run(&other, 1, &theirs)];
    let report = report(setup(&[0, 4], &["none"], &[1]), &runs, &[]).unwrap();
    let [v] = &report.verdicts[..] else { panic!("{:?}", report.verdicts) };
    assert_eq!((v.gained, v.lost, v.p_seeds, v.seeds_better), (9, 2, 1.0, 1));
    assert!((v.p - mcnemar_exact(2, 9)).abs() < 1e-12 && v.p_holm == v.p);
    assert!((v.effect - 7.0 / 40.0).abs() < 1e-12);
    assert_eq!(report.smallest_p_seeds, 1.0);
}

#[test]
fn a_clear_difference_is_shown_a_small_one_is_not_and_the_words_say_so() {
    let (base, seeds) = (Cell::baseline(), [1, 2, 3]);
    let mut runs: Vec<CellRun> = Vec::new();
    for seed in seeds {
        runs.push(run(&base, seed, &first(20)));
        runs.push(run(&cell(4, "none"), seed, &first(4)));
        runs.push(run(&cell(4, "tis"), seed, &first(36)));
        runs.push(run(&cell(16, "none"), seed, &first(if seed == 1 { 21 } else { 20 })));
        runs.push(run(&cell(16, "tis"), seed, &first(20)));
    }
    let mut setup = setup(&[0, 4, 16], &["none", "tis"], &seeds);
    setup.corrections = vec!["none".to_owned(), "tis".to_owned()];
    for seed in seeds {
        runs.push(run(&cell(0, "tis"), seed, &first(20)));
    }
    let report = report(setup, &runs, &[Twin { cell: cell(0, "tis"), of: base.clone(), seed: 1 }]).unwrap();
    let calls: Vec<(String, Call)> = report.verdicts.iter().map(|v| (v.cell.to_string(), v.call)).collect();
    let want = [
        ("lag 0 / tis", Call::Same),
        ("lag 4 / none", Call::Worse),
        ("lag 4 / tis", Call::Better),
        ("lag 16 / none", Call::NotShown),
        ("lag 16 / tis", Call::NotShown),
    ];
    assert_eq!(calls, want.map(|(cell, call)| (cell.to_owned(), call)));
    // The twin is no part of the family.
    let tested: Vec<&Verdict> = report.verdicts.iter().filter(|v| v.call != Call::Same).collect();
    let adjusted = holm(&tested.iter().map(|v| v.p).collect::<Vec<_>>());
    assert_eq!(tested.iter().map(|v| v.p_holm).collect::<Vec<_>>(), adjusted);
    // Sixteen tasks, each lost by all three seeds: 2 · 2⁻¹⁶, four rows.
    assert!((tested[0].p - 2.0_f64.powi(-15)).abs() < 1e-15);
    assert!((tested[0].p_holm - 4.0 * 2.0_f64.powi(-15)).abs() < 1e-12);
    assert_eq!(tested[0].p_seeds, 0.25, "three seeds cannot show more");
    let words = |n: usize| tested[n].sentence.as_str();
    assert!(words(0).starts_with("Worse than lag 0 / none by 40.0 points (−"), "{}", words(0));
    assert!(words(0).ends_with("p < 0.001 after Holm over 4 rows; worse in 3 of 3 seeds."), "{}", words(0));
    assert!(words(1).starts_with("Better than lag 0 / none by 40.0 points (+"), "{}", words(1));
    assert!(words(2).starts_with("No difference shown: +0.8 points ("), "{}", words(2));
    assert_eq!(
        words(3),
        "No difference shown: 0.0 points (0.0 to 0.0), p = 1.000 after Holm over 4 rows; a loss and a gain are both outside \
         the interval."
    );
    assert!(report.verdicts[0].sentence.starts_with("The same run as lag 0 / none: both were run at seed 1"));
}

#[test]
fn policies_that_differ_while_seeds_do_not_agree_settle_nothing() {
    let (base, other) = (Cell::baseline(), cell(4, "none"));
    // Seed 1 loses a little, seed 2 gains much on other tasks.
    let mut runs = vec![run(&base, 1, &first(20)), run(&base, 2, &first(20))];
    runs.push(run(&other, 1, &first(18)));
    runs.push(run(&other, 2, &first(36)));
    let report = report(setup(&[0, 4], &["none"], &[1, 2]), &runs, &[]).unwrap();
    let v = &report.verdicts[0];
    assert!(v.p_holm <= 0.05 && v.interval.low < 0.0 && v.interval.high > 0.0, "{v:?}");
    assert_eq!((v.call, v.seeds_better, v.seeds_worse), (Call::Unsettled, 1, 1));
    assert!(v.sentence.starts_with("Unsettled: these policies differ by +17.5 points, p = 0."), "{}", v.sentence);
}

#[test]
fn curves_targets_and_staleness_are_means_over_what_there_is() {
    let base = Cell::baseline();
    let mut runs = vec![run(&base, 1, &first(20)), run(&base, 2, &first(40)), run(&base, 3, &first(0))];
    // A seed whose last step is another one, and whose evaluation in between is missing.
    runs[2].scores =
        vec![ScoreAt { step: 0, tokens: 0, accuracy: 0.0 }, ScoreAt { step: 5, tokens: 310, accuracy: 0.0 }];
    let mut all = runs.clone();
    all.extend((1..=3).map(|seed| run(&cell(2, "none"), seed, &first(20))));
    let report = report(setup(&[0, 2], &["none"], &[1, 2, 3]), &all, &[]).unwrap();
    let c = &report.cells[0];
    let points: Vec<(f64, f64)> = c.curve.iter().map(|p| (p.tokens, p.accuracy)).collect();
    assert_eq!(points, [(0.0, 0.0), ((300.0 + 300.0 + 310.0) / 3.0, 0.5)]);
    // Mean 0.5, spread 0.5, t = 4.3027: beyond both ends of a share.
    let i = c.interval.unwrap();
    assert_eq!((i.low, i.high), (0.0, 1.0));
    // Nine tenths of the way from 0 to 0.5: seed 1 gets there at its end, seed 2 on the way, seed 3 never.
    assert!((report.target.as_ref().unwrap().accuracy - 0.45).abs() < 1e-12);
    assert_eq!(c.runs.iter().map(|r| r.to_target).collect::<Vec<_>>(), [Some(300), Some(200), None]);
    assert_eq!((c.to_target, c.n_reached), (Some(300), 2), "the middle one of 200, 300 and never");
    assert_eq!((c.kl_mismatch.mean, c.ess.mean, c.clip_share.mean), (Some(1.0), Some(0.5), None));
    assert_eq!(c.kl_mismatch.points, [(100.0, 0.5), (200.0, 1.0), (300.0, 1.5)]);
    let late = &report.cells[1];
    let lags: Vec<(i64, f64)> = late.lags.iter().map(|l| (l.lag, l.share)).collect();
    assert_eq!(lags, [(0, 0.3), (2, 0.7)]);
    assert!((late.lag_mean.unwrap() - 1.4).abs() < 1e-12);
}

#[test]
fn without_a_rise_there_is_no_target_unless_one_is_named() {
    let runs = [run(&Cell::baseline(), 1, &first(0)), run(&cell(2, "none"), 1, &first(4))];
    let plain = setup(&[0, 2], &["none"], &[1]);
    assert_eq!(report(plain.clone(), &runs, &[]).unwrap().target, None);
    let named = report(Setup { target: Some(0.1), ..plain }, &runs, &[]).unwrap();
    assert_eq!((named.cells[0].to_target, named.cells[0].n_reached), (None, 0), "not reached is said as such");
    assert_eq!((named.cells[1].to_target, named.cells[1].n_reached), (Some(300), 1));
}

/// CASES H8: each task exactly once, on both sides.
#[test]
fn h8_runs_that_were_tried_on_other_tasks_or_are_missing_are_refused() {
    let (base, other) = (Cell::baseline(), cell(2, "none"));
    let plain = || setup(&[0, 2], &["none"], &[1]);
    let check = |runs: &[CellRun], want: &str| {
        let error = report(plain(), runs, &[]).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    };
    check(&[run(&base, 1, &first(3))], "lag 2 / none has no run of seed 1, needed one of every seed");
    check(&[run(&other, 1, &first(3))], "lag 0 / none has no run of seed 1");
    let fewer = run(&other, 1, &first(3)[..39]);
    check(&[run(&base, 1, &first(3)), fewer], "lag 2 / none, seed 1: task `t/");
    let mut renamed = run(&other, 1, &first(3));
    renamed.held_out[4].task = task(99);
    check(&[run(&base, 1, &first(3)), renamed], "lag 2 / none, seed 1: task `t/");
    let mut oftener = run(&other, 1, &first(3));
    oftener.held_out[4].attempts = 2;
    let error = report(plain(), &[run(&base, 1, &first(3)), oftener], &[]).unwrap_err().to_string();
    assert!(error.ends_with("has 2 attempts, needed 1 as with lag 0 / none"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_order_of_the_runs_changes_no_byte(bits in prop::collection::vec(any::<bool>(), 4 * 12), turn in 0_usize..4) {
        let other = cell(2, "none");
        let solved = |n: usize| &bits[12 * n..12 * (n + 1)];
        let base = Cell::baseline();
        let runs = vec![run(&base, 1, solved(0)), run(&base, 2, solved(1)), run(&other, 1, solved(2)), run(&other, 2, solved(3))];
        let mut turned = runs.clone();
        turned.rotate_left(turn);
        let text = |runs: &[CellRun]| serde_json::to_string(&report(setup(&[0, 2], &["none"], &[1, 2]), runs, &[]).unwrap()).unwrap();
        let whole = text(&runs);
        prop_assert_eq!(&whole, &text(&turned));
        let back: Report = serde_json::from_str(&whole).unwrap();
        prop_assert_eq!(serde_json::to_string(&back).unwrap(), whole);
    }
}
