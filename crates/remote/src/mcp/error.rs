//! What can go wrong with an MCP server.

use crate::wire::WireError;

/// Why a server, or a tool of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// A setting cannot be used.
    #[error("bad `{setting}` of MCP server `{server}`: {reason}")]
    BadSetting {
        /// The server.
        server: String,
        /// Which one.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The manifest names a class that no table has.
    #[error("tool `{tool}` of MCP server `{server}` is classed `{class}`, which is no class of action or data")]
    BadClass {
        /// The server.
        server: String,
        /// Its tool.
        tool: String,
        /// The class.
        class: String,
    },
    /// The way there.
    #[error("MCP server `{server}`: {source}")]
    Wire {
        /// The server.
        server: String,
        /// What happened.
        source: WireError,
    },
    /// The program could not be started.
    #[error("cannot start `{program}` for MCP server `{server}`: {source}")]
    Spawn {
        /// The server.
        server: String,
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It did not come to a common protocol with us.
    #[error("MCP server `{server}` did not begin: {reason}{}", told(stderr))]
    Start {
        /// The server.
        server: String,
        /// What happened.
        reason: String,
        /// The end of what its program wrote to standard error.
        stderr: String,
    },
    /// It was silent until the deadline.
    #[error("MCP server `{server}` did not {what} within {deadline_s} s{}", told(stderr))]
    Deadline {
        /// The server.
        server: String,
        /// What it should have done.
        what: &'static str,
        /// How long it had.
        deadline_s: u32,
        /// The end of what its program wrote to standard error.
        stderr: String,
    },
    /// What it says of its tools cannot be used.
    #[error("MCP server `{server}` lists tools that cannot be used: {reason}")]
    BadList {
        /// The server.
        server: String,
        /// What is wrong, needed and got.
        reason: String,
    },
}

fn told(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it wrote: {stderr}") }
}
