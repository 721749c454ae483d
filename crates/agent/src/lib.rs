//! The one turn loop: what the policy is asked next, and what becomes of its answer.
//!
//! [`Turns`] is a state machine, so that one batched sampler drives thousands of attempts: it hands out a
//! [`policy::Job`], is fed the [`policy::Sampled`] that answers it, and either asks again or is finished. What a
//! [`World`] says in between is appended as tokens after what was sampled; nothing sampled is ever rendered again.

mod attempt;
mod codec;
mod turns;
mod world;

pub mod fake;

pub use attempt::Attempt;
pub use codec::{Codec, Opening};
pub use turns::{Frame, Limits, Step, Turns};
pub use world::{Reaction, Silent, World};
