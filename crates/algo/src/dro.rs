//! Direct reward optimisation, token by token: the score function with a quadratic pull towards the policy that sampled.
//!
//! Formula: A = r − mean over the graded episodes of a task; loss −(A · log π − ½β(log π − log μ)²). Off-policy as it is:
//! the pull takes the place of an importance ratio.
//!
//! Source: arXiv:2405.19107, in the form that the Tinker API documents, which sums over tokens (`sum`) and leaves the
//! advantage to its caller; its example has β = 0.05, and its recipes centre rewards on the group's mean, as here.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `beta` | 0.05 | how strongly μ holds |
//!
//! Needs: rewards, at least two graded episodes a task; what the sampler recorded.
//!
//! Watch: `kl_mismatch`; `sum` makes the gradient grow with the batch, so that `optimiser.clip_norm` decides its size.

use loss::Term;

use crate::advantage::centred;
use crate::method::Method;
use crate::step::{Step, Worth};
use crate::{AlgoError, Spread};

settings! {
    /// The settings of DRO; see the [module](self).
    pub struct Dro {
        /// How strongly μ holds.
        beta: f64 = 0.05,
    }
    shares { reduction = Sum, entropy, truncated, overlong, updates, }
}

impl Method for Dro {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::Dro(loss::Dro { beta: self.beta })
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare(Self::NEEDED, |rewards| centred(rewards, Spread::None, 0.0)))
    }
}
