//! What is written down of a call: who, what, why it was ruled so, and what came of it. Digests of arguments and answers,
//! never the data itself.

use guard::{Decision, Hit, Labels, Principal};
use serde::{Deserialize, Serialize};

use crate::approval::Stored;
use crate::{Amount, Limits};

/// The layout of receipts.
pub(crate) const VERSION: u32 = 1;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The layout; readers refuse one they do not know.
    pub v: u32,
    /// The session's name.
    pub session: String,
    /// The number of the call in its session, from 1; 0 for the session itself.
    pub call: u64,
    /// When.
    ///
    /// - Units: milliseconds since 1970, as the session's clock has it.
    pub at_ms: u64,
    /// Who the call is made for and by.
    pub principal: Principal,
    /// The digest of the rules in force.
    pub rules_digest: String,
    /// What happened.
    pub what: What,
}

/// What a receipt tells of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum What {
    /// A session began.
    Opened(Opened),
    /// A call was ruled upon.
    Attempt(Box<Attempt>),
    /// A call that was let through has ended.
    Outcome(Box<Outcome>),
}

/// The beginning of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// The session it was begun from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The tools within its boundary.
    pub tools: Vec<String>,
    /// The classes of action it declared.
    pub declared: Vec<String>,
    /// What it may use, as far as its own limits go.
    pub limits: Limits,
}

/// A ruling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The tool that was asked for.
    pub tool: String,
    /// The tool's class of action; empty for a tool that is unknown here.
    pub action: String,
    /// The digest of the tool's description and schema; empty for a tool that is unknown here.
    pub tool_digest: String,
    /// The digest of the arguments that were asked for.
    pub arguments: String,
    /// The digest of the arguments that may run instead, when rules rewrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewritten: Option<String>,
    /// The labels of what had been seen.
    pub labels: Labels,
    /// What was decided.
    pub ruled: Decision,
    /// The part of the gate that decided.
    pub by: Part,
    /// Why, when it was not the rules that said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The rules that took part.
    pub rules: Vec<RuleHit>,
    /// The approval it waits for, was refused, or may begin on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// What was left of the budgets, this call held back.
    pub left: Limits,
}

/// A part of the gate, in the order in which a call passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Who is asking.
    Identity,
    /// The tools within reach.
    Boundary,
    /// The rules.
    Guard,
    /// The budgets.
    Budget,
    /// The approval.
    Approval,
}

impl Part {
    /// The word it is stored as.
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Identity => "identity",
            Part::Boundary => "boundary",
            Part::Guard => "guard",
            Part::Budget => "budget",
            Part::Approval => "approval",
        }
    }
}

/// A rule that took part in a ruling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleHit {
    /// The rule.
    pub id: String,
    /// The pack it comes from.
    pub pack: String,
    /// Its version.
    pub version: String,
    /// The clause of law, contract or policy it enforces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clause: Option<String>,
    /// What it said.
    pub effect: Decision,
    /// How it failed, which denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<&Hit> for RuleHit {
    fn from(hit: &Hit) -> RuleHit {
        RuleHit {
            id: hit.id.clone(),
            pack: hit.pack.clone(),
            version: hit.version.clone(),
            clause: hit.clause.clone(),
            effect: hit.effect,
            error: hit.error.clone(),
        }
    }
}

/// An approval in a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The request.
    pub id: String,
    /// Who granted it; nobody while it waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    by: Vec<Stored>,
}

impl Approval {
    pub(crate) fn new(id: String, by: &[crate::Approver]) -> Approval {
        Approval { id, by: by.iter().map(Into::into).collect() }
    }

    /// Who granted it, in words.
    pub fn granted_by(&self) -> Vec<String> {
        self.by.iter().map(|by| crate::Approver::from(by).to_string()).collect()
    }
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The SHA-256 of the attempt's receipt.
    pub attempt: String,
    /// How it ended.
    pub ended: Ended,
    /// The digest of the tool's answer, or of what went wrong.
    pub answer: String,
    /// The labels of the answer.
    pub labels: Labels,
    /// What it used.
    pub used: Amount,
    /// What is left of the budgets.
    pub left: Limits,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The tool did what it was asked.
    Answered,
    /// The tool could not do what it was asked.
    Refused,
    /// The tool failed.
    Failed,
    /// It was let through and never begun.
    NotRun,
}

impl Ended {
    /// The word it is stored as.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Answered => "answered",
            Ended::Refused => "refused",
            Ended::Failed => "failed",
            Ended::NotRun => "not_run",
        }
    }
}

/// Whether a call that was ruled so may run.
pub(crate) fn runs(ruled: Decision) -> bool {
    matches!(ruled, Decision::Allow | Decision::Modify)
}
