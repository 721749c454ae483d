//! What an agent may use, and one use of it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A tool as an agent sees it and as rules see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// Its name, unique in an episode.
    pub name: String,
    /// What it does, for the policy. Text from elsewhere: never a source of rights.
    pub description: String,
    /// A JSON Schema object that its arguments fit.
    pub parameters: Value,
    /// The class of action, from the guard's table, such as `read`, `delete` or `pay`. One that is not in the table is
    /// denied.
    pub action: String,
    /// The classes of data it touches, such as `credentials` or `location`; empty for none worth a rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<String>,
}

impl ToolSpec {
    /// A tool without data classes.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        action: impl Into<String>,
        parameters: Value,
    ) -> Self {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            parameters,
            action: action.into(),
            data: Vec::new(),
        }
    }

    /// The same with these data classes.
    #[must_use]
    pub fn touching(mut self, data: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.data = data.into_iter().map(Into::into).collect();
        self
    }
}

/// A tool with arguments, as the policy asked for it. Hostile input until a gate has passed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The tool's name.
    pub tool: String,
    /// Its arguments by name, in the order they were given.
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    /// A call; what is not an object has no arguments.
    pub fn new(tool: impl Into<String>, arguments: Value) -> Self {
        let arguments = match arguments {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        ToolCall { tool: tool.into(), arguments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, Role};
    use serde_json::json;

    #[test]
    fn e13_calls_and_the_tool_that_answered_survive_json() {
        let call = ToolCall::new("search", json!({"q": "x", "n": 3}));
        let asked = Message { calls: vec![call], ..Message::new(Role::Assistant, "let me see") };
        let answered = Message { tool: Some("search".to_owned()), ..Message::new(Role::Tool, "nothing") };
        for message in [asked, answered] {
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
        }
    }

    #[test]
    fn a_message_without_calls_is_stored_as_before() {
        let text = serde_json::to_string(&Message::new(Role::User, "hi")).unwrap();
        assert_eq!(text, r#"{"role":"user","content":"hi"}"#);
    }
}
