//! The score function: −A · log π.
//!
//! There is no ratio in it: for tokens of an older policy a correction supplies the importance weight.
//!
//! Source: R. J. Williams, "Simple statistical gradient-following algorithms", Machine Learning 8, 1992.

use serde::{Deserialize, Serialize};

use super::{Clip, TermRow, TermRule, TokenTerm, each_token};
use crate::Row;

/// The score function −A · log π.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reinforce {}

impl TermRule for Reinforce {
    fn group(&self, rows: &[Row<'_>], scale: &[Vec<f64>], out: &mut [TermRow]) {
        each_token(rows, scale, out, |row, t| {
            let advantage = f64::from(row.advantage[t]);
            let loss = if advantage == 0.0 { 0.0 } else { -advantage * f64::from(row.logp[t]) };
            TokenTerm { loss, slope: -advantage, clip: Clip::No }
        });
    }
}
