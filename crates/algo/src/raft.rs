//! RAFT, rejection sampling and fine-tuning: what earned its reward is learned as if it had been given.
//!
//! Formula: loss −log π on the sampled tokens of episodes with r ≥ `raft.threshold`; the others are nowhere, not even in a
//! denominator.
//!
//! Source: arXiv:2304.06767 takes the best of a task's attempts by a reward model; with rewards that verify, keeping all
//! that succeed is arXiv:2504.11343. 1 is full marks.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `raft.threshold` | 1 | the least reward an episode is learned with |
//!
//! Needs: rewards; works with one attempt a task, and with given answers that have rewards.
//!
//! Watch: the share that is learned; entropy, which falls fast, since nothing is ever pushed down.

use loss::{Nll, Term};
use serde::{Deserialize, Serialize};

use crate::method::Method;
use crate::settings::setting;
use crate::step::{Step, Worth};
use crate::{AlgoError, Data, Dropped, Why};

/// What is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kept {
    /// The least reward an episode is learned with.
    pub threshold: f64,
}

impl Default for Kept {
    fn default() -> Self {
        Kept { threshold: 1.0 }
    }
}

settings! {
    /// The settings of RAFT; see the [module](self).
    pub struct Raft {
        /// What is kept.
        raft: Kept = Kept::default(),
    }
    shares { reduction = TokenMean, entropy, updates, }
}

impl Method for Raft {
    const NEEDED: usize = 1;

    fn settle(&mut self) -> Result<(), AlgoError> {
        setting("raft.threshold", self.raft.threshold, self.raft.threshold.is_finite(), "a finite number")
    }

    fn term(&self) -> Term {
        Term::Nll(Nll {})
    }

    fn data(&self) -> Data {
        Data::EpisodesOrAnswers
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        let mut worth = step.alone(|_| 1.0);
        for (g, rewards) in step.rewards.iter().enumerate() {
            for (e, reward) in rewards.iter().enumerate() {
                if reward.is_some_and(|r| r < self.raft.threshold) {
                    worth[g][e] = None;
                    step.dropped.push(Dropped { group: g, episode: Some(e), why: Why::BelowThreshold });
                }
            }
        }
        Ok(worth)
    }
}
