//! Bare JSON with `parameters`, perhaps behind a mark, as Llama 3.1 to 3.3 write it.
//!
//! Source: Meta, Llama 3.1 model card and prompt formats, "JSON based tool calling"; several calls stand behind semicolons.

use episode::{ToolCall, ToolSpec};

use super::{Grammar, Piece, Strictness, bare, need, shape};
use crate::json::python_call;

const MARK: &str = "<|python_tag|>";

pub(super) struct Llama;

impl Grammar for Llama {
    /// Behind the mark there is nothing but calls.
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece> {
        let bare = bare::cut(text, how, &[';']);
        // In front of a call it is a mark, inside one it is text.
        let before = bare.first().map_or(text.len(), |piece| piece.range.start);
        let Some(mark) = text[..before].find(MARK) else { return bare };
        let mut pieces = Vec::new();
        let (mut start, mut at) = (mark, mark + MARK.len());
        while pieces.len() <= super::MAX_CALLS {
            let rest = text[at..].trim_start();
            // A semicolon may also end the list.
            if rest.is_empty() && !pieces.is_empty() {
                break;
            }
            let read = match rest.starts_with(['{', '[']) {
                true => shape::value(rest, how),
                false => Err(need("a call as a JSON object", rest)),
            };
            match read {
                Ok((value, length)) => {
                    let behind = rest[length..].trim_start();
                    let next = behind.strip_prefix(';');
                    at = text.len() - next.map_or(rest.len() - length, str::len);
                    pieces.push(shape::piece(start..at, value, how));
                    start = at;
                    if next.is_none() {
                        break;
                    }
                }
                Err(reason) => {
                    pieces.push(Piece::broken(start..text.len(), text, reason));
                    break;
                }
            }
        }
        pieces
    }

    fn spell(&self, calls: &[ToolCall], _tools: &[ToolSpec]) -> String {
        calls.iter().map(|call| python_call(call, "parameters")).collect::<Vec<_>>().join("; ")
    }

    fn how(&self) -> &'static str {
        "To call a tool, write nothing but its name and arguments as a JSON object; for several calls, put `;` between \
         them:\n{\"name\": \"the tool's name\", \"parameters\": {\"an argument\": \"its value\"}}"
    }

    fn signs(&self) -> &'static [&'static str] {
        &["\"name\"", "\"parameters\""]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[MARK]
    }
}
