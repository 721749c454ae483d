//! The last number of the reply against the gold number.

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
        Ok(Box::new(EqualsGold { read: answer::last_number, tells: self.tells }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Submission;
    use episode::{Message, Role, Task};
    use std::sync::atomic::AtomicBool;

    fn check(tells: bool, reply: &str, want: (f64, Option<&str>)) {
        let grader = Settings { tells }.make(Path::new("")).unwrap();
        let task = Task::new("t", vec![Message::new(Role::User, "q")], 42.into(), serde_json::Value::Null);
        let marks = grader.grade(&Submission { task: &task, reply, state: &serde_json::Value::Null, cancel: &AtomicBool::new(false) }).unwrap();
        assert_eq!((marks.value, marks.feedback.as_deref()), want, "{reply}");
    }

    #[test]
    fn only_a_wrong_reply_is_told_and_only_where_that_is_set() {
        check(true, "41", (0.0, Some("The right answer is 42.")));
        check(true, "42", (1.0, None));
        check(false, "41", (0.0, None));
    }
}
