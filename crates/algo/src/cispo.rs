//! CISPO: the importance weight is clipped instead of the update, so that no token stops learning.
//!
//! Formula: A as in `grpo`; loss −sg(clip(ρ, `ratio_min`, `ratio_max`))·A·log π with ρ = π/π_old: the weight is held fixed
//! in the derivative, so a token beyond the bounds still learns, with a bounded weight.
//!
//! Source: arXiv:2506.13585, which averages over all tokens, has no KL and puts no lower bound; it names no number for the
//! upper one. 5 is that of arXiv:2510.13786.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `ratio_min`, `ratio_max` | 0, 5 | bounds of the weight, absolute |
//!
//! Needs: rewards, at least two graded episodes a task. It only differs from `grpo` with several updates a step, or
//! off-policy.
//!
//! Watch: `clip_share`; rare words such as "wait", which clipped updates never learn and these do.

use loss::Term;

use crate::AlgoError;
use crate::method::Method;
use crate::step::{Step, Worth};

settings! {
    /// The settings of CISPO; see the [module](self).
    pub struct Cispo {
        /// Lower bound of the weight.
        ratio_min: f64 = 0.0,
        /// Upper bound of the weight.
        ratio_max: f64 = 5.0,
    }
    shares { spread, reduction = TokenMean, kl = K3 in Loss, entropy, correction, select, truncated, overlong, updates, flat, }
}

impl Method for Cispo {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::Cispo(loss::Cispo { ratio_min: self.ratio_min, ratio_max: self.ratio_max })
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare_by_spread(Self::NEEDED))
    }
}
