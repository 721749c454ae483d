//! Rules over history, told a second time: every question goes through the whole history, by the words of the documentation
//! and with nothing of the engine. And random rules and histories to hold both against.

use episode::ToolSpec;
use serde_json::{Map, Value, json};
use surefoot_guard::temporal::{Event, History, Temporal, TemporalText};
use surefoot_guard::{Hit, Labels, Principal, Request};

/// A seeded stream of numbers (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.roll(list.len() as u64) as usize].clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Response,
    Error,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Request => "request",
            Kind::Response => "response",
            Kind::Error => "error",
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
pub(crate) struct Happened {
    pub(crate) kind: Kind,
    pub(crate) tool: &'static str,
    pub(crate) agent: &'static str,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) at: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    tools: Vec<&'static str>,
    actions: Vec<&'static str>,
    data: Vec<&'static str>,
    urgent: Option<bool>,
}

#[derive(Debug, Clone)]
pub(crate) enum Shape {
    AtMost { count: usize, on: Kind },
    NeverAfter { on: Kind },
    OnlyAfter { on: Kind, until: Option<(Calls, Kind)> },
    Cooldown { pause: u64, on: Kind },
    Budget { max: i64 },
    Distinct { max: usize },
}

#[derive(Debug, Clone)]
pub(crate) struct Rule {
    when: Calls,
    of: Calls,
    keys: Vec<&'static str>,
    within: Option<u64>,
    shape: Shape,
}

/// Name, class of action, class of data.
const TOOLS: [(&str, &str, Option<&str>); 4] = [
    ("pay", "pay", Some("financial")),
    ("mail", "send", Some("personal")),
    ("login", "credential", None),
    ("look", "read", Some("personal")),
];

pub(crate) fn tools() -> Vec<ToolSpec> {
    TOOLS
        .iter()
        .map(|(name, action, data)| {
            ToolSpec::new(*name, "", *action, json!({"type": "object"})).touching(data.iter().copied())
        })
        .collect()
}

impl Calls {
    fn random(dice: &mut Dice) -> Calls {
        let mut calls = Calls::default();
        match dice.roll(4) {
            0 => calls.tools = vec![dice.of(&TOOLS).0, dice.of(&TOOLS).0],
            1 => calls.actions = vec![dice.of(&TOOLS).1],
            2 => calls.data = vec!["personal"],
            _ => calls.tools = vec![dice.of(&TOOLS).0],
        }
        if dice.roll(5) == 0 {
            calls.urgent = Some(dice.roll(2) == 0);
        }
        calls
    }

    fn have(&self, one: &Happened) -> bool {
        let (_, action, data) = TOOLS.iter().find(|(name, ..)| *name == one.tool).expect("a tool");
        (self.tools.is_empty() || self.tools.contains(&one.tool))
            && (self.actions.is_empty() || self.actions.contains(action))
            && (self.data.is_empty() || data.is_some_and(|data| self.data.contains(&data)))
            && self.urgent.is_none_or(|urgent| one.arguments.get("urgent") == Some(&Value::Bool(urgent)))
    }

    fn toml(&self) -> String {
        let list = |words: &[&str]| words.iter().map(|w| format!("{w:?}")).collect::<Vec<_>>().join(", ");
        let urgent = self.urgent.map_or(String::new(), |urgent| format!(", arguments = {{ urgent = {urgent} }}"));
        format!(
            "{{ tools = [{}], actions = [{}], data = [{}]{urgent} }}",
            list(&self.tools),
            list(&self.actions),
            list(&self.data)
        )
    }
}

impl Rule {
    pub(crate) fn random(dice: &mut Dice) -> Rule {
        let when = Calls::random(dice);
        let of = if dice.roll(2) == 0 { when.clone() } else { Calls::random(dice) };
        let on = |dice: &mut Dice| dice.of(&[Kind::Request, Kind::Response, Kind::Error]);
        let shape = match dice.roll(6) {
            0 => Shape::AtMost { count: dice.roll(4) as usize, on: on(dice) },
            1 => Shape::NeverAfter { on: on(dice) },
            2 => Shape::OnlyAfter { on: on(dice), until: (dice.roll(2) == 0).then(|| (Calls::random(dice), on(dice))) },
            3 => Shape::Cooldown { pause: 1 + dice.roll(6), on: on(dice) },
            4 => Shape::Budget { max: dice.roll(12) as i64 },
            _ => Shape::Distinct { max: dice.roll(4) as usize },
        };
        let keys = dice.of(&[
            vec![],
            vec!["agent"],
            vec!["arguments.to.name"],
            vec!["agent", "arguments.to.name"],
            vec!["tool"],
        ]);
        Rule { when, of, keys, within: (dice.roll(3) > 0).then(|| 1 + dice.roll(12)), shape }
    }

    pub(crate) fn toml(&self, id: &str) -> String {
        let within = self.within.map_or(String::new(), |w| format!(", within = \"{w}s\""));
        let of = self.of.toml();
        let shape = match &self.shape {
            Shape::AtMost { count, on } => {
                format!("at_most = {{ count = {count}, of = {of}, on = \"{}\"{within} }}", on.word())
            }
            Shape::NeverAfter { on } => format!("never_after = {{ of = {of}, on = \"{}\"{within} }}", on.word()),
            Shape::OnlyAfter { on, until } => {
                let until = until.as_ref().map_or(String::new(), |(calls, on)| {
                    format!(", until = {}, until_on = \"{}\"", calls.toml(), on.word())
                });
                format!("only_after = {{ of = {of}, on = \"{}\"{within}{until} }}", on.word())
            }
            Shape::Cooldown { pause, on } => {
                format!("cooldown = {{ pause = \"{pause}s\", of = {of}, on = \"{}\" }}", on.word())
            }
            Shape::Budget { max } => {
                format!("budget = {{ sum = \"arguments.amount\", max = {max}, of = {of}{within} }}")
            }
            Shape::Distinct { max } => {
                format!("distinct = {{ what = \"arguments.about\", max = {max}, of = {of}{within} }}")
            }
        };
        format!("[[rule]]\nid = {id:?}\nreason = \"r\"\nwhen = {}\nper = {:?}\n{shape}\n", self.when.toml(), self.keys)
    }

    /// What the rule says of a call: nothing, that it is broken, or that it cannot tell.
    pub(crate) fn judge(&self, past: &[Happened], call: &Happened) -> Option<Result<(), ()>> {
        let until = match &self.shape {
            Shape::OnlyAfter { until, .. } => until.as_ref(),
            _ => None,
        };
        let concerned = self.when.have(call) || self.of.have(call) || until.is_some_and(|(calls, _)| calls.have(call));
        if !concerned {
            return None;
        }
        if self.keys.iter().any(|key| key_of(key, call).is_none()) {
            return Some(Err(()));
        }
        let lacks = match &self.shape {
            Shape::Budget { .. } => amount(call).is_none(),
            Shape::Distinct { .. } => about(call).is_none(),
            _ => false,
        };
        if lacks && self.of.have(call) {
            return Some(Err(()));
        }
        if !self.when.have(call) {
            return None;
        }
        let same = |one: &Happened| self.keys.iter().all(|key| key_of(key, one) == key_of(key, call));
        let near = |one: &Happened| self.within.is_none_or(|within| call.at - one.at <= within);
        let is = |one: &Happened, calls: &Calls, kind: Kind| one.kind == kind && calls.have(one) && same(one);
        let requests = || past.iter().chain([call]).filter(|one| is(one, &self.of, Kind::Request) && near(one));
        let broken = match &self.shape {
            Shape::AtMost { count, on: Kind::Request } => requests().count() > *count,
            Shape::AtMost { count, on } => {
                past.iter().filter(|one| is(one, &self.of, *on) && near(one)).count() >= *count
            }
            Shape::NeverAfter { on } => past.iter().any(|one| is(one, &self.of, *on) && near(one)),
            Shape::OnlyAfter { on, until } => {
                let fresh = |place: usize| match until {
                    None => true,
                    Some((calls, kind)) => !past[place + 1..].iter().any(|one| is(one, calls, *kind)),
                };
                !(0..past.len()).any(|place| is(&past[place], &self.of, *on) && near(&past[place]) && fresh(place))
            }
            Shape::Cooldown { pause, on } => past.iter().any(|one| is(one, &self.of, *on) && call.at - one.at < *pause),
            Shape::Budget { max } => {
                let amounts: Vec<Option<i64>> = requests().map(amount).collect();
                if amounts.contains(&None) {
                    return Some(Err(()));
                }
                amounts.iter().flatten().sum::<i64>() > *max
            }
            Shape::Distinct { max } => {
                let mut seen: Vec<String> =
                    requests().flat_map(|one| about(one).unwrap_or_else(|| vec!["nothing".to_owned()])).collect();
                seen.sort();
                seen.dedup();
                seen.len() > *max
            }
        };
        broken.then_some(Ok(()))
    }
}

fn key_of(key: &str, one: &Happened) -> Option<String> {
    match key {
        "agent" => Some(one.agent.to_owned()),
        "tool" => Some(one.tool.to_owned()),
        _ => one.arguments.get("to")?.get("name")?.as_str().map(str::to_owned),
    }
}

fn amount(one: &Happened) -> Option<i64> {
    one.arguments.get("amount")?.as_i64().filter(|n| *n >= 0)
}

/// The values of `about`, where there is one; one recorded without counts as a value of its own.
fn about(one: &Happened) -> Option<Vec<String>> {
    match one.arguments.get("about")? {
        Value::Array(items) => Some(items.iter().map(Value::to_string).collect()),
        other => Some(vec![other.to_string()]),
    }
}

pub(crate) fn random_call(dice: &mut Dice, at: u64, careful: bool) -> Happened {
    let mut arguments = Map::new();
    let lacks = |dice: &mut Dice| !careful && dice.roll(25) == 0;
    if !lacks(dice) {
        arguments.insert("to".to_owned(), json!({"name": dice.of(&["ann", "bob"])}));
    }
    if !lacks(dice) {
        let amount = if lacks(dice) { json!(-1) } else { json!(dice.roll(6)) };
        arguments.insert("amount".to_owned(), amount);
    }
    if !lacks(dice) {
        let about = match dice.roll(3) {
            0 => json!([dice.roll(4), dice.roll(4)]),
            _ => json!(dice.roll(4)),
        };
        arguments.insert("about".to_owned(), about);
    }
    if dice.roll(2) == 0 {
        arguments.insert("urgent".to_owned(), json!(dice.roll(2) == 0));
    }
    Happened { kind: Kind::Request, tool: dice.of(&TOOLS).0, agent: dice.of(&["a", "b"]), arguments, at }
}

/// Hands a call to `f` as the guard's request.
pub(crate) fn as_request<T>(one: &Happened, f: impl FnOnce(&Request<'_>) -> T) -> T {
    let principal = Principal { agent: one.agent.to_owned(), ..Principal::default() };
    f(&Request {
        principal: &principal,
        tool: one.tool,
        arguments: &one.arguments,
        labels: &Labels::default(),
        now_s: one.at,
    })
}

pub(crate) fn record(history: &mut History, one: &Happened) {
    as_request(one, |request| {
        let event = match one.kind {
            Kind::Request => Event::Request(request),
            Kind::Response => Event::Response(request),
            Kind::Error => Event::Error(request),
        };
        history.record(event).unwrap();
    });
}

/// What was compared.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) questions: u64,
    pub(crate) hits: u64,
    pub(crate) faults: u64,
}

/// One random history under random rules: every call judged by both, and what both say compared.
pub(crate) fn compare(seed: u64, seen: &mut Seen) {
    let mut dice = Dice(seed);
    let rules: Vec<Rule> = (0..1 + dice.roll(4)).map(|_| Rule::random(&mut dice)).collect();
    let text: String = rules.iter().enumerate().map(|(i, rule)| rule.toml(&format!("r{i}"))).collect();
    let temporal = Temporal::compile([TemporalText { pack: "p", version: "1", rules: &text }], &tools())
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(temporal.growing().count(), 0, "{text}");
    let mut history = temporal.history();
    let (mut past, mut open, mut at): (Vec<Happened>, Vec<Happened>, u64) = (Vec::new(), Vec::new(), dice.roll(100));
    // Half of all histories record only what was let through, as a gate does; in the others anything may have happened.
    let (gated, careful) = (dice.roll(2) == 0, dice.roll(2) == 0);
    for _ in 0..8 + dice.roll(24) {
        at += dice.of(&[0, 0, 1, 1, 2, 5, 9]);
        match dice.roll(12) {
            0 => history.advance(at).unwrap(),
            1 => {
                let stored = serde_json::to_string(&history.save()).unwrap();
                history = temporal.restore(serde_json::from_str(&stored).unwrap()).unwrap();
                assert_eq!(serde_json::to_string(&history.save()).unwrap(), stored, "seed {seed}");
            }
            2..6 if !open.is_empty() => {
                let mut ended = open.remove(dice.roll(open.len() as u64) as usize);
                ended.kind = dice.of(&[Kind::Response, Kind::Response, Kind::Error]);
                ended.at = at;
                record(&mut history, &ended);
                past.push(ended);
            }
            _ => {
                let call = random_call(&mut dice, at, careful);
                let hits: Vec<Hit> = as_request(&call, |request| history.check(request));
                let got: Vec<(String, bool)> = hits.iter().map(|hit| (hit.id.clone(), hit.error.is_some())).collect();
                let want: Vec<(String, bool)> = rules
                    .iter()
                    .enumerate()
                    .filter_map(|(i, rule)| rule.judge(&past, &call).map(|said| (format!("r{i}"), said.is_err())))
                    .collect();
                assert_eq!(got, want, "seed {seed}\n{text}\npast {past:#?}\ncall {call:#?}");
                seen.questions += rules.len() as u64;
                seen.hits += want.len() as u64;
                seen.faults += want.iter().filter(|(_, fault)| *fault).count() as u64;
                if want.is_empty() || !gated {
                    record(&mut history, &call);
                    open.push(call.clone());
                    past.push(call);
                }
            }
        }
    }
}
