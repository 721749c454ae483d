//! Why a loss could not be computed.

/// Why a loss could not be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LossError {
    /// A setting is out of its range.
    #[error("`{key}` is {got}, needed {needed}")]
    Setting {
        /// Which setting.
        key: &'static str,
        /// What was given.
        got: f64,
        /// What is possible.
        needed: &'static str,
    },
    /// A per-token list has another length than the sequence.
    #[error("`{list}` of sequence {sequence} has {got} entries, needed {needed}, one a token")]
    Length {
        /// Which list.
        list: &'static str,
        /// Which sequence of the group.
        sequence: usize,
        /// Its length.
        got: usize,
        /// The number of tokens.
        needed: usize,
    },
    /// The loss reads a list that the sequence does not bring.
    #[error("sequence {sequence} has no `{list}`, which this loss needs")]
    Missing {
        /// Which list.
        list: &'static str,
        /// Which sequence of the group.
        sequence: usize,
    },
    /// A number that must be finite is not.
    #[error("{what} is {value} at token {token} of sequence {sequence}, needed a finite number")]
    NotFinite {
        /// Which quantity.
        what: &'static str,
        /// Which sequence of the group.
        sequence: usize,
        /// Position in the sequence.
        token: usize,
        /// What it was.
        value: f64,
    },
    /// The totals do not cover what they are to divide.
    #[error("totals count {got} trained tokens, needed at least the {needed} of this group")]
    Totals {
        /// Trained tokens counted.
        got: u64,
        /// Trained tokens seen.
        needed: u64,
    },
    /// The totals do not cover the pairs they are to divide.
    #[error("totals count {got} pairs, needed at least the {needed} of this group")]
    TotalPairs {
        /// Pairs counted.
        got: u64,
        /// Pairs seen.
        needed: u64,
    },
    /// Student and teacher were asked about different tokens.
    #[error("at token {token} of sequence {sequence} the teacher answered about other tokens than the policy")]
    OtherTokens {
        /// Which sequence of the group.
        sequence: usize,
        /// Position in the sequence.
        token: usize,
    },
    /// A value loss beside a term that has the value head score.
    #[error("a value loss does not go with `{term}`, which has the value head score whole sequences")]
    TwoHeads {
        /// The term.
        term: &'static str,
    },
    /// The reduction divides by something that the term has not.
    #[error("reduction `pair_mean` divides by pairs, needed a term that makes some, got `{term}`")]
    NoPairs {
        /// The term.
        term: &'static str,
    },
}

pub(crate) fn setting(key: &'static str, got: f64, ok: bool, needed: &'static str) -> Result<(), LossError> {
    if ok { Ok(()) } else { Err(LossError::Setting { key, got, needed }) }
}
