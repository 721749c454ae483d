//! The same calls, the same rulings; many sessions at once.

use super::*;

fn script() -> Vec<ToolCall> {
    (0..60)
        .map(|n| {
            let draw = Stream::new("script", &[n]);
            let tool = ["read", "delete", "pay", "order", "send", "fetch", "made-up"][draw.below(0, 7) as usize];
            let arguments = match tool {
                "order" => json!({"n": draw.below(1, 30)}),
                "pay" => json!({"to": "bob", "cents": draw.below(1, 3)}),
                "send" => json!({"text": format!("text {}", draw.below(1, 5))}),
                "fetch" => json!({"page": "p"}),
                _ => json!({"id": draw.below(1, 9)}),
            };
            call(tool, arguments)
        })
        .collect()
}

#[test]
fn the_same_calls_get_the_same_rulings_and_the_same_bytes_of_receipts() {
    let once = || {
        let folder = tempfile::tempdir().unwrap();
        let (out, verifier) = log_durable(folder.path(), Durable::OnSync);
        let limits = Limits { calls: Some(12), ..Limits::default() };
        let gate = Gate::open(Settings { receipts: out, ..settings() });
        let mut session = gate.session(Opening { limits, ..opening("s") }).unwrap();
        let told: Vec<String> = script().iter().map(|call| told(&mut session, call)).collect();
        drop(session);
        let digests: Vec<String> = receipts(gate, folder.path(), &verifier).into_iter().map(|l| l.digest).collect();
        (told, digests)
    };
    let (a, b) = (once(), once());
    assert_eq!(a, b);
    assert!(a.0.iter().any(|t| t.contains("budget")) && a.1.len() > 60);
}

/// An attempt that is set aside after any number of calls and taken up again: the rest is ruled upon as if it had never
/// been put down, and the log is the same to the byte.
#[test]
fn an_attempt_taken_up_again_leaves_the_log_of_one_that_never_stopped() {
    let script = script();
    let logged = |cut: Option<usize>| {
        let folder = tempfile::tempdir().unwrap();
        let (out, verifier) = log_durable(folder.path(), Durable::OnSync);
        let (gate, mut session) = open(Settings { receipts: out, ..settings() });
        let mut all: Vec<String> = Vec::new();
        match cut {
            None => all.extend(script.iter().map(|call| told(&mut session, call))),
            Some(cut) => {
                all.extend(script[..cut].iter().map(|call| told(&mut session, call)));
                let mut again = gate.session(opening("s")).unwrap();
                again.repeats(true);
                let repeated: Vec<String> = script[..cut].iter().map(|call| told(&mut again, call)).collect();
                assert_eq!(repeated, all);
                again.repeats(false);
                all.extend(script[cut..].iter().map(|call| told(&mut again, call)));
            }
        }
        drop(session);
        let digests: Vec<String> = receipts(gate, folder.path(), &verifier).into_iter().map(|l| l.digest).collect();
        (all, digests)
    };
    let whole = logged(None);
    for cut in [0, 1, 7, 30, 59, 60] {
        assert_eq!(logged(Some(cut)), whole, "set aside after {cut}");
    }
}

#[test]
fn a_call_that_ran_on_an_approval_is_repeated_without_asking_again() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, mut session) = open(Settings { approvals: Some(approvals(folder.path())), ..settings() });
    let pay = call("pay", json!({"to": "bob"}));
    let id = waiting(&mut session, &pay);
    gate.approvals().unwrap().answer(&id, &ada(), Consent::Grant, 0).unwrap();
    run(&mut session, &pay);
    let mut again = gate.session(opening("s")).unwrap();
    again.repeats(true);
    run(&mut again, &pay);
    // A second one that never happened finds no approval to repeat, and asks nobody.
    waiting(&mut again, &pay);
    assert_eq!(gate.approvals().unwrap().pending(0).unwrap().len(), 0);
    again.repeats(false);
    assert_ne!(waiting(&mut again, &pay), id);
}

#[test]
fn without_anybody_to_ask_a_call_that_needs_an_approval_waits_for_ever() {
    let (_, mut session) = open(settings());
    let pay = call("pay", json!({}));
    let id = waiting(&mut session, &pay);
    assert_eq!(waiting(&mut session, &pay), id);
}

/// Many sessions at once on one gate, one log and one budget.
#[test]
fn sessions_side_by_side_share_one_budget_and_one_log() {
    const SESSIONS: u64 = 16;
    let folder = tempfile::tempdir().unwrap();
    let (out, verifier) = log(folder.path());
    let limits = Limits { calls: Some(100), ..Limits::default() };
    let gate = Gate::open(Settings { receipts: out, limits, ..settings() });
    let ran = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for n in 0..SESSIONS {
            let (gate, ran) = (&gate, &ran);
            scope.spawn(move || {
                let mut session = gate.session(opening(&format!("s{n}"))).unwrap();
                for _ in 0..10 {
                    if let Ruling::Go(permit) = session.propose(&call("read", json!({}))).unwrap() {
                        session.carry_out(permit, ok).unwrap();
                        ran.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!((ran.load(Ordering::SeqCst), gate.budget().spent().calls), (100, 100));
    let all = receipts(gate, folder.path(), &verifier);
    let report = report(&all, Filter::default());
    assert_eq!((report.ruled[&Decision::Allow], report.ruled[&Decision::Deny]), (100, 60));
    let checked = receipt::verify(&folder.path().join("log"), &verifier, None).1;
    assert_eq!((checked.n_sessions, checked.findings.len()), (SESSIONS, 0));
}

#[test]
fn sessions_and_permits_go_from_thread_to_thread() {
    fn sendable<T: Send>() {}
    fn shareable<T: Send + Sync>() {}
    sendable::<Session>();
    sendable::<Permit>();
    shareable::<Gate>();
}
