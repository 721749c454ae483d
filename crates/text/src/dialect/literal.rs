//! JSON values out of hostile text: where they end, what is given twice, how deep they go.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{MAX_DEPTH, Reason};

/// A value at the start of a text.
pub(super) struct Parsed {
    /// The value; of a key given twice, the last.
    pub(super) value: Value,
    /// The first key that is given twice.
    pub(super) duplicate: Option<String>,
    /// Where the value ends, in bytes.
    pub(super) end: usize,
}

/// The JSON value at the start of a text, whatever follows it.
///
/// - Errors: `NotJson`, `TooDeep`.
pub(super) fn prefix(text: &str) -> Result<Parsed, Reason> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Checked>();
    match stream.next() {
        Some(Ok(Checked { value, duplicate })) => match depth(&value) > MAX_DEPTH {
            true => Err(Reason::TooDeep),
            false => Ok(Parsed { value, duplicate, end: stream.byte_offset() }),
        },
        Some(Err(error)) => Err(Reason::NotJson(error.to_string())),
        None => Err(Reason::Ends { needed: "a JSON value".into() }),
    }
}

/// A text that is one JSON value and nothing else.
pub(super) fn whole(text: &str) -> Option<Parsed> {
    prefix(text).ok().filter(|parsed| text[parsed.end..].trim().is_empty())
}

/// How many lists and objects lie inside each other; the parser stops at 128, so this recursion ends.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

struct Checked {
    value: Value,
    duplicate: Option<String>,
}

impl From<Value> for Checked {
    fn from(value: Value) -> Self {
        Checked { value, duplicate: None }
    }
}

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(Value::Null.into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Checked, E> {
        Ok(Value::Bool(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Checked, E> {
        Ok(Value::from(value).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Checked, E> {
        Ok(Value::from(value).into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Checked, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Value::Number(number).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Checked, E> {
        Ok(Value::from(value).into())
    }

    fn visit_string<E>(self, value: String) -> Result<Checked, E> {
        Ok(Value::from(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        let mut duplicate = None;
        let mut all = Vec::new();
        while let Some(item) = items.next_element::<Checked>()? {
            duplicate = duplicate.or(item.duplicate);
            all.push(item.value);
        }
        Ok(Checked { value: Value::Array(all), duplicate })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Checked, A::Error> {
        let mut duplicate = None;
        let mut all = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let field = fields.next_value::<Checked>()?;
            duplicate = duplicate.or(field.duplicate);
            if all.insert(key.clone(), field.value).is_some() {
                duplicate = duplicate.or(Some(key));
            }
        }
        Ok(Checked { value: Value::Object(all), duplicate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_where_it_ends_and_says_what_came_twice() {
        let parsed = prefix(r#" {"a": "</tool_call>", "b": [{"c": 1, "c": 2}]} rest"#).unwrap();
        assert_eq!(parsed.value.to_string(), r#"{"a":"</tool_call>","b":[{"c":2}]}"#);
        assert_eq!((parsed.duplicate.as_deref(), parsed.end), (Some("c"), 47));
        assert!(whole("[1] x").is_none() && whole(" [1] \n").is_some());
    }

    #[test]
    fn depth_is_bounded_however_deep_the_text_goes() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(prefix(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(prefix(&nested(MAX_DEPTH + 1)).err(), Some(Reason::TooDeep));
        assert!(matches!(prefix(&nested(100_000)), Err(Reason::NotJson(_))));
    }

    #[test]
    fn what_is_no_json_is_refused_with_the_place() {
        let reason = prefix(r#"{"a": 1"#).err().map(|r| r.to_string());
        assert_eq!(reason.unwrap(), "not JSON: EOF while parsing an object at line 1 column 7");
        for text in ["NaN", "1e999", "'a'", "\"\\ud800\"", "True", ""] {
            assert!(prefix(text).is_err(), "{text}");
        }
    }
}
