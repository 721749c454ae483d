//! A mark and JSON behind it, as Mistral's models write it: a list of calls, or since 2025 the name beside its arguments.
//!
//! Source: mistral-common, tokenizer versions 3 (list) and 11, 13 (`[ARGS]`); the chat templates of Mistral Nemo and Small 3.2.

use episode::{ToolCall, ToolSpec};
use serde_json::Value;

use super::shape::{Arguments, Raw};
use super::{Grammar, Piece, Reason, Strictness, need, shape};
use crate::json::python_call;

const MARK: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

pub(super) struct Mistral;

impl Grammar for Mistral {
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(found) = text[at..].find(MARK).filter(|_| pieces.len() <= super::MAX_CALLS) {
            let start = at + found;
            let body = start + MARK.len();
            let rest = text[body..].trim_start();
            let from = text.len() - rest.len();
            let piece = match rest.starts_with(['[', '{']) {
                true => shape::value(rest, how).map(|(value, length)| shape::piece(start..from + length, value, how)),
                false => named(rest, how).map(|(raw, length)| Piece { range: start..from + length, calls: vec![Ok(raw)] }),
            };
            let piece = piece.unwrap_or_else(|reason| {
                let end = text[body..].find(MARK).map_or(text.len(), |next| body + next);
                Piece::broken(start..end, text, reason)
            });
            at = piece.range.end;
            pieces.push(piece);
        }
        pieces
    }

    fn spell(&self, calls: &[ToolCall], _tools: &[ToolSpec]) -> String {
        let all: Vec<String> = calls.iter().map(|call| python_call(call, "arguments")).collect();
        format!("{MARK}[{}]", all.join(", "))
    }

    fn how(&self) -> &'static str {
        "To call tools, write a mark and then a list of JSON objects, one for each call:\n\
         [TOOL_CALLS][{\"name\": \"the tool's name\", \"arguments\": {\"an argument\": \"its value\"}}]"
    }

    fn signs(&self) -> &'static [&'static str] {
        &[MARK]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[MARK, ARGS, CALL_ID]
    }
}

/// `name`, perhaps `[CALL_ID]id`, perhaps `[ARGS]`, then an object.
fn named(text: &str, how: Strictness) -> Result<(Raw, usize), Reason> {
    let end = text.find(['{', '\n']).unwrap_or(text.len());
    let head = &text[..end];
    let name = match (head.split_once(CALL_ID), head.strip_suffix(ARGS)) {
        (Some((name, id)), _) if id.ends_with(ARGS) => name,
        (None, Some(name)) => name,
        (None, None) if how == Strictness::Lenient => head,
        _ => return Err(need(format!("`{ARGS}` and an object of arguments"), &text[end..])),
    };
    let (value, length) = shape::value(&text[end..], how)?;
    let Value::Object(arguments) = value else { return Err(Reason::NoArguments) };
    let raw = Raw { name: name.trim().to_owned(), arguments: Arguments::Values(arguments) };
    Ok((raw, end + length))
}
