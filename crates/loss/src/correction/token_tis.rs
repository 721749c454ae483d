//! Token-level truncated importance sampling: w = min(π_old/μ, cap).
//!
//! Corrects the gap between the policy that sampled and the policy when the step began, one token at a time; the cap
//! bounds the variance and leaves a bias where it binds.
//!
//! Source: truncation, E. L. Ionides, "Truncated importance sampling", J. Comput. Graph. Stat. 17, 2008; for the gap
//! between a sampling and a training engine, F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL
//! training", 2025.

use serde::{Deserialize, Serialize};

use super::CorrectionRule;
use crate::error::setting;
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
        let ok = self.cap >= 1.0 && self.cap.is_finite();
        setting("correction.cap", self.cap, ok, "a finite number at least 1")
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        let weights = |row: &Row<'_>| {
            let mut weights = vec![0.0; row.trained.len()];
            let (Some(old), Some(sampler)) = (row.logp_old, row.logp_sampler) else { return weights };
            for t in row.trained_positions() {
                weights[t] = exp(f64::from(old[t]) - f64::from(sampler[t])).min(self.cap);
            }
            weights
        };
        rows.iter().map(weights).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cap: f64, want: [f64; 3]) {
        let (old, sampler) = ([-1.0f32, f32::NAN, -0.5, -2.0], [-1.5f32, 0.0, -0.5, -0.5]);
        let row = Row {
            logp_old: Some(&old),
            logp_sampler: Some(&sampler),
            ..Row::bare(&[true, false, true, true], &old, &[0.0; 4], &[1.0; 4])
        };
        let got = TokenTis { cap }.weights(&[row]);
        for (got, want) in [got[0][0], got[0][2], got[0][3]].iter().zip(want) {
            assert!((got - want).abs() < 1e-5, "{got} {want}");
        }
    }

    #[test]
    fn c12_the_ratio_is_truncated_at_the_cap() {
        check(2.0, [1.648_72, 1.0, 0.223_13]);
        check(1.5, [1.5, 1.0, 0.223_13]);
    }
}
