//! Messages as tokens, so that an endpoint that is spoken to in messages fits the one turn loop.
//!
//! A token is a byte, or one of five marks. A prompt is the tools, the messages, each as JSON, and the mark that opens the
//! policy's turn; a turn is what is said, then each call, then the mark that ends it. The marks cannot be written, so no
//! text can be taken for a call or a message that it only looks like.

use agent::Codec;
use episode::{Message, Role, Token, ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use text::Next;
use text::dialect::{Dialect, Malformed, Reading, Reason, Strictness, check_arguments};

/// Between calls in the text of a turn; no text that an endpoint gives may hold it.
const SEPARATOR: char = '\u{1e}';
/// Characters of a call's text that are shown when it cannot be read.
const SHOWN: usize = 200;

/// A call as an endpoint wrote it, its arguments as the text they came as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// The chat format of an endpoint that is spoken to in messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChatCodec {
    written: Option<(Dialect, Strictness)>,
}

/// A conversation taken out of a prompt.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Talk {
    pub(super) tools: Option<Value>,
    pub(super) said: Vec<Said>,
}

/// One message or one turn of the policy.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Message(Message),
    Turn { content: String, calls: Vec<RawCall> },
}

impl ChatCodec {
    /// Ends the policy's turn; the one stop token.
    pub const END: Token = 256;
    const TURN: Token = 257;
    const MESSAGE: Token = 258;
    const TOOLS: Token = 259;
    const CALL: Token = 260;

    /// For an endpoint that takes tools and gives calls apart from what is said.
    pub fn native() -> Self {
        ChatCodec { written: None }
    }

    /// For an endpoint that knows no tools: the policy is told of them in the system message and writes calls in its text.
    pub fn written(dialect: Dialect, how: Strictness) -> Self {
        ChatCodec { written: Some((dialect, how)) }
    }

    fn push(into: &mut Vec<Token>, mark: Token, json: &impl Serialize) -> Result<(), String> {
        into.push(mark);
        into.extend(serde_json::to_vec(json).map_err(|e| e.to_string())?.into_iter().map(Token::from));
        Ok(())
    }

    fn messages(into: &mut Vec<Token>, messages: &[Message]) -> Result<(), String> {
        for message in messages {
            Self::push(into, Self::MESSAGE, message)?;
        }
        into.push(Self::TURN);
        Ok(())
    }

    /// The tokens of a turn as an endpoint gave it.
    pub(super) fn turn(content: &str, calls: &[RawCall], ended: bool) -> Vec<Token> {
        let clean = content.replace(SEPARATOR, "\u{fffd}");
        let mut tokens: Vec<Token> = clean.bytes().map(Token::from).collect();
        for call in calls {
            // A control character within JSON is escaped, so a call cannot hold the separator.
            Self::push(&mut tokens, Self::CALL, call).expect("three texts always serialise");
        }
        tokens.extend(ended.then_some(Self::END));
        tokens
    }

    /// Takes a prompt apart again.
    ///
    /// - Errors: a text saying what is wrong with it.
    pub(super) fn talk(tokens: &[Token]) -> Result<Talk, String> {
        let mut talk = Talk::default();
        let mut rest = tokens;
        loop {
            let (mark, body, behind) = cut(rest)?;
            rest = behind;
            match mark {
                Self::TOOLS if talk.tools.is_none() && talk.said.is_empty() => talk.tools = Some(parse(&body)?),
                Self::MESSAGE => talk.said.push(Said::Message(parse(&body)?)),
                Self::TURN if rest.is_empty() && body.is_empty() => return Ok(talk),
                Self::TURN => {
                    let content = String::from_utf8(body).map_err(|_| "a turn is not UTF-8".to_owned())?;
                    let mut calls = Vec::new();
                    while rest.first() == Some(&Self::CALL) {
                        let (_, body, behind) = cut(rest)?;
                        calls.push(parse(&body)?);
                        rest = behind;
                    }
                    if rest.first() != Some(&Self::END) {
                        return Err("a turn does not end".to_owned());
                    }
                    rest = &rest[1..];
                    talk.said.push(Said::Turn { content, calls });
                }
                other => return Err(format!("token {other} stands where none of its kind may")),
            }
        }
    }
}

/// The first mark, the bytes behind it, and the rest from the next mark on.
fn cut(tokens: &[Token]) -> Result<(Token, Vec<u8>, &[Token]), String> {
    let (mark, rest) = tokens.split_first().ok_or("it does not open a turn")?;
    if *mark <= Token::from(u8::MAX) {
        return Err("a byte stands outside of any message".to_owned());
    }
    let end = rest.iter().position(|t| *t > Token::from(u8::MAX)).unwrap_or(rest.len());
    Ok((*mark, bytes(&rest[..end]), &rest[end..]))
}

fn bytes(tokens: &[Token]) -> Vec<u8> {
    tokens.iter().filter_map(|t| u8::try_from(*t).ok()).collect()
}

fn parse<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

/// The tools as the API takes them.
fn api_tools(tools: &[ToolSpec]) -> Value {
    let tool = |t: &ToolSpec| {
        json!({"type": "function", "function": {
            "name": t.name, "description": t.description, "parameters": t.parameters,
        }})
    };
    tools.iter().map(tool).collect()
}

impl Codec for ChatCodec {
    fn open(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<Token>, String> {
        let mut tokens = Vec::new();
        match self.written {
            _ if tools.is_empty() => Self::messages(&mut tokens, messages)?,
            None => {
                Self::push(&mut tokens, Self::TOOLS, &api_tools(tools))?;
                Self::messages(&mut tokens, messages)?;
            }
            Some((dialect, _)) => {
                let told = dialect.instructions(tools);
                let (mut first, rest) = match messages.split_first() {
                    Some((first, rest)) if first.role == Role::System => (first.clone(), rest),
                    _ => (Message::new(Role::System, ""), messages),
                };
                first.content = [first.content.as_str(), &told]
                    .iter()
                    .filter(|t| !t.is_empty())
                    .copied()
                    .collect::<Vec<_>>()
                    .join("\n\n");
                Self::push(&mut tokens, Self::MESSAGE, &first)?;
                Self::messages(&mut tokens, rest)?;
            }
        }
        Ok(tokens)
    }

    fn go_on(&self, _: &[Message], _: &[ToolSpec], closed: bool, new: &[Message]) -> Result<Next, String> {
        let mut tokens = if closed { Vec::new() } else { vec![Self::END] };
        Self::messages(&mut tokens, new)?;
        Ok(Next::Append(tokens))
    }

    fn decode(&self, tokens: &[Token]) -> String {
        let mut text = String::new();
        for part in tokens.split_inclusive(|t| *t > Token::from(u8::MAX)) {
            text.push_str(&String::from_utf8_lossy(&bytes(part)));
            if part.last() == Some(&Self::CALL) {
                text.push(SEPARATOR);
            }
        }
        text
    }

    fn read(&self, text: &str, tools: &[ToolSpec]) -> Reading {
        let mut parts = text.split(SEPARATOR);
        let said = parts.next().unwrap_or_default();
        let calls: Vec<_> = parts.map(|call| read_call(call, tools)).collect();
        match self.written {
            Some((dialect, how)) if calls.is_empty() => dialect.read(said, tools, how),
            _ => Reading { said: said.to_owned(), calls },
        }
    }
}

fn read_call(text: &str, tools: &[ToolSpec]) -> Result<ToolCall, Malformed> {
    let broken = |text: &str, reason| Malformed { text: text.chars().take(SHOWN).collect(), reason };
    let raw: RawCall = serde_json::from_str(text).map_err(|e| broken(text, Reason::NotJson(e.to_string())))?;
    if raw.name.is_empty() || raw.name.len() > 256 {
        return Err(broken(text, Reason::Name { got: raw.name.chars().take(SHOWN).collect() }));
    }
    let named = format!("{} {}", raw.name, raw.arguments);
    let arguments = match raw.arguments.trim() {
        // What some endpoints write for a tool without parameters.
        "" => Value::Object(serde_json::Map::new()),
        text => serde_json::from_str(text).map_err(|e| broken(&named, Reason::NotJson(e.to_string())))?,
    };
    let Value::Object(arguments) = arguments else { return Err(broken(&named, Reason::NoArguments)) };
    if let Some(tool) = tools.iter().find(|t| t.name == raw.name) {
        check_arguments(&tool.parameters, &arguments).map_err(|e| broken(&named, Reason::Mismatch(e)))?;
    }
    Ok(ToolCall { tool: raw.name, arguments })
}
