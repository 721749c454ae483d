//! Soft adaptive policy optimisation: instead of a bound on the ratio, a push that fades smoothly as it moves away from 1.
//!
//! Formula: A as in `grpo`; loss −f(ρ)·A with f(ρ) = σ(τ(ρ − 1))·4/τ and ρ = π/π_old, τ being `tau_positive` for A > 0 and
//! `tau_negative` else. At ρ = 1 its derivative is that of the plain ratio.
//!
//! Source: arXiv:2511.20347: 1 and 1.05, mean over sequences of token means. A bad token fades a little sooner, since
//! pushing it down spreads over the whole vocabulary.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `tau_positive` | 1 | how soon the push fades for tokens with A > 0 |
//! | `tau_negative` | 1.05 | and for the others |
//!
//! Needs: rewards, at least two graded episodes a task. It only differs from `grpo` with several updates a step, or
//! off-policy.
//!
//! Watch: `ratio_max`, which nothing bounds sharply; entropy.

use loss::Term;

use crate::AlgoError;
use crate::method::Method;
use crate::step::{Step, Worth};

settings! {
    /// The settings of SAPO; see the [module](self).
    pub struct Sapo {
        /// How soon the push fades for tokens with A > 0.
        tau_positive: f64 = 1.0,
        /// And for the others.
        tau_negative: f64 = 1.05,
    }
    shares { spread, reduction = SequenceMean, kl = K3 in Loss, entropy, correction, select, truncated, overlong, updates, flat, }
}

impl Method for Sapo {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::Sapo(loss::Sapo { tau_positive: self.tau_positive, tau_negative: self.tau_negative })
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare_by_spread(Self::NEEDED))
    }
}
