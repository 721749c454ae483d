//! What a gate says of a call.

use std::fmt;
use std::sync::Arc;

use episode::{Cause, ToolCall};
use guard::{Hit, Labels};

use crate::{GateError, Hold, Part, Pending};

/// What became of a proposed call.
#[derive(Debug)]
pub enum Ruling {
    /// It may run, once.
    Go(Permit),
    /// It may not.
    Denied(Refusal),
    /// It waits for an approval; propose it again to find what has become of it.
    Waiting(Box<Pending>),
    /// Not now: something must happen first.
    Deferred(Refusal),
}

/// The right to run one call once, of the session that gave it.
///
/// - Holds: only [`crate::Session::propose`] makes one, and [`crate::Session::carry_out`] uses it up; there is no other way
///   to run a tool.
///
/// ```compile_fail,E0423
/// fn forged() -> surefoot_gate::Permit {
///     surefoot_gate::Permit(todo!())
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn twice(mut session: surefoot_gate::Session, permit: surefoot_gate::Permit) {
///     let answer = |_: &episode::ToolCall| unimplemented!();
///     let _ = session.carry_out(permit, answer);
///     let _ = session.carry_out(permit, answer);
/// }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped gives its budget back, and its call is never known to have ended"]
pub struct Permit(pub(crate) Box<Permitted>);

/// What a permit holds.
#[derive(Debug)]
pub(crate) struct Permitted {
    /// The mark of the session that gave it.
    pub(crate) of: Arc<()>,
    pub(crate) number: u64,
    pub(crate) call: ToolCall,
    pub(crate) tool_digest: String,
    pub(crate) labels: Labels,
    pub(crate) note: Option<String>,
    pub(crate) approval: Option<String>,
    pub(crate) hold: Hold,
    /// The digest of the attempt's receipt, where one was written.
    pub(crate) attempt: String,
    /// Whether it happened before, and so leaves no second receipt.
    pub(crate) repeats: bool,
}

impl Permit {
    /// The call as it will run.
    pub fn call(&self) -> &ToolCall {
        &self.0.call
    }

    /// What the policy is told when other arguments run than it asked for.
    pub fn note(&self) -> Option<&str> {
        self.0.note.as_deref()
    }

    /// The number of the call in its session, from 1.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The most it may use.
    pub fn most(&self) -> crate::Amount {
        self.0.hold.amount()
    }
}

/// Why a call does not run. Its text is for the policy: it holds rules' reasons, and nothing of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The part of the gate that refused.
    pub by: Part,
    /// Why.
    pub reason: String,
    /// The rules that took part.
    pub rules: Vec<Hit>,
}

impl Refusal {
    pub(crate) fn new(by: Part, reason: impl Into<String>) -> Refusal {
        Refusal { by, reason: reason.into(), rules: Vec::new() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Why a call that was let through brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum CarryOut {
    /// The tool failed.
    #[error("{}: {}", .0.class, .0.detail)]
    Tool(Cause),
    /// Between ruling and beginning, the session was stopped, or the approval was used by another, taken back, or ran out;
    /// the tool did not run.
    #[error("{0}")]
    Denied(Refusal),
    /// The gate itself failed.
    #[error(transparent)]
    Gate(#[from] GateError),
}
