use guard::{Decision, Labels, Principal};

use super::audit::{Filter, report};
use super::*;
use crate::{Amount, Approver, Limits};

/// The receipts of a small log, which tests then damage.
fn log() -> Vec<Receipt> {
    let mut log = Vec::new();
    for (session, agent) in [("a", "payer"), ("b", "reader")] {
        log.push(receipt(session, agent, 0, 10, What::Opened(opened())));
        log.push(receipt(session, agent, 1, 11, attempt("read", Decision::Allow, None)));
        log.push(outcome(log.last().unwrap(), 12, Ended::Answered));
        log.push(receipt(session, agent, 2, 13, attempt("delete", Decision::Deny, None)));
        log.push(receipt(session, agent, 3, 14, attempt("pay", Decision::Ask, Some(Approval::new("q-a".into(), &[])))));
        if session == "a" {
            let by = [Approver::Person("ada".to_owned())];
            let approval = Some(Approval::new("q-a".into(), &by));
            log.push(receipt(session, agent, 3, 15, attempt("pay", Decision::Allow, approval)));
            log.push(outcome(log.last().unwrap(), 16, Ended::Refused));
        }
        log.push(receipt(session, agent, 4, 17, attempt("read", Decision::Modify, None)));
        log.push(outcome(log.last().unwrap(), 18, Ended::NotRun));
    }
    log
}

fn receipt(session: &str, agent: &str, call: u64, at_ms: u64, what: What) -> Receipt {
    let principal = Principal {
        subject: "ada".into(),
        agent: agent.into(),
        run: "run-1".into(),
        purpose: "bills".into(),
        ..Principal::default()
    };
    Receipt { v: VERSION, session: session.into(), call, at_ms, principal, rules_digest: "r1".into(), what }
}

fn opened() -> Opened {
    Opened { parent: None, tools: vec!["pay".into()], declared: vec![], limits: Limits::default() }
}

fn attempt(tool: &str, ruled: Decision, approval: Option<Approval>) -> What {
    let effect = if approval.is_some() { Decision::Ask } else { ruled };
    let rule = RuleHit {
        id: format!("{tool}-rule"),
        pack: "baseline".into(),
        version: "2".into(),
        clause: (tool == "pay").then(|| "Contract 4.2".to_owned()),
        effect,
        error: None,
    };
    What::Attempt(Box::new(Attempt {
        tool: tool.into(),
        action: tool.into(),
        tool_digest: "t".into(),
        arguments: "x".into(),
        rewritten: (ruled == Decision::Modify).then(|| "y".to_owned()),
        labels: Labels::default(),
        ruled,
        by: if runs(ruled) && approval.is_some() { Part::Approval } else { Part::Guard },
        reason: String::new(),
        rules: vec![rule],
        approval,
        left: Limits::default(),
    }))
}

fn outcome(of: &Receipt, at_ms: u64, ended: Ended) -> Receipt {
    let what = What::Outcome(Box::new(Outcome {
        attempt: digest_of(of),
        ended,
        answer: "z".into(),
        labels: Labels::default(),
        used: Amount::CALL,
        left: Limits::default(),
    }));
    Receipt { at_ms, what, ..of.clone() }
}

fn digest_of(receipt: &Receipt) -> String {
    crate::digest::of(receipt).unwrap()
}

fn logged(receipts: &[Receipt]) -> Vec<Logged> {
    let one = |(index, receipt): (usize, &Receipt)| Logged {
        index: index as u64,
        digest: digest_of(receipt),
        receipt: receipt.clone(),
    };
    receipts.iter().enumerate().map(one).collect()
}

fn checked(receipts: &[Receipt]) -> Checked {
    let mut checker = Checker::default();
    logged(receipts).iter().for_each(|l| checker.take(l));
    checker.finish()
}

/// Damages the log and expects exactly these findings.
fn check(damage: impl FnOnce(&mut Vec<Receipt>), want: &[(u64, Fault)]) {
    let mut receipts = log();
    damage(&mut receipts);
    let got: Vec<(u64, Fault)> = checked(&receipts).findings.into_iter().map(|f| (f.index, f.fault)).collect();
    assert_eq!(got, want);
}

#[test]
fn an_honest_log_has_no_finding() {
    check(|_| {}, &[]);
    let all = checked(&log());
    assert_eq!((all.n_receipts, all.n_sessions, all.n_reopened), (16, 2, 0));
}

#[test]
fn what_is_missing_is_found() {
    check(|log| drop(log.remove(2)), &[(1, Fault::AttemptWithoutOutcome)]);
    check(|log| drop(log.remove(1)), &[(1, Fault::OutcomeWithoutAttempt), (2, Fault::Gap { needed: 1 })]);
    check(|log| drop(log.remove(3)), &[(3, Fault::Gap { needed: 2 })]);
    // The tail cut off: the last call has no end.
    check(|log| log.truncate(15), &[(14, Fault::AttemptWithoutOutcome)]);
    // A session without its beginning.
    let lost: Vec<(u64, Fault)> = (0..8).map(|index| (index, Fault::NotOpened)).collect();
    check(
        |log| {
            log.truncate(9);
            log.remove(0);
        },
        &lost,
    );
}

#[test]
fn a_call_that_ran_unpermitted_is_found() {
    check(|log| log.insert(4, outcome(&log[3].clone(), 13, Ended::Answered)), &[(4, Fault::RanUnpermitted)]);
    let bare = receipt("a", "payer", 3, 15, attempt("pay", Decision::Allow, Some(Approval::new("q-a".into(), &[]))));
    check(
        |log| {
            log[6] = outcome(&bare, 16, Ended::Refused);
            log[5] = bare;
        },
        &[(5, Fault::NoApproval)],
    );
    check(
        |log| log[2] = outcome(&log[3].clone(), 12, Ended::Answered),
        &[(1, Fault::AttemptWithoutOutcome), (2, Fault::OutcomeWithoutAttempt)],
    );
    let other = receipt("a", "payer", 1, 11, attempt("delete", Decision::Allow, None));
    check(|log| log[2] = outcome(&other, 12, Ended::Answered), &[(2, Fault::OtherAttempt)]);
}

#[test]
fn an_approval_used_twice_is_found() {
    let by = [Approver::Person("ada".to_owned())];
    let again = |call| {
        receipt("b", "reader", call, 20, attempt("pay", Decision::Allow, Some(Approval::new("q-a".into(), &by))))
    };
    let replay = again(5);
    let end = outcome(&replay, 21, Ended::Answered);
    check(|log| log.extend([replay, end]), &[(17, Fault::ApprovalReplayed { id: "q-a".into(), first: 5 })]);
    // Two that were let through on one approval, of which one was stopped as it was to begin: nothing wrong.
    let stopped = again(5);
    let end = outcome(&stopped, 21, Ended::NotRun);
    check(|log| log.extend([stopped, end]), &[]);
}

#[test]
fn what_changes_within_a_session_is_found() {
    check(|log| log[3].at_ms = 5, &[(3, Fault::TimeBackwards { before_ms: 12 })]);
    check(|log| log[3].rules_digest = "r2".into(), &[(3, Fault::RulesChanged)]);
    check(|log| log[3].principal.subject = "eve".into(), &[(3, Fault::PrincipalChanged)]);
    // Sessions side by side are each on their own.
    check(|log| log.sort_by_key(|r| r.at_ms), &[]);
}

#[test]
fn a_session_that_begins_again_is_counted_and_its_open_calls_are_found() {
    let mut twice = log();
    twice.truncate(2);
    twice.extend(log());
    let got = checked(&twice);
    assert_eq!(got.n_reopened, 1);
    let want = "entry 1, session `a`, call 1: it was let through and nothing tells of its end";
    assert_eq!(got.findings.iter().map(ToString::to_string).collect::<Vec<_>>(), [want]);
}

#[test]
fn the_report_says_who_did_what_and_why_it_was_allowed() {
    let all = |filter: Filter| report(&logged(&log()), filter);
    let everything = all(Filter::default());
    assert_eq!(everything.calls.len(), 9);
    assert_eq!(everything.ruled[&Decision::Allow], 3);
    assert_eq!(everything.by_rule["baseline/pay-rule@2"], [(Decision::Allow, 1), (Decision::Ask, 2)].into());
    assert_eq!(everything.by_clause["Contract 4.2"], [(Decision::Allow, 1), (Decision::Ask, 2)].into());
    assert_eq!(everything.ended, [("answered", 2), ("refused", 1), ("not_run", 2)].into());
    assert_eq!(everything.by_rules_digest["r1"], 9);
    assert_eq!(everything.by_part["approval"][&Decision::Allow], 1);
    let paid = all(Filter { tool: Some("pay".into()), ruled: Some(Decision::Allow), ..Filter::default() });
    let [line] = &paid.calls[..] else { panic!("{:?}", paid.calls) };
    assert_eq!((line.subject.as_str(), line.agent.as_str(), line.call), ("ada", "payer", 3));
    assert_eq!((&line.approved_by[..], line.ended), (&["person `ada`".to_owned()][..], Some(Ended::Refused)));
    assert_eq!(line.rules[0].version, "2");
}

#[test]
fn every_filter_leaves_out_what_it_should() {
    let n = |filter: Filter| report(&logged(&log()), filter).calls.len();
    let word = |s: &str| Some(s.to_owned());
    let cases = [
        (Filter { run: word("run-1"), ..Filter::default() }, 9),
        (Filter { run: word("run-2"), ..Filter::default() }, 0),
        (Filter { session: word("a"), ..Filter::default() }, 5),
        (Filter { session: word("ab"), ..Filter::default() }, 0),
        (Filter { subject: word("eve"), ..Filter::default() }, 0),
        (Filter { agent: word("reader"), ..Filter::default() }, 4),
        (Filter { action: word("delete"), ..Filter::default() }, 2),
        (Filter { rule: word("pay-rule"), ..Filter::default() }, 3),
        (Filter { clause: word("Contract 4.2"), ..Filter::default() }, 3),
        (Filter { ruled: Some(Decision::Deny), ..Filter::default() }, 2),
        (Filter { since_ms: Some(17), ..Filter::default() }, 2),
        (Filter { until_ms: Some(12), ..Filter::default() }, 2),
    ];
    for (filter, want) in cases {
        assert_eq!(n(filter.clone()), want, "{filter:?}");
    }
}
