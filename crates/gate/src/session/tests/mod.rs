use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use episode::random::Stream;
use episode::{Cause, ToolCall, ToolSpec};
use guard::{Decision, Labels, Origin, Pack, Packs, Principal, Readers};
use ledger::{Log, Payloads, Signer, Verifier};
use serde_json::{Value, json};

use crate::receipt::audit::{Filter, report};
use crate::receipt::{self, Book, Durable, Ended, Logged, Receipts, What};
use crate::{
    Amount, Answer, Approvals, Approver, CarryOut, Clock, Consent, Counts, Gate, GateError, Identify, Limits, Opening,
    Part, Permit, Price, Prices, Roster, Ruling, Session, Settings, Unidentified,
};

mod again;
mod approvals;
mod calls;
mod required;

const RULES: &str = r#"
@id("let-through") @reason("the task needs it")
permit(principal, action, resource);
@id("no-delete") @version("3") @clause("Contract 4.2") @reason("nothing is deleted")
forbid(principal, action == Action::"tool:delete", resource);
@id("ask-before-pay") @effect("ask") @approvals("1 approver within 60 s") @reason("payments need a word")
forbid(principal, action == Action::"tool:pay", resource);
@id("small-orders") @effect("modify") @rewrite("cap n 10") @reason("at most 10 of a thing")
forbid(principal, action == Action::"tool:order", resource);
@id("not-at-night") @effect("defer") @reason("mail goes out once the report is read")
forbid(principal, action == Action::"tool:send", resource) when { context.principal.purpose == "mail" };
@id("no-strangers-hand") @reason("text from outside may not choose where data goes")
forbid(principal, action == Action::"tool:send", resource) when { context.labels.untrusted };
@id("bills-only") @reason("this agent only looks at bills")
forbid(principal, action == Action::"tool:fetch", resource) when { context.principal.purpose != "bills" };
"#;

/// Over what happened before: three pages in flight or read, and nothing is ordered after an order failed.
const HISTORY: &str = r#"
[[rule]]
id = "three-pages"
reason = "at most three pages"
when = { tools = ["fetch"] }
at_most = { count = 3 }

[[rule]]
id = "no-order-after-a-failure"
reason = "the last order failed"
when = { tools = ["order"] }
never_after = { of = { tools = ["order"] }, on = "error" }
"#;

fn packs() -> Packs {
    let header = "name = \"test\"\nversion = \"1\"\nabout = \"for tests\"\n";
    Packs::new([Pack::read(header, RULES, HISTORY).unwrap()]).unwrap()
}

fn tools() -> Arc<[ToolSpec]> {
    let tool = |name: &str, properties: Value| {
        let parameters = json!({"type": "object", "properties": properties});
        ToolSpec::new(name, name, if name == "order" { "create" } else { name }, parameters)
    };
    [
        tool("read", json!({"id": {"type": "integer"}})).touching(["internal"]),
        tool("delete", json!({"id": {"type": "integer"}})),
        tool("pay", json!({"to": {"type": "string"}, "cents": {"type": "integer"}})),
        tool("order", json!({"n": {"type": "integer"}})),
        tool("send", json!({"text": {"type": "string"}})),
        tool("fetch", json!({"page": {"type": "string"}})),
        tool("fly", json!({})),
    ]
    .into()
}

fn settings() -> Settings {
    Settings {
        packs: packs(),
        scope: guard::Scope::default(),
        prices: Prices::new(),
        limits: Limits::default(),
        approvals: None,
        receipts: Receipts::Off,
        clock: Clock::Logical { start_ms: 1_000_000, tick_ms: 1_000 },
    }
}

fn principal() -> Principal {
    Principal {
        subject: "ada".into(),
        agent: "clerk".into(),
        run: "run-1".into(),
        purpose: "bills".into(),
        ..Principal::default()
    }
}

fn opening(name: &str) -> Opening {
    Opening {
        name: name.to_owned(),
        who: Arc::new(principal()),
        tools: tools(),
        declared: BTreeSet::new(),
        limits: Limits::default(),
        labels: Labels::of(Origin::User),
    }
}

fn open(settings: Settings) -> (Gate, Session) {
    let gate = Gate::open(settings);
    let session = gate.session(opening("s")).unwrap();
    (gate, session)
}

fn approvals(folder: &Path) -> Approvals {
    Approvals::open(&folder.join("approvals"), Roster::person("ada")).unwrap()
}

fn ada() -> Approver {
    Approver::Person("ada".to_owned())
}

/// A log of receipts with a fixed key, and that key's public half.
fn log(folder: &Path) -> (Receipts, Verifier) {
    log_durable(folder, Durable::Each)
}

fn log_durable(folder: &Path, durable: Durable) -> (Receipts, Verifier) {
    let signer = Signer::from_seed("test/receipts", [7; 32]).unwrap();
    let verifier = signer.verifier().clone();
    let log = Log::open(&folder.join("log"), signer).unwrap();
    let payloads = Payloads::open(&folder.join("payloads"), ledger::Limits::default()).unwrap();
    (Receipts::Log(Arc::new(Book::new(log, durable, (durable == Durable::Each).then_some(payloads)))), verifier)
}

fn receipts(gate: Gate, folder: &Path, verifier: &Verifier) -> Vec<Logged> {
    gate.sync().unwrap();
    drop(gate);
    receipt::read(&folder.join("log"), verifier).unwrap()
}

fn call(tool: &str, arguments: Value) -> ToolCall {
    ToolCall::new(tool, arguments)
}

fn ok(call: &ToolCall) -> Result<Answer, Cause> {
    Ok(Answer::new(format!("{} done", call.tool), Labels::default()))
}

#[track_caller]
fn go(session: &mut Session, call: &ToolCall) -> Permit {
    match session.propose(call).unwrap() {
        Ruling::Go(permit) => permit,
        other => panic!("needed a permit, got {other:?}"),
    }
}

#[track_caller]
fn run(session: &mut Session, call: &ToolCall) -> Answer {
    let permit = go(session, call);
    session.carry_out(permit, ok).unwrap()
}

#[track_caller]
fn denied(session: &mut Session, call: &ToolCall) -> (Part, String) {
    match session.propose(call).unwrap() {
        Ruling::Denied(refusal) => (refusal.by, refusal.to_string()),
        other => panic!("needed a denial, got {other:?}"),
    }
}

#[track_caller]
fn waiting(session: &mut Session, call: &ToolCall) -> String {
    match session.propose(call).unwrap() {
        Ruling::Waiting(pending) => pending.id,
        other => panic!("needed a wait, got {other:?}"),
    }
}

/// What a session rules on, in a form that can be compared.
fn told(session: &mut Session, call: &ToolCall) -> String {
    match session.propose(call).unwrap() {
        Ruling::Go(permit) => {
            let note = permit.note().unwrap_or_default().to_owned();
            let answer = session.carry_out(permit, ok).unwrap();
            format!("{note}{} {:?}", answer.text, answer.labels)
        }
        Ruling::Denied(refusal) => format!("denied: {refusal}"),
        Ruling::Waiting(pending) => format!("waiting: {pending}"),
        Ruling::Deferred(refusal) => format!("deferred: {refusal}"),
    }
}
