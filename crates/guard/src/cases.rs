//! Cases that show what a pack does: for every rule, calls that it stops and calls that it lets through.

use std::collections::BTreeSet;

use episode::ToolSpec;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::temporal::Event;
use crate::{Decision, Guard, GuardError, Labels, Packs, Principal, Request, Scope, Verdict};

/// Cases as a pack's author writes them, in JSON.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    tools: Vec<ToolSpec>,
    #[serde(default)]
    scope: Scope,
    principal: Principal,
    cases: Vec<Case>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    rule: String,
    stops: Vec<Call>,
    passes: Vec<Call>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// What differs from the principal of all cases.
    #[serde(default)]
    principal: Map<String, Value>,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    now_s: u64,
    /// What happened before, for rules over history.
    #[serde(default)]
    before: Vec<Before>,
    /// What is decided; by default the rule's effect for what it stops (deny, where it permits) and allow for what passes.
    #[serde(default)]
    decision: Option<Decision>,
    /// The arguments that would run; by default those given.
    #[serde(default)]
    becomes: Option<Map<String, Value>>,
}

/// A call that was let through before, and how it ended: `response`, `error`, or not yet.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Before {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    #[serde(default)]
    now_s: u64,
    #[serde(default)]
    ended: Option<Ended>,
    /// How often, one after the other.
    #[serde(default = "once")]
    times: u32,
}

fn once() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    Response,
    Error,
}

/// A case that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseFault {
    /// The rule.
    pub rule: String,
    /// Which of its calls, as `stops[0]`; empty when cases are missing.
    pub at: String,
    /// What was needed.
    pub needed: String,
    /// What was got.
    pub got: String,
}

impl std::fmt::Display for CaseFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rule `{}`, {}: needed {}, got {}", self.rule, self.at, self.needed, self.got)
    }
}

impl Cases {
    /// Reads cases.
    ///
    /// - Errors: the text is not what cases look like.
    pub fn read(text: &str) -> Result<Cases, GuardError> {
        serde_json::from_str(text).map_err(|e| GuardError::Cases { reason: e.to_string() })
    }

    /// Which cases do not hold under these packs. Each rule of the pack by this name needs a call that it stops and one
    /// that it lets through; a rule that permits *lets through* what it allows and *stops* what it leaves denied.
    ///
    /// - Errors: no guard can be built; a case names a rule that no pack has, or a principal that cannot be.
    pub fn check(&self, packs: &Packs, pack: &str) -> Result<Vec<CaseFault>, GuardError> {
        let guard = Guard::new(packs, &self.tools, &self.scope)?;
        let mut faults = Vec::new();
        let mut covered = BTreeSet::new();
        for case in &self.cases {
            let info = guard.rules().iter().find(|info| info.rule.id == case.rule);
            let effect = info
                .map(|info| info.rule.effect)
                .ok_or_else(|| GuardError::Cases { reason: format!("there is no rule `{}`", case.rule) })?;
            if !case.stops.is_empty() && !case.passes.is_empty() {
                covered.insert(case.rule.as_str());
            }
            for (word, calls) in [("stops", &case.stops), ("passes", &case.passes)] {
                for (i, call) in calls.iter().enumerate() {
                    let verdict = self.decide(&guard, call)?;
                    let fault = expect(case, effect, word == "stops", call, &verdict);
                    faults.extend(fault.map(|(needed, got)| CaseFault {
                        rule: case.rule.clone(),
                        at: format!("{word}[{i}]"),
                        needed,
                        got,
                    }));
                }
            }
        }
        for info in guard.rules().iter().filter(|info| info.rule.pack == pack) {
            if !covered.contains(info.rule.id.as_str()) {
                faults.push(CaseFault {
                    rule: info.rule.id.clone(),
                    at: String::new(),
                    needed: "a call that it stops and one that it lets through".to_owned(),
                    got: "none".to_owned(),
                });
            }
        }
        Ok(faults)
    }

    fn decide(&self, guard: &Guard, call: &Call) -> Result<Verdict, GuardError> {
        let bad = |e: serde_json::Error| GuardError::Cases { reason: e.to_string() };
        let mut principal = serde_json::to_value(&self.principal).map_err(bad)?;
        for (key, value) in &call.principal {
            principal[key.as_str()] = value.clone();
        }
        let principal: Principal = serde_json::from_value(principal).map_err(bad)?;
        let of =
            |tool, arguments, now_s| Request { principal: &principal, tool, arguments, labels: &call.labels, now_s };
        let mut history = guard.history();
        for before in &call.before {
            let request = of(&before.tool, &before.arguments, before.now_s);
            let ended = before.ended.map(|ended| match ended {
                Ended::Response => Event::Response(&request),
                Ended::Error => Event::Error(&request),
            });
            for _ in 0..before.times {
                for event in std::iter::once(Event::Request(&request)).chain(ended) {
                    history.record(event).map_err(|e| GuardError::Cases { reason: e.to_string() })?;
                }
            }
        }
        Ok(guard.decide(&of(&call.tool, &call.arguments, call.now_s), &history))
    }
}

/// What a call needed and got, where they differ.
fn expect(case: &Case, effect: Decision, stops: bool, call: &Call, verdict: &Verdict) -> Option<(String, String)> {
    let permits = effect == Decision::Allow;
    let named: Vec<&str> = verdict.rules.iter().map(|hit| hit.id.as_str()).collect();
    let took_part = verdict.rules.iter().any(|hit| hit.id == case.rule && hit.effect == effect);
    // A permit lets through by taking part; every other rule stops by it.
    if took_part != (stops != permits) {
        let word = if took_part { "not to take part" } else { "to take part" };
        return Some((format!("the rule {word}"), format!("`{}` by {named:?}", verdict.decision.as_str())));
    }
    let want = call.decision.unwrap_or(match (stops, permits) {
        (true, true) => Decision::Deny,
        (true, false) => effect,
        (false, _) => Decision::Allow,
    });
    if verdict.decision != want {
        return Some((format!("`{}`", want.as_str()), format!("`{}` by {named:?}", verdict.decision.as_str())));
    }
    let runs = call.becomes.as_ref().unwrap_or(&call.arguments);
    if verdict.arguments != *runs {
        let text = |map: &Map<String, Value>| Value::Object(map.clone()).to_string();
        return Some((text(runs), text(&verdict.arguments)));
    }
    None
}
