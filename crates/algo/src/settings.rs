//! Settings that several algorithms have, each with one meaning.

use episode::{Episode, StopReason};
use loss::{Correction, Estimator, Kl, Loss, Reduction, Term};
use serde::{Deserialize, Serialize};

use crate::{AlgoError, Reference};

/// Pull towards a reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KlSettings {
    /// How strong it is; 0 for none, and then no reference is needed.
    pub coefficient: f64,
    /// Which estimate. In the loss `k2` descends KL(π‖ref), `k3` descends KL(ref‖π), and `k1` descends nothing on average;
    /// in the reward all three stand for KL(π‖ref).
    pub estimator: Estimator,
    /// Where it goes.
    pub place: KlPlace,
}

impl Default for KlSettings {
    fn default() -> Self {
        KlSettings { coefficient: 0.0, estimator: Estimator::K3, place: KlPlace::Loss }
    }
}

impl KlSettings {
    pub(crate) fn check(&self) -> Result<(), AlgoError> {
        let c = self.coefficient;
        setting("kl.coefficient", c, c.is_finite() && c >= 0.0, "a finite number at least 0")
    }

    /// Whether it has an effect.
    pub(crate) fn active(&self) -> bool {
        self.coefficient != 0.0
    }

    pub(crate) fn reference(&self) -> Option<Reference> {
        self.active().then_some(Reference::Frozen)
    }

    pub(crate) fn in_reward(&self) -> bool {
        self.active() && self.place == KlPlace::Reward
    }

    pub(crate) fn in_loss(&self) -> Option<Kl> {
        let here = self.active() && self.place == KlPlace::Loss;
        here.then_some(Kl { estimator: self.estimator, coefficient: self.coefficient })
    }
}

/// Where a KL goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlPlace {
    /// Into each token's loss.
    Loss,
    /// Off the episode's reward, summed over its tokens, before any statistic: from π_old, so that it is a number and not
    /// differentiated.
    Reward,
}

/// What entropy is worth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EntropySettings {
    /// Taken off each token's loss, times the entropy there; 0 for none.
    pub coefficient: f64,
}

/// Which spread divides an advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Root of the squares' sum over n.
    Population,
    /// Root of the squares' sum over n − 1.
    Sample,
    /// None: the advantage stays in reward points.
    None,
}

/// What becomes of a group whose rewards are all equal, where a KL or the entropy is in the loss; without them it carries no
/// signal anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flat {
    /// The KL and the entropy act on it.
    Keep,
    /// It is left out, and nothing is computed for it.
    Drop,
}

/// What becomes of an episode that was cut off by a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncated {
    /// It is treated like every other.
    Keep,
    /// Its tokens weigh 0; its reward stays in the group's statistics and its tokens in the denominator.
    Mask,
    /// `truncated_penalty` reward points, 1 unless set, come off its reward before any statistic.
    Penalise,
}

impl Truncated {
    fn word(self) -> &'static str {
        match self {
            Truncated::Keep => "keep",
            Truncated::Mask => "mask",
            Truncated::Penalise => "penalise",
        }
    }

    /// Whether a limit cut the episode off. A guard rule that ended it did not: what the policy tried is its own doing, and
    /// masking would hide it from learning.
    pub(crate) fn applies(episode: &Episode) -> bool {
        use StopReason::{Context, Deadline, Length, Turns};
        matches!(episode.stop, Length | Context | Turns | Deadline)
    }

    /// Fills in the penalty, or refuses one that does nothing.
    pub(crate) fn resolve(self, penalty: &mut Option<f64>) -> Result<(), AlgoError> {
        match (self, *penalty) {
            (Truncated::Penalise, None) => *penalty = Some(1.0),
            (Truncated::Penalise, Some(p)) => {
                setting("truncated_penalty", p, p.is_finite() && p > 0.0, "a finite number above 0")?;
            }
            (_, None) => (),
            (_, Some(_)) => {
                return Err(AlgoError::Unused {
                    key: "truncated_penalty",
                    with: format!("`truncated = \"{}\"`", self.word()),
                    instead: "set `truncated = \"penalise\"`",
                });
            }
        }
        Ok(())
    }
}

/// The name of a reduction; see [`loss::Reduction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReductionName {
    /// Sum over tokens by number of tokens.
    TokenMean,
    /// Mean over sequences of token means.
    SequenceMean,
    /// Mean over sequences of token sums.
    SequenceSum,
    /// Sum over tokens by sequences × `horizon`.
    FixedHorizon,
    /// Sum over tokens.
    Sum,
}

impl ReductionName {
    fn word(self) -> &'static str {
        match self {
            ReductionName::TokenMean => "token_mean",
            ReductionName::SequenceMean => "sequence_mean",
            ReductionName::SequenceSum => "sequence_sum",
            ReductionName::FixedHorizon => "fixed_horizon",
            ReductionName::Sum => "sum",
        }
    }

    /// The reduction, with its horizon if it has one.
    ///
    /// - Errors: [`AlgoError::Needed`] without the horizon it needs, [`AlgoError::Unused`] with one it does not.
    pub(crate) fn with(self, horizon: Option<u32>) -> Result<Reduction, AlgoError> {
        let with = || format!("`reduction = \"{}\"`", self.word());
        let reduction = match (self, horizon) {
            (ReductionName::FixedHorizon, Some(horizon)) => return Ok(Reduction::FixedHorizon { horizon }),
            (ReductionName::FixedHorizon, None) => return Err(AlgoError::Needed { key: "horizon", with: with() }),
            (_, Some(_)) => {
                let instead = "set `reduction = \"fixed_horizon\"`";
                return Err(AlgoError::Unused { key: "horizon", with: with(), instead });
            }
            (ReductionName::TokenMean, None) => Reduction::TokenMean,
            (ReductionName::SequenceMean, None) => Reduction::SequenceMean,
            (ReductionName::SequenceSum, None) => Reduction::SequenceSum,
            (ReductionName::Sum, None) => Reduction::Sum,
        };
        Ok(reduction)
    }
}

/// A checked loss from what an algorithm was set to.
pub(crate) fn loss(
    term: Term,
    reduction: Reduction,
    kl: &KlSettings,
    entropy: &EntropySettings,
    correction: &Correction,
) -> Result<Loss, AlgoError> {
    kl.check()?;
    let loss = Loss {
        term,
        reduction,
        kl: kl.in_loss(),
        entropy_coefficient: entropy.coefficient,
        correction: correction.clone(),
        value: None,
    };
    loss.check()?;
    Ok(loss)
}

pub(crate) fn setting(key: &'static str, got: f64, ok: bool, needed: &'static str) -> Result<(), AlgoError> {
    if ok { Ok(()) } else { Err(AlgoError::Setting { key, got: got.to_string(), needed }) }
}
