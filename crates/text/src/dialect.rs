//! Dialects: how a policy spells tool calls in its turn, read and written. One file each.
//!
//! A dialect only cuts a text into calls and what is said beside them ([`Dialect::read`]) and spells calls
//! ([`Dialect::write`]). Nothing in a text is ever evaluated: a value is a literal or it stays text. What begins like a
//! call and is none becomes a [`Malformed`], which the policy is told; it is never an error of the system.
//!
//! The same text, tools and [`Strictness`] give the same reading, whoever asks: training, evaluation and use call this
//! one function.
//!
//! A new dialect is a file and a line in the table.

mod bare;
mod literal;
mod schema;
mod shape;

use std::ops::Range;

use episode::{ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};

use crate::chat::envelope;
use crate::json::python_json;
use crate::{ChatOptions, ChatTemplate, TextError};

pub use schema::{Mismatch, check as check_arguments};
use shape::{Raw, settle};

/// Calls in one turn, readable or not; what comes after them is one unreadable call. Also bounds the work: each is found
/// by at most one pass over the text.
const MAX_CALLS: usize = 128;
/// Bytes of one call's text.
const MAX_CALL_BYTES: usize = 1 << 20;
/// Bytes of a tool's name.
const MAX_NAME_BYTES: usize = 256;
/// Lists and objects inside each other.
const MAX_DEPTH: usize = 64;
/// Characters of an unreadable call that are shown.
const SHOWN_CHARS: usize = 200;

/// What opens the answer behind a policy's reasoning.
const END_OF_REASONING: &str = "</think>";

/// Makes, from one line a dialect: its module, its place in the settings and in the list of all.
macro_rules! dialects {
    ($($name:literal => $module:ident :: $Type:ident: $summary:literal,)+) => {
        $(mod $module;)+

        /// How a policy spells tool calls.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Dialect {
            $(
                #[doc = $summary]
                #[serde(rename = $name)]
                $Type,
            )+
        }

        impl Dialect {
            /// All dialects, in the order in which [`Dialect::guess`] tries them.
            pub const ALL: &'static [Dialect] = &[$(Dialect::$Type),+];

            /// The dialect's name.
            pub fn name(self) -> &'static str {
                match self { $(Dialect::$Type => $name,)+ }
            }

            /// One line on how it looks.
            pub fn summary(self) -> &'static str {
                match self { $(Dialect::$Type => $summary,)+ }
            }

            fn grammar(self) -> &'static dyn Grammar {
                match self { $(Dialect::$Type => &$module::$Type,)+ }
            }
        }
    };
}

dialects! {
    "xml" => xml::Xml:
        "`<function=name><parameter=key>value</parameter></function>`, perhaps between `<tool_call>` tags.",
    "hermes" => hermes::Hermes:
        "`<tool_call>{\"name\": …, \"arguments\": {…}}</tool_call>`, a pair of tags for each call.",
    "mistral" => mistral::Mistral:
        "`[TOOL_CALLS][{\"name\": …, \"arguments\": {…}}]`; `[TOOL_CALLS]name[ARGS]{…}` is read too.",
    "pythonic" => pythonic::Pythonic:
        "`[name(key=value), other(…)]` with Python's literals, perhaps between `<|tool_call_start|>` and `<|tool_call_end|>`.",
    "llama" => llama::Llama:
        "`{\"name\": …, \"parameters\": {…}}`, perhaps behind `<|python_tag|>`; several calls with `;` between them.",
    "json" => json::Json:
        "`{\"name\": …, \"arguments\": {…}}`, or a list of such objects for several calls.",
}

/// How much is forgiven. The one switch: no other setting and no place of use changes what is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strictness {
    /// Reads what is clear though not as the dialect asks: a call that lacks its closing mark at the end of the turn, a key
    /// given twice (the last counts), arguments as JSON inside a text, bare calls behind prose or between code fences,
    /// Python's `True`, `False` and `None`.
    #[default]
    Lenient,
    /// Reads only what is spelled as the dialect asks.
    Strict,
}

/// What a turn says and which tools it calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The text beside the calls, without the white space around them; the whole text as it stands where there are none.
    /// What could not be read as a call is part of it, so that nothing written is lost.
    pub said: String,
    /// The calls, in order.
    pub calls: Vec<Result<ToolCall, Malformed>>,
}

impl Reading {
    /// A turn without calls.
    pub fn plain(said: impl Into<String>) -> Self {
        Reading { said: said.into(), calls: Vec::new() }
    }
}

/// What began like a call and is none: an observation for the policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the call `{text}`: {reason}")]
pub struct Malformed {
    /// The beginning of its text.
    pub text: String,
    /// What is wrong.
    pub reason: Reason,
}

/// Why a text is no call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Not JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// Something else was needed at some place.
    #[error("need {needed}, got `{got}`")]
    Syntax {
        /// What.
        needed: String,
        /// The beginning of what stands there.
        got: String,
    },
    /// The text ends too early.
    #[error("need {needed}, got the end of the text")]
    Ends {
        /// What was still to come.
        needed: String,
    },
    /// No name, or one that cannot be a tool's.
    #[error("need a tool's name of 1 to {MAX_NAME_BYTES} bytes, got `{got}`")]
    Name {
        /// What was given.
        got: String,
    },
    /// No arguments.
    #[error("need `arguments`, an object")]
    NoArguments,
    /// A part that a call does not have.
    #[error("need only `name` and `arguments`, got also `{got}`")]
    Extra {
        /// Its key.
        got: String,
    },
    /// A key given twice.
    #[error("`{key}` is given twice")]
    Duplicate {
        /// The key.
        key: String,
    },
    /// Arguments the tool does not take.
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
    /// Lists and objects too deep inside each other.
    #[error("need lists and objects at most {MAX_DEPTH} deep")]
    TooDeep,
    /// Too long.
    #[error("need at most {MAX_CALL_BYTES} bytes, got {got}")]
    TooLong {
        /// Its bytes.
        got: usize,
    },
    /// Too many calls in one turn.
    #[error("need at most {MAX_CALLS} calls in a turn")]
    TooMany,
}

/// A stretch of a turn's text that is not said: the calls in it.
struct Piece {
    range: Range<usize>,
    calls: Vec<Result<Raw, Broken>>,
}

/// What began like a call, whole.
struct Broken {
    text: String,
    reason: Reason,
}

/// What a dialect's file holds.
trait Grammar: Sync {
    /// The stretches that hold calls, in order, disjoint.
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece>;

    /// Calls as the dialect writes them, whether or not they can be read back.
    fn spell(&self, calls: &[ToolCall], tools: &[ToolSpec]) -> String;

    /// How to tell a policy to write a call.
    fn how(&self) -> &'static str;

    /// What a turn with a call in this dialect holds, and no other.
    fn signs(&self) -> &'static [&'static str];

    /// Marks that some vocabularies have as special tokens, so that decoding must keep them.
    fn marks(&self) -> &'static [&'static str] {
        &[]
    }
}

impl Dialect {
    /// The dialect of this name.
    ///
    /// - Errors: `UnknownDialect` names those there are.
    pub fn parse(name: &str) -> Result<Self, TextError> {
        let found = Dialect::ALL.iter().find(|d| d.name() == name);
        found.copied().ok_or_else(|| TextError::UnknownDialect { got: name.to_owned() })
    }

    /// The dialect in which a template writes calls, found by letting it write one and reading that.
    ///
    /// `None` when the template writes no calls, or writes them as no dialect here does.
    pub fn guess(chat: &ChatTemplate) -> Option<Self> {
        let call = ToolCall::new("zq_look", serde_json::json!({"zq_place": "a b"}));
        let mut turn = episode::Message::new(episode::Role::Assistant, "");
        turn.calls.push(call.clone());
        let user = episode::Message::new(episode::Role::User, "a");
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let opened = chat.render(std::slice::from_ref(&user), &options).ok()?;
        let text = chat.render(&[user, turn], &ChatOptions::default()).ok()?;
        let same = text.char_indices().zip(opened.chars()).find(|((_, a), b)| a != b);
        let start = same.map_or(opened.len().min(text.len()), |((at, _), _)| at);
        Dialect::ALL.iter().copied().find(|dialect| {
            [&text[start..], &text].iter().any(|turn| {
                let is_its_own = dialect.grammar().signs().iter().all(|sign| turn.contains(sign));
                is_its_own && dialect.read(turn, &[], Strictness::Lenient).calls == [Ok(call.clone())]
            })
        })
    }

    /// Reads a turn.
    ///
    /// Calls are looked for behind the policy's reasoning, where it begins with `<think>`. A tool's arguments are checked
    /// against its schema; a tool that is not among `tools` is left for the gate to refuse.
    ///
    /// - Holds: a function of its arguments alone; reads any text; nothing in it is evaluated.
    pub fn read(self, text: &str, tools: &[ToolSpec], how: Strictness) -> Reading {
        self.read_behind(text, text.trim_start().starts_with("<think>"), tools, how)
    }

    /// [`Dialect::read`] where the caller knows whether the turn begins within the policy's reasoning.
    pub fn read_behind(self, text: &str, reasoning: bool, tools: &[ToolSpec], how: Strictness) -> Reading {
        let start = match reasoning {
            true => text.find(END_OF_REASONING).map_or(text.len(), |at| at + END_OF_REASONING.len()),
            false => 0,
        };
        let mut pieces = self.grammar().cut(&text[start..], how);
        if pieces.is_empty() {
            return Reading::plain(text);
        }
        limit(&mut pieces, text.len() - start);
        let mut said = Said::default();
        let mut calls = Vec::new();
        let mut done = 0;
        for piece in pieces {
            let (from, to) = (start + piece.range.start, start + piece.range.end);
            said.text(&text[done..from], done > 0);
            done = to;
            for call in piece.calls {
                let shown = || text[from..to].trim().to_owned();
                let settled = call.and_then(|raw| settle(raw, tools, how).map_err(|r| r.or_shown(shown)));
                match settled {
                    Ok(call) => calls.push(Ok(call)),
                    Err(broken) => {
                        calls.push(Err(Malformed { text: show(&broken.text, SHOWN_CHARS), reason: broken.reason }));
                        said.line(&broken.text);
                    }
                }
            }
        }
        said.line(text[done..].trim_start());
        Reading { said: said.0, calls }
    }

    /// Writes calls as a policy would.
    ///
    /// - Holds: [`Dialect::read`] gives the same calls back, strictly read.
    /// - Errors: `Unwritable` where it would not: a value that the dialect cannot hold, arguments the tool does not take.
    pub fn write(self, calls: &[ToolCall], tools: &[ToolSpec]) -> Result<String, TextError> {
        let text = self.spell(calls, tools);
        let reading = self.read_behind(&text, false, tools, Strictness::Strict);
        let unwritable = |cause: String| TextError::Unwritable { dialect: self.name(), cause };
        let mut read = Vec::with_capacity(calls.len());
        for call in reading.calls {
            read.push(call.map_err(|malformed| unwritable(malformed.reason.to_string()))?);
        }
        match read == calls && (calls.is_empty() || reading.said.trim().is_empty()) {
            true => Ok(text),
            false => Err(unwritable("it would be read as another".into())),
        }
    }

    /// [`Dialect::write`] for text that nobody reads again.
    pub(crate) fn spell(self, calls: &[ToolCall], tools: &[ToolSpec]) -> String {
        if calls.is_empty() { String::new() } else { self.grammar().spell(calls, tools) }
    }

    /// What to put into the system message of a policy whose template knows no tools: the tools, and how to call one.
    /// Empty where there are none.
    pub fn instructions(self, tools: &[ToolSpec]) -> String {
        if tools.is_empty() {
            return String::new();
        }
        let list = envelope(tools);
        let lines: Vec<String> = list.as_array().into_iter().flatten().map(python_json).collect();
        format!(
            "# Tools\n\nYou may call these tools, each a line of JSON:\n<tools>\n{}\n</tools>\n\n{}\nIts answer comes in the \
             next message. A turn without a call is your answer.",
            lines.join("\n"),
            self.grammar().how()
        )
    }

    /// The dialect's marks, which some vocabularies have as special tokens: a policy that speaks it must be free to sample
    /// them, and decoding must keep them.
    pub fn marks(self) -> &'static [&'static str] {
        self.grammar().marks()
    }
}

impl std::fmt::Display for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Text beside calls: what stands between two calls is a line of its own.
#[derive(Default)]
struct Said(String);

impl Said {
    /// A stretch before a call, and perhaps after one.
    fn text(&mut self, text: &str, after_a_call: bool) {
        let text = text.trim_end();
        self.line(if after_a_call { text.trim_start() } else { text });
    }

    fn line(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(text);
    }
}

/// Cuts a turn off at the last call it may have.
fn limit(pieces: &mut Vec<Piece>, end: usize) {
    let mut n = 0;
    let over = pieces.iter().position(|piece| {
        n += piece.calls.len();
        n > MAX_CALLS
    });
    if let Some(at) = over {
        let start = pieces[at].range.start;
        pieces.truncate(at);
        let calls = vec![Err(Broken { text: String::new(), reason: Reason::TooMany })];
        pieces.push(Piece { range: start..end, calls });
    }
}

impl Piece {
    /// A stretch that is no call, though it began like one.
    fn broken(range: Range<usize>, text: &str, reason: Reason) -> Piece {
        let text = text[range.clone()].trim().to_owned();
        Piece { range, calls: vec![Err(Broken { text, reason })] }
    }
}

impl Reason {
    /// With the text it is about.
    fn or_shown(self, text: impl FnOnce() -> String) -> Broken {
        Broken { text: text(), reason: self }
    }
}

/// The beginning of a text, on one line.
fn show(text: &str, n_chars: usize) -> String {
    let mut shown: String = text.chars().take(n_chars).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Something else is needed at the beginning of `rest`.
fn need(needed: impl Into<String>, rest: &str) -> Reason {
    match rest.is_empty() {
        true => Reason::Ends { needed: needed.into() },
        false => Reason::Syntax { needed: needed.into(), got: show(rest, 20) },
    }
}

#[cfg(test)]
mod tests;
