//! The surrogate with a soft gate: −f(ρ)·A, f(ρ) = σ(τ(ρ − 1)) · 4/τ, ρ = π/π_old.
//!
//! The gate's slope is 1 at a ratio of 1, as the unclipped surrogate's, and fades to 0 on both sides instead of breaking
//! off. `tau_positive` serves tokens with A > 0, `tau_negative` those below; the larger, the sooner it fades.
//!
//! Source: arXiv:2511.20347.

use serde::{Deserialize, Serialize};

use super::{Needs, TermGroup, TermRule, TokenTerm, View, check_positive, each_token};
use crate::LossError;
use crate::exp::sigmoid;

/// The softly gated surrogate −σ(τ(ρ − 1)) · 4/τ · A.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sapo {
    /// How fast the gate closes where A > 0.
    pub tau_positive: f64,
    /// How fast the gate closes where A < 0.
    pub tau_negative: f64,
}

impl Sapo {
    fn token(&self, ratio: f64, advantage: f64) -> TokenTerm {
        if advantage == 0.0 {
            return TokenTerm::NOTHING;
        }
        let tau = if advantage > 0.0 { self.tau_positive } else { self.tau_negative };
        let x = tau * (ratio - 1.0);
        let (open, shut) = (sigmoid(x), sigmoid(-x));
        // A ratio that overflowed meets a gate that is exactly shut.
        let slope = if shut == 0.0 { 0.0 } else { -4.0 * ratio * open * shut * advantage };
        TokenTerm::unclipped(-open * 4.0 / tau * advantage, slope)
    }
}

impl TermRule for Sapo {
    fn check(&self) -> Result<(), LossError> {
        check_positive("tau_positive", self.tau_positive)?;
        check_positive("tau_negative", self.tau_negative)
    }

    fn needs(&self) -> Needs {
        Needs { old: true, ..Needs::default() }
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| self.token(row.ratio(t), row.advantage(t)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_at_a_ratio_of_one_is_the_unclipped_surrogates() {
        let sapo = Sapo { tau_positive: 1.0, tau_negative: 1.05 };
        for advantage in [2.0, -0.5] {
            assert_eq!(sapo.token(1.0, advantage).slope, -advantage);
        }
        assert_eq!(sapo.token(1.0, 2.0).loss, -4.0);
        assert!((sapo.token(1.0, -0.5).loss - 0.5 * 2.0 / 1.05).abs() < 1e-15);
    }

    #[test]
    fn the_gate_is_the_logistic_function() {
        // σ(1) = 0.7310585786300049, at a ratio of 2 with τ = 1.
        let got = Sapo { tau_positive: 1.0, tau_negative: 2.0 }.token(2.0, 1.0);
        assert!((got.loss + 4.0 * 0.731_058_578_630_004_9).abs() < 1e-15);
        assert!((got.slope + 2.0 * 4.0 * 0.731_058_578_630_004_9 * 0.268_941_421_369_995_1).abs() < 1e-15);
        // The other τ below 0: σ(2) = 0.8807970779778823.
        let got = Sapo { tau_positive: 1.0, tau_negative: 2.0 }.token(2.0, -1.0);
        assert!((got.loss - 2.0 * 0.880_797_077_977_882_3).abs() < 1e-15);
    }

    #[test]
    fn a_ratio_that_overflowed_pushes_nothing() {
        let got = Sapo { tau_positive: 1.0, tau_negative: 1.05 }.token(f64::INFINITY, -1.0);
        assert_eq!((got.loss, got.slope), (4.0 / 1.05, 0.0));
    }
}
