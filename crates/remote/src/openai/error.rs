//! What an endpoint can do wrong.

use std::path::PathBuf;

use policy::{PolicyError, SamplingError};

use crate::wire::WireError;

/// Why an endpoint cannot be used, or an answer of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpenAiError {
    /// It could not be reached, refused, or answered something that is no answer.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It gives no complete record of what it sampled, and that was asked for.
    #[error("`{model}` gives no record that can be trained on: {reason}")]
    NoRecord {
        /// The model.
        model: String,
        /// What is missing.
        reason: String,
    },
    /// An answer lacks part of the record or contradicts itself; nothing is rebuilt from its text.
    #[error("the answer of `{url}` is no record of what was sampled: {reason}")]
    BadRecord {
        /// What was asked.
        url: String,
        /// What is wrong, needed and got.
        reason: String,
    },
    /// A log-probability is not a finite number at most 0.
    #[error("log-probability {value} of token {index} in the answer of `{url}` is not a finite number at most 0")]
    LogProbability {
        /// What was asked.
        url: String,
        /// Which of the sampled tokens, from 0.
        index: usize,
        /// What was given; none for `null`.
        value: String,
    },
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Vocabulary {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// The endpoint cannot do this.
    #[error("`{setting}` is {got}, which `{model}` cannot be asked for: {reason}")]
    Setting {
        /// Which setting.
        setting: &'static str,
        /// What was given.
        got: String,
        /// The model.
        model: String,
        /// Why not.
        reason: &'static str,
    },
    /// A sampling setting is out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The prompt does not fit.
    #[error("{needed} tokens do not fit the context window of {context}")]
    Context {
        /// Tokens asked for.
        needed: usize,
        /// Size of the window.
        context: usize,
    },
    /// The prompt is no conversation.
    #[error("a prompt for `{model}` is no conversation: {reason}")]
    NotAConversation {
        /// The model.
        model: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The endpoint withheld the answer.
    #[error("`{url}` withheld its answer (`{reason}`)")]
    Withheld {
        /// What was asked.
        url: String,
        /// The reason it gave.
        reason: String,
    },
}

impl OpenAiError {
    /// The same from a request that may have been refused for its length, which is no fault.
    pub(crate) fn of(error: WireError, context: usize) -> OpenAiError {
        match &error {
            WireError::Refused { status: 400 | 413 | 422, said, .. } if is_about_length(said) => {
                let (needed, context) = lengths(said, context);
                OpenAiError::Context { needed, context }
            }
            _ => OpenAiError::Wire(error),
        }
    }

    /// Whether every other request would fail by it too.
    pub(crate) fn stops_everything(&self) -> bool {
        matches!(self, OpenAiError::Wire(WireError::Refused { status: 401 | 403, .. }))
    }
}

impl From<OpenAiError> for PolicyError {
    fn from(error: OpenAiError) -> Self {
        match error {
            OpenAiError::Context { needed, context } => PolicyError::Context { needed, context },
            OpenAiError::Vocabulary { token, vocabulary } => {
                PolicyError::Vocabulary { token, vocabulary: vocabulary as usize }
            }
            OpenAiError::LogProbability { index, .. } => {
                PolicyError::NotFinite { what: "log-probability", place: format!("sampled token {index}") }
            }
            OpenAiError::Sampling(error) => PolicyError::Sampling(error),
            OpenAiError::Wire(error) => {
                let source = std::io::Error::other(error.to_string());
                PolicyError::Io { path: PathBuf::from("the endpoint"), source }
            }
            other => PolicyError::Unsupported(other.to_string()),
        }
    }
}

fn is_about_length(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    ["context length", "context window", "context_length", "longer than the model"].iter().any(|s| said.contains(s))
}

/// The sizes in a message such as "maximum context length is 4096 tokens, you requested 5000 tokens"; where it has none,
/// the window is the one that was set and the need one more.
fn lengths(said: &str, context: usize) -> (usize, usize) {
    let mut numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(context), Some(needed)) if needed > context => (needed, context),
        _ => (context.saturating_add(1), context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i17_a_refusal_for_length_is_no_fault() {
        let refused = |status, said: &str| {
            let error = WireError::Refused { url: "u".to_owned(), status, said: said.to_owned() };
            OpenAiError::of(error, 100)
        };
        let vllm = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens";
        assert_eq!(refused(400, vllm), OpenAiError::Context { needed: 5000, context: 4096 });
        assert_eq!(refused(400, "context_length_exceeded"), OpenAiError::Context { needed: 101, context: 100 });
        assert!(matches!(refused(400, "bad temperature"), OpenAiError::Wire(_)));
        assert!(matches!(refused(500, vllm), OpenAiError::Wire(_)));
        assert!(matches!(PolicyError::from(refused(400, vllm)), PolicyError::Context { needed: 5000, context: 4096 }));
    }
}
