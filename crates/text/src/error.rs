//! Everything that can be wrong with a tokenizer, a template or a conversation.

use std::path::PathBuf;

use episode::Token;

/// Why text could not be read, rendered or encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read `{}`: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("cannot read `{}` as JSON: {cause}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        cause: serde_json::Error,
    },
    /// A part of the tokenizer is of a kind this crate cannot follow.
    #[error("tokenizer has {part} `{got}`, need {needed}")]
    Unsupported {
        /// Which part.
        part: &'static str,
        /// What the file names.
        got: String,
        /// What can be followed.
        needed: &'static str,
    },
    /// A part of the tokenizer contradicts itself or is out of range.
    #[error("tokenizer is inconsistent: {0}")]
    Inconsistent(#[from] Inconsistency),
    /// The tokenizer's own machinery refused a part of the file.
    #[error("cannot build the tokenizer's {part}: {cause}")]
    Build {
        /// Which part.
        part: &'static str,
        /// Its message.
        cause: String,
    },
    /// A conversation was to be rendered, and there is no template.
    #[error("need a chat template to render a conversation, the tokenizer has none")]
    NoTemplate,
    /// The folder holds several templates, none of them the default.
    #[error("need a chat template named `default`, got {}", names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "))]
    NoDefaultTemplate {
        /// The names there are.
        names: Vec<String>,
    },
    /// The template is not valid.
    #[error("chat template is not valid at line {line}: {cause}")]
    TemplateSyntax {
        /// Line in the template, from 1; 0 when unknown.
        line: usize,
        /// What is wrong.
        cause: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("chat template refuses the conversation: {0}")]
    TemplateRefused(String),
    /// The template failed.
    #[error("chat template failed at line {line}: {cause}")]
    TemplateFailed {
        /// Line in the template, from 1; 0 when unknown.
        line: usize,
        /// What went wrong.
        cause: String,
    },
    /// The conversation holds every character that could mark what came from it.
    #[error("conversation uses every private-use character, need one free to tell content from template")]
    NoMarkerLeft,
    /// No dialect of this name.
    #[error("unknown dialect `{got}`, need one of {}", names_of_dialects())]
    UnknownDialect {
        /// The name given.
        got: String,
    },
    /// Calls that a dialect cannot hold.
    #[error("cannot write the calls in dialect `{dialect}`: {cause}")]
    Unwritable {
        /// The dialect.
        dialect: &'static str,
        /// Why.
        cause: String,
    },
    /// A stop string has no characters.
    #[error("stop string {index} is empty, need at least 1 character")]
    EmptyStop {
        /// Its position in the list.
        index: usize,
    },
    /// A date that is not on the calendar.
    #[error("`{got}` is not a date, need a month of 1..=12, a day of that month and a time of day")]
    BadDate {
        /// The parts given.
        got: String,
    },
}

fn names_of_dialects() -> String {
    crate::Dialect::ALL.iter().map(|d| format!("`{d}`")).collect::<Vec<_>>().join(", ")
}

/// How a tokenizer's parts contradict each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// Two lists that go together have different lengths.
    #[error("`{name}` has {got} entries, need {needed}, one for each token")]
    Length {
        /// The list.
        name: &'static str,
        /// Entries needed.
        needed: usize,
        /// Entries there are.
        got: usize,
    },
    /// An id names no token.
    #[error("`{name}` is token {id}, which is not in the vocabulary")]
    NoSuchToken {
        /// What names it.
        name: String,
        /// The id.
        id: u64,
    },
    /// A text names no token.
    #[error("`{name}` is `{text}`, which is not in the vocabulary")]
    NoSuchText {
        /// What names it.
        name: String,
        /// The text.
        text: String,
    },
    /// Two tokens share an id or a text.
    #[error("token {id} is both `{first}` and `{second}`")]
    TwoTexts {
        /// The id.
        id: Token,
        /// One text.
        first: String,
        /// The other.
        second: String,
    },
    /// Two ids share a text.
    #[error("`{text}` is both token {first} and token {second}")]
    TwoIds {
        /// The text.
        text: String,
        /// One id.
        first: Token,
        /// The other.
        second: Token,
    },
    /// A merge is not a pair of tokens that make a token.
    #[error("merge {index} `{text}` is not two tokens that join into a third")]
    BadMerge {
        /// Its position.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A token type outside the format's list.
    #[error("token {id} has type {got}, need 1 to 6")]
    BadType {
        /// The token.
        id: Token,
        /// Its type.
        got: i32,
    },
    /// A score that is not a number.
    #[error("token {id} has a score that is not a number")]
    BadScore {
        /// The token.
        id: Token,
    },
    /// An id so large that a table up to it would not fit.
    #[error("token id {id} is out of range, need below {limit}")]
    IdTooLarge {
        /// The id.
        id: u64,
        /// The first id that is too large.
        limit: u64,
    },
    /// Nothing to encode with.
    #[error("the vocabulary is empty")]
    Empty,
}
