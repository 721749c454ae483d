//! What a rule over history says: first-order logic over past events, with windows, counts and sums.
//!
//! The operators and their meaning are those of the temporal part of the Dogwood policy language (past-only metric
//! first-order temporal logic): a window is closed (`now - then <= within`), `since` needs its left side at every point after
//! the anchor up to now, and a count or sum ranges over a set of distinct rows.
//!
//! - Source: Basin, Klaedtke, Müller, Zălinescu, "Monitoring Metric First-Order Temporal Properties", J. ACM 62(2), 2015.

use std::collections::BTreeSet;

use super::value::Value;

/// A variable, unique within its sentence.
pub(crate) type Var = usize;

/// The way to a field.
pub(crate) type Path = Vec<String>;

/// Something with a value.
#[derive(Debug, Clone)]
pub(crate) enum Term {
    /// Itself.
    Literal(Value),
    /// What a variable holds.
    Var(Var),
    /// Anything: only as an argument of an atom.
    Any,
    /// Each element of a list in turn, or the value itself where it is not a list: only as an argument of an atom.
    Each(Var),
    /// A list of these.
    List(Vec<Term>),
    /// A count or a sum.
    Aggregate(Box<Aggregate>),
    /// Arithmetic over whole numbers that stops at their ends.
    Arithmetic(Operation, Box<Term>, Box<Term>),
}

/// How whole numbers are put together.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
}

/// How two values are compared; other than for being equal, only numbers of one kind are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
}

/// A count of distinct rows, or the sum of one of their columns.
#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    /// The column that is summed; none for a count.
    pub(crate) sum: Option<Summand>,
    /// The columns of a row.
    pub(crate) over: Vec<Var>,
    /// What a row satisfies.
    pub(crate) body: Formula,
}

/// What is summed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summand {
    /// The column.
    pub(crate) var: Var,
    /// Whether a row that is not a number of at least 0 is a fault; otherwise only whole numbers are summed, others left out.
    pub(crate) strict: bool,
}

/// Events of one kind by any of these names.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// `request`, `response`, `error` or another.
    pub(crate) kind: String,
    /// The names.
    pub(crate) names: BTreeSet<String>,
}

/// A statement that holds at a point in time, or does not.
#[derive(Debug, Clone)]
pub(crate) enum Formula {
    /// The event is one of these, and its fields fit.
    Atom(Head, Vec<(Path, Term)>),
    /// All hold; none is always true.
    All(Vec<Formula>),
    /// One holds.
    Either(Vec<Formula>),
    /// It does not hold.
    Not(Box<Formula>),
    /// It held at a point no longer ago than this; `past` leaves out the point itself.
    Formerly { within: Option<i64>, past: bool, body: Box<Formula> },
    /// It held at the point before, no longer ago than this.
    Previous { within: Option<i64>, body: Box<Formula> },
    /// `right` held no longer ago than this, and `left` at each point since; `past` leaves out the point itself.
    Since { left: Box<Formula>, within: Option<i64>, past: bool, right: Box<Formula> },
    /// Two values compare.
    Compare(Comparison, Term, Term),
    /// It holds for some value.
    Exists(Var, Box<Formula>),
    /// The variable is the number of this point.
    Point(Var),
}

impl Formula {
    /// The variables that are not bound within.
    pub(crate) fn free(&self) -> BTreeSet<Var> {
        match self {
            Formula::Atom(_, args) => args.iter().flat_map(|(_, term)| term.free()).collect(),
            Formula::All(parts) | Formula::Either(parts) => parts.iter().flat_map(Formula::free).collect(),
            Formula::Not(body) | Formula::Formerly { body, .. } | Formula::Previous { body, .. } => body.free(),
            Formula::Since { left, right, .. } => &left.free() | &right.free(),
            Formula::Compare(_, a, b) => &a.free() | &b.free(),
            Formula::Exists(var, body) => {
                let mut free = body.free();
                free.remove(var);
                free
            }
            Formula::Point(var) => [*var].into(),
        }
    }

    /// Whether it speaks of values alone, not of the point in time.
    pub(crate) fn is_timeless(&self) -> bool {
        match self {
            Formula::Compare(_, a, b) => a.is_timeless() && b.is_timeless(),
            Formula::All(parts) | Formula::Either(parts) => parts.iter().all(Formula::is_timeless),
            Formula::Not(body) => body.is_timeless(),
            _ => false,
        }
    }

    /// The parts that must all hold.
    pub(crate) fn conjuncts(&self) -> Vec<&Formula> {
        match self {
            Formula::All(parts) => parts.iter().flat_map(Formula::conjuncts).collect(),
            Formula::Not(body) => match &**body {
                Formula::Not(twice) => twice.conjuncts(),
                _ => vec![self],
            },
            other => vec![other],
        }
    }
}

impl Term {
    /// The variables that are not bound within.
    pub(crate) fn free(&self) -> BTreeSet<Var> {
        match self {
            Term::Literal(_) | Term::Any => BTreeSet::new(),
            Term::Var(var) | Term::Each(var) => [*var].into(),
            Term::List(items) => items.iter().flat_map(Term::free).collect(),
            Term::Aggregate(aggregate) => {
                let mut free = aggregate.body.free();
                free.retain(|var| !aggregate.over.contains(var));
                free
            }
            Term::Arithmetic(_, a, b) => &a.free() | &b.free(),
        }
    }

    fn is_timeless(&self) -> bool {
        match self {
            Term::Aggregate(_) => false,
            Term::Arithmetic(_, a, b) => a.is_timeless() && b.is_timeless(),
            _ => true,
        }
    }
}
