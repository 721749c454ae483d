//! The whole reply against the gold text.

use std::path::Path;

use episode::Task;
use serde::{Deserialize, Serialize};

use crate::grader::{Grader, Make, Marks, bad_gold};
use crate::{Submission, Ungraded};

/// How texts are compared; space around them and the kind of space inside never count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Whether `Paris` and `paris` are the same.
    pub ignore_case: bool,
    /// Whether one full stop at the end is left out.
    pub ignore_full_stop: bool,
}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(Text(self.clone())))
    }
}

struct Text(Settings);

impl Text {
    fn essence(&self, text: &str) -> String {
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if self.0.ignore_full_stop && text.ends_with('.') {
            text.pop();
        }
        if self.0.ignore_case { text.to_lowercase() } else { text }
    }
}

fn gold(task: &Task) -> Result<&str, String> {
    match task.gold.as_str() {
        Some(gold) if !gold.trim().is_empty() => Ok(gold),
        _ => Err(format!("needed a text as `gold`, got `{}`", task.gold)),
    }
}

impl Grader for Text {
    fn accepts(&self, task: &Task) -> Result<(), String> {
        gold(task).map(|_| ())
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let gold = gold(submission.task).map_err(bad_gold)?;
        Ok(Marks::of(self.essence(submission.reply) == self.essence(gold)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::AtomicBool;

    fn check(settings: &Settings, reply: &str, want: f64) {
        let task = Task::new("t", vec![], json!("New York"), json!(null));
        let cancel = AtomicBool::new(false);
        let marks = Text(settings.clone()).grade(&Submission { task: &task, reply, state: &serde_json::Value::Null, cancel: &cancel }).unwrap();
        assert_eq!(marks.value, want, "{reply:?}");
    }

    #[test]
    fn the_whole_reply_must_be_the_gold_text() {
        let strict = Settings::default();
        check(&strict, " New  York\n", 1.0);
        for wrong in ["", "New York City", "not New York", "new york", "New York.", "Boston New York"] {
            check(&strict, wrong, 0.0);
        }
        let lax = Settings { ignore_case: true, ignore_full_stop: true };
        check(&lax, "new york.", 1.0);
        check(&lax, "new york..", 0.0);
    }

    #[test]
    fn a_task_without_a_gold_text_is_refused() {
        for gold in [json!(null), json!(""), json!(5)] {
            assert!(Text(Settings::default()).accepts(&Task::new("t", vec![], gold, json!(null))).is_err());
        }
    }
}
