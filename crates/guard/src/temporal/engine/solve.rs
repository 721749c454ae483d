//! Evaluation at one point in time: what the tables hold of the points before, together with the event of this one.

use std::collections::BTreeSet;

use super::formula::{Comparison, Operation, Var};
use super::plan::{Aggregation, Left, Node, Operand, Plan, Source, full, mask};
use super::table::{Row, Stamp, Table, Tally};
use super::value::Value;

/// The event of the present point.
pub(crate) trait Moment {
    /// Its kind, such as `request`.
    fn kind(&self) -> &str;
    /// Its name.
    fn name(&self) -> &str;
    /// One of its fields.
    fn field(&self, path: &[String]) -> Option<Value>;
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// A sum over what is not a number of at least 0.
    #[error("needed numbers of at least 0 to sum, got something else")]
    NotSummable,
    /// Time went backwards.
    #[error("time went backwards: needed {last} or later, got {got}")]
    Backwards { last: i64, got: i64 },
    /// Too much would have to be remembered.
    #[error("needed room for what happened, got a history of {0} entries already")]
    Full(usize),
}

/// What a variable holds.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    /// Nothing yet.
    Free,
    /// A value of the question that is not there: equal to nothing.
    Missing,
    /// A value.
    Is(Value),
}

pub(crate) type Env = Vec<Slot>;

/// Whether to stop looking.
type Flow = Result<bool, Fault>;
type Next<'n> = &'n mut dyn FnMut(&mut Env) -> Flow;

/// One point in time.
pub(crate) struct View<'v> {
    pub(crate) plan: &'v Plan,
    pub(crate) tables: &'v [Table],
    pub(crate) moment: &'v dyn Moment,
    /// Which of the events that are told apart it is.
    pub(crate) symbol: Option<usize>,
    pub(crate) now: Stamp,
}

impl View<'_> {
    /// Whether a formula holds.
    pub(crate) fn holds(&self, node: &Node, env: &mut Env) -> Result<bool, Fault> {
        self.solve(node, env, &mut |_| Ok(true))
    }

    /// The rows that satisfy a source's body now, each once.
    pub(crate) fn rows(&self, source: &Source) -> Result<Vec<Row>, Fault> {
        let mut rows = BTreeSet::new();
        let mut env = vec![Slot::Free; source.vars];
        self.solve(&source.body, &mut env, &mut |env| {
            rows.extend(row(&source.columns, env));
            Ok(false)
        })?;
        Ok(rows.into_iter().collect())
    }

    fn cutoff(&self, source: usize) -> i64 {
        let within = self.plan.sources[source].layout.within;
        within.map_or(i64::MIN, |within| self.now.at.saturating_sub(within))
    }

    /// Calls `next` for every way to satisfy a formula, until it says to stop.
    fn solve(&self, node: &Node, env: &mut Env, next: Next<'_>) -> Flow {
        match node {
            Node::Atom(symbols, args) => match self.symbol {
                Some(symbol) if symbols.contains(&symbol) => self.args(args, env, next),
                _ => Ok(false),
            },
            Node::All(parts) => self.all(parts, env, next),
            Node::Either(parts) => {
                for part in parts {
                    if self.solve(part, env, next)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Node::Not(body) => match self.holds(body, env)? {
                true => Ok(false),
                false => next(env),
            },
            Node::Exists(body) => self.solve(body, env, next),
            Node::Point(var) => self.unify(*var, Value::Int(self.now.point), env, next),
            Node::Compare(comparison, a, b) => self.compare(*comparison, a, b, env, next),
            Node::Formerly { source, past, filter } => {
                if !past
                    && self.solve(&self.plan.sources[*source].body, env, &mut |env| self.solve(filter, env, next))?
                {
                    return Ok(true);
                }
                self.remembered(*source, env, &mut |_, env| self.solve(filter, env, next))
            }
            Node::Previous { source } => self.remembered(*source, env, &mut |_, env| next(env)),
            Node::Since { anchor, past, left } => {
                // An anchor at this very point has no points after it at which the left side could fail.
                if !past && self.solve(&self.plan.sources[*anchor].body, env, next)? {
                    return Ok(true);
                }
                self.remembered(*anchor, env, &mut |stamp, env| match self.lasted(left, stamp, *past, env)? {
                    true => next(env),
                    false => Ok(false),
                })
            }
        }
    }

    fn all(&self, parts: &[Node], env: &mut Env, next: Next<'_>) -> Flow {
        match parts.split_first() {
            None => next(env),
            Some((first, rest)) => self.solve(first, env, &mut |env| self.all(rest, env, next)),
        }
    }

    fn args(&self, args: &[(Vec<String>, Operand)], env: &mut Env, next: Next<'_>) -> Flow {
        let Some(((path, operand), rest)) = args.split_first() else { return next(env) };
        let Some(value) = self.moment.field(path) else { return Ok(false) };
        match operand {
            Operand::Any => self.args(rest, env, next),
            Operand::Var(var) => self.unify(*var, value, env, &mut |env| self.args(rest, env, next)),
            Operand::Each(var) => {
                let items = match value {
                    Value::List(items) => items,
                    single => vec![single],
                };
                for item in items {
                    if self.unify(*var, item, env, &mut |env| self.args(rest, env, next))? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            other => match self.value(other, env)? {
                Some(wanted) if wanted == value => self.args(rest, env, next),
                _ => Ok(false),
            },
        }
    }

    fn unify(&self, var: Var, value: Value, env: &mut Env, next: Next<'_>) -> Flow {
        match &env[var] {
            Slot::Free => {
                env[var] = Slot::Is(value);
                let flow = next(env);
                env[var] = Slot::Free;
                flow
            }
            Slot::Is(held) if *held == value => next(env),
            Slot::Is(_) | Slot::Missing => Ok(false),
        }
    }

    fn compare(&self, comparison: Comparison, a: &Operand, b: &Operand, env: &mut Env, next: Next<'_>) -> Flow {
        let open = |operand: &Operand, env: &Env| match operand {
            Operand::Var(var) if matches!(env[*var], Slot::Free) => Some(*var),
            _ => None,
        };
        if comparison == Comparison::Equal {
            let bind = match (open(a, env), open(b, env)) {
                (Some(var), None) => Some((var, b)),
                (None, Some(var)) => Some((var, a)),
                _ => None,
            };
            if let Some((var, other)) = bind {
                return match self.value(other, env)? {
                    Some(value) => self.unify(var, value, env, next),
                    None => Ok(false),
                };
            }
        }
        let (Some(a), Some(b)) = (self.value(a, env)?, self.value(b, env)?) else { return Ok(false) };
        let order = match (&a, &b) {
            (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
            (Value::Number(a), Value::Number(b)) => Some(a.cmp(b)),
            _ => None,
        };
        let holds = match comparison {
            Comparison::Equal => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => order.is_some_and(|o| o.is_lt()),
            Comparison::LessEqual => order.is_some_and(|o| o.is_le()),
            Comparison::Greater => order.is_some_and(|o| o.is_gt()),
            Comparison::GreaterEqual => order.is_some_and(|o| o.is_ge()),
        };
        if holds { next(env) } else { Ok(false) }
    }

    fn value(&self, operand: &Operand, env: &mut Env) -> Result<Option<Value>, Fault> {
        Ok(match operand {
            Operand::Literal(value) => Some(value.clone()),
            Operand::Var(var) => match &env[*var] {
                Slot::Is(value) => Some(value.clone()),
                Slot::Free | Slot::Missing => None,
            },
            Operand::Any | Operand::Each(_) => None,
            Operand::List(items) => {
                let mut values = Vec::new();
                for item in items {
                    match self.value(item, env)? {
                        Some(value) => values.push(value),
                        None => return Ok(None),
                    }
                }
                Some(Value::List(values))
            }
            Operand::Arithmetic(operation, a, b) => {
                let (a, b) = (self.value(a, env)?, self.value(b, env)?);
                match (a.and_then(|a| a.int()), b.and_then(|b| b.int())) {
                    (Some(a), Some(b)) => Some(Value::Int(match operation {
                        Operation::Add => a.saturating_add(b),
                        Operation::Subtract => a.saturating_sub(b),
                        Operation::Multiply => a.saturating_mul(b),
                    })),
                    _ => None,
                }
            }
            Operand::Aggregate(aggregation) => Some(self.aggregate(aggregation, env)?),
        })
    }

    fn aggregate(&self, aggregation: &Aggregation, env: &mut Env) -> Result<Value, Fault> {
        let tally = match &aggregation.tally {
            Some((source, group)) => self.tallied(*source, group, &aggregation.body, env)?,
            None => self.counted(aggregation, env)?,
        };
        match aggregation.sum {
            None => Ok(Value::Int(tally.rows)),
            Some(sum) if sum.strict && tally.faults > 0 => Err(Fault::NotSummable),
            Some(sum) if sum.strict => Ok(Value::Number(tally.sum)),
            Some(_) => {
                Ok(Value::Int(i64::try_from(tally.sum).unwrap_or(if tally.sum < 0 { i64::MIN } else { i64::MAX })))
            }
        }
    }

    /// The tally that a table keeps up, with the rows of this point that it does not hold yet.
    fn tallied(&self, source: usize, group: &[Var], body: &Node, env: &mut Env) -> Result<Tally, Fault> {
        let fed = &self.plan.sources[source];
        let (table, cutoff) = (&self.tables[source], self.cutoff(source));
        let Some(key) = row(group, env) else { return Ok(Tally::default()) };
        let mut tally = table.tally(&fed.layout, &key, cutoff);
        let (Some(by), Node::Formerly { past: false, .. }) = (&fed.layout.tally, body) else { return Ok(tally) };
        let mut new = BTreeSet::new();
        self.solve(&fed.body, env, &mut |env| {
            new.extend(row(&fed.columns, env));
            Ok(false)
        })?;
        for row in new {
            if table.get(&row).is_none_or(|stamp| stamp.at < cutoff) {
                tally.add(by, &row, 1);
            }
        }
        Ok(tally)
    }

    /// The tally of all rows, one by one.
    fn counted(&self, aggregation: &Aggregation, env: &mut Env) -> Result<Tally, Fault> {
        let mut rows = BTreeSet::new();
        self.solve(&aggregation.body, env, &mut |env| {
            rows.extend(row(&aggregation.over, env));
            Ok(false)
        })?;
        let place = |var| aggregation.over.iter().position(|over| *over == var);
        let sum = aggregation.sum.and_then(|sum| place(sum.var).map(|column| (column, sum.strict)));
        let by = super::table::TallyBy { group: Vec::new(), sum };
        let mut tally = Tally::default();
        rows.iter().for_each(|row| tally.add(&by, row, 1));
        Ok(tally)
    }

    /// Calls `next` for every remembered row that fits what is bound, with its columns bound.
    fn remembered(&self, source: usize, env: &mut Env, next: &mut dyn FnMut(Stamp, &mut Env) -> Flow) -> Flow {
        let (fed, table, cutoff) = (&self.plan.sources[source], &self.tables[source], self.cutoff(source));
        if fed.columns.iter().any(|var| matches!(env[*var], Slot::Missing)) {
            return Ok(false);
        }
        let mask = mask(&fed.columns, |var| matches!(env[*var], Slot::Is(_)));
        let key: Vec<Value> = fed
            .columns
            .iter()
            .filter_map(|var| match &env[*var] {
                Slot::Is(value) => Some(value.clone()),
                _ => None,
            })
            .collect();
        if mask == full(&fed.columns) {
            return match table.get(&key) {
                Some(stamp) if stamp.at >= cutoff => next(stamp, env),
                _ => Ok(false),
            };
        }
        let open: Vec<(usize, Var)> =
            fed.columns.iter().copied().enumerate().filter(|(i, _)| mask >> i & 1 == 0).collect();
        for (row, stamp) in table.find(mask, &key) {
            if stamp.at < cutoff {
                continue;
            }
            for (i, var) in &open {
                env[*var] = Slot::Is(row[*i].clone());
            }
            let flow = next(stamp, env);
            for (_, var) in &open {
                env[*var] = Slot::Free;
            }
            if flow? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the left side of `since` held at each point after an anchor: up to this one, or before it.
    fn lasted(&self, left: &[Left], anchor: Stamp, past: bool, env: &mut Env) -> Flow {
        for part in left {
            let lasts = match part {
                // Where nothing lies between the anchor and now, even what never holds has not failed.
                Left::Always(node) => (past && anchor.point == self.now.point - 1) || self.holds(node, env)?,
                Left::Unless(source) => {
                    let since = self.stamp(*source, env).map_or(i64::MIN, |stamp| stamp.point);
                    since <= anchor.point && (past || !self.holds(&self.plan.sources[*source].body, env)?)
                }
                Left::While(source) => {
                    let streak = self.stamp(*source, env).is_some_and(|stamp| stamp.point <= anchor.point + 1);
                    (anchor.point == self.now.point - 1 || streak)
                        && (past || self.holds(&self.plan.sources[*source].body, env)?)
                }
            };
            if !lasts {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// When the row that is bound last held, or since when it has.
    fn stamp(&self, source: usize, env: &Env) -> Option<Stamp> {
        self.tables[source].get(&row(&self.plan.sources[source].columns, env)?)
    }
}

/// The values of variables, where all are there.
fn row(vars: &[Var], env: &Env) -> Option<Row> {
    vars.iter()
        .map(|var| match &env[*var] {
            Slot::Is(value) => Some(value.clone()),
            Slot::Free | Slot::Missing => None,
        })
        .collect()
}
