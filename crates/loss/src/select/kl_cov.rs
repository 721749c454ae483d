//! KL-Cov: the tokens with the highest covariance of advantage and log-probability are pulled back towards π_old.
//!
//! cov_t = (A_t − Ā)(log π_old,t − mean), means over the step's trained tokens. The `share` of all tokens with the highest,
//! at least one, gets `coefficient` · |log π − log π_old| added to its loss; of equal ones, those that come first.
//!
//! Source: arXiv:2505.22617 and its public implementation.

use serde::{Deserialize, Serialize};

use super::{Chosen, SelectRule, StepRow, covariances, share_of};
use crate::LossError;
use crate::error::setting;

/// The tokens with the highest covariance are pulled back towards π_old.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlCov {
    /// Which share of the step's tokens is pulled.
    #[serde(default = "default_share")]
    pub share: f64,
    /// How strongly.
    #[serde(default = "default_coefficient")]
    pub coefficient: f64,
}

fn default_share() -> f64 {
    0.002
}

fn default_coefficient() -> f64 {
    1.0
}

impl SelectRule for KlCov {
    fn check(&self) -> Result<(), LossError> {
        setting("share", self.share, self.share > 0.0 && self.share <= 1.0, "a number above 0, at most 1")?;
        let c = self.coefficient;
        setting("coefficient", c, c > 0.0 && c.is_finite(), "a finite number above 0")
    }

    fn choose(&self, rows: &[StepRow<'_>], _seed: u64) -> Result<Chosen, LossError> {
        let mut all = covariances(rows)?;
        let n = share_of(self.share, all.len());
        // Stable, so equal ones stay in their order.
        all.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut pull: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.trained.len()]).collect();
        for (_, (row, t)) in all.into_iter().take(n) {
            pull[row][t] = self.coefficient as f32;
        }
        Ok(Chosen { keep: None, pull: Some(pull) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(share: f64, want: [f32; 6]) {
        // Means over the five trained tokens are 0 and −2: covariances 2, .5, –, 0, −1, 1.5.
        let advantage = [1.0, 0.5, f32::NAN, 0.0, -1.0, -0.5];
        let logp = [0.0, -1.0, f32::NAN, -1.0, -1.0, -7.0];
        let trained = [true, true, false, true, true, true];
        let rows = [0..3, 3..6].map(|at| {
            let at = || at.clone();
            StepRow::bare(&trained[at()], &logp[at()], &advantage[at()])
        });
        let got = KlCov { share, coefficient: 0.5 }.choose(&rows, 1).unwrap();
        assert_eq!((got.pull.unwrap().concat(), got.keep), (want.to_vec(), None), "{share}");
    }

    #[test]
    fn the_highest_covariances_are_pulled() {
        check(0.002, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]);
        check(0.4, [0.5, 0.0, 0.0, 0.0, 0.0, 0.5]);
        check(0.6, [0.5, 0.5, 0.0, 0.0, 0.0, 0.5]);
        check(1.0, [0.5, 0.5, 0.0, 0.5, 0.5, 0.5]);
    }

    #[test]
    fn equal_covariances_are_taken_from_the_front() {
        let row = StepRow::bare(&[true; 3], &[-1.0; 3], &[0.25; 3]);
        let got = KlCov { share: 0.002, coefficient: 1.0 }.choose(&[row], 1).unwrap();
        assert_eq!(got.pull, Some(vec![vec![1.0, 0.0, 0.0]]));
    }
}
