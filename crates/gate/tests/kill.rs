//! A process that runs approved calls is killed at any moment, over and over: each call runs once, or is known to be in
//! doubt and not run again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use episode::random::Stream;
use episode::{ToolCall, ToolSpec};
use guard::{Labels, Origin, Pack, Packs, Principal, Scope};
use ledger::{Log, Signer, Verifier};
use serde_json::json;
use surefoot_gate::receipt::{self, Book, Durable, Fault, Receipts};
use surefoot_gate::{
    Answer, Approvals, Approver, Clock, Consent, Gate, Limits, Opening, Prices, Roster, Ruling, Session, Settings,
};

/// Where the process that is to be killed works; set for it alone.
const FOLDER: &str = "SUREFOOT_GATE_KILL_TEST";

/// How many different calls are approved and run.
const CALLS: u64 = 80;

const RULES: &str = r#"
@id("let-through") @reason("the task needs it")
permit(principal, action, resource);
@id("ask") @effect("ask") @approvals("1 approver within 3600 s") @reason("payments need a word")
forbid(principal, action, resource);
"#;

fn roster() -> Roster {
    Roster { programs: BTreeMap::from([("checker".to_owned(), BTreeSet::new())]), ..Roster::default() }
}

fn signer() -> Signer {
    Signer::from_seed("test/kill", [3; 32]).unwrap()
}

fn session(folder: &Path, life: u64) -> (Gate, Session) {
    let header = "name = \"test\"\nversion = \"1\"\nabout = \"for tests\"\n";
    let log = Log::open(&folder.join("log"), signer()).unwrap();
    let gate = Gate::open(Settings {
        packs: Packs::new([Pack::read(header, RULES, "").unwrap()]).unwrap(),
        scope: Scope::default(),
        prices: Prices::new(),
        limits: Limits::default(),
        approvals: Some(Approvals::open(&folder.join("approvals"), roster()).unwrap()),
        receipts: Receipts::Log(Arc::new(Book::new(log, Durable::Each, None))),
        clock: Clock::machine(),
    });
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let who = Principal { subject: "ada".into(), agent: "payer".into(), run: "run".into(), ..Principal::default() };
    let opening = Opening {
        // Every life of the process is a session of its own: nothing is repeated from a record here.
        name: format!("life {life}"),
        who: Arc::new(who),
        tools: [ToolSpec::new("pay", "pays", "pay", parameters)].into(),
        declared: BTreeSet::new(),
        limits: Limits::default(),
        labels: Labels::of(Origin::User),
    };
    let session = gate.session(opening).unwrap();
    (gate, session)
}

/// What the process does until it is killed: asks, has it approved, runs it, and leaves a line that it ran.
fn work(folder: &Path) {
    let life: u64 = std::env::var("SUREFOOT_GATE_KILL_LIFE").unwrap().parse().unwrap();
    let (gate, mut session) = session(folder, life);
    let approvals = gate.approvals().unwrap();
    let mut effects = File::options().create(true).append(true).open(folder.join("effects")).unwrap();
    let checker = Approver::Program("checker".to_owned());
    let begun: BTreeSet<u64> = begun(folder);
    fs::write(folder.join(format!("life-{life}")), "").unwrap();
    for n in (0..CALLS).filter(|n| !begun.contains(n)) {
        let call = ToolCall::new("pay", json!({ "n": n }));
        let permit = loop {
            match session.propose(&call).unwrap() {
                Ruling::Go(permit) => break permit,
                Ruling::Waiting(pending) => {
                    drop(approvals.answer(&pending.id, &checker, Consent::Grant, pending.asked_ms).unwrap());
                }
                other => panic!("needed a wait or a permit, got {other:?}"),
            }
        };
        session
            .carry_out(permit, |_| {
                // Long enough to be killed in, before the effect and after it.
                std::thread::sleep(Duration::from_millis(1));
                writeln!(effects, "{n}").unwrap();
                effects.sync_data().unwrap();
                std::thread::sleep(Duration::from_millis(1));
                Ok(Answer::new("paid", Labels::default()))
            })
            .unwrap();
    }
    fs::write(folder.join("done"), "").unwrap();
}

/// The calls that have begun, as the journal tells.
fn begun(folder: &Path) -> BTreeSet<u64> {
    let text = fs::read_to_string(folder.join("approvals/journal.jsonl")).unwrap_or_default();
    let lines: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let asked: BTreeMap<&str, u64> = lines
        .iter()
        .filter_map(|l| l.pointer("/entry/asked"))
        .filter_map(|a| Some((a["id"].as_str()?, a["arguments"]["n"].as_u64()?)))
        .collect();
    let ids = lines.iter().filter_map(|l| l.pointer("/entry/started/id")?.as_str());
    ids.map(|id| asked[id]).collect()
}

/// Runs the process, lets it work for a while and kills it; whether it was done before.
fn live(folder: &Path, life: u64, for_ms: u64) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_at_any_moment_each_approved_call_runs_once_or_is_in_doubt", "--nocapture"])
        .env(FOLDER, folder)
        .env("SUREFOOT_GATE_KILL_LIFE", life.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Opening what others left takes as long as it takes; the kill must fall into the work.
    let awake = folder.join(format!("life-{life}"));
    while !awake.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(for_ms));
    // `SIGKILL`, which no code of ours can soften.
    child.kill().unwrap();
    child.wait().unwrap();
    folder.join("done").exists()
}

#[test]
fn killed_at_any_moment_each_approved_call_runs_once_or_is_in_doubt() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return work(&PathBuf::from(folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let draw = Stream::new("kill", &[1]);
    let done = (0..2_000).find(|life| live(folder.path(), *life, draw.below(*life, 60)));
    let lives = done.expect("2,000 lives are enough for 80 calls");
    assert!(lives >= 3, "it was killed {lives} times before it was done, which shows nothing");

    let mut ran: BTreeMap<u64, u64> = BTreeMap::new();
    for line in fs::read_to_string(folder.path().join("effects")).unwrap().lines() {
        *ran.entry(line.parse().unwrap()).or_default() += 1;
    }
    let approvals = Approvals::open(&folder.path().join("approvals"), roster()).unwrap();
    let doubt: BTreeSet<u64> =
        approvals.in_doubt().unwrap().iter().map(|(p, _)| p.arguments["n"].as_u64().unwrap()).collect();
    for n in 0..CALLS {
        match ran.get(&n) {
            Some(1) => {}
            None => assert!(doubt.contains(&n), "call {n} never ran, and nothing says that it may have"),
            Some(times) => panic!("call {n} ran {times} times"),
        }
    }
    // The receipts are sound, and tell of no end for what was killed while it ran, and of nothing else.
    drop(Log::open(&folder.path().join("log"), signer()).unwrap());
    let verifier: Verifier = signer().verifier().clone();
    let (sound, checked) = receipt::verify(&folder.path().join("log"), &verifier, None);
    assert!(sound.is_ok(), "{sound:?}");
    for finding in checked.findings {
        assert!(matches!(finding.fault, Fault::AttemptWithoutOutcome), "{finding}");
    }
}
