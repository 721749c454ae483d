//! Settings that several algorithms have, declared once and spliced into the algorithms that name them.
//!
//! `settings!` writes an algorithm's struct from its own settings and the names of the bundles it shares. They are fields
//! of the struct and not a part of it that is flattened, since only so can serde refuse an unknown key with the known ones.

use loss::{Correction, Loss, PolicyGradient, Reduction, Select, Term, ValueLoss};

use crate::settings::setting;
use crate::{AlgoError, EntropySettings, Flat, KlPlace, KlSettings, Overlong, Plan, ReductionName, Spread, Truncated};

/// Settings that come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bundle {
    Spread,
    Clip,
    Reduction,
    Kl,
    Entropy,
    Correction,
    Select,
    Truncated,
    Overlong,
    Updates,
    Flat,
}

/// What `settings!` knows of an algorithm's settings.
pub(crate) trait Shares {
    /// The bundles it has.
    const SHARED: &'static [Bundle];

    /// The shared settings, neutral where it has none.
    fn common(&self) -> Common;

    /// Fills in the shared settings that were left out and depend on others.
    fn fill(&mut self) -> Result<(), AlgoError>;
}

/// Makes an algorithm's settings: its own, then those of the bundles it shares, with this algorithm's defaults.
macro_rules! settings {
    (
        $(#[$doc:meta])*
        pub struct $Name:ident { $($(#[$attribute:meta])* $field:ident: $Type:ty = $default:expr,)* }
        shares { $($shared:tt)* }
    ) => {
        settings! { @share ($Name me) { $(#[$doc])* } { $($(#[$attribute])* pub $field: $Type,)* }
            { $($field: $default,)* } {} {} {} $($shared)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        spread, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// What the centred reward is divided by.
                pub advantage_std: crate::Spread,
                /// Added to the spread.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub std_eps: Option<f64>,
            }
            { $($d)* advantage_std: crate::Spread::Sample, std_eps: None, }
            { $($c)* spread: Some(($me.advantage_std, $me.std_eps)), }
            { $($r)* $me.advantage_std.resolve(&mut $me.std_eps)?; }
            { $($b)* Spread } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        clip = $low:literal to $high:literal, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// Lower bound of the ratio.
                pub ratio_min: f64,
                /// Upper bound of the ratio.
                pub ratio_max: f64,
                /// The ratio above which a bad token is left alone too.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub dual_clip: Option<f64>,
            }
            { $($d)* ratio_min: $low, ratio_max: $high, dual_clip: None, }
            { $($c)* clip: loss::PolicyGradient {
                ratio_min: $me.ratio_min, ratio_max: $me.ratio_max, dual_clip: $me.dual_clip,
            }, }
            { $($r)* } { $($b)* Clip } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        reduction = $reduction:ident, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// How tokens become one number.
                pub reduction: crate::ReductionName,
                /// The constant of `fixed_horizon`.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub horizon: Option<u32>,
            }
            { $($d)* reduction: crate::ReductionName::$reduction, horizon: None, }
            { $($c)* reduction: $me.reduction, horizon: $me.horizon, }
            { $($r)* } { $($b)* Reduction } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        kl = $estimator:ident in $place:ident, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// Pull towards a reference.
                pub kl: crate::KlSettings,
            }
            { $($d)* kl: crate::KlSettings::default(), }
            { $($c)* kl: $me.kl.clone(), }
            { $($r)* $me.kl.resolve(crate::KlPlace::$place, loss::Estimator::$estimator)?; } { $($b)* Kl } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        entropy, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// What entropy is worth.
                pub entropy: crate::EntropySettings,
            }
            { $($d)* entropy: crate::EntropySettings::default(), }
            { $($c)* entropy: $me.entropy.clone(), }
            { $($r)* } { $($b)* Entropy } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        correction, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// What a token sampled by an older policy weighs.
                pub correction: loss::Correction,
            }
            { $($d)* correction: loss::Correction::default(), }
            { $($c)* correction: $me.correction.clone(), }
            { $($r)* } { $($b)* Correction } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        select, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// Which tokens of a step learn.
                pub select: loss::Select,
            }
            { $($d)* select: loss::Select::default(), }
            { $($c)* select: $me.select.clone(), }
            { $($r)* } { $($b)* Select } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        truncated, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// What becomes of attempts that a limit cut off.
                pub truncated: crate::Truncated,
                /// Reward points they pay under `penalise`.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub truncated_penalty: Option<f64>,
            }
            { $($d)* truncated: crate::Truncated::Keep, truncated_penalty: None, }
            { $($c)* truncated: $me.truncated, truncated_penalty: $me.truncated_penalty, }
            { $($r)* $me.truncated.resolve(&mut $me.truncated_penalty)?; } { $($b)* Truncated } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        overlong, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc {$($f)*} {$($d)*} {$($c)*} {$($r)*} {$($b)*}
            overlong = crate::Overlong::default(), $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        overlong = $overlong:expr, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// What comes off the reward of a response that comes near a limit on its length.
                pub overlong: crate::Overlong,
            }
            { $($d)* overlong: $overlong, }
            { $($c)* overlong: $me.overlong.clone(), }
            { $($r)* $me.overlong.resolve()?; } { $($b)* Overlong } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        updates, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// Passes over a step.
                pub epochs: u32,
                /// Groups in an update; all of them when absent.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub minibatch_groups: Option<u32>,
            }
            { $($d)* epochs: 1, minibatch_groups: None, }
            { $($c)* plan: crate::Plan { epochs: $me.epochs, minibatch_groups: $me.minibatch_groups }, }
            { $($r)* } { $($b)* Updates } $($rest)* }
    };
    (@share ($Name:ident $me:ident) $doc:tt {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:tt)*}
        flat, $($rest:tt)*
    ) => {
        settings! { @share ($Name $me) $doc
            { $($f)*
                /// What becomes of groups whose rewards are all equal.
                pub flat: crate::Flat,
            }
            { $($d)* flat: crate::Flat::Keep, }
            { $($c)* flat: $me.flat, }
            { $($r)* } { $($b)* Flat } $($rest)* }
    };
    (@share ($Name:ident $me:ident) { $($doc:tt)* } {$($f:tt)*} {$($d:tt)*} {$($c:tt)*} {$($r:tt)*} {$($b:ident)*}) => {
        $($doc)*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Name { $($f)* }

        impl Default for $Name {
            fn default() -> Self {
                $Name { $($d)* }
            }
        }

        impl crate::shared::Shares for $Name {
            const SHARED: &'static [crate::shared::Bundle] = &[$(crate::shared::Bundle::$b),*];

            #[allow(clippy::needless_update, reason = "an algorithm may share everything")]
            fn common(&self) -> crate::shared::Common {
                let $me = self;
                crate::shared::Common { $($c)* ..crate::shared::Common::neutral() }
            }

            fn fill(&mut self) -> Result<(), crate::AlgoError> {
                let $me = self;
                $($r)*
                let _ = $me;
                Ok(())
            }
        }
    };
}

/// The shared settings of an algorithm, neutral where it has none.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) spread: Option<(Spread, Option<f64>)>,
    pub(crate) clip: PolicyGradient,
    pub(crate) reduction: ReductionName,
    pub(crate) horizon: Option<u32>,
    pub(crate) kl: KlSettings,
    pub(crate) entropy: EntropySettings,
    pub(crate) correction: Correction,
    pub(crate) select: Select,
    pub(crate) truncated: Truncated,
    pub(crate) truncated_penalty: Option<f64>,
    pub(crate) overlong: Overlong,
    pub(crate) plan: Plan,
    pub(crate) flat: Flat,
}

impl Common {
    /// What has no effect.
    pub(crate) fn neutral() -> Self {
        Common {
            spread: None,
            clip: PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None },
            reduction: ReductionName::TokenMean,
            horizon: None,
            kl: KlSettings::default(),
            entropy: EntropySettings::default(),
            correction: Correction::default(),
            select: Select::default(),
            truncated: Truncated::Keep,
            truncated_penalty: None,
            overlong: Overlong::default(),
            plan: Plan::ONE,
            flat: Flat::Keep,
        }
    }

    /// A checked loss.
    pub(crate) fn loss(&self, term: Term, reduction: Reduction, value: Option<ValueLoss>) -> Result<Loss, AlgoError> {
        let loss = Loss {
            term,
            reduction,
            kl: self.kl.in_loss(),
            entropy_coefficient: self.entropy.coefficient,
            correction: self.correction.clone(),
            value,
        };
        loss.check()?;
        Ok(loss)
    }

    /// Refuses what makes no sense together.
    pub(crate) fn check(&self, algorithm: &'static str, loss: &Loss) -> Result<(), AlgoError> {
        let Plan { epochs, minibatch_groups } = self.plan;
        setting("epochs", f64::from(epochs), epochs >= 1, "a whole number at least 1")?;
        if let Some(n) = minibatch_groups {
            setting("minibatch_groups", f64::from(n), n >= 1, "a whole number at least 1")?;
        }
        self.select.check()?;
        let pull = self.kl.in_loss().is_some() || self.entropy.coefficient != 0.0;
        if self.flat == Flat::Drop && (!pull || self.kl.in_reward()) {
            let with = "a KL in the reward, or a loss with neither a KL nor the entropy".to_owned();
            let instead = "set `kl.coefficient` with `kl.place = \"loss\"`, or `entropy.coefficient`";
            return Err(AlgoError::Unused { key: "flat", with, instead });
        }
        let has_ratio = Loss::new(loss.term.clone(), loss.reduction).needs_old();
        if matches!(self.correction, Correction::Decoupled(_)) && !has_ratio {
            let with = format!("`{algorithm}`, whose loss has no ratio π/π_old");
            let instead = "set `correction.rule = \"token_tis\"`";
            return Err(AlgoError::Unused { key: "correction.rule = \"decoupled\"", with, instead });
        }
        Ok(())
    }
}

impl Bundle {
    /// Its top-level keys.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Bundle::Spread => &["advantage_std", "std_eps"],
            Bundle::Clip => &["ratio_min", "ratio_max", "dual_clip"],
            Bundle::Reduction => &["reduction", "horizon"],
            Bundle::Kl => &["kl"],
            Bundle::Entropy => &["entropy"],
            Bundle::Correction => &["correction"],
            Bundle::Select => &["select"],
            Bundle::Truncated => &["truncated", "truncated_penalty"],
            Bundle::Overlong => &["overlong"],
            Bundle::Updates => &["epochs", "minibatch_groups"],
            Bundle::Flat => &["flat"],
        }
    }

    /// Its rows of a table: key, default, meaning.
    fn rows(self, common: &Common) -> String {
        let row = |keys: &str, default: &str, meaning: &str| format!("| {keys} | {default} | {meaning} |\n");
        let list = |names: &[&str]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        match self {
            Bundle::Spread => {
                row(
                    "`advantage_std`",
                    "`sample`",
                    "`population`, `sample` or `none`: what the centred reward is divided by",
                ) + &row("`std_eps`", "1e-6", "added to the spread")
            }
            Bundle::Clip => {
                let bounds = format!("{}, {}", common.clip.ratio_min, common.clip.ratio_max);
                row("`ratio_min`, `ratio_max`", &bounds, "bounds of the ratio, absolute")
                    + &row("`dual_clip`", "off", "the ratio above which a bad token is left alone too")
            }
            Bundle::Reduction => row(
                "`reduction`",
                &format!("`{}`", common.reduction.word()),
                "`token_mean`, `sequence_mean`, `sequence_sum`, `fixed_horizon` (with `horizon`) or `sum`",
            ),
            Bundle::Kl => {
                let defaults =
                    if common.kl.place == Some(KlPlace::Reward) { "0, `k1`, `reward`" } else { "0, `k3`, `loss`" };
                row(
                    "`kl.coefficient`, `kl.estimator`, `kl.place`",
                    defaults,
                    "pull towards a reference: `k1`, `k2` or `k3`, in the `loss` or off the `reward`. In the loss `k2` \
                     descends KL(π‖ref), `k3` KL(ref‖π), and `k1` nothing on average; in the reward, where they are taken from π_old, all stand for \
                     KL(π‖ref)",
                ) + &row(
                    "`kl.reference`",
                    "`frozen`",
                    "`base`: the model's own weights; `frozen`: those the run began with; `ema`: moving by `kl.ema_rate` a \
                     step; `every_n`: the policy's, taken every `kl.every` steps",
                )
            }
            Bundle::Entropy => row("`entropy.coefficient`", "0", "what entropy is worth"),
            Bundle::Correction => {
                let names = list(Correction::NAMES);
                row(
                    "`correction.rule`",
                    "`none`",
                    &format!(
                        "what a token weighs that an older policy sampled: {names}; each has its formula and its keys \
                         on [the page of corrections](../corrections.md)"
                    ),
                )
            }
            Bundle::Select => {
                let names = list(Select::NAMES);
                let meaning = format!(
                    "which tokens of a step learn: {names}; with `select.share`, `select.low`, `select.high` or \
                     `select.coefficient` where the rule has it, see [that page](../corrections.md)"
                );
                row("`select.rule`", "`none`", &meaning)
            }
            Bundle::Truncated => row(
                "`truncated`",
                "`keep`",
                "`keep`, `mask` or `penalise` (by `truncated_penalty`, 1 point) attempts a limit cut off",
            ),
            Bundle::Overlong => {
                let Overlong { limit, buffer, factor } = &common.overlong;
                let default = match (limit, buffer, factor) {
                    (Some(limit), Some(buffer), Some(factor)) => format!("{limit}, {buffer}, {factor}"),
                    _ => "off".to_owned(),
                };
                row(
                    "`overlong.limit`, `overlong.buffer`, `overlong.factor`",
                    &default,
                    "reward points off a long response: 0 up to `limit` − `buffer` sampled tokens, then linearly up to \
                     `factor` (1 unless set) at the limit",
                )
            }
            Bundle::Updates => {
                row("`epochs`, `minibatch_groups`", "1, all", "updates a step: passes, and groups in each update")
            }
            Bundle::Flat => row(
                "`flat`",
                "`keep`",
                "`keep` or `drop`: whether a KL or the entropy in the loss acts on groups without a spread too",
            ),
        }
    }
}

/// The table of the settings that an algorithm shares with others, with its own defaults.
pub(crate) fn docs<S: Shares + Default>() -> String {
    let mut settings = S::default();
    settings.fill().expect("an algorithm's defaults go together");
    let common = settings.common();
    let rows: String = S::SHARED.iter().map(|bundle| bundle.rows(&common)).collect();
    format!("\nShared with other algorithms:\n\n| setting | default | meaning |\n|---|---|---|\n{rows}")
}
