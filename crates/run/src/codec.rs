//! A model's tokenizer, chat template and tool-call dialect as the turn loop needs them.

use std::sync::Arc;

use agent::Codec;
use episode::{Message, Token, ToolSpec};
use text::dialect::Reading;
use text::{Dialect, Dialogue, Next, Strictness, Tokenizer};

/// The chat format of a loaded model.
pub struct Chat {
    dialogue: Dialogue,
    /// Whether prompts tell of tools.
    announces: bool,
}

impl Chat {
    /// The chat format of a tokenizer with a chat template, tools called as the template has it.
    ///
    /// - Errors: a text saying what the template lacks.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Chat, String> {
        Chat::with_tools(tokenizer, None, Strictness::default())
    }

    /// [`Chat::new`] with tools called in a dialect, read as strictly as said.
    pub fn with_tools(
        tokenizer: Arc<Tokenizer>,
        dialect: Option<Dialect>,
        strictness: Strictness,
    ) -> Result<Chat, String> {
        let dialogue = Dialogue::new(tokenizer, dialect, strictness).map_err(|e| e.to_string())?;
        Ok(Chat { dialogue, announces: true })
    }

    /// The same, with prompts that tell of tools or do not. What a turn calls is read either way.
    #[must_use]
    pub fn announcing(self, announces: bool) -> Chat {
        Chat { announces, ..self }
    }

    /// A turn of the policy's as it would say it: its text and its calls.
    ///
    /// - Errors: a call that the dialect cannot spell.
    pub fn turn(&self, message: &Message, tools: &[ToolSpec]) -> Result<String, String> {
        if message.calls.is_empty() {
            return Ok(message.content.clone());
        }
        let calls = self.dialogue.dialect().write(&message.calls, tools).map_err(|e| e.to_string())?;
        Ok(if message.content.is_empty() { calls } else { format!("{}\n{calls}", message.content) })
    }

    /// The tools that prompts tell of.
    fn told<'t>(&self, tools: &'t [ToolSpec]) -> &'t [ToolSpec] {
        if self.announces { tools } else { &[] }
    }

    /// The token that ends a turn.
    pub fn end(&self) -> Option<Token> {
        self.dialogue.end()
    }

    /// What the policy must never sample; the marks of its dialect are not among them.
    pub fn banned(&self) -> Vec<Token> {
        self.dialogue.banned()
    }

    /// The dialect in which tools are called.
    pub fn dialect(&self) -> Dialect {
        self.dialogue.dialect()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.dialogue.tokenizer()
    }
}

impl Codec for Chat {
    fn open(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<Token>, String> {
        self.dialogue.render(messages, self.told(tools), true).map_err(|e| e.to_string())
    }

    fn go_on(&self, history: &[Message], tools: &[ToolSpec], closed: bool, new: &[Message]) -> Result<Next, String> {
        self.dialogue.go_on(history, self.told(tools), closed, new).map_err(|e| e.to_string())
    }

    fn decode(&self, tokens: &[Token]) -> String {
        self.dialogue.decode(tokens)
    }

    fn read(&self, text: &str, tools: &[ToolSpec]) -> Reading {
        self.dialogue.read(text, tools)
    }
}
