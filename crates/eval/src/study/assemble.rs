//! From what runs left behind to a report.

use std::collections::{BTreeMap, BTreeSet};

use super::verdict::{Entry, verdicts};
use super::{Cell, CellReport, CellRun, CurvePoint, LagShare, Report, RunLine, Setup, StudyError, Target, Track, Twin};
use crate::{Interval, mean_with_interval, smallest_sign_flip};

/// Share of what lag 0 / none gained that makes the target, where none was named.
const TARGET_SHARE: f64 = 0.9;

/// Compares the runs of a study.
///
/// - Holds: a function of its arguments whatever the order of the runs; nothing is dropped.
/// - Errors: [`StudyError`] when a run is missing or was tried on other tasks.
pub fn report(setup: Setup, runs: &[CellRun], twins: &[Twin]) -> Result<Report, StudyError> {
    let baseline_cell = Cell::baseline();
    let baseline = of_cell(&baseline_cell, &setup.seeds, runs)?;
    let target = target(&setup, &baseline);
    let mut rows = Vec::new();
    let mut cells = vec![cell_report(&baseline_cell, &baseline, None, target.as_ref())];
    let grid = grid(&setup);
    for cell in grid.iter().filter(|c| !c.is_baseline()) {
        let twin = twins.iter().find(|t| t.cell == *cell);
        let own = of_cell(twin.map_or(cell, |t| &t.of), &setup.seeds, runs)?;
        cells.push(cell_report(cell, &own, twin, target.as_ref()));
        rows.push(Entry { cell, runs: own, twin });
    }
    let verdicts = verdicts(&baseline, &rows)?;
    Ok(Report { smallest_p_seeds: smallest_sign_flip(setup.seeds.len()), target, cells, verdicts, setup })
}

/// Every cell, by lag, then in the order of the corrections, lag 0 / none among them or not.
fn grid(setup: &Setup) -> Vec<Cell> {
    let cells = setup
        .lags
        .iter()
        .flat_map(|lag| setup.corrections.iter().map(|correction| Cell { lag: *lag, correction: correction.clone() }));
    cells.collect()
}

/// A cell's runs in the order of the seeds.
fn of_cell<'a>(cell: &Cell, seeds: &[u64], runs: &'a [CellRun]) -> Result<Vec<&'a CellRun>, StudyError> {
    let find = |seed: &u64| {
        let found = runs.iter().find(|r| r.cell == *cell && r.seed == *seed);
        found.ok_or_else(|| StudyError::Missing { cell: cell.clone(), seed: *seed })
    };
    seeds.iter().map(find).collect()
}

/// The target that was named, or nine tenths of the way lag 0 / none went; none where it went nowhere.
fn target(setup: &Setup, baseline: &[&CellRun]) -> Option<Target> {
    if let Some(accuracy) = setup.target {
        return Some(Target { accuracy, from: "as named".to_owned() });
    }
    let before: Option<Vec<f64>> = baseline.iter().map(|r| before(r)).collect();
    let before = before.filter(|b| !b.is_empty())?;
    let n = baseline.len() as f64;
    let start = before.iter().sum::<f64>() / n;
    let end = baseline.iter().map(|r| r.accuracy()).sum::<f64>() / n;
    let accuracy = start + TARGET_SHARE * (end - start);
    (end > start).then(|| Target { accuracy, from: "nine tenths of what lag 0 / none gained".to_owned() })
}

fn before(run: &CellRun) -> Option<f64> {
    run.scores.first().filter(|s| s.step == 0).map(|s| s.accuracy)
}

fn cell_report(cell: &Cell, runs: &[&CellRun], twin: Option<&Twin>, target: Option<&Target>) -> CellReport {
    let lines: Vec<RunLine> = runs.iter().map(|run| line(run, target)).collect();
    let finals: Vec<f64> = runs.iter().map(|r| r.accuracy()).collect();
    let (accuracy, interval) = mean_with_interval(&finals).unwrap_or((0.0, None));
    let mut lags: BTreeMap<i64, u64> = BTreeMap::new();
    runs.iter().flat_map(|r| &r.steps).flat_map(|s| &s.lags).for_each(|(lag, n)| *lags.entry(*lag).or_default() += n);
    let all = lags.values().sum::<u64>() as f64;
    let lag_sum: f64 = lags.iter().map(|(lag, n)| *lag as f64 * *n as f64).sum();
    let mut reached: Vec<u64> = lines.iter().filter_map(|l| l.to_target).collect();
    reached.sort_unstable();
    CellReport {
        cell: cell.clone(),
        same_as: twin.cloned(),
        accuracy,
        interval: interval.map(inside),
        curve: curve(runs),
        kl_mismatch: track(runs, |s| s.kl_mismatch),
        ess: track(runs, |s| s.ess),
        clip_share: track(runs, |s| s.clip_share),
        lags: lags.iter().map(|(lag, n)| LagShare { lag: *lag, share: *n as f64 / all }).collect(),
        lag_mean: (all > 0.0).then(|| lag_sum / all),
        to_target: reached.get(lines.len().saturating_sub(1) / 2).copied(),
        n_reached: reached.len(),
        runs: lines,
    }
}

fn line(run: &CellRun, target: Option<&Target>) -> RunLine {
    let reached = target.and_then(|t| run.scores.iter().find(|s| s.accuracy >= t.accuracy));
    RunLine {
        seed: run.seed,
        folder: run.folder.clone(),
        steps: run.steps.last().map_or(0, |s| s.step),
        tokens: run.tokens(),
        before: before(run),
        after: run.accuracy(),
        to_target: reached.map(|s| s.tokens),
        ended: run.ended.clone(),
    }
}

/// A share's interval cannot leave [0, 1].
fn inside(i: Interval) -> Interval {
    Interval { low: i.low.clamp(0.0, 1.0), high: i.high.clamp(0.0, 1.0) }
}

/// Accuracy over seeds at each evaluation that every seed had on the way, and at the end, which each reaches after its own
/// number of steps.
fn curve(runs: &[&CellRun]) -> Vec<CurvePoint> {
    let on_the_way = |r: &CellRun| r.scores.split_last().map_or(Vec::new(), |(_, way)| way.to_vec());
    let ways: Vec<_> = runs.iter().map(|r| on_the_way(r)).collect();
    let steps: BTreeSet<u64> = ways.iter().flatten().map(|s| s.step).collect();
    let at = |step: u64| ways.iter().map(|w| w.iter().find(|s| s.step == step)).collect::<Option<Vec<_>>>();
    let mut rows: Vec<Vec<(f64, f64)>> = steps
        .into_iter()
        .filter_map(at)
        .map(|row| row.iter().map(|s| (s.tokens as f64, s.accuracy)).collect())
        .collect();
    let ends: Option<Vec<_>> = runs.iter().map(|r| r.scores.last().map(|s| (s.tokens as f64, s.accuracy))).collect();
    rows.extend(ends.filter(|e| !e.is_empty()));
    let point = |row: Vec<(f64, f64)>| {
        let accuracies: Vec<f64> = row.iter().map(|p| p.1).collect();
        let (accuracy, interval) = mean_with_interval(&accuracies)?;
        let tokens = row.iter().map(|p| p.0).sum::<f64>() / row.len() as f64;
        Some(CurvePoint { tokens, accuracy, interval: interval.map(inside) })
    };
    rows.into_iter().filter_map(point).collect()
}

fn track(runs: &[&CellRun], number: impl Fn(&super::StepNumbers) -> Option<f64>) -> Track {
    let mut by_step: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for step in runs.iter().flat_map(|r| &r.steps) {
        if let Some(value) = number(step) {
            by_step.entry(step.step).or_default().push((step.tokens as f64, value));
        }
    }
    let all: Vec<f64> = by_step.values().flatten().map(|p| p.1).collect();
    let mean = |values: &mut dyn Iterator<Item = f64>, n: usize| values.sum::<f64>() / n as f64;
    let points = by_step
        .values()
        .map(|row| (mean(&mut row.iter().map(|p| p.0), row.len()), mean(&mut row.iter().map(|p| p.1), row.len())));
    Track { mean: (!all.is_empty()).then(|| mean(&mut all.iter().copied(), all.len())), points: points.collect() }
}
