//! Masked importance sampling: w = π_old/μ where it lies in [low, high], and 0 outside.
//!
//! Where truncation keeps what is far off with a bounded weight, a mask leaves it out: such a token says more about the gap
//! between two engines than about the policy. What is left out stays in the denominator.
//!
//! Source: IcePop, Ling team, "Small leak can sink a great ship: boost RL training on MoE with IcePop", 2025, and its band
//! [0.5, 5].

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_token, check_band, within};
use crate::exp::exp;
use crate::{LossError, Row};

/// Masked importance sampling: π_old/μ inside a band, 0 outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenMask {
    /// Below this ratio a token weighs 0.
    #[serde(default = "default_low")]
    pub low: f64,
    /// Above this ratio a token weighs 0.
    #[serde(default = "default_high")]
    pub high: f64,
}

fn default_low() -> f64 {
    0.5
}

fn default_high() -> f64 {
    5.0
}

impl CorrectionRule for TokenMask {
    fn check(&self) -> Result<(), LossError> {
        check_band(self.low, self.high)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        by_token(rows, |gap| within(exp(gap), self.low, self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    #[test]
    fn c12_a_ratio_outside_the_band_weighs_nothing() {
        check(&TokenMask { low: 0.5, high: 5.0 }, C12, [1.648_721_27, 1.0, 0.0]);
        check(&TokenMask { low: 0.2, high: 1.5 }, C12, [0.0, 1.0, 0.223_130_16]);
    }
}
