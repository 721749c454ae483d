//! An attempt that has ended but has no verdict yet.

use episode::{Cause, Conduct, Episode, EpisodeKey, Message, Outcome, Role, Sequence, Stage, StopReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything of an [`Episode`] but its outcome, unless the system or the user already decided that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// Step, task and sample.
    pub key: EpisodeKey,
    /// The tokens.
    pub sequences: Vec<Sequence>,
    /// What was said, the policy's turns without their stop tokens and stop strings, and without the calls that were read
    /// from them.
    pub messages: Vec<Message>,
    /// Why the policy stopped.
    pub stop: StopReason,
    /// What it did with tools.
    #[serde(default, skip_serializing_if = "Conduct::is_empty")]
    pub conduct: Conduct,
    /// How its world stood at the end; for the grader.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub state: Value,
    /// A failure or a cancellation: then there is nothing to grade.
    pub settled: Option<Outcome>,
}

impl Attempt {
    /// What the policy said last, empty when it said nothing.
    pub fn reply(&self) -> &str {
        self.messages.iter().rev().find(|m| m.role == Role::Assistant).map_or("", |m| &m.content)
    }

    /// The episode, graded unless it is settled already: the first cause of a failure stays the only one.
    pub fn end(self, grade: impl FnOnce(&Attempt) -> Outcome) -> Episode {
        let outcome = self.settled.clone().unwrap_or_else(|| grade(&self));
        Episode {
            key: self.key,
            sequences: self.sequences,
            messages: self.messages,
            outcome,
            stop: self.stop,
            turn_rewards: Vec::new(),
            conduct: self.conduct,
        }
    }

    pub(crate) fn failed(stage: Stage, cause: Cause) -> Option<Outcome> {
        Some(Outcome::Failed { stage, cause })
    }
}
