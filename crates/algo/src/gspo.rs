//! Group sequence policy optimisation: the ratio is bounded for a whole response, as rewards are given for whole ones.
//!
//! Formula: A as in `grpo`; s = exp(mean over the sequence's tokens of log π − log π_old); loss −min(sA, clip(s,
//! `ratio_min`, `ratio_max`)·A), once a sequence. The mean keeps s near 1, so that its bounds are far tighter than a
//! token's.
//!
//! Source: arXiv:2507.18071: bounds 1 − 3e-4 and 1 + 4e-4 (its section 5.1), no KL, mean over sequences. A ratio that is
//! one for all tokens is steadier where a token's own is noisy, as with experts that are routed differently.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `ratio_min`, `ratio_max` | 0.9997, 1.0004 | bounds of a sequence's ratio, absolute |
//!
//! Needs: rewards, at least two graded episodes a task. It only differs from `grpo` with several updates a step, or
//! off-policy.
//!
//! Watch: `clip_share`, far higher than with `grpo` and no bad sign.

use loss::Term;

use crate::AlgoError;
use crate::method::Method;
use crate::step::{Step, Worth};

settings! {
    /// The settings of GSPO; see the [module](self).
    pub struct Gspo {
        /// Lower bound of a sequence's ratio.
        ratio_min: f64 = 1.0 - 3e-4,
        /// Upper bound of a sequence's ratio.
        ratio_max: f64 = 1.0 + 4e-4,
    }
    shares { spread, reduction = SequenceMean, kl = K3 in Loss, entropy, correction, truncated, overlong, updates, flat, }
}

impl Method for Gspo {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::Gspo(loss::Gspo { ratio_min: self.ratio_min, ratio_max: self.ratio_max })
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare_by_spread(Self::NEEDED))
    }
}
