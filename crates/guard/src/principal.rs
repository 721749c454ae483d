//! Who a call is made for and by.

use serde::{Deserialize, Serialize};

/// Where an agent runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deployment {
    /// Nobody said: rules treat it as the place that is watched least.
    #[default]
    Unknown,
    /// A provider's machines.
    Cloud,
    /// Machines of whoever runs the agent.
    OnPremises,
    /// A person's own computer.
    Laptop,
    /// A device in the field, away from whoever runs it.
    Edge,
}

impl Deployment {
    /// The word rules and files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Deployment::Unknown => "unknown",
            Deployment::Cloud => "cloud",
            Deployment::OnPremises => "on_premises",
            Deployment::Laptop => "laptop",
            Deployment::Edge => "edge",
        }
    }
}

/// How closely a person watches an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Autonomy {
    /// Nobody watches while it runs.
    #[default]
    Autonomous,
    /// A person watches and can stop it.
    Supervised,
}

impl Autonomy {
    /// The word rules and files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Autonomy::Autonomous => "autonomous",
            Autonomy::Supervised => "supervised",
        }
    }
}

/// Who a call is made for and by, as whoever started the agent vouches for; what an agent says of itself never is part of
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principal {
    /// Whom the agent acts for.
    pub subject: String,
    /// The agent that makes the call.
    pub agent: String,
    /// The run it belongs to.
    pub run: String,
    /// What for; empty when nobody said.
    pub purpose: String,
    /// Where it runs.
    #[serde(default)]
    pub deployment: Deployment,
    /// How closely it is watched.
    #[serde(default)]
    pub autonomy: Autonomy,
    /// The agents above it, the first one first; empty for an agent that a person started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<String>,
}

impl Principal {
    /// The principal of an agent that this one starts: it acts for the same subject in the same run, and no more freely.
    #[must_use]
    pub fn child(&self, agent: impl Into<String>, purpose: impl Into<String>) -> Principal {
        let mut chain = self.chain.clone();
        chain.push(self.agent.clone());
        Principal { agent: agent.into(), purpose: purpose.into(), chain, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_carries_the_whole_chain_and_its_starters_subject() {
        let root = Principal {
            subject: "ada".into(),
            agent: "planner".into(),
            run: "run-1".into(),
            purpose: "billing".into(),
            deployment: Deployment::Edge,
            autonomy: Autonomy::Supervised,
            chain: Vec::new(),
        };
        let grandchild = root.child("buyer", "order paper").child("payer", "pay the bill");
        assert_eq!(grandchild.chain, ["planner", "buyer"]);
        assert_eq!((grandchild.agent.as_str(), grandchild.purpose.as_str()), ("payer", "pay the bill"));
        assert_eq!((&grandchild.subject, &grandchild.run), (&root.subject, &root.run));
        assert_eq!((grandchild.deployment, grandchild.autonomy), (root.deployment, root.autonomy));
    }

    #[test]
    fn what_nobody_said_is_taken_for_the_least_watched() {
        let p: Principal = serde_json::from_str(r#"{"subject":"a","agent":"b","run":"c","purpose":""}"#).unwrap();
        assert_eq!((p.deployment, p.autonomy), (Deployment::Unknown, Autonomy::Autonomous));
        assert!(
            serde_json::from_str::<Principal>(r#"{"subject":"a","agent":"b","run":"c","purpose":"","x":1}"#).is_err()
        );
    }
}
