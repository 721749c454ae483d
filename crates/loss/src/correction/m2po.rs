//! Importance sampling with a bounded second moment: w = π_old/μ on the tokens that are kept, which are those left after
//! the largest |log(π_old/μ)| of the step were dropped until the mean of (log(π_old/μ))² over the rest is at most `tau`.
//!
//! Only outliers are left out, however old the batch is, instead of everything beyond a fixed bound. Which tokens are kept
//! is chosen once a step over all its tokens; they arrive as a weight of 0, so that no group needs another. What is dropped
//! stays in the denominator.
//!
//! Source: arXiv:2510.01161.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_token, check_tau};
use crate::exp::exp;
use crate::row::positions;
use crate::{LossError, Row, StepRow};

/// Importance sampling with a bounded second moment of the log-ratio.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct M2po {
    /// The most that the mean of (log(π_old/μ))² over the kept tokens may be.
    #[serde(default = "default_tau")]
    pub tau: f64,
}

fn default_tau() -> f64 {
    0.04
}

impl CorrectionRule for M2po {
    fn check(&self) -> Result<(), LossError> {
        check_tau(self.tau)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        let mut weights = by_token(rows, exp);
        for (weights, row) in weights.iter_mut().zip(rows) {
            // What was dropped counts in no metric of the weights either.
            weights.iter_mut().zip(row.weight).filter(|(_, kept)| **kept == 0.0).for_each(|(w, _)| *w = 0.0);
        }
        weights
    }

    fn select(&self, rows: &[StepRow<'_>]) -> Option<Vec<Vec<bool>>> {
        let mut keep: Vec<Vec<bool>> = rows.iter().map(|row| vec![true; row.trained.len()]).collect();
        // A NaN, which the loss will refuse, is the largest of all.
        let mut gaps: Vec<(f64, usize, usize)> = Vec::new();
        for (place, row) in rows.iter().enumerate() {
            let Some(sampler) = row.logp_sampler else { continue };
            for t in positions(row.trained) {
                gaps.push(((f64::from(row.logp[t]) - f64::from(sampler[t])).abs(), place, t));
            }
        }
        // Equal ones are dropped from the end of the step.
        gaps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut sum = 0.0;
        let mut n_kept = 0;
        for (i, (gap, ..)) in gaps.iter().enumerate() {
            sum += gap * gap;
            // The mean of the smallest grows with each that joins them, so this is where dropping from the top would stop.
            if sum / (i + 1) as f64 <= self.tau {
                n_kept = i + 1;
            } else {
                break;
            }
        }
        for (_, place, t) in &gaps[n_kept..] {
            keep[*place][*t] = false;
        }
        Some(keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    fn kept(tau: f64, gaps: &[&[f32]]) -> Vec<Vec<bool>> {
        let zeros = [0.0f32; 8];
        let trained = [true; 8];
        let rows = gaps.iter().map(|gaps| StepRow {
            logp_sampler: Some(&zeros[..gaps.len()]),
            ..StepRow::bare(&trained[..gaps.len()], gaps, &zeros[..gaps.len()])
        });
        let rows: Vec<StepRow<'_>> = rows.collect();
        M2po { tau }.select(&rows).unwrap()
    }

    #[test]
    fn c12_the_weight_is_the_plain_ratio() {
        check(&M2po { tau: 0.04 }, C12, [1.648_721_27, 1.0, 0.223_130_16]);
    }

    #[test]
    fn what_was_dropped_weighs_nothing() {
        let old = [-1.0f32, -2.0];
        let row = Row {
            logp_old: Some(&old),
            logp_sampler: Some(&[-1.0, -2000.0]),
            ..Row::bare(&[true; 2], &old, &[1.0; 2], &[1.0, 0.0])
        };
        assert_eq!(M2po { tau: 0.04 }.weights(&[row]), [[1.0, 0.0]]);
    }

    #[test]
    fn the_largest_log_ratios_are_dropped_until_the_second_moment_fits() {
        // Squares: .01 .04 .09 | 1 .01; means from the smallest: .01 .01 .02 .0375 .23.
        let gaps: [&[f32]; 2] = [&[0.1, -0.2, 0.3], &[-1.0, 0.1]];
        assert_eq!(kept(0.04, &gaps), [vec![true; 3], vec![false, true]]);
        assert_eq!(kept(0.03, &gaps), [vec![true, true, false], vec![false, true]]);
        assert_eq!(kept(0.001, &gaps), [vec![false; 3], vec![false; 2]]);
        assert_eq!(kept(0.24, &gaps), [vec![true; 3], vec![true; 2]]);
    }

    #[test]
    fn nothing_is_dropped_where_nothing_moved_and_ties_go_from_the_end() {
        assert_eq!(kept(1e-9, &[&[0.0; 3]]), [[true; 3]]);
        assert_eq!(kept(0.6, &[&[1.0, 0.0, -1.0, 1.0]]), [[true, true, false, false]]);
    }

    #[test]
    fn untrained_places_are_not_read() {
        let bare = StepRow::bare(&[false, true], &[f32::NAN, 0.0], &[0.0; 2]);
        let row = StepRow { logp_sampler: Some(&[0.0, 0.0]), ..bare };
        assert_eq!(M2po { tau: 0.04 }.select(&[row]), Some(vec![vec![true; 2]]));
        let given = StepRow { logp_sampler: None, ..row };
        assert_eq!(M2po { tau: 0.04 }.select(&[given]), Some(vec![vec![true; 2]]));
    }
}
