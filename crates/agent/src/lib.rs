//! The one turn loop: what the policy is asked next, and what becomes of its answer.
//!
//! [`Turns`] is a state machine, so that one batched sampler drives thousands of attempts: it hands out a
//! [`policy::Job`], is fed the [`policy::Sampled`] that answers it, and either asks again or is finished. What a
//! [`World`] says in between is appended as tokens after what was sampled; nothing sampled is ever rendered again. Every
//! tool call in a turn passes the gate's [`gate::Session`] on its way to the world: there is no other way.

mod asks;
mod attempt;
mod codec;
mod drive;
mod hands;
mod turns;
mod world;

pub mod fake;
pub mod tools;

pub use asks::Asks;
pub use attempt::Attempt;
pub use codec::{Codec, Opening};
pub use drive::drive;
pub use text::Next;
pub use turns::{Frame, Limits, Place, Step, Turns};
pub use world::{Reaction, Silent, World};
