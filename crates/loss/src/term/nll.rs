//! Negative log-likelihood: −log π, times the token's weight.
//!
//! Descends the cross-entropy of given, or of chosen, tokens. The advantage is not read.
//!
//! Source: maximum likelihood; the cross-entropy every language model is trained with.

use serde::{Deserialize, Serialize};

use super::{Acts, TermGroup, TermRule, TokenTerm, View, each_token};

/// Negative log-likelihood −log π.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nll {}

impl TermRule for Nll {
    fn acts(&self) -> Acts {
        Acts::Everywhere
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| TokenTerm::unclipped(-row.logp(t), -1.0));
    }
}
