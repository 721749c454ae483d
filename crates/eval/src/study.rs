//! Several ways of training compared: the same tasks, the same seeds, the same number of generated tokens.
//!
//! [`report`] makes a [`Report`] from what each [`CellRun`] left behind; it opens nothing and draws from one named stream,
//! so the same runs always give the same bytes. What each row of its table says is decided in [`verdict`].

mod assemble;
pub mod verdict;

pub use assemble::report;
pub use verdict::{Call, Verdict};

use std::fmt;

use episode::TaskId;
use serde::{Deserialize, Serialize};

use crate::{CompareError, Interval};

/// The correction that corrects nothing.
pub const NONE: &str = "none";

/// One way of training: what differs between the runs of a study.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// How many versions rollouts run ahead.
    pub lag: u64,
    /// The correction's name, or the algorithm's that takes its place.
    pub correction: String,
}

impl Cell {
    /// On-policy, uncorrected: what every other cell is compared with.
    pub fn baseline() -> Self {
        Cell { lag: 0, correction: NONE.to_owned() }
    }

    /// Whether it is [`Cell::baseline`].
    pub fn is_baseline(&self) -> bool {
        self.lag == 0 && self.correction == NONE
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lag {} / {}", self.lag, self.correction)
    }
}

/// What a step of a run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepNumbers {
    /// The step, from 1.
    pub step: u64,
    /// Tokens sampled up to its end.
    pub tokens: u64,
    /// KL between the policy that sampled and the policy that learns, nats a token.
    pub kl_mismatch: Option<f64>,
    /// Effective sample size of the correction's weights, 0 to 1.
    pub ess: Option<f64>,
    /// Share of tokens whose ratio was clipped.
    pub clip_share: Option<f64>,
    /// How many tokens were trained on how many versions late; below 0 for what another run sampled.
    pub lags: Vec<(i64, u64)>,
}

/// A held-out accuracy on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreAt {
    /// Steps done.
    pub step: u64,
    /// Tokens sampled by then.
    pub tokens: u64,
    /// Share of attempts solved.
    pub accuracy: f64,
}

/// What became of one held-out task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The task.
    pub task: TaskId,
    /// Attempts, failed ones included.
    pub attempts: u64,
    /// Attempts solved.
    pub solved: u64,
}

/// How a run of a study ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Ended {
    /// At the first step that reached the budget.
    Budget,
    /// It could not go on, which says something about the way of training.
    GaveUp {
        /// What happened.
        why: String,
    },
}

/// What one run of a study left behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellRun {
    /// How it trained.
    pub cell: Cell,
    /// Its seed.
    pub seed: u64,
    /// Its run directory, from the study's folder.
    pub folder: String,
    /// Its steps, ascending.
    pub steps: Vec<StepNumbers>,
    /// Held-out accuracies, ascending; the last is of the final policy.
    pub scores: Vec<ScoreAt>,
    /// The final policy on each held-out task.
    pub held_out: Vec<TaskResult>,
    /// How it ended.
    pub ended: Ended,
}

impl CellRun {
    /// Sampled tokens of all steps.
    pub fn tokens(&self) -> u64 {
        self.steps.last().map_or(0, |s| s.tokens)
    }

    /// Attempts solved and attempts, of the final policy.
    pub fn solved(&self) -> (u64, u64) {
        (self.held_out.iter().map(|t| t.solved).sum(), self.held_out.iter().map(|t| t.attempts).sum())
    }

    /// Share of attempts the final policy solved; 0 without attempts.
    pub fn accuracy(&self) -> f64 {
        let (solved, attempts) = self.solved();
        if attempts == 0 { 0.0 } else { solved as f64 / attempts as f64 }
    }
}

/// A cell that is the same run as another, seen in equal bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Twin {
    /// The cell.
    pub cell: Cell,
    /// The one it equals.
    pub of: Cell,
    /// The seed at which both were run and compared.
    pub seed: u64,
}

/// What is to be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Held-out accuracy.
    pub accuracy: f64,
    /// Where it comes from.
    pub from: String,
}

/// What a study held equal, for whoever reads the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The model.
    pub model: String,
    /// The run file's algorithm.
    pub algorithm: String,
    /// Sampled tokens after which each run ends.
    pub budget: u64,
    /// Where the budget comes from.
    pub budget_from: String,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The lags.
    pub lags: Vec<u64>,
    /// The corrections.
    pub corrections: Vec<String>,
    /// Held-out tasks.
    pub n_tasks: u64,
    /// Attempts at each.
    pub attempts: u64,
    /// Temperature of held-out attempts.
    pub temperature: f64,
    /// An accuracy to reach, where one was named.
    pub target: Option<f64>,
    /// What a reader must know about this study.
    pub notes: Vec<String>,
    /// The settings of lag 0 / none, as TOML.
    pub settings: String,
}

/// Everything a study found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was held equal.
    pub setup: Setup,
    /// The accuracy whose tokens are counted; none where lag 0 / none did not rise and no target was named.
    pub target: Option<Target>,
    /// The smallest p-value that a test over the seeds alone can give.
    pub smallest_p_seeds: f64,
    /// The cells, by lag, then in the order of the corrections.
    pub cells: Vec<CellReport>,
    /// Each cell but the baseline against it.
    pub verdicts: Vec<Verdict>,
}

/// What one cell came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellReport {
    /// How it trained.
    #[serde(flatten)]
    pub cell: Cell,
    /// The cell whose runs stand for this one's, where they are the same.
    pub same_as: Option<Twin>,
    /// Its runs, by seed.
    pub runs: Vec<RunLine>,
    /// Mean final accuracy over seeds.
    pub accuracy: f64,
    /// Its 95 % interval over seeds, with at least two.
    pub interval: Option<Interval>,
    /// Held-out accuracy by generated tokens.
    pub curve: Vec<CurvePoint>,
    /// Mismatch KL by generated tokens, mean over seeds.
    pub kl_mismatch: Track,
    /// Effective sample size by generated tokens, mean over seeds.
    pub ess: Track,
    /// Clip share by generated tokens, mean over seeds.
    pub clip_share: Track,
    /// Share of trained tokens by how many versions old they were, ascending.
    pub lags: Vec<LagShare>,
    /// Mean of that.
    pub lag_mean: Option<f64>,
    /// Tokens to the target: the middle seed's, counting those that did not reach it as beyond all others.
    pub to_target: Option<u64>,
    /// Seeds that reached the target.
    pub n_reached: usize,
}

/// One run of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLine {
    /// Its seed.
    pub seed: u64,
    /// Its run directory, from the study's folder.
    pub folder: String,
    /// Steps it made.
    pub steps: u64,
    /// Tokens it sampled.
    pub tokens: u64,
    /// Held-out accuracy before training.
    pub before: Option<f64>,
    /// Held-out accuracy of the final policy.
    pub after: f64,
    /// Tokens sampled by the first evaluation that reached the target.
    pub to_target: Option<u64>,
    /// How it ended.
    pub ended: Ended,
}

/// Accuracy over seeds at one evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Generated tokens, mean over seeds.
    pub tokens: f64,
    /// Accuracy, mean over seeds.
    pub accuracy: f64,
    /// Its 95 % interval over seeds, with at least two, inside [0, 1].
    pub interval: Option<Interval>,
}

/// One number by generated tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Track {
    /// Mean over all steps of all seeds; none where no step reported it.
    pub mean: Option<f64>,
    /// (tokens, value) by step, each the mean over the seeds that made it.
    pub points: Vec<(f64, f64)>,
}

/// How much was trained on that late.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LagShare {
    /// Versions between sampling and training.
    pub lag: i64,
    /// Share of the tokens.
    pub share: f64,
}

/// Why runs cannot be compared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StudyError {
    /// A run is not there.
    #[error("{cell} has no run of seed {seed}, needed one of every seed")]
    Missing {
        /// The cell.
        cell: Cell,
        /// The seed.
        seed: u64,
    },
    /// Two runs were tried on different tasks.
    #[error("{cell}, seed {seed}: {source}")]
    Tasks {
        /// The cell.
        cell: Cell,
        /// The seed.
        seed: u64,
        /// Which.
        source: CompareError,
    },
    /// A task was attempted a different number of times.
    #[error("{cell}, seed {seed}: task `{task}` has {got} attempts, needed {needed} as with lag 0 / none")]
    Attempts {
        /// The cell.
        cell: Cell,
        /// The seed.
        seed: u64,
        /// The task.
        task: TaskId,
        /// Attempts there.
        got: u64,
        /// Attempts of the baseline.
        needed: u64,
    },
}

#[cfg(test)]
mod tests;
