//! What receipts must add up to, beside being untouched: the log proves that nothing was changed, this that nothing is
//! missing or odd.

use std::collections::BTreeMap;
use std::fmt;

use guard::{Decision, Principal};

use super::{Attempt, Ended, Logged, Outcome, What, runs};

/// Something receipts cannot say if all went as it must.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The entry of the log.
    pub index: u64,
    /// The session.
    pub session: String,
    /// The call.
    pub call: u64,
    /// What is wrong.
    pub fault: Fault,
}

/// The kinds of what can be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A call of a session that never began.
    NotOpened,
    /// A call whose number does not follow.
    Gap {
        /// The number that follows.
        needed: u64,
    },
    /// A call began, and nothing tells of its end: it ran in part, in whole, or not at all.
    AttemptWithoutOutcome,
    /// The end of a call that never began, or ended before.
    OutcomeWithoutAttempt,
    /// The end of a call that was not let through.
    RanUnpermitted,
    /// The end of another call than the one that began.
    OtherAttempt,
    /// A rule asked for an approval, and the call was let through without one.
    NoApproval,
    /// An approval that another call had used.
    ApprovalReplayed {
        /// The approval.
        id: String,
        /// The entry that used it first.
        first: u64,
    },
    /// Earlier than what was written before in the same session.
    TimeBackwards {
        /// The time before, in milliseconds since 1970.
        before_ms: u64,
    },
    /// Other rules than the session began with.
    RulesChanged,
    /// Another principal than the session began with.
    PrincipalChanged,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {}, session `{}`, call {}: ", self.index, self.session, self.call)?;
        match &self.fault {
            Fault::NotOpened => f.write_str("its session never began"),
            Fault::Gap { needed } => write!(f, "needed call {needed} next"),
            Fault::AttemptWithoutOutcome => f.write_str("it was let through and nothing tells of its end"),
            Fault::OutcomeWithoutAttempt => f.write_str("it ended without having begun"),
            Fault::RanUnpermitted => f.write_str("it ended although it was not let through"),
            Fault::OtherAttempt => f.write_str("its end belongs to another attempt"),
            Fault::NoApproval => f.write_str("it was let through without the approval a rule asked for"),
            Fault::ApprovalReplayed { id, first } => write!(f, "approval `{id}` was used by entry {first} before"),
            Fault::TimeBackwards { before_ms } => write!(f, "it is dated before {before_ms}, the time before it"),
            Fault::RulesChanged => f.write_str("the rules are not those its session began with"),
            Fault::PrincipalChanged => f.write_str("the principal is not the one its session began with"),
        }
    }
}

/// Looks at receipts one by one.
#[derive(Debug, Default)]
pub struct Checker {
    sessions: BTreeMap<String, Session>,
    approvals: BTreeMap<String, u64>,
    findings: Vec<Finding>,
    n_receipts: u64,
    n_reopened: u64,
}

#[derive(Debug)]
struct Session {
    principal: Principal,
    rules_digest: String,
    at_ms: u64,
    last_call: u64,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    index: u64,
    digest: String,
    runs: bool,
    approval: Option<String>,
}

/// What the receipts of a log add up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// How many there are.
    pub n_receipts: u64,
    /// How many sessions.
    pub n_sessions: u64,
    /// Sessions that began again under the same name, as they do when a run goes on from before they began.
    pub n_reopened: u64,
    /// What is wrong, in the order of the log.
    pub findings: Vec<Finding>,
}

impl Checker {
    /// Takes in the next receipt of a log.
    pub fn take(&mut self, logged: &Logged) {
        self.n_receipts += 1;
        let receipt = &logged.receipt;
        let mut faults = Vec::new();
        if let What::Opened(_) = &receipt.what {
            let session = Session {
                principal: receipt.principal.clone(),
                rules_digest: receipt.rules_digest.clone(),
                at_ms: receipt.at_ms,
                last_call: 0,
                open: BTreeMap::new(),
            };
            if let Some(before) = self.sessions.insert(receipt.session.clone(), session) {
                self.n_reopened += 1;
                self.unended(&receipt.session, before);
            }
            return;
        }
        match self.sessions.get_mut(&receipt.session) {
            None => faults.push(Fault::NotOpened),
            Some(session) => {
                if receipt.at_ms < session.at_ms {
                    faults.push(Fault::TimeBackwards { before_ms: session.at_ms });
                }
                session.at_ms = session.at_ms.max(receipt.at_ms);
                if receipt.rules_digest != session.rules_digest {
                    faults.push(Fault::RulesChanged);
                }
                if receipt.principal != session.principal {
                    faults.push(Fault::PrincipalChanged);
                }
                match &receipt.what {
                    What::Attempt(attempt) => session.attempt(logged, attempt, &mut faults),
                    What::Outcome(outcome) => {
                        if let Some((id, index)) = session.outcome(logged, outcome, &mut faults) {
                            match self.approvals.get(&id) {
                                Some(first) => faults.push(Fault::ApprovalReplayed { id, first: *first }),
                                None => drop(self.approvals.insert(id, index)),
                            }
                        }
                    }
                    What::Opened(_) => {}
                }
            }
        }
        let (session, call) = (&receipt.session, receipt.call);
        let finding = |fault| Finding { index: logged.index, session: session.clone(), call, fault };
        self.findings.extend(faults.into_iter().map(finding));
    }

    /// What they add up to, when there are no more.
    #[must_use]
    pub fn finish(mut self) -> Checked {
        let n_sessions = self.sessions.len() as u64;
        for (name, session) in std::mem::take(&mut self.sessions) {
            self.unended(&name, session);
        }
        self.findings.sort_by_key(|f| f.index);
        let Checker { n_receipts, n_reopened, findings, .. } = self;
        Checked { n_receipts, n_sessions, n_reopened, findings }
    }

    fn unended(&mut self, name: &str, session: Session) {
        for (call, open) in session.open.into_iter().filter(|(_, open)| open.runs) {
            let fault = Fault::AttemptWithoutOutcome;
            self.findings.push(Finding { index: open.index, session: name.to_owned(), call, fault });
        }
    }
}

impl Session {
    fn attempt(&mut self, logged: &Logged, attempt: &Attempt, faults: &mut Vec<Fault>) {
        let call = logged.receipt.call;
        let runs = runs(attempt.ruled);
        // A call that waited is ruled upon once more when it is proposed again.
        let again = self.open.get(&call).is_some_and(|o| !o.runs) && call == self.last_call;
        if !again && call != self.last_call + 1 {
            faults.push(Fault::Gap { needed: self.last_call + 1 });
        }
        self.last_call = self.last_call.max(call);
        let asked = attempt.rules.iter().any(|r| r.effect == Decision::Ask);
        let approved = attempt.approval.as_ref().is_some_and(|a| !a.granted_by().is_empty());
        if runs && asked && !approved {
            faults.push(Fault::NoApproval);
        }
        let approval = attempt.approval.as_ref().filter(|_| runs).map(|a| a.id.clone());
        self.open.insert(call, Open { index: logged.index, digest: logged.digest.clone(), runs, approval });
    }

    /// The approval that the call used, with the entry of its attempt.
    fn outcome(&mut self, logged: &Logged, outcome: &Outcome, faults: &mut Vec<Fault>) -> Option<(String, u64)> {
        let call = logged.receipt.call;
        let Some(open) = self.open.remove(&call) else {
            faults.push(Fault::OutcomeWithoutAttempt);
            return None;
        };
        if open.digest != outcome.attempt {
            faults.push(Fault::OtherAttempt);
        }
        if !open.runs {
            faults.push(Fault::RanUnpermitted);
        }
        open.approval.filter(|_| outcome.ended != Ended::NotRun).map(|id| (id, open.index))
    }
}
