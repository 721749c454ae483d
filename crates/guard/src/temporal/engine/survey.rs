//! Once a plan is built: by which columns rows will be looked for, and what questions cost.

use super::plan::{Bound, Left, Node, Operand, Plan, full, mask};

/// How much a question costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// The same whatever happened.
    Constant,
    /// Grows with the rows in the windows it looks at.
    Window,
}

impl Plan {
    /// How much asking about a sentence, and telling it of an event, costs at most.
    pub(crate) fn cost(&self, sentence: usize) -> Cost {
        self.sentences.get(sentence).map_or(Cost::Constant, |(node, sentence)| {
            self.cost_of(node, &mut sentence.given.iter().copied().collect())
        })
    }

    /// Notes by which columns rows will be looked for, where `bound` is bound; afterwards `bound` is what then is.
    pub(super) fn mark(&mut self, node: &Node, bound: &mut Bound) {
        match node {
            Node::Atom(_, args) => {
                for (_, operand) in args {
                    self.mark_operand(operand, bound);
                }
            }
            Node::All(parts) => parts.iter().for_each(|part| self.mark(part, bound)),
            Node::Either(parts) => {
                let mut after = bound.clone();
                for part in parts {
                    let mut own = bound.clone();
                    self.mark(part, &mut own);
                    after.extend(own);
                }
                *bound = after;
            }
            Node::Not(body) => self.mark(body, &mut bound.clone()),
            Node::Exists(body) => self.mark(body, bound),
            Node::Formerly { source, past, filter } => {
                self.look(*source, !past, bound);
                self.mark(filter, bound);
            }
            Node::Previous { source } => self.look(*source, false, bound),
            Node::Since { anchor, past, left } => {
                self.look(*anchor, !past, bound);
                for part in left {
                    match part {
                        Left::Unless(source) | Left::While(source) => self.look(*source, !past, &mut bound.clone()),
                        Left::Always(node) => self.mark(node, &mut bound.clone()),
                    }
                }
            }
            Node::Compare(_, a, b) => {
                self.mark_operand(a, bound);
                self.mark_operand(b, bound);
            }
            Node::Point(var) => {
                bound.insert(*var);
            }
        }
    }

    fn mark_operand(&mut self, operand: &Operand, bound: &mut Bound) {
        match operand {
            Operand::Var(var) | Operand::Each(var) => {
                bound.insert(*var);
            }
            Operand::List(items) => items.iter().for_each(|item| self.mark_operand(item, bound)),
            Operand::Arithmetic(_, a, b) => {
                self.mark_operand(a, bound);
                self.mark_operand(b, bound);
            }
            Operand::Aggregate(aggregation) => match (&aggregation.tally, &aggregation.body) {
                (Some((source, _)), Node::Formerly { past, .. }) => {
                    if !past {
                        self.mark_body(*source, &mut bound.clone());
                    }
                }
                (_, body) => self.mark(body, &mut bound.clone()),
            },
            Operand::Literal(_) | Operand::Any => {}
        }
    }

    /// Rows of a source are looked for, and perhaps its body at the present point.
    fn look(&mut self, source: usize, now: bool, bound: &mut Bound) {
        if now {
            self.mark_body(source, &mut bound.clone());
        }
        let fed = &mut self.sources[source];
        let mask = mask(&fed.columns, |var| bound.contains(var));
        if mask != 0 && mask != full(&fed.columns) {
            fed.layout.indexes.insert(mask);
        }
        bound.extend(&fed.columns);
    }

    fn mark_body(&mut self, source: usize, bound: &mut Bound) {
        let body = std::mem::replace(&mut self.sources[source].body, Node::All(Vec::new()));
        self.mark(&body, bound);
        self.sources[source].body = body;
    }

    fn cost_of(&self, node: &Node, bound: &mut Bound) -> Cost {
        let rows = |source: usize, bound: &mut Bound| {
            let columns = &self.sources[source].columns;
            let whole = mask(columns, |var| bound.contains(var)) == full(columns);
            bound.extend(columns);
            if whole { Cost::Constant } else { Cost::Window }
        };
        let own = |source: usize| self.cost_of(&self.sources[source].body, &mut Bound::new());
        match node {
            Node::Atom(_, args) => {
                let mut cost = Cost::Constant;
                for (_, operand) in args {
                    cost = cost.max(self.cost_of_operand(operand, bound));
                }
                cost
            }
            Node::All(parts) => {
                let mut cost = Cost::Constant;
                for part in parts {
                    cost = cost.max(self.cost_of(part, bound));
                }
                cost
            }
            Node::Either(parts) => {
                let mut cost = Cost::Constant;
                let mut after = bound.clone();
                for part in parts {
                    let mut own = bound.clone();
                    cost = cost.max(self.cost_of(part, &mut own));
                    after.extend(own);
                }
                *bound = after;
                cost
            }
            Node::Not(body) => self.cost_of(body, &mut bound.clone()),
            Node::Exists(body) => self.cost_of(body, bound),
            Node::Formerly { source, filter, .. } => {
                own(*source).max(rows(*source, bound)).max(self.cost_of(filter, bound))
            }
            // The rows of one event.
            Node::Previous { source } => {
                bound.extend(&self.sources[*source].columns);
                own(*source)
            }
            Node::Since { anchor, left, .. } => {
                let mut cost = own(*anchor).max(rows(*anchor, bound));
                for part in left {
                    cost = cost.max(match part {
                        Left::Unless(source) | Left::While(source) => own(*source),
                        Left::Always(node) => self.cost_of(node, &mut bound.clone()),
                    });
                }
                cost
            }
            Node::Compare(_, a, b) => self.cost_of_operand(a, bound).max(self.cost_of_operand(b, bound)),
            Node::Point(var) => {
                bound.insert(*var);
                Cost::Constant
            }
        }
    }

    fn cost_of_operand(&self, operand: &Operand, bound: &mut Bound) -> Cost {
        match operand {
            Operand::Literal(_) | Operand::Any => Cost::Constant,
            Operand::Var(var) | Operand::Each(var) => {
                bound.insert(*var);
                Cost::Constant
            }
            Operand::List(items) => {
                items.iter().map(|item| self.cost_of_operand(item, bound)).max().unwrap_or(Cost::Constant)
            }
            Operand::Arithmetic(_, a, b) => self.cost_of_operand(a, bound).max(self.cost_of_operand(b, bound)),
            Operand::Aggregate(aggregation) => match &aggregation.tally {
                Some((source, _)) => self.cost_of(&self.sources[*source].body, &mut Bound::new()),
                None => self.cost_of(&aggregation.body, &mut bound.clone()),
            },
        }
    }
}
