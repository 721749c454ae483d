//! The score function held back by a square: −(A · log π − ½β(log π − log μ)²), μ the policy that sampled.
//!
//! Needs no ratio: the square pulls towards the sampling policy instead, at each token. A token with an advantage of 0 is
//! still pulled back once the policy has moved. Its optimum is log π = log μ + A/β.
//!
//! Source: direct reward optimisation, arXiv:2405.19107, per token as the Tinker API's loss of that name has it.

use serde::{Deserialize, Serialize};

use super::{Acts, Needs, TermGroup, TermRule, TokenTerm, View, check_positive, each_token};
use crate::LossError;

/// The score function with a quadratic pull to μ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dro {
    /// How strong the pull is.
    pub beta: f64,
}

impl Dro {
    fn token(&self, logp: f64, since_sampled: f64, advantage: f64) -> TokenTerm {
        let pull = self.beta * since_sampled;
        TokenTerm::unclipped(0.5 * pull * since_sampled - advantage * logp, pull - advantage)
    }
}

impl TermRule for Dro {
    fn check(&self) -> Result<(), LossError> {
        check_positive("beta", self.beta)
    }

    fn needs(&self) -> Needs {
        Needs { sampler: true, ..Needs::default() }
    }

    fn acts(&self) -> Acts {
        Acts::Everywhere
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| self.token(row.logp(t), row.since_sampled(t), row.advantage(t)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optimum_lies_advantage_over_beta_above_the_sampler() {
        let dro = Dro { beta: 0.05 };
        assert_eq!(dro.token(-1.0, 0.0, 0.5).slope, -0.5);
        assert!((dro.token(-1.0, 10.0, 0.5).slope).abs() < 1e-15);
        assert!(dro.token(-1.0, 11.0, 0.5).slope > 0.0);
    }

    #[test]
    fn the_loss_is_the_closed_form() {
        let got = Dro { beta: 0.5 }.token(-2.0, 1.5, 0.25);
        assert_eq!((got.loss, got.slope), (0.5 * 0.5 * 2.25 + 0.5, 0.75 - 0.25));
        // Without an advantage only the pull is left.
        let got = Dro { beta: 0.5 }.token(-2.0, -1.0, 0.0);
        assert_eq!((got.loss, got.slope), (0.25, -0.5));
    }
}
