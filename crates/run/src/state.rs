//! How far a run is: what, with the weights, is enough to go on.

use episode::Token;
use policy::UpdateOutcome;
use serde::{Deserialize, Serialize};

/// How far a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps done.
    pub step: u64,
    /// Tasks drawn from the curriculum.
    pub cursor: u64,
    /// Optimiser moves made.
    pub n_updates: u64,
    /// Steps in a row that taught nothing.
    pub idle: u64,
    /// Steps that taught nothing, all of them.
    pub skipped: u64,
    /// The best held-out accuracy so far.
    pub best: Option<f64>,
    /// Evaluations in a row that were not better.
    pub worse: u64,
    /// Tokens the policy never samples; follows from the tokenizer.
    #[serde(skip)]
    pub banned: Vec<Token>,
}

impl State {
    /// Counts a step that is done.
    pub(crate) fn advance(&mut self, step: u64, cursor: u64, outcomes: &[UpdateOutcome]) {
        let moved = outcomes.iter().filter(|o| o.report.is_some()).count() as u64;
        self.step = step;
        self.cursor = cursor;
        self.n_updates += moved;
        let taught = u64::from(moved == 0);
        self.skipped += taught;
        self.idle = if moved == 0 { self.idle + 1 } else { 0 };
    }

    /// Takes note of a held-out accuracy.
    pub(crate) fn note(&mut self, accuracy: f64) {
        if self.best.is_none_or(|best| accuracy > best) {
            (self.best, self.worse) = (Some(accuracy), 0);
        } else {
            self.worse += 1;
        }
    }
}
