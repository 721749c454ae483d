//! Ruling on a call: identity, boundary, guard, budgets, approval, in this order; the first that says no ends it.

use episode::ToolCall;
use guard::{Decision, Hit, Labels, Request, Verdict};
use serde_json::{Map, Value};

use crate::approval::{ApprovalError, Approver, Binding, Found, Standing, Use, Why};
use crate::open::Tool;
use crate::receipt::{Approval, Attempt, Part, Receipt, What, runs};
use crate::ruling::Permitted;
use crate::session::lock;
use crate::story::Story;
use crate::telemetry::bump;
use crate::{Amount, GateError, Hold, Pending, Permit, Price, Refusal, Ruling, Session, digest};

/// How deep arguments may be nested: what is deeper has no digest, and no tool needs it.
const DEEPEST: usize = 64;

/// What an agent is told that was stopped.
pub(crate) const STOPPED: &str = "this session was stopped";

/// A ruling before it is written down.
struct Decided {
    ruled: Decision,
    by: Part,
    /// For the policy.
    reason: String,
    /// For the receipt alone.
    detail: String,
    rules: Vec<Hit>,
    /// The arguments that may run, where rules changed them.
    rewritten: Option<Map<String, Value>>,
    approval: Option<(String, Vec<Approver>)>,
    hold: Option<Hold>,
    pending: Option<Box<Pending>>,
}

impl Decided {
    fn stop(ruled: Decision, by: Part, reason: impl Into<String>) -> Decided {
        Decided {
            ruled,
            by,
            reason: reason.into(),
            detail: String::new(),
            rules: Vec::new(),
            rewritten: None,
            approval: None,
            hold: None,
            pending: None,
        }
    }
}

impl Session {
    /// Rules on a call.
    ///
    /// Every ruling leaves a receipt before it is returned. A call that is let through counts as in flight for budgets and
    /// rules from here on. Proposing a call that waits once more asks what has become of its approval.
    ///
    /// - Errors: a fault of the gate's own; the call does not run then.
    pub fn propose(&mut self, call: &ToolCall) -> Result<Ruling, GateError> {
        let story = self.story.clone();
        let mut story = lock(&story);
        let again = self.waiting.take().is_some_and(|w| w == *call);
        // Asking again is no step of its own: a call that waited leaves the same times as one that did not have to.
        let now_ms = if again { story.now(&self.gate.clock) } else { story.step(&self.gate.clock) };
        self.calls += u64::from(!again);
        let seen = story.labels.clone();
        let mut decided = self.decide(call, &seen, now_ms, &story);
        let arguments = decided.rewritten.as_ref().unwrap_or(&call.arguments).clone();
        let as_run = ToolCall { tool: call.tool.clone(), arguments };
        if runs(decided.ruled)
            && let Err(e) = story.begin(&self.request(&as_run, &seen, now_ms))
        {
            let stop = Decided::stop(Decision::Deny, Part::Guard, "what has happened cannot be remembered");
            decided = Decided { detail: e.to_string(), ..stop };
        }
        self.count(call, &decided, again);
        let attempt = match self.write_attempt(call, &seen, &decided, now_ms, again) {
            Ok(attempt) => attempt,
            Err(e) => {
                if runs(decided.ruled) {
                    story.end(&self.request(&as_run, &seen, now_ms), false);
                }
                return Err(e);
            }
        };
        let refusal = |decided: Decided| Refusal { by: decided.by, reason: decided.reason, rules: decided.rules };
        Ok(match (decided.ruled, self.tool(&call.tool)) {
            (Decision::Allow | Decision::Modify, Some(tool)) => {
                let Decided { rewritten, approval, hold, reason, .. } = decided;
                let hold = hold.expect("`decide` holds back the budget of every call it lets through");
                let note = rewritten.map(|arguments| {
                    let arguments = Value::Object(arguments);
                    format!("note: `{}` runs with {arguments} instead ({reason})", call.tool)
                });
                Ruling::Go(Permit(Box::new(Permitted {
                    of: self.mark.clone(),
                    number: self.calls,
                    tool_digest: tool.digest.clone(),
                    call: as_run,
                    labels: seen,
                    note,
                    approval: approval.map(|(id, _)| id),
                    hold,
                    attempt,
                    repeats: self.repeats,
                })))
            }
            (Decision::Ask, _) => {
                self.waiting = Some(call.clone());
                Ruling::Waiting(decided.pending.expect("`decide` says what a call that must ask waits for"))
            }
            (Decision::Defer, _) => Ruling::Deferred(refusal(decided)),
            _ => Ruling::Denied(refusal(decided)),
        })
    }

    /// A call as rules see it.
    pub(crate) fn request<'a>(&'a self, call: &'a ToolCall, labels: &'a Labels, now_ms: u64) -> Request<'a> {
        let ToolCall { tool, arguments } = call;
        Request { principal: &self.principal, tool, arguments, labels, now_s: now_ms / 1_000 }
    }

    fn decide(&self, call: &ToolCall, seen: &Labels, now_ms: u64, story: &Story) -> Decided {
        if story.stopped {
            return Decided::stop(Decision::Deny, Part::Boundary, STOPPED);
        }
        match self.who.identify(now_ms) {
            Ok(principal) if principal == self.principal => {}
            Ok(_) => {
                let reason = "this agent is not the one its session began with";
                return Decided::stop(Decision::Deny, Part::Identity, reason);
            }
            Err(e) => return Decided::stop(Decision::Deny, Part::Identity, e.to_string()),
        }
        if !digest::is_within_depth(call.arguments.values(), DEEPEST) {
            let reason = format!("its arguments are nested deeper than {DEEPEST}");
            return Decided::stop(Decision::Deny, Part::Boundary, reason);
        }
        let Some(tool) = self.tool(&call.tool) else {
            let reason = format!("there is no tool `{}` here", call.tool);
            return Decided::stop(Decision::Deny, Part::Boundary, reason);
        };
        let verdict = story.weigh(&self.kit.guard, &self.request(call, seen, now_ms));
        let decided = Decided {
            rewritten: (verdict.arguments != call.arguments).then(|| verdict.arguments.clone()),
            rules: verdict.rules.clone(),
            ..Decided::stop(verdict.decision, Part::Guard, verdict.reason())
        };
        if matches!(verdict.decision, Decision::Deny | Decision::Defer) {
            return Decided { rewritten: None, ..decided };
        }
        let arguments = &verdict.arguments;
        let price = self.gate.prices.get(&call.tool);
        let amount = price.map_or(Ok(Amount::CALL), |price: &Price| price.of(arguments));
        let hold = match amount.and_then(|amount| self.budget.hold(amount)) {
            Ok(hold) => hold,
            Err(e) => {
                return Decided { ruled: Decision::Deny, by: Part::Budget, reason: e.to_string(), ..decided };
            }
        };
        if verdict.decision == Decision::Ask {
            return self.seek_approval(tool, &verdict, seen, decided, hold, now_ms);
        }
        Decided { hold: Some(hold), ..decided }
    }

    /// What has become of the approval that a call needs; asks for it when nobody has yet.
    fn seek_approval(
        &self,
        tool: &Tool,
        verdict: &Verdict,
        seen: &Labels,
        decided: Decided,
        hold: Hold,
        now_ms: u64,
    ) -> Decided {
        let call = Binding {
            principal: &self.principal,
            tool: &tool.spec.name,
            tool_digest: &tool.digest,
            arguments: &verdict.arguments,
            labels: seen,
            rules_digest: &self.kit.rules_digest,
        };
        let why = Why {
            reason: verdict.reason(),
            rules: verdict.deciding().map(|r| format!("{}@{}", r.id, r.version)).collect(),
            needs: verdict.needs.clone(),
        };
        // Nobody to ask, or nobody to ask again: the question as it would have been put.
        let unasked = |call: &Binding<'_>, why: Why| {
            let digest = call.digest()?;
            let id = format!("{}-0", &digest[..16]);
            Ok(Found::Not(Box::new(call.request(id, digest, why, now_ms)), Standing::Waiting))
        };
        let found = match &self.gate.approvals {
            None => unasked(&call, why),
            Some(approvals) if self.repeats => {
                let by = Use { session: self.name.clone(), call: self.calls };
                approvals.used(&call, &by).and_then(|used| match used {
                    Some((id, by)) => Ok(Found::Granted { id, by }),
                    None => unasked(&call, why),
                })
            }
            Some(approvals) => approvals.ask(&call, why, now_ms),
        };
        let runs = if decided.rewritten.is_some() { Decision::Modify } else { Decision::Allow };
        let deny = |reason: String| (Decision::Deny, Part::Approval, reason);
        match found {
            Ok(Found::Granted { id, by }) => {
                Decided { ruled: runs, by: Part::Approval, approval: Some((id, by)), hold: Some(hold), ..decided }
            }
            Ok(Found::Not(pending, Standing::Waiting)) => {
                Decided { approval: Some((pending.id.clone(), Vec::new())), pending: Some(pending), ..decided }
            }
            Ok(Found::Not(pending, standing)) => {
                let (ruled, by, reason) = deny(format!("approval `{}` was {standing}", pending.id));
                Decided { ruled, by, reason, approval: Some((pending.id, Vec::new())), ..decided }
            }
            Err(e) => {
                let told = match &e {
                    ApprovalError::TooMany { .. } => e.to_string(),
                    // What is wrong with this machine is not for the policy.
                    _ => "it needs an approval that cannot be asked for now".to_owned(),
                };
                let (ruled, by, reason) = deny(told);
                Decided { ruled, by, reason, detail: e.to_string(), ..decided }
            }
        }
    }

    fn count(&mut self, call: &ToolCall, decided: &Decided, again: bool) {
        let class = self.kit.tools.get(&call.tool).map_or("", |t| &t.spec.action);
        if !again {
            self.drift.count(class, self.calls, !runs(decided.ruled));
        } else if runs(decided.ruled) {
            self.drift.allowed_after_all(class);
        }
        if self.repeats {
            return;
        }
        let known = self.kit.tools.contains_key(&call.tool);
        self.gate.telemetry.count(|c| {
            c.proposed += 1;
            match decided.ruled {
                Decision::Allow => c.let_through += 1,
                Decision::Modify => {
                    c.let_through += 1;
                    c.modified += 1;
                }
                Decision::Ask => c.waiting += 1,
                Decision::Defer => c.deferred += 1,
                Decision::Deny => bump(&mut c.denied_by, decided.by.as_str()),
            }
            // Names that a policy makes up would grow without end.
            bump(&mut c.by_tool, if known { &call.tool } else { "" });
            for rule in &decided.rules {
                bump(&mut c.by_rule, &format!("{}@{}", rule.id, rule.version));
            }
        });
    }

    /// Writes the attempt down; its digest, where it was.
    fn write_attempt(
        &mut self,
        call: &ToolCall,
        seen: &Labels,
        decided: &Decided,
        now_ms: u64,
        again: bool,
    ) -> Result<String, GateError> {
        if self.repeats {
            // What happens again was opened when it happened first.
            self.opened = true;
            return Ok(String::new());
        }
        // Asking again and hearing the same is nothing new.
        if self.gate.receipts.are_off() || (again && decided.ruled == Decision::Ask) {
            return Ok(String::new());
        }
        let tool = self.kit.tools.get(&call.tool);
        let rewritten = decided.rewritten.as_ref();
        let attempt = Attempt {
            tool: call.tool.clone(),
            action: tool.map_or(String::new(), |t| t.spec.action.clone()),
            tool_digest: tool.map_or(String::new(), |t| t.digest.clone()),
            arguments: self.keep(&call.arguments)?,
            rewritten: rewritten.map(|arguments| self.keep(arguments)).transpose()?,
            labels: seen.clone(),
            ruled: decided.ruled,
            by: decided.by,
            reason: match (decided.by, decided.detail.is_empty()) {
                (Part::Guard, _) => String::new(),
                (_, true) => decided.reason.clone(),
                (_, false) => decided.detail.clone(),
            },
            rules: decided.rules.iter().map(Into::into).collect(),
            approval: decided.approval.as_ref().map(|(id, by)| Approval::new(id.clone(), by)),
            left: self.budget.left().exact(),
        };
        let opening = (!self.opened).then(|| self.opening(now_ms));
        let receipt = self.receipt(self.calls, now_ms, What::Attempt(Box::new(attempt)));
        let receipts: Vec<Receipt> = opening.into_iter().chain([receipt]).collect();
        let digest = self.gate.receipts.write(&receipts)?;
        self.opened = true;
        Ok(digest)
    }

    /// The digest of arguments as they are, to the last byte, and the bytes where payloads are kept.
    fn keep(&self, arguments: &Map<String, Value>) -> Result<String, GateError> {
        Ok(self.gate.receipts.keep(Value::Object(arguments.clone()).to_string().as_bytes())?)
    }
}
