//! One sequence as the loss sees it.

use serde::{Deserialize, Serialize};

use crate::{Loss, LossError};

/// What the policy thinks of a sequence.
///
/// - Shapes: every list `[T]`, 0 at tokens that are not trained.
/// - Units: log-probabilities and entropy in nats, values in reward points.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenValues {
    /// Log-probability under π of each trained token.
    pub logp: Vec<f32>,
    /// Entropy of π where each trained token was drawn.
    pub entropy: Vec<f32>,
    /// The value head's estimate; empty unless asked for.
    pub value: Vec<f32>,
    /// Log-probabilities of other tokens in the place of each trained one, where asked for.
    pub top: Option<Top>,
}

impl TokenValues {
    /// Log-probabilities and entropies alone.
    pub fn of(logp: Vec<f32>, entropy: Vec<f32>) -> Self {
        TokenValues { logp, entropy, ..TokenValues::default() }
    }

    /// What stands for a sequence that was not computed.
    pub fn zeros(n: usize) -> Self {
        TokenValues::of(vec![0.0; n], vec![0.0; n])
    }
}

/// Log-probabilities of `k` tokens in the place of each trained one.
///
/// - Shapes: both lists `[T · k]`, token by token; what they hold at tokens that are not trained means nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// How many a token.
    pub k: usize,
    /// Which tokens; different ones in each place.
    pub ids: Vec<u32>,
    /// Their log-probabilities.
    pub logp: Vec<f32>,
}

/// What a teacher thinks of the tokens of one sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Teacher {
    /// Log-probability of each trained token, `[T]`.
    pub logp: Vec<f32>,
    /// Log-probabilities of the tokens that the student found most likely as the step began, where asked for.
    pub top: Option<Top>,
}

/// What a value head is to learn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueTarget {
    /// Its estimates when the step began, `[T]`.
    pub old: Vec<f32>,
    /// What they should have been, `[T]`.
    pub returns: Vec<f32>,
}

/// Which side of a pair an episode is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Which pair of the group, from 0.
    pub index: u32,
    /// Whether it is the better one.
    pub chosen: bool,
}

/// What an algorithm says the tokens of one sequence are worth.
///
/// - Shapes: every list `[T]`, `T` the length of the sequence; entries at tokens that are not trained mean nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// What each token is worth, in units of advantage.
    pub advantage: Vec<f32>,
    /// What each token weighs in the whole loss; 0 leaves it out but keeps it in the denominator.
    pub weight: Vec<f32>,
    /// Where π_old comes from.
    pub old: Old,
    /// Log-probabilities under the reference, where the algorithm asked for them.
    pub logp_ref: Option<Vec<f32>>,
    /// The place of its episode in the group: what an episode-wide term sums over.
    #[serde(default)]
    pub episode: u32,
    /// Published policy versions between the sampling of each token and the beginning of the step; absent for none.
    #[serde(default)]
    pub lag: Option<Vec<u32>>,
    /// What a value head is to learn.
    #[serde(default)]
    pub value: Option<ValueTarget>,
    /// What a teacher thinks.
    #[serde(default)]
    pub teacher: Option<Teacher>,
    /// Its side of a pair.
    #[serde(default)]
    pub pair: Option<Pair>,
    /// How much |log π − log π_old| adds to the loss of each token.
    #[serde(default)]
    pub pull: Option<Vec<f32>>,
}

/// Where π_old, the policy when the step began, comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Old {
    /// The sampler's recorded log-probabilities: exact when the policy has not moved since, and the plain importance
    /// ratio π/μ when it has.
    #[default]
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
    /// Published versions since each token was sampled; absent for none.
    pub lag: Option<&'a [u32]>,
    /// The value head's estimates now.
    pub value: Option<&'a [f32]>,
    /// What they are to be.
    pub value_target: Option<&'a ValueTarget>,
    /// Log-probabilities of the teacher's `top` tokens under π, `[T · k]`.
    pub top: Option<&'a Top>,
    /// What a teacher thinks.
    pub teacher: Option<&'a Teacher>,
    /// The place of its episode in the group.
    pub episode: u32,
    /// Its side of a pair.
    pub pair: Option<Pair>,
    /// How much |log π − log π_old| adds to each token's loss.
    pub pull: Option<&'a [f32]>,
}

impl<'a> Row<'a> {
    /// A row with nothing but what every loss reads.
    pub fn bare(trained: &'a [bool], logp: &'a [f32], advantage: &'a [f32], weight: &'a [f32]) -> Self {
        Row {
            trained,
            logp,
            logp_old: None,
            logp_sampler: None,
            advantage,
            weight,
            logp_ref: None,
            entropy: None,
            lag: None,
            value: None,
            value_target: None,
            top: None,
            teacher: None,
            episode: 0,
            pair: None,
            pull: None,
        }
    }

    /// A row from what the policy computed, what the sampler recorded and what an algorithm said.
    pub fn new(trained: &'a [bool], values: &'a TokenValues, recorded: &'a [f32], signal: &'a Signal) -> Self {
        let given = |list: &'a [f32]| (!list.is_empty()).then_some(list);
        let (logp_old, logp_sampler) = match &signal.old {
            Old::Recorded => (Some(recorded), Some(recorded)),
            Old::Forward(old) => (Some(old.as_slice()), Some(recorded)),
            Old::Given => (None, None),
        };
        Row {
            logp_old,
            logp_sampler,
            logp_ref: signal.logp_ref.as_deref(),
            entropy: given(&values.entropy),
            lag: signal.lag.as_deref(),
            value: given(&values.value),
            value_target: signal.value.as_ref(),
            top: values.top.as_ref(),
            teacher: signal.teacher.as_ref(),
            episode: signal.episode,
            pair: signal.pair,
            pull: signal.pull.as_deref(),
            ..Row::bare(trained, &values.logp, &signal.advantage, &signal.weight)
        }
    }

    /// Number of trained tokens.
    pub fn n_trained(&self) -> u64 {
        self.trained.iter().filter(|t| **t).count() as u64
    }

    /// Positions of the trained tokens, in order.
    pub fn trained_positions(&self) -> impl Iterator<Item = usize> + use<'a> {
        positions(self.trained)
    }

    /// Checks that what the loss reads is there, has one length, and is finite at every trained token.
    ///
    /// What only a token that weighs something is read for, teacher and value, may be missing in a row of which none does.
    pub(crate) fn check(&self, sequence: usize, loss: &Loss) -> Result<(), LossError> {
        let check = Check { trained: self.trained, sequence, any: self.n_trained() > 0 };
        check.list("logp", Some(self.logp), true)?;
        check.list("weight", Some(self.weight), true)?;
        check.list("advantage", Some(self.advantage), true)?;
        let pulled = self.pull.is_some();
        check.list("logp_old", self.logp_old, loss.needs_old() || pulled)?;
        check.list("logp_sampler", self.logp_sampler, loss.needs_sampler())?;
        check.list("logp_ref", self.logp_ref, loss.needs_ref())?;
        check.list("entropy", self.entropy, loss.needs_entropy())?;
        check.list("pull", self.pull, false)?;
        check.length("lag", self.lag.map(<[u32]>::len))?;
        let check = Check { any: self.trained_positions().any(|t| self.weight[t] != 0.0), ..check };
        check.list("value", self.value, loss.needs_value())?;
        check.list("value_old", self.value_target.map(|v| v.old.as_slice()), loss.value.is_some())?;
        check.list("returns", self.value_target.map(|v| v.returns.as_slice()), loss.value.is_some())?;
        let needs = loss.term.rule().needs();
        check.list("logp_teacher", self.teacher.map(|t| t.logp.as_slice()), needs.teacher)?;
        if needs.top {
            check.top(self.top, self.teacher.and_then(|t| t.top.as_ref()))?;
        }
        Ok(())
    }
}

/// The positions that are trained, in order.
pub(crate) fn positions(trained: &[bool]) -> impl Iterator<Item = usize> {
    trained.iter().enumerate().filter(|(_, trained)| **trained).map(|(t, _)| t)
}

/// Checks the lists of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) trained: &'a [bool],
    pub(crate) sequence: usize,
    /// Whether any token asks for the lists that are required.
    pub(crate) any: bool,
}

impl Check<'_> {
    pub(crate) fn list(&self, list: &'static str, values: Option<&[f32]>, required: bool) -> Result<(), LossError> {
        let sequence = self.sequence;
        let Some(values) = values else {
            let missing = required && self.any;
            return if missing { Err(LossError::Missing { list, sequence }) } else { Ok(()) };
        };
        self.length(list, Some(values.len()))?;
        match positions(self.trained).find(|t| !values[*t].is_finite()) {
            Some(token) => Err(LossError::NotFinite { what: list, sequence, token, value: f64::from(values[token]) }),
            None => Ok(()),
        }
    }

    fn length(&self, list: &'static str, got: Option<usize>) -> Result<(), LossError> {
        let needed = self.trained.len();
        match got {
            Some(got) if got != needed => Err(LossError::Length { list, sequence: self.sequence, got, needed }),
            _ => Ok(()),
        }
    }

    /// Student and teacher must bring log-probabilities of the same tokens in each trained place.
    fn top(&self, student: Option<&Top>, teacher: Option<&Top>) -> Result<(), LossError> {
        let sequence = self.sequence;
        let missing = |list| if self.any { Err(LossError::Missing { list, sequence }) } else { Ok(()) };
        let Some(student) = student else { return missing("top") };
        let Some(teacher) = teacher else { return missing("top_teacher") };
        let needed = self.trained.len() * student.k;
        for (list, top) in [("top", student), ("top_teacher", teacher)] {
            for got in [top.ids.len(), top.logp.len()] {
                if got != needed || top.k != student.k {
                    return Err(LossError::Length { list, sequence, got, needed });
                }
            }
        }
        for token in positions(self.trained) {
            let at = token * student.k..(token + 1) * student.k;
            if student.ids[at.clone()] != teacher.ids[at.clone()] {
                return Err(LossError::OtherTokens { sequence, token });
            }
            for (what, top) in [("top", student), ("top_teacher", teacher)] {
                if let Some(value) = top.logp[at.clone()].iter().find(|v| !v.is_finite()) {
                    return Err(LossError::NotFinite { what, sequence, token, value: f64::from(*value) });
                }
            }
        }
        Ok(())
    }
}
