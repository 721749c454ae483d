//! Every attempt's way through the gate.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use agent::Place;
use env::Environment;
use episode::{EpisodeKey, Task, ToolSpec};
use gate::{Gate, GateError, Opening, Session};
use guard::{Labels, Origin, Principal};

use crate::EVALUATION;

/// The gate that all tool calls of a collection pass, and whom attempts act for. A copy of the handle is the same.
#[derive(Debug, Clone, Default)]
pub struct Gates(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Opened later than this is made, since what it records goes into a directory that is made last.
    gate: OnceLock<Gate>,
    principal: Principal,
    limits: gate::Limits,
    penalty: f64,
}

impl Gates {
    /// For environments without tools.
    pub fn none() -> Gates {
        Gates::default()
    }

    /// One gate for all attempts, which [`Gates::open`] gives. Each acts as `principal` and may use `limits`; a call that is
    /// not let through costs `penalty` reward points.
    pub fn new(principal: Principal, limits: gate::Limits, penalty: f64) -> Gates {
        Gates(Arc::new(Inner { gate: OnceLock::new(), principal, limits, penalty }))
    }

    /// Opens them, once.
    pub fn open(&self, gate: Gate) {
        let _ = self.0.gate.set(gate);
    }

    /// Whether a gate's rules fit an environment's tools.
    ///
    /// - Errors: what does not fit.
    pub fn check(&self, gate: &Gate, env: &dyn Environment, task: &Task) -> Result<(), GateError> {
        let key = EpisodeKey { step: 0, task: task.id.clone(), sample: 0 };
        let tools = env.tools(task);
        if tools.is_empty() { Ok(()) } else { self.session(gate, tools, &key).map(|_| ()) }
    }

    /// The gate, once it is open.
    pub fn gate(&self) -> Option<&Gate> {
        self.0.gate.get()
    }

    /// Makes every receipt so far durable: before anything is stored that depends on what tools did.
    pub fn sync(&self) -> Result<(), GateError> {
        self.gate().map_or(Ok(()), Gate::sync)
    }

    pub(crate) fn penalty(&self) -> f64 {
        self.0.penalty
    }

    /// Where an attempt takes place.
    pub(crate) fn place(&self, env: &dyn Environment, task: &Task, key: &EpisodeKey) -> Place {
        let tools = env.tools(task);
        let session = match self.0.gate.get() {
            _ if tools.is_empty() => Ok(None),
            Some(gate) => self.session(gate, tools, key).map(Some).map_err(|e| e.to_string()),
            None => Err(NO_GATE.to_owned()),
        };
        Place { world: env.world(task), session }
    }

    fn session(&self, gate: &Gate, tools: Arc<[ToolSpec]>, key: &EpisodeKey) -> Result<Session, GateError> {
        let step = if key.step == EVALUATION { "evaluation".to_owned() } else { key.step.to_string() };
        gate.session(Opening {
            name: format!("{step}/{}/{}", key.task, key.sample),
            who: Arc::new(self.0.principal.clone()),
            tools,
            declared: BTreeSet::new(),
            limits: self.0.limits,
            labels: Labels::of(Origin::System).join(&Labels::of(Origin::User)),
        })
    }
}

const NO_GATE: &str = "there is no gate for the calls of its tools";
