//! REINFORCE: a token is worth the reward of its episode.
//!
//! Formula: A = r − b for each of the episode's sampled tokens, with b = 0, or the mean reward of the step's graded
//! episodes (`baseline = "batch_mean"`); loss −A · log π, plus `kl.coefficient` · KL.
//!
//! Source: R. J. Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning",
//! Machine Learning 8, 1992. Its estimate is the sum over an episode's tokens, averaged over episodes: `sequence_sum`.
//! The batch mean holds the episode's own reward, which scales the expected gradient by (n − 1)/n.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `baseline` | `none` | `none` or `batch_mean`: what comes off each reward |
//!
//! Needs: rewards; works with one attempt a task. One update a step, since nothing in it bounds a second one.
//!
//! Watch: `dlogp_norm`, which is noisy without a baseline; the gradient's size, which grows with length under
//! `sequence_sum`.

use loss::Term;
use serde::{Deserialize, Serialize};

use crate::AlgoError;
use crate::advantage::{all_equal, mean};
use crate::method::Method;
use crate::step::{Step, Worth};

/// What comes off each reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Nothing.
    None,
    /// The mean reward of the step's graded episodes; when they are all the same every advantage is exactly 0.
    BatchMean,
}

settings! {
    /// The settings of REINFORCE; see the [module](self).
    pub struct Reinforce {
        /// What comes off each reward.
        baseline: Baseline = Baseline::None,
    }
    shares { reduction = SequenceSum, kl = K3 in Loss, entropy, correction, select, truncated, overlong, }
}

impl Method for Reinforce {
    const NEEDED: usize = 1;

    fn term(&self) -> Term {
        Term::Reinforce(loss::Reinforce {})
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        let graded: Vec<f64> = step.rewards.iter().flatten().flatten().copied().collect();
        let (equal, mean) = (all_equal(&graded), mean(&graded));
        Ok(step.alone(|reward| match self.baseline {
            Baseline::None => reward,
            Baseline::BatchMean if equal => 0.0,
            Baseline::BatchMean => reward - mean,
        }))
    }
}
