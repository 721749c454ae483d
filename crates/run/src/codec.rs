//! A model's tokenizer and chat template as the turn loop needs them.

use std::sync::Arc;

use agent::Codec;
use episode::{Message, Role, Token};
use text::Tokenizer;

/// The chat format of a loaded model.
pub struct Chat {
    tokenizer: Arc<Tokenizer>,
    /// The token with which the template ends a turn, or else the first that ends one.
    end: Option<Token>,
    /// What the template writes after a turn's end token, before the next turn opens.
    after_end: Vec<Token>,
}

impl Chat {
    /// The chat format of a tokenizer with a chat template.
    ///
    /// - Errors: a text saying what the template lacks.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Chat, String> {
        let user = Message::new(Role::User, "a");
        let render = |messages: &[Message], open| tokenizer.render_tokens(messages, open).map_err(|e| e.to_string());
        let opened = render(std::slice::from_ref(&user), true)?;
        let closed = render(&[user, Message::new(Role::Assistant, "b")], false)?;
        let said = closed.get(opened.len()..).filter(|_| closed.starts_with(&opened)).unwrap_or(&[]);
        let end = said.iter().rposition(|t| tokenizer.eos().contains(t));
        let after_end = end.map_or(Vec::new(), |end| said[end + 1..].to_vec());
        let end = end.map(|at| said[at]).or(tokenizer.eos().first().copied());
        Ok(Chat { tokenizer, end, after_end })
    }

    /// The token that ends a turn.
    pub fn end(&self) -> Option<Token> {
        self.end
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}

impl Codec for Chat {
    fn open(&self, messages: &[Message]) -> Result<Vec<Token>, String> {
        self.tokenizer.render_tokens(messages, true).map_err(|e| e.to_string())
    }

    /// What follows is found by rendering the messages behind a fixed start and taking off that start: the sampled turn
    /// itself is never rendered.
    fn go_on(&self, closed: bool, messages: &[Message]) -> Result<Vec<Token>, String> {
        let start = [Message::new(Role::User, "a"), Message::new(Role::Assistant, "b")];
        let render =
            |messages: &[Message], open| self.tokenizer.render_tokens(messages, open).map_err(|e| e.to_string());
        let before = render(&start, false)?;
        let all = render(&[&start, messages].concat(), true)?;
        let Some(added) = all.strip_prefix(&before[..]) else {
            return Err("the chat template rewrites what was said, so a further turn cannot be appended".to_owned());
        };
        let mut tokens: Vec<Token> = if closed { Vec::new() } else { self.end.into_iter().collect() };
        tokens.extend_from_slice(&self.after_end);
        tokens.extend_from_slice(added);
        Ok(tokens)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        self.tokenizer.decode(tokens, true)
    }
}
