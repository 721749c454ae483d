//! What an endpoint turned out to be.

use serde::{Deserialize, Serialize};

/// Under which distribution an endpoint gives log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// The model's own, whatever was cut off before drawing.
    Raw,
    /// The one that was drawn from, after cutting off.
    Cut,
}

/// How an endpoint is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Mode {
    /// In tokens.
    Tokens {
        /// Which log-probabilities it gives.
        scale: Scale,
        /// Whether it also gives those of tokens it is shown; see [`crate::openai::OpenAi::score`].
        scores: bool,
    },
    /// In messages.
    Chat {
        /// Whether it wants the limit as `max_completion_tokens`, not as `max_tokens`.
        new_limit: bool,
    },
}

/// What a record of episodes says of where they come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The endpoint's address.
    pub address: String,
    /// The model's name there.
    pub model: String,
    /// How it was spoken to.
    pub mode: Mode,
    /// Whether the log-probabilities beside the tokens mean something; if not, they are all 0 and nothing may be trained on
    /// them.
    pub log_probabilities: bool,
}
