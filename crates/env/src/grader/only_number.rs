//! Form without truth: whether the reply is one whole number and nothing else.

use std::path::Path;

use episode::Task;
use serde::{Deserialize, Serialize};

use crate::grader::{Grader, Make, Marks};
use crate::{Submission, Ungraded, answer};

/// Nothing to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(OnlyNumber))
    }
}

struct OnlyNumber;

impl Grader for OnlyNumber {
    fn accepts(&self, _task: &Task) -> Result<(), String> {
        Ok(())
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        Ok(Marks::of(answer::is_only_number(submission.reply)))
    }
}
