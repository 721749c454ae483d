//! Packs of rules: Cedar text with a header, and what may be laid over what.

use std::collections::BTreeMap;

use cedar_policy::{Effect, Policy, PolicyId, PolicySet};
use serde::Deserialize;

use crate::rules::Rewrite;
use crate::temporal::TemporalText;
use crate::{Decision, GuardError, Hit, Need};

/// What a pack says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its version, which is also that of rules that give none.
    pub version: String,
    /// What it is for, in one line.
    pub about: String,
    /// The first day on which its permits count, as `2026-08-01` in UTC; what restricts counts at once. Absent: always.
    #[serde(default)]
    pub effective_from: Option<String>,
}

/// One rule.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) pack: String,
    pub(crate) id: String,
    pub(crate) version: String,
    pub(crate) clause: Option<String>,
    pub(crate) effect: Decision,
    pub(crate) reason: String,
    pub(crate) need: Option<Need>,
    pub(crate) rewrite: Option<Rewrite>,
    /// When a permit begins to count, in seconds since 1970.
    pub(crate) from_s: u64,
    pub(crate) policy: Policy,
}

impl Rule {
    pub(crate) fn hit(&self) -> Hit {
        Hit {
            id: self.id.clone(),
            pack: self.pack.clone(),
            version: self.version.clone(),
            clause: self.clause.clone(),
            effect: self.effect,
            reason: self.reason.clone(),
            error: None,
        }
    }

    /// What it says when it fails itself: deny.
    pub(crate) fn fault(&self, error: impl Into<String>) -> Hit {
        Hit { effect: Decision::Deny, error: Some(error.into()), ..self.hit() }
    }
}

/// What a report may say of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    /// The rule as a hit would name it.
    pub rule: Hit,
    /// Whether it can apply to any of the tools; taken for granted of rules over history.
    pub applies: bool,
}

/// A set of rules that is written, versioned and reviewed together.
#[derive(Debug, Clone)]
pub struct Pack {
    pub(crate) header: Header,
    pub(crate) rules: Vec<Rule>,
    /// The texts it was read from.
    source: [String; 3],
}

/// The annotations a rule may carry.
const ANNOTATIONS: [&str; 7] = ["id", "version", "clause", "effect", "reason", "approvals", "rewrite"];

impl Pack {
    /// Reads a pack from its header (TOML), its rules (Cedar) and its rules over history (TOML, see [`crate::temporal`]; empty
    /// for none, and read when a guard is built, since they name tools).
    ///
    /// - Errors: a text cannot be read; a rule lacks `@id` or `@reason`, carries an annotation that is not known or does not
    ///   fit its effect, has slots, or shares its id with another.
    pub fn read(header: &str, rules: &str, history: &str) -> Result<Pack, GuardError> {
        let source = [header, rules, history].map(str::to_owned);
        let header: Header =
            toml::from_str(header).map_err(|e| GuardError::Header { reason: e.message().to_owned() })?;
        if header.name.is_empty() || header.version.is_empty() {
            return Err(GuardError::Header { reason: "`name` and `version` may not be empty".to_owned() });
        }
        if header.name == "guard" {
            return Err(GuardError::Header { reason: "`guard` is the name of what is built in".to_owned() });
        }
        let from_s = match &header.effective_from {
            None => 0,
            Some(day) => seconds(day).ok_or_else(|| GuardError::Header {
                reason: format!("`effective_from` needs a day such as `2026-08-01`, got `{day}`"),
            })?,
        };
        let fault = |reason: String| GuardError::Rules { pack: header.name.clone(), reason };
        let set: PolicySet = rules.parse().map_err(|e: cedar_policy::ParseErrors| {
            fault(e.iter().map(|one| placed(one, rules)).collect::<Vec<_>>().join("; "))
        })?;
        if set.templates().next().is_some() {
            return Err(fault("needed rules without slots, got `?principal` or `?resource`".to_owned()));
        }
        let mut policies: Vec<&Policy> = set.policies().collect();
        policies
            .sort_by_key(|p| p.id().to_string().trim_start_matches("policy").parse::<usize>().unwrap_or(usize::MAX));
        let rules = policies
            .into_iter()
            .enumerate()
            .map(|(i, p)| rule(&header, i, p, from_s))
            .collect::<Result<Vec<_>, _>>()?;
        let pack = Pack { header, rules, source };
        distinct([&pack])?;
        Ok(pack)
    }

    /// What it says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The ids of its Cedar rules, in order.
    pub fn rule_ids(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.id.as_str())
    }

    /// Its rules over history.
    pub(crate) fn history(&self) -> TemporalText<'_> {
        TemporalText { pack: &self.header.name, version: &self.header.version, rules: &self.source[2] }
    }

    /// The texts it was read from.
    pub(crate) fn source(&self) -> &[String; 3] {
        &self.source
    }
}

fn rule(header: &Header, index: usize, policy: &Policy, from_s: u64) -> Result<Rule, GuardError> {
    let named = policy.annotation("id").filter(|id| !id.is_empty());
    let name = named.map_or_else(|| format!("no. {}", index + 1), str::to_owned);
    let wrong = |needed: &str, got: String| GuardError::Rule {
        pack: header.name.clone(),
        rule: name.clone(),
        needed: needed.to_owned(),
        got,
    };
    let id = named.ok_or_else(|| wrong("`@id(\"…\")`", "none".to_owned()))?;
    if !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(wrong("an id of letters, digits, `-`, `_` and `.`", format!("`{id}`")));
    }
    for (key, _) in policy.annotations() {
        if !ANNOTATIONS.contains(&key) {
            return Err(wrong("annotations that mean something", format!("`@{key}`")));
        }
    }
    let reason = policy.annotation("reason").filter(|r| !r.is_empty());
    let reason = reason.ok_or_else(|| wrong("`@reason(\"…\")`", "none".to_owned()))?;
    let permits = policy.effect() == Effect::Permit;
    let effect = match (policy.annotation("effect"), permits) {
        (None | Some("allow"), true) => Decision::Allow,
        (None | Some("deny"), false) => Decision::Deny,
        (Some("modify"), false) => Decision::Modify,
        (Some("ask"), false) => Decision::Ask,
        (Some("defer"), false) => Decision::Defer,
        (Some(got), true) => return Err(wrong("`allow` as the effect of a permit", format!("`{got}`"))),
        (Some(got), false) => {
            return Err(wrong("`deny`, `defer`, `ask` or `modify` as the effect of a forbid", format!("`{got}`")));
        }
    };
    let need = match (policy.annotation("approvals"), effect) {
        (None, Decision::Ask) => Some(Need::default()),
        (None, _) => None,
        (Some(text), Decision::Ask) => {
            let form = "`@approvals(\"COUNT people|approvers [of ROLE, ROLE] [within SECONDS s]\")`";
            Some(need(text).ok_or_else(|| wrong(form, format!("`{text}`")))?)
        }
        (Some(text), _) => return Err(wrong("`@approvals` only where the effect is to ask", format!("`{text}`"))),
    };
    let rewrite = match (policy.annotation("rewrite"), effect) {
        (Some(text), Decision::Modify) => Some(Rewrite::parse(text).map_err(|form| wrong(&form, format!("`{text}`")))?),
        (None, Decision::Modify) => {
            return Err(wrong("`@rewrite(\"…\")` where the effect is to modify", "none".to_owned()));
        }
        (Some(text), _) => return Err(wrong("`@rewrite` only where the effect is to modify", format!("`{text}`"))),
        (None, _) => None,
    };
    Ok(Rule {
        pack: header.name.clone(),
        id: id.to_owned(),
        version: policy.annotation("version").unwrap_or(&header.version).to_owned(),
        clause: policy.annotation("clause").map(str::to_owned),
        effect,
        reason: reason.to_owned(),
        need,
        rewrite,
        from_s: if permits { from_s } else { 0 },
        policy: policy.new_id(PolicyId::new(id)),
    })
}

/// Reads `2 people of legal, privacy within 3600 s`.
fn need(text: &str) -> Option<Need> {
    let mut need = Need::default();
    let (text, within) = text.split_once(" within ").map_or((text, None), |(text, within)| (text, Some(within)));
    if let Some(within) = within {
        need.lifetime_s = within.trim().strip_suffix('s')?.trim().parse().ok().filter(|s| *s > 0)?;
    }
    let (who, roles) = text.split_once(" of ").map_or((text, None), |(who, roles)| (who, Some(roles)));
    if let Some(roles) = roles {
        need.roles = roles.split(',').map(|role| role.trim().to_owned()).collect();
        if need.roles.iter().any(|role| role.is_empty() || role.contains(char::is_whitespace)) {
            return None;
        }
    }
    let (count, what) = who.trim().split_once(' ')?;
    need.count = count.parse().ok().filter(|n| *n > 0)?;
    need.people = match what.trim() {
        "person" | "people" => true,
        "approver" | "approvers" => false,
        _ => return None,
    };
    Some(need)
}

/// The start of a day of the Gregorian calendar, in UTC.
///
/// - Units: seconds since 1970.
/// - Source: days from civil, by counting years from March on, so that a leap day ends one.
fn seconds(day: &str) -> Option<u64> {
    let mut parts = day.split('-');
    let mut next = |length: usize| {
        parts
            .next()
            .filter(|p| p.len() == length && p.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|p| p.parse::<u64>().ok())
    };
    let (year, month, date) = (next(4)?, next(2)?, next(2)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if parts.next().is_some() || !(1..=longest).contains(&date) || year < 1970 {
        return None;
    }
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + date - 1;
    Some((days - 719_468) * 86_400)
}

/// A fault in a text with its line.
fn placed(error: &cedar_policy::ParseError, text: &str) -> String {
    use miette::Diagnostic;
    let offset = error.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
    match offset.and_then(|at| text.get(..at)) {
        Some(before) => format!("line {}: {error}", before.matches('\n').count() + 1),
        None => error.to_string(),
    }
}

/// Refuses rules that share an id.
fn distinct<'a>(packs: impl IntoIterator<Item = &'a Pack>) -> Result<(), GuardError> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for pack in packs {
        for rule in &pack.rules {
            if let Some(first) = seen.insert(&rule.id, &pack.header.name) {
                return Err(GuardError::Duplicate {
                    rule: rule.id.clone(),
                    first: first.to_owned(),
                    second: pack.header.name.clone(),
                });
            }
        }
    }
    Ok(())
}

/// The packs in force: those of the ground, which may permit, and those laid over them, which may only restrict.
///
/// - Holds: for every call, what packs with another one laid over them decide is at least as strict as what they decide
///   without it, for that call or, where the new one rewrites it, also for the call as rewritten.
#[derive(Debug, Clone, Default)]
pub struct Packs(Vec<Pack>);

impl Packs {
    /// Packs of whoever runs the agent: these may permit.
    ///
    /// - Errors: two rules share an id.
    pub fn new(ground: impl IntoIterator<Item = Pack>) -> Result<Packs, GuardError> {
        let packs: Vec<Pack> = ground.into_iter().collect();
        distinct(&packs)?;
        Ok(Packs(packs))
    }

    /// The same with one more pack laid over them, such as a run's own: its rules may only restrict.
    ///
    /// - Errors: one of its rules permits, or has the id of one that is there; nothing is replaced.
    pub fn tighten(mut self, pack: Pack) -> Result<Packs, GuardError> {
        if let Some(rule) = pack.rules.iter().find(|rule| rule.effect == Decision::Allow) {
            return Err(GuardError::Loosens { pack: pack.header.name.clone(), rule: rule.id.clone() });
        }
        self.0.push(pack);
        distinct(&self.0)?;
        Ok(self)
    }

    /// The packs, in the order in which they were laid.
    pub fn iter(&self) -> impl Iterator<Item = &Pack> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests;
