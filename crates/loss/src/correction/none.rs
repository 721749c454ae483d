//! No correction: every token weighs 1.
//!
//! Right when the policy that samples is the policy that learns. Otherwise the ratio π/μ is left to the term's clipping.
//!
//! Source: nothing to cite; the setting every other correction is compared with.

use serde::{Deserialize, Serialize};

use super::CorrectionRule;
use crate::Row;

/// No correction: every token weighs 1.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uncorrected {}

impl CorrectionRule for Uncorrected {
    fn needs_old(&self) -> bool {
        false
    }

    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>> {
        rows.iter().map(|row| vec![1.0; row.trained.len()]).collect()
    }
}
