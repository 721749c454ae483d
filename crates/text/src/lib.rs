//! Tokenizer, chat template and tool calls: text to tokens and back, knowing no model.
//!
//! - [`Tokenizer`] encodes, decodes and renders conversations; it is read from a Hugging Face folder or from the
//!   vocabulary inside a GGUF file ([`GgufVocabulary`]).
//! - [`ChatTemplate`] renders a conversation to the same text as Hugging Face's `apply_chat_template`.
//! - [`Dialect`] reads tool calls out of a turn's text and writes them.
//! - [`Dialogue`] is all three together: it opens a conversation with tools, and says how it goes on after a turn.
//! - [`StreamDecoder`] turns tokens into text as they arrive and finds stop strings.
//!
//! Text from outside is hostile. A *control token* shapes the conversation (`<|im_end|>`); only the template may
//! write one. Text passed as [`Special::Literal`], the content of every message, every tool's description and every
//! argument of a call, is encoded so that the spelling of
//! a control token comes out as ordinary tokens. See [`Tokenizer::render_tokens`] for the exact contract.

mod added;
mod chat;
mod date;
pub mod dialect;
mod dialogue;
mod error;
mod export;
mod gguf;
mod huggingface;
mod json;
mod pre;
mod provenance;
mod spec;
mod stream;
mod tokenizer;

pub use chat::{ChatOptions, ChatTemplate, envelope};
pub use date::Date;
pub use dialect::{Dialect, Strictness};
pub use dialogue::{Dialogue, Next};
pub use error::TextError;
pub use gguf::GgufVocabulary;
pub use stream::StreamDecoder;
pub use tokenizer::{Special, Tokenizer};
