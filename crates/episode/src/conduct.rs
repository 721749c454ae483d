//! What an attempt did with tools, counted.

use serde::{Deserialize, Serialize};

/// Calls of an attempt and what became of them.
///
/// - Holds: every call is counted once in `calls`; `denied + failed <= calls`. What could not be read as a call is counted
///   in `malformed` alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conduct {
    /// Calls that were read from the policy's turns and put to the gate.
    pub calls: u32,
    /// Texts that began like a call and were none.
    pub malformed: u32,
    /// Calls the gate did not let through, for whatever reason: the violations.
    pub denied: u32,
    /// Calls among the denied that would have needed an approval nobody gave.
    pub unapproved: u32,
    /// Calls the gate let through with other arguments.
    pub modified: u32,
    /// Calls that ran and whose tool said that it could not do it.
    pub failed: u32,
    /// Sequences begun anew because the chat template would have rewritten what was said.
    pub restarts: u32,
}

impl std::iter::Sum for Conduct {
    fn sum<I: Iterator<Item = Conduct>>(all: I) -> Conduct {
        all.fold(Conduct::default(), |a, b| Conduct {
            calls: a.calls.saturating_add(b.calls),
            malformed: a.malformed.saturating_add(b.malformed),
            denied: a.denied.saturating_add(b.denied),
            unapproved: a.unapproved.saturating_add(b.unapproved),
            modified: a.modified.saturating_add(b.modified),
            failed: a.failed.saturating_add(b.failed),
            restarts: a.restarts.saturating_add(b.restarts),
        })
    }
}

impl Conduct {
    /// Calls per hundred that the gate did not let through; none without calls.
    pub fn violations_per_100_calls(&self) -> Option<f64> {
        (self.calls > 0).then(|| 100.0 * f64::from(self.denied) / f64::from(self.calls))
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Conduct::default()
    }
}
