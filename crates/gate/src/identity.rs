//! Who is asking: the place where a signed token comes in.

use std::fmt;
use std::sync::Arc;

use guard::Principal;

/// Says who an agent is and acts for, at a moment.
///
/// A principal that whoever starts the agent vouches for is one. A signed token is another: it checks audience, scope,
/// expiry and possession each time it is asked. What an agent says of itself, in arguments or in text, never is.
pub trait Identify: fmt::Debug + Send + Sync {
    /// The principal now; asked anew for every call, so what expires stops the next call.
    ///
    /// - Units: `now_ms` in milliseconds since 1970.
    /// - Errors: why there is none.
    fn identify(&self, now_ms: u64) -> Result<Principal, Unidentified>;
}

/// Why nobody can be said to be asking.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot tell who is asking: {reason}")]
pub struct Unidentified {
    /// What is wrong.
    pub reason: String,
}

impl Identify for Principal {
    fn identify(&self, _now_ms: u64) -> Result<Principal, Unidentified> {
        Ok(self.clone())
    }
}

/// An agent that another one started: whoever that one is, with the chain one longer.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) by: Arc<dyn Identify>,
    pub(crate) agent: String,
    pub(crate) purpose: String,
}

impl Identify for Started {
    fn identify(&self, now_ms: u64) -> Result<Principal, Unidentified> {
        Ok(self.by.identify(now_ms)?.child(&self.agent, &self.purpose))
    }
}
