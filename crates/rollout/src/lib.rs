//! Many episodes at once: joins sampler, agent and environment.
//!
//! [`Rollout::collect`] samples every attempt at given tasks through one batched sampler while worker threads carry
//! finished turns on and grade finished attempts. What comes back is in canonical order and depends on seeds, tasks and
//! weights alone, however the work was scheduled. A [`stream::Stream`] does so step after step, and may run ahead.

mod collect;
mod error;
mod gates;
pub mod stream;
mod workers;

#[cfg(test)]
mod tests;

pub use collect::{Plan, Rollout};
pub use error::{Failures, RolloutError};
pub use gates::Gates;

use std::time::Duration;

use agent::Limits;
use episode::Episode;
use serde::{Deserialize, Serialize};

/// The step that evaluation episodes are keyed with: their random streams are then the same at every training step, and
/// shared with none.
pub const EVALUATION: u64 = u64::MAX;

/// How episodes are run, whatever they are about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// At most this many turns of the policy in an episode.
    pub turns: usize,
    /// At most this many sampled tokens in an episode, over all turns.
    pub tokens: usize,
    /// At most this many tool calls in an episode.
    pub calls: usize,
    /// At most this many tool calls that the gate did not let through; the next one ends the episode.
    pub denied: usize,
    /// The longest an episode may take, in seconds; looked at before each tool call.
    pub wall_s: f64,
    /// Threads that grade while the sampler samples; changes no result.
    pub graders: usize,
    /// The share of episodes that may fail before the collection is given up.
    pub max_failed: f64,
    /// How long nothing may happen, beyond the graders' own deadlines, before what is waited for is named and given up.
    pub patience_s: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            turns: 1,
            tokens: 1 << 20,
            calls: 100,
            denied: 100,
            wall_s: 3600.0,
            graders: 2,
            max_failed: 0.2,
            patience_s: 30.0,
        }
    }
}

impl Settings {
    /// How far an attempt may go in a context of so many tokens.
    pub(crate) fn limits(&self, context: usize) -> Limits {
        let (turns, tokens, calls, denied) = (self.turns, self.tokens, self.calls, self.denied);
        Limits { turns, context, tokens, calls, denied, wall: Duration::from_secs_f64(self.wall_s) }
    }

    /// Checks every range.
    ///
    /// - Errors: [`RolloutError::Setting`].
    pub fn check(&self) -> Result<(), RolloutError> {
        let range = |key, ok, got: f64, needed| {
            if ok { Ok(()) } else { Err(RolloutError::Setting { key, got, needed }) }
        };
        range("turns", self.turns >= 1, self.turns as f64, "at least 1")?;
        range("tokens", self.tokens >= 1, self.tokens as f64, "at least 1")?;
        let wall = self.wall_s;
        range("wall_s", (0.1..=1e6).contains(&wall), wall, "a number of seconds from 0.1 to 1000000")?;
        range("graders", (1..=256).contains(&self.graders), self.graders as f64, "a number from 1 to 256")?;
        range("max_failed", (0.0..=1.0).contains(&self.max_failed), self.max_failed, "a number from 0 to 1")?;
        let patience = self.patience_s;
        range("patience_s", (0.1..=86_400.0).contains(&patience), patience, "a number of seconds from 0.1 to 86400")
    }
}

/// Told what happens while it happens, in the order things finish; for progress, not for results.
pub trait Observer {
    /// This many tokens were sampled.
    fn tokens(&mut self, n_tokens: usize) {
        let _ = n_tokens;
    }

    /// An episode ended.
    fn finished(&mut self, episode: &Episode) {
        let _ = episode;
    }
}

/// An observer that looks away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet;

impl Observer for Quiet {}
