//! Rules over what happened before: at most so many, never after, only after, not again so soon, a budget, so many different
//! ones.
//!
//! A pack writes them as TOML, one table a rule:
//!
//! ```toml
//! [[rule]]
//! id = "paid-per-day"
//! clause = "Mandate 4.2"
//! reason = "no more than 5,000 a day for one account"
//! when = { actions = ["pay"] }          # the calls it holds back: tools, actions, data, arguments
//! per = ["subject", "arguments.account"] # what is counted apart; nothing for all together
//! budget = { sum = "arguments.amount", max = 5000, within = "1d" }
//! ```
//!
//! | one of | breaks the rule |
//! |---|---|
//! | `at_most = { count, of, on, within }` | a call with which the requests of `of` would be more than `count`; with `on = "response"` or `"error"`, a call after `count` of those |
//! | `never_after = { of, on, within }` | a call after one of `of` |
//! | `only_after = { of, on, within, until, until_on }` | a call not after an answered one of `of`, or with one of `until` since the last of those |
//! | `cooldown = { pause, of, on }` | a call less than `pause` after the last one of `of` |
//! | `budget = { sum, max, of, within }` | a call with which the amounts of `of` would sum to more than `max` |
//! | `distinct = { what, max, of, within }` | a call with which the different values in `what` would be more than `max`; each element of a list is one |
//!
//! `of` is the calls of `when` unless given, `on` is `request` but for `only_after` (`response`), `within` the whole history,
//! `effect` is `deny` (or `ask`, `defer`), `version` the pack's. Windows are closed: what happened exactly `within` ago still
//! counts. Requests count from the moment they are recorded, so calls in flight count; a call that failed has counted.
//!
//! A rule that cannot tell denies: a call of `when`, `of` or `until` that lacks what the rule needs (a key, an amount of at
//! least 0), and every such call while time is behind the last event or once an event could not be recorded.
//!
//! Rules are kept up event by event: asking and recording cost the same whatever happened before. Memory grows, per rule, with
//! the different keys seen within its window and with the events (for `budget` and `at_most`) or different values each second
//! in it; without a window with the different keys alone (`distinct`: and values). Each part of a rule holds at most 2^20
//! entries, beyond which recording fails.
//!
//! - Source: operators and their meaning after the temporal part of the Dogwood policy language 1.1; `conformance/` runs its
//!   corpus through the same engine and prints what passes and what is outside.

#[allow(dead_code, reason = "the rules need less of it than the corpus it is held against")]
mod engine;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use episode::ToolSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Decision, Hit, Request};
use engine::plan::Plan;
use engine::solve::{Fault, Moment};
use engine::survey::Cost;
use engine::value::Value;
use engine::{Memory, SavedMemory};
use rules::{Part, Rule};

/// The layout of what the digest covers, and of stored histories.
const DIGEST: &str = "surefoot temporal rules 1";

/// The rules over history of one pack, as text.
#[derive(Debug, Clone, Copy)]
pub struct TemporalText<'a> {
    /// The pack's name.
    pub pack: &'a str,
    /// The version of rules that do not say their own.
    pub version: &'a str,
    /// The rules, in TOML; empty for none.
    pub rules: &'a str,
}

/// Why rules over history cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemporalError {
    /// The text cannot be read.
    #[error("cannot read the rules over history of pack `{pack}`: {reason}")]
    Text {
        /// The pack.
        pack: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// A rule says what it cannot mean.
    #[error("cannot take rule `{rule}` over history of pack `{pack}`: needed {needed}, got {got}")]
    Rule {
        /// The pack.
        pack: String,
        /// The rule.
        rule: String,
        /// What it must say.
        needed: String,
        /// What it says.
        got: String,
    },
    /// Two rules have one id.
    #[error("cannot tell two rules over history apart: `{rule}` is in pack `{first}` and again in pack `{second}`")]
    Duplicate {
        /// The id.
        rule: String,
        /// The pack that has it first.
        first: String,
        /// The pack that has it again.
        second: String,
    },
}

/// Why an event cannot be recorded or a history not be restored; whatever depends on it must not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Time went backwards.
    #[error("cannot go back in time: needed {needed_s} s or later, got {got_s} s")]
    Backwards {
        /// The time of the last event.
        needed_s: i64,
        /// The time given.
        got_s: i64,
    },
    /// Too much would have to be remembered.
    #[error("cannot remember more: needed room, got {entries} entries of one rule already")]
    Full {
        /// How many entries one rule holds.
        entries: usize,
    },
    /// What is recorded cannot be judged.
    #[error("cannot judge what happened: {reason}")]
    Unjudgeable {
        /// What is wrong.
        reason: String,
    },
    /// A stored history is not one of these rules.
    #[error("cannot go on with a stored history: needed one of rules `{needed}`, got one of `{got}`")]
    OtherRules {
        /// The digest of the rules in force.
        needed: String,
        /// The digest of the rules it was recorded under.
        got: String,
    },
}

impl From<Fault> for HistoryError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Backwards { last, got } => HistoryError::Backwards { needed_s: last, got_s: got },
            Fault::Full(entries) => HistoryError::Full { entries },
            Fault::NotSummable => HistoryError::Unjudgeable { reason: fault.to_string() },
        }
    }
}

/// Something that happened. Its time is the request's `now_s`, which the caller sets to when it happened.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A call that was let through begins. Recorded in the same step in which it was decided, under one lock, so that of two
    /// calls decided at once the second sees the first.
    Request(&'a Request<'a>),
    /// A call ended well.
    Response(&'a Request<'a>),
    /// A call ended badly.
    Error(&'a Request<'a>),
}

/// Rules over history, for the tools of an episode. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Temporal(Arc<Compiled>);

#[derive(Debug, Default)]
struct Compiled {
    plan: Plan,
    /// In the order of packs and ids; a rule's place is the number of its sentence.
    rules: Vec<Rule>,
    by_tool: BTreeMap<String, Vec<usize>>,
    digest: String,
}

impl Temporal {
    /// Reads the rules of packs, for these tools.
    ///
    /// - Errors: a text cannot be read, a rule says what it cannot mean, or two share an id.
    pub fn compile<'a>(
        texts: impl IntoIterator<Item = TemporalText<'a>>,
        tools: &[ToolSpec],
    ) -> Result<Temporal, TemporalError> {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        part(DIGEST);
        let mut read: Vec<Rule> = Vec::new();
        for text in texts {
            [text.pack, text.version, text.rules].into_iter().for_each(&mut part);
            read.extend(rules::read(&text, tools)?);
        }
        let mut sorted: Vec<&ToolSpec> = tools.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for tool in sorted {
            part(&tool.data.len().to_string());
            [&tool.name, &tool.action].into_iter().chain(&tool.data).for_each(|text| part(text));
        }
        read.sort_by(|a, b| (&a.hit.id, &a.hit.pack).cmp(&(&b.hit.id, &b.hit.pack)));
        if let Some([first, second]) = read.array_windows().find(|[a, b]| a.hit.id == b.hit.id) {
            return Err(TemporalError::Duplicate {
                rule: first.hit.id.clone(),
                first: first.hit.pack.clone(),
                second: second.hit.pack.clone(),
            });
        }
        read.sort_by(|a, b| (&a.hit.pack, &a.hit.id).cmp(&(&b.hit.pack, &b.hit.id)));
        let mut compiled =
            Compiled { digest: hash.finalize().iter().map(|b| format!("{b:02x}")).collect(), ..Compiled::default() };
        for rule in read {
            compiled.plan.add(rule.sentence.clone()).map_err(|outside| TemporalError::Rule {
                pack: rule.hit.pack.clone(),
                rule: rule.hit.id.clone(),
                needed: "a rule that can be kept up event by event".to_owned(),
                got: outside.what.to_owned(),
            })?;
            compiled.rules.push(rule);
        }
        for tool in tools {
            let of = |rule: &Rule| rule.concerns(&tool.name);
            let places = compiled.rules.iter().enumerate().filter(|(_, rule)| of(rule)).map(|(i, _)| i).collect();
            compiled.by_tool.insert(tool.name.clone(), places);
        }
        Ok(Temporal(Arc::new(compiled)))
    }

    /// An empty history under these rules.
    pub fn history(&self) -> History {
        History { rules: self.clone(), memory: Memory::new(&self.0.plan), fault: None }
    }

    /// The rules, by pack and id, as a hit would name them.
    pub fn rules(&self) -> impl Iterator<Item = &Hit> {
        self.0.rules.iter().map(|rule| &rule.hit)
    }

    /// The digest of the rules and of the tools they were read for.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    /// The rules whose cost grows with what happened within their window; none of the kinds there are today.
    pub fn growing(&self) -> impl Iterator<Item = &Hit> {
        let grows = |place: &usize| self.0.plan.cost(*place) == Cost::Window;
        (0..self.0.rules.len()).filter(grows).filter_map(|place| self.0.rules.get(place).map(|rule| &rule.hit))
    }

    /// The history that was stored.
    ///
    /// - Errors: it is one of other rules, or of other tools.
    pub fn restore(&self, saved: SavedHistory) -> Result<History, HistoryError> {
        let other = |got: String| HistoryError::OtherRules { needed: self.0.digest.clone(), got };
        if saved.digest != self.0.digest {
            return Err(other(saved.digest));
        }
        let memory = Memory::load(&self.0.plan, saved.memory).ok_or_else(|| other("another layout".to_owned()))?;
        Ok(History { rules: self.clone(), memory, fault: saved.fault })
    }
}

/// What happened in an episode, as far as its rules ask for it; by default one without rules.
///
/// - Holds: what rules say depends on the recorded events and the request alone; asking and recording cost the same however
///   many events came before.
#[derive(Debug, Clone)]
pub struct History {
    rules: Temporal,
    memory: Memory,
    /// Why an event is missing from it, which denies ever after.
    fault: Option<String>,
}

impl Default for History {
    fn default() -> Self {
        Temporal::default().history()
    }
}

/// A history as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedHistory {
    digest: String,
    memory: SavedMemory,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

impl History {
    /// The rules it is recorded under.
    pub fn rules(&self) -> &Temporal {
        &self.rules
    }

    /// What the rules say of a call, were it to begin now, by pack and id.
    ///
    /// A call made long after the last event walks what left the windows since; [`History::advance`] forgets that for good.
    pub fn check(&self, request: &Request<'_>) -> Vec<Hit> {
        let compiled = &self.rules.0;
        let places = compiled.by_tool.get(request.tool).map_or(&[][..], Vec::as_slice);
        let happening = Happening { kind: "request", request };
        let at = at(request);
        places
            .iter()
            .filter_map(|place| {
                let rule = compiled.rules.get(*place)?;
                if let Some(fault) = &self.fault {
                    return Some(rule.fault(fault.clone()));
                }
                if !rule.fits(&happening) {
                    return None;
                }
                let lacks = |part: &Part| part.fault(request.tool, |path| happening.value(path));
                if let Some(fault) = rule.parts.iter().find_map(lacks) {
                    return Some(rule.fault(fault));
                }
                match self.memory.ask(&compiled.plan, *place, Vec::new(), &happening, at) {
                    Ok(true) => Some(rule.hit.clone()),
                    Ok(false) => None,
                    Err(fault) => Some(rule.fault(fault.to_string())),
                }
            })
            .collect()
    }

    /// Takes in what happened.
    ///
    /// - Errors: time went backwards or there is no room. Then the event is missing, and every rule denies ever after.
    pub fn record(&mut self, event: Event<'_>) -> Result<(), HistoryError> {
        let (kind, request) = match event {
            Event::Request(request) => ("request", request),
            Event::Response(request) => ("response", request),
            Event::Error(request) => ("error", request),
        };
        let happening = Happening { kind, request };
        self.memory.observe(&self.rules.0.plan, &happening, at(request)).map_err(|fault| {
            self.fault.get_or_insert(format!("an event is missing: {fault}"));
            fault.into()
        })
    }

    /// Says how late it is, so that what no window reaches any more is forgotten.
    ///
    /// - Errors: time went backwards; nothing is lost.
    pub fn advance(&mut self, now_s: u64) -> Result<(), HistoryError> {
        Ok(self.memory.advance(&self.rules.0.plan, i64::try_from(now_s).unwrap_or(i64::MAX))?)
    }

    /// How many entries are remembered.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// What must be stored to go on later: equal histories are stored equally.
    pub fn save(&self) -> SavedHistory {
        SavedHistory {
            digest: self.rules.0.digest.clone(),
            memory: self.memory.save(&self.rules.0.plan),
            fault: self.fault.clone(),
        }
    }
}

impl Rule {
    fn concerns(&self, tool: &str) -> bool {
        [&self.when].into_iter().chain(&self.follows).any(|calls| calls.names().contains(tool))
    }

    fn fits(&self, happening: &Happening<'_>) -> bool {
        let tool = happening.request.tool;
        [&self.when].into_iter().chain(&self.follows).any(|calls| calls.fits(tool, |path| happening.value(path)))
    }

    fn fault(&self, error: String) -> Hit {
        Hit { effect: Decision::Deny, error: Some(error), ..self.hit.clone() }
    }
}

fn at(request: &Request<'_>) -> i64 {
    i64::try_from(request.now_s).unwrap_or(i64::MAX)
}

/// A request, a response or an error as the engine sees it.
struct Happening<'a> {
    kind: &'static str,
    request: &'a Request<'a>,
}

impl Happening<'_> {
    /// A field; nothing is there where a call lacks it.
    fn value(&self, path: &[String]) -> Value {
        let Request { principal, tool, arguments, .. } = *self.request;
        let text = match path.first().map(String::as_str) {
            Some("subject") => &principal.subject,
            Some("agent") => &principal.agent,
            Some("run") => &principal.run,
            Some("purpose") => &principal.purpose,
            Some("tool") => return Value::Text(tool.to_owned()),
            _ => {
                let mut names = path.iter().skip(1);
                let first = names.next().and_then(|name| arguments.get(name));
                return first
                    .and_then(|value| names.try_fold(value, |value, name| value.get(name)))
                    .map_or(Value::Null, Value::of_json);
            }
        };
        Value::Text(text.clone())
    }
}

impl Moment for Happening<'_> {
    fn kind(&self) -> &str {
        self.kind
    }

    fn name(&self) -> &str {
        self.request.tool
    }

    fn field(&self, path: &[String]) -> Option<Value> {
        Some(self.value(path))
    }
}
