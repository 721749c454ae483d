//! What may be said of a cell against lag 0 / none.
//!
//! The p-value is of a test over tasks: each task's attempts solved, over all seeds, by one side less the other's, with
//! [`sign_flip`]; with one seed and one attempt that is McNemar's exact test. Attempts at one task are one unit there,
//! whatever seed they come from, since they resemble each other. It is adjusted over all rows by [`holm`]. The effect's
//! interval is over seeds and tasks, so it also says what another seed might do. A difference is called shown only where
//! both agree: the first alone speaks about these trained policies, not about the way of training.

use episode::random::Stream;
use serde::{Deserialize, Serialize};

use super::{Cell, CellRun, StudyError, Twin};
use crate::{CompareError, Interval, crossed_bootstrap, holm, sign_flip};

/// The level at which something is called shown.
pub const LEVEL: f64 = 0.05;

/// What is said of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Shown to be better than lag 0 / none.
    Better,
    /// Shown to be worse.
    Worse,
    /// These trained policies differ, but the interval over seeds holds 0.
    Unsettled,
    /// No difference was shown, which is not the same as none.
    NotShown,
    /// It is the same run.
    Same,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// What is said of it.
    pub call: Call,
    /// Final accuracy less that of lag 0 / none, mean over seeds and tasks.
    pub effect: f64,
    /// Its 95 % interval over seeds and tasks.
    pub interval: Interval,
    /// Attempts solved here that lag 0 / none with the same seed did not solve, task by task.
    pub gained: u64,
    /// Attempts that lag 0 / none with the same seed solved and this did not, task by task.
    pub lost: u64,
    /// The p-value over tasks.
    pub p: f64,
    /// The same after Holm over all rows.
    pub p_holm: f64,
    /// The p-value over seeds alone.
    pub p_seeds: f64,
    /// Seeds in which this was better.
    pub seeds_better: usize,
    /// Seeds in which this was worse.
    pub seeds_worse: usize,
    /// What that means.
    pub sentence: String,
}

/// A cell against the baseline, before what depends on the other rows.
struct Compared {
    effect: f64,
    interval: Interval,
    gained: u64,
    lost: u64,
    p: f64,
    p_seeds: f64,
    seeds_better: usize,
    seeds_worse: usize,
}

/// A cell with its runs in the order of the seeds.
pub(super) struct Entry<'a> {
    pub(super) cell: &'a Cell,
    pub(super) runs: Vec<&'a CellRun>,
    /// Set where it is the same run as another.
    pub(super) twin: Option<&'a Twin>,
}

/// Compares cells with the baseline, whose runs are in the order of the seeds too.
///
/// - Errors: [`StudyError`] when the held-out tasks differ.
pub(super) fn verdicts(baseline: &[&CellRun], cells: &[Entry<'_>]) -> Result<Vec<Verdict>, StudyError> {
    let compared: Vec<Option<Compared>> = cells
        .iter()
        .map(|e| if e.twin.is_some() { Ok(None) } else { compare(baseline, &e.runs).map(Some) })
        .collect::<Result<_, _>>()?;
    // A cell that is the same run was not tested, so it is no part of the family.
    let adjusted = holm(&compared.iter().flatten().map(|c| c.p).collect::<Vec<_>>());
    let mut adjusted = adjusted.into_iter();
    let n_rows = compared.iter().flatten().count();
    let row = |(entry, compared): (&Entry<'_>, Option<Compared>)| {
        let Some(c) = compared else { return same(entry.cell, entry.twin) };
        let p_holm = adjusted.next().unwrap_or(1.0);
        let call = call(&c, p_holm);
        Verdict {
            cell: entry.cell.clone(),
            call,
            sentence: sentence(call, &c, p_holm, n_rows, baseline.len()),
            effect: c.effect,
            interval: c.interval,
            gained: c.gained,
            lost: c.lost,
            p: c.p,
            p_holm,
            p_seeds: c.p_seeds,
            seeds_better: c.seeds_better,
            seeds_worse: c.seeds_worse,
        }
    };
    Ok(cells.iter().zip(compared).map(row).collect())
}

fn same(cell: &Cell, twin: Option<&Twin>) -> Verdict {
    let of = twin.map_or_else(Cell::baseline, |t| t.of.clone());
    let seed = twin.map_or_else(String::new, |t| format!(" at seed {}", t.seed));
    Verdict {
        cell: cell.clone(),
        call: Call::Same,
        effect: 0.0,
        interval: Interval { low: 0.0, high: 0.0 },
        gained: 0,
        lost: 0,
        p: 1.0,
        p_holm: 1.0,
        p_seeds: 1.0,
        seeds_better: 0,
        seeds_worse: 0,
        sentence: format!(
            "The same run as {of}: both were run{seed} and their final weights and moments have the same bits, so it was run \
             once for the other seeds and is not tested."
        ),
    }
}

fn compare(baseline: &[&CellRun], runs: &[&CellRun]) -> Result<Compared, StudyError> {
    let n_tasks = baseline.first().map_or(0, |b| b.held_out.len());
    let mut by_task = vec![0_i64; n_tasks];
    let (mut by_seed, mut table) = (Vec::new(), Vec::new());
    let (mut gained, mut lost) = (0, 0);
    for (base, run) in baseline.iter().zip(runs) {
        // Every run is compared with one list of tasks, so that a column is one task in all rows.
        let reference = baseline.first().unwrap_or(base);
        matching(reference, base)?;
        matching(reference, run)?;
        let mut row = Vec::with_capacity(n_tasks);
        for (task, (b, r)) in base.held_out.iter().zip(&run.held_out).enumerate() {
            let difference = r.solved as i64 - b.solved as i64;
            by_task[task] += difference;
            gained += difference.max(0) as u64;
            lost += (-difference).max(0) as u64;
            row.push(difference as f64 / b.attempts.max(1) as f64);
        }
        by_seed.push(run.solved().0 as i64 - base.solved().0 as i64);
        table.push(row);
    }
    let n = table.iter().map(Vec::len).sum::<usize>().max(1) as f64;
    let effect = table.iter().flatten().sum::<f64>() / n;
    let interval = crossed_bootstrap(&table, Stream::new("study", &[n_tasks as u64, table.len() as u64]));
    Ok(Compared {
        effect,
        interval: interval.unwrap_or(Interval { low: -1.0, high: 1.0 }),
        gained,
        lost,
        p: sign_flip(&by_task),
        p_seeds: sign_flip(&by_seed),
        seeds_better: by_seed.iter().filter(|d| **d > 0).count(),
        seeds_worse: by_seed.iter().filter(|d| **d < 0).count(),
    })
}

/// Refuses runs that were not tried on the same tasks equally often.
fn matching(reference: &CellRun, run: &CellRun) -> Result<(), StudyError> {
    let (cell, seed) = (|| run.cell.clone(), run.seed);
    let tasks = reference.held_out.iter().zip(&run.held_out);
    let unmatched = |task: &episode::TaskId| StudyError::Tasks {
        cell: cell(),
        seed,
        source: CompareError::Unmatched { task: task.clone() },
    };
    for (needed, got) in tasks {
        if needed.task != got.task {
            return Err(unmatched(&needed.task));
        }
        if needed.attempts != got.attempts {
            let (task, got, needed) = (got.task.clone(), got.attempts, needed.attempts);
            return Err(StudyError::Attempts { cell: cell(), seed, task, got, needed });
        }
    }
    let (a, b) = (&reference.held_out, &run.held_out);
    let longer = if a.len() > b.len() { a.get(b.len()) } else { b.get(a.len()) };
    longer.map_or(Ok(()), |t| Err(unmatched(&t.task)))
}

fn call(c: &Compared, p_holm: f64) -> Call {
    match (p_holm <= LEVEL, c.interval.low > 0.0, c.interval.high < 0.0) {
        (false, _, _) => Call::NotShown,
        (true, true, _) => Call::Better,
        (true, _, true) => Call::Worse,
        (true, false, false) => Call::Unsettled,
    }
}

fn sentence(call: Call, c: &Compared, p_holm: f64, n_rows: usize, n_seeds: usize) -> String {
    let points = |v: f64| match format!("{:+.1}", 100.0 * v) {
        zero if zero == "+0.0" || zero == "-0.0" => "0.0".to_owned(),
        text => text.replace('-', "−"),
    };
    let size = |v: f64| format!("{:.1}", 100.0 * v.abs());
    let interval = format!("{} to {}", points(c.interval.low), points(c.interval.high));
    let p = if p_holm < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p_holm:.3}") };
    let p = if n_rows > 1 { format!("{p} after Holm over {n_rows} rows") } else { p };
    let agree = |n: usize| format!("{n} of {n_seeds} seed{}", if n_seeds == 1 { "" } else { "s" });
    match call {
        Call::Better => format!(
            "Better than lag 0 / none by {} points ({interval}), {p}; better in {}.",
            size(c.effect),
            agree(c.seeds_better)
        ),
        Call::Worse => format!(
            "Worse than lag 0 / none by {} points ({interval}), {p}; worse in {}.",
            size(c.effect),
            agree(c.seeds_worse)
        ),
        Call::Unsettled => format!(
            "Unsettled: these policies differ by {} points, {p}, but another seed could turn it ({interval}); better in \
             {}, worse in {}.",
            points(c.effect),
            agree(c.seeds_better),
            agree(c.seeds_worse)
        ),
        Call::NotShown | Call::Same => {
            let low = if c.interval.low < 0.0 {
                format!("a loss of more than {} points", size(c.interval.low))
            } else {
                "a loss".to_owned()
            };
            let high = if c.interval.high > 0.0 {
                format!("a gain of more than {}", size(c.interval.high))
            } else {
                "a gain".to_owned()
            };
            format!(
                "No difference shown: {} points ({interval}), {p}; {low} and {high} are both outside the interval.",
                points(c.effect)
            )
        }
    }
}
