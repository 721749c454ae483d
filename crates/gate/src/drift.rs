//! How far what an agent does has moved from what it was said to do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What a session did, beside what it declared.
///
/// - Holds: every call that was ruled upon is counted once, by the class of its tool; one on a tool that is unknown here
///   counts under the empty class and is always outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// The classes of action that were declared; empty when none were.
    pub declared: BTreeSet<String>,
    /// Calls by class of action.
    pub by_class: BTreeMap<String, u64>,
    /// The number of the call in which each class was first used.
    pub first_use: BTreeMap<String, u64>,
    /// Calls by class of action that were not let through.
    pub denied: BTreeMap<String, u64>,
}

impl Drift {
    pub(crate) fn new(declared: BTreeSet<String>) -> Drift {
        Drift { declared, ..Drift::default() }
    }

    pub(crate) fn count(&mut self, class: &str, call: u64, denied: bool) {
        *self.by_class.entry(class.to_owned()).or_default() += 1;
        self.first_use.entry(class.to_owned()).or_insert(call);
        if denied {
            *self.denied.entry(class.to_owned()).or_default() += 1;
        }
    }

    /// A call that was counted as not let through was, once its approval came.
    pub(crate) fn allowed_after_all(&mut self, class: &str) {
        if let Some(n) = self.denied.get_mut(class) {
            *n = n.saturating_sub(1);
        }
    }

    /// Calls that were ruled upon.
    pub fn n_calls(&self) -> u64 {
        self.by_class.values().sum()
    }

    /// Calls in classes that were not declared; with none declared, calls that were not let through.
    pub fn n_outside(&self) -> u64 {
        if self.declared.is_empty() {
            return self.denied.values().sum();
        }
        self.by_class.iter().filter(|(class, _)| !self.declared.contains(*class)).map(|(_, n)| n).sum()
    }

    /// The share of calls outside what was declared: 0 for none, 1 for all.
    pub fn distance(&self) -> f64 {
        share(self.n_outside(), self.n_calls())
    }

    /// The share of calls that were not let through.
    pub fn share_denied(&self) -> f64 {
        share(self.denied.values().sum(), self.n_calls())
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_the_share_of_calls_outside_what_was_declared() {
        let mut drift = Drift::new(BTreeSet::from(["read".to_owned(), "search".to_owned()]));
        assert_eq!((drift.distance(), drift.share_denied()), (0.0, 0.0));
        for (n, class) in ["read", "read", "delete", "search", "send"].into_iter().enumerate() {
            drift.count(class, n as u64 + 1, class == "send");
        }
        assert_eq!((drift.n_outside(), drift.distance(), drift.share_denied()), (2, 0.4, 0.2));
        assert_eq!(drift.first_use["delete"], 3);
        assert_eq!(drift.first_use["read"], 1);
    }

    #[test]
    fn without_a_declaration_what_was_denied_is_outside() {
        let mut drift = Drift::new(BTreeSet::new());
        drift.count("read", 1, false);
        drift.count("pay", 2, true);
        assert_eq!(drift.distance(), 0.5);
    }
}
