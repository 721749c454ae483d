//! Settings that several algorithms have, each with one meaning; [`crate::shared`] puts them into an algorithm's own.

use episode::{Episode, StopReason};
use loss::{Estimator, Kl, Reduction};
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
    ///
    /// Absent only until the algorithm's own default is filled in, as is the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<Estimator>,
    /// Where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<KlPlace>,
    /// Which weights it pulls towards.
    pub reference: ReferenceName,
    /// The share of the way that an `ema` reference moves after each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_rate: Option<f64>,
    /// Steps between two takings of an `every_n` reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
}

impl Default for KlSettings {
    fn default() -> Self {
        KlSettings {
            coefficient: 0.0,
            estimator: None,
            place: None,
            reference: ReferenceName::Frozen,
            ema_rate: None,
            every: None,
        }
    }
}

impl KlSettings {
    /// Fills in an algorithm's defaults, and refuses what does not go together.
    pub(crate) fn resolve(&mut self, place: KlPlace, estimator: Estimator) -> Result<(), AlgoError> {
        self.place.get_or_insert(place);
        self.estimator.get_or_insert(estimator);
        let c = self.coefficient;
        setting("kl.coefficient", c, c.is_finite() && c >= 0.0, "a finite number at least 0")?;
        let with = || format!("`kl.reference = \"{}\"`", self.reference.word());
        match (self.reference, self.ema_rate) {
            (ReferenceName::Ema, None) => return Err(AlgoError::Needed { key: "kl.ema_rate", with: with() }),
            (ReferenceName::Ema, Some(rate)) => rate_setting("kl.ema_rate", rate)?,
            (_, Some(_)) => {
                let instead = "set `kl.reference = \"ema\"`";
                return Err(AlgoError::Unused { key: "kl.ema_rate", with: with(), instead });
            }
            (_, None) => (),
        }
        match (self.reference, self.every) {
            (ReferenceName::EveryN, None) => return Err(AlgoError::Needed { key: "kl.every", with: with() }),
            (ReferenceName::EveryN, Some(n)) => {
                setting("kl.every", n as f64, n >= 1, "a whole number at least 1")?;
            }
            (_, Some(_)) => {
                let instead = "set `kl.reference = \"every_n\"`";
                return Err(AlgoError::Unused { key: "kl.every", with: with(), instead });
            }
            (_, None) => (),
        }
        if !self.active() && self.reference != ReferenceName::Frozen {
            let (with, instead) = ("`kl.coefficient = 0`".to_owned(), "set `kl.coefficient`");
            return Err(AlgoError::Unused { key: "kl.reference", with, instead });
        }
        Ok(())
    }

    pub(crate) fn estimator(&self) -> Estimator {
        self.estimator.unwrap_or(Estimator::K3)
    }

    /// Whether it has an effect.
    pub(crate) fn active(&self) -> bool {
        self.coefficient != 0.0
    }

    pub(crate) fn reference(&self) -> Option<Reference> {
        let reference = match self.reference {
            ReferenceName::Base => Reference::Base,
            ReferenceName::Frozen => Reference::Frozen,
            ReferenceName::Ema => Reference::Ema(self.ema_rate.unwrap_or_default()),
            ReferenceName::EveryN => Reference::EveryN(self.every.unwrap_or(1)),
        };
        self.active().then_some(reference)
    }

    pub(crate) fn in_reward(&self) -> bool {
        self.active() && self.place == Some(KlPlace::Reward)
    }

    pub(crate) fn in_loss(&self) -> Option<Kl> {
        let here = self.active() && !self.in_reward();
        here.then_some(Kl { estimator: self.estimator(), coefficient: self.coefficient })
    }
}

/// Where a KL goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlPlace {
    /// Into each token's loss.
    Loss,
    /// Off the reward, from π_old, so that it is a number and not differentiated: summed over an episode's tokens before any
    /// statistic, or token by token where tokens have rewards of their own.
    Reward,
}

/// The name of a reference's weights; see [`Reference`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReferenceName {
    /// The model's own, whatever checkpoint the run began with.
    Base,
    /// Those the run began with.
    Frozen,
    /// After each step they move the share `ema_rate` of the way to the policy.
    Ema,
    /// The policy's, taken anew `every` so many steps.
    EveryN,
}

impl ReferenceName {
    fn word(self) -> &'static str {
        match self {
            ReferenceName::Base => "base",
            ReferenceName::Frozen => "frozen",
            ReferenceName::Ema => "ema",
            ReferenceName::EveryN => "every_n",
        }
    }
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

impl Spread {
    /// What the spread is added to when nothing is set.
    pub(crate) const EPS: f64 = 1e-6;

    /// Fills in what is added to the spread, or refuses one that does nothing.
    pub(crate) fn resolve(self, eps: &mut Option<f64>) -> Result<(), AlgoError> {
        match (self, *eps) {
            (Spread::None, Some(_)) => {
                let with = "`advantage_std = \"none\"`".to_owned();
                let instead = "set `advantage_std = \"sample\"`";
                return Err(AlgoError::Unused { key: "std_eps", with, instead });
            }
            (Spread::None, None) => (),
            (_, Some(e)) => setting("std_eps", e, e.is_finite() && e >= 0.0, "a finite number at least 0")?,
            (_, None) => *eps = Some(Self::EPS),
        }
        Ok(())
    }
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
        use StopReason::{Calls, Context, Deadline, Length, Turns};
        matches!(episode.stop, Length | Context | Turns | Deadline | Calls)
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

/// What comes off the reward of a response that comes near a limit on its length, truncated or not: nothing up to `limit` −
/// `buffer` sampled tokens, then linearly more, up to `factor` at the limit.
///
/// - Source: arXiv:2503.14476, section 3.4.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overlong {
    /// Sampled tokens at which the whole penalty is reached; absent for no penalty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Tokens before the limit over which it grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u32>,
    /// Reward points at the limit; 1 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

impl Overlong {
    /// Fills in the factor, or refuses what does not go together.
    pub(crate) fn resolve(&mut self) -> Result<(), AlgoError> {
        let needed = |key, with: &str| Err(AlgoError::Needed { key, with: with.to_owned() });
        let (limit, buffer) = match (self.limit, self.buffer, self.factor) {
            (None, None, None) => return Ok(()),
            (None, Some(_), _) => return needed("overlong.limit", "`overlong.buffer`"),
            (None, None, Some(_)) => return needed("overlong.limit", "`overlong.factor`"),
            (Some(_), None, _) => return needed("overlong.buffer", "`overlong.limit`"),
            (Some(limit), Some(buffer), _) => (limit, buffer),
        };
        let fits = (1..=limit).contains(&buffer);
        setting("overlong.buffer", f64::from(buffer), fits, "a whole number from 1 to `overlong.limit`")?;
        let factor = *self.factor.get_or_insert(1.0);
        setting("overlong.factor", factor, factor.is_finite() && factor > 0.0, "a finite number above 0")
    }

    /// What comes off the reward of a response of so many sampled tokens.
    pub(crate) fn penalty(&self, n_sampled: usize) -> f64 {
        let (Some(limit), Some(buffer)) = (self.limit, self.buffer) else { return 0.0 };
        let over = n_sampled as f64 - (f64::from(limit) - f64::from(buffer));
        let share = (over / f64::from(buffer)).clamp(0.0, 1.0);
        // Selected, so that a short response pays exactly 0 and not −0.
        if share > 0.0 { share * self.factor.unwrap_or(1.0) } else { 0.0 }
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
    pub(crate) fn word(self) -> &'static str {
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

pub(crate) fn setting(key: &'static str, got: f64, ok: bool, needed: &'static str) -> Result<(), AlgoError> {
    if ok { Ok(()) } else { Err(AlgoError::Setting { key, got: got.to_string(), needed }) }
}

/// A share that something moves, decays or is discounted by.
pub(crate) fn rate_setting(key: &'static str, got: f64) -> Result<(), AlgoError> {
    setting(key, got, got > 0.0 && got <= 1.0, "a number above 0, at most 1")
}
