//! What each token of given episodes is worth, and why, without a model.
//!
//! Lines of recorded numbers take the places of sampler and learner: they become the groups that an algorithm is asked
//! about, the answers to what it asks, and a learner that says what they say. Everything between is what a training step
//! calls, so no formula stands here a second time.

mod answers;
mod asking;
mod found;
mod given;
mod input;
mod line;
mod recorded;
mod settings;
mod shape;

pub use found::{DroppedLines, EpisodeSignals, Summary};
pub use input::Input;
pub use settings::settings;

use algo::{AlgoError, Settings};
use policy::PolicyError;

use asking::Asking;

/// Why there is no answer. Where a line is to blame, [`SignalsError::line`] says which.
#[derive(Debug, thiserror::Error)]
pub enum SignalsError {
    /// There are no lines.
    #[error("needed at least 1 line of JSON, got none")]
    Empty,
    /// A line is not what it should be.
    #[error("{reason}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A line lacks what the algorithm reads.
    #[error("`{algorithm}` needs `{field}`, which line {line} does not have")]
    Missing {
        /// The algorithm.
        algorithm: &'static str,
        /// The field.
        field: &'static str,
        /// The line, from 1.
        line: usize,
    },
    /// A setting cannot be.
    #[error("{0}")]
    Settings(String),
    /// The algorithm refuses.
    #[error(transparent)]
    Algo(#[from] AlgoError),
    /// The loss refuses.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl SignalsError {
    /// The line to blame, from 1.
    pub fn line(&self) -> Option<usize> {
        match self {
            SignalsError::Line { line, .. } | SignalsError::Missing { line, .. } => Some(*line),
            _ => None,
        }
    }
}

/// What the episodes teach.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// One a line, in their order.
    pub episodes: Vec<EpisodeSignals>,
    /// All of them together.
    pub summary: Summary,
}

/// Asks what the episodes teach. They are one step: the first pass over them is made, which is one update unless
/// mini-batches are set.
///
/// - Holds: `micro_batches`, at least 1, changes no bit; neither does what stands at tokens that were not sampled.
/// - Errors: [`SignalsError`] names the line where one is to blame.
pub fn signals(input: &Input, settings: &Settings, micro_batches: usize) -> Result<Found, SignalsError> {
    let asking = Asking { input, settings, algorithm: settings.algorithm() };
    let taught = asking.teach(&input.groups)?;
    asking.check_rewards(&taught)?;
    asking.answer(taught, micro_batches.max(1))
}

#[cfg(test)]
mod tests;
