//! Clip-Cov: a few tokens, drawn by chance among those with a high covariance of advantage and log-probability, do not
//! learn.
//!
//! cov_t = (A_t − Ā)(log π_old,t − mean), means over the step's trained tokens. Its mean is how fast the entropy falls, and
//! few tokens hold most of it. Those with `low` < cov < `high` are candidates; `share` of all tokens, at least one, are
//! drawn from them.
//!
//! Source: arXiv:2505.22617 and its public implementation.

use serde::{Deserialize, Serialize};

use super::{Chosen, SelectRule, StepRow, chance, covariances, mark, share_of};
use crate::LossError;
use crate::error::setting;

/// A few tokens with a high covariance do not learn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipCov {
    /// Which share of the step's tokens is left out.
    #[serde(default = "default_share")]
    pub share: f64,
    /// Candidates have a covariance above it.
    #[serde(default = "default_low")]
    pub low: f64,
    /// Candidates have a covariance below it.
    #[serde(default = "default_high")]
    pub high: f64,
}

fn default_share() -> f64 {
    2e-4
}

fn default_low() -> f64 {
    1.0
}

fn default_high() -> f64 {
    5.0
}

impl SelectRule for ClipCov {
    fn check(&self) -> Result<(), LossError> {
        setting("share", self.share, self.share > 0.0 && self.share <= 1.0, "a number above 0, at most 1")?;
        setting("low", self.low, self.low.is_finite(), "a finite number")?;
        setting("high", self.high, self.high > self.low && self.high.is_finite(), "a finite number above `low`")
    }

    fn choose(&self, rows: &[StepRow<'_>], seed: u64) -> Result<Chosen, LossError> {
        let all = covariances(rows)?;
        let n = share_of(self.share, all.len());
        let inside = |(_, (cov, _)): &(usize, (f64, _))| self.low < *cov && *cov < self.high;
        let candidates = all.into_iter().enumerate().filter(inside);
        let mut drawn: Vec<_> = candidates.map(|(i, (_, place))| (chance(seed, i as u64), place)).collect();
        drawn.sort_unstable();
        Ok(Chosen { keep: Some(mark(rows, drawn.into_iter().take(n).map(|(_, place)| place), false)), pull: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of ten tokens learn; covariances 2, 2, 2, 2 at the ends and less between.
    fn kept(rule: &ClipCov, seed: u64) -> Vec<bool> {
        let advantage = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -1.0];
        let logp = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -1.0].map(|l: f32| 2.0 * l - 3.0);
        let trained = [true; 10];
        let rows = [0..4, 4..10].map(|at| {
            let at = || at.clone();
            StepRow::bare(&trained[at()], &logp[at()], &advantage[at()])
        });
        rule.choose(&rows, seed).unwrap().keep.unwrap().concat()
    }

    #[test]
    fn as_many_as_the_share_says_are_left_out_and_only_candidates() {
        let rule = |share, low, high| ClipCov { share, low, high };
        for seed in 0..50 {
            let got = kept(&rule(0.2, 1.0, 5.0), seed);
            assert_eq!(got.iter().filter(|k| !**k).count(), 2, "{got:?}");
            assert!(got[2..8].iter().all(|k| *k), "{got:?}");
            assert_eq!(kept(&rule(0.05, 1.0, 5.0), seed).iter().filter(|k| !**k).count(), 1, "at least one");
        }
        // Fewer candidates than the share: all of them.
        assert_eq!(kept(&rule(0.9, 1.0, 5.0), 1).iter().filter(|k| !**k).count(), 4);
        assert!(kept(&rule(0.9, 3.0, 5.0), 1).iter().all(|k| *k));
        assert!(kept(&rule(0.9, 1.0, 2.0), 1).iter().all(|k| *k), "the band is open");
    }

    #[test]
    fn the_seed_alone_decides_which() {
        let rule = ClipCov { share: 0.2, low: 1.0, high: 5.0 };
        assert_eq!(kept(&rule, 7), kept(&rule, 7));
        let all: std::collections::BTreeSet<Vec<bool>> = (0..200).map(|seed| kept(&rule, seed)).collect();
        assert_eq!(all.len(), 6, "each pair of four candidates is drawn by some seed");
    }
}
