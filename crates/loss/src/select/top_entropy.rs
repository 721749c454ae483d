//! The forking tokens: only the `share` of a step's tokens with the highest entropy of π_old learns.
//!
//! Most tokens follow from what stands before them; the few at which the policy is undecided carry what can be learned. The
//! threshold is over the whole step, so a sequence may keep many or none. At least one token is kept; of equal ones, those
//! that come first.
//!
//! Source: arXiv:2506.01939, "beyond the 80/20 rule".

use serde::{Deserialize, Serialize};

use super::{Chosen, SelectRule, StepRow, checked_positions, mark};
use crate::LossError;
use crate::error::setting;

/// Only the tokens with the highest entropy learn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopEntropy {
    /// Which share of the step's tokens.
    #[serde(default = "default_share")]
    pub share: f64,
}

fn default_share() -> f64 {
    0.2
}

impl SelectRule for TopEntropy {
    fn check(&self) -> Result<(), LossError> {
        setting("share", self.share, self.share > 0.0 && self.share <= 1.0, "a number above 0, at most 1")
    }

    fn needs_entropy(&self) -> bool {
        true
    }

    fn choose(&self, rows: &[StepRow<'_>], _seed: u64) -> Result<Chosen, LossError> {
        let mut places = checked_positions(rows, &[("entropy", |row| row.entropy)])?;
        let entropy = |(row, t): (usize, usize)| rows[row].entropy.map_or(0.0, |entropy| entropy[t]);
        // Stable, so equal ones stay in their order.
        places.sort_by(|a, b| entropy(*b).total_cmp(&entropy(*a)));
        let n = (self.share * places.len() as f64).ceil() as usize;
        Ok(Chosen { keep: Some(mark(rows, places.into_iter().take(n), true)), pull: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(share: f64, entropy: [f32; 5], want: [bool; 5]) {
        let trained = [true, false, true, true, true];
        let rows = |at: std::ops::Range<usize>| StepRow {
            entropy: Some(&entropy[at.clone()]),
            ..StepRow::bare(&trained[at.clone()], &[0.0; 5][at.clone()], &[0.0; 5][at])
        };
        let got = TopEntropy { share }.choose(&[rows(0..2), rows(2..5)], 1).unwrap();
        assert_eq!(got.keep.unwrap().concat(), want, "{share} {entropy:?}");
        assert_eq!(got.pull, None);
    }

    #[test]
    fn the_most_undecided_tokens_of_the_whole_step_learn() {
        let entropy = [0.5, f32::NAN, 0.25, 2.0, 1.0];
        check(0.25, entropy, [false, false, false, true, false]);
        check(0.26, entropy, [false, false, false, true, true]);
        check(0.75, entropy, [true, false, false, true, true]);
        check(1.0, entropy, [true, false, true, true, true]);
        check(1e-9, [0.5; 5], [true, false, false, false, false]);
    }

    #[test]
    fn a_step_without_entropies_is_refused() {
        let row = StepRow::bare(&[true], &[0.0], &[0.0]);
        let got = TopEntropy { share: 0.2 }.choose(&[row], 1).unwrap_err().to_string();
        assert_eq!(got, "sequence 0 has no `entropy`, which this loss needs");
        assert_eq!(TopEntropy { share: 0.2 }.choose(&[], 1).unwrap().keep, Some(vec![]));
    }
}
