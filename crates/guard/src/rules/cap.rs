//! `cap ARGUMENT NUMBER`: what is above the number becomes the number.

use serde_json::{Map, Number, Value};

pub(super) const WORD: &str = "cap";
pub(super) const FORM: &str = "cap ARGUMENT NUMBER";

/// The greatest an argument may be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cap {
    at: String,
    most: Number,
}

impl Cap {
    pub(super) fn parse(argument: &str, rest: &str) -> Option<Cap> {
        let most: Number = serde_json::from_str(rest).ok()?;
        Some(Cap { at: argument.to_owned(), most })
    }

    pub(super) fn apply(&self, arguments: &mut Map<String, Value>) -> Result<bool, String> {
        let Some(value) = super::find(arguments, &self.at) else { return Ok(false) };
        super::each(value, &mut |value| match value {
            Value::Number(n) if above(n, &self.most) => {
                *value = Value::Number(self.most.clone());
                Ok(true)
            }
            Value::Number(_) => Ok(false),
            _ => Err(format!("cannot cap argument `{}`: needed a number", self.at)),
        })
    }
}

/// Whether `n` is greater; whole numbers are compared as such, where a float could no longer tell them apart.
fn above(n: &Number, most: &Number) -> bool {
    match (n.as_i128(), most.as_i128()) {
        (Some(n), Some(most)) => n > most,
        _ => n.as_f64().zip(most.as_f64()).is_none_or(|(n, most)| n > most),
    }
}
