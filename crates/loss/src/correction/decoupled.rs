//! Decoupled proximal policy: w = π_prox/μ, and the term's ratio is π/π_prox, where log π_prox = log μ + a(log π − log μ).
//!
//! The policy that sampled and the policy that the step may not move far from are two: the first is corrected by a weight,
//! the second bounds the move. The proximal policy, the one the step began with, is interpolated instead of computed, so no
//! forward pass is needed: a token sampled `lag` published versions before the step began lies lag + 1 versions before the
//! one being made, so a = lag / (lag + 1). Without a lag π_prox is μ and this is the plain clipped surrogate. Weight and
//! π_prox are held fixed in every derivative.
//!
//! Source: arXiv:2505.24298; interpolation, AReaL's "proximal log-probability approximation", 2025.

use serde::{Deserialize, Serialize};

use super::CorrectionRule;
use crate::Row;
use crate::exp::exp;

/// Decoupled proximal policy, interpolated: w = π_prox/μ, ratio π/π_prox.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoupled {}

/// Something of log μ and log π_prox − log μ at each trained token.
fn each(row: &Row<'_>, value: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut values = vec![0.0; row.trained.len()];
    if let Some(sampler) = row.logp_sampler {
        for t in row.trained_positions() {
            let lag = row.lag.map_or(0.0, |lag| f64::from(lag[t]));
            let sampler = f64::from(sampler[t]);
            values[t] = value(sampler, lag / (lag + 1.0) * (f64::from(row.logp[t]) - sampler));
        }
    }
    values
}

impl CorrectionRule for Decoupled {
    fn reads_lag(&self) -> bool {
        true
    }

    fn needs_old(&self) -> bool {
        false
    }

    fn needs_sampler(&self) -> bool {
        true
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        rows.iter().map(|row| each(row, |_, moved| exp(moved))).collect()
    }

    fn anchor(&self, row: &Row<'_>) -> Option<Vec<f64>> {
        Some(each(row, |sampler, moved| sampler + moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lag: Option<&[u32]>, want_weight: [f64; 2], want_anchor: [f64; 2]) {
        let (logp, sampler) = ([f32::NAN, -1.0, -0.5], [f32::NAN, -2.0, -0.25]);
        let row =
            Row { logp_sampler: Some(&sampler), lag, ..Row::bare(&[false, true, true], &logp, &[1.0; 3], &[1.0; 3]) };
        let (weights, anchor) = (Decoupled {}.weights(&[row]), Decoupled {}.anchor(&row).unwrap());
        for (i, (weight, prox)) in want_weight.into_iter().zip(want_anchor).enumerate() {
            assert!((weights[0][i + 1] - weight).abs() < 1e-15, "{:?}", weights);
            assert!((anchor[i + 1] - prox).abs() < 1e-15, "{anchor:?}");
        }
    }

    #[test]
    fn the_proximal_policy_lies_lag_of_lag_plus_one_along_the_way() {
        check(None, [1.0, 1.0], [-2.0, -0.25]);
        check(Some(&[9, 0, 0]), [1.0, 1.0], [-2.0, -0.25]);
        // a = 1/2 of the way from −2 to −1; a = 3/4 of the way from −.25 to −.5.
        check(Some(&[9, 1, 3]), [0.5f64.exp(), (-0.1875f64).exp()], [-1.5, -0.4375]);
    }
}
