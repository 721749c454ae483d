//! `[gate]` and `[tools]` of a run file: the rules that every tool call passes, and how the policy spells calls.

use std::path::Path;
use std::sync::Arc;

use env::{Environments, Split};
use gate::receipt::{Book, Durable, Receipts};
use gate::{Clock, Gate, Prices};
use guard::{Autonomy, Deployment, Pack, Packs, Principal, Scope, Shipped};
use ledger::{LedgerError, Log, Payloads, Signer};
use rollout::Gates;
use serde::{Deserialize, Serialize};
use text::{Dialect, Strictness};

use crate::RunError;

/// The rules that every tool call of an episode passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateSettings {
    /// Packs of rules: a shipped one by name, or a folder, relative to the run file. The first may permit; those after it
    /// can only tighten.
    pub packs: Vec<String>,
    /// What the agent is given to work with, for rules to look at.
    #[serde(skip_serializing_if = "is_unscoped")]
    pub scope: Scope,
    /// Reward points that a call costs which the gate did not let through.
    pub penalty: f64,
    /// What the agent is for, as rules see it.
    pub purpose: String,
    /// Where it runs, as rules see it.
    pub deployment: Deployment,
    /// How closely it is watched, as rules see it.
    pub autonomy: Autonomy,
    /// What one episode may use.
    #[serde(skip_serializing_if = "is_unlimited")]
    pub limits: gate::Limits,
    /// Whether every call leaves receipts in the run directory.
    pub receipts: bool,
}

impl Default for GateSettings {
    fn default() -> Self {
        GateSettings {
            packs: vec![Shipped::Open.name().to_owned()],
            scope: Scope::default(),
            penalty: 0.0,
            purpose: "training".to_owned(),
            deployment: Deployment::default(),
            autonomy: Autonomy::default(),
            limits: gate::Limits::default(),
            receipts: true,
        }
    }
}

fn is_unscoped(scope: &Scope) -> bool {
    *scope == Scope::default()
}

fn is_unlimited(limits: &gate::Limits) -> bool {
    *limits == gate::Limits::default()
}

/// How the policy spells tool calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolSettings {
    /// The dialect; the chat template's own if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// How much is forgiven.
    pub reading: Strictness,
    /// Whether the policy is told of its tools. One that was taught them need not be, and its prompts are shorter.
    pub announce: bool,
}

impl Default for ToolSettings {
    fn default() -> Self {
        ToolSettings { dialect: None, reading: Strictness::default(), announce: true }
    }
}

impl ToolSettings {
    pub(crate) fn is_default(&self) -> bool {
        *self == ToolSettings::default()
    }
}

impl GateSettings {
    pub(crate) fn is_default(&self) -> bool {
        *self == GateSettings::default()
    }

    pub(crate) fn check(&self) -> Result<(), RunError> {
        let refuse = |text: String| Err(RunError::Settings(text));
        let p = self.penalty;
        if !(p.is_finite() && p >= 0.0) {
            return refuse(format!("`gate.penalty` is {p}, needed a number of reward points, at least 0"));
        }
        if self.packs.is_empty() {
            return refuse(
                "`gate.packs` is empty, needed at least 1 pack: without a rule no call is permitted".to_owned(),
            );
        }
        Ok(())
    }

    /// The packs of rules.
    ///
    /// - Errors: [`RunError::Settings`] names the pack and what is wrong with it.
    pub fn packs(&self, base: &Path) -> Result<Packs, RunError> {
        packs(&self.packs, base)
    }

    /// A gate with these rules whose receipts go there.
    ///
    /// Time is counted in calls, so that an attempt that was set aside is ruled upon as before.
    pub(crate) fn gate(&self, base: &Path, receipts: Receipts) -> Result<Gate, RunError> {
        Ok(Gate::open(gate::Settings {
            packs: self.packs(base)?,
            scope: self.scope.clone(),
            prices: Prices::default(),
            limits: gate::Limits::default(),
            approvals: None,
            receipts,
            clock: Clock::Logical { start_ms: 0, tick_ms: 1000 },
        }))
    }

    /// Whom the run's attempts act as, and what each may use.
    pub(crate) fn gates(&self) -> Gates {
        let principal = Principal {
            subject: "surefoot".to_owned(),
            agent: "policy".to_owned(),
            run: "run".to_owned(),
            purpose: self.purpose.clone(),
            deployment: self.deployment,
            autonomy: self.autonomy,
            chain: Vec::new(),
        };
        Gates::new(principal, self.limits, self.penalty)
    }

    /// Gates that leave no receipts, open where an environment has tools.
    ///
    /// - Errors: [`RunError::Settings`] when the rules do not fit the tools.
    pub fn gates_for(&self, environments: &Environments, base: &Path) -> Result<Gates, RunError> {
        let (gates, gate) = (self.gates(), self.gate(base, Receipts::Off)?);
        if self.fits(&gate, environments, usize::MAX)? {
            gates.open(gate);
        }
        Ok(gates)
    }

    /// Whether the rules fit the tools of some environments; true when there are tools at all.
    ///
    /// - Errors: [`RunError::Settings`] names what does not fit.
    pub(crate) fn fits(&self, gate: &Gate, environments: &Environments, turns: usize) -> Result<bool, RunError> {
        let gates = self.gates();
        let mut any = false;
        for (env, _) in environments.iter() {
            let tasks = [Split::Train, Split::HeldOut].map(|split| env.tasks(split).first());
            for task in tasks.into_iter().flatten().take(1) {
                if env.tools(task).is_empty() {
                    continue;
                }
                any = true;
                let refuse =
                    |text: String| RunError::Settings(format!("environment `{}` has tools: {text}", env.name()));
                gates.check(gate, env.as_ref(), task).map_err(|e| refuse(format!("the rules do not fit them: {e}")))?;
                if turns < 2 {
                    return Err(refuse(format!("`rollout.turns` is {turns}, needed at least 2")));
                }
            }
        }
        Ok(any)
    }
}

/// The log of receipts in a folder, with its key beside it.
///
/// - Errors: [`RunError::Gate`].
pub fn receipts(folder: &Path, durable: Durable) -> Result<Receipts, RunError> {
    std::fs::create_dir_all(folder).map_err(|source| RunError::Io { path: folder.to_owned(), source })?;
    let failed = |e: LedgerError| RunError::Gate(e.to_string());
    let signer = Signer::read_or_create(&folder.join(KEY), LOG_NAME).map_err(failed)?;
    let public = signer.verifier().to_string();
    let path = folder.join(PUBLIC_KEY);
    std::fs::write(&path, public + "\n").map_err(|source| RunError::Io { path, source })?;
    let payloads = match durable {
        Durable::Each => Some(Payloads::open(&folder.join(PAYLOADS), Default::default()).map_err(failed)?),
        Durable::OnSync => None,
    };
    let log = Log::open(&folder.join(LOG), signer).map_err(failed)?;
    Ok(Receipts::Log(Arc::new(Book::new(log, durable, payloads))))
}

/// The name that keys and logs of receipts bear.
const LOG_NAME: &str = "surefoot/receipts";
/// The private key, its public half, the log and the payloads in a folder of receipts.
const KEY: &str = "key";
/// The public half.
pub const PUBLIC_KEY: &str = "key.pub";
/// The log.
pub const LOG: &str = "log";
const PAYLOADS: &str = "payloads";

/// Packs of rules by name or folder, the first of which may permit.
///
/// A folder holds `pack.toml`, `rules.cedar` and, for rules over what happened before, `history.toml`.
///
/// - Errors: [`RunError::Settings`] names the pack and what is wrong with it.
pub fn packs(names: &[String], base: &Path) -> Result<Packs, RunError> {
    let mut packs: Option<Packs> = None;
    for name in names {
        let refuse = |reason: String| RunError::Settings(format!("cannot use the rules `{name}`: {reason}"));
        let pack = match Shipped::named(name) {
            Some(shipped) => shipped.pack().map_err(|e| refuse(e.to_string()))?,
            None => read(name, &base.join(name))?,
        };
        packs = Some(match packs {
            None => Packs::new([pack]).map_err(|e| refuse(e.to_string()))?,
            Some(packs) => packs.tighten(pack).map_err(|e| refuse(e.to_string()))?,
        });
    }
    packs.ok_or_else(|| RunError::Settings("needed at least 1 pack of rules, got 0".to_owned()))
}

fn read(name: &str, folder: &Path) -> Result<Pack, RunError> {
    let refuse = |reason: String| RunError::Settings(format!("cannot use the rules `{name}`: {reason}"));
    if !folder.is_dir() {
        let shipped: Vec<String> = Shipped::ALL.iter().map(|pack| format!("`{}`", pack.name())).collect();
        return Err(refuse(format!("it is neither one of {} nor a folder", shipped.join(", "))));
    }
    let text = |file: &str, needed: bool| {
        let path = folder.join(file);
        match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !needed => Ok(String::new()),
            other => other.map_err(|source| RunError::Io { path, source }),
        }
    };
    let (header, rules, history) = (text("pack.toml", true)?, text("rules.cedar", true)?, text("history.toml", false)?);
    Pack::read(&header, &rules, &history).map_err(|e| refuse(e.to_string()))
}
