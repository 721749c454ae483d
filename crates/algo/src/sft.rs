//! Supervised fine-tuning: every given token is worth the same.
//!
//! Formula: loss −log π on the tokens marked as sampled, which are those the policy would have said, its stop token
//! included. No reward is read beyond the episode being graded at all.
//!
//! Source: maximum likelihood on demonstrations, as in arXiv:2203.02155, section 3.5.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `reduction` | `token_mean` | `token_mean`, `sequence_mean`, `sequence_sum`, `fixed_horizon` (with `horizon`) or `sum` |
//!
//! Needs: episodes whose target tokens are marked as sampled; what is recorded as their log-probability is not read.
//!
//! Watch: the loss, here a true one; held-out accuracy, since it goes on falling after that has turned.

use episode::Group;
use loss::{Correction, Loss, Nll, Term};
use serde::{Deserialize, Serialize};

use crate::assemble::{Assembly, Worth, rewards};
use crate::settings::loss;
use crate::{
    Admission, AlgoError, Algorithm, Answers, EntropySettings, KlSettings, Plan, ReductionName, Request, Signals,
    Truncated, Why,
};

/// The settings of supervised fine-tuning; see the [module](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sft {
    /// How tokens become one number.
    pub reduction: ReductionName,
    /// The constant of `fixed_horizon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u32>,
}

impl Default for Sft {
    fn default() -> Self {
        Sft { reduction: ReductionName::TokenMean, horizon: None }
    }
}

impl Sft {
    fn loss(&self) -> Result<Loss, AlgoError> {
        let (kl, entropy) = (KlSettings::default(), EntropySettings::default());
        let reduction = self.reduction.with(self.horizon)?;
        loss(Term::Nll(Nll {}), reduction, &kl, &entropy, &Correction::default())
    }
}

impl Algorithm for Sft {
    fn resolve(&mut self) -> Result<(), AlgoError> {
        self.loss().map(|_| ())
    }

    fn check(&self, group_size: usize) -> Result<(), AlgoError> {
        match group_size {
            0 => Err(AlgoError::GroupSize { algorithm: "sft", needed: 1, got: 0, hint: "" }),
            _ => Ok(()),
        }
    }

    fn admit(&self, group: &Group) -> Admission {
        match group.rewards().len() {
            0 => Admission::Drop(Why::TooFewGraded { needed: 1, got: 0, of: group.episodes.len() }),
            _ => Admission::Keep,
        }
    }

    fn requests(&self, _groups: &[Group], _answers: &Answers) -> Vec<Request> {
        Vec::new()
    }

    fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError> {
        let all = rewards(groups, answers, (Truncated::Keep, None), &KlSettings::default())?;
        let each = |reward: &Option<f64>| reward.map(|_| Worth { advantage: 1.0, weight: 1.0 });
        let worth: Vec<Vec<_>> = all.iter().map(|rewards| rewards.iter().map(each).collect()).collect();
        let dropped = Vec::new();
        Assembly { groups, answers, loss: self.loss()?, plan: Plan::ONE, given: true, dropped }.finish(&worth)
    }
}
