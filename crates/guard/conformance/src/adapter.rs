//! The guard's temporal engine behind Dogwood's `TemporalEngine`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use dogwood_language::temporal_ast as ast;
use dogwood_language::{Error, Event, EventSignature, PartitionKey, TemporalBindings, TemporalEngine, TemporalField};

use crate::engine::Memory;
use crate::engine::formula::{Aggregate, Comparison, Formula, Head, Operation, Summand, Term, Var};
use crate::engine::plan::{Plan, Sentence};
use crate::engine::solve::Moment;
use crate::engine::survey::Cost;
use crate::engine::value::Value;

/// What became of the leaves an engine was given.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) constant: usize,
    pub(crate) window: usize,
    pub(crate) outside: Vec<&'static str>,
}

/// One engine: a memory for each partition, all of one plan.
pub(crate) struct Engine {
    plan: Plan,
    leaves: Vec<(String, usize, Vec<Given>)>,
    keys: Vec<PartitionKey>,
    memories: BTreeMap<Vec<Option<Value>>, (Memory, Option<Event>)>,
    last: Vec<Option<Value>>,
    pub(crate) tally: Arc<Mutex<Tally>>,
}

/// What a parameter stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Given {
    Context(Vec<String>),
    Scope(Vec<String>),
}

impl Engine {
    pub(crate) fn new(tally: Arc<Mutex<Tally>>) -> Engine {
        Engine {
            plan: Plan::default(),
            leaves: Vec::new(),
            keys: Vec::new(),
            memories: BTreeMap::new(),
            last: Vec::new(),
            tally,
        }
    }
}

struct Point<'e> {
    event: &'e Event,
    name: String,
}

fn point(event: &Event) -> Point<'_> {
    Point { event, name: name(event.namespace(), event.action()) }
}

fn name(namespace: &[String], action: &str) -> String {
    format!("{}::{action:?}", namespace.join("::"))
}

impl Moment for Point<'_> {
    fn kind(&self) -> &str {
        self.event.kind()
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn field(&self, path: &[String]) -> Option<Value> {
        self.event.field_path(path).map(value)
    }
}

fn value(of: &dogwood_language::Value) -> Value {
    use dogwood_language::Value as D;
    match of {
        D::Null => Value::Null,
        D::Bool(b) => Value::Bool(*b),
        D::Int(n) => Value::Int(*n),
        D::Decimal(text) => decimal(text),
        D::String(s) => Value::Text(s.clone()),
        D::Entity { ty, id } => Value::Named(ty.clone(), id.clone()),
        D::Array(items) => Value::List(items.iter().map(value).collect()),
        D::Object(members) => Value::Record(members.iter().map(|(k, v)| (k.clone(), value(v))).collect()),
    }
}

/// A decimal by its value; one that Cedar would refuse is a thing of its own, by its spelling.
fn decimal(text: &str) -> Value {
    let canonical = dogwood_language::partition_value_key(&dogwood_language::Value::Decimal(text.to_owned()));
    Value::Named("\u{0}decimal".to_owned(), canonical)
}

impl TemporalEngine for Engine {
    fn prepare(
        &mut self,
        leaves: &[TemporalField],
        _: &dogwood_language::cedar::Schema,
        _: &[EventSignature],
    ) -> Result<(), Error> {
        for leaf in leaves {
            let (sentence, given) = sentence(&leaf.condition.condition);
            let mut tally = self.tally.lock().expect("one thread");
            match self.plan.add(sentence) {
                Ok(number) => {
                    match self.plan.cost(number) {
                        Cost::Constant => tally.constant += 1,
                        Cost::Window => tally.window += 1,
                    }
                    self.leaves.push((leaf.id.to_string(), number, given));
                }
                Err(outside) => {
                    tally.outside.push(outside.what);
                    // Answered with a fault below: the decision fails closed.
                    self.leaves.push((leaf.id.to_string(), usize::MAX, given));
                }
            }
        }
        Ok(())
    }

    fn observe(&mut self, event: &Event) {
        let key = self.keys.iter().map(|k| event.field_path(&k.field_path).map(value)).collect::<Vec<_>>();
        let (memory, pending) = self.memories.entry(key.clone()).or_insert_with(|| (Memory::new(&self.plan), None));
        if let Some(before) = pending.take() {
            memory
                .observe(&self.plan, &point(&before), before.timestamp())
                .expect("time goes on, nothing is summed strictly");
        }
        *pending = Some(event.clone());
        self.last = key;
    }

    fn evaluate(&mut self) -> Result<TemporalBindings, String> {
        let (memory, pending) = self.memories.get_mut(&self.last).ok_or("no event observed")?;
        let event = pending.as_ref().ok_or("no event observed")?;
        // A stored memory must go on as if it had never been stored.
        let text = serde_json::to_string(&memory.save(&self.plan)).map_err(|e| e.to_string())?;
        let saved = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        *memory = Memory::load(&self.plan, saved).ok_or("a stored memory does not fit")?;
        let mut bindings = TemporalBindings::new();
        for (id, number, given) in &self.leaves {
            if *number == usize::MAX {
                return Err(format!("leaf `{id}` is outside"));
            }
            let given = given
                .iter()
                .map(|given| match given {
                    Given::Context(path) => event.request_context_path(path).map(value),
                    Given::Scope(path) => {
                        path.split_first().and_then(|(r, a)| event.scope_attr(r, a)).as_ref().map(value)
                    }
                })
                .collect();
            let holds =
                memory.ask(&self.plan, *number, given, &point(event), event.timestamp()).map_err(|e| e.to_string())?;
            bindings.insert(id.clone(), holds);
        }
        Ok(bindings)
    }

    fn supports_partitioning(&self) -> bool {
        true
    }

    fn set_partition_keys(&mut self, keys: &[PartitionKey]) {
        self.keys = keys.to_vec();
    }
}

/// Dogwood's condition as a sentence of ours.
fn sentence(condition: &ast::Condition) -> (Sentence, Vec<Given>) {
    let scope = Scope::default();
    let formula = scope.formula(condition, &BTreeMap::new());
    let given = scope.given.borrow();
    let vars = *scope.next.borrow();
    let sentence = Sentence { formula, vars, given: given.values().copied().collect() };
    (sentence, given.keys().cloned().collect())
}

#[derive(Default)]
struct Scope {
    next: Rc<RefCell<usize>>,
    given: Rc<RefCell<BTreeMap<Given, Var>>>,
}

type Names = BTreeMap<String, Var>;

impl Scope {
    fn fresh(&self) -> Var {
        let mut next = self.next.borrow_mut();
        *next += 1;
        *next - 1
    }

    fn given(&self, given: Given) -> Term {
        if let Some(var) = self.given.borrow().get(&given) {
            return Term::Var(*var);
        }
        let var = self.fresh();
        self.given.borrow_mut().insert(given, var);
        Term::Var(var)
    }

    fn formula(&self, condition: &ast::Condition, names: &Names) -> Formula {
        use ast::ConditionKind as K;
        match &condition.kind {
            K::And { left, right } => Formula::All(vec![self.formula(left, names), self.formula(right, names)]),
            K::Or { left, right } => Formula::Either(vec![self.formula(left, names), self.formula(right, names)]),
            K::Not { inner } => Formula::Not(Box::new(self.formula(inner, names))),
            K::Formerly { within, body } => Formula::Formerly {
                within: Some(within.interval().seconds()),
                past: false,
                body: Box::new(self.formula(body, names)),
            },
            K::Previous { within, body } => Formula::Previous {
                within: Some(within.interval().seconds()),
                body: Box::new(self.formula(body, names)),
            },
            K::Since { left, within, right } => Formula::Since {
                left: Box::new(self.formula(left, names)),
                within: Some(within.interval().seconds()),
                past: false,
                right: Box::new(self.formula(right, names)),
            },
            K::Predicate(p) => {
                let head = Head { kind: p.kind.clone(), names: [name(&p.namespace, &p.action)].into() };
                Formula::Atom(head, p.args.iter().map(|a| (a.field_path(), self.term(&a.value, names))).collect())
            }
            K::Comparison { op, left, right } => {
                let comparison = match op {
                    ast::CmpOp::Le => Comparison::LessEqual,
                    ast::CmpOp::Lt => Comparison::Less,
                    ast::CmpOp::Ge => Comparison::GreaterEqual,
                    ast::CmpOp::Gt => Comparison::Greater,
                    ast::CmpOp::Eq => Comparison::Equal,
                    ast::CmpOp::NotEq => Comparison::NotEqual,
                };
                Formula::Compare(comparison, self.term(left, names), self.term(right, names))
            }
            K::Exists { var, body } => {
                let own = self.fresh();
                let mut inner = names.clone();
                inner.insert(var.name().to_owned(), own);
                Formula::Exists(own, Box::new(self.formula(body, &inner)))
            }
            K::Tp { var } => Formula::Point(names[var.name()]),
            K::Call(_) | K::SigilRef { .. } | K::Refine { .. } => unreachable!("macros are expanded before"),
        }
    }

    fn term(&self, term: &ast::Term, names: &Names) -> Term {
        use ast::Term as T;
        match term {
            T::Entity { ty, id } => Term::Literal(Value::Named(ty.clone(), id.clone())),
            T::Integer(n) => Term::Literal(Value::Int(*n)),
            T::Decimal(text) => Term::Literal(decimal(text)),
            T::String(s) => Term::Literal(Value::Text(s.clone())),
            T::Bool(b) => Term::Literal(Value::Bool(*b)),
            T::ContextField(path) => self.given(Given::Context(path.clone())),
            T::ScopeField(path) => self.given(Given::Scope(path.clone())),
            T::Var(name) => Term::Var(names[name.as_str()]),
            T::Wildcard => Term::Any,
            T::Array(items) => Term::List(items.iter().map(|item| self.term(item, names)).collect()),
            T::Agg(aggregate) => {
                let (sum, over, body) = match &aggregate.kind {
                    ast::AggExprKind::Sum { bound_var, for_vars, body } => (Some(bound_var), for_vars, body),
                    ast::AggExprKind::Count { for_vars, body } => (None, for_vars, body),
                    ast::AggExprKind::Call(_) => unreachable!("macros are expanded before"),
                };
                let mut inner = names.clone();
                let over: Vec<Var> = over
                    .iter()
                    .map(|var| {
                        let own = self.fresh();
                        inner.insert(var.name().to_owned(), own);
                        own
                    })
                    .collect();
                let sum = sum.map(|var| Summand { var: inner[var.name()], strict: false });
                Term::Aggregate(Box::new(Aggregate { sum, over, body: self.formula(body, &inner) }))
            }
            T::Arith { op, left, right } => {
                let operation = match op {
                    ast::ArithOp::Add => Operation::Add,
                    ast::ArithOp::Sub => Operation::Subtract,
                    ast::ArithOp::Mul => Operation::Multiply,
                };
                Term::Arithmetic(operation, Box::new(self.term(left, names)), Box::new(self.term(right, names)))
            }
            T::ParamRef(_) | T::BinderRef(_) => unreachable!("macros are expanded before"),
        }
    }
}
