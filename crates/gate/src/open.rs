//! The gate of a run, and what it is opened with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use episode::ToolSpec;
use guard::{ActionClass, DataClass, Guard, Packs, Scope};

use crate::digest::{self, NotCanonical};
use crate::receipt::Receipts;
use crate::telemetry::Telemetry;
use crate::{
    ApprovalError, Approvals, Budget, BudgetError, Clock, Counts, Limits, Opening, Prices, Session, Unidentified,
};

/// What a gate is opened with.
#[derive(Debug)]
pub struct Settings {
    /// The rules.
    pub packs: Packs,
    /// What the run is given to work with, for the rules to look at.
    pub scope: Scope,
    /// What calls of tools may use; a tool without a price is a call and nothing else.
    pub prices: Prices,
    /// What all sessions together may use.
    pub limits: Limits,
    /// Where approvals are asked for; without it, a call that needs one waits for ever.
    pub approvals: Option<Approvals>,
    /// Where receipts go.
    pub receipts: Receipts,
    /// Where sessions take their time from.
    pub clock: Clock,
}

/// Why a gate cannot do its work. Whatever it was asked to let through does not run.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The rules do not fit the tools.
    #[error(transparent)]
    Guard(#[from] guard::GuardError),
    /// A budget cannot be made.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// An approval cannot be used.
    #[error(transparent)]
    Approval(#[from] ApprovalError),
    /// A receipt cannot be written.
    #[error(transparent)]
    Receipt(#[from] crate::receipt::ReceiptError),
    /// A value has no digest.
    #[error(transparent)]
    NotCanonical(#[from] NotCanonical),
    /// Nobody can be said to be asking.
    #[error(transparent)]
    Unidentified(#[from] Unidentified),
    /// A permit was brought to another session than the one that gave it.
    #[error("call {number} was let through in another session than the one that is to carry it out")]
    OtherSession {
        /// The number of the call in its own session.
        number: u64,
    },
}

/// What every tool call passes. A copy of the handle is the same gate.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    packs: Packs,
    scope: Scope,
    pub(crate) prices: Prices,
    pub(crate) approvals: Option<Approvals>,
    pub(crate) receipts: Receipts,
    pub(crate) clock: Clock,
    pub(crate) budget: Budget,
    pub(crate) telemetry: Telemetry,
    kits: Mutex<BTreeMap<String, Arc<Kit>>>,
}

/// A list of tools with the rules checked against it.
#[derive(Debug)]
pub(crate) struct Kit {
    pub(crate) guard: Guard,
    pub(crate) rules_digest: String,
    pub(crate) tools: BTreeMap<String, Tool>,
}

/// A tool with the digest of all that is said of it.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) spec: ToolSpec,
    pub(crate) digest: String,
}

impl Gate {
    /// A gate with these rules, budgets and records.
    pub fn open(settings: Settings) -> Gate {
        let Settings { packs, scope, prices, limits, approvals, receipts, clock } = settings;
        let budget = Budget::new("run", limits);
        let (telemetry, kits) = (Telemetry::default(), Mutex::default());
        Gate(Arc::new(Inner { packs, scope, prices, approvals, receipts, clock, budget, telemetry, kits }))
    }

    /// Begins a session.
    ///
    /// - Errors: rules that do not fit its tools; limits above the gate's; nobody who is asking.
    pub fn session(&self, opening: Opening) -> Result<Session, GateError> {
        Session::begin(self.0.clone(), self.0.kit(&opening.tools)?, opening)
    }

    /// What the gate has done so far.
    pub fn counts(&self) -> Counts {
        self.0.telemetry.snapshot()
    }

    /// What all sessions share.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Where approvals are asked for and answered.
    pub fn approvals(&self) -> Option<&Approvals> {
        self.0.approvals.as_ref()
    }

    /// Makes every receipt so far durable. Call it before anything is stored that depends on what tools did.
    pub fn sync(&self) -> Result<(), GateError> {
        Ok(self.0.receipts.sync()?)
    }
}

impl Inner {
    /// The rules for a list of tools, checked against it once.
    fn kit(&self, tools: &[ToolSpec]) -> Result<Arc<Kit>, GateError> {
        /// More different lists than a run has; beyond it they are checked again, which costs time and nothing else.
        const KEPT: usize = 256;
        let key = digest::of(&tools)?;
        let kits = || self.kits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kit) = kits().get(&key) {
            return Ok(kit.clone());
        }
        let kit = Arc::new(Kit::new(&self.packs, &self.scope, tools)?);
        let mut kits = kits();
        if kits.len() >= KEPT {
            kits.clear();
        }
        kits.insert(key, kit.clone());
        Ok(kit)
    }
}

impl Kit {
    fn new(packs: &Packs, scope: &Scope, specs: &[ToolSpec]) -> Result<Kit, GateError> {
        // Refuses two tools of one name, so that none is lost in the table.
        let guard = Guard::new(packs, specs, scope)?;
        let mut tools = BTreeMap::new();
        for spec in specs {
            tools.insert(spec.name.clone(), Tool { spec: spec.clone(), digest: digest::of(spec)? });
        }
        Ok(Kit { rules_digest: guard.rules_digest().to_string(), guard, tools })
    }
}

impl Tool {
    /// Whether no rule can ever let it through, since its class of action or of data is in no table.
    pub(crate) fn is_hopeless(&self) -> bool {
        let ToolSpec { action, data, .. } = &self.spec;
        ActionClass::parse(action).is_none() || data.iter().any(|word| DataClass::parse(word).is_none())
    }
}
