//! Maximum-likelihood reinforcement learning: descends the logarithm of how often a task is solved, so that rare successes
//! count for more.
//!
//! Formula: A = (r − mean)/mean over the graded episodes of a task, all zero where the mean is 0; loss −min(ρA, clip(ρ,
//! `ratio_min`, `ratio_max`)·A) with ρ = π/π_old. With rewards of 0 and 1 the expected gradient is that of the first G
//! terms of log p, where the plain policy gradient is that of the first one.
//!
//! Source: arXiv:2602.02710 for the estimate, which sums over an episode's tokens: `sequence_sum`. The bounds of the ratio,
//! which is 1 in the one on-policy update a step that the estimate is derived for, are as commonly implemented.
//!
//! Needs: rewards of at least 0, so nothing may be taken off them; at least two graded episodes a task.
//!
//! Watch: the largest advantage, G − 1 for one success among G attempts; the share of groups without a spread.

use crate::advantage::over_mean;
use crate::method::Method;
use crate::step::{Step, Worth};
use crate::{AlgoError, Truncated};

settings! {
    /// The settings of MaxRL; see the [module](self).
    pub struct MaxRl {}
    shares { clip = 0.8 to 1.2, reduction = SequenceSum, kl = K3 in Loss, entropy, correction, select, truncated, updates, flat, }
}

impl Method for MaxRl {
    const NEEDED: usize = 2;

    fn settle(&mut self) -> Result<(), AlgoError> {
        let negative = |key, instead| Err(AlgoError::Negative { key, instead });
        if self.truncated == Truncated::Penalise {
            return negative("truncated = \"penalise\"", "`truncated = \"mask\"`");
        }
        if self.kl.in_reward() {
            return negative("kl.place = \"reward\"", "`kl.place = \"loss\"`");
        }
        Ok(())
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        for (group, rewards) in step.groups.iter().zip(&step.rewards) {
            for (episode, reward) in rewards.iter().enumerate() {
                if let Some(value) = reward.filter(|r| *r < 0.0) {
                    return Err(AlgoError::NegativeReward { task: group.task.id.clone(), episode, value });
                }
            }
        }
        Ok(step.compare(Self::NEEDED, over_mean))
    }
}
