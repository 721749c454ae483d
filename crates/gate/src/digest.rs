//! Digests of values by their canonical JSON.

use ledger::Digest;
use serde::Serialize;
use serde_json::{Value, json};

/// A value that JSON cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot write a value as canonical JSON: {reason}")]
pub struct NotCanonical {
    /// What is wrong with it.
    pub reason: String,
}

impl NotCanonical {
    fn new(error: impl std::fmt::Display) -> NotCanonical {
        NotCanonical { reason: error.to_string() }
    }
}

/// The SHA-256 of a value's canonical JSON (RFC 8785), in lower-case hexadecimal.
///
/// Whole numbers beyond 2⁵³, which that JSON would round, are spelled out as text in an object of their own, so that the
/// identifiers some tools use have digests too.
pub(crate) fn of(value: &impl Serialize) -> Result<String, NotCanonical> {
    let mut value = serde_json::to_value(value).map_err(NotCanonical::new)?;
    spell_out(&mut value);
    Ok(of_bytes(&ledger::canonical(&value).map_err(NotCanonical::new)?))
}

/// The SHA-256 of bytes in lower-case hexadecimal.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

/// The largest whole number that canonical JSON keeps exact.
pub(crate) const LARGEST: u64 = (1 << 53) - 1;

fn spell_out(value: &mut Value) {
    match value {
        Value::Number(n)
            if n.as_u64().is_some_and(|n| n > LARGEST) || n.as_i64().is_some_and(|n| n.unsigned_abs() > LARGEST) =>
        {
            *value = json!({ "#integer": n.to_string() });
        }
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        Value::Object(fields) => fields.values_mut().for_each(spell_out),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether a value is nested no deeper than this; looks no deeper either.
pub(crate) fn is_within_depth<'a>(mut values: impl Iterator<Item = &'a Value>, room: usize) -> bool {
    values.all(|value| match value {
        Value::Array(items) => room > 0 && is_within_depth(items.iter(), room - 1),
        Value::Object(fields) => room > 0 && is_within_depth(fields.values(), room - 1),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_canonical_json_would_round_have_digests_of_their_own() {
        let digests = [json!(LARGEST), json!(LARGEST + 1), json!(LARGEST + 2), json!(u64::MAX), json!(i64::MIN)]
            .map(|n| of(&json!({ "id": [n] })).unwrap());
        let different: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(different.len(), 5);
    }

    #[test]
    fn the_order_of_names_does_not_matter() {
        assert_eq!(of(&json!({"a": 1, "b": 2})).unwrap(), of(&json!({"b": 2, "a": 1})).unwrap());
    }

    #[test]
    fn depth_is_counted_in_lists_and_objects() {
        let deep = |n: usize| (0..n).fold(json!(1), |inner, _| json!([{ "x": inner }]));
        assert!(is_within_depth([deep(3)].iter(), 6));
        assert!(!is_within_depth([deep(3)].iter(), 5));
    }
}
