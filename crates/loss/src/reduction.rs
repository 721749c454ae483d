//! How the losses of tokens become one number, with denominators of the whole update batch.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::setting;
use crate::{LossError, Pair};

/// How the losses of tokens become one number.
///
/// - Holds: linear in the tokens' losses; the denominator counts every trained token or sequence of the update batch,
///   those without worth or weight included.
/// - Source: sequence mean, arXiv:2402.03300; token mean, arXiv:2503.14476; fixed horizon, arXiv:2503.20783.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reduction {
    /// Sum over tokens, divided by the number of tokens: every token counts the same.
    TokenMean,
    /// Mean over tokens in each sequence, then mean over sequences: every sequence counts the same, so a token of a long
    /// one counts less.
    SequenceMean,
    /// Sum over tokens in each sequence, then mean over sequences: the estimator of the policy gradient as derived.
    SequenceSum,
    /// Sum over tokens, divided by sequences × horizon: like `SequenceSum` up to a constant that keeps the loss's size.
    FixedHorizon {
        /// The constant, usually the limit on sampled tokens.
        horizon: u32,
    },
    /// Sum over tokens; the learning rate then grows with the batch.
    Sum,
    /// Sum over tokens, divided by the number of pairs: the mean over pairs of a term that spreads each pair's loss over its
    /// tokens.
    PairMean,
}

impl Reduction {
    pub(crate) fn check(&self) -> Result<(), LossError> {
        match self {
            Reduction::FixedHorizon { horizon } => {
                setting("horizon", f64::from(*horizon), *horizon >= 1, "a whole number at least 1")
            }
            _ => Ok(()),
        }
    }

    /// Whether the denominator counts pairs.
    pub(crate) fn counts_pairs(&self) -> bool {
        matches!(self, Reduction::PairMean)
    }

    /// What one token's loss is multiplied with, in a sequence with `n_tokens` trained tokens, at least 1.
    pub fn coefficient(&self, totals: &Totals, n_tokens: u64) -> f64 {
        let (tokens, sequences) = (totals.n_tokens as f64, totals.n_sequences as f64);
        match self {
            Reduction::TokenMean => 1.0 / tokens,
            Reduction::SequenceMean => 1.0 / (sequences * n_tokens as f64),
            Reduction::SequenceSum => 1.0 / sequences,
            Reduction::FixedHorizon { horizon } => 1.0 / (sequences * f64::from(*horizon)),
            Reduction::Sum => 1.0,
            // No pair, no loss.
            Reduction::PairMean if totals.n_pairs == 0 => 0.0,
            Reduction::PairMean => 1.0 / totals.n_pairs as f64,
        }
    }
}

/// What the denominators count, over the whole update batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Trained tokens, whatever they weigh.
    pub n_tokens: u64,
    /// Sequences with at least one trained token.
    pub n_sequences: u64,
    /// Pairs with at least one trained token.
    #[serde(default)]
    pub n_pairs: u64,
}

impl Totals {
    /// Counts the sequences of an update batch, by group, each with which of its tokens are trained and its side of a pair.
    pub fn count<'a, G>(groups: impl IntoIterator<Item = G>) -> Self
    where
        G: IntoIterator<Item = (&'a [bool], Option<Pair>)>,
    {
        let mut totals = Totals::default();
        for group in groups {
            let mut pairs = BTreeSet::new();
            for (trained, pair) in group {
                let n = trained.iter().filter(|t| **t).count() as u64;
                totals.n_tokens += n;
                totals.n_sequences += u64::from(n > 0);
                if let (Some(pair), true) = (pair, n > 0) {
                    pairs.insert(pair.index);
                }
            }
            totals.n_pairs += pairs.len() as u64;
        }
        totals
    }
}
