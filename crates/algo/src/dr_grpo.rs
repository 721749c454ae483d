//! Dr. GRPO, "GRPO done right": group-relative, with neither the spread nor a response's length dividing anything.
//!
//! Formula: A = r − mean over the graded episodes of a task; loss −min(ρA, clip(ρ, `ratio_min`, `ratio_max`)·A) with
//! ρ = π/π_old, summed over tokens and divided by sequences × `horizon`.
//!
//! Source: arXiv:2503.20783. Dividing by the spread favours tasks that are nearly always or never solved, dividing by a
//! response's own length favours long wrong ones. The constant in its place only scales the loss: the paper takes the
//! limit on sampled tokens, 3000 in its public code, which is the default here; the limit of the run is as good.
//!
//! Needs: rewards, at least two graded episodes a task; reference log-probabilities with a KL.
//!
//! Watch: as with `grpo`; the length of responses, which should no longer grow without a gain in reward.

use crate::advantage::centred;
use crate::method::Method;
use crate::step::{Step, Worth};
use crate::{AlgoError, ReductionName, Spread};

/// The limit on sampled tokens in the public code.
const HORIZON: u32 = 3000;

settings! {
    /// The settings of Dr. GRPO; see the [module](self).
    pub struct DrGrpo {}
    shares {
        clip = 0.8 to 1.2, reduction = FixedHorizon, kl = K3 in Loss, entropy, correction, select, truncated, overlong, updates, flat,
    }
}

impl Method for DrGrpo {
    const NEEDED: usize = 2;

    fn settle(&mut self) -> Result<(), AlgoError> {
        if self.reduction == ReductionName::FixedHorizon {
            self.horizon.get_or_insert(HORIZON);
        }
        Ok(())
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare(Self::NEEDED, |rewards| centred(rewards, Spread::None, 0.0)))
    }
}
