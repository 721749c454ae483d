//! The score function with a clipped ratio as its weight: −sg(clip(ρ, ratio_min, ratio_max)) · A · log π, ρ = π/π_old.
//!
//! The ratio is held fixed in the derivative, so a clipped token goes on learning, with a bounded weight, where the clipped
//! surrogate would leave it alone. The clip share then counts tokens whose weight was bounded.
//!
//! Source: arXiv:2506.13585; bounds [0, 5], arXiv:2510.13786.

use serde::{Deserialize, Serialize};

use super::{Clip, Needs, TermGroup, TermRule, TokenTerm, View, check_bounds, each_token};
use crate::LossError;

/// The score function with a clipped, fixed ratio: −sg(clip(ρ)) · A · log π.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cispo {
    /// The least a token weighs.
    pub ratio_min: f64,
    /// The most a token weighs.
    pub ratio_max: f64,
}

impl Cispo {
    fn token(&self, ratio: f64, advantage: f64, logp: f64) -> TokenTerm {
        if advantage == 0.0 {
            return TokenTerm::NOTHING;
        }
        let (weight, clip) = match ratio {
            _ if ratio > self.ratio_max => (self.ratio_max, Clip::High),
            _ if ratio < self.ratio_min => (self.ratio_min, Clip::Low),
            _ => (ratio, Clip::No),
        };
        TokenTerm { loss: -weight * advantage * logp, slope: -weight * advantage, clip }
    }
}

impl TermRule for Cispo {
    fn check(&self) -> Result<(), LossError> {
        check_bounds(self.ratio_min, self.ratio_max)
    }

    fn needs(&self) -> Needs {
        Needs { old: true, ..Needs::default() }
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| self.token(row.ratio(t), row.advantage(t), row.logp(t)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ratio: f64, advantage: f64, want_slope: f64, want_clip: Clip) {
        let got = Cispo { ratio_min: 0.5, ratio_max: 2.0 }.token(ratio, advantage, -1.5);
        assert_eq!((got.slope, got.loss, got.clip), (want_slope, -1.5 * want_slope, want_clip), "{ratio} {advantage}");
    }

    #[test]
    fn a_clipped_token_goes_on_learning_with_a_bounded_weight() {
        check(1.25, 2.0, -2.5, Clip::No);
        check(1.25, -2.0, 2.5, Clip::No);
        check(8.0, 2.0, -4.0, Clip::High);
        check(8.0, -2.0, 4.0, Clip::High);
        check(0.125, -2.0, 1.0, Clip::Low);
        check(f64::INFINITY, 0.0, 0.0, Clip::No);
    }
}
