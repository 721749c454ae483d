//! Estimates of the divergence from a reference, one token at a time.

use serde::{Deserialize, Serialize};

use crate::LossError;
use crate::error::setting;
use crate::exp::{exp, exp_m1_minus};

/// An estimate of KL(π‖ref) from one token drawn from π; k1 = log π − log ref.
///
/// As a number each has KL(π‖ref) as its mean but k2, which only comes near it. As a *loss* they differ, since what is
/// differentiated is the estimate and not its mean.
///
/// - Source: J. Schulman, "Approximating KL divergence", 2020; gradients checked against closed forms in the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// k1. As a loss its expected gradient is zero: use it in the reward.
    K1,
    /// k1² / 2. As a loss it descends the reverse divergence KL(π‖ref).
    K2,
    /// e^−k1 − 1 + k1, never negative. As a loss it descends the forward divergence KL(ref‖π).
    K3,
}

impl Estimator {
    /// The estimate and its derivative by log π.
    pub fn value_and_slope(self, logp: f64, logp_ref: f64) -> (f64, f64) {
        let k1 = logp - logp_ref;
        match self {
            Estimator::K1 => (k1, 1.0),
            Estimator::K2 => (0.5 * k1 * k1, k1),
            Estimator::K3 => (exp_m1_minus(-k1), 1.0 - exp(-k1)),
        }
    }
}

/// A pull towards the reference as part of the loss.
///
/// Off-policy it carries the correction's weight, like the term beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kl {
    /// Which estimate.
    pub estimator: Estimator,
    /// How much of it is added to each token's loss.
    pub coefficient: f64,
}

impl Kl {
    pub(crate) fn check(&self) -> Result<(), LossError> {
        let c = self.coefficient;
        setting("kl.coefficient", c, c >= 0.0 && c.is_finite(), "a finite number at least 0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CASES C1: π = Bernoulli(σ(θ)) at θ = 0, ref = Bernoulli(0.3); the expected gradient of each estimate as a loss.
    #[test]
    fn c1_expected_gradients_equal_the_closed_forms() {
        let expected = |estimator: Estimator| {
            // (π, ref, d log π / dθ) of both outcomes.
            [(0.5f64, 0.3f64, 0.5), (0.5, 0.7, -0.5)]
                .map(|(p, q, dlogp)| p * estimator.value_and_slope(p.ln(), q.ln()).1 * dlogp)
                .iter()
                .sum::<f64>()
        };
        // d/dθ KL(π‖ref) = σ'(θ) · (log(.5/.3) − log(.5/.7)); d/dθ KL(ref‖π) = σ(θ) − ref.
        let reverse = 0.25 * ((0.5f64 / 0.3).ln() - (0.5f64 / 0.7).ln());
        assert!((reverse - 0.211_824_5).abs() < 1e-7);
        assert!(expected(Estimator::K1).abs() < 1e-15);
        assert!((expected(Estimator::K2) - reverse).abs() < 1e-15);
        assert!((expected(Estimator::K3) - 0.2).abs() < 1e-15);
    }

    /// CASES C3: minimised, not maximised.
    #[test]
    fn c3_a_step_on_the_kl_alone_decreases_it() {
        let reference = [0.6f64, 0.3, 0.1];
        for estimator in [Estimator::K2, Estimator::K3] {
            let mut logits = [0.0f64, 0.5, 1.0];
            let mut before = f64::INFINITY;
            for _ in 0..50 {
                let z: f64 = logits.iter().map(|l| l.exp()).sum();
                let p = logits.map(|l| l.exp() / z);
                let kl: f64 = p.iter().zip(&reference).map(|(p, q)| p * (p / q).ln()).sum();
                assert!(kl < before, "{estimator:?}: {kl} after {before}");
                before = kl;
                let slope: Vec<f64> =
                    p.iter().zip(&reference).map(|(p, q)| estimator.value_and_slope(p.ln(), q.ln()).1).collect();
                for j in 0..3 {
                    let dlogp = |i: usize| f64::from(u8::from(i == j)) - p[j];
                    logits[j] -= 0.2 * (0..3).map(|i| p[i] * slope[i] * dlogp(i)).sum::<f64>();
                }
            }
        }
    }

    #[test]
    fn equal_policies_have_exactly_no_divergence() {
        for estimator in [Estimator::K1, Estimator::K2, Estimator::K3] {
            let (value, slope) = estimator.value_and_slope(-1.5, -1.5);
            assert_eq!(value, 0.0);
            assert_eq!(slope, if estimator == Estimator::K1 { 1.0 } else { 0.0 });
        }
    }
}
