//! Why a collection could not be finished.

use std::collections::BTreeMap;
use std::fmt;

use episode::{Episode, Outcome, Stage, TaskId};
use policy::{PolicyError, SamplingError};

/// Why a collection could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// A setting is out of range.
    #[error("`{key}` is {got}, needed {needed}")]
    Setting {
        /// Which setting.
        key: &'static str,
        /// What was given.
        got: f64,
        /// What is possible.
        needed: &'static str,
    },
    /// A sampling setting is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A task whose environment is not part of the run.
    #[error("task `{task}` belongs to environment `{env}`, which this run does not have")]
    UnknownEnvironment {
        /// The task.
        task: TaskId,
        /// Its environment.
        env: String,
    },
    /// The sampler stopped altogether.
    #[error("sampling stopped: {0}")]
    Sampler(#[source] PolicyError),
    /// The sampler broke its contract.
    #[error("the sampler {what}")]
    Contract {
        /// What it did.
        what: String,
    },
    /// More episodes failed than may.
    #[error("{failures}, at most {allowed} may")]
    TooManyFailed {
        /// How many failed, of how many, and why.
        failures: Failures,
        /// How many may fail.
        allowed: usize,
    },
    /// Nothing happened for longer than every deadline.
    #[error("waited {seconds} s in vain for {waiting_for}")]
    Stalled {
        /// What is waited for.
        waiting_for: String,
        /// How long nothing happened.
        seconds: f64,
    },
    /// A thread could not be started.
    #[error("cannot start a grading thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Failed episodes counted by stage and class of cause, with one example of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failures {
    /// All episodes counted, failed or not.
    pub n_episodes: usize,
    /// How many of each stage and class, and what exactly happened to one of them.
    pub causes: BTreeMap<(Stage, String), (usize, String)>,
}

impl Failures {
    /// Counts the failures among episodes.
    pub fn of<'a>(episodes: impl IntoIterator<Item = &'a Episode>) -> Self {
        let mut failures = Failures::default();
        for episode in episodes {
            failures.n_episodes += 1;
            failures.note(&episode.outcome);
        }
        failures
    }

    /// How many failed.
    pub fn n_failed(&self) -> usize {
        self.causes.values().map(|(n, _)| n).sum()
    }

    pub(crate) fn note(&mut self, outcome: &Outcome) {
        if let Outcome::Failed { stage, cause } = outcome {
            let key = (*stage, cause.class.clone());
            self.causes.entry(key).or_insert_with(|| (0, cause.detail.clone())).0 += 1;
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} episodes failed", self.n_failed(), self.n_episodes)?;
        for (i, ((stage, class), (n, detail))) in self.causes.iter().enumerate() {
            let stage = stage.as_str();
            write!(f, "{} {n} in the {stage} by `{class}`, such as: {detail}", if i == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}
