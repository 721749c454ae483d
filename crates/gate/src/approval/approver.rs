//! Who may approve, and how many of them it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use guard::Need;
use serde::{Deserialize, Serialize};

/// Who gives or refuses an approval, as whoever took the answer has authenticated them.
///
/// It cannot be read from text: a name inside an answer's body proves nothing. A model is neither of these; nothing it
/// writes can become one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Approver {
    /// A named human.
    Person(String),
    /// A named program that follows fixed rules.
    Program(String),
}

impl Approver {
    /// The name alone.
    pub fn name(&self) -> &str {
        match self {
            Approver::Person(name) | Approver::Program(name) => name,
        }
    }
}

impl fmt::Display for Approver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Approver::Person(name) => write!(f, "person `{name}`"),
            Approver::Program(name) => write!(f, "program `{name}`"),
        }
    }
}

/// An approver as the journal and the receipts hold it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Stored {
    Person(String),
    Program(String),
}

impl From<&Approver> for Stored {
    fn from(approver: &Approver) -> Stored {
        match approver {
            Approver::Person(name) => Stored::Person(name.clone()),
            Approver::Program(name) => Stored::Program(name.clone()),
        }
    }
}

impl From<&Stored> for Approver {
    fn from(stored: &Stored) -> Approver {
        match stored {
            Stored::Person(name) => Approver::Person(name.clone()),
            Stored::Program(name) => Approver::Program(name.clone()),
        }
    }
}

/// Who may approve at all, each with their roles; whoever is not in it counts for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Roster {
    /// People by name.
    pub people: BTreeMap<String, BTreeSet<String>>,
    /// Programs by name.
    pub programs: BTreeMap<String, BTreeSet<String>>,
}

impl Roster {
    /// One person without special roles.
    pub fn person(name: impl Into<String>) -> Roster {
        Roster { people: BTreeMap::from([(name.into(), BTreeSet::new())]), ..Roster::default() }
    }

    /// The roles of an approver, if it is one.
    pub fn roles(&self, approver: &Approver) -> Option<&BTreeSet<String>> {
        match approver {
            Approver::Person(name) => self.people.get(name),
            Approver::Program(name) => self.programs.get(name),
        }
    }
}

/// Whether an approver's word counts for a need.
pub(crate) fn counts(need: &Need, approver: &Approver, roster: &Roster) -> bool {
    let kind = !need.people || matches!(approver, Approver::Person(_));
    let role = |roles: &BTreeSet<String>| need.roles.is_empty() || !need.roles.is_disjoint(roles);
    kind && roster.roles(approver).is_some_and(role)
}

/// Whether these approvers are enough for a need.
pub(crate) fn is_met(need: &Need, by: &BTreeSet<Approver>, roster: &Roster) -> bool {
    by.iter().filter(|a| counts(need, a, roster)).count() >= need.count.max(1) as usize
}
