//! REINFORCE: a token is worth the reward of its episode.
//!
//! Formula: A = r − b for each of the episode's sampled tokens, with b = 0, or the mean reward of the step's graded
//! episodes (`baseline = "batch_mean"`); loss −A · log π, plus `kl.coefficient` · KL.
//!
//! Source: R. J. Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning",
//! Machine Learning 8, 1992. Its estimate is the sum over an episode's tokens, averaged over episodes: `sequence_sum`.
//! The batch mean holds the episode's own reward, which scales the expected gradient by (n − 1)/n.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `baseline` | `none` | `none` or `batch_mean`: what comes off each reward |
//! | `reduction` | `sequence_sum` | `token_mean`, `sequence_mean`, `sequence_sum`, `fixed_horizon` (with `horizon`) or `sum` |
//! | `kl.coefficient`, `kl.estimator`, `kl.place` | 0, `k3`, `loss` | pull towards the weights the run began with |
//! | `entropy.coefficient` | 0 | what entropy is worth |
//! | `correction.rule` | `none` | `token_tis` (with `cap`, 2): weigh tokens that an older policy sampled |
//! | `truncated` | `keep` | `keep`, `mask` or `penalise` (by `truncated_penalty`, 1 point) attempts a limit cut off |
//!
//! Needs: rewards; works with one attempt a task. One update a step, since nothing in it bounds a second one.
//!
//! Watch: `dlogp_norm`, which is noisy without a baseline; the gradient's size, which grows with length under
//! `sequence_sum`.

use episode::Group;
use loss::{Correction, Loss, Term};
use serde::{Deserialize, Serialize};

use crate::advantage::{all_equal, mean};
use crate::assemble::{Assembly, Worth, requests, rewards};
use crate::settings::loss;
use crate::{
    Admission, AlgoError, Algorithm, Answers, EntropySettings, KlSettings, Plan, ReductionName, Reference, Request,
    Signals, Truncated, Why,
};

/// What comes off each reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Nothing.
    None,
    /// The mean reward of the step's graded episodes; when they are all the same every advantage is exactly 0.
    BatchMean,
}

/// The settings of REINFORCE; see the [module](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reinforce {
    /// What comes off each reward.
    pub baseline: Baseline,
    /// How tokens become one number.
    pub reduction: ReductionName,
    /// The constant of `fixed_horizon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u32>,
    /// Pull towards the weights the run began with.
    pub kl: KlSettings,
    /// What entropy is worth.
    pub entropy: EntropySettings,
    /// What a token sampled by an older policy weighs.
    pub correction: Correction,
    /// What becomes of attempts that a limit cut off.
    pub truncated: Truncated,
    /// Reward points they pay under `penalise`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_penalty: Option<f64>,
}

impl Default for Reinforce {
    fn default() -> Self {
        Reinforce {
            baseline: Baseline::None,
            reduction: ReductionName::SequenceSum,
            horizon: None,
            kl: KlSettings::default(),
            entropy: EntropySettings::default(),
            correction: Correction::default(),
            truncated: Truncated::Keep,
            truncated_penalty: None,
        }
    }
}

impl Reinforce {
    fn loss(&self) -> Result<Loss, AlgoError> {
        let reduction = self.reduction.with(self.horizon)?;
        loss(Term::Reinforce(loss::Reinforce {}), reduction, &self.kl, &self.entropy, &self.correction)
    }
}

impl Algorithm for Reinforce {
    fn resolve(&mut self) -> Result<(), AlgoError> {
        self.truncated.resolve(&mut self.truncated_penalty)?;
        self.loss().map(|_| ())
    }

    fn check(&self, group_size: usize) -> Result<(), AlgoError> {
        match group_size {
            0 => Err(AlgoError::GroupSize { algorithm: "reinforce", needed: 1, got: 0, hint: "" }),
            _ => Ok(()),
        }
    }

    fn admit(&self, group: &Group) -> Admission {
        match group.rewards().len() {
            0 => Admission::Drop(Why::TooFewGraded { needed: 1, got: 0, of: group.episodes.len() }),
            _ => Admission::Keep,
        }
    }

    fn requests(&self, groups: &[Group], answers: &Answers) -> Vec<Request> {
        requests(groups, answers, &self.kl, self.correction.needs_forward())
    }

    fn reference(&self) -> Option<Reference> {
        self.kl.reference()
    }

    fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError> {
        let all = rewards(groups, answers, (self.truncated, self.truncated_penalty), &self.kl)?;
        let graded: Vec<f64> = all.iter().flatten().flatten().copied().collect();
        let (equal, mean) = (all_equal(&graded), mean(&graded));
        let advantage = |reward: f64| match self.baseline {
            Baseline::None => reward,
            Baseline::BatchMean if equal => 0.0,
            Baseline::BatchMean => reward - mean,
        };
        let mut worth = Vec::with_capacity(groups.len());
        for (group, rewards) in groups.iter().zip(&all) {
            let worth_of = |(e, reward): (usize, &Option<f64>)| {
                reward.map(|reward| {
                    let masked = self.truncated == Truncated::Mask && Truncated::applies(&group.episodes[e]);
                    Worth { advantage: advantage(reward), weight: if masked { 0.0 } else { 1.0 } }
                })
            };
            worth.push(rewards.iter().enumerate().map(worth_of).collect());
        }
        let dropped = Vec::new();
        Assembly { groups, answers, loss: self.loss()?, plan: Plan::ONE, given: false, dropped }.finish(&worth)
    }
}
