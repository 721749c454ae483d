//! What the loop needs of a tokeniser and its chat template.

use std::sync::Arc;

use episode::{Message, Token};

/// Messages to tokens and tokens to text, for one model's chat format.
pub trait Codec: Send + Sync {
    /// The tokens of a conversation up to and with the opening of the policy's first turn.
    ///
    /// - Errors: a text saying why the template cannot render the messages.
    fn open(&self, messages: &[Message]) -> Result<Vec<Token>, String>;

    /// The tokens that follow a sampled turn so that the policy speaks next: the rest of what closes its turn, the
    /// messages, and the opening of its next turn.
    ///
    /// `closed` says whether the sampled turn holds its own end-of-turn token.
    ///
    /// - Holds: what stands before these tokens is not rendered again.
    /// - Errors: a text saying why the template cannot render the messages.
    fn go_on(&self, closed: bool, messages: &[Message]) -> Result<Vec<Token>, String>;

    /// The text of sampled tokens; bytes that are no character yet become U+FFFD.
    fn decode(&self, tokens: &[Token]) -> String;
}

/// The first prompt of a task, rendered once for all attempts at it, so that a sampler sees it is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    pub(crate) messages: Arc<[Message]>,
    pub(crate) tokens: Result<Arc<[Token]>, String>,
}

impl Opening {
    /// Renders a task's messages; a refusal is kept and fails each attempt, so that one odd task stops no other.
    pub fn new(codec: &dyn Codec, messages: &[Message]) -> Self {
        Opening { messages: messages.into(), tokens: codec.open(messages).map(Into::into) }
    }
}
