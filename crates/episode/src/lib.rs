//! The nouns of post-training, shared by every crate above and knowing none of them.
//!
//! A [`Task`] is one problem, an [`Episode`] one attempt at it, a [`Sequence`] the exact tokens of that attempt with
//! what was recorded about each, an [`Outcome`] how it ended, a [`Group`] the episodes of one task in one step.

mod conduct;
mod group;
mod outcome;
mod sequence;
mod task;
mod tool;

pub mod random;

pub use conduct::Conduct;
pub use group::{Episode, EpisodeKey, Group};
pub use outcome::{Cause, Outcome, Part, Stage, StopReason};
pub use sequence::{Sequence, SequenceError, Turn};
pub use task::{Message, Role, Task, TaskId};
pub use tool::{ToolCall, ToolSpec};

/// A token id in the policy's vocabulary.
pub type Token = u32;
