//! Which server, how to reach it, and what its tools may do.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::McpError;

/// A server and the manifest of its tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// Its name here: letters, digits, `-` and `_`.
    pub name: String,
    /// How to reach it.
    pub reach: Reach,
    /// Put before the name of each of its tools, so that two servers can have tools of one name.
    #[serde(default)]
    pub prefix: String,
    /// What its tools do, by the server's names for them. One that is missing belongs to no class of action.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolClass>,
    /// Which protocol to speak.
    #[serde(default)]
    pub protocol: Protocol,
    /// How long it may take to start and to list its tools, in seconds.
    #[serde(default = "start_s")]
    pub start_s: u32,
    /// How long one call may take, in seconds.
    #[serde(default = "call_s")]
    pub call_s: u32,
    /// How many bytes of an answer the policy reads; the rest is cut off, and the policy is told.
    #[serde(default = "answer_bytes")]
    pub max_answer_bytes: usize,
}

/// How to reach a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "kind")]
pub enum Reach {
    /// A program on this machine, spoken to over its standard input and output. It runs in a process group of its own, with
    /// an environment of the few variables every program gets and those named here.
    Stdio {
        /// The program: a path, or a name looked up in `PATH`.
        program: String,
        /// Its arguments.
        #[serde(default)]
        args: Vec<String>,
        /// Where it runs.
        #[serde(default)]
        folder: Option<PathBuf>,
        /// Its further environment variables.
        #[serde(default)]
        variables: BTreeMap<String, String>,
    },
    /// An address, over HTTP.
    Http {
        /// The address.
        url: String,
    },
}

/// What a tool does, as its user says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolClass {
    /// The class of action, from the guard's table.
    pub action: String,
    /// The classes of data it touches.
    #[serde(default)]
    pub data: Vec<String>,
    /// Whether what it answers is trusted as if the user had written it.
    #[serde(default)]
    pub trusted: bool,
}

/// Which protocol to speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// 2026-07-28 where the server knows it, else 2025-11-25.
    #[default]
    Auto,
    /// 2026-07-28 alone.
    New,
    /// 2025-11-25, or an older one if the server asks for it.
    Old,
}

fn start_s() -> u32 {
    60
}

fn call_s() -> u32 {
    120
}

fn answer_bytes() -> usize {
    64 << 10
}

impl McpServer {
    /// A server with the defaults and no tool classed.
    pub fn new(name: impl Into<String>, reach: Reach) -> Self {
        McpServer {
            name: name.into(),
            reach,
            prefix: String::new(),
            tools: BTreeMap::new(),
            protocol: Protocol::Auto,
            start_s: start_s(),
            call_s: call_s(),
            max_answer_bytes: answer_bytes(),
        }
    }

    /// The same with a tool classed.
    #[must_use]
    pub fn class(mut self, tool: impl Into<String>, action: impl Into<String>) -> Self {
        self.tools.insert(tool.into(), ToolClass { action: action.into(), data: Vec::new(), trusted: false });
        self
    }

    pub(super) fn check(&self) -> Result<(), McpError> {
        let bad = |setting, reason: String| Err(McpError::BadSetting { server: self.name.clone(), setting, reason });
        let plain = |t: &str| t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        let week = 7 * 24 * 3600;
        match self {
            s if s.name.is_empty() || s.name.len() > 64 || !plain(&s.name) => {
                bad("name", "needed 1 to 64 letters, digits, `-` and `_`".to_owned())
            }
            s if s.prefix.len() > 64 || !plain(&s.prefix) => {
                bad("prefix", "needed at most 64 letters, digits, `-` and `_`".to_owned())
            }
            s if !(1..=week).contains(&s.start_s) => bad("start_s", format!("needed 1 to {week}, got {}", s.start_s)),
            s if !(1..=week).contains(&s.call_s) => bad("call_s", format!("needed 1 to {week}, got {}", s.call_s)),
            s if s.max_answer_bytes == 0 => bad("max_answer_bytes", "needed at least 1, got 0".to_owned()),
            _ => self.check_classes(),
        }
    }

    /// A class that no table has would be denied with every call: said at the start instead.
    fn check_classes(&self) -> Result<(), McpError> {
        for (tool, class) in &self.tools {
            let odd = |what: &str| McpError::BadClass {
                server: self.name.clone(),
                tool: tool.clone(),
                class: what.to_owned(),
            };
            if guard::ActionClass::parse(&class.action).is_none() {
                return Err(odd(&class.action));
            }
            if let Some(data) = class.data.iter().find(|d| guard::DataClass::parse(d).is_none()) {
                return Err(odd(data));
            }
        }
        Ok(())
    }
}
