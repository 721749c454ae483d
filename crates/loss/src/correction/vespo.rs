//! A soft weight over sequences: φ(W) = Wᵃ · e^(λ(1−W)), W = Π π_old/μ over a sequence's trained tokens.
//!
//! φ(1) = 1, and the weight fades on both sides without a bound that breaks off: as a power below, exponentially above.
//! Tokens with A ≥ 0 have (a, λ) = (2, 3), those below (3, 2). It is computed as exp(a·log W + λ(1−W)), which no length
//! overflows.
//!
//! Source: arXiv:2602.10693; the constants, a public implementation.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, over_sequence};
use crate::Row;
use crate::exp::exp;

/// (a, λ) where A ≥ 0.
const FOR_GOOD: (f64, f64) = (2.0, 3.0);
/// (a, λ) where A < 0.
const FOR_BAD: (f64, f64) = (3.0, 2.0);

/// A soft weight over sequences: Wᵃ · e^(λ(1−W)).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vespo {}

impl CorrectionRule for Vespo {
    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        let weights = |row: &Row<'_>| {
            let (log_w, _) = over_sequence(row, |gap| gap);
            let phi = |(a, lambda): (f64, f64)| exp(a * log_w + lambda * (1.0 - exp(log_w)));
            let (good, bad) = (phi(FOR_GOOD), phi(FOR_BAD));
            row.advantage.iter().map(|advantage| if *advantage < 0.0 { bad } else { good }).collect()
        };
        rows.iter().map(weights).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W = e⁻¹ as in CASES C12.
    fn check(sampler: [f32; 2], want: [f64; 2]) {
        let old = [-1.0f32, -1.0];
        let row = Row {
            logp_old: Some(&old),
            logp_sampler: Some(&sampler),
            ..Row::bare(&[true, true], &old, &[0.5, -0.5], &[1.0; 2])
        };
        let got = Vespo {}.weights(&[row]);
        assert!(got[0].iter().zip(want).all(|(got, want)| (got - want).abs() <= 1e-12 * want), "{got:?} {want:?}");
    }

    #[test]
    fn the_weight_is_one_at_one_and_the_closed_form_elsewhere() {
        check([-1.0, -1.0], [1.0, 1.0]);
        let w = (-1.0f64).exp();
        check([-0.5, -0.5], [w * w * (3.0 * (1.0 - w)).exp(), w * w * w * (2.0 * (1.0 - w)).exp()]);
        let w = 1f64.exp();
        check([-1.5, -1.5], [w * w * (3.0 * (1.0 - w)).exp(), w * w * w * (2.0 * (1.0 - w)).exp()]);
    }

    #[test]
    fn no_length_overflows() {
        check([-2000.0, -2000.0], [0.0, 0.0]);
        check([2000.0, 2000.0], [0.0, 0.0]);
    }
}
