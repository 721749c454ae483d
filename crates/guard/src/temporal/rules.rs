//! Rules over history as people write them, and the sentences they stand for.

use std::collections::{BTreeMap, BTreeSet};

use episode::ToolSpec;
use serde::Deserialize;

use super::engine::formula::{Aggregate, Comparison, Formula, Head, Path, Summand, Term, Var};
use super::engine::plan::Sentence;
use super::engine::value::{MILLION, Value, exact};
use super::{TemporalError, TemporalText};
use crate::{ActionClass, DataClass, Decision, Hit};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Written>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    version: Option<String>,
    clause: Option<String>,
    effect: Option<String>,
    reason: String,
    #[serde(default)]
    when: Calls,
    #[serde(default)]
    per: Vec<String>,
    at_most: Option<AtMost>,
    never_after: Option<NeverAfter>,
    only_after: Option<OnlyAfter>,
    cooldown: Option<Cooldown>,
    budget: Option<Budget>,
    distinct: Option<Distinct>,
}

/// Which calls are meant: what is empty leaves all in.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Calls {
    tools: Vec<String>,
    actions: Vec<String>,
    data: Vec<String>,
    arguments: BTreeMap<String, toml::Value>,
}

/// What of a call happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum On {
    Request,
    Response,
    Error,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AtMost {
    count: i64,
    of: Option<Calls>,
    #[serde(default = "request")]
    on: On,
    within: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NeverAfter {
    of: Calls,
    #[serde(default = "request")]
    on: On,
    within: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnlyAfter {
    of: Calls,
    #[serde(default = "response")]
    on: On,
    within: Option<String>,
    until: Option<Calls>,
    #[serde(default = "request")]
    until_on: On,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cooldown {
    pause: String,
    of: Option<Calls>,
    #[serde(default = "request")]
    on: On,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    sum: String,
    max: toml::Value,
    of: Option<Calls>,
    within: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Distinct {
    what: String,
    max: i64,
    of: Option<Calls>,
    within: Option<String>,
}

fn request() -> On {
    On::Request
}

fn response() -> On {
    On::Response
}

/// Calls with the tools that they can be.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    tools: BTreeSet<String>,
    arguments: Vec<(Path, Value)>,
}

impl Matcher {
    /// The tools that can be meant.
    pub(crate) fn names(&self) -> &BTreeSet<String> {
        &self.tools
    }

    /// Whether a call is one of these.
    pub(crate) fn fits(&self, tool: &str, field: impl Fn(&[String]) -> Value) -> bool {
        self.tools.contains(tool) && self.arguments.iter().all(|(path, value)| field(path) == *value)
    }
}

/// What a call must carry for a rule to be able to judge it.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// The calls that must, where not all that the rule concerns.
    pub(crate) of: Option<Matcher>,
    pub(crate) path: Path,
    pub(crate) shape: Shape,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// One plain value.
    One,
    /// One value or several.
    Some,
    /// A number of at least 0.
    Amount,
}

impl Part {
    /// What is wrong with a call, if anything.
    pub(crate) fn fault(&self, tool: &str, field: impl Fn(&[String]) -> Value) -> Option<String> {
        if self.of.as_ref().is_some_and(|of| !of.fits(tool, &field)) {
            return None;
        }
        let value = &field(&self.path);
        let (fits, needed) = match (self.shape, value) {
            (_, Value::Null) => (false, "a value"),
            (Shape::One, value) => {
                (matches!(value, Value::Text(_) | Value::Bool(_) | Value::Number(_)), "a text, a number, true or false")
            }
            (Shape::Some, _) => (true, ""),
            (Shape::Amount, value) => (matches!(value, Value::Number(n) if *n >= 0), "a number of at least 0"),
        };
        let path = self.path.join(".");
        let got = match value {
            Value::Null => "none",
            _ => "something else",
        };
        (!fits).then(|| format!("needed {needed} in `{path}`, got {got}"))
    }
}

/// A rule, ready to be asked.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// What it says when it speaks.
    pub(crate) hit: Hit,
    /// The calls it holds back.
    pub(crate) when: Matcher,
    /// Other calls it follows.
    pub(crate) follows: Vec<Matcher>,
    /// What they must carry.
    pub(crate) parts: Vec<Part>,
    pub(crate) sentence: Sentence,
}

/// Reads the rules of a pack.
pub(crate) fn read(text: &TemporalText<'_>, tools: &[ToolSpec]) -> Result<Vec<Rule>, TemporalError> {
    let file: File = toml::from_str(text.rules).map_err(|e| {
        let line = e.span().map_or(0, |span| text.rules.get(..span.start).map_or(0, |before| before.lines().count()));
        let message = e.message().lines().collect::<Vec<_>>().join("; ");
        TemporalError::Text { pack: text.pack.to_owned(), reason: format!("line {}: {message}", line.max(1)) }
    })?;
    file.rule.into_iter().map(|written| Reader { text, tools, id: written.id.clone() }.rule(written)).collect()
}

struct Reader<'r> {
    text: &'r TemporalText<'r>,
    tools: &'r [ToolSpec],
    id: String,
}

/// The parts of a sentence: keys are the first variables.
struct Draft {
    vars: usize,
    keys: Vec<Path>,
    parts: Vec<Part>,
    follows: Vec<Matcher>,
}

impl Draft {
    fn fresh(&mut self) -> Var {
        self.vars += 1;
        self.vars - 1
    }

    /// Events of these calls, under the same keys.
    fn atom(&self, calls: &Matcher, on: On, more: Option<(Path, Term)>) -> Formula {
        let keys = self.keys.iter().cloned().enumerate().map(|(var, path)| (path, Term::Var(var)));
        let fixed = calls.arguments.iter().map(|(path, value)| (path.clone(), Term::Literal(value.clone())));
        let head = Head { kind: kind(on).to_owned(), names: calls.tools.clone() };
        Formula::Atom(head, fixed.chain(keys).chain(more).collect())
    }
}

fn kind(on: On) -> &'static str {
    match on {
        On::Request => "request",
        On::Response => "response",
        On::Error => "error",
    }
}

fn formerly(within: Option<i64>, past: bool, body: Formula) -> Formula {
    Formula::Formerly { within, past, body: Box::new(body) }
}

fn not(body: Formula) -> Formula {
    Formula::Not(Box::new(body))
}

impl Reader<'_> {
    fn wrong(&self, needed: impl Into<String>, got: impl Into<String>) -> TemporalError {
        TemporalError::Rule {
            pack: self.text.pack.to_owned(),
            rule: self.id.clone(),
            needed: needed.into(),
            got: got.into(),
        }
    }

    fn rule(&self, written: Written) -> Result<Rule, TemporalError> {
        if written.id.is_empty() || !written.id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(self.wrong("an id of letters, digits, `-`, `_` and `.`", format!("`{}`", written.id)));
        }
        if written.reason.is_empty() {
            return Err(self.wrong("a reason", "none"));
        }
        let effect = match written.effect.as_deref().unwrap_or("deny") {
            "deny" => Decision::Deny,
            "ask" => Decision::Ask,
            "defer" => Decision::Defer,
            other => return Err(self.wrong("`deny`, `defer` or `ask` as the effect", format!("`{other}`"))),
        };
        let when = self.matcher(&written.when)?;
        let keys = written.per.iter().map(|key| self.path(key)).collect::<Result<Vec<_>, _>>()?;
        let parts = keys.iter().map(|path| Part { of: None, path: path.clone(), shape: Shape::One }).collect();
        let mut draft = Draft { vars: keys.len(), keys, parts, follows: Vec::new() };
        let breaks = self.breaks(&written, &when, &mut draft)?;
        let formula = Formula::All(vec![draft.atom(&when, On::Request, None), breaks]);
        Ok(Rule {
            hit: Hit {
                id: written.id,
                pack: self.text.pack.to_owned(),
                version: written.version.unwrap_or_else(|| self.text.version.to_owned()),
                clause: written.clause,
                effect,
                reason: written.reason,
                error: None,
            },
            when,
            follows: draft.follows,
            parts: draft.parts,
            sentence: Sentence { formula, vars: draft.vars, given: Vec::new() },
        })
    }

    /// What is true when a call breaks the rule.
    fn breaks(&self, written: &Written, when: &Matcher, draft: &mut Draft) -> Result<Formula, TemporalError> {
        let Written { at_most, never_after, only_after, cooldown, budget, distinct, .. } = written;
        match (at_most, never_after, only_after, cooldown, budget, distinct) {
            (Some(rule), None, None, None, None, None) => {
                let (of, within) = (self.of(&rule.of, when, draft)?, self.window(&rule.within)?);
                let most = self.count(rule.count)?;
                let count = self.count_of(draft, &of, rule.on, within);
                // A call counts itself; what comes of calls can only be counted once it came.
                let comparison = match rule.on {
                    On::Request => Comparison::Greater,
                    On::Response | On::Error => Comparison::GreaterEqual,
                };
                Ok(Formula::Compare(comparison, count, Term::Literal(Value::Int(most))))
            }
            (None, Some(rule), None, None, None, None) => {
                let of = self.of(&Some(rule.of.clone()), when, draft)?;
                Ok(formerly(self.window(&rule.within)?, true, draft.atom(&of, rule.on, None)))
            }
            (None, None, Some(rule), None, None, None) => {
                let of = self.of(&Some(rule.of.clone()), when, draft)?;
                let (within, anchor) = (self.window(&rule.within)?, draft.atom(&of, rule.on, None));
                let Some(until) = &rule.until else { return Ok(not(formerly(within, true, anchor))) };
                let until = self.of(&Some(until.clone()), when, draft)?;
                let left = not(draft.atom(&until, rule.until_on, None));
                Ok(not(Formula::Since { left: Box::new(left), within, past: true, right: Box::new(anchor) }))
            }
            (None, None, None, Some(rule), None, None) => {
                let of = self.of(&rule.of, when, draft)?;
                // Windows are closed; a pause that is over exactly now is over.
                let within = self.seconds(&rule.pause)? - 1;
                Ok(formerly(Some(within), true, draft.atom(&of, rule.on, None)))
            }
            (None, None, None, None, Some(rule), None) => {
                let (of, within) = (self.of(&rule.of, when, draft)?, self.window(&rule.within)?);
                let (path, amount, point) = (self.path(&rule.sum)?, draft.fresh(), draft.fresh());
                draft.parts.push(Part { of: Some(of.clone()), path: path.clone(), shape: Shape::Amount });
                let event = draft.atom(&of, On::Request, Some((path, Term::Var(amount))));
                let sum = Aggregate {
                    sum: Some(Summand { var: amount, strict: true }),
                    over: vec![amount, point],
                    body: formerly(within, false, Formula::All(vec![event, Formula::Point(point)])),
                };
                let most = Term::Literal(Value::Number(self.amount(&rule.max)?));
                Ok(Formula::Compare(Comparison::Greater, Term::Aggregate(Box::new(sum)), most))
            }
            (None, None, None, None, None, Some(rule)) => {
                let (of, within) = (self.of(&rule.of, when, draft)?, self.window(&rule.within)?);
                let (path, what) = (self.path(&rule.what)?, draft.fresh());
                draft.parts.push(Part { of: Some(of.clone()), path: path.clone(), shape: Shape::Some });
                let event = draft.atom(&of, On::Request, Some((path, Term::Each(what))));
                let count = Aggregate { sum: None, over: vec![what], body: formerly(within, false, event) };
                let most = Term::Literal(Value::Int(self.count(rule.max)?));
                Ok(Formula::Compare(Comparison::Greater, Term::Aggregate(Box::new(count)), most))
            }
            _ => Err(self.wrong(
                "exactly one of `at_most`, `never_after`, `only_after`, `cooldown`, `budget` and `distinct`",
                "none or several",
            )),
        }
    }

    fn count_of(&self, draft: &mut Draft, of: &Matcher, on: On, within: Option<i64>) -> Term {
        let point = draft.fresh();
        let body = Formula::All(vec![draft.atom(of, on, None), Formula::Point(point)]);
        Term::Aggregate(Box::new(Aggregate { sum: None, over: vec![point], body: formerly(within, false, body) }))
    }

    /// The calls a rule follows: those it holds back, unless it names others.
    fn of(&self, of: &Option<Calls>, when: &Matcher, draft: &mut Draft) -> Result<Matcher, TemporalError> {
        let matcher = match of {
            None => return Ok(when.clone()),
            Some(calls) => self.matcher(calls)?,
        };
        draft.follows.push(matcher.clone());
        Ok(matcher)
    }

    fn matcher(&self, calls: &Calls) -> Result<Matcher, TemporalError> {
        for class in &calls.actions {
            if ActionClass::parse(class).is_none() {
                return Err(self.wrong("a class of action that the guard knows", format!("`{class}`")));
            }
        }
        for class in &calls.data {
            if DataClass::parse(class).is_none() {
                return Err(self.wrong("a class of data that the guard knows", format!("`{class}`")));
            }
        }
        let any = |list: &[String], has: &dyn Fn(&String) -> bool| list.is_empty() || list.iter().any(has);
        let fits = |tool: &&ToolSpec| {
            any(&calls.tools, &|name| *name == tool.name)
                && any(&calls.actions, &|class| *class == tool.action)
                && any(&calls.data, &|class| tool.data.contains(class))
        };
        let arguments = calls
            .arguments
            .iter()
            .map(|(name, value)| Ok((self.path(&format!("arguments.{name}"))?, self.literal(value)?)))
            .collect::<Result<_, _>>()?;
        Ok(Matcher { tools: self.tools.iter().filter(fits).map(|tool| tool.name.clone()).collect(), arguments })
    }

    fn literal(&self, value: &toml::Value) -> Result<Value, TemporalError> {
        match value {
            toml::Value::String(s) => Ok(Value::Text(s.clone())),
            toml::Value::Boolean(b) => Ok(Value::Bool(*b)),
            toml::Value::Integer(n) => Ok(Value::Number(i128::from(*n) * MILLION)),
            toml::Value::Float(f) => exact(&f.to_string())
                .map(Value::Number)
                .ok_or_else(|| self.wrong("a number of at most six decimals", format!("`{f}`"))),
            _ => Err(self.wrong("a text, a number, true or false", "something else")),
        }
    }

    fn amount(&self, max: &toml::Value) -> Result<i128, TemporalError> {
        match self.literal(max)? {
            Value::Number(n) if n >= 0 => Ok(n),
            _ => Err(self.wrong("a number of at least 0 as `max`", format!("`{max}`"))),
        }
    }

    fn count(&self, count: i64) -> Result<i64, TemporalError> {
        match count {
            0.. => Ok(count),
            _ => Err(self.wrong("a count of at least 0", format!("`{count}`"))),
        }
    }

    /// The way to a field of a call.
    fn path(&self, text: &str) -> Result<Path, TemporalError> {
        let path: Path = text.split('.').map(str::to_owned).collect();
        let known = match path.split_first() {
            Some((first, [])) => ["subject", "agent", "run", "purpose", "tool"].contains(&first.as_str()),
            Some((first, rest)) => first == "arguments" && rest.iter().all(|part| !part.is_empty()),
            None => false,
        };
        let fields = "`subject`, `agent`, `run`, `purpose`, `tool` or `arguments.` with a name";
        if known { Ok(path) } else { Err(self.wrong(fields, format!("`{text}`"))) }
    }

    fn window(&self, text: &Option<String>) -> Result<Option<i64>, TemporalError> {
        text.as_ref().map(|text| self.seconds(text)).transpose()
    }

    /// Reads `30s`, `5m`, `1h` or `7d`.
    fn seconds(&self, text: &str) -> Result<i64, TemporalError> {
        let unit = match text.chars().last() {
            Some('s') => Some(1),
            Some('m') => Some(60),
            Some('h') => Some(3_600),
            Some('d') => Some(86_400),
            _ => None,
        };
        unit.zip(text.get(..text.len().saturating_sub(1)))
            .filter(|(_, digits)| digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|(unit, digits)| digits.parse::<i64>().ok()?.checked_mul(unit))
            .filter(|seconds| *seconds > 0)
            .ok_or_else(|| self.wrong("a time such as `30s`, `5m`, `1h` or `7d`", format!("`{text}`")))
    }
}
