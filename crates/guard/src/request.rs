//! What a guard is asked.

use serde_json::{Map, Value};

use crate::{Labels, Principal};

/// One proposed call, with all that a rule may look at.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who it is made for and by.
    pub principal: &'a Principal,
    /// The tool's name.
    pub tool: &'a str,
    /// Its arguments, as the policy wrote them.
    pub arguments: &'a Map<String, Value>,
    /// The labels of all that may have influenced the arguments.
    pub labels: &'a Labels,
    /// The time.
    ///
    /// - Units: seconds since 1970, by whatever clock the episode runs on.
    pub now_s: u64,
}
