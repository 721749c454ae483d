//! Group-relative policy optimisation: an attempt is worth how much better it did than the others at the same task.
//!
//! Formula: A = (r − mean) / (std + `std_eps`) over the graded episodes of a task, the same for each of the episode's
//! sampled tokens; loss −min(ρA, clip(ρ, `ratio_min`, `ratio_max`)·A) with ρ = π/π_old, plus `kl.coefficient` · KL.
//!
//! Source: arXiv:2402.03300 (DeepSeekMath). The paper writes std without saying over n or n − 1; the default here is the
//! sample spread (n − 1), as the common implementations have it. Its reduction is the mean over sequences of token means,
//! `sequence_mean`. It uses a KL (`k3`, in the loss, coefficient 0.04); the default here is none, as in the later work
//! on verifiable rewards (arXiv:2503.14476, arXiv:2503.20783), and saves a pass through the reference. Dr. GRPO is
//! `advantage_std = "none"` with `reduction = "fixed_horizon"`.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `advantage_std` | `sample` | `population`, `sample` or `none`: what the centred reward is divided by |
//! | `std_eps` | 1e-6 | added to the spread |
//! | `ratio_min`, `ratio_max` | 0.8, 1.2 | bounds of the ratio, absolute |
//! | `dual_clip` | off | the ratio above which a bad token is left alone too |
//! | `reduction` | `sequence_mean` | `token_mean`, `sequence_mean`, `sequence_sum`, `fixed_horizon` (with `horizon`) or `sum` |
//! | `kl.coefficient`, `kl.estimator`, `kl.place` | 0, `k3`, `loss` | pull towards the weights the run began with |
//! | `entropy.coefficient` | 0 | what entropy is worth |
//! | `epochs`, `minibatch_groups` | 1, all | updates a step: passes, and groups in each update |
//! | `correction.rule` | `none` | `token_tis` (with `cap`, 2): weigh tokens that an older policy sampled |
//! | `flat` | `keep` | `keep` or `drop`: whether a KL or the entropy in the loss acts on groups without a spread too |
//! | `truncated` | `keep` | `keep`, `mask` or `penalise` (by `truncated_penalty`, 1 point) attempts a limit cut off |
//!
//! Needs: rewards, at least two graded episodes a task; reference log-probabilities with a KL; a pass through the policy
//! when the step begins with a correction.
//!
//! Watch: the share of groups without a spread (they teach nothing), entropy, `clip_share`. The loss is near 0 at a ratio
//! of 1 because advantages are centred; `dlogp_norm` and `advantage_abs_mean` say whether anything is learned.

use episode::Group;
use loss::{Correction, Loss, PolicyGradient, Term};
use serde::{Deserialize, Serialize};

use crate::advantage::{all_equal, centred};
use crate::assemble::{Assembly, Worth, requests, rewards};
use crate::settings::{loss, setting};
use crate::{
    Admission, AlgoError, Algorithm, Answers, Dropped, EntropySettings, Flat, KlSettings, Plan, ReductionName,
    Reference, Request, Signals, Spread, Truncated, Why,
};

/// What the spread is added to when nothing is set.
const STD_EPS: f64 = 1e-6;
/// Episodes it takes for a comparison.
const NEEDED: usize = 2;

/// The settings of GRPO; see the [module](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpo {
    /// What the centred reward is divided by.
    pub advantage_std: Spread,
    /// Added to the spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std_eps: Option<f64>,
    /// Lower bound of the ratio.
    pub ratio_min: f64,
    /// Upper bound of the ratio.
    pub ratio_max: f64,
    /// The ratio above which a bad token is left alone too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// How tokens become one number.
    pub reduction: ReductionName,
    /// The constant of `fixed_horizon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u32>,
    /// Pull towards the weights the run began with.
    pub kl: KlSettings,
    /// What entropy is worth.
    pub entropy: EntropySettings,
    /// Passes over a step.
    pub epochs: u32,
    /// Groups in an update; all of them when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minibatch_groups: Option<u32>,
    /// What a token sampled by an older policy weighs.
    pub correction: Correction,
    /// What becomes of groups whose rewards are all equal.
    pub flat: Flat,
    /// What becomes of attempts that a limit cut off.
    pub truncated: Truncated,
    /// Reward points they pay under `penalise`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_penalty: Option<f64>,
}

impl Default for Grpo {
    fn default() -> Self {
        Grpo {
            advantage_std: Spread::Sample,
            std_eps: None,
            ratio_min: 0.8,
            ratio_max: 1.2,
            dual_clip: None,
            reduction: ReductionName::SequenceMean,
            horizon: None,
            kl: KlSettings::default(),
            entropy: EntropySettings::default(),
            epochs: 1,
            minibatch_groups: None,
            correction: Correction::default(),
            flat: Flat::Keep,
            truncated: Truncated::Keep,
            truncated_penalty: None,
        }
    }
}

impl Grpo {
    fn leaves_out(&self, why: Option<&Why>) -> bool {
        self.flat == Flat::Drop && why == Some(&Why::NoSpread)
    }

    fn loss(&self) -> Result<Loss, AlgoError> {
        let term = PolicyGradient { ratio_min: self.ratio_min, ratio_max: self.ratio_max, dual_clip: self.dual_clip };
        let reduction = self.reduction.with(self.horizon)?;
        loss(Term::PolicyGradient(term), reduction, &self.kl, &self.entropy, &self.correction)
    }
}

impl Algorithm for Grpo {
    fn resolve(&mut self) -> Result<(), AlgoError> {
        match (self.advantage_std, self.std_eps) {
            (Spread::None, Some(_)) => {
                let with = "`advantage_std = \"none\"`".to_owned();
                let instead = "set `advantage_std = \"sample\"`";
                return Err(AlgoError::Unused { key: "std_eps", with, instead });
            }
            (Spread::None, None) => (),
            (_, Some(e)) => setting("std_eps", e, e.is_finite() && e >= 0.0, "a finite number at least 0")?,
            (_, None) => self.std_eps = Some(STD_EPS),
        }
        setting("epochs", f64::from(self.epochs), self.epochs >= 1, "a whole number at least 1")?;
        if let Some(n) = self.minibatch_groups {
            setting("minibatch_groups", f64::from(n), n >= 1, "a whole number at least 1")?;
        }
        let pull = self.kl.active() && !self.kl.in_reward() || self.entropy.coefficient != 0.0;
        if self.flat == Flat::Drop && (!pull || self.kl.in_reward()) {
            let with = "a KL in the reward, or a loss with neither a KL nor the entropy".to_owned();
            let instead = "set `kl.coefficient` with `kl.place = \"loss\"`, or `entropy.coefficient`";
            return Err(AlgoError::Unused { key: "flat", with, instead });
        }
        self.truncated.resolve(&mut self.truncated_penalty)?;
        self.loss().map(|_| ())
    }

    fn check(&self, group_size: usize) -> Result<(), AlgoError> {
        let hint = ", since it compares the attempts at one task; `reinforce` works with 1";
        match group_size >= NEEDED {
            true => Ok(()),
            false => Err(AlgoError::GroupSize { algorithm: "grpo", needed: NEEDED, got: group_size, hint }),
        }
    }

    fn admit(&self, group: &Group) -> Admission {
        match too_few(group) {
            Some(why) => Admission::Drop(why),
            None => Admission::Keep,
        }
    }

    fn requests(&self, groups: &[Group], answers: &Answers) -> Vec<Request> {
        requests(groups, answers, &self.kl, self.correction.needs_forward())
    }

    fn asks_about(&self, group: &Group) -> bool {
        if self.flat == Flat::Keep {
            return true;
        }
        // A KL in the reward, which would have to be asked for first, does not go with `drop`.
        let paid = (self.truncated, self.truncated_penalty);
        let rewards = rewards(std::slice::from_ref(group), &Answers::new(), paid, &self.kl);
        rewards.map_or(true, |all| !self.leaves_out(why_nothing(group, &graded(&all[0])).as_ref()))
    }

    fn reference(&self) -> Option<Reference> {
        self.kl.reference()
    }

    fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError> {
        let all = rewards(groups, answers, (self.truncated, self.truncated_penalty), &self.kl)?;
        let mut dropped = Vec::new();
        let mut worth = Vec::with_capacity(groups.len());
        for (g, (group, rewards)) in groups.iter().zip(&all).enumerate() {
            let graded = graded(rewards);
            let why = why_nothing(group, &graded);
            let left_out = self.leaves_out(why.as_ref());
            dropped.extend(why.map(|why| Dropped { group: g, episode: None, why }));
            if left_out {
                worth.push(vec![None; rewards.len()]);
                continue;
            }
            let epsilon = self.std_eps.unwrap_or(STD_EPS);
            let mut advantages = centred(&graded, self.advantage_std, epsilon).into_iter();
            let worth_of = |(e, reward): (usize, &Option<f64>)| {
                reward.and_then(|_| advantages.next()).map(|advantage| {
                    let masked = self.truncated == Truncated::Mask && Truncated::applies(&group.episodes[e]);
                    Worth { advantage, weight: if masked { 0.0 } else { 1.0 } }
                })
            };
            worth.push(rewards.iter().enumerate().map(worth_of).collect());
        }
        let plan = Plan { epochs: self.epochs, minibatch_groups: self.minibatch_groups };
        Assembly { groups, answers, loss: self.loss()?, plan, given: false, dropped }.finish(&worth)
    }
}

fn graded(rewards: &[Option<f64>]) -> Vec<f64> {
    rewards.iter().flatten().copied().collect()
}

/// Why a group's comparison says nothing, if it does not.
fn why_nothing(group: &Group, graded: &[f64]) -> Option<Why> {
    too_few(group).or_else(|| all_equal(graded).then_some(Why::NoSpread))
}

fn too_few(group: &Group) -> Option<Why> {
    let (got, of) = (group.rewards().len(), group.episodes.len());
    (got < NEEDED).then_some(Why::TooFewGraded { needed: NEEDED, got, of })
}
