//! OAPL: a squared error that asks of π just what the best policy near μ would have, so that lag does no harm.
//!
//! Formula: V̂ = β₁ · log mean exp(r/β₁) over the graded episodes of a task; loss (β₂ · (Σ log π − Σ log μ) − (r − V̂))² an
//! episode, sums over its sampled tokens, mean over sequences. μ is the policy that sampled, whenever that was: there is no
//! importance ratio, and nothing to correct.
//!
//! Source: arXiv:2602.19362, β₁ = 1 and β₂ = 1e-3.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `beta1` | 1 | from the best of the group's rewards, towards 0, to their mean |
//! | `beta2` | 1e-3 | how strongly μ holds |
//!
//! Needs: rewards, at least two graded episodes a task; what the sampler recorded.
//!
//! Watch: the loss, here a true error; `kl_mismatch`, how far π is from μ.

use loss::{Reduction, Term};

use crate::AlgoError;
use crate::advantage::over_soft_value;
use crate::method::Method;
use crate::settings::setting;
use crate::step::{Step, Worth};

settings! {
    /// The settings of OAPL; see the [module](self).
    pub struct Oapl {
        /// From the best of the group's rewards, towards 0, to their mean.
        beta1: f64 = 1.0,
        /// How strongly μ holds.
        beta2: f64 = 1e-3,
    }
    shares { truncated, overlong, updates, }
}

impl Method for Oapl {
    const NEEDED: usize = 2;

    fn settle(&mut self) -> Result<(), AlgoError> {
        setting("beta1", self.beta1, self.beta1.is_finite() && self.beta1 > 0.0, "a finite number above 0")
    }

    fn term(&self) -> Term {
        Term::Oapl(loss::Oapl { beta2: self.beta2 })
    }

    fn reduction(&self) -> Result<Reduction, AlgoError> {
        // The term spreads an episode's loss over its tokens.
        Ok(Reduction::SequenceSum)
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare(Self::NEEDED, |rewards| over_soft_value(rewards, self.beta1)))
    }
}
