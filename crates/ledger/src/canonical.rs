//! One spelling for every JSON value, so that equal values have equal digests.

use serde::Serialize;

use crate::digest::Digest;
use crate::exact::Exact;

/// How deep a value may be nested; JSON that was read is never deeper.
pub(crate) const DEEPEST: usize = 128;

/// The largest integer that every reader of JSON keeps exact, 2⁵³ − 1.
pub(crate) const LARGEST: u64 = (1 << 53) - 1;

/// Why a value has no canonical spelling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// An integer would be rounded, so that two different values would have one spelling.
    #[error("integer {got} has no exact spelling, needed at most {LARGEST} either side of 0: write it as a string")]
    Integer {
        /// The integer.
        got: String,
    },
    /// The value is nested too deeply.
    #[error("value is nested deeper than {DEEPEST}")]
    Depth,
    /// It cannot be written as JSON at all: a map with keys that are no strings, a number that is not finite.
    #[error("value is not JSON: {reason}")]
    NotJson {
        /// What the writer said.
        reason: String,
    },
}

/// Writes a value in its one canonical spelling.
///
/// - Holds: equal values, in whatever order their keys were given, give equal bytes; values that differ give bytes that
///   differ, save `1` and `1.0`, `0` and `-0`, which JSON does not tell apart.
/// - Errors: `Integer` where the RFC would round, `Depth`, `NotJson`.
/// - Source: RFC 8785; exact integers, RFC 7493 §2.2.
pub fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    Exact::check(value)?;
    serde_json_canonicalizer::to_vec(&value).map_err(|e| CanonicalError::NotJson { reason: e.to_string() })
}

/// The digest of a value's canonical spelling.
pub fn canonical_digest<T: Serialize + ?Sized>(value: &T) -> Result<Digest, CanonicalError> {
    Ok(Digest::of(&canonical(value)?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(input: &str, want: &str) {
        let value: Value = serde_json::from_str(input).unwrap();
        assert_eq!(String::from_utf8(canonical(&value).unwrap()).unwrap(), want, "{input}");
    }

    #[test]
    fn the_examples_of_the_rfc_come_out_as_printed() {
        // RFC 8785 §3.2.2 and §3.2.3; keys sort by UTF-16 code units.
        check(
            r#"{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
                "literals": [null, true, false]}"#,
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#,
        );
        check(
            r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
                "\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#,
            "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With \
             Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With \
             Dagesh\"}",
        );
    }

    #[test]
    fn numbers_are_spelled_as_the_rfc_lists_them() {
        // RFC 8785 appendix B, by their bits.
        let cases: &[(u64, &str)] = &[
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ];
        for (bits, want) in cases {
            assert_eq!(String::from_utf8(canonical(&f64::from_bits(*bits)).unwrap()).unwrap(), *want);
        }
    }

    #[test]
    fn integers_that_would_be_rounded_are_refused() {
        assert_eq!(canonical(&LARGEST).unwrap(), b"9007199254740991");
        for (value, got) in
            [(json!(LARGEST + 1), "9007199254740992"), (json!({"a": [i64::MIN]}), "-9223372036854775808")]
        {
            assert_eq!(canonical(&value), Err(CanonicalError::Integer { got: got.into() }));
        }
    }

    #[test]
    fn the_order_of_keys_does_not_matter_and_everything_else_does() {
        let a = canonical_digest(&json!({"a": 1, "b": {"c": [1, 2], "d": "x"}})).unwrap();
        assert_eq!(a, canonical_digest(&json!({"b": {"d": "x", "c": [1, 2]}, "a": 1})).unwrap());
        for other in [json!({"a": 1, "b": {"c": [2, 1], "d": "x"}}), json!({"a": "1", "b": {"c": [1, 2], "d": "x"}})] {
            assert_ne!(a, canonical_digest(&other).unwrap());
        }
    }

    #[test]
    fn a_value_too_deep_to_walk_is_refused() {
        let nested = |depth: usize| (0..depth).fold(json!(0), |inner, _| json!([inner]));
        assert!(canonical(&nested(DEEPEST)).is_ok());
        assert_eq!(canonical(&nested(DEEPEST + 1)), Err(CanonicalError::Depth));
    }

    #[test]
    fn what_is_no_json_is_refused_and_not_written_as_something_else() {
        assert!(matches!(canonical(&f64::NAN), Err(CanonicalError::NotJson { .. })));
        assert!(matches!(canonical(&[(1, Some(f32::INFINITY))]), Err(CanonicalError::NotJson { .. })));
        let keys = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert!(matches!(canonical(&keys), Err(CanonicalError::NotJson { .. })));
    }
}
