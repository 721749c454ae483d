//! `drop ARGUMENT`: the argument is left out.

use serde_json::{Map, Value};

pub(super) const WORD: &str = "drop";
pub(super) const FORM: &str = "drop ARGUMENT";

/// An argument that does not go through.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DropArgument {
    at: String,
}

impl DropArgument {
    pub(super) fn parse(argument: &str, rest: &str) -> Option<DropArgument> {
        rest.is_empty().then(|| DropArgument { at: argument.to_owned() })
    }

    pub(super) fn apply(&self, arguments: &mut Map<String, Value>) -> Result<bool, String> {
        let (above, name) = match self.at.strip_prefix('/').and_then(|_| self.at.rsplit_once('/')) {
            None | Some(("", _)) => (None, self.at.strip_prefix('/').unwrap_or(&self.at)),
            Some((above, name)) => (Some(above), name),
        };
        let name = if self.at.starts_with('/') { name.replace("~1", "/").replace("~0", "~") } else { name.to_owned() };
        let map = match above {
            None => arguments,
            Some(above) => match super::find(arguments, above) {
                Some(Value::Object(map)) => map,
                _ => return Ok(false),
            },
        };
        Ok(map.shift_remove(&name).is_some())
    }
}
