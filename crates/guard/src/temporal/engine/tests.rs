//! Random formulas over random histories, held against their definitions: every operator evaluated anew at every point, every
//! quantifier by trying all values.

use std::collections::BTreeSet;

use super::Memory;
use super::formula::{Aggregate, Comparison, Formula, Head, Path, Summand, Term, Var};
use super::plan::{Plan, Sentence};
use super::solve::Moment;
use super::value::Value;

/// Every value there is: fields hold 0 to 2, points are numbered, counts and sums stay below.
const DOMAIN: std::ops::RangeInclusive<i64> = 0..=16;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

#[derive(Debug, Clone)]
struct One {
    kind: &'static str,
    name: &'static str,
    x: i64,
    y: Option<i64>,
    at: i64,
}

impl Moment for One {
    fn kind(&self) -> &str {
        self.kind
    }

    fn name(&self) -> &str {
        self.name
    }

    fn field(&self, path: &[String]) -> Option<Value> {
        match path.first()?.as_str() {
            "x" => Some(Value::Int(self.x)),
            _ => self.y.map(Value::Int),
        }
    }
}

type Env = Vec<Option<i64>>;

fn term(term: &Term, past: &[One], i: usize, env: &Env) -> Option<i64> {
    match term {
        Term::Literal(value) => value.int(),
        Term::Var(var) => env[*var],
        Term::Aggregate(aggregate) => {
            let mut rows = BTreeSet::new();
            assign(&aggregate.over, past, i, env, &aggregate.body, &mut rows);
            match aggregate.sum {
                None => Some(rows.len() as i64),
                Some(Summand { var, .. }) => {
                    let place = aggregate.over.iter().position(|over| *over == var).unwrap();
                    Some(rows.iter().map(|row: &Vec<i64>| row[place]).sum())
                }
            }
        }
        other => panic!("no {other:?} here"),
    }
}

/// All rows over `vars` that satisfy a formula.
fn assign(vars: &[Var], past: &[One], i: usize, env: &Env, body: &Formula, rows: &mut BTreeSet<Vec<i64>>) {
    let mut counters = vec![*DOMAIN.start(); vars.len()];
    loop {
        let mut env = env.clone();
        for (var, value) in vars.iter().zip(&counters) {
            env[*var] = Some(*value);
        }
        if holds(body, past, i, &env) {
            rows.insert(counters.clone());
        }
        let Some(place) = counters.iter().rposition(|c| c < DOMAIN.end()) else { return };
        counters[place] += 1;
        counters[place + 1..].fill(*DOMAIN.start());
    }
}

fn holds(formula: &Formula, past: &[One], i: usize, env: &Env) -> bool {
    let near = |j: usize, within: &Option<i64>| within.is_none_or(|within| past[i].at - past[j].at <= within);
    match formula {
        Formula::Atom(head, args) => {
            let one = &past[i];
            head.kind == one.kind
                && head.names.contains(one.name)
                && args.iter().all(|(path, wanted)| {
                    let field = if path[0] == "x" { Some(one.x) } else { one.y };
                    field.is_some() && (matches!(wanted, Term::Any) || term(wanted, past, i, env) == field)
                })
        }
        Formula::All(parts) => parts.iter().all(|part| holds(part, past, i, env)),
        Formula::Either(parts) => parts.iter().any(|part| holds(part, past, i, env)),
        Formula::Not(body) => !holds(body, past, i, env),
        Formula::Formerly { within, past: before, body } => {
            (0..=i).any(|j| (!before || j < i) && near(j, within) && holds(body, past, j, env))
        }
        Formula::Previous { within, body } => i > 0 && near(i - 1, within) && holds(body, past, i - 1, env),
        Formula::Since { left, within, past: before, right } => {
            let end = if *before { i } else { i + 1 };
            (0..end).any(|j| {
                near(j, within) && holds(right, past, j, env) && (j + 1..end).all(|k| holds(left, past, k, env))
            })
        }
        Formula::Compare(comparison, a, b) => match (term(a, past, i, env), term(b, past, i, env)) {
            (Some(a), Some(b)) => match comparison {
                Comparison::Less => a < b,
                Comparison::LessEqual => a <= b,
                Comparison::Greater => a > b,
                Comparison::GreaterEqual => a >= b,
                Comparison::Equal => a == b,
                Comparison::NotEqual => a != b,
            },
            _ => false,
        },
        Formula::Exists(var, body) => DOMAIN.into_iter().any(|value| {
            let mut env = env.clone();
            env[*var] = Some(value);
            holds(body, past, i, &env)
        }),
        Formula::Point(var) => env[*var] == Some(i as i64),
    }
}

struct Maker {
    dice: Dice,
    vars: usize,
}

impl Maker {
    fn fresh(&mut self) -> Var {
        self.vars += 1;
        self.vars - 1
    }

    fn within(&mut self) -> Option<i64> {
        (self.dice.roll(5) > 0).then(|| self.dice.roll(6) as i64)
    }

    fn operand(&mut self, scope: &[Var]) -> Term {
        match self.dice.roll(3) {
            0 => Term::Literal(Value::Int(self.dice.roll(3) as i64)),
            _ if scope.is_empty() => Term::Literal(Value::Int(1)),
            _ => Term::Var(scope[self.dice.roll(scope.len() as u64) as usize]),
        }
    }

    /// An event, with one field bound to `var` where there is one.
    fn atom(&mut self, scope: &[Var], var: Option<Var>) -> Formula {
        let kind = ["request", "response"][self.dice.roll(2) as usize].to_owned();
        let names = [["a"].as_slice(), &["b"], &["a", "b"]][self.dice.roll(3) as usize];
        let mut args: Vec<(Path, Term)> = Vec::new();
        let taken = var.map(|var| {
            let field = ["x", "y"][self.dice.roll(2) as usize];
            args.push((vec![field.to_owned()], Term::Var(var)));
            field
        });
        for field in ["x", "y"] {
            if taken != Some(field) && self.dice.roll(2) == 0 {
                let wanted = if self.dice.roll(5) == 0 { Term::Any } else { self.operand(scope) };
                args.push((vec![field.to_owned()], wanted));
            }
        }
        Formula::Atom(Head { kind, names: names.iter().map(|n| (*n).to_owned()).collect() }, args)
    }

    fn formula(&mut self, depth: u64, scope: &[Var]) -> Formula {
        if depth == 0 {
            return match self.dice.roll(5) {
                0 => self.compare(0, scope),
                _ => self.atom(scope, None),
            };
        }
        let boxed = |f: Formula| Box::new(f);
        match self.dice.roll(16) {
            0..3 => Formula::All(vec![self.formula(depth - 1, scope), self.formula(depth - 1, scope)]),
            3 => Formula::Either(vec![self.formula(depth - 1, scope), self.formula(depth - 1, scope)]),
            4 => Formula::Not(boxed(self.formula(depth - 1, scope))),
            5..8 => {
                let (within, past) = (self.within(), self.dice.roll(3) == 0);
                Formula::Formerly { within, past, body: boxed(self.formula(depth - 1, scope)) }
            }
            8..10 => Formula::Previous { within: self.within(), body: boxed(self.formula(depth - 1, scope)) },
            10..13 => {
                let (within, past) = (self.within(), self.dice.roll(3) == 0);
                let mut left = self.formula(depth - 1, scope);
                if self.dice.roll(2) == 0 {
                    left = Formula::Not(boxed(left));
                }
                Formula::Since { left: boxed(left), within, past, right: boxed(self.formula(depth - 1, scope)) }
            }
            13..15 => self.compare(depth, scope),
            _ => {
                let var = self.fresh();
                let mut inner = scope.to_vec();
                inner.push(var);
                let binding = match self.dice.roll(4) {
                    0 => Formula::Point(var),
                    1 => Formula::Compare(Comparison::Equal, self.aggregate(depth, scope), Term::Var(var)),
                    _ => {
                        let (atom, within) = (self.atom(scope, Some(var)), self.within());
                        Formula::Formerly { within, past: false, body: boxed(atom) }
                    }
                };
                Formula::Exists(var, boxed(Formula::All(vec![binding, self.formula(depth - 1, &inner)])))
            }
        }
    }

    fn compare(&mut self, depth: u64, scope: &[Var]) -> Formula {
        use Comparison::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        let comparison = [Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual][self.dice.roll(6) as usize];
        let a = if depth > 0 { self.aggregate(depth, scope) } else { self.operand(scope) };
        Formula::Compare(comparison, a, self.operand(scope))
    }

    fn aggregate(&mut self, depth: u64, scope: &[Var]) -> Term {
        let (value, point) = (self.fresh(), self.fresh());
        let by_point = self.dice.roll(2) == 0;
        let mut parts = vec![self.atom(scope, Some(value))];
        if by_point {
            parts.push(Formula::Point(point));
        }
        if self.dice.roll(3) == 0 {
            let mut inner = scope.to_vec();
            inner.push(value);
            parts.push(self.formula(depth - 1, &inner));
        }
        let (within, past) = (self.within(), self.dice.roll(3) == 0);
        let body = Formula::Formerly { within, past, body: Box::new(Formula::All(parts)) };
        let body = match self.dice.roll(4) {
            0 => Formula::All(vec![body, self.formula(depth - 1, scope)]),
            _ => body,
        };
        let sum = (self.dice.roll(2) == 0).then_some(Summand { var: value, strict: false });
        Term::Aggregate(Box::new(Aggregate {
            sum,
            over: if by_point { vec![value, point] } else { vec![value] },
            body,
        }))
    }
}

fn history(dice: &mut Dice) -> Vec<One> {
    let mut at = 0;
    // Some histories of one event over and over, so that what must hold at every point does.
    let choices = if dice.roll(3) == 0 { 1 } else { 2 };
    (0..2 + dice.roll(6))
        .map(|_| {
            at += dice.roll(4) as i64;
            One {
                kind: ["request", "response"][dice.roll(choices) as usize],
                name: ["a", "b"][dice.roll(choices) as usize],
                x: dice.roll(choices + 1) as i64,
                y: (dice.roll(6) > 0).then(|| dice.roll(3) as i64),
                at,
            }
        })
        .collect()
}

#[test]
fn random_formulas_hold_where_their_definitions_say() {
    let (mut taken, mut outside, mut held, mut asked) = (0, 0, 0, 0);
    for seed in 0..3_000 {
        let mut maker = Maker { dice: Dice(seed), vars: 2 };
        let given = [0, 1];
        let formula = maker.formula(1 + seed % 3, &given);
        let mut plan = Plan::default();
        let sentence = Sentence { formula: formula.clone(), vars: maker.vars, given: given.to_vec() };
        let Ok(number) = plan.add(sentence) else {
            outside += 1;
            continue;
        };
        taken += 1;
        for _ in 0..2 {
            let past = history(&mut maker.dice);
            let mut memory = Memory::new(&plan);
            for (i, one) in past.iter().enumerate() {
                for values in [[Some(0), Some(1)], [Some(2), None]] {
                    let mut env: Env = vec![None; maker.vars];
                    env[..2].copy_from_slice(&values);
                    let want = holds(&formula, &past, i, &env);
                    let given = values.iter().map(|value| value.map(Value::Int)).collect();
                    let got = memory.ask(&plan, number, given, one, one.at).unwrap();
                    assert_eq!(got, want, "seed {seed}, point {i}, given {values:?}\n{formula:#?}\n{past:#?}");
                    asked += 1;
                    held += usize::from(want);
                }
                memory.observe(&plan, one, one.at).unwrap();
            }
        }
    }
    assert!(taken > 2 * outside && held * 5 > asked && held * 5 < asked * 4, "{taken} {outside} {held} {asked}");
}

#[test]
fn a_left_side_that_failed_once_after_the_anchor_has_failed() {
    let atom =
        |name: &str| Formula::Atom(Head { kind: "request".to_owned(), names: [name.to_owned()].into() }, Vec::new());
    let formula = Formula::Since { left: Box::new(atom("a")), within: None, past: false, right: Box::new(atom("b")) };
    let check = |names: &[&'static str], want: bool| {
        let mut plan = Plan::default();
        let number = plan.add(Sentence { formula: formula.clone(), vars: 0, given: Vec::new() }).unwrap();
        let mut memory = Memory::new(&plan);
        let mut got = false;
        for name in names {
            let one = One { kind: "request", name, x: 0, y: None, at: 0 };
            got = memory.ask(&plan, number, Vec::new(), &one, 0).unwrap();
            memory.observe(&plan, &one, 0).unwrap();
        }
        assert_eq!(got, want, "{names:?}");
    };
    check(&["b"], true);
    check(&["b", "a", "a", "a"], true);
    check(&["b", "c", "a", "a"], false);
    check(&["b", "a", "c", "a"], false);
    check(&["b", "c", "a", "b", "a"], true);
    check(&["a", "a"], false);
}

#[test]
fn what_nothing_binds_cannot_be_kept_up() {
    let check = |formula: Formula, want: Option<&str>| {
        let mut plan = Plan::default();
        let got = plan.add(Sentence { formula, vars: 2, given: vec![0] });
        assert_eq!(got.as_ref().err().map(|outside| outside.what), want);
        assert!(got.is_ok() || plan.sources.is_empty(), "a refused sentence leaves nothing behind");
    };
    let p = |term: Term| {
        let head = Head { kind: "request".to_owned(), names: ["a".to_owned()].into() };
        Formula::Atom(head, vec![(vec!["x".to_owned()], term)])
    };
    let formerly = |body: Formula| Formula::Formerly { within: Some(5), past: false, body: Box::new(body) };
    let not = |body: Formula| Formula::Not(Box::new(body));
    check(formerly(p(Term::Var(0))), None);
    check(not(formerly(p(Term::Var(0)))), None);
    check(formerly(Formula::All(vec![p(Term::Any), not(formerly(p(Term::Any)))])), None);
    let open = "a negation over what nothing before it binds";
    check(formerly(Formula::All(vec![p(Term::Any), not(formerly(p(Term::Var(0))))])), Some(open));
    check(formerly(not(p(Term::Var(0)))), Some(open));
    let count = |body| {
        let aggregate = Aggregate { sum: None, over: vec![1], body };
        Formula::Compare(Comparison::Less, Term::Aggregate(Box::new(aggregate)), Term::Literal(Value::Int(1)))
    };
    let rows = |more: Vec<Formula>| formerly(Formula::All([vec![p(Term::Var(0)), Formula::Point(1)], more].concat()));
    check(count(rows(Vec::new())), None);
    let asked = "a count or sum over what nothing before it binds";
    check(formerly(Formula::All(vec![p(Term::Any), count(rows(Vec::new()))])), Some(asked));
}

#[test]
fn what_there_is_no_room_for_is_refused_and_nothing_is_lost() {
    let head = Head { kind: "request".to_owned(), names: ["a".to_owned()].into() };
    let body = Formula::Atom(head, vec![(vec!["x".to_owned()], Term::Var(0))]);
    let formula = Formula::Formerly { within: None, past: true, body: Box::new(body) };
    let mut plan = Plan::default();
    let number = plan.add(Sentence { formula, vars: 1, given: vec![0] }).unwrap();
    let mut memory = Memory { room: 3, ..Memory::new(&plan) };
    let one = |x: i64| One { kind: "request", name: "a", x, y: None, at: 0 };
    for x in 0..3 {
        memory.observe(&plan, &one(x), 0).unwrap();
    }
    assert_eq!(memory.observe(&plan, &one(9), 0), Err(super::solve::Fault::Full(3)));
    let knows = |memory: &Memory, x: i64| memory.ask(&plan, number, vec![Some(Value::Int(x))], &one(0), 0).unwrap();
    assert_eq!([0, 1, 2, 9].map(|x| knows(&memory, x)), [true, true, true, false]);
}
