//! What fields, keys and results hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A millionth: what the last digit of a [`Value::Number`] is worth.
pub(crate) const MILLION: i128 = 1_000_000;

/// A value whose equality is structural, so that it can be a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Value {
    /// Nothing is there.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A count, or a whole number that compares with whole numbers alone.
    Int(i64),
    /// An exact decimal number, in millionths.
    Number(#[serde(with = "wide")] i128),
    /// A text.
    Text(String),
    /// Something named within a type.
    Named(String, String),
    /// A list.
    List(Vec<Value>),
    /// Values by name.
    Record(BTreeMap<String, Value>),
}

impl Value {
    /// A JSON value as a key: `1` and `1.0` are one number, and a number that millionths cannot hold exactly is a text that
    /// cannot be summed.
    pub(crate) fn of_json(value: &serde_json::Value) -> Value {
        use serde_json::Value as J;
        match value {
            J::Null => Value::Null,
            J::Bool(b) => Value::Bool(*b),
            J::Number(n) => {
                let written = match (n.as_i64(), n.as_u64(), n.as_f64()) {
                    (Some(i), _, _) => i.to_string(),
                    (_, Some(u), _) => u.to_string(),
                    (_, _, Some(f)) => f.to_string(),
                    _ => n.to_string(),
                };
                exact(&written).map_or(Value::Named("number".to_owned(), written), Value::Number)
            }
            J::String(s) => Value::Text(s.clone()),
            J::Array(items) => Value::List(items.iter().map(Value::of_json).collect()),
            J::Object(members) => Value::Record(members.iter().map(|(k, v)| (k.clone(), Value::of_json(v))).collect()),
        }
    }

    /// A whole number, where this is one.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }
}

/// Reads digits with at most one point as millionths; none where that is not exact.
pub(crate) fn exact(text: &str) -> Option<i128> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let part = part.trim_end_matches('0');
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(part) || part.len() > 6 {
        return None;
    }
    let whole: i128 = whole.parse().ok()?;
    let part: i128 = format!("{part:0<6}").parse().ok()?;
    let size = whole.checked_mul(MILLION)?.checked_add(part)?;
    Some(if negative { -size } else { size })
}

/// Wide numbers as texts, since JSON readers keep no more than 64 bits.
pub(crate) mod wide {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(n: &i128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(n)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_exact_or_not_numbers() {
        for (text, want) in [
            ("2000", Some(2_000_000_000)),
            ("0.1", Some(100_000)),
            ("-1.5", Some(-1_500_000)),
            ("0.000001", Some(1)),
            ("0.0000001", None),
            ("1e3", None),
            ("", None),
            ("-", None),
            (".5", None),
            ("1.", Some(1_000_000)),
            ("1.2.3", None),
            ("+1", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(exact(text), want, "`{text}`");
        }
        assert_eq!(Value::of_json(&json!(1)), Value::of_json(&json!(1.0)));
        assert_ne!(Value::of_json(&json!(1)), Value::of_json(&json!("1")));
        assert_eq!(Value::of_json(&json!(1e-9)), Value::Named("number".to_owned(), "0.000000001".to_owned()));
    }

    #[test]
    fn values_survive_json() {
        for value in [json!({"a": [1, 2.5, null, true], "b": "x"}), json!(u64::MAX), json!(-7), json!(1e30)] {
            let value = Value::of_json(&value);
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
