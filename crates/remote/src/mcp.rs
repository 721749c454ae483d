//! Tools of MCP servers, as tools of our own.
//!
//! A server is a program on this machine or an address ([`McpServer`]). What its tools may do is said by whoever writes its
//! manifest, never by the server: a tool that the manifest does not class belongs to no class of action, and a guard denies
//! that. A tool is used only as it was accepted ([`crate::Pins`]): one that is new, or whose name, description or schema changed,
//! is stopped until a person accepts it. What it answers is untrusted data of that tool unless the manifest says otherwise.
//!
//! Protocol 2026-07-28 is tried first, 2025-11-25 where a server does not know it. A server is offered nothing of ours: no
//! files, no sampling, no answers to its questions.
//!
//! - Source: modelcontextprotocol.io, specification 2026-07-28 and 2025-11-25; tool changes after approval: CVE-2025-54136.

mod answer;
mod child;
mod client;
mod error;
mod line;
mod server;
mod world;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

pub use client::{Listed, Mcp, Stopped, Why};
pub use error::McpError;
pub use server::{McpServer, Protocol, Reach, ToolClass};
pub use world::McpWorld;
