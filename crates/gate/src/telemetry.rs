//! What a gate has done so far, in numbers that only grow.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Counts since the gate was opened, over all its sessions. Calls that are repeated from a record are left out.
///
/// - Holds: `proposed` is the sum of `let_through`, `denied_by`, `waiting` and `deferred`; a call that waited and is
///   proposed again counts again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Sessions begun.
    pub sessions: u64,
    /// Calls ruled upon.
    pub proposed: u64,
    /// Calls that may run, those with other arguments among them.
    pub let_through: u64,
    /// Calls let through with other arguments.
    pub modified: u64,
    /// Calls denied, by the part of the gate that did it.
    pub denied_by: BTreeMap<String, u64>,
    /// Calls that wait for an approval.
    pub waiting: u64,
    /// Calls put off.
    pub deferred: u64,
    /// Calls that ran and whose tool did what it was asked.
    pub answered: u64,
    /// Calls that ran and whose tool could not do what it was asked.
    pub refused: u64,
    /// Calls that began and ended in a fault of the tool.
    pub failed: u64,
    /// Calls let through and given up before they began.
    pub given_up: u64,
    /// Approvals used.
    pub approvals_used: u64,
    /// Calls by tool, known ones by name.
    pub by_tool: BTreeMap<String, u64>,
    /// How often each rule took part in a ruling, by `id@version`.
    pub by_rule: BTreeMap<String, u64>,
}

/// The counts, shared by a gate's sessions.
#[derive(Debug, Default)]
pub(crate) struct Telemetry(Mutex<Counts>);

impl Telemetry {
    pub(crate) fn count(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn snapshot(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Adds one under a name, without making the name again when it is there.
pub(crate) fn bump(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(n) => *n += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}
