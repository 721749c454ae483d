//! Approvals, from the side of a session.

use super::*;

#[test]
fn a_call_waits_without_a_thread_and_runs_once_when_its_answer_came_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let pay = call("pay", json!({"to": "bob", "cents": 5}));
    let id = {
        let (_, mut session) = open(Settings { approvals: Some(approvals(folder.path())), ..settings() });
        let id = waiting(&mut session, &pay);
        assert_eq!(waiting(&mut session, &pay), id);
        id
    };
    // Another process answers; the agent's own comes back after a restart.
    approvals(folder.path()).answer(&id, &ada(), Consent::Grant, 1_010_000).unwrap();
    let (_, mut session) = open(Settings { approvals: Some(approvals(folder.path())), ..settings() });
    let ran = Cell::new(0);
    let permit = go(&mut session, &pay);
    let tool = |call: &ToolCall| {
        ran.set(ran.get() + 1);
        ok(call)
    };
    session.carry_out(permit, tool).unwrap();
    assert_eq!(ran.get(), 1);
    assert!(approvals(folder.path()).in_doubt().unwrap().is_empty());
    // Once: the same call again is another question.
    assert_ne!(waiting(&mut session, &pay), id);
}

#[test]
fn an_argument_changed_after_the_approval_needs_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, mut session) = open(Settings { approvals: Some(approvals(folder.path())), ..settings() });
    let id = waiting(&mut session, &call("pay", json!({"to": "bob", "cents": 5})));
    gate.approvals().unwrap().answer(&id, &ada(), Consent::Grant, 0).unwrap();
    for changed in [json!({"to": "eve", "cents": 5}), json!({"to": "bob", "cents": 6}), json!({"to": "bob"})] {
        assert_ne!(waiting(&mut session, &call("pay", changed)), id);
    }
    // So does having seen something since.
    session.saw(&Labels::untrusted(Origin::Web));
    assert_ne!(waiting(&mut session, &call("pay", json!({"to": "bob", "cents": 5}))), id);
}

/// The whole permit, changed in every part after it was given: its approval does not fit any more.
#[test]
fn no_mutated_permit_runs() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::Logical { start_ms: 0, tick_ms: 1 };
    let (gate, mut session) = open(Settings { approvals: Some(approvals(folder.path())), clock, ..settings() });
    let pay = call("pay", json!({"to": "bob", "cents": 5}));
    let id = waiting(&mut session, &pay);
    gate.approvals().unwrap().answer(&id, &ada(), Consent::Grant, 0).unwrap();
    for n in 0..1_000u64 {
        let draw = Stream::new("permit", &[n]);
        let mut permit = go(&mut session, &pay);
        match draw.below(0, 5) {
            0 => permit.0.call.tool = "read".to_owned(),
            1 => permit.0.tool_digest.push('0'),
            2 => permit.0.labels = permit.0.labels.join(&Labels::untrusted(Origin::Tool(n.to_string()))),
            3 => drop(permit.0.call.arguments.insert("cents".into(), json!(draw.below(1, 1_000) + 6))),
            _ => drop(permit.0.call.arguments.insert(format!("x{n}"), json!(null))),
        }
        let result = session.carry_out(permit, |_| panic!("it ran"));
        assert!(matches!(result, Err(CarryOut::Denied(_))), "{result:?}");
    }
    assert_eq!(session.left(), Limits::default());
    run(&mut session, &pay);
}

#[test]
fn of_two_permits_on_one_approval_one_runs_and_the_other_gives_its_budget_back() {
    let folder = tempfile::tempdir().unwrap();
    let (out, verifier) = log(folder.path());
    let (gate, mut first) = open(Settings { approvals: Some(approvals(folder.path())), receipts: out, ..settings() });
    let mut second = gate.session(opening("second")).unwrap();
    let pay = call("pay", json!({"to": "bob"}));
    let id = waiting(&mut first, &pay);
    gate.approvals().unwrap().answer(&id, &ada(), Consent::Grant, 0).unwrap();
    let (a, b) = (go(&mut first, &pay), go(&mut second, &pay));
    first.carry_out(a, ok).unwrap();
    let lost = second.carry_out(b, |_| panic!("it ran")).unwrap_err();
    let want = format!("approval `{id}` cannot be used: it is used for a call that has ended");
    assert_eq!(lost.to_string(), want);
    assert_eq!(gate.budget().spent().calls, 1);
    drop((first, second));
    let all = receipts(gate, folder.path(), &verifier);
    let ends = |l: &Logged| matches!(&l.receipt.what, What::Outcome(o) if o.ended == Ended::NotRun);
    assert_eq!(all.iter().filter(|l| ends(l)).count(), 1);
    assert!(receipt::verify(&folder.path().join("log"), &verifier, None).1.findings.is_empty());
}

#[test]
fn a_stopped_agent_is_not_woken_by_an_approval() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, mut session) = open(Settings { approvals: Some(approvals(folder.path())), ..settings() });
    let mut child = session.child("helper", "bills", Limits::default()).unwrap();
    let pay = call("pay", json!({}));
    let id = waiting(&mut session, &pay);
    let permit = go(&mut session, &call("read", json!({})));
    session.stop();
    gate.approvals().unwrap().answer(&id, &ada(), Consent::Grant, 0).unwrap();
    let stopped = (Part::Boundary, "this session was stopped".to_owned());
    assert_eq!(denied(&mut session, &pay), stopped);
    assert_eq!(denied(&mut child, &call("read", json!({}))), stopped);
    assert!(matches!(session.carry_out(permit, |_| panic!("it ran")), Err(CarryOut::Denied(_))));
}

/// The breakage: what goes wrong takes a way around the records.
#[test]
fn a_tool_that_fails_or_dies_has_used_its_budget_and_its_approval() {
    let folder = tempfile::tempdir().unwrap();
    let prices = Prices::from([("pay".to_owned(), Price { money_argument: Some("cents".into()), ..Price::default() })]);
    let limits = Limits { money: Some(9_000_000), ..Limits::default() };
    let approvals = Some(approvals(folder.path()));
    let (gate, mut session) = open(Settings { approvals, prices, limits, ..settings() });
    let approve = |id: &str| drop(gate.approvals().unwrap().answer(id, &ada(), Consent::Grant, 0).unwrap());
    let pay = call("pay", json!({"cents": 4}));
    let id = waiting(&mut session, &pay);
    approve(&id);
    let permit = go(&mut session, &pay);
    let failed = session.carry_out(permit, |_| Err(Cause::new("crashed", "half way")));
    assert!(matches!(failed, Err(CarryOut::Tool(_))));
    assert_eq!(gate.budget().spent(), Amount { money: 4_000_000, time_ms: 1_000, ..Amount::CALL });
    let second = waiting(&mut session, &pay);
    assert_ne!(second, id);
    approve(&second);
    let permit = go(&mut session, &pay);
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = session.carry_out(permit, |_| panic!("the tool died"));
    }));
    assert!(died.is_err());
    assert_eq!(gate.budget().spent().money, 8_000_000);
    assert_eq!(gate.approvals().unwrap().in_doubt().unwrap()[0].0.id, second);
    let over = denied(&mut session, &pay);
    assert_eq!(over, (Part::Budget, "budget `run` has 1000000 millionths of money left, needed 4000000".to_owned()));
}
