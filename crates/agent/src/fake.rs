//! A chat format without a vocabulary: one token a character, two special tokens around a message.

use episode::{Message, Token, ToolSpec};
use text::dialect::{Dialect, Reading, Strictness};

use crate::{Codec, Next};

/// Renders `START role newline content END newline` for each message, characters as their code points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chars;

impl Chars {
    /// Begins a message.
    pub const START: Token = 0x11_0000;
    /// Ends a message; the stop token.
    pub const END: Token = 0x11_0001;
    /// A message holding this cannot be rendered.
    pub const UNSPEAKABLE: char = '\u{0}';

    /// The tokens of a text.
    pub fn tokens(text: &str) -> Vec<Token> {
        text.chars().map(u32::from).collect()
    }

    /// The tokens of a turn that ends by itself.
    pub fn turn(text: &str) -> Vec<Token> {
        let mut tokens = Self::tokens(text);
        tokens.push(Self::END);
        tokens
    }

    fn push(into: &mut Vec<Token>, role: &str) {
        into.push(Self::START);
        into.extend(Self::tokens(role));
        into.push(u32::from('\n'));
    }

    fn render(into: &mut Vec<Token>, messages: &[Message]) -> Result<(), String> {
        for message in messages {
            if message.content.contains(Self::UNSPEAKABLE) {
                return Err("a message holds the character that cannot be rendered".to_owned());
            }
            Self::push(into, message.role.as_str());
            into.extend(Self::turn(&message.content));
            into.push(u32::from('\n'));
        }
        Self::push(into, "assistant");
        Ok(())
    }
}

impl Codec for Chars {
    fn open(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<Token>, String> {
        let mut tokens = Vec::new();
        if !tools.is_empty() {
            let names: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
            Self::push(&mut tokens, "tools");
            tokens.extend(Self::turn(&names.join(" ")));
            tokens.push(u32::from('\n'));
        }
        Self::render(&mut tokens, messages)?;
        Ok(tokens)
    }

    fn go_on(&self, _: &[Message], _: &[ToolSpec], closed: bool, new: &[Message]) -> Result<Next, String> {
        let mut tokens = if closed { Vec::new() } else { vec![Self::END] };
        tokens.push(u32::from('\n'));
        Self::render(&mut tokens, new)?;
        Ok(Next::Append(tokens))
    }

    fn decode(&self, tokens: &[Token]) -> String {
        tokens.iter().filter_map(|t| char::from_u32(*t)).collect()
    }

    fn read(&self, text: &str, tools: &[ToolSpec]) -> Reading {
        Dialect::Json.read(text, tools, Strictness::Lenient)
    }
}
