//! The exact tokens of an attempt, with what was recorded about each at the moment it was appended.
//!
//! Every per-token list has the length of `tokens`, checked at each append; sampled tokens are never decoded and encoded
//! again.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Role, Token};

/// One role's stretch of tokens in a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// Which tokens, as positions in the sequence.
    pub span: Range<usize>,
}

/// The tokens of an attempt and, for each: whether the policy sampled it, its log-probability under the sampling
/// distribution π and at temperature 1, and the policy version that sampled it.
///
/// - Shapes: every list is `[T]`; at a token that was not sampled the log-probabilities and the version are 0 and mean
///   nothing.
/// - Units: log-probabilities in nats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct Sequence {
    tokens: Vec<Token>,
    sampled: Vec<bool>,
    logp: Vec<f32>,
    logp_t1: Vec<f32>,
    version: Vec<u32>,
    turns: Vec<Turn>,
}

/// Why tokens were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SequenceError {
    /// A per-token list has another length than the tokens.
    #[error("`{list}` has {got} entries, needed {needed}, one a token")]
    Length {
        /// Which list.
        list: &'static str,
        /// Its length.
        got: usize,
        /// The number of tokens.
        needed: usize,
    },
    /// A log-probability is not a finite number at most 0.
    #[error("log-probability {value} at token {position} is not a finite number at most 0")]
    LogProbability {
        /// Position in the sequence.
        position: usize,
        /// What was given.
        value: f32,
    },
    /// Turns do not follow each other through the whole sequence.
    #[error("turns do not cover the {tokens} tokens in order")]
    Turns {
        /// Number of tokens.
        tokens: usize,
    },
}

impl Sequence {
    /// An empty sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a turn the policy did not sample: a prompt, an observation.
    pub fn append_context(&mut self, role: Role, tokens: &[Token]) {
        let start = self.tokens.len();
        let end = start + tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.sampled.resize(end, false);
        self.logp.resize(end, 0.0);
        self.logp_t1.resize(end, 0.0);
        self.version.resize(end, 0);
        self.turns.push(Turn { role, span: start..end });
    }

    /// Appends a turn the policy sampled, stop token included.
    ///
    /// - Shapes: `tokens`, `logp`, `logp_t1` `[n]`; `version` is the policy's at sampling.
    /// - Errors: [`SequenceError`] when a list has another length or a log-probability is not finite and ≤ 0; then
    ///   nothing is appended.
    pub fn append_sampled(
        &mut self,
        tokens: &[Token],
        logp: &[f32],
        logp_t1: &[f32],
        version: u32,
    ) -> Result<(), SequenceError> {
        let start = self.tokens.len();
        self.push_sampled(tokens, logp, logp_t1, version)?;
        self.turns.push(Turn { role: Role::Assistant, span: start..self.tokens.len() });
        Ok(())
    }

    /// Appends to the turn the policy is in the middle of, which an older version may have begun; begins one behind a turn
    /// that was not sampled.
    ///
    /// - Shapes: as [`Sequence::append_sampled`], and its errors.
    pub fn extend_sampled(
        &mut self,
        tokens: &[Token],
        logp: &[f32],
        logp_t1: &[f32],
        version: u32,
    ) -> Result<(), SequenceError> {
        if self.n_open() == 0 {
            return self.append_sampled(tokens, logp, logp_t1, version);
        }
        self.push_sampled(tokens, logp, logp_t1, version)?;
        let end = self.tokens.len();
        let turn = self.turns.last_mut().expect("a turn of at least 1 token is there");
        turn.span.end = end;
        Ok(())
    }

    /// Tokens of the last turn, when the policy sampled it; 0 otherwise.
    pub fn n_open(&self) -> usize {
        let sampled = self.sampled.last().copied().unwrap_or(false);
        self.turns.last().filter(|_| sampled).map_or(0, |turn| turn.span.len())
    }

    /// The same tokens as if one version had sampled all of them: for tokens whose versions count something else.
    #[must_use]
    pub fn with_version(mut self, version: u32) -> Sequence {
        self.version = self.sampled.iter().map(|sampled| if *sampled { version } else { 0 }).collect();
        self
    }

    fn push_sampled(
        &mut self,
        tokens: &[Token],
        logp: &[f32],
        logp_t1: &[f32],
        version: u32,
    ) -> Result<(), SequenceError> {
        let start = self.tokens.len();
        let needed = tokens.len();
        for (list, values) in [("logp", logp), ("logp_t1", logp_t1)] {
            if values.len() != needed {
                return Err(SequenceError::Length { list, got: values.len(), needed });
            }
            if let Some(i) = values.iter().position(|v| !is_log_probability(*v)) {
                return Err(SequenceError::LogProbability { position: start + i, value: values[i] });
            }
        }
        let end = start + needed;
        self.tokens.extend_from_slice(tokens);
        self.sampled.resize(end, true);
        self.logp.extend_from_slice(logp);
        self.logp_t1.extend_from_slice(logp_t1);
        self.version.resize(end, version);
        Ok(())
    }

    /// Token ids, `[T]`.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Whether the policy sampled each token, `[T]`; only those are trained.
    pub fn sampled(&self) -> &[bool] {
        &self.sampled
    }

    /// Log-probabilities under π as the sampler recorded them, `[T]`, 0 where not sampled.
    pub fn logp(&self) -> &[f32] {
        &self.logp
    }

    /// Log-probabilities at temperature 1 with nothing banned, `[T]`, 0 where not sampled.
    pub fn logp_t1(&self) -> &[f32] {
        &self.logp_t1
    }

    /// Policy version that sampled each token, `[T]`, 0 where not sampled.
    pub fn version(&self) -> &[u32] {
        &self.version
    }

    /// The turns, in order; together they cover every token.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of tokens the policy sampled.
    pub fn n_sampled(&self) -> usize {
        self.sampled.iter().filter(|s| **s).count()
    }
}

fn is_log_probability(value: f32) -> bool {
    value.is_finite() && value <= 0.0
}

/// The stored form: `null` where a token was not sampled, so that a reader cannot take padding for data.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    tokens: Vec<Token>,
    sampled: Vec<u8>,
    logp: Vec<Option<f32>>,
    logp_t1: Vec<Option<f32>>,
    version: Vec<Option<u32>>,
    turns: Vec<Turn>,
}

impl From<Sequence> for Wire {
    fn from(s: Sequence) -> Self {
        fn keep<V: Copy>(values: &[V], sampled: &[bool]) -> Vec<Option<V>> {
            values.iter().zip(sampled).map(|(v, s)| s.then_some(*v)).collect()
        }
        Wire {
            logp: keep(&s.logp, &s.sampled),
            logp_t1: keep(&s.logp_t1, &s.sampled),
            version: keep(&s.version, &s.sampled),
            sampled: s.sampled.iter().map(|b| u8::from(*b)).collect(),
            tokens: s.tokens,
            turns: s.turns,
        }
    }
}

impl TryFrom<Wire> for Sequence {
    type Error = SequenceError;

    fn try_from(w: Wire) -> Result<Self, SequenceError> {
        let needed = w.tokens.len();
        for (list, got) in [
            ("sampled", w.sampled.len()),
            ("logp", w.logp.len()),
            ("logp_t1", w.logp_t1.len()),
            ("version", w.version.len()),
        ] {
            if got != needed {
                return Err(SequenceError::Length { list, got, needed });
            }
        }
        let mut covered = 0;
        for turn in &w.turns {
            if turn.span.start != covered || turn.span.end < turn.span.start {
                return Err(SequenceError::Turns { tokens: needed });
            }
            covered = turn.span.end;
        }
        if covered != needed {
            return Err(SequenceError::Turns { tokens: needed });
        }
        let sampled: Vec<bool> = w.sampled.iter().map(|b| *b != 0).collect();
        for list in [&w.logp, &w.logp_t1] {
            for (position, (value, sampled)) in list.iter().zip(&sampled).enumerate() {
                let value = value.unwrap_or(if *sampled { f32::NAN } else { 0.0 });
                if *sampled && !is_log_probability(value) {
                    return Err(SequenceError::LogProbability { position, value });
                }
            }
        }
        Ok(Sequence {
            tokens: w.tokens,
            logp: w.logp.iter().map(|v| v.unwrap_or(0.0)).collect(),
            logp_t1: w.logp_t1.iter().map(|v| v.unwrap_or(0.0)).collect(),
            version: w.version.iter().map(|v| v.unwrap_or(0)).collect(),
            sampled,
            turns: w.turns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Sequence {
        let mut s = Sequence::new();
        s.append_context(Role::User, &[5, 6]);
        s.append_sampled(&[7, 2], &[-0.5, -0.1], &[-0.4, -0.2], 3).unwrap();
        s
    }

    #[test]
    fn all_lists_have_one_length_after_every_append() {
        let s = example();
        assert_eq!(s.sampled(), [false, false, true, true]);
        assert_eq!(s.logp(), [0.0, 0.0, -0.5, -0.1]);
        assert_eq!(s.version(), [0, 0, 3, 3]);
        assert_eq!(s.turns()[1].span, 2..4);
    }

    #[test]
    fn a_ragged_append_is_refused_and_changes_nothing() {
        let mut s = example();
        let before = s.clone();
        let got = s.append_sampled(&[1, 2], &[-0.1], &[-0.1, -0.1], 3);
        assert_eq!(got, Err(SequenceError::Length { list: "logp", got: 1, needed: 2 }));
        assert_eq!(s, before);
    }

    #[test]
    fn a_turn_that_goes_on_under_another_version_stays_one_turn() {
        let mut s = example();
        s.extend_sampled(&[8], &[-0.3], &[-0.3], 4).unwrap();
        assert_eq!((s.turns().len(), s.turns()[1].span.clone(), s.n_open()), (2, 2..5, 3));
        assert_eq!(s.version(), [0, 0, 3, 3, 4]);
        s.append_context(Role::Tool, &[9]);
        assert_eq!(s.n_open(), 0);
        let before = s.clone();
        assert!(s.extend_sampled(&[1], &[], &[-0.1], 4).is_err());
        assert_eq!(s, before);
        s.extend_sampled(&[1], &[-0.1], &[-0.1], 5).unwrap();
        assert_eq!((s.turns().len(), s.turns()[3].span.clone()), (4, 6..7));
        assert_eq!(s.with_version(1).version(), [0, 0, 1, 1, 1, 0, 1]);
    }

    #[test]
    fn a_log_probability_that_is_none_is_refused() {
        for bad in [f32::NAN, f32::INFINITY, 0.1, f32::NEG_INFINITY] {
            assert!(example().append_sampled(&[1], &[bad], &[-0.1], 3).is_err());
        }
    }

    #[test]
    fn json_has_null_where_nothing_was_sampled_and_comes_back_equal() {
        let text = serde_json::to_string(&example()).unwrap();
        assert!(text.contains(r#""logp":[null,null,-0.5,-0.1]"#), "{text}");
        assert_eq!(serde_json::from_str::<Sequence>(&text).unwrap(), example());
    }

    #[test]
    fn a_stored_sequence_with_a_missing_log_probability_is_refused() {
        let text = serde_json::to_string(&example()).unwrap().replace("-0.5", "null");
        assert!(serde_json::from_str::<Sequence>(&text).is_err());
    }
}
