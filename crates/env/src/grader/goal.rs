//! How the world ended, compared with how the task wants it to end: what was said counts for nothing.

use std::path::Path;

use episode::Task;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Grader, Make, Marks};
use crate::{Submission, Ungraded};

/// The settings of the grader `goal`; it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(Goal))
    }
}

/// 1 when every entry of the world is as the task's gold has it, and there is no other.
struct Goal;

impl Grader for Goal {
    fn accepts(&self, task: &Task) -> Result<(), String> {
        match task.gold.is_object() {
            true => Ok(()),
            false => Err(format!("its gold is `{}`, needed the world's entries at the end", task.gold)),
        }
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let differing = differing(&submission.task.gold, submission.state);
        let parts = vec![("differing".to_owned(), differing as f64)];
        Ok(Marks { parts, ..Marks::of(differing == 0) })
    }
}

/// Entries that are not as they should be: absent, otherwise, or too many. A world that is no object has none right.
fn differing(gold: &Value, state: &Value) -> usize {
    fn leaves<'v>(path: String, value: &'v Value, into: &mut Vec<(String, &'v Value)>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                map.iter().for_each(|(key, value)| leaves(format!("{path}\u{0}{key}"), value, into));
            }
            _ => into.push((path, value)),
        }
    }
    let (mut wanted, mut there) = (Vec::new(), Vec::new());
    leaves(String::new(), gold, &mut wanted);
    leaves(String::new(), state, &mut there);
    let missing = wanted.iter().filter(|entry| !there.contains(entry)).count();
    let extra = there.iter().filter(|(path, _)| !wanted.iter().any(|(p, _)| p == path)).count();
    missing + extra
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::AtomicBool;

    fn check(state: Value, reward: f64, n_differing: f64) {
        let gold = json!({"files": {"a": "1", "b": "2"}, "sent": []});
        let task = Task::new("e", vec![], gold, Value::Null);
        let submission = Submission { task: &task, reply: "all done, full marks", state: &state, cancel: &AtomicBool::new(false) };
        let marks = Goal.grade(&submission).unwrap();
        assert_eq!((marks.value, marks.parts[0].1), (reward, n_differing), "{state}");
    }

    #[test]
    fn only_the_world_counts_and_side_effects_spoil_it() {
        check(json!({"files": {"b": "2", "a": "1"}, "sent": []}), 1.0, 0.0);
        check(json!({"files": {"a": "1", "b": "3"}, "sent": []}), 0.0, 1.0);
        check(json!({"files": {"a": "1"}, "sent": []}), 0.0, 1.0);
        check(json!({"files": {"a": "1", "b": "2", "c": "x"}, "sent": []}), 0.0, 1.0);
        check(json!({"files": {"a": "1", "b": "2"}, "sent": ["a"]}), 0.0, 1.0);
        check(Value::Null, 0.0, 4.0);
        assert!(Goal.accepts(&Task::new("e", vec![], json!("4"), Value::Null)).is_err());
    }
}
