//! What crosses the machine's edge. Today that is models: known ones by name through the machine's own pip, others from a
//! model hub, into one folder in which a name is one set of bits.
//!
//! - [`ModelStore`] lists, resolves, verifies, imports, pulls and removes models.
//! - [`KNOWN_MODELS`] is the table of names that mean exactly one file, whatever the source.
//! - Everything that takes long reports to a [`Progress`] and stops soon after its flag is raised (see [`Watch`]).

mod disk;
mod error;
mod http;
mod hub;
mod known;
mod part;
#[cfg(test)]
mod place;
mod progress;
mod record;
mod select;
mod staging;
mod store;
mod wheel;

pub use error::RemoteError;
pub use hub::{HubSettings, Token};
pub use known::{KNOWN_MODELS, KnownModel};
pub use progress::{Event, Phase, Progress, Quiet, Watch};
pub use record::{FileRecord, ModelRecord, RECORD_FILE};
pub use store::{Installed, ModelStore, PullSettings, Pulled};
pub use wheel::PipSettings;
