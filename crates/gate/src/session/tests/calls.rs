//! Budgets, labels, hostile calls.

use super::*;

#[test]
fn calls_in_flight_count_against_the_budget() {
    let limits = Limits { calls: Some(2), ..Limits::default() };
    let gate = Gate::open(settings());
    let mut session = gate.session(Opening { limits, ..opening("s") }).unwrap();
    let read = call("read", json!({}));
    let (a, b) = (go(&mut session, &read), go(&mut session, &read));
    assert_eq!(denied(&mut session, &read), (Part::Budget, "budget `s` has 0 calls left, needed 1".to_owned()));
    session.give_up(a).unwrap();
    let c = go(&mut session, &read);
    session.carry_out(b, ok).unwrap();
    session.carry_out(c, ok).unwrap();
    assert_eq!(session.left().calls, Some(0));
    // A child opens no fresh budget.
    let mut child = session.child("helper", "bills", Limits { calls: Some(2), ..Limits::default() }).unwrap();
    assert_eq!(denied(&mut child, &read).0, Part::Budget);
    assert!(session.child("helper", "bills", Limits { calls: Some(3), ..Limits::default() }).is_err());
    assert!(session.spend(Amount { tokens: 9, ..Amount::default() }).is_ok());
}

#[test]
fn an_answer_carries_its_tool_and_its_tools_data_whatever_the_tool_says() {
    let (_, mut session) = open(settings());
    let answer = run(&mut session, &call("read", json!({})));
    let want = Labels { sensitivity: ["internal".to_owned()].into(), ..Labels::of(Origin::Tool("read".into())) };
    assert_eq!(answer.labels, want);
    assert_eq!(session.labels(), want.join(&Labels::of(Origin::User)));
    // What a child sees, its parent has seen, and the other way round.
    let mut child = session.child("helper", "bills", Limits::default()).unwrap();
    let permit = go(&mut child, &call("fetch", json!({})));
    child.carry_out(permit, |_| Ok(Answer::new("", Labels::untrusted(Origin::Web)))).unwrap();
    assert!(session.labels().untrusted);
    assert_eq!(denied(&mut session, &call("send", json!({"text": ""}))).0, Part::Guard);
    // A tool that fails may have said something too.
    let (_, mut other) = open(settings());
    let permit = go(&mut other, &call("read", json!({})));
    assert!(other.carry_out(permit, |_| Err(Cause::new("crashed", "secret"))).is_err());
    assert_eq!(other.labels(), session_labels_after_read());
}

fn session_labels_after_read() -> Labels {
    let read = Labels { sensitivity: ["internal".to_owned()].into(), ..Labels::of(Origin::Tool("read".into())) };
    read.join(&Labels::of(Origin::User))
}

#[test]
fn f2_arguments_no_tool_could_want_are_denied_and_nothing_breaks() {
    let folder = tempfile::tempdir().unwrap();
    let (out, verifier) = log(folder.path());
    let (gate, mut session) = open(Settings { receipts: out, ..settings() });
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let got = denied(&mut session, &call("read", json!({"id": deep})));
    assert_eq!(got, (Part::Boundary, "its arguments are nested deeper than 64".to_owned()));
    for odd in [json!({"id": u64::MAX}), json!({"id": -0.0}), json!({"": null}), json!({"id": "\u{0}\u{202e}"})] {
        let _ = told(&mut session, &call("read", odd));
    }
    for name in ["", "read ", "READ", "read\0", "../read", "__proto__"] {
        assert_eq!(denied(&mut session, &call(name, json!({}))).0, Part::Boundary, "`{name}`");
    }
    drop(session);
    let all = receipts(gate, folder.path(), &verifier);
    assert!(all.len() >= 11);
}

#[test]
fn a_receipt_that_cannot_be_written_stops_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let (out, _) = log(folder.path());
    let (gate, mut session) = open(Settings { receipts: out, ..settings() });
    let crowd: BTreeSet<String> = (0..20_000).map(|n| format!("reader {n}")).collect();
    session.saw(&Labels { readers: Readers::Only(crowd), ..Labels::default() });
    let got = session.propose(&call("read", json!({})));
    assert!(matches!(got, Err(GateError::Receipt(_))), "{got:?}");
    assert_eq!(gate.budget().left(), Limits::default());
    assert_eq!(gate.budget().spent(), Amount::default());
}
