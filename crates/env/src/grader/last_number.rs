//! The last number of the reply against the gold number.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::answer;
use crate::grader::{EqualsGold, Grader, Make};

/// Nothing to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(EqualsGold(answer::last_number)))
    }
}
