//! The clipped surrogate: −min(ρA, clip(ρ, ratio_min, ratio_max)·A), with ρ = π/π_old.
//!
//! With `dual_clip` = c, a token with A < 0 loses at most c·|A|: a ratio that grew large on a bad token then stops
//! pushing. Where a bound decides, the derivative is 0. At a ratio of 1 and centred advantages the loss can be exactly 0
//! while the derivative is not: watch the derivative's norm, not the loss.
//!
//! Source: clipping, arXiv:1707.06347; dual clip, arXiv:1912.09729.

use serde::{Deserialize, Serialize};

use super::{Clip, Needs, TermGroup, TermRule, TokenTerm, View, check_bounds, each_token};
use crate::LossError;
use crate::error::setting;

/// The clipped surrogate −min(ρA, clip(ρ)·A).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyGradient {
    /// Below this ratio a token with A < 0 is left alone.
    pub ratio_min: f64,
    /// Above this ratio a token with A > 0 is left alone.
    pub ratio_max: f64,
    /// Above this ratio a token with A < 0 is left alone too; absent for no such bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
}

impl PolicyGradient {
    /// The clipped surrogate at a ratio, and its derivative by the ratio's logarithm.
    pub(super) fn token(&self, ratio: f64, advantage: f64) -> TokenTerm {
        if advantage == 0.0 {
            return TokenTerm::NOTHING;
        }
        let bounded = |bound: f64, clip| TokenTerm { loss: -bound * advantage, slope: 0.0, clip };
        match self.dual_clip {
            _ if advantage > 0.0 && ratio > self.ratio_max => bounded(self.ratio_max, Clip::High),
            _ if advantage < 0.0 && ratio < self.ratio_min => bounded(self.ratio_min, Clip::Low),
            Some(c) if advantage < 0.0 && ratio > c => bounded(c, Clip::Dual),
            _ => TokenTerm::unclipped(-ratio * advantage, -ratio * advantage),
        }
    }
}

impl TermRule for PolicyGradient {
    fn check(&self) -> Result<(), LossError> {
        check_bounds(self.ratio_min, self.ratio_max)?;
        match self.dual_clip {
            Some(c) => setting("dual_clip", c, c > 1.0 && c.is_finite(), "a finite number above 1"),
            None => Ok(()),
        }
    }

    fn needs(&self) -> Needs {
        Needs { old: true, ..Needs::default() }
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| self.token(row.ratio(t), row.advantage(t)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dual_clip: Option<f64>, ratio: f64, advantage: f64, want_loss: f64, want_slope: f64) {
        let term = PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip };
        let got = term.token(ratio, advantage);
        assert!((got.loss - want_loss).abs() < 1e-15, "ρ {ratio} A {advantage}: loss {}", got.loss);
        assert!((got.slope - want_slope).abs() < 1e-15, "ρ {ratio} A {advantage}: slope {}", got.slope);
    }

    #[test]
    fn c10_dual_clip_bounds_a_bad_tokens_loss() {
        check(Some(1.5), 2.0, 2.0, -2.4, 0.0);
        check(Some(1.5), 2.0, -2.0, 3.0, 0.0);
        check(Some(1.5), 0.5, 2.0, -1.0, -1.0);
        // Without it the second one goes on growing.
        check(None, 2.0, -2.0, 4.0, 4.0);
    }

    #[test]
    fn only_the_pessimistic_side_is_clipped() {
        check(None, 0.5, -2.0, 1.6, 0.0);
        check(None, 1.1, 2.0, -2.2, -2.2);
        check(None, 1.2, 2.0, -2.4, -2.4);
        check(None, 1.0, 0.5, -0.5, -0.5);
    }

    #[test]
    fn no_advantage_is_exactly_nothing_at_any_ratio() {
        for ratio in [0.0, 1.0, f64::INFINITY] {
            let got = PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None }.token(ratio, 0.0);
            assert_eq!((got.loss, got.slope), (0.0, 0.0));
        }
    }
}
