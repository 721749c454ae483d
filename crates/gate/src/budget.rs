//! Budgets in a tree: whatever is taken from one is taken from all above it, so no number of children, threads or restarts
//! of a child can use more than its parent has.
//!
//! What a call may use is held back before it runs and settled afterwards, so calls in flight count. A hold that is
//! dropped gives everything back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What something uses.
///
/// - Units: tokens sampled for it, tool calls, millionths of the run's currency, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Amount {
    /// Tokens.
    pub tokens: u64,
    /// Tool calls.
    pub calls: u64,
    /// Money, in millionths.
    pub money: u64,
    /// Time, in milliseconds.
    pub time_ms: u64,
}

impl Amount {
    /// One call and nothing else.
    pub const CALL: Amount = Amount { tokens: 0, calls: 1, money: 0, time_ms: 0 };

    /// Both together; more than fits stays at the most that does, which no limit but none at all lets through.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        self.each(other, u64::saturating_add)
    }

    /// What is left of the first; never below nothing.
    #[must_use]
    pub fn less(self, other: Amount) -> Amount {
        self.each(other, u64::saturating_sub)
    }

    /// What receipts can hold of it.
    pub(crate) fn exact(self) -> Amount {
        const MOST: u64 = crate::digest::LARGEST;
        self.each(Amount { tokens: MOST, calls: MOST, money: MOST, time_ms: MOST }, u64::min)
    }

    fn each(self, other: Amount, f: fn(u64, u64) -> u64) -> Amount {
        Amount {
            tokens: f(self.tokens, other.tokens),
            calls: f(self.calls, other.calls),
            money: f(self.money, other.money),
            time_ms: f(self.time_ms, other.time_ms),
        }
    }

    fn parts(self) -> [(Resource, u64); 4] {
        use Resource::{Calls, Money, Time, Tokens};
        [(Tokens, self.tokens), (Calls, self.calls), (Money, self.money), (Time, self.time_ms)]
    }
}

/// The most of each; none is no limit of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Money, in millionths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money: Option<u64>,
    /// Time, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
}

impl Limits {
    fn parts(self) -> [Option<u64>; 4] {
        [self.tokens, self.calls, self.money, self.time_ms]
    }

    /// The smaller of each.
    #[must_use]
    pub fn and(self, other: Limits) -> Limits {
        let least = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Limits {
            tokens: least(self.tokens, other.tokens),
            calls: least(self.calls, other.calls),
            money: least(self.money, other.money),
            time_ms: least(self.time_ms, other.time_ms),
        }
    }

    /// What receipts can hold of it.
    pub(crate) fn exact(self) -> Limits {
        let most = |limit: Option<u64>| limit.map(|l| l.min(crate::digest::LARGEST));
        let Limits { tokens, calls, money, time_ms } = self;
        Limits { tokens: most(tokens), calls: most(calls), money: most(money), time_ms: most(time_ms) }
    }

    fn without(self, used: Amount) -> Limits {
        let less = |limit: Option<u64>, used: u64| limit.map(|l| l.saturating_sub(used));
        Limits {
            tokens: less(self.tokens, used.tokens),
            calls: less(self.calls, used.calls),
            money: less(self.money, used.money),
            time_ms: less(self.time_ms, used.time_ms),
        }
    }
}

/// What a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Tokens.
    Tokens,
    /// Tool calls.
    Calls,
    /// Money.
    Money,
    /// Time.
    Time,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Tokens => "tokens",
            Resource::Calls => "calls",
            Resource::Money => "millionths of money",
            Resource::Time => "ms",
        })
    }
}

/// Why a budget gives nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// It would use more than is left.
    #[error("budget `{budget}` has {left} {what} left, needed {needed}")]
    Over {
        /// The first budget, from the top, that would be exceeded.
        budget: String,
        /// Of what.
        what: Resource,
        /// How much was asked for.
        needed: u64,
        /// How much is neither used nor held back.
        left: u64,
    },
    /// A child may not be given more than its parent has in all.
    #[error("budget `{budget}` cannot be given {got} {what}: needed at most the {most} of `{parent}`")]
    AboveParent {
        /// The child.
        budget: String,
        /// The budget above it whose limit it would pass.
        parent: String,
        /// Of what.
        what: Resource,
        /// What it was to be given.
        got: u64,
        /// The limit above.
        most: u64,
    },
    /// What a call costs cannot be told from its arguments.
    #[error("argument `{argument}` gives no cost: needed an amount of money with at most 6 decimals, got `{got}`")]
    Cost {
        /// The argument.
        argument: String,
        /// What it holds.
        got: String,
    },
}

/// One budget of the tree; a copy of the handle is the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Node>);

#[derive(Debug)]
struct Node {
    name: String,
    limits: Limits,
    parent: Option<Budget>,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    spent: Amount,
    held: Amount,
}

impl Budget {
    /// The top of a tree.
    pub fn new(name: impl Into<String>, limits: Limits) -> Budget {
        Budget(Arc::new(Node { name: name.into(), limits, parent: None, state: Mutex::default() }))
    }

    /// A budget within this one.
    ///
    /// - Holds: what it uses, all above it use too.
    /// - Errors: `AboveParent` for a limit that could never be reached.
    pub fn child(&self, name: impl Into<String>, limits: Limits) -> Result<Budget, BudgetError> {
        let name = name.into();
        for above in self.upwards() {
            let parts = limits.parts().into_iter().zip(above.limits.parts()).zip(Amount::default().parts());
            for ((got, most), (what, _)) in parts {
                if let (Some(got), Some(most)) = (got, most)
                    && got > most
                {
                    let parent = above.name.clone();
                    return Err(BudgetError::AboveParent { budget: name, parent, what, got, most });
                }
            }
        }
        Ok(Budget(Arc::new(Node { name, limits, parent: Some(self.clone()), state: Mutex::default() })))
    }

    /// Holds back an amount from this budget and all above it, or from none.
    ///
    /// - Errors: `Over` names the topmost budget that has too little left.
    pub fn hold(&self, amount: Amount) -> Result<Hold, BudgetError> {
        let nodes = self.downwards();
        let mut states = lock(&nodes);
        for (node, state) in nodes.iter().zip(&states) {
            let used = state.spent.plus(state.held);
            for ((needed, limit), used) in amount.parts().into_iter().zip(node.limits.parts()).zip(used.parts()) {
                let left = limit.map_or(u64::MAX, |l| l.saturating_sub(used.1));
                if needed.1 > left {
                    let (what, needed) = needed;
                    return Err(BudgetError::Over { budget: node.name.clone(), what, needed, left });
                }
            }
        }
        for state in &mut states {
            state.held = state.held.plus(amount);
        }
        drop(states);
        Ok(Hold { budget: self.clone(), amount })
    }

    /// Uses an amount at once, or nothing.
    ///
    /// - Errors: as [`Budget::hold`].
    pub fn spend(&self, amount: Amount) -> Result<(), BudgetError> {
        self.hold(amount)?.settle(amount);
        Ok(())
    }

    /// What was used.
    pub fn spent(&self) -> Amount {
        lock(&[&*self.0])[0].spent
    }

    /// What is neither used nor held back, here and in every budget above.
    pub fn left(&self) -> Limits {
        let nodes = self.downwards();
        let states = lock(&nodes);
        let left = nodes.iter().zip(&states).map(|(n, s)| n.limits.without(s.spent.plus(s.held)));
        left.fold(Limits::default(), Limits::and)
    }

    fn upwards(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(&*self.0), |node| node.parent.as_ref().map(|p| &*p.0))
    }

    /// Every thread locks from the top down, so no two can wait for each other.
    fn downwards(&self) -> Vec<&Node> {
        let mut nodes: Vec<&Node> = self.upwards().collect();
        nodes.reverse();
        nodes
    }
}

/// A thread that died while counting left whole numbers behind: every change is one assignment.
fn lock<'a>(nodes: &[&'a Node]) -> Vec<MutexGuard<'a, State>> {
    nodes.iter().map(|n| n.state.lock().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// An amount held back for a call in flight.
#[derive(Debug)]
#[must_use = "what is held back is given back when this is dropped"]
pub struct Hold {
    budget: Budget,
    amount: Amount,
}

impl Hold {
    /// How much.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// Counts what was really used and gives back the rest.
    ///
    /// - Holds: more than was held back is counted in full, here and above, so that a limit that was passed lets nothing
    ///   more through.
    pub fn settle(mut self, used: Amount) {
        self.release(used);
        self.amount = Amount::default();
    }

    fn release(&self, used: Amount) {
        for mut state in lock(&self.budget.downwards()) {
            state.held = state.held.less(self.amount);
            state.spent = state.spent.plus(used);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.amount != Amount::default() {
            self.release(Amount::default());
        }
    }
}

/// What a tool's call may use, beside being a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Price {
    /// Whatever the arguments are.
    pub fixed: Amount,
    /// The argument that holds an amount of money the call moves: a number or a text such as `12.50`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money_argument: Option<String>,
}

impl Price {
    /// What one call with these arguments may use.
    ///
    /// - Errors: `Cost` when the argument is missing, negative, or finer than a millionth.
    pub fn of(&self, arguments: &serde_json::Map<String, Value>) -> Result<Amount, BudgetError> {
        let mut amount = Amount::CALL.plus(self.fixed);
        if let Some(argument) = &self.money_argument {
            let value = arguments.get(argument).unwrap_or(&Value::Null);
            let money = millionths(value)
                .ok_or_else(|| BudgetError::Cost { argument: argument.clone(), got: value.to_string() })?;
            amount.money = amount.money.saturating_add(money);
        }
        Ok(amount)
    }
}

/// The prices of tools by name.
pub type Prices = BTreeMap<String, Price>;

/// An amount of money from JSON in millionths, exact or not at all; never through a binary fraction.
fn millionths(value: &Value) -> Option<u64> {
    let text = match value {
        // The shortest text that reads back as the same number: what was typed, up to 15 digits.
        Value::Number(n) => n.to_string(),
        Value::String(s) => s.clone(),
        _ => return None,
    };
    let (whole, part) = text.split_once('.').unwrap_or((&text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let part = part.trim_end_matches('0');
    if !digits(whole) || part.len() > 6 || !(part.is_empty() || digits(part)) || text.ends_with('.') {
        return None;
    }
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(part)
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
