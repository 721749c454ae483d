//! Corrections: what a token weighs when an older policy, or another engine, sampled it. One file each.
//!
//! A correction sees all rows of a group at once, so that one may look at a token, a sequence or a group. One that looks
//! at a whole step is chosen once, when the step begins, and arrives as weights in the signal.

use crate::{LossError, Row};

table! {
    /// What a token sampled by an older policy weighs.
    Correction, rule CorrectionRule, tag "rule", in "correction", {
        "none" => none::Uncorrected,
        "token_tis" => token_tis::TokenTis,
    }
}

impl Default for Correction {
    fn default() -> Self {
        Correction::Uncorrected(Uncorrected {})
    }
}

/// What a correction is.
pub(crate) trait CorrectionRule {
    /// Checks every range.
    fn check(&self) -> Result<(), LossError> {
        Ok(())
    }

    /// Whether it reads log-probabilities under π_old and as recorded, which must then be two passes.
    fn needs_old(&self) -> bool {
        true
    }

    /// The weight of each trained token, `[row][T]`; what it holds elsewhere is not read.
    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>>;
}

impl Correction {
    /// Whether π_old must come from a forward pass at the start of the step, since the rule compares it with what was
    /// recorded.
    pub fn needs_forward(&self) -> bool {
        self.rule().needs_old()
    }
}
