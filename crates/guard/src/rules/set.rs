//! `set ARGUMENT JSON`: the argument has this value, whatever was asked for.

use serde_json::{Map, Value};

pub(super) const WORD: &str = "set";
pub(super) const FORM: &str = "set ARGUMENT JSON";

/// A value that an argument has whatever was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Set {
    at: String,
    value: Value,
}

impl Set {
    pub(super) fn parse(argument: &str, rest: &str) -> Option<Set> {
        Some(Set { at: argument.to_owned(), value: serde_json::from_str(rest).ok()? })
    }

    pub(super) fn apply(&self, arguments: &mut Map<String, Value>) -> Result<bool, String> {
        if let Some(value) = super::find(arguments, &self.at) {
            let changed = *value != self.value;
            *value = self.value.clone();
            return Ok(changed);
        }
        let Some((above, name)) = self.at.strip_prefix('/').and_then(|_| self.at.rsplit_once('/')) else {
            arguments.insert(self.at.clone(), self.value.clone());
            return Ok(true);
        };
        let name = name.replace("~1", "/").replace("~0", "~");
        let map = match above {
            "" => Some(arguments),
            _ => super::find(arguments, above).and_then(Value::as_object_mut),
        };
        let map = map.ok_or_else(|| format!("cannot set argument `{}`: there is nothing to hold it", self.at))?;
        map.insert(name, self.value.clone());
        Ok(true)
    }
}
