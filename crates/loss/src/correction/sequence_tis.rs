//! Sequence-level truncated importance sampling: w = min(Π π_old/μ, cap), the product over a sequence's trained tokens.
//!
//! The exact weight of a whole sequence, so without the bias of a token's own ratio; it varies more the longer the sequence
//! is, and short of the cap a long one may weigh next to nothing.
//!
//! Source: truncation, E. L. Ionides, "Truncated importance sampling", J. Comput. Graph. Stat. 17, 2008; over sequences,
//! J. Liu et al., "When speed kills stability: demystifying RL collapse from the training-inference mismatch", 2025.

use serde::{Deserialize, Serialize};

use super::{CorrectionRule, by_sequence, check_cap};
use crate::exp::exp;
use crate::{LossError, Row};

/// Sequence-level truncated importance sampling: min(Π π_old/μ, cap).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceTis {
    /// The most a sequence may weigh.
    #[serde(default = "default_cap")]
    pub cap: f64,
}

fn default_cap() -> f64 {
    2.0
}

impl CorrectionRule for SequenceTis {
    fn check(&self) -> Result<(), LossError> {
        check_cap(self.cap)
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        by_sequence(rows, |gap| gap, |sum, _| exp(sum).min(self.cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correction::tests::{C12, check};

    #[test]
    fn c12_the_product_of_a_sequence_is_truncated_at_the_cap() {
        check(&SequenceTis { cap: 2.0 }, C12, [0.367_879_44; 3]);
        let turned = (C12.1, C12.0);
        check(&SequenceTis { cap: 2.0 }, turned, [2.0; 3]);
        check(&SequenceTis { cap: 3.0 }, turned, [std::f64::consts::E; 3]);
    }
}
