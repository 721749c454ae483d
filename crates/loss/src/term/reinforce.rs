//! The score function: −A · log π.
//!
//! There is no ratio in it: for tokens of an older policy a correction supplies the importance weight.
//!
//! Source: R. J. Williams, "Simple statistical gradient-following algorithms", Machine Learning 8, 1992.

use serde::{Deserialize, Serialize};

use super::{TermGroup, TermRule, TokenTerm, View, each_token};

/// The score function −A · log π.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reinforce {}

impl TermRule for Reinforce {
    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| match row.advantage(t) {
            0.0 => TokenTerm::NOTHING,
            advantage => TokenTerm::unclipped(-advantage * row.logp(t), -advantage),
        });
    }
}
