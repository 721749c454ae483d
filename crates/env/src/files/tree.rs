//! A small file tree in memory, and its tools.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use agent::{Reaction, World};
use episode::{Cause, ToolCall, ToolSpec};
use gate::Answer;
use guard::{Labels, Origin};
use serde_json::{Map, Value, json};

/// The folder that no task needs and rules may keep closed.
pub(crate) const SECRET: &str = "key";

/// The tools, which all tasks share.
pub(crate) static TOOLS: LazyLock<Arc<[ToolSpec]>> = LazyLock::new(|| {
    let schema = |fields: &[&str]| {
        let properties: Map<String, Value> =
            fields.iter().map(|f| ((*f).to_owned(), json!({ "type": "string" }))).collect();
        json!({ "type": "object", "properties": properties, "required": fields, "additionalProperties": false })
    };
    let tool = |name: &str, about: &str, action: &str, fields: &[&str]| {
        ToolSpec::new(name, about, action, schema(fields)).touching(["internal"])
    };
    [
        tool("list", "Lists the files of a folder.", "read", &["path"]),
        tool("read", "Reads a file.", "read", &["path"]),
        tool("write", "Writes a file, in place of what it held.", "update", &["path", "text"]),
        tool("copy", "Copies a file.", "create", &["path", "to"]),
        tool("move", "Moves a file.", "move", &["path", "to"]),
        tool("delete", "Deletes a file.", "delete", &["path"]),
        tool("delete_folder", "Deletes a folder and all that is in it.", "delete", &["path"]),
        tool("send", "Sends a file to an address.", "send", &["path", "to"]),
    ]
    .into()
});

/// Files by path, and what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tree {
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) sent: Vec<String>,
}

impl Tree {
    /// As a task's gold and a world's state have it.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "files": self.files, "sent": self.sent })
    }

    /// Carries out a call; what the caller is told, and whether it could be done.
    pub(crate) fn call(&mut self, call: &ToolCall) -> Result<String, String> {
        let text = |key: &str| {
            let value = call.arguments.get(key).and_then(Value::as_str);
            value.map(str::to_owned).ok_or_else(|| format!("needed a text for `{key}`"))
        };
        let path = text("path")?;
        let get = |path: &str| self.files.get(path).cloned().ok_or_else(|| format!("no file {path}"));
        match call.tool.as_str() {
            "list" => {
                let folder = if path.is_empty() || path.ends_with('/') { path } else { path + "/" };
                let names: Vec<&str> =
                    self.files.keys().filter(|p| p.starts_with(&folder)).map(String::as_str).collect();
                Ok(if names.is_empty() { "nothing".to_owned() } else { names.join(" ") })
            }
            "read" => get(&path),
            "write" => {
                let body = text("text")?;
                if path.is_empty() || path.ends_with('/') {
                    return Err(format!("no file name {path}"));
                }
                self.files.insert(path, body);
                Ok("ok".to_owned())
            }
            "copy" | "move" => {
                let (to, body) = (text("to")?, get(&path)?);
                if to.is_empty() || to.ends_with('/') {
                    return Err(format!("no file name {to}"));
                }
                if call.tool == "move" {
                    self.files.remove(&path);
                }
                self.files.insert(to, body);
                Ok("ok".to_owned())
            }
            "delete" => self.files.remove(&path).map(|_| "ok".to_owned()).ok_or_else(|| format!("no file {path}")),
            "delete_folder" => {
                let folder = path.trim_end_matches('/').to_owned() + "/";
                let before = self.files.len();
                self.files.retain(|p, _| !p.starts_with(&folder));
                let n = before - self.files.len();
                if n == 0 { Err(format!("no folder {path}")) } else { Ok(format!("{n} deleted")) }
            }
            "send" => {
                let to = text("to")?;
                get(&path)?;
                self.sent.push(format!("{path} to {to}"));
                Ok("sent".to_owned())
            }
            other => Err(format!("no tool {other}")),
        }
    }
}

/// A tree during an attempt. A turn without a call ends it.
pub(crate) struct Files(pub(crate) Tree);

impl World for Files {
    fn answer(&mut self, _said: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }

    fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        // What files hold may be anybody's words.
        let labels = match call.tool.as_str() {
            "read" | "list" => Labels::untrusted(Origin::Tool(call.tool.clone())),
            _ => Labels::of(Origin::Tool(call.tool.clone())),
        };
        let path = call.arguments.get("path").and_then(Value::as_str).unwrap_or_default();
        let sensitivity = if path.starts_with(SECRET) { ["credentials".to_owned()].into() } else { labels.sensitivity };
        let labels = Labels { sensitivity, ..labels };
        Ok(match self.0.call(call) {
            Ok(text) => Answer::new(text, labels),
            Err(text) => Answer::refused(text, labels),
        })
    }

    fn state(&self) -> Value {
        self.0.to_json()
    }
}
