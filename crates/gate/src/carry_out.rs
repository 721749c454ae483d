//! Running a call that was let through.

use episode::{Cause, ToolCall};
use guard::{Labels, Origin};

use crate::approval::{ApprovalError, Binding, Use};
use crate::propose::STOPPED;
use crate::receipt::{Ended, Outcome, Part, What};
use crate::ruling::Permitted;
use crate::session::lock;
use crate::{Amount, Answer, CarryOut, GateError, Hold, Permit, Refusal, Session};

/// Counts what a call may use as used, unless its end says otherwise: a tool that dies must not make room for another.
struct Running(Option<Hold>);

impl Running {
    fn settle(mut self, used: Amount) {
        if let Some(hold) = self.0.take() {
            hold.settle(used);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            let all = hold.amount();
            hold.settle(all);
        }
    }
}

impl Session {
    /// Runs a call that was let through, once, and writes down how it ended.
    ///
    /// - Holds: an approval is used up in the same step in which the call begins, so that on one approval at most one call
    ///   begins; the answer's labels hold at least its tool and the tool's classes of data, and are joined into everything
    ///   that follows.
    /// - Errors: `Tool` when `run` failed; `Denied` when the approval is no longer good, and then `run` was not called;
    ///   `Gate` when something could not be written down.
    pub fn carry_out(
        &mut self,
        permit: Permit,
        run: impl FnOnce(&ToolCall) -> Result<Answer, Cause>,
    ) -> Result<Answer, CarryOut> {
        self.carry_out_metered(permit, |call| run(call).map(|answer| (answer, None)))
    }

    /// As [`Session::carry_out`], for a tool that knows what it used; time is measured either way.
    pub fn carry_out_metered(
        &mut self,
        permit: Permit,
        run: impl FnOnce(&ToolCall) -> Result<(Answer, Option<Amount>), Cause>,
    ) -> Result<Answer, CarryOut> {
        let permit = self.start(permit)?;
        let Permitted { number, call, labels: seen, approval, hold, attempt, repeats, .. } = *permit.0;
        let began_ms = self.now();
        let most = hold.amount();
        let running = Running(Some(hold));
        let result = run(&call);
        let mut story = lock(&self.story);
        let ended_ms = story.step(&self.gate.clock);
        let said = match &result {
            Ok((_, Some(used))) => Amount { calls: most.calls.max(used.calls), ..*used },
            Ok((_, None)) | Err(_) => most,
        };
        let used = Amount { time_ms: ended_ms.saturating_sub(began_ms), ..said };
        running.settle(used);

        let spec = self.kit.tools.get(&call.tool).map(|t| &t.spec);
        let data = spec.map(|s| s.data.iter().cloned().collect()).unwrap_or_default();
        let own = Labels { sensitivity: data, ..Labels::of(Origin::Tool(call.tool.clone())) };
        let result = result.map(|(answer, _)| Answer { labels: answer.labels.join(&own), ..answer });
        let labels = result.as_ref().map_or(&own, |a| &a.labels).clone();
        story.see(&labels);
        let well = result.as_ref().is_ok_and(|answer| answer.ok);
        story.end(&self.request(&call, &seen, ended_ms), well);
        drop(story);

        let (ended, text) = match &result {
            Ok(answer) if answer.ok => (Ended::Answered, answer.text.clone()),
            Ok(answer) => (Ended::Refused, answer.text.clone()),
            Err(cause) => (Ended::Failed, format!("{}: {}", cause.class, cause.detail)),
        };
        let end = End { number, attempt, ended, text, labels, used, at_ms: ended_ms, repeats };
        self.write_outcome(end)?;
        if let (Some(id), Some(approvals), false) = (&approval, &self.gate.approvals, repeats) {
            approvals.finish(id, ended_ms).map_err(GateError::from)?;
        }
        result.map_err(CarryOut::Tool)
    }

    /// Gives a permit back: the call does not run, its budget is free again, its approval is still good.
    ///
    /// - Errors: a receipt that cannot be written.
    pub fn give_up(&mut self, permit: Permit) -> Result<(), GateError> {
        self.check_own(&permit)?;
        self.not_run(permit, "given up")
    }

    /// Uses up the approval of a call that is about to begin.
    fn start(&mut self, permit: Permit) -> Result<Permit, CarryOut> {
        self.check_own(&permit)?;
        if lock(&self.story).stopped {
            self.not_run(permit, STOPPED)?;
            return Err(CarryOut::Denied(Refusal::new(Part::Boundary, STOPPED)));
        }
        let (Some(id), Some(approvals), false) = (&permit.0.approval, &self.gate.approvals, permit.0.repeats) else {
            return Ok(permit);
        };
        let call = Binding {
            principal: &self.principal,
            tool: &permit.0.call.tool,
            tool_digest: &permit.0.tool_digest,
            arguments: &permit.0.call.arguments,
            labels: &permit.0.labels,
            rules_digest: &self.kit.rules_digest,
        };
        let by = Use { session: self.name.clone(), call: permit.0.number };
        match approvals.start(id, &call, by, self.now()) {
            Ok(()) => {
                self.gate.telemetry.count(|c| c.approvals_used += 1);
                Ok(permit)
            }
            Err(
                e @ (ApprovalError::Closed { .. } | ApprovalError::OtherCall { .. } | ApprovalError::Unknown { .. }),
            ) => {
                let reason = e.to_string();
                self.not_run(permit, &reason)?;
                Err(CarryOut::Denied(Refusal::new(Part::Approval, reason)))
            }
            Err(e) => {
                let error = GateError::from(e);
                // That the approval cannot be used is what must be told; a receipt that fails too changes nothing.
                let _ = self.not_run(permit, &error.to_string());
                Err(error.into())
            }
        }
    }

    fn check_own(&self, permit: &Permit) -> Result<(), GateError> {
        match std::sync::Arc::ptr_eq(&permit.0.of, &self.mark) {
            true => Ok(()),
            false => Err(GateError::OtherSession { number: permit.0.number }),
        }
    }

    fn not_run(&mut self, permit: Permit, reason: &str) -> Result<(), GateError> {
        let Permitted { number, call, labels: seen, attempt, hold, repeats, .. } = *permit.0;
        drop(hold);
        let mut story = lock(&self.story);
        let at_ms = story.step(&self.gate.clock);
        story.end(&self.request(&call, &seen, at_ms), false);
        drop(story);
        self.write_outcome(End {
            number,
            attempt,
            ended: Ended::NotRun,
            text: reason.to_owned(),
            labels: Labels::default(),
            used: Amount::default(),
            at_ms,
            repeats,
        })
    }

    /// The time of the step before; of a shared clock, now.
    fn now(&self) -> u64 {
        lock(&self.story).now(&self.gate.clock)
    }

    fn write_outcome(&self, end: End) -> Result<(), GateError> {
        if end.repeats {
            return Ok(());
        }
        self.gate.telemetry.count(|c| match end.ended {
            Ended::Answered => c.answered += 1,
            Ended::Refused => c.refused += 1,
            Ended::Failed => c.failed += 1,
            Ended::NotRun => c.given_up += 1,
        });
        if self.gate.receipts.are_off() {
            return Ok(());
        }
        let outcome = Outcome {
            attempt: end.attempt,
            ended: end.ended,
            answer: self.gate.receipts.keep(end.text.as_bytes())?,
            labels: end.labels,
            used: end.used.exact(),
            left: self.budget.left().exact(),
        };
        let receipt = self.receipt(end.number, end.at_ms, What::Outcome(Box::new(outcome)));
        self.gate.receipts.write(&[receipt])?;
        Ok(())
    }
}

/// The end of a call, before it is written down.
struct End {
    number: u64,
    attempt: String,
    ended: Ended,
    text: String,
    labels: Labels,
    used: Amount,
    at_ms: u64,
    repeats: bool,
}
