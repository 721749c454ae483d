//! Token-level truncated importance sampling: w = min(π_old/μ, cap).
//!
//! Corrects the gap between the policy that sampled and the policy when the step began, one token at a time; the cap
//! bounds the variance and leaves a bias where it binds.
//!
//! Source: truncation, E. L. Ionides, "Truncated importance sampling", J. Comput. Graph. Stat. 17, 2008; for the gap
//! between a sampling and a training engine, F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL
//! training", 2025.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_token, check_cap};
use crate::exp::exp;
use crate::{LossError, Row};

/// Token-level truncated importance sampling: min(π_old/μ, cap).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTis {
    /// The most a token may weigh.
    #[serde(default = "default_cap")]
    pub cap: f64,
}

fn default_cap() -> f64 {
    2.0
}

impl CorrectionRule for TokenTis {
    fn check(&self) -> Result<(), LossError> {
        check_cap(self.cap)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        by_token(rows, |gap| exp(gap).min(self.cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    #[test]
    fn c12_the_ratio_is_truncated_at_the_cap() {
        check(&TokenTis { cap: 2.0 }, C12, [1.648_721_27, 1.0, 0.223_130_16]);
        check(&TokenTis { cap: 1.5 }, C12, [1.5, 1.0, 0.223_130_16]);
    }
}
