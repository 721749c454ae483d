//! Which endpoint, and how it is used.

use serde::{Deserialize, Serialize};

use crate::wire::{Patience, WireError};

/// How an endpoint is to be spoken to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WantedMode {
    /// In tokens where it can do that, else in messages; [`crate::openai::OpenAi::why_chat`] says why not.
    #[default]
    Auto,
    /// In tokens, or not at all.
    Tokens,
    /// In messages.
    Chat,
}

/// What the answers are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Evaluation and agents: log-probabilities that cannot be known are written as 0, and the record says so.
    #[default]
    Evaluation,
    /// Training: a setting under which a log-probability cannot be known is refused.
    Training,
}

/// Which endpoint, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAiSettings {
    /// Where it is, up to and with `/v1`.
    pub address: String,
    /// The model's name there.
    pub model: String,
    /// How to speak to it.
    pub mode: WantedMode,
    /// What the answers are for.
    pub purpose: Purpose,
    /// The most tokens a sequence may have; spoken to in messages, a token is a byte of the envelope.
    pub context: usize,
    /// Size of the vocabulary, where it is known; ids outside are refused.
    pub vocabulary: Option<u32>,
    /// At most this many requests at once.
    pub concurrent: usize,
    /// How long it may take and how often it is asked.
    pub patience: Patience,
}

impl OpenAiSettings {
    /// An endpoint with the defaults: for evaluation, 8 requests at once, sequences up to 1,048,576 tokens or bytes.
    pub fn new(address: impl Into<String>, model: impl Into<String>) -> Self {
        OpenAiSettings {
            address: address.into(),
            model: model.into(),
            mode: WantedMode::Auto,
            purpose: Purpose::Evaluation,
            context: 1 << 20,
            vocabulary: None,
            concurrent: 8,
            patience: Patience::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), WireError> {
        let bad = |setting, reason: &str| Err(WireError::BadSetting { setting, reason: reason.to_owned() });
        match self {
            s if s.model.is_empty() => bad("model", "needed a name, got none"),
            s if s.context < 2 => bad("context", "needed at least 2 tokens"),
            s if !(1..=4096).contains(&s.concurrent) => bad("number of requests at once", "needed 1 to 4096"),
            s if s.purpose == Purpose::Training && s.mode == WantedMode::Chat => {
                bad("mode", "`chat` gives no token ids and log-probabilities, and training needs both")
            }
            _ => Ok(()),
        }
    }
}
