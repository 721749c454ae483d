//! REINFORCE, leave one out: an attempt is worth what it has more than the mean of the others at the same task.
//!
//! Formula: A = r − mean of the others' r, the same for each of the episode's sampled tokens; loss −A · log π.
//!
//! Source: arXiv:2402.14740. A response is one action there, so its loss is summed over tokens and averaged over
//! sequences: `sequence_sum`. Leaving the own reward out keeps the estimate free of bias, where the group's mean scales
//! it by (G − 1)/G. The paper pays a KL in the reward, with a coefficient chosen per data set; the default here is none.
//!
//! Needs: rewards, at least two graded episodes a task; reference log-probabilities with a KL. One update a step, since
//! nothing in it bounds a second one.
//!
//! Watch: `dlogp_norm`; the gradient's size, which grows with length under `sequence_sum`.

use loss::Term;

use crate::AlgoError;
use crate::advantage::over_others;
use crate::method::Method;
use crate::step::{Step, Worth};

settings! {
    /// The settings of RLOO; see the [module](self).
    pub struct Rloo {}
    shares { reduction = SequenceSum, kl = K1 in Reward, entropy, correction, select, truncated, overlong, flat, }
}

impl Method for Rloo {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::Reinforce(loss::Reinforce {})
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare(Self::NEEDED, over_others))
    }
}
