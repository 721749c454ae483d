//! Worlds behind OpenEnv servers.
//!
//! A server gives an environment that is reset and then stepped with actions; each step answers with an observation, a
//! reward and whether the episode is done. Over a WebSocket every connection has an environment of its own, and that is
//! how to play; over HTTP only servers that keep one environment between requests can be played, and one that does not is
//! refused when it is reset, not played wrongly.
//!
//! - Source: OpenEnv (github.com/meta-pytorch/OpenEnv), `core/env_server`: `/ws` with messages `reset`, `step`, `state`,
//!   `close` and answers `observation`, `state`, `error`; `POST /reset`, `POST /step`, `GET /state`, `/schema`, `/health`;
//!   tools as the actions `list_tools` and `call_tool`.

mod client;
mod error;
mod seen;
mod socket;
mod world;

#[cfg(test)]
mod tests;

pub use client::{OpenEnv, OpenEnvSettings, Transport};
pub use error::{Code, OpenEnvError};
pub use seen::{Schemas, Seen, Tool};
pub use world::{OpenEnvWorld, Shape};
