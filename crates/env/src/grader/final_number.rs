//! The final answer of a worked solution against the gold number.

use std::path::Path;

use episode::Task;
use serde::{Deserialize, Serialize};

use crate::grader::{Grader, Make, Marks, bad_gold, gold_number};
use crate::{Submission, Ungraded, answer};

/// Nothing to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(FinalNumber))
    }
}

struct FinalNumber;

impl Grader for FinalNumber {
    fn accepts(&self, task: &Task) -> Result<(), String> {
        gold_number(task).map(|_| ())
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let gold = gold_number(submission.task).map_err(bad_gold)?;
        Ok(Marks::of(answer::final_answer(submission.reply) == Some(gold)))
    }
}
