//! How sentences are evaluated event by event: which tables they need, in which order conjuncts are tried, and which
//! sentences cannot be kept up that way.
//!
//! What cannot, and why: an operator over the past is fed at each event with the rows of its body, before anybody knows which question will be
//! asked later. So its body must say by itself which rows satisfy it: every variable in it, parameters of the later question
//! among them, must be bound by a field of an event, an equality or an operator over the past within it. Outside are therefore,
//! within `formerly`, `previous` or `since`: a negation, a count or a sum over a value of the question that nothing else there
//! binds; a left side of `since` that does not bind by itself; alternatives that bind different variables. Comparisons are
//! not: they wait until the question is asked. Nor is anything that `previous` can hand down to its parts.

use std::collections::{BTreeMap, BTreeSet};

use super::formula::{Aggregate, Comparison, Formula, Operation, Path, Summand, Term, Var};
use super::table::{Keep, Layout, TallyBy};
use super::value::Value;

/// A sentence with how many variables it has, and those that whoever asks gives values to.
#[derive(Debug, Clone)]
pub(crate) struct Sentence {
    pub(crate) formula: Formula,
    pub(crate) vars: usize,
    pub(crate) given: Vec<Var>,
}

/// Why a sentence cannot be kept up event by event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outside {
    /// The construct.
    pub(crate) what: &'static str,
}

/// A formula as it is evaluated.
#[derive(Debug)]
pub(crate) enum Node {
    Atom(BTreeSet<usize>, Vec<(Path, Operand)>),
    All(Vec<Node>),
    Either(Vec<Node>),
    Not(Box<Node>),
    Formerly { source: usize, past: bool, filter: Box<Node> },
    Previous { source: usize },
    Since { anchor: usize, past: bool, left: Vec<Left> },
    Compare(Comparison, Operand, Operand),
    Exists(Box<Node>),
    Point(Var),
}

/// One conjunct of the left side of `since`.
#[derive(Debug)]
pub(crate) enum Left {
    /// Holds while no row of this source does.
    Unless(usize),
    /// Holds while a row of this source does.
    While(usize),
    /// Holds always or never.
    Always(Node),
}

/// A term as it is evaluated.
#[derive(Debug)]
pub(crate) enum Operand {
    Literal(Value),
    Var(Var),
    Any,
    Each(Var),
    List(Vec<Operand>),
    Aggregate(Box<Aggregation>),
    Arithmetic(Operation, Box<Operand>, Box<Operand>),
}

/// A count or sum as it is evaluated.
#[derive(Debug)]
pub(crate) struct Aggregation {
    pub(crate) sum: Option<Summand>,
    pub(crate) over: Vec<Var>,
    pub(crate) body: Node,
    /// The source whose tally answers it, and the variables that name the group.
    pub(crate) tally: Option<(usize, Vec<Var>)>,
}

/// What feeds a table: the rows over `columns` that satisfy `body` at each event.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) columns: Vec<Var>,
    pub(crate) body: Node,
    /// How many variables the sentence has.
    pub(crate) vars: usize,
    pub(crate) layout: Layout,
}

/// All sentences as they are evaluated.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The events that are told apart, by kind and name.
    pub(crate) symbols: BTreeMap<String, BTreeMap<String, usize>>,
    pub(crate) sentences: Vec<(Node, Sentence)>,
    pub(crate) sources: Vec<Source>,
}

pub(crate) type Bound = BTreeSet<Var>;

impl Plan {
    /// Adds a sentence; its number.
    ///
    /// - Errors: it cannot be kept up event by event; the plan is as before.
    pub(crate) fn add(&mut self, sentence: Sentence) -> Result<usize, Outside> {
        let (before, given) = (self.sources.len(), sentence.given.iter().copied().collect());
        match self.build(&sentence.formula, &given, sentence.vars) {
            Ok((node, _)) => {
                self.mark(&node, &mut given.clone());
                for index in before..self.sources.len() {
                    // Taken out while it is marked: a source does not look at itself.
                    let body = std::mem::replace(&mut self.sources[index].body, Node::All(Vec::new()));
                    self.mark(&body, &mut Bound::new());
                    self.sources[index].body = body;
                }
                self.sentences.push((node, sentence));
                Ok(self.sentences.len() - 1)
            }
            Err(outside) => {
                self.sources.truncate(before);
                Err(outside)
            }
        }
    }

    /// Which of the events that are told apart one is, if any.
    pub(crate) fn symbol_of(&self, kind: &str, name: &str) -> Option<usize> {
        self.symbols.get(kind)?.get(name).copied()
    }

    fn symbol(&mut self, kind: &str, name: &str) -> usize {
        let next = self.symbols.values().map(BTreeMap::len).sum();
        *self.symbols.entry(kind.to_owned()).or_default().entry(name.to_owned()).or_insert(next)
    }

    /// The node of a formula, evaluated where `bound` is bound, and what is bound after it.
    fn build(&mut self, formula: &Formula, bound: &Bound, vars: usize) -> Result<(Node, Bound), Outside> {
        match formula {
            Formula::Atom(head, args) => {
                let symbols = head.names.iter().map(|name| self.symbol(&head.kind, name)).collect();
                let mut after = bound.clone();
                let mut operands = Vec::new();
                for (path, term) in args {
                    if let Term::Var(var) | Term::Each(var) = term {
                        after.insert(*var);
                    }
                    operands.push((path.clone(), self.operand(term, &after, vars)?));
                }
                Ok((Node::Atom(symbols, operands), after))
            }
            Formula::All(_) => self.all(formula.conjuncts(), bound, vars),
            Formula::Either(parts) => {
                let free = formula.free();
                let mut nodes = Vec::new();
                for part in parts {
                    let (node, after) = self.build(part, bound, vars)?;
                    if !free.is_subset(&after) {
                        return Err(Outside { what: "an alternative that leaves open what another binds" });
                    }
                    nodes.push(node);
                }
                Ok((Node::Either(nodes), bound | &free))
            }
            Formula::Not(body) => {
                if !body.free().is_subset(bound) {
                    return Err(Outside { what: "a negation over what nothing before it binds" });
                }
                let (node, _) = self.build(body, bound, vars)?;
                Ok((Node::Not(Box::new(node)), bound.clone()))
            }
            Formula::Formerly { within, past, body } => {
                let (source, filter) = self.fed(body, Keep::Latest, *within, vars)?;
                let mut after = bound.clone();
                after.extend(&self.sources[source].columns);
                let (filter, after) = self.all(filter, &after, vars)?;
                Ok((Node::Formerly { source, past: *past, filter: Box::new(filter) }, after))
            }
            Formula::Previous { within, body } => self.previous(*within, body, bound, vars),
            Formula::Since { left, within, past, right } => {
                let (anchor, filter) = self.fed(right, Keep::Latest, *within, vars)?;
                if !filter.is_empty() {
                    return Err(Outside { what: "an anchor of `since` filtered by what it does not bind" });
                }
                let mut after = bound.clone();
                after.extend(&self.sources[anchor].columns);
                let mut lefts = Vec::new();
                for part in left.conjuncts() {
                    if !part.free().is_subset(&after) {
                        return Err(Outside { what: "a left side of `since` over what nothing before it binds" });
                    }
                    lefts.push(match part {
                        timeless if timeless.is_timeless() => Left::Always(self.build(timeless, &after, vars)?.0),
                        Formula::Not(body) => Left::Unless(self.fed_alone(body, Keep::Latest, *within, vars)?),
                        other => Left::While(self.fed_alone(other, Keep::Streak, None, vars)?),
                    });
                }
                Ok((Node::Since { anchor, past: *past, left: lefts }, after))
            }
            Formula::Compare(comparison, a, b) => {
                let mut after = bound.clone();
                if *comparison == Comparison::Equal {
                    match (a, b) {
                        (Term::Var(var), other) | (other, Term::Var(var))
                            if !bound.contains(var) && other.free().is_subset(bound) =>
                        {
                            after.insert(*var);
                        }
                        _ => {}
                    }
                }
                let (a, b) = (self.operand(a, &after, vars)?, self.operand(b, &after, vars)?);
                Ok((Node::Compare(*comparison, a, b), after))
            }
            Formula::Exists(var, body) => {
                let (node, mut after) = self.build(body, bound, vars)?;
                if !after.remove(var) {
                    return Err(Outside { what: "a variable that nothing binds" });
                }
                Ok((Node::Exists(Box::new(node)), after))
            }
            Formula::Point(var) => {
                let mut after = bound.clone();
                after.insert(*var);
                Ok((Node::Point(*var), after))
            }
        }
    }

    /// Conjuncts in an order in which each finds bound what it needs: cheap ones first, so that most events fail at once.
    fn all(&mut self, parts: Vec<&Formula>, bound: &Bound, vars: usize) -> Result<(Node, Bound), Outside> {
        let mut left = parts;
        left.sort_by_key(|part| match part {
            Formula::Atom(..) => 0,
            Formula::Compare(..) if part.is_timeless() => 1,
            Formula::Point(_) => 2,
            _ => 3,
        });
        let (mut nodes, mut bound) = (Vec::new(), bound.clone());
        while !left.is_empty() {
            let mut why = None;
            let mut placed = None;
            for (index, part) in left.iter().enumerate() {
                let before = self.sources.len();
                match self.build(part, &bound, vars) {
                    Ok(built) => {
                        placed = Some((index, built));
                        break;
                    }
                    Err(outside) => {
                        self.sources.truncate(before);
                        why.get_or_insert(outside);
                    }
                }
            }
            match (placed, why) {
                (Some((index, (node, after))), _) => {
                    left.remove(index);
                    nodes.push(node);
                    bound = after;
                }
                (None, Some(outside)) => return Err(outside),
                (None, None) => break,
            }
        }
        match nodes.len() {
            1 => Ok((nodes.remove(0), bound)),
            _ => Ok((Node::All(nodes), bound)),
        }
    }

    /// A source for a formula that binds all its variables by itself.
    fn fed_alone(&mut self, body: &Formula, keep: Keep, within: Option<i64>, vars: usize) -> Result<usize, Outside> {
        let (node, after) = self.build(body, &Bound::new(), vars)?;
        let free = body.free();
        if !free.is_subset(&after) || free.len() > 64 {
            return Err(Outside {
                what: "an operator over the past whose body leaves open a value of the later question",
            });
        }
        let layout = Layout { keep, within, rows: true, indexes: BTreeSet::new(), tally: None };
        self.sources.push(Source { columns: free.into_iter().collect(), body: node, vars, layout });
        Ok(self.sources.len() - 1)
    }

    /// A source for a formula, and the comparisons in it that must wait until the question is asked.
    fn fed<'f>(
        &mut self,
        body: &'f Formula,
        keep: Keep,
        within: Option<i64>,
        vars: usize,
    ) -> Result<(usize, Vec<&'f Formula>), Outside> {
        let before = self.sources.len();
        let outside = match self.fed_alone(body, keep, within, vars) {
            Ok(source) => return Ok((source, Vec::new())),
            Err(outside) => outside,
        };
        self.sources.truncate(before);
        // Comparisons of values do not depend on when: `formerly (P(x) && x > c)` is `formerly P(x)` with `x > c` after it.
        let (timeless, rest): (Vec<_>, Vec<_>) = body.conjuncts().into_iter().partition(|part| part.is_timeless());
        if timeless.is_empty() || rest.is_empty() {
            return Err(outside);
        }
        let rest = Formula::All(rest.into_iter().cloned().collect());
        match self.fed_alone(&rest, keep, within, vars) {
            Ok(source) => Ok((source, timeless)),
            Err(_) => {
                self.sources.truncate(before);
                Err(outside)
            }
        }
    }

    /// One point back, everything but atoms can be asked there part by part.
    fn previous(
        &mut self,
        within: Option<i64>,
        body: &Formula,
        bound: &Bound,
        vars: usize,
    ) -> Result<(Node, Bound), Outside> {
        let before = self.sources.len();
        let outside = match self.fed_alone(body, Keep::Last, within, vars) {
            Ok(source) => {
                let mut after = bound.clone();
                after.extend(&self.sources[source].columns);
                return Ok((Node::Previous { source }, after));
            }
            Err(outside) => outside,
        };
        self.sources.truncate(before);
        let back = |body: &Formula| Formula::Previous { within, body: Box::new(body.clone()) };
        let there = back(&Formula::All(Vec::new()));
        let apart = match body {
            Formula::All(_) => Formula::All(body.conjuncts().into_iter().map(back).collect()),
            Formula::Either(parts) => Formula::Either(parts.iter().map(back).collect()),
            Formula::Not(body) => Formula::All(vec![there, Formula::Not(Box::new(back(body)))]),
            Formula::Exists(var, body) => Formula::Exists(*var, Box::new(back(body))),
            timeless if timeless.is_timeless() => Formula::All(vec![there, timeless.clone()]),
            _ => return Err(outside),
        };
        self.build(&apart, bound, vars)
    }

    fn operand(&mut self, term: &Term, bound: &Bound, vars: usize) -> Result<Operand, Outside> {
        Ok(match term {
            Term::Literal(value) => Operand::Literal(value.clone()),
            Term::Var(var) if bound.contains(var) => Operand::Var(*var),
            Term::Each(var) if bound.contains(var) => Operand::Each(*var),
            Term::Var(_) | Term::Each(_) => {
                return Err(Outside { what: "a comparison of what nothing before it binds" });
            }
            Term::Any => Operand::Any,
            Term::List(items) => {
                Operand::List(items.iter().map(|item| self.operand(item, bound, vars)).collect::<Result<_, _>>()?)
            }
            Term::Arithmetic(operation, a, b) => Operand::Arithmetic(
                *operation,
                Box::new(self.operand(a, bound, vars)?),
                Box::new(self.operand(b, bound, vars)?),
            ),
            Term::Aggregate(aggregate) => Operand::Aggregate(Box::new(self.aggregation(aggregate, bound, vars)?)),
        })
    }

    fn aggregation(&mut self, aggregate: &Aggregate, bound: &Bound, vars: usize) -> Result<Aggregation, Outside> {
        let Aggregate { sum, over, body } = aggregate;
        let group: Bound = body.free().into_iter().filter(|var| !over.contains(var)).collect();
        if !group.is_subset(bound) {
            return Err(Outside { what: "a count or sum over what nothing before it binds" });
        }
        let (node, after) = self.build(body, &group, vars)?;
        if !over.iter().all(|var| after.contains(var)) {
            return Err(Outside { what: "a count or sum over a variable that nothing binds" });
        }
        let mut tally = None;
        if let Node::Formerly { source, filter, .. } = &node
            && matches!(&**filter, Node::All(parts) if parts.is_empty())
        {
            let fed = &mut self.sources[*source];
            let place = |var: &Var| fed.columns.iter().position(|column| column == var);
            let places: Option<Vec<usize>> = group.iter().map(place).collect();
            let summed = sum.map(|sum| place(&sum.var).map(|column| (column, sum.strict)));
            if let (Some(places), true) = (places, summed != Some(None)) {
                // Rows that carry the number of their point never come back, so nothing need know them one by one.
                let fresh = fresh(&fed.body, &fed.columns);
                fed.layout.rows = !fresh;
                fed.layout.tally = Some(TallyBy { group: places, sum: summed.flatten() });
                tally = Some((*source, group.into_iter().collect()));
            }
        }
        Ok(Aggregation { sum: *sum, over: over.clone(), body: node, tally })
    }
}

/// Whether every row of a body carries the number of its point.
fn fresh(body: &Node, columns: &[Var]) -> bool {
    match body {
        Node::Point(var) => columns.contains(var),
        Node::All(parts) => parts.iter().any(|part| fresh(part, columns)),
        _ => false,
    }
}

/// The columns that are bound, as bits.
pub(crate) fn mask(columns: &[Var], bound: impl Fn(&Var) -> bool) -> u64 {
    columns.iter().enumerate().filter(|(_, var)| bound(var)).map(|(i, _)| 1 << i).sum()
}

/// All columns, as bits.
pub(crate) fn full(columns: &[Var]) -> u64 {
    mask(columns, |_| true)
}
