//! A list of calls as Python writes them, as Llama 4, LFM2 and ToolACE do. Read as literals by a parser of our own: names,
//! operators, comprehensions and nested calls are refused, and nothing is ever run.
//!
//! Source: Meta, Llama 4 model card and prompt formats; Liquid AI, LFM2 model card, "tool use".

use episode::{ToolCall, ToolSpec};
use serde_json::{Map, Number, Value};

use super::shape::{Arguments, Raw};
use super::{Broken, Grammar, MAX_DEPTH, Piece, Reason, Strictness, need};

/// Opening marks and what closes each.
const MARKS: [(&str, &str); 2] =
    [("<|tool_call_start|>", "<|tool_call_end|>"), ("<|python_start|>", "<|python_end|>")];

pub(super) struct Pythonic;

impl Grammar for Pythonic {
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(begin) = next(text, at, how).filter(|_| pieces.len() <= super::MAX_CALLS) {
            let mut cursor = Cursor { text, at: begin.list, how };
            let read = cursor.calls().and_then(|calls| {
                let Some(close) = begin.close else { return Ok(calls) };
                cursor.skip_space();
                match cursor.take(close) || (how == Strictness::Lenient && cursor.rest().is_empty()) {
                    true => Ok(calls),
                    false => Err(need(format!("`{close}`"), cursor.rest())),
                }
            });
            let piece = match read {
                Ok(calls) => Piece { range: begin.start..cursor.at, calls },
                Err(reason) => {
                    let close = begin.close.and_then(|close| text[begin.list..].find(close).map(|n| n + close.len()));
                    Piece::broken(begin.start..close.map_or(text.len(), |n| begin.list + n), text, reason)
                }
            };
            at = piece.range.end;
            pieces.push(piece);
        }
        pieces
    }

    fn spell(&self, calls: &[ToolCall], _tools: &[ToolSpec]) -> String {
        let one = |call: &ToolCall| {
            let arguments: Vec<String> = call.arguments.iter().map(|(key, v)| format!("{key}={}", python(v))).collect();
            format!("{}({})", call.tool, arguments.join(", "))
        };
        format!("[{}]", calls.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    fn how(&self) -> &'static str {
        "To call tools, write nothing but a list of calls in Python's syntax, each value a literal:\n\
         [tool_name(an_argument=\"its value\", another=3)]"
    }

    fn signs(&self) -> &'static [&'static str] {
        &["["]
    }

    fn marks(&self) -> &'static [&'static str] {
        &["<|tool_call_start|>", "<|tool_call_end|>", "<|python_start|>", "<|python_end|>"]
    }
}

/// Where a list of calls begins.
struct Begin {
    start: usize,
    list: usize,
    close: Option<&'static str>,
}

/// The next list: behind a mark, at the beginning of the text, or (forgiving) of a line.
fn next(text: &str, at: usize, how: Strictness) -> Option<Begin> {
    let marked = MARKS.iter().filter_map(|(open, close)| {
        let start = at + text[at..].find(open)?;
        Some(Begin { start, list: start + open.len(), close: Some(close) })
    });
    let marked = marked.min_by_key(|begin| begin.start);
    let first = (at == 0).then(|| text.trim_start());
    let lines = text[at..].match_indices('\n').map(|(n, _)| text[at + n + 1..].trim_start_matches([' ', '\t']));
    let lines = lines.take_while(|_| how == Strictness::Lenient);
    let bare = first.into_iter().chain(lines).find(|line| begins_call(line)).map(|line| text.len() - line.len());
    match (marked, bare) {
        (Some(marked), Some(bare)) if bare < marked.start => Some(Begin { start: bare, list: bare, close: None }),
        (Some(marked), _) => Some(marked),
        (None, bare) => bare.map(|bare| Begin { start: bare, list: bare, close: None }),
    }
}

/// `[name(`
fn begins_call(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('[') else { return false };
    let rest = rest.trim_start();
    let name = rest.len() - rest.trim_start_matches(is_name_part).len();
    name > 0 && rest[name..].starts_with('(')
}

/// Dots and hyphens too, which tools' names have and Python's do not.
fn is_name_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
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

    fn take(&mut self, mark: &str) -> bool {
        let is_there = self.rest().starts_with(mark);
        if is_there {
            self.at += mark.len();
        }
        is_there
    }

    fn expect(&mut self, mark: &str, or: &str) -> Result<(), Reason> {
        self.skip_space();
        match self.take(mark) {
            true => Ok(()),
            false => Err(need(format!("`{mark}`{or}"), self.rest())),
        }
    }

    fn name(&mut self) -> Result<String, Reason> {
        self.skip_space();
        let rest = self.rest();
        let length = rest.len() - rest.trim_start_matches(is_name_part).len();
        if length == 0 {
            return Err(need("a name", rest));
        }
        self.at += length;
        Ok(rest[..length].to_owned())
    }

    /// Items up to a closing mark, with commas between them; one more at the end says nothing.
    fn items(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result<(), Reason>) -> Result<(), Reason> {
        loop {
            self.skip_space();
            if self.take(close) {
                return Ok(());
            }
            item(self)?;
            self.skip_space();
            if !self.take(",") {
                return self.expect(close, " or `,`");
            }
        }
    }

    fn calls(&mut self) -> Result<Vec<Result<Raw, Broken>>, Reason> {
        self.expect("[", "")?;
        let mut calls = Vec::new();
        self.items("]", |cursor| {
            calls.push(Ok(cursor.call()?));
            Ok(())
        })?;
        match calls.is_empty() {
            true => Err(need("a call", "]")),
            false => Ok(calls),
        }
    }

    fn call(&mut self) -> Result<Raw, Reason> {
        let name = self.name()?;
        self.expect("(", "")?;
        let start = self.at;
        let mut arguments = Map::new();
        self.items(")", |cursor| {
            let key = cursor.name()?;
            cursor.expect("=", ": each argument needs its name")?;
            let value = cursor.value(1)?;
            // Python itself refuses this.
            match arguments.insert(key.clone(), value) {
                Some(_) => Err(Reason::Duplicate { key }),
                None => Ok(()),
            }
        })?;
        match self.at - start {
            got if got > super::MAX_CALL_BYTES => Err(Reason::TooLong { got }),
            _ => Ok(Raw { name, arguments: Arguments::Values(arguments) }),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Reason> {
        if depth > MAX_DEPTH {
            return Err(Reason::TooDeep);
        }
        self.skip_space();
        match self.rest().chars().next() {
            Some('[') => self.list("[", "]", depth),
            // A tuple; brackets around one value only are refused, since Python would drop them.
            Some('(') if self.how == Strictness::Lenient => self.list("(", ")", depth),
            Some('{') => self.dict(depth),
            Some(quote @ ('"' | '\'')) => self.string(quote).map(Value::String),
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            _ => self.word(),
        }
    }

    fn list(&mut self, open: &str, close: &str, depth: usize) -> Result<Value, Reason> {
        self.expect(open, "")?;
        let mut items = Vec::new();
        self.items(close, |cursor| {
            items.push(cursor.value(depth + 1)?);
            Ok(())
        })?;
        Ok(Value::Array(items))
    }

    fn dict(&mut self, depth: usize) -> Result<Value, Reason> {
        self.expect("{", "")?;
        let mut fields = Map::new();
        self.items("}", |cursor| {
            cursor.skip_space();
            let key = match cursor.rest().chars().next() {
                Some(quote @ ('"' | '\'')) => cursor.string(quote)?,
                _ => return Err(need("a key in quotes", cursor.rest())),
            };
            cursor.expect(":", "")?;
            let value = cursor.value(depth + 1)?;
            match fields.insert(key.clone(), value) {
                Some(_) if cursor.how == Strictness::Strict => Err(Reason::Duplicate { key }),
                _ => Ok(()),
            }
        })?;
        Ok(Value::Object(fields))
    }

    fn word(&mut self) -> Result<Value, Reason> {
        let rest = self.rest();
        let length = rest.len() - rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').len();
        let value = match &rest[..length] {
            "True" | "true" => Value::Bool(true),
            "False" | "false" => Value::Bool(false),
            "None" | "null" => Value::Null,
            _ => return Err(need("a literal value", rest)),
        };
        self.at += length;
        Ok(value)
    }

    fn number(&mut self) -> Result<Value, Reason> {
        let rest = self.rest();
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_');
        let text = &rest[..rest.len() - rest.trim_start_matches(part).len()];
        let digits = text.strip_prefix('+').unwrap_or(text);
        let decimal = digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E'));
        let whole = digits.parse().map(|n: i64| Number::from(n)).or_else(|_| digits.parse().map(|n: u64| Number::from(n)));
        let number = whole.ok().or_else(|| digits.parse().ok().and_then(Number::from_f64)).filter(|_| decimal);
        self.at += text.len();
        number.map(Value::Number).ok_or_else(|| Reason::Syntax { needed: "a number".into(), got: super::show(text, 20) })
    }

    fn string(&mut self, quote: char) -> Result<String, Reason> {
        let rest = self.rest();
        let mut chars = rest.char_indices().skip(1);
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((at, c)) => {
                        let more = escape(c, &rest[at + c.len_utf8()..], &mut out)?;
                        (0..more).for_each(|_| {
                            chars.next();
                        });
                    }
                    None => break,
                },
                c => out.push(c),
            }
        }
        Err(Reason::Ends { needed: format!("`{quote}`") })
    }
}

/// What stands behind a backslash; gives how many characters more belong to it.
fn escape(c: char, after: &str, out: &mut String) -> Result<usize, Reason> {
    let digits = match c {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => {
            match c {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'v' => out.push('\u{b}'),
                'a' => out.push('\u{7}'),
                '0' => out.push('\0'),
                '\n' => {}
                '\\' | '\'' | '"' | '/' => out.push(c),
                // As Python: an escape that means nothing is two characters.
                other => out.extend(['\\', other]),
            }
            return Ok(0);
        }
    };
    let code = after.get(..digits).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
    let code = code.and_then(|d| u32::from_str_radix(d, 16).ok()).and_then(char::from_u32);
    out.push(code.ok_or_else(|| need(format!("{digits} hexadecimal digits of a character"), after))?);
    Ok(digits)
}

/// A value as Python's literal.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{}: {}", quoted(k), python(v))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}
