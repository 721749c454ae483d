//! What crosses the machine's edge: models (known ones by name through the machine's own pip, others from a model hub, into
//! one folder in which a name is one set of bits), and the protocols in which policies, tools and worlds elsewhere speak.
//!
//! - [`openai`] samples from any OpenAI-compatible endpoint; [`mcp`] brings in the tools of MCP servers; [`openenv`] plays
//!   in OpenEnv worlds; [`skill`] reads folders of instructions. All are used like anything local: whatever waits is within.
//! - [`ModelStore`] lists, resolves, verifies, imports, pulls and removes models.
//! - [`KNOWN_MODELS`] is the table of names that mean exactly one file, whatever the source.
//! - Everything that takes long reports to a [`Progress`] and stops soon after its flag is raised (see [`Watch`]).

mod disk;
mod error;
mod http;
mod hub;
mod known;
mod part;
mod pins;
#[cfg(test)]
mod place;
mod progress;
mod record;
mod select;
mod staging;
mod store;
mod wheel;
mod wire;

pub mod mcp;
pub mod openai;
pub mod openenv;
pub mod skill;

pub use error::RemoteError;
pub use hub::{HubSettings, Token};
pub use known::{KNOWN_MODELS, KnownModel};
pub use pins::{Pins, PinsError};
pub use progress::{Event, Phase, Progress, Quiet, Watch};
pub use record::{FileRecord, ModelRecord, RECORD_FILE};
pub use store::{Installed, ModelStore, PullSettings, Pulled};
pub use wheel::PipSettings;
pub use wire::{Patience, Secret, WireError};
