//! Loss terms, importance corrections, KL estimates and reductions: scalar maths over log-probabilities.
//!
//! A [`Loss`] is one [`Term`] (what is descended), a [`Correction`] (what a token sampled by an older policy weighs), an
//! optional [`Kl`] to a reference, an entropy bonus, and a [`Reduction`] (how tokens become one number). [`evaluate`]
//! turns the [`Row`]s of one group into the loss's share, its exact derivatives and its metrics; the denominators come
//! from the [`Totals`] of the whole update batch, so how the batch is cut changes nothing.
//!
//! For every trained token, with m = weight · correction and a = the reduction's coefficient,
//!
//! ```text
//! loss = Σ a · ( m · (term + β · kl + pull) + weight · (value loss − coefficient · entropy) )
//! ```
//!
//! Weight and correction are stop-gradient factors: held fixed in every derivative. A token that a selection weighs 0
//! stays in the denominator. Only trained positions are ever read, by selection and never by multiplication, so a NaN
//! elsewhere cannot leak. A token is *live* where coefficient · weight · correction is not 0: terms over a sequence, an
//! episode or a pair are over its live tokens. Everything is computed in f64 and rounded to f32 once, at the end;
//! exponential and logarithm are our own, so that the bits are the same on every machine.
//!
//! A [`Select`] chooses, once as a step begins, which tokens learn at all.

/// Makes, from one line an entry: the module, its public type, a place in the tagged settings enum, and its docs.
macro_rules! table {
    ($(#[$meta:meta])* $Enum:ident, rule $Rule:ident, tag $tag:literal, in $folder:literal,
     { $($name:literal => $module:ident :: $Type:ident,)+ }) => {
        $(mod $module;
        pub use $module::$Type;)+

        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = $tag)]
        pub enum $Enum {
            $(
                #[doc = concat!("`", $name, "`: see [`", stringify!($Type), "`].")]
                #[serde(rename = $name)]
                $Type($Type),
            )+
        }

        impl $Enum {
            /// The names of all entries, in the order of the table.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The entry's name.
            pub fn name(&self) -> &'static str {
                match self { $($Enum::$Type(_) => $name,)+ }
            }

            pub(crate) fn rule(&self) -> &dyn $Rule {
                match self { $($Enum::$Type(rule) => rule,)+ }
            }
        }

        #[cfg(test)]
        mod table_tests {
            #[test]
            fn every_entry_names_its_source() {
                $(
                    let text = include_str!(concat!($folder, "/", stringify!($module), ".rs"));
                    assert!(text.starts_with("//! ") && text.contains("//! Source:"), "`{}` has no source", $name);
                )+
            }
        }
    };
}

mod correction;
mod error;
mod evaluate;
mod exp;
mod kl;
mod metrics;
mod reduction;
mod row;
mod select;
mod share;
mod term;
mod value;

pub use correction::{
    Correction, Decoupled, Geometric, K2, K3, M2po, SequenceMask, SequenceTis, TokenMask, TokenTis, Uncorrected, Vespo,
};
pub use error::LossError;
pub use evaluate::{GroupLoss, RowLoss, evaluate};
pub use exp::{exp, exp_m1_minus, ln, log_sigmoid, sigmoid};
pub use kl::{Estimator, Kl};
pub use metrics::{Metrics, Sums};
pub use reduction::{Reduction, Totals};
pub use row::{Old, Pair, Row, Signal, Teacher, TokenValues, Top, ValueTarget};
pub use select::{Chosen, ClipCov, KlCov, Select, StepRow, TopEntropy, Unselected};
pub use term::{
    BradleyTerry, Cispo, Distill, Divergence, Dpo, Dro, Gspo, Nll, Oapl, PolicyGradient, Reinforce, Sapo, Term,
};
pub use value::ValueLoss;

use serde::{Deserialize, Serialize};

use term::Acts;

/// Everything that decides how log-probabilities become one number to descend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// What is descended.
    pub term: Term,
    /// How tokens become one number.
    pub reduction: Reduction,
    /// Pull towards a reference; a coefficient of 0 is the same as none.
    pub kl: Option<Kl>,
    /// How much entropy is worth: `coefficient · H` is subtracted from each token's loss.
    pub entropy_coefficient: f64,
    /// What a token sampled by an older policy weighs.
    pub correction: Correction,
    /// What the value head descends.
    pub value: Option<ValueLoss>,
}

impl Loss {
    /// A bare term: no KL, no entropy bonus, no correction.
    pub fn new(term: Term, reduction: Reduction) -> Self {
        Loss { term, reduction, kl: None, entropy_coefficient: 0.0, correction: Correction::default(), value: None }
    }

    /// Checks every range, and that term and reduction go together.
    ///
    /// - Errors: [`LossError::Setting`] naming the setting, what is needed and what was given; [`LossError::NoPairs`] when
    ///   pairs are counted and the term makes none; [`LossError::TwoHeads`] when term and value loss ask one head for two
    ///   things.
    pub fn check(&self) -> Result<(), LossError> {
        self.term.rule().check()?;
        self.correction.rule().check()?;
        self.reduction.check()?;
        if self.reduction.counts_pairs() && self.term.rule().acts() != Acts::OnPair {
            return Err(LossError::NoPairs { term: self.term.name() });
        }
        if let Some(kl) = &self.kl {
            kl.check()?;
        }
        if let Some(value) = &self.value {
            value.check()?;
            if self.term.rule().needs().value {
                return Err(LossError::TwoHeads { term: self.term.name() });
            }
        }
        let c = self.entropy_coefficient;
        error::setting("entropy.coefficient", c, c >= 0.0 && c.is_finite(), "a finite number at least 0")
    }

    /// The KL that has an effect.
    pub fn active_kl(&self) -> Option<&Kl> {
        self.kl.as_ref().filter(|kl| kl.coefficient != 0.0)
    }

    /// Whether the rows must bring log-probabilities under the reference.
    pub fn needs_ref(&self) -> bool {
        self.active_kl().is_some() || self.term.rule().needs().reference
    }

    /// Whether the rows must bring the entropy of π.
    pub fn needs_entropy(&self) -> bool {
        self.entropy_coefficient != 0.0
    }

    /// Whether the rows must bring the value head's estimates.
    pub fn needs_value(&self) -> bool {
        self.value.is_some() || self.term.rule().needs().value
    }

    /// Whether those are of the state that has read a token, as a score is, instead of the state that predicts it.
    pub fn scores(&self) -> bool {
        self.term.rule().needs().value
    }

    /// Whether the rows must bring log-probabilities under π_old.
    pub fn needs_old(&self) -> bool {
        self.term.rule().needs().old || self.correction.rule().needs_old()
    }

    /// Whether the rows must bring log-probabilities under μ.
    pub fn needs_sampler(&self) -> bool {
        self.term.rule().needs().sampler || self.correction.rule().needs_sampler()
    }

    /// Whether the rows must bring a teacher's log-probabilities.
    pub fn needs_teacher(&self) -> bool {
        self.term.rule().needs().teacher
    }

    /// Whether the rows must bring log-probabilities of the tokens a teacher was asked about.
    pub fn needs_top(&self) -> bool {
        self.term.rule().needs().top
    }

    /// Whether a sequence's derivatives are exactly 0 whatever its log-probabilities are, so that computing them would
    /// teach nothing. It stays in the denominators all the same.
    ///
    /// - Shapes: `trained` and the lists of `signal` `[T]`.
    pub fn is_inert(&self, trained: &[bool], signal: &Signal) -> bool {
        let acts = match self.term.rule().acts() {
            Acts::OnAdvantage => false,
            Acts::OnPair => signal.pair.is_some(),
            Acts::Everywhere => true,
        };
        let with_value = self.value.is_some_and(|value| value.coefficient != 0.0);
        let beside = self.active_kl().is_some() || self.needs_entropy() || with_value;
        let by_advantage = self.term.rule().acts() == Acts::OnAdvantage;
        row::positions(trained).all(|t| {
            let at = |list: &[f32]| list.get(t).is_some_and(|v| *v != 0.0);
            let pulled = signal.pull.as_deref().is_some_and(at);
            let moved = acts || beside || pulled || (by_advantage && at(&signal.advantage));
            !(moved && at(&signal.weight))
        })
    }
}
