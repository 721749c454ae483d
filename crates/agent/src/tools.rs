//! Tools of this machine, one file each: what an agent can do in a folder.
//!
//! They know no rules: every call has passed the gate before it comes here. What they do themselves is stay in their folder,
//! whatever a path or a link says, and keep answers short enough to be read.

use std::path::{Path, PathBuf};

use episode::{Cause, ToolCall, ToolSpec};
use gate::Answer;
use guard::{Labels, Origin};
use serde_json::{Map, Value};

use crate::{Reaction, World};

/// Makes, from one line a tool: its module and its place in the list of all.
macro_rules! tools {
    ($($name:literal => $module:ident :: $make:ident,)+) => {
        $(mod $module;)+

        /// The names of all tools of this machine.
        pub const NAMES: &[&str] = &[$($name),+];

        /// A tool of this machine, working in a folder; none of that name otherwise.
        pub fn tool(name: &str, place: &Workplace) -> Option<Box<dyn Tool>> {
            match name {
                $($name => Some(Box::new($module::$make(place.clone()))),)+
                _ => None,
            }
        }
    };
}

mod beneath;

tools! {
    "read_file" => read_file::ReadFile,
    "list_files" => list_files::ListFiles,
    "search_files" => search_files::SearchFiles,
    "write_file" => write_file::WriteFile,
    "delete_file" => delete_file::DeleteFile,
    "shell" => shell::Shell,
}

/// Where tools work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workplace {
    /// The folder they see.
    pub folder: PathBuf,
    /// Whether programs run without a jail.
    pub unjailed: bool,
}

/// Something an agent may call.
pub trait Tool: Send {
    /// What it is.
    fn spec(&self) -> ToolSpec;

    /// Carries out a call.
    ///
    /// - Errors: a fault of the tool itself; a call that makes no sense is an [`Answer`] that is not `ok`.
    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause>;
}

/// Tools as a world: a turn without a call ends it.
#[derive(Default)]
pub struct Toolbox {
    tools: Vec<(ToolSpec, Box<dyn Tool>)>,
}

impl Toolbox {
    /// An empty one.
    pub fn new() -> Toolbox {
        Toolbox::default()
    }

    /// Adds a tool.
    ///
    /// - Errors: its name, when a tool of that name is in it.
    pub fn add(&mut self, tool: Box<dyn Tool>) -> Result<(), String> {
        let spec = tool.spec();
        if self.tools.iter().any(|(s, _)| s.name == spec.name) {
            return Err(spec.name);
        }
        self.tools.push((spec, tool));
        Ok(())
    }

    /// What is in it, in order.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.iter().map(|(spec, _)| spec.clone()).collect()
    }
}

impl World for Toolbox {
    fn answer(&mut self, _said: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }

    fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        let found = self.tools.iter_mut().find(|(spec, _)| spec.name == call.tool);
        let (_, tool) = found.ok_or_else(|| Cause::new("no_such_tool", format!("there is no tool `{}`", call.tool)))?;
        tool.call(&call.arguments)
    }
}

/// Bytes of an answer; the rest is left out, and the answer says so.
const MAX_ANSWER_BYTES: usize = 16 << 10;

/// An answer about what lies in the folder: text that somebody else may have written.
fn found(tool: &str, text: impl Into<String>) -> Answer {
    Answer::new(shortened(text.into()), Labels::untrusted(Origin::Tool(tool.to_owned())))
}

/// An answer that the tool itself gives.
fn done(tool: &str, text: impl Into<String>) -> Answer {
    Answer::new(text, Labels::of(Origin::Tool(tool.to_owned())))
}

/// An answer to a call that makes no sense.
fn refused(tool: &str, text: impl Into<String>) -> Answer {
    Answer::refused(shortened(text.into()), Labels::of(Origin::Tool(tool.to_owned())))
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_ANSWER_BYTES {
        let n_all = text.len();
        let end = (0..=MAX_ANSWER_BYTES).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push_str(&format!("\n… {} more bytes are left out", n_all - end));
    }
    text
}

/// A text among the arguments.
fn text<'a>(arguments: &'a Map<String, Value>, key: &str) -> Result<&'a str, String> {
    let value = arguments.get(key).ok_or_else(|| format!("needed `{key}`"))?;
    value.as_str().ok_or_else(|| format!("needed a text for `{key}`, got {value}"))
}

/// The schema of an object of texts, all needed.
fn texts(fields: &[(&str, &str)]) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|(name, about)| ((*name).to_owned(), serde_json::json!({ "type": "string", "description": about })))
        .collect();
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    serde_json::json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false
    })
}

/// What the system said, without the place of the folder.
fn said(error: &std::io::Error, path: &str) -> String {
    let what = match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder",
        std::io::ErrorKind::PermissionDenied => "it may not be opened",
        std::io::ErrorKind::AlreadyExists => "it exists already",
        std::io::ErrorKind::IsADirectory => "it is a folder",
        std::io::ErrorKind::NotADirectory => "a part of its path is no folder",
        std::io::ErrorKind::CrossesDevices => "it lies outside of the folder",
        _ => return format!("`{path}`: {error}"),
    };
    format!("`{path}`: {what}")
}

impl Workplace {
    /// A folder, with a jail for programs.
    pub fn new(folder: impl AsRef<Path>) -> Workplace {
        Workplace { folder: folder.as_ref().to_owned(), unjailed: false }
    }
}

#[cfg(test)]
mod tests;
