use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, thread};

use episode::random::Stream;
use guard::{Labels, Origin, Principal, Readers};
use serde_json::{Map, Value, json};

use super::*;

/// A call that owns its parts.
#[derive(Clone, PartialEq)]
struct Call {
    principal: Principal,
    tool: String,
    tool_digest: String,
    arguments: Map<String, Value>,
    labels: Labels,
    rules_digest: String,
}

fn call(arguments: Value) -> Call {
    let principal = Principal {
        subject: "ada".into(),
        agent: "payer".into(),
        run: "run-1".into(),
        purpose: "pay bills".into(),
        chain: vec!["planner".into()],
        ..Principal::default()
    };
    Call {
        principal,
        tool: "pay".into(),
        tool_digest: "t1".into(),
        arguments: arguments.as_object().unwrap().clone(),
        labels: Labels::of(Origin::User),
        rules_digest: "r1".into(),
    }
}

impl Call {
    fn binding(&self) -> Binding<'_> {
        Binding {
            principal: &self.principal,
            tool: &self.tool,
            tool_digest: &self.tool_digest,
            arguments: &self.arguments,
            labels: &self.labels,
            rules_digest: &self.rules_digest,
        }
    }
}

fn roster() -> Roster {
    let roles = |r: &[&str]| r.iter().map(|r| (*r).to_owned()).collect::<BTreeSet<_>>();
    Roster {
        people: [("ada", &[][..]), ("eve", &["legal"]), ("bob", &["legal"]), ("planner", &["legal"])]
            .map(|(name, r)| (name.to_owned(), roles(r)))
            .into(),
        programs: [("checker".to_owned(), roles(&["legal"]))].into(),
    }
}

fn open(folder: &Path) -> Approvals {
    Approvals::open(folder, roster()).unwrap()
}

fn person(name: &str) -> Approver {
    Approver::Person(name.to_owned())
}

fn why(needs: Vec<Need>) -> Why {
    Why { reason: "payments need a word".to_owned(), rules: vec!["ask-before-pay@1".to_owned()], needs }
}

fn one() -> Why {
    why(vec![Need::default()])
}

/// Asks, and gives the waiting request's name.
fn asked(approvals: &Approvals, call: &Call, why: Why, now_ms: u64) -> String {
    match approvals.ask(&call.binding(), why, now_ms).unwrap() {
        Found::Not(pending, Standing::Waiting) => pending.id,
        other => panic!("needed a waiting request, got {other:?}"),
    }
}

fn used(call: u64) -> Use {
    Use { session: "s".to_owned(), call }
}

#[test]
fn a_call_is_asked_for_once_and_begins_once_on_its_grant() {
    let folder = tempfile::tempdir().unwrap();
    let (approvals, pay) = (open(folder.path()), call(json!({"to": "bob", "amount": 5})));
    let id = asked(&approvals, &pay, one(), 1_000);
    assert_eq!(asked(&approvals, &pay, one(), 2_000), id);
    assert_eq!(approvals.pending(2_000).unwrap().len(), 1);
    assert_eq!(approvals.answer(&id, &person("ada"), Consent::Grant, 3_000).unwrap(), Standing::Granted);
    let found = approvals.ask(&pay.binding(), one(), 4_000).unwrap();
    assert_eq!(found, Found::Granted { id: id.clone(), by: vec![person("ada")] });
    approvals.start(&id, &pay.binding(), used(1), 5_000).unwrap();
    let again = approvals.start(&id, &pay.binding(), used(2), 5_000).unwrap_err();
    assert_eq!(again.to_string(), format!("approval `{id}` cannot be used: it is used for a call that has begun"));
    assert_eq!(approvals.in_doubt().unwrap().len(), 1);
    approvals.finish(&id, 6_000).unwrap();
    assert_eq!(approvals.in_doubt().unwrap(), vec![]);
    // The same call once more needs its own.
    let second = asked(&approvals, &pay, one(), 7_000);
    assert_ne!(second, id);
}

#[test]
fn whose_word_counts_is_decided_by_the_roster_and_the_rule() {
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(folder.path());
    let legal = Need { count: 2, roles: BTreeSet::from(["legal".to_owned()]), people: true, lifetime_s: 60 };
    let id = asked(&approvals, &call(json!({})), why(vec![legal]), 0);
    let no = |approver: Approver| approvals.answer(&id, &approver, Consent::Grant, 1).unwrap_err().to_string();
    assert_eq!(no(person("mallory")), "person `mallory` may not approve anything");
    assert_eq!(no(person("ada")), format!("person `ada` cannot approve `{id}`: needed a person who is `legal`"));
    let program = Approver::Program("checker".to_owned());
    assert_eq!(no(program), format!("program `checker` cannot approve `{id}`: needed a person who is `legal`"));
    let agent = format!("person `planner` cannot approve `{id}`: it has the name of an agent of that call");
    assert_eq!(no(person("planner")), agent);
    // One person twice is one person: a retried answer counts once.
    for _ in 0..2 {
        assert_eq!(approvals.answer(&id, &person("eve"), Consent::Grant, 2).unwrap(), Standing::Waiting);
    }
    assert_eq!(approvals.answer(&id, &person("bob"), Consent::Grant, 3).unwrap(), Standing::Granted);
    assert!(matches!(
        approvals.answer("no-such", &person("bob"), Consent::Grant, 3),
        Err(ApprovalError::Unknown { .. })
    ));
}

#[test]
fn every_rule_that_asks_must_have_its_own_need_met() {
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(folder.path());
    let legal = Need { roles: BTreeSet::from(["legal".to_owned()]), ..Need::default() };
    let id = asked(&approvals, &call(json!({})), why(vec![Need::default(), legal]), 0);
    assert_eq!(approvals.answer(&id, &person("ada"), Consent::Grant, 1).unwrap(), Standing::Waiting);
    assert_eq!(approvals.answer(&id, &person("eve"), Consent::Grant, 1).unwrap(), Standing::Granted);
}

/// A request whose rules want nothing is no approval: nothing is granted by default.
#[test]
fn no_need_is_never_met() {
    let folder = tempfile::tempdir().unwrap();
    let (approvals, pay) = (open(folder.path()), call(json!({})));
    let got = approvals.ask(&pay.binding(), why(vec![]), 0).unwrap();
    let Found::Not(pending, Standing::Waiting) = got else { panic!("{got:?}") };
    assert!(approvals.start(&pending.id, &pay.binding(), used(1), 0).is_err());
    assert!(approvals.answer(&pending.id, &person("ada"), Consent::Grant, 0).is_err());
}

#[test]
fn a_no_stands_against_every_yes_and_takes_a_grant_back() {
    let folder = tempfile::tempdir().unwrap();
    let (approvals, pay) = (open(folder.path()), call(json!({})));
    let id = asked(&approvals, &pay, one(), 0);
    approvals.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
    let refused = Standing::Refused { by: person("eve") };
    assert_eq!(approvals.answer(&id, &person("eve"), Consent::Refuse, 2).unwrap(), refused);
    assert!(matches!(approvals.start(&id, &pay.binding(), used(1), 3), Err(ApprovalError::Closed { .. })));
    let late = approvals.answer(&id, &person("bob"), Consent::Grant, 3).unwrap_err();
    assert_eq!(late.to_string(), format!("approval `{id}` cannot be answered: it is refused by person `eve`"));
    // It is not asked again while the no stands, so nobody can be worn down.
    assert!(matches!(approvals.ask(&pay.binding(), one(), 4).unwrap(), Found::Not(_, Standing::Refused { .. })));
    assert_ne!(asked(&approvals, &pay, one(), 900_000), id);
}

#[test]
fn time_out_denies_and_a_clock_put_back_revives_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (approvals, pay, other) = (open(folder.path()), call(json!({})), call(json!({"x": 1})));
    let brief = || why(vec![Need { lifetime_s: 10, ..Need::default() }]);
    let id = asked(&approvals, &pay, brief(), 0);
    approvals.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
    let second = asked(&approvals, &other, brief(), 0);
    let closed = approvals.start(&id, &pay.binding(), used(1), 10_000).unwrap_err();
    assert_eq!(closed.to_string(), format!("approval `{id}` cannot be used: it is expired"));
    // It was asked for after something that is dated 1 ms later, and so ends a millisecond later too.
    assert!(approvals.answer(&second, &person("ada"), Consent::Grant, 10_001).is_err());
    assert_eq!(approvals.pending(10_001).unwrap(), vec![]);
    // Something is written at 20 s; a clock that says 5 s afterwards is not believed.
    asked(&approvals, &call(json!({"y": 1})), brief(), 20_000);
    assert!(approvals.start(&id, &pay.binding(), used(1), 5_000).is_err());
    assert!(approvals.answer(&second, &person("ada"), Consent::Grant, 5_000).is_err());
}

#[test]
fn the_shortest_lifetime_of_all_rules_holds() {
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(folder.path());
    let needs = [60, 5, 900].map(|lifetime_s| Need { lifetime_s, ..Need::default() }).to_vec();
    let id = asked(&approvals, &call(json!({})), why(needs), 1_000);
    assert_eq!(approvals.get(&id, 1_000).unwrap().0.expires_ms, 6_000);
}

#[test]
fn too_many_questions_are_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(folder.path()).with_max_waiting(3);
    for n in 0..3 {
        asked(&approvals, &call(json!({"n": n})), one(), 0);
    }
    let flood = approvals.ask(&call(json!({"n": 3})).binding(), one(), 0).unwrap_err();
    assert_eq!(flood.to_string(), "run `run-1` waits for 3 approvals already: needed answers first");
    let mut elsewhere = call(json!({"n": 3}));
    elsewhere.principal.run = "run-2".to_owned();
    asked(&approvals, &elsewhere, one(), 0);
}

/// The breakages: pending requests lost in a restart; an answer given elsewhere that nobody hears.
#[test]
fn pending_requests_survive_a_restart_and_are_answered_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let pay = call(json!({"amount": 5}));
    let id = asked(&open(folder.path()), &pay, one(), 0);
    let (agent, terminal) = (open(folder.path()), open(folder.path()));
    let [pending] = &terminal.pending(1).unwrap()[..] else { panic!("needed one pending request") };
    assert_eq!((&pending.id, &pending.arguments, &pending.reason), (&id, &pay.arguments, &one().reason));
    terminal.answer(&id, &person("ada"), Consent::Grant, 2).unwrap();
    assert!(matches!(agent.ask(&pay.binding(), one(), 3).unwrap(), Found::Granted { .. }));
    agent.start(&id, &pay.binding(), used(1), 4).unwrap();
    assert!(terminal.start(&id, &pay.binding(), used(1), 4).is_err());
    assert_eq!(open(folder.path()).in_doubt().unwrap()[0].1, used(1));
}

/// The breakage: an approval is used up though nothing ran, because a person's yes counts as the use.
#[test]
fn a_grant_that_nobody_begins_on_is_still_good_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let pay = call(json!({}));
    let id = asked(&open(folder.path()), &pay, one(), 0);
    open(folder.path()).answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
    for _ in 0..3 {
        let found = open(folder.path()).ask(&pay.binding(), one(), 2).unwrap();
        assert!(matches!(found, Found::Granted { .. }));
    }
    open(folder.path()).start(&id, &pay.binding(), used(1), 3).unwrap();
}

#[test]
fn an_approval_of_a_number_is_none_of_another_that_canonical_json_writes_alike() {
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(folder.path());
    for (granted, other) in [
        (json!({"n": 1}), json!({"n": 1.0})),
        (json!({"n": 9_007_199_254_740_992_u64}), json!({"n": 9_007_199_254_740_993_u64})),
        (json!({"n": 0.0}), json!({"n": -0.0})),
    ] {
        let (granted, other) = (call(granted), call(other));
        let id = asked(&approvals, &granted, one(), 0);
        approvals.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
        if granted.arguments != other.arguments {
            assert!(approvals.start(&id, &other.binding(), used(1), 2).is_err());
            assert_ne!(asked(&approvals, &other, one(), 2), id);
        }
    }
}

#[test]
fn a_person_sees_the_journal_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(&folder.path().join("deep/approvals"));
    asked(&approvals, &call(json!({})), one(), 0);
    let mode = fs::metadata(folder.path().join("deep/approvals/journal.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

/// Malformed is a deny: every way of changing what was written closes the whole journal.
#[test]
fn a_journal_that_is_not_what_was_written_grants_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let pay = call(json!({"amount": 5}));
    let (mine, id) = (open(folder.path()), asked(&open(folder.path()), &pay, one(), 0));
    mine.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    assert_eq!(lines.len(), 2);
    let cases: Vec<(&str, String)> = vec![
        ("edited", good.replace("\"amount\":5", "\"amount\":6")),
        ("first line gone", format!("{}\n", lines[1])),
        ("reordered", format!("{}\n{}\n", lines[1], lines[0])),
        ("repeated", format!("{good}{}\n", lines[1])),
        ("garbage", format!("{good}what?\n")),
        ("no utf-8 in spirit", format!("{good}{{\"chain\":1}}\n")),
        ("another's answer", good.replace("\"ada\"", "\"bob\"")),
    ];
    for (what, text) in cases {
        assert_ne!(text, good, "{what}");
        fs::write(&path, text).unwrap();
        let opened = Approvals::open(folder.path(), roster());
        assert!(matches!(opened, Err(ApprovalError::Damaged { .. })), "{what}: {opened:?}");
    }
    fs::write(&path, "").unwrap();
    let shorter = mine.start(&id, &pay.binding(), used(1), 2).unwrap_err();
    assert!(shorter.to_string().ends_with("it has become shorter"), "{shorter}");
    fs::remove_file(&path).unwrap();
    fs::write(&path, &good).unwrap();
    let replaced = mine.start(&id, &pay.binding(), used(1), 2).unwrap_err();
    assert!(replaced.to_string().ends_with("another file has taken its place"), "{replaced}");
    // Nothing was lost by it: whoever opens the journal as it was finds the grant.
    open(folder.path()).start(&id, &pay.binding(), used(1), 2).unwrap();
}

#[test]
fn half_a_line_of_a_dead_process_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let pay = call(json!({}));
    let (mine, id) = (open(folder.path()), asked(&open(folder.path()), &pay, one(), 0));
    let good = fs::read_to_string(&path).unwrap();
    for cut in 1..good.len() {
        fs::write(&path, format!("{good}{}", &good[..cut])).unwrap();
        assert_eq!(mine.pending(0).unwrap().len(), 1, "cut at {cut}");
        assert_eq!(fs::read_to_string(&path).unwrap(), good);
    }
    mine.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
    open(folder.path()).start(&id, &pay.binding(), used(1), 2).unwrap();
}

/// The world ends at every change of the file in turn, with every share of the write done; the call is tried again by
/// processes that come after. It runs at most once, and exactly once when nothing was lost while it was beginning.
#[test]
fn a_crash_at_any_write_lets_a_call_run_at_most_once_and_loses_no_good_approval() {
    for changes in 0..12u64 {
        for cut in [0usize, 1, 40, 10_000] {
            let folder = tempfile::tempdir().unwrap();
            let pay = call(json!({"amount": 5}));
            let ran = AtomicU64::new(0);
            // A process: does whatever comes next, and runs the tool if it is told that the call has begun.
            let live = |approvals: &Approvals| -> Result<bool, ApprovalError> {
                match approvals.ask(&pay.binding(), one(), 1)? {
                    Found::Not(pending, _) => {
                        approvals.answer(&pending.id, &person("ada"), Consent::Grant, 2)?;
                        Ok(false)
                    }
                    Found::Granted { id, .. } => {
                        approvals.start(&id, &pay.binding(), used(1), 3)?;
                        ran.fetch_add(1, Ordering::SeqCst);
                        approvals.finish(&id, 4)?;
                        Ok(true)
                    }
                }
            };
            let doomed = open(folder.path());
            doomed.inner.lock().unwrap().journal.faults.fuse.set(Some((changes, cut)));
            let died = (0..2).any(|_| live(&doomed).is_err());
            let before = ran.load(Ordering::SeqCst);
            drop(doomed);
            let next = open(folder.path());
            let begun = next.inner.lock().unwrap().book.records().any(|r| r.started.is_some());
            if !begun {
                assert_eq!(before, 0, "the tool ran and nothing tells that it began");
                while !live(&next).unwrap() {}
                assert_eq!(ran.load(Ordering::SeqCst), 1);
            } else if before == 0 {
                // It may have begun: it is in doubt and not begun again.
                assert!(died);
                assert_eq!(next.in_doubt().unwrap().len(), 1);
            } else {
                assert_eq!(before, 1);
            }
        }
    }
}

/// Sixty-four handles, as of as many processes, hold one approval for one call.
#[test]
fn of_sixty_four_racers_exactly_one_begins() {
    const RACERS: u64 = 64;
    for round in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let pay = call(json!({"round": round}));
        let approvals = open(folder.path());
        let id = asked(&approvals, &pay, one(), 0);
        approvals.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
        let (barrier, ran) = (Barrier::new(RACERS as usize), AtomicU64::new(0));
        thread::scope(|scope| {
            for n in 0..RACERS {
                let (barrier, ran, pay, id, shared) = (&barrier, &ran, &pay, &id, &approvals);
                let own = (n % 2 == 0).then(|| open(folder.path()));
                scope.spawn(move || {
                    let approvals = own.as_ref().unwrap_or(shared);
                    barrier.wait();
                    match approvals.start(id, &pay.binding(), used(n), 2) {
                        Ok(()) => drop(ran.fetch_add(1, Ordering::SeqCst)),
                        Err(e) => assert!(matches!(e, ApprovalError::Closed { .. }), "{e}"),
                    }
                });
            }
        });
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }
}

/// A hundred thousand calls (a tenth of them without optimisation), each an approved one with something changed: none
/// begins.
#[test]
fn no_mutation_of_an_approved_call_begins() {
    const MUTATIONS: u64 = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let folder = tempfile::tempdir().unwrap();
    let approvals = open(folder.path());
    let approved =
        call(json!({"to": "bob", "amount": 5, "notes": ["rent", {"month": 3, "late": false}], "urgent": null}));
    let id = asked(&approvals, &approved, one(), 0);
    approvals.answer(&id, &person("ada"), Consent::Grant, 1).unwrap();
    let (mut kinds, mut same) = ([0u64; 12], 0);
    for n in 0..MUTATIONS {
        let draw = Stream::new("mutation", &[n]);
        let mut mutant = approved.clone();
        let kind = mutate(&mut mutant, draw);
        if mutant == approved {
            same += 1;
            continue;
        }
        kinds[kind] += 1;
        let got = approvals.start(&id, &mutant.binding(), used(n), 2);
        assert!(matches!(got, Err(ApprovalError::OtherCall { .. })), "mutation {n} of kind {kind}: {got:?}");
    }
    assert!(kinds.iter().all(|n| *n > MUTATIONS / 50), "{kinds:?}");
    assert!(same < MUTATIONS / 20, "{same} mutations changed nothing");
    // The approval itself is unharmed by all of it.
    approvals.start(&id, &approved.binding(), used(0), 3).unwrap();
}

/// Changes one thing; which kind.
fn mutate(call: &mut Call, draw: Stream) -> usize {
    let kind = draw.below(0, 12) as usize;
    let word = format!("w{}", draw.below(1, 1_000));
    match kind {
        0 => call.principal.subject = word,
        1 => call.principal.agent = word,
        2 => call.principal.run = word,
        3 => call.principal.purpose = word,
        4 => match draw.below(2, 3) {
            0 => call.principal.chain.push(word),
            1 => call.principal.chain.clear(),
            _ => call.principal.chain[0] = word,
        },
        5 => call.tool = word,
        6 => call.tool_digest = word,
        7 => call.rules_digest = word,
        8 => match draw.below(2, 4) {
            0 => call.labels.untrusted = true,
            1 => drop(call.labels.origins.insert(Origin::Tool(word))),
            2 => drop(call.labels.sensitivity.insert(word)),
            _ => call.labels.readers = Readers::Only([word].into()),
        },
        9 => drop(call.arguments.insert(word, json!(draw.below(2, 9)))),
        10 => {
            let names: Vec<String> = call.arguments.keys().cloned().collect();
            call.arguments.remove(&names[draw.below(2, names.len() as u64) as usize]);
        }
        _ => {
            let names: Vec<String> = call.arguments.keys().cloned().collect();
            let name = &names[draw.below(2, names.len() as u64) as usize];
            change(&mut call.arguments[name], draw, 3);
        }
    }
    kind
}

/// Changes a value somewhere inside it.
fn change(value: &mut Value, draw: Stream, at: u64) {
    match value {
        Value::Array(items) if !items.is_empty() && draw.below(at, 2) == 0 => {
            let n = draw.below(at + 1, items.len() as u64) as usize;
            change(&mut items[n], draw, at + 2);
        }
        Value::Object(fields) if draw.below(at, 2) == 0 => {
            let n = draw.below(at + 1, fields.len() as u64) as usize;
            if let Some((_, inner)) = fields.iter_mut().nth(n) {
                change(inner, draw, at + 2);
            }
        }
        other => {
            *other = match draw.below(at + 1, 6) {
                0 => Value::Null,
                1 => json!(true),
                2 => json!(draw.bits(at + 2)),
                3 => json!(draw.uniform(at + 2)),
                4 => json!(format!("{other} ")),
                _ => json!([other.clone()]),
            };
        }
    }
}
