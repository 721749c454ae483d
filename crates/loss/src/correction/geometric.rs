//! The geometric mean of a sequence's ratios: w = exp(mean of log(π_old/μ)) where it lies in [low, high], and 0 outside.
//!
//! Judges a sequence by how far a token of it is off on average, whatever its length. As a weight it is biased, but never
//! far from 1. The default band allows a mean gap of about .01 nat a token.
//!
//! Source: J. Liu et al., "When speed kills stability: demystifying RL collapse from the training-inference mismatch", 2025;
//! the mean itself, arXiv:2507.18071.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_sequence, check_band, within};
use crate::exp::exp;
use crate::{LossError, Row};

/// The geometric mean of a sequence's ratios inside a band, 0 outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometric {
    /// Below this mean a sequence weighs 0.
    #[serde(default = "default_low")]
    pub low: f64,
    /// Above this mean a sequence weighs 0.
    #[serde(default = "default_high")]
    pub high: f64,
}

fn default_low() -> f64 {
    0.99
}

fn default_high() -> f64 {
    1.01
}

impl CorrectionRule for Geometric {
    fn check(&self) -> Result<(), LossError> {
        check_band(self.low, self.high)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        by_sequence(rows, |gap| gap, |sum, n| within(exp(sum / n), self.low, self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    #[test]
    fn c12_a_geometric_mean_outside_the_band_weighs_nothing() {
        check(&Geometric { low: 0.7, high: 1.4 }, C12, [0.716_531_31; 3]);
        check(&Geometric { low: 0.99, high: 1.01 }, C12, [0.0; 3]);
    }
}
