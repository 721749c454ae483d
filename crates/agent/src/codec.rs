//! What the loop needs of a tokeniser and its chat template.

use std::sync::Arc;

use episode::{Message, Token, ToolSpec};
use text::Next;
use text::dialect::Reading;

/// Messages to tokens and tokens to text, for one model's chat format.
pub trait Codec: Send + Sync {
    /// The tokens of a conversation up to and with the opening of the policy's first turn; `tools` are those it may call.
    ///
    /// - Errors: a text saying why the template cannot render the messages.
    fn open(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<Token>, String>;

    /// What the policy reads before it speaks again. `history` is everything said so far, the turn that was just sampled
    /// last; `closed` says whether that turn holds its own end-of-turn token; `new` is what it is told.
    ///
    /// - Holds: with [`Next::Append`] nothing that stands before is rendered again.
    /// - Errors: a text saying why the template cannot render the messages.
    fn go_on(&self, history: &[Message], tools: &[ToolSpec], closed: bool, new: &[Message]) -> Result<Next, String>;

    /// The text of sampled tokens; bytes that are no character yet become U+FFFD.
    fn decode(&self, tokens: &[Token]) -> String;

    /// The calls in what the policy said.
    fn read(&self, text: &str, tools: &[ToolSpec]) -> Reading;
}

/// The first prompt of a task, rendered once for all attempts at it, so that a sampler sees it is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    pub(crate) messages: Arc<[Message]>,
    pub(crate) tools: Arc<[ToolSpec]>,
    pub(crate) tokens: Result<Arc<[Token]>, String>,
}

impl Opening {
    /// Renders a task's messages; a refusal is kept and fails each attempt, so that one odd task stops no other.
    pub fn new(codec: &dyn Codec, messages: &[Message], tools: Arc<[ToolSpec]>) -> Self {
        let tokens = codec.open(messages, &tools).map(Into::into);
        Opening { messages: messages.into(), tools, tokens }
    }
}
