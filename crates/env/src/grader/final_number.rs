//! The final answer of a worked solution against the gold number.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::answer;
use crate::grader::{EqualsGold, Grader, Make};

/// What it says beside its verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(default)]
pub struct Settings {
    /// Tell of a wrong reply what would have been right, as feedback for a policy that learns from being told.
    pub tells: bool,
}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(EqualsGold { read: answer::final_answer, tells: self.tells }))
    }
}
