//! `confine ARGUMENT FOLDER`: a path outside the folder becomes the path of the same names inside it.

use serde_json::{Map, Value};

use crate::facts::normal;

pub(super) const WORD: &str = "confine";
pub(super) const FORM: &str = "confine ARGUMENT FOLDER";

/// The folder that an argument may not leave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Confine {
    at: String,
    folder: String,
}

impl Confine {
    pub(super) fn parse(argument: &str, rest: &str) -> Option<Confine> {
        rest.starts_with('/').then(|| Confine { at: argument.to_owned(), folder: normal(rest, None) })
    }

    pub(super) fn apply(&self, arguments: &mut Map<String, Value>) -> Result<bool, String> {
        let Some(value) = super::find(arguments, &self.at) else { return Ok(false) };
        super::each(value, &mut |value| {
            let fault = |needed| Err(format!("cannot confine argument `{}`: needed {needed}", self.at));
            let Value::String(path) = value else { return fault("a path") };
            let odd = |c: char| "~$%`:".contains(c) || c.is_control() || !c.is_ascii();
            if path.contains(odd) {
                return fault("a path without variables and encodings");
            }
            let slashes = path.replace('\\', "/");
            // Climbing stops at the folder, as it does at a root.
            let walked = normal(&slashes, None);
            let inside =
                walked == self.folder || walked.starts_with(&format!("{}/", self.folder.trim_end_matches('/')));
            let names = walked.split('/').filter(|name| !matches!(*name, "" | "." | ".."));
            let confined = match inside {
                true => walked.clone(),
                false => std::iter::once(self.folder.trim_end_matches('/')).chain(names).collect::<Vec<_>>().join("/"),
            };
            let changed = confined != *path;
            *path = confined;
            Ok(changed)
        })
    }
}
