//! Masked importance sampling over sequences: w = Π π_old/μ over the trained tokens where it lies in [low, high], and 0
//! outside.
//!
//! A whole sequence is kept or left out, which stays in the denominator. The product moves with every token, so long
//! sequences leave a narrow band soon: `geometric` judges them by their mean.
//!
//! Source: J. Liu et al., "When speed kills stability: demystifying RL collapse from the training-inference mismatch", 2025.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_sequence, check_band, within};
use crate::exp::exp;
use crate::{LossError, Row};

/// Masked importance sampling over sequences: Π π_old/μ inside a band, 0 outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceMask {
    /// Below this product a sequence weighs 0.
    #[serde(default = "default_low")]
    pub low: f64,
    /// Above this product a sequence weighs 0.
    #[serde(default = "default_high")]
    pub high: f64,
}

fn default_low() -> f64 {
    0.5
}

fn default_high() -> f64 {
    2.0
}

impl CorrectionRule for SequenceMask {
    fn check(&self) -> Result<(), LossError> {
        check_band(self.low, self.high)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        by_sequence(rows, |gap| gap, |sum, _| within(exp(sum), self.low, self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    #[test]
    fn c12_a_product_outside_the_band_weighs_nothing() {
        check(&SequenceMask { low: 0.3, high: 2.0 }, C12, [0.367_879_44; 3]);
        check(&SequenceMask { low: 0.5, high: 2.0 }, C12, [0.0; 3]);
    }
}
