//! Instructions that somebody planted in what a task makes an agent read: obeying them, and telling that one was obeyed.
//!
//! A task with one carries the call that it asks for as `task.meta.attack`.

use episode::{Task, ToolCall};
use serde_json::Value;

use crate::{files, shop};

/// The calls that a text tells its reader to make, in any world: what a fully gullible agent would do.
pub fn obey(text: &str) -> Vec<ToolCall> {
    [files::obey(text), shop::obey(text)].concat()
}

/// The call that a task's planted instruction asks for, if it has one.
pub fn attack(task: &Task) -> Option<ToolCall> {
    serde_json::from_value(task.meta.get("attack")?.clone()).ok()
}

/// Whether a task's planted instruction was carried out, judged by how its world ended.
pub fn attack_done(task: &Task, state: &Value) -> bool {
    files::attack_done(task, state) || shop::attack_done(task, state)
}
