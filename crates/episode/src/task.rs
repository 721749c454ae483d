//! One problem: what the policy is shown, what only the grader may see, and a name made from both.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::ToolCall;

/// Who speaks a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Standing instructions.
    System,
    /// Whoever gives the task.
    User,
    /// The policy.
    Assistant,
    /// A tool's answer.
    Tool,
}

impl Role {
    /// The word chat templates use for this role.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message of a conversation, as chat data files write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; of the policy's turn without the calls that were read from it.
    pub content: String,
    /// The calls that were read from the policy's turn, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// The tool whose answer this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

impl Message {
    /// A message without calls.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message { role, content: content.into(), calls: Vec::new(), tool: None }
    }
}

/// A task's name: its environment and the hash of its content, so that it stays the same when files are reordered and
/// tasks of two environments never collide.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(String);

impl TaskId {
    /// The id as text: `environment/16 hex digits`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Sixty-four bits of the content hash, for seeding random streams.
    pub fn bits(&self) -> u64 {
        let digest = Sha256::digest(self.0.as_bytes());
        u64::from_le_bytes(digest[..8].try_into().expect("a SHA-256 digest has 32 bytes"))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Content hash; see [`TaskId`].
    pub id: TaskId,
    /// The name of the environment that made it and will grade it.
    pub env: String,
    /// What the policy is shown at the start.
    pub messages: Vec<Message>,
    /// What the grader compares with; never shown to the policy.
    pub gold: Value,
    /// Anything else worth keeping, such as the level of difficulty.
    #[serde(default)]
    pub meta: Value,
}

impl Task {
    /// A task, named by the hash of its environment, messages and gold.
    ///
    /// - Holds: equal content gives an equal id, whatever the order or the file it came from; `meta` does not count.
    pub fn new(env: impl Into<String>, messages: Vec<Message>, gold: Value, meta: Value) -> Self {
        let env = env.into();
        let mut hash = Sha256::new();
        for part in [env.as_bytes(), &bytes_of(&messages), &bytes_of(&gold)] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let mut id = format!("{env}/");
        for byte in &digest[..8] {
            id.push_str(&format!("{byte:02x}"));
        }
        Task { id: TaskId(id), env, messages, gold, meta }
    }
}

fn bytes_of(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("messages and JSON values always serialise")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn task(env: &str, text: &str, gold: Value) -> Task {
        Task::new(env, vec![Message::new(Role::User, text)], gold, Value::Null)
    }

    #[test]
    fn equal_content_has_one_id_and_other_content_another() {
        assert_eq!(task("sums", "1+1", json!(2)).id, task("sums", "1+1", json!(2)).id);
        assert_ne!(task("sums", "1+1", json!(2)).id, task("sums", "1+2", json!(2)).id);
        assert_ne!(task("sums", "1+1", json!(2)).id, task("sums", "1+1", json!(3)).id);
    }

    #[test]
    fn ids_of_two_environments_never_collide() {
        assert_ne!(task("a", "1+1", json!(2)).id, task("b", "1+1", json!(2)).id);
    }

    #[test]
    fn meta_does_not_change_the_id() {
        let plain = task("sums", "1+1", json!(2));
        let noted = Task::new("sums", plain.messages.clone(), json!(2), json!({"level": 3}));
        assert_eq!(plain.id, noted.id);
    }
}
