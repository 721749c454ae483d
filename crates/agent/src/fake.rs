//! A chat format without a vocabulary: one token a character, two special tokens around a message.

use episode::{Message, Token};

use crate::Codec;

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
    fn open(&self, messages: &[Message]) -> Result<Vec<Token>, String> {
        let mut tokens = Vec::new();
        Self::render(&mut tokens, messages)?;
        Ok(tokens)
    }

    fn go_on(&self, closed: bool, messages: &[Message]) -> Result<Vec<Token>, String> {
        let mut tokens = if closed { Vec::new() } else { vec![Self::END] };
        tokens.push(u32::from('\n'));
        Self::render(&mut tokens, messages)?;
        Ok(tokens)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        tokens.iter().filter_map(|t| char::from_u32(*t)).collect()
    }
}
