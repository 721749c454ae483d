//! A filter by divergence: a sequence whose mean over trained tokens of π_old/μ − 1 − log(π_old/μ) is above `tau` weighs 0, any other 1.
//!
//! The mean estimates KL(μ‖π_old). Nothing is reweighed: what is near enough is treated as the policy's own, and what is
//! not is left out, but stays in the denominator.
//!
//! Source: the estimate, J. Schulman, "Approximating KL divergence", 2020; as a filter, J. Liu et al., "When speed kills
//! stability: demystifying RL collapse from the training-inference mismatch", 2025.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_sequence, check_tau};
use crate::exp::exp_m1_minus;
use crate::{LossError, Row};

/// A filter by divergence: sequences with a mean π_old/μ − 1 − log(π_old/μ) above `tau` weigh 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct K3 {
    /// The largest mean that is kept, in nats.
    #[serde(default = "default_tau")]
    pub tau: f64,
}

fn default_tau() -> f64 {
    0.01
}

impl CorrectionRule for K3 {
    fn check(&self) -> Result<(), LossError> {
        check_tau(self.tau)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        by_sequence(rows, exp_m1_minus, |sum, n| if sum / n <= self.tau { 1.0 } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    #[test]
    fn c12_a_sequence_beyond_the_bound_weighs_nothing() {
        let mean = (0.148_721_27 + 0.0 + 0.723_130_16) / 3.0;
        check(&K3 { tau: mean + 1e-7 }, C12, [1.0; 3]);
        check(&K3 { tau: mean - 1e-7 }, C12, [0.0; 3]);
    }
}
