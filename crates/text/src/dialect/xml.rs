//! Tags for the function and each argument, as Qwen3-Coder, Nemotron 3, Seed-OSS and Step 3.5 write it.
//!
//! Values stand as plain text. The tool's schema says which of them are JSON literals; without a schema, what is one is one.
//! A body that is a JSON object, as Llama 3.1's own tags and Functionary have it, is read too.
//!
//! Source: Qwen, Qwen3-Coder chat template and its published parser's way with white space.

use episode::{ToolCall, ToolSpec};
use serde_json::Value;

use super::shape::{Arguments, Raw};
use super::{Grammar, Piece, Reason, Strictness, need, schema, shape};
use crate::json::python_json;

const WRAP: &str = "<tool_call>";
const UNWRAP: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

pub(super) struct Xml;

impl Grammar for Xml {
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(found) = text[at..].find(FUNCTION).filter(|_| pieces.len() <= super::MAX_CALLS) {
            let function = at + found;
            let before = text[at..function].trim_end();
            let start = before.strip_suffix(WRAP).map_or(function, |said| at + said.len());
            let mut cursor = Cursor { text, at: function + FUNCTION.len(), how };
            let piece = match cursor.call().and_then(|raw| cursor.close(start < function).map(|()| raw)) {
                Ok(raw) => Piece { range: start..cursor.at, calls: vec![Ok(raw)] },
                Err(reason) => Piece::broken(start..cursor.recover(), text, reason),
            };
            at = piece.range.end;
            pieces.push(piece);
        }
        pieces
    }

    fn spell(&self, calls: &[ToolCall], tools: &[ToolSpec]) -> String {
        let mut blocks = Vec::with_capacity(calls.len());
        for call in calls {
            let tool = tools.iter().find(|t| t.name == call.tool);
            let mut block = format!("{WRAP}\n{FUNCTION}{}>\n", call.tool);
            for (key, value) in &call.arguments {
                let value = plain(value, key, tool);
                block.push_str(&format!("{PARAMETER}{key}>\n{value}\n{END_PARAMETER}\n"));
            }
            blocks.push(block + END + "\n" + UNWRAP);
        }
        blocks.join("\n")
    }

    fn how(&self) -> &'static str {
        "To call a tool, write its name and each argument between tags, a value as plain text or, where it is no text, as \
         JSON; for several calls, one such block after the other:\n<tool_call>\n<function=the tool's name>\n\
         <parameter=an argument>\nits value\n</parameter>\n</function>\n</tool_call>"
    }

    fn signs(&self) -> &'static [&'static str] {
        &[FUNCTION]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[WRAP, UNWRAP]
    }
}

/// A value as text: a string as it stands, unless it would be read as a literal.
fn plain(value: &Value, key: &str, tool: Option<&ToolSpec>) -> String {
    let Value::String(text) = value else { return python_json(value) };
    let of = tool.and_then(|t| schema::property(&t.parameters, key));
    let stays = [Strictness::Strict, Strictness::Lenient].into_iter().all(|how| {
        schema::typed(of, tool.map(|t| &t.parameters), text, how).is_ok_and(|read| read == *value)
    });
    if stays { text.clone() } else { python_json(value) }
}

/// Where reading stands.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
    how: Strictness,
}

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, tag: &str) -> bool {
        let is_there = self.rest().starts_with(tag);
        if is_there {
            self.at += tag.len();
        }
        is_there
    }

    /// Up to the end of an opening tag.
    fn name(&mut self) -> Result<String, Reason> {
        let line = self.rest().split(['<', '\n']).next().unwrap_or_default();
        let Some(end) = line.find('>') else {
            let got = super::show(line, 40);
            return Err(Reason::Syntax { needed: "a name and `>`".into(), got });
        };
        let name = line[..end].trim().to_owned();
        self.at += end + 1;
        Ok(name)
    }

    fn call(&mut self) -> Result<Raw, Reason> {
        let name = self.name()?;
        self.skip_space();
        if self.rest().starts_with('{') {
            let (value, length) = shape::value(self.rest(), self.how)?;
            self.at += length;
            let Value::Object(arguments) = value else { return Err(Reason::NoArguments) };
            return Ok(Raw { name, arguments: Arguments::Values(arguments) });
        }
        let mut texts = Vec::new();
        while self.take(PARAMETER) {
            let key = self.name()?;
            let value = self.value()?;
            if value.len() > super::MAX_CALL_BYTES {
                return Err(Reason::TooLong { got: value.len() });
            }
            texts.push((key, value));
            self.skip_space();
        }
        Ok(Raw { name, arguments: Arguments::Texts(texts) })
    }

    /// Up to the closing tag, without the line breaks that the format puts around a value.
    fn value(&mut self) -> Result<String, Reason> {
        let rest = self.rest();
        let forgotten = || match self.how {
            // The next argument or the end of the call closes it.
            Strictness::Lenient => [PARAMETER, END].iter().filter_map(|tag| rest.find(tag)).min().map(|end| (end, 0)),
            Strictness::Strict => None,
        };
        let closed = rest.find(END_PARAMETER).map(|end| (end, END_PARAMETER.len()));
        let Some((end, tag)) = closed.or_else(forgotten) else {
            return Err(Reason::Ends { needed: format!("`{END_PARAMETER}`") });
        };
        self.at += end + tag;
        let value = &rest[..end];
        let value = value.strip_prefix('\n').unwrap_or(value);
        Ok(value.strip_suffix('\n').unwrap_or(value).to_owned())
    }

    fn close(&mut self, wrapped: bool) -> Result<(), Reason> {
        self.skip_space();
        let strict = self.how == Strictness::Strict;
        if !self.take(END) && (strict || !(self.rest().is_empty() || self.rest().starts_with(UNWRAP))) {
            return Err(need(format!("`{PARAMETER}` or `{END}`"), self.rest()));
        }
        let kept = self.at;
        self.skip_space();
        match wrapped && self.take(UNWRAP) {
            true => Ok(()),
            false if wrapped && strict => Err(need(format!("`{UNWRAP}`"), self.rest())),
            false => {
                self.at = kept;
                Ok(())
            }
        }
    }

    /// Where to go on behind a broken call.
    fn recover(&self) -> usize {
        let rest = self.rest();
        let ends = [UNWRAP, END].map(|tag| rest.find(tag).map(|at| at + tag.len()));
        let next = [WRAP, FUNCTION].map(|tag| rest.find(tag));
        self.at + ends.into_iter().chain(next).flatten().min().unwrap_or(rest.len())
    }
}
