//! What a value head descends.

use serde::{Deserialize, Serialize};

use crate::LossError;
use crate::error::setting;

/// Squared error of the value head, pessimistic about large moves: ½·max((V − R)², (clip(V, V_old ± clip) − R)²).
///
/// Counted at each trained token with the reduction's coefficient and the token's weight, as the policy's loss is, so that
/// one denominator serves both; a correction does not apply, since a value is no ratio of policies.
///
/// - Source: arXiv:1707.06347 and its public implementation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueLoss {
    /// How far a value may move in one step before its error stops counting; absent for no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// How much it counts beside the policy's loss.
    pub coefficient: f64,
}

/// A value's loss, and its derivative by the value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ValueTerm {
    pub(crate) loss: f64,
    pub(crate) slope: f64,
    /// Whether the bound decided the loss.
    pub(crate) clipped: bool,
}

impl ValueLoss {
    pub(crate) fn check(&self) -> Result<(), LossError> {
        let c = self.coefficient;
        setting("value.coefficient", c, c >= 0.0 && c.is_finite(), "a finite number at least 0")?;
        match self.clip {
            Some(clip) => setting("value.clip", clip, clip > 0.0 && clip.is_finite(), "a finite number above 0"),
            None => Ok(()),
        }
    }

    /// The loss at one token, coefficient included.
    pub(crate) fn at(&self, value: f64, old: f64, returns: f64) -> ValueTerm {
        let error = value - returns;
        // Inside the bounds both errors are the same; outside them the bounded one does not depend on the value.
        let bounded = self.clip.map_or(error, |clip| value.clamp(old - clip, old + clip) - returns);
        let clipped = bounded * bounded > error * error;
        let (error, slope) = if clipped { (bounded, 0.0) } else { (error, error) };
        ValueTerm { loss: self.coefficient * 0.5 * error * error, slope: self.coefficient * slope, clipped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(clip: Option<f64>, value: f64, want_loss: f64, want_slope: f64) {
        let got = ValueLoss { clip, coefficient: 0.5 }.at(value, 1.0, 2.0);
        assert_eq!((got.loss, got.slope), (want_loss, want_slope), "clip {clip:?} V {value}");
    }

    /// V_old = 1, R = 2, coefficient ½.
    #[test]
    fn a_value_that_moved_past_its_bound_is_charged_at_the_bound() {
        check(None, 1.75, 0.25 * 0.0625, -0.125);
        check(Some(0.5), 1.25, 0.25 * 0.5625, -0.375);
        // Towards the return, past the bound: the error at the bound counts, and pushes nothing.
        check(Some(0.5), 1.75, 0.25 * 0.25, 0.0);
        // Away from it, past the bound: the whole error counts.
        check(Some(0.5), 0.0, 0.25 * 4.0, -1.0);
        // Beyond the return by more than the bound is short of it.
        check(Some(0.5), 3.0, 0.25, 0.5);
    }
}
