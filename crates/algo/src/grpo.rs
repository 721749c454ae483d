//! Group-relative policy optimisation: an attempt is worth how much better it did than the others at the same task.
//!
//! Formula: A = (r − mean) / (std + `std_eps`) over the graded episodes of a task, the same for each of the episode's
//! sampled tokens; loss −min(ρA, clip(ρ, `ratio_min`, `ratio_max`)·A) with ρ = π/π_old, plus `kl.coefficient` · KL.
//!
//! Source: arXiv:2402.03300 (DeepSeekMath). The paper writes std without saying over n or n − 1; the default here is the
//! sample spread (n − 1), as the common implementations have it. Its reduction is the mean over sequences of token means,
//! `sequence_mean`. It uses a KL (`k3`, in the loss, coefficient 0.04); the default here is none, as in the later work
//! on verifiable rewards (arXiv:2503.14476, arXiv:2503.20783), and saves a pass through the reference.
//!
//! Needs: rewards, at least two graded episodes a task; reference log-probabilities with a KL; a pass through the policy
//! when the step begins with a correction, or a selection by entropy.
//!
//! Watch: the share of groups without a spread (they teach nothing), entropy, `clip_share`. The loss is near 0 at a ratio
//! of 1 because advantages are centred; `dlogp_norm` and `advantage_abs_mean` say whether anything is learned.

use crate::AlgoError;
use crate::method::Method;
use crate::step::{Step, Worth};

settings! {
    /// The settings of GRPO; see the [module](self).
    pub struct Grpo {}
    shares {
        spread, clip = 0.8 to 1.2, reduction = SequenceMean, kl = K3 in Loss, entropy, correction, select, truncated, overlong, updates,
        flat,
    }
}

impl Method for Grpo {
    const NEEDED: usize = 2;

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare_by_spread(Self::NEEDED))
    }
}
