//! One sequence as the loss sees it.

use serde::{Deserialize, Serialize};

use crate::exp::exp;
use crate::{Loss, LossError};

/// What an algorithm says the tokens of one sequence are worth.
///
/// - Shapes: every list `[T]`, `T` the length of the sequence; entries at tokens that are not trained mean nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// What each token is worth, in units of advantage.
    pub advantage: Vec<f32>,
    /// What each token weighs in the whole loss; 0 leaves it out but keeps it in the denominator.
    pub weight: Vec<f32>,
    /// Where π_old comes from.
    pub old: Old,
    /// Log-probabilities under the reference, where the algorithm asked for them.
    pub logp_ref: Option<Vec<f32>>,
}

/// Where π_old, the policy when the step began, comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Old {
    /// The sampler's recorded log-probabilities: exact when the policy has not moved since, and the plain importance
    /// ratio π/μ when it has.
    Recorded,
    /// A forward pass at the start of the step, `[T]`: what a correction by π_old/μ needs.
    Forward(Vec<f32>),
    /// No policy sampled these tokens, they were given: there is no ratio, and what is recorded is compared with nothing.
    Given,
}

/// One sequence as the loss sees it; only its trained positions are read.
///
/// - Shapes: every list `[T]`.
/// - Units: log-probabilities and entropy in nats.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Which tokens are trained.
    pub trained: &'a [bool],
    /// Under π, the policy as it is now.
    pub logp: &'a [f32],
    /// Under π_old, the policy when the step began; absent when the tokens were given.
    pub logp_old: Option<&'a [f32]>,
    /// Under μ, as the sampler recorded it; absent when the tokens were given.
    pub logp_sampler: Option<&'a [f32]>,
    /// What each token is worth.
    pub advantage: &'a [f32],
    /// What each token weighs.
    pub weight: &'a [f32],
    /// Under the reference.
    pub logp_ref: Option<&'a [f32]>,
    /// Entropy of π where each token was drawn.
    pub entropy: Option<&'a [f32]>,
}

impl<'a> Row<'a> {
    /// A row from what the policy computed, what the sampler recorded and what an algorithm said.
    pub fn new(
        trained: &'a [bool],
        logp: &'a [f32],
        recorded: &'a [f32],
        entropy: Option<&'a [f32]>,
        signal: &'a Signal,
    ) -> Self {
        let (logp_old, logp_sampler) = match &signal.old {
            Old::Recorded => (Some(recorded), Some(recorded)),
            Old::Forward(old) => (Some(old.as_slice()), Some(recorded)),
            Old::Given => (None, None),
        };
        Row {
            trained,
            logp,
            logp_old,
            logp_sampler,
            advantage: &signal.advantage,
            weight: &signal.weight,
            logp_ref: signal.logp_ref.as_deref(),
            entropy,
        }
    }

    /// Number of trained tokens.
    pub fn n_trained(&self) -> u64 {
        self.trained.iter().filter(|t| **t).count() as u64
    }

    /// Positions of the trained tokens, in order.
    pub fn trained_positions(&self) -> impl Iterator<Item = usize> + use<'a> {
        self.trained.iter().enumerate().filter(|(_, trained)| **trained).map(|(t, _)| t)
    }

    /// π/π_old at a trained token, exactly 1 when the two log-probabilities are equal.
    pub(crate) fn ratio(&self, t: usize) -> f64 {
        let old = self.logp_old.expect("a term that reads the ratio declares that it needs π_old, which was checked");
        exp(f64::from(self.logp[t]) - f64::from(old[t]))
    }

    /// Checks that what the loss reads is there, has one length, and is finite at every trained token.
    pub(crate) fn check(&self, sequence: usize, loss: &Loss) -> Result<(), LossError> {
        let needed = self.trained.len();
        let old = (self.logp_old, loss.needs_old());
        let sampler = (self.logp_sampler, loss.correction.rule().needs_old());
        let lists = [
            ("logp", Some(self.logp), true),
            ("logp_old", old.0, old.1),
            ("logp_sampler", sampler.0, sampler.1),
            ("advantage", Some(self.advantage), true),
            ("weight", Some(self.weight), true),
            ("logp_ref", self.logp_ref, loss.needs_ref()),
            ("entropy", self.entropy, loss.needs_entropy()),
        ];
        for (list, values, required) in lists {
            let Some(values) = values else {
                if required && self.n_trained() > 0 {
                    return Err(LossError::Missing { list, sequence });
                }
                continue;
            };
            if values.len() != needed {
                return Err(LossError::Length { list, sequence, got: values.len(), needed });
            }
            if let Some(token) = self.trained_positions().find(|t| !values[*t].is_finite()) {
                return Err(LossError::NotFinite { what: list, sequence, token, value: f64::from(values[token]) });
            }
        }
        Ok(())
    }
}
