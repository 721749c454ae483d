//! One agent's way through the gate.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use episode::{ToolCall, ToolSpec};
use guard::{Labels, Principal};

use crate::identity::Started;
use crate::open::{Inner, Kit, Tool};
use crate::receipt::{Opened, Receipt, VERSION, What};
use crate::story::Story;
use crate::{Amount, Budget, BudgetError, Drift, GateError, Identify, Limits};

/// What comes after a session's name in the name of one begun from it.
pub(crate) const CHILD_MARK: char = '>';

/// Who begins a session, and with what.
#[derive(Debug, Clone)]
pub struct Opening {
    /// Its name, the same when it is taken up again and no other session's: of an episode, its key.
    pub name: String,
    /// Who the agent is and acts for.
    pub who: Arc<dyn Identify>,
    /// The tools within its boundary: what is not in this list does not exist for it.
    pub tools: Arc<[ToolSpec]>,
    /// The classes of action it is meant to need, for [`Session::drift`]; empty when nothing was declared.
    pub declared: BTreeSet<String>,
    /// What it may use, beside what the gate as a whole may.
    pub limits: Limits,
    /// What it has seen before its first call: who wrote its instructions and its task.
    pub labels: Labels,
}

/// One agent's way through the gate: every call it makes is proposed here and carried out here.
///
/// Labels are joined by turn: a call counts as influenced by everything that the session, those it was begun from and
/// those begun from it had seen before. That is coarse and loses nothing. They share one history too, so that no rule over
/// what happened is evaded by handing work on; agents that run at once are ruled upon in the order in which they ask.
#[derive(Debug)]
pub struct Session {
    pub(crate) gate: Arc<Inner>,
    pub(crate) kit: Arc<Kit>,
    pub(crate) name: String,
    parent: Option<String>,
    pub(crate) who: Arc<dyn Identify>,
    pub(crate) principal: Principal,
    ceiling: Option<BTreeSet<String>>,
    limits: Limits,
    pub(crate) budget: Budget,
    pub(crate) story: Arc<Mutex<Story>>,
    /// What permits of this session point to.
    pub(crate) mark: Arc<()>,
    pub(crate) calls: u64,
    pub(crate) waiting: Option<ToolCall>,
    pub(crate) repeats: bool,
    pub(crate) opened: bool,
    pub(crate) drift: Drift,
    n_children: u64,
}

impl Session {
    pub(crate) fn begin(gate: Arc<Inner>, kit: Arc<Kit>, opening: Opening) -> Result<Session, GateError> {
        let Opening { name, who, tools: _, declared, limits, labels } = opening;
        let budget = gate.budget.child(&name, limits)?;
        let principal = who.identify(gate.clock.at(0))?;
        let story = Arc::new(Mutex::new(Story::new(labels, &kit.guard)));
        gate.telemetry.count(|c| c.sessions += 1);
        Ok(Session {
            kit,
            name,
            parent: None,
            who,
            principal,
            ceiling: None,
            limits,
            budget,
            story,
            mark: Arc::new(()),
            calls: 0,
            waiting: None,
            repeats: false,
            opened: false,
            drift: Drift::new(declared),
            n_children: 0,
            gate,
        })
    }

    /// A session for an agent that this one starts: within its tools and its ceiling, drawing on its budget, the chain one
    /// longer, with one history and one set of labels between them.
    ///
    /// Starting an agent is itself a call, of the class `delegate`, that this session must have let through.
    ///
    /// - Errors: limits above those of this session.
    pub fn child(
        &mut self,
        agent: impl Into<String>,
        purpose: impl Into<String>,
        limits: Limits,
    ) -> Result<Session, GateError> {
        let (agent, purpose) = (agent.into(), purpose.into());
        let name = format!("{}{CHILD_MARK}{agent}#{}", self.name, self.n_children);
        let budget = self.budget.child(&name, limits)?;
        let who: Arc<dyn Identify> = Arc::new(Started { by: self.who.clone(), agent, purpose });
        let principal = who.identify(lock(&self.story).now(&self.gate.clock))?;
        self.n_children += 1;
        self.gate.telemetry.count(|c| c.sessions += 1);
        Ok(Session {
            gate: self.gate.clone(),
            kit: self.kit.clone(),
            name,
            parent: Some(self.name.clone()),
            who,
            principal,
            ceiling: self.ceiling.clone(),
            limits,
            budget,
            story: self.story.clone(),
            mark: Arc::new(()),
            calls: 0,
            waiting: None,
            repeats: self.repeats,
            opened: false,
            drift: Drift::new(self.drift.declared.clone()),
            n_children: 0,
        })
    }

    /// Lets through none but these tools from now on: what a skill declares, say. It can be lowered again, never raised.
    pub fn ceiling(&mut self, names: impl IntoIterator<Item = impl Into<String>>) {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        self.ceiling = Some(match self.ceiling.take() {
            Some(before) => &before & &names,
            None => names,
        });
    }

    /// Says whether what follows happened before: the same rulings, no second receipts, nobody asked again.
    ///
    /// With a [`crate::Clock::Logical`] the same calls get the same rulings as long as no limit shared with other sessions
    /// is reached; a call that waited for an approval in vain finds none either.
    pub fn repeats(&mut self, repeats: bool) {
        self.repeats = repeats;
    }

    /// Lets nothing through any more: not in this session, nor in those it was begun from or that were begun from it. What
    /// was let through and has not begun does not begin; an approval that is given later wakes nothing.
    pub fn stop(&mut self) {
        lock(&self.story).stopped = true;
    }

    /// Takes in the labels of what the agent was shown otherwise than by a tool: a message, a memory.
    pub fn saw(&mut self, labels: &Labels) {
        lock(&self.story).see(labels);
    }

    /// Uses up what the agent used beside its calls, such as the tokens it sampled.
    ///
    /// - Errors: `Over` when too little is left, and then nothing is used.
    pub fn spend(&mut self, amount: Amount) -> Result<(), BudgetError> {
        self.budget.spend(amount)
    }

    /// What is left to it, here and above.
    pub fn left(&self) -> Limits {
        self.budget.left()
    }

    /// The labels of all that was seen so far.
    pub fn labels(&self) -> Labels {
        lock(&self.story).labels.clone()
    }

    /// How far it has moved from what it declared.
    pub fn drift(&self) -> &Drift {
        &self.drift
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who it acts for, and as whom.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The digest of the rules in force.
    pub fn rules_digest(&self) -> &str {
        &self.kit.rules_digest
    }

    /// The tools an agent may be told of: within boundary and ceiling, and of classes that rules can let through at all.
    pub fn advertised(&self) -> Vec<&ToolSpec> {
        let within = self.kit.tools.values().filter(|t| self.is_within(&t.spec.name));
        within.filter(|t| !t.is_hopeless()).map(|t| &t.spec).collect()
    }

    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        self.kit.tools.get(name).filter(|_| self.is_within(name))
    }

    fn is_within(&self, name: &str) -> bool {
        self.ceiling.as_ref().is_none_or(|c| c.contains(name))
    }

    pub(crate) fn receipt(&self, call: u64, at_ms: u64, what: What) -> Receipt {
        Receipt {
            v: VERSION,
            session: self.name.clone(),
            call,
            at_ms,
            principal: self.principal.clone(),
            rules_digest: self.kit.rules_digest.clone(),
            what,
        }
    }

    /// The session's own receipt, written with its first call; a session without calls leaves none.
    pub(crate) fn opening(&self, at_ms: u64) -> Receipt {
        let opened = Opened {
            parent: self.parent.clone(),
            tools: self.kit.tools.keys().filter(|name| self.is_within(name)).cloned().collect(),
            declared: self.drift.declared.iter().cloned().collect(),
            limits: self.limits.exact(),
        };
        self.receipt(0, at_ms, What::Opened(opened))
    }
}

/// What a thread that died left of the story is what happened up to then.
pub(crate) fn lock(story: &Mutex<Story>) -> MutexGuard<'_, Story> {
    story.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
