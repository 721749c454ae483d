//! Rules over a proposed tool call, labels of data, and rules over an episode's history. Pure: clock, secrets and files
//! arrive as arguments.
//!
//! A [`Guard`] is built from [`Packs`] of rules, the tools of an episode and the [`Scope`] of a run; [`Guard::decide`] says
//! of one [`Request`] what may become of it, and names the rules that said so. What no rule permits is denied; deny beats
//! defer beats ask beats modify beats allow; a rule that fails denies.

mod action;
mod build;
mod cases;
mod context;
mod error;
mod facts;
mod guard;
mod labels;
mod pack;
mod principal;
mod request;
mod rules;
mod schema;
mod scope;
mod shipped;
mod sieve;
mod verdict;

pub mod temporal;

pub use action::{ActionClass, DataClass, action_classes, data_classes};
pub use cases::{CaseFault, Cases};
pub use error::GuardError;
pub use guard::Guard;
pub use labels::{Labels, Origin, Readers};
pub use pack::{Header, Pack, Packs, RuleInfo};
pub use principal::{Autonomy, Deployment, Principal};
pub use request::Request;
pub use scope::Scope;
pub use shipped::Shipped;
pub use verdict::{Decision, Hit, Need, Verdict};
