//! Negative log-likelihood: −log π, times the token's weight.
//!
//! Descends the cross-entropy of given, or of chosen, tokens. The advantage is not read.
//!
//! Source: maximum likelihood; the cross-entropy every language model is trained with.

use serde::{Deserialize, Serialize};

use super::{Clip, TermRow, TermRule, TokenTerm, each_token};
use crate::Row;

/// Negative log-likelihood −log π.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nll {}

impl TermRule for Nll {
    fn uses_advantage(&self) -> bool {
        false
    }

    fn group(&self, rows: &[Row<'_>], scale: &[Vec<f64>], out: &mut [TermRow]) {
        each_token(rows, scale, out, |row, t| TokenTerm { loss: -f64::from(row.logp[t]), slope: -1.0, clip: Clip::No });
    }
}
