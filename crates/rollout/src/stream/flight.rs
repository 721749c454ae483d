//! What a stream has begun and no step has taken, as it stands between two steps: what a checkpoint keeps of it.

use agent::Attempt;
use episode::{Episode, Task};
use serde::{Deserialize, Serialize};

/// Everything in flight, by the order in which it began; empty without lag.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flight {
    /// The groups.
    pub groups: Vec<Begun>,
}

/// A group in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begun {
    /// Its place in the curriculum.
    pub place: u64,
    /// The step that was being collected when it began.
    pub step: u64,
    /// The number of its first attempt: above 0 when the same step had begun the same task before.
    pub first_sample: u32,
    /// Whether it is trained on, once all of its episodes have ended; one that is not only holds its place in a step.
    pub kept: Option<bool>,
    /// The task.
    pub task: Task,
    /// Its attempts.
    pub attempts: Vec<Flown>,
}

/// An attempt in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flown {
    /// It has not begun.
    Waiting,
    /// It is set aside in the middle of a turn.
    Aside(Attempt),
    /// It has ended.
    Ended(Episode),
}

impl Flight {
    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Attempts set aside.
    pub fn n_aside(&self) -> usize {
        let attempts = self.groups.iter().flat_map(|g| &g.attempts);
        attempts.filter(|a| matches!(a, Flown::Aside(_))).count()
    }

    /// Groups that have finished and wait for their step.
    pub fn n_queued(&self) -> usize {
        self.groups.iter().filter(|g| g.kept == Some(true)).count()
    }
}
