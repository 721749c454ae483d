//! What a guard answers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What may become of a call; also what one rule wants. Ordered: of several, the greatest holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It may run.
    Allow,
    /// It may run with the arguments as rules rewrote them.
    Modify,
    /// It may run once somebody approved it.
    Ask,
    /// Not now: something must happen first, and asking will not help.
    Defer,
    /// It may not run.
    Deny,
}

impl Decision {
    /// The word rules and files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Allow => "allow",
            Decision::Modify => "modify",
            Decision::Ask => "ask",
            Decision::Defer => "defer",
            Decision::Deny => "deny",
        }
    }

    /// The decision a word names, if any.
    pub fn parse(word: &str) -> Option<Decision> {
        [Decision::Allow, Decision::Modify, Decision::Ask, Decision::Defer, Decision::Deny]
            .into_iter()
            .find(|d| d.as_str() == word)
    }
}

/// A rule that took part in a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hit {
    /// The rule, unique among all packs in force.
    pub id: String,
    /// The pack it comes from; `guard` for what is built in.
    pub pack: String,
    /// The rule's version.
    pub version: String,
    /// The clause of law, contract or policy that it enforces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clause: Option<String>,
    /// What it wants.
    pub effect: Decision,
    /// Why, for whoever meets it.
    pub reason: String,
    /// How the rule itself failed, which denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Who must approve a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// How many different approvers.
    pub count: u32,
    /// The roles of which each must hold one; empty for any approver.
    pub roles: BTreeSet<String>,
    /// Whether each must be a person, known by name.
    pub people: bool,
    /// How long an approval stands, from when it is asked for.
    pub lifetime_s: u64,
}

impl Default for Need {
    fn default() -> Self {
        Need { count: 1, roles: BTreeSet::new(), people: false, lifetime_s: 900 }
    }
}

/// What may become of a call, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// What may become of it.
    pub decision: Decision,
    /// The arguments as they would run: the policy's own unless the decision is to modify, or to ask about a call that
    /// rules rewrote.
    pub arguments: Map<String, Value>,
    /// The rules that took part, the deciding ones first, then by pack and id.
    pub rules: Vec<Hit>,
    /// Who must approve, all of these; empty unless the decision is to ask.
    pub needs: Vec<Need>,
}

impl Verdict {
    /// The rules that wanted exactly what was decided.
    pub fn deciding(&self) -> impl Iterator<Item = &Hit> {
        self.rules.iter().filter(|hit| hit.effect == self.decision)
    }

    /// Why, in one line: the deciding rules' reasons.
    pub fn reason(&self) -> String {
        let reasons: BTreeSet<&str> = self.deciding().map(|hit| hit.reason.as_str()).collect();
        reasons.into_iter().collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_beats_defer_beats_ask_beats_modify_beats_allow() {
        use Decision::{Allow, Ask, Defer, Deny, Modify};
        assert!(Deny > Defer && Defer > Ask && Ask > Modify && Modify > Allow);
        for d in [Allow, Modify, Ask, Defer, Deny] {
            assert_eq!(Decision::parse(d.as_str()), Some(d));
            assert_eq!(serde_json::to_string(&d).unwrap(), format!("\"{}\"", d.as_str()));
        }
        assert_eq!(Decision::parse("Deny"), None);
    }
}
