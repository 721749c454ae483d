//! From what a dialect found to a call: its name, its arguments, and whether the tool takes them.

use episode::{ToolCall, ToolSpec};
use serde_json::{Map, Value};

use super::literal::{self, Parsed};
use super::{Broken, MAX_CALL_BYTES, MAX_NAME_BYTES, Piece, Reason, Strictness, schema, show};

/// A call as it is spelled.
pub(super) struct Raw {
    pub(super) name: String,
    pub(super) arguments: Arguments,
}

/// Arguments before the tool's schema was looked at.
pub(super) enum Arguments {
    /// Values.
    Values(Map<String, Value>),
    /// Texts, which the schema says how to read.
    Texts(Vec<(String, String)>),
}

/// The call, if its tool takes its arguments.
pub(super) fn settle(raw: Raw, tools: &[ToolSpec], how: Strictness) -> Result<ToolCall, Reason> {
    let Raw { name, arguments } = raw;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(Reason::Name { got: show(&name, 40) });
    }
    let tool = tools.iter().find(|t| t.name == name);
    let arguments = match arguments {
        Arguments::Values(values) => values,
        Arguments::Texts(texts) => {
            let mut values = Map::new();
            for (key, text) in texts {
                let of = tool.and_then(|t| schema::property(&t.parameters, &key));
                let value = schema::typed(of, tool.map(|t| &t.parameters), &text, how)?;
                if values.insert(key.clone(), value).is_some() && how == Strictness::Strict {
                    return Err(Reason::Duplicate { key });
                }
            }
            values
        }
    };
    let call = ToolCall { tool: name, arguments };
    if let Some(tool) = tool {
        schema::check(&tool.parameters, &call.arguments)?;
    }
    Ok(call)
}

/// The JSON value at the start of a text and where it ends.
///
/// - Errors: also what no call may hold.
pub(super) fn value(text: &str, how: Strictness) -> Result<(Value, usize), Reason> {
    let Parsed { value, duplicate, end } = literal::prefix(text)?;
    if end > MAX_CALL_BYTES {
        return Err(Reason::TooLong { got: end });
    }
    match duplicate {
        Some(key) if how == Strictness::Strict => Err(Reason::Duplicate { key }),
        _ => Ok((value, end)),
    }
}

/// Whether a value is a call, or a list of things of which one is.
pub(super) fn is_call(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            let fields = inner(fields);
            fields.get("name").is_some_and(Value::is_string) && KEYS.iter().any(|key| fields.contains_key(*key))
        }
        Value::Array(items) => items.iter().any(|item| item.is_object() && is_call(item)),
        _ => false,
    }
}

/// The two words there are for arguments.
const KEYS: [&str; 2] = ["arguments", "parameters"];

/// A call wrapped as the OpenAI interface wraps it.
fn inner(fields: &Map<String, Value>) -> &Map<String, Value> {
    match fields.get("function") {
        Some(Value::Object(function)) if !fields.contains_key("name") => function,
        _ => fields,
    }
}

/// All calls of a value, a list or one.
pub(super) fn calls(value: Value, how: Strictness) -> Vec<Result<Raw, Broken>> {
    let one = |value: Value| call(&value, how).map_err(|reason| reason.or_shown(|| value.to_string()));
    match value {
        Value::Array(items) => items.into_iter().map(one).collect(),
        value => vec![one(value)],
    }
}

fn call(value: &Value, how: Strictness) -> Result<Raw, Reason> {
    let strict = how == Strictness::Strict;
    let Value::Object(outer) = value else {
        let got = show(&value.to_string(), 20);
        return Err(Reason::Syntax { needed: "an object with `name` and `arguments`".into(), got });
    };
    let fields = if strict { outer } else { inner(outer) };
    let name = match fields.get("name") {
        Some(Value::String(name)) => name.clone(),
        other => return Err(Reason::Name { got: other.map_or(String::new(), |v| show(&v.to_string(), 40)) }),
    };
    let mut given = KEYS.iter().filter_map(|key| fields.get(*key));
    let arguments = match (given.next(), given.next()) {
        (Some(_), Some(_)) => return Err(Reason::Extra { got: "parameters".into() }),
        (Some(Value::Object(map)), None) => map.clone(),
        (Some(Value::String(text)), None) if !strict => match value_of(text, how)? {
            Value::Object(map) => map,
            _ => return Err(Reason::NoArguments),
        },
        (None, None) if !strict => Map::new(),
        _ => return Err(Reason::NoArguments),
    };
    // Some models number their calls and name their type; both say nothing here.
    let known = |key: &str| matches!(key, "name" | "arguments" | "parameters" | "id" | "type");
    if let Some(extra) = fields.keys().find(|key| strict && !known(key)) {
        return Err(Reason::Extra { got: show(extra, 40) });
    }
    Ok(Raw { name, arguments: Arguments::Values(arguments) })
}

/// A text that is one JSON value.
fn value_of(text: &str, how: Strictness) -> Result<Value, Reason> {
    let (value, end) = value(text, how)?;
    match text[end..].trim() {
        "" => Ok(value),
        rest => Err(super::need("the end of the value", rest)),
    }
}

/// The calls of a stretch.
pub(super) fn piece(range: std::ops::Range<usize>, value: Value, how: Strictness) -> Piece {
    Piece { range, calls: calls(value, how) }
}
