//! The tools of MCP servers as a world.

use agent::{Reaction, World};
use episode::{Cause, ToolCall, ToolSpec};
use gate::Answer;
use serde_json::{Value, json};

use super::Mcp;

/// Calls that are kept for a grader.
const MAX_KEPT: usize = 10_000;

/// A world of MCP servers; its state, for a grader, is the list of calls and what came of them.
#[derive(Debug)]
pub struct McpWorld {
    servers: Vec<Mcp>,
    calls: Vec<Value>,
}

impl McpWorld {
    /// A world of these servers, whose tools were admitted.
    ///
    /// - Errors: the name of a tool that two of them have.
    pub fn new(servers: Vec<Mcp>) -> Result<McpWorld, String> {
        let mut names = std::collections::BTreeSet::new();
        for tool in servers.iter().flat_map(Mcp::tools) {
            if names.contains(&tool.name) {
                return Err(tool.name);
            }
            names.insert(tool.name);
        }
        Ok(McpWorld { servers, calls: Vec::new() })
    }

    /// The tools that are used.
    pub fn tools(&self) -> Vec<ToolSpec> {
        self.servers.iter().flat_map(Mcp::tools).collect()
    }
}

impl World for McpWorld {
    fn answer(&mut self, _said: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }

    fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        let Some(server) = self.servers.iter_mut().find(|s| s.has(&call.tool)) else {
            return Err(Cause::new("no_such_tool", format!("the world has no tool `{}`", call.tool)));
        };
        let answer = server.call(call)?;
        if self.calls.len() < MAX_KEPT {
            self.calls.push(json!({
                "tool": call.tool, "arguments": call.arguments, "ok": answer.ok, "text": answer.text,
            }));
        }
        Ok(answer)
    }

    fn state(&self) -> Value {
        json!({ "calls": self.calls })
    }
}
