//! The coordinator every tool call passes: identity → boundary → guard → budgets → approval → receipt.
//!
//! A [`Gate`] holds a run's rules, budgets, approvals and receipts. An agent gets a [`Session`]: it proposes a call and is
//! told a [`Ruling`]; with a [`Permit`], and with nothing else, it has the call carried out. Nothing in here waits for
//! anybody: a call that needs an approval is proposed again when there may be one. What cannot be decided, written down or
//! understood is denied, or an error after which the call has not run.
//!
//! What is required of the runtime management of an agent's actions (AARM v1.0) and where it is shown, in
//! `session/tests/required.rs` unless said otherwise:
//!
//! | | requirement | shown by |
//! |---|---|---|
//! | R1 | every action is intercepted before it runs | `r1_…`, and the examples of [`Permit`] that must not compile |
//! | R2 | context accumulates | `r2_…`: labels are joined and rules see the history |
//! | R3 | the stated intent weighs on the action | `r3_…`: rules see the purpose |
//! | R4 | allow, deny, modify, step-up, defer | `r4_…` |
//! | R5 | a tamper-evident receipt for each evaluated action | `r5_…`; the log itself in crate `ledger` |
//! | R6 | receipts are bound to the agent's identity | `r6_…`; a signed token has its place in [`Identify`] and is not there yet |
//! | R7 | drift is tracked | `r7_…`: [`Drift`] is told, and no rule sees it yet |
//! | R8 | telemetry can be exported | `r8_…`: [`Counts`]; writing it in some system's format is for whoever exports |
//! | R9 | least-privilege credentials at action time | in part, `r9_…`: only usable tools are advertised; no credentials are made |
//!
//! Not covered: a tool that does something else than its name and class say (that is the jail's part, and the packs'), and a
//! process that runs tools without asking the gate.

mod answer;
mod approval;
mod budget;
mod carry_out;
mod clock;
mod digest;
mod drift;
mod identity;
mod open;
mod propose;
pub mod receipt;
mod ruling;
mod session;
mod story;
mod telemetry;

pub use answer::Answer;
pub use approval::{ApprovalError, Approvals, Approver, Consent, Pending, Roster, Standing, Use};
pub use budget::{Amount, Budget, BudgetError, Hold, Limits, Price, Prices, Resource};
pub use clock::Clock;
pub use digest::NotCanonical;
pub use drift::Drift;
pub use identity::{Identify, Unidentified};
pub use open::{Gate, GateError, Settings};
pub use receipt::Part;
pub use ruling::{CarryOut, Permit, Refusal, Ruling};
pub(crate) use session::CHILD_MARK;
pub use session::{Opening, Session};
pub use telemetry::Counts;
