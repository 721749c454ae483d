//! A JSON object between tags, as Hermes 2 and 3, Qwen 2.5, Qwen 3, QwQ, MiMo, Granite 4 and many others write it.
//!
//! Source: NousResearch, Hermes-Function-Calling; the chat templates of the models named.

use episode::{ToolCall, ToolSpec};

use super::{Grammar, Piece, Strictness, need, shape};
use crate::json::python_call;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) struct Hermes;

impl Grammar for Hermes {
    /// The JSON is read first and its closing tag looked for behind it, so that a tag inside a text value is none.
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(found) = text[at..].find(OPEN).filter(|_| pieces.len() <= super::MAX_CALLS) {
            let start = at + found;
            let body = start + OPEN.len();
            let read = shape::value(&text[body..], how).and_then(|(value, end)| {
                let rest = text[body + end..].trim_start();
                match rest.strip_prefix(CLOSE) {
                    Some(after) => Ok((value, text.len() - after.len())),
                    None if rest.is_empty() && how == Strictness::Lenient => Ok((value, text.len())),
                    None => Err(need(format!("`{CLOSE}`"), rest)),
                }
            });
            match read {
                Ok((value, end)) => {
                    pieces.push(shape::piece(start..end, value, how));
                    at = end;
                }
                Err(reason) => {
                    let close = text[body..].find(CLOSE).map(|end| body + end + CLOSE.len());
                    let open = text[body..].find(OPEN).map(|end| body + end);
                    at = close.into_iter().chain(open).min().unwrap_or(text.len());
                    pieces.push(Piece::broken(start..at, text, reason));
                }
            }
        }
        pieces
    }

    fn spell(&self, calls: &[ToolCall], _tools: &[ToolSpec]) -> String {
        let one = |call: &ToolCall| format!("{OPEN}\n{}\n{CLOSE}", python_call(call, "arguments"));
        calls.iter().map(one).collect::<Vec<_>>().join("\n")
    }

    fn how(&self) -> &'static str {
        "To call a tool, write its name and arguments as a JSON object between tags; for several calls, one such pair of \
         tags after the other:\n<tool_call>\n{\"name\": \"the tool's name\", \"arguments\": {\"an argument\": \"its value\"}}\n\
         </tool_call>"
    }

    fn signs(&self) -> &'static [&'static str] {
        &[OPEN, "\"name\"", "\"arguments\""]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE]
    }
}
