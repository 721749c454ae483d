//! What an environment of tools has beside its tasks.

use std::sync::Arc;

use agent::World;
use episode::{Task, ToolCall, ToolSpec};

/// Tools, and a world for each attempt.
pub(crate) trait Stage: Send + Sync {
    /// The tools of a task.
    fn tools(&self, task: &Task) -> Arc<[ToolSpec]>;

    /// The world as a task finds it.
    fn world(&self, task: &Task) -> Box<dyn World>;

    /// Calls that solve a task, if they are known.
    fn gold_calls(&self, task: &Task) -> Option<Vec<ToolCall>>;
}
