//! Rules over history as a pack writes them: what each kind stops and lets through, and that what cannot be judged is denied.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

use std::sync::Mutex;

use episode::ToolSpec;
use serde_json::{Map, Value, json};
use surefoot_guard::temporal::{Event, History, HistoryError, Temporal, TemporalError, TemporalText};
use surefoot_guard::{Decision, Hit, Labels, Principal, Request};

fn tools() -> Vec<ToolSpec> {
    let tool = |name: &str, action: &str| ToolSpec::new(name, "", action, json!({"type": "object"}));
    vec![
        tool("pay", "pay"),
        tool("mail", "send").touching(["personal"]),
        tool("post", "publish"),
        tool("login", "credential"),
        tool("logout", "credential"),
        tool("vault", "read").touching(["credentials"]),
        tool("delete", "delete"),
        tool("backup", "create"),
    ]
}

fn compile(rules: &str) -> Result<Temporal, TemporalError> {
    Temporal::compile([TemporalText { pack: "p", version: "7", rules }], &tools())
}

fn call<T>(tool: &str, arguments: &Value, now_s: u64, f: impl FnOnce(&Request<'_>) -> T) -> T {
    let principal = Principal { subject: "ada".to_owned(), agent: "one".to_owned(), ..Principal::default() };
    let arguments: &Map<String, Value> = arguments.as_object().unwrap();
    f(&Request { principal: &principal, tool, arguments, labels: &Labels::default(), now_s })
}

/// What happens at a time.
enum Do {
    /// A call is asked about, must be let through or not, and if it is, begins.
    Ask(&'static str, Value, bool),
    /// A call ends well.
    Ends(&'static str, Value),
    /// A call ends badly.
    Fails(&'static str, Value),
}
use Do::{Ask, Ends, Fails};

fn check(rules: &str, story: Vec<(u64, Do)>) {
    let mut history = compile(rules).unwrap().history();
    for (now, happens) in story {
        match happens {
            Ask(tool, arguments, want) => call(tool, &arguments, now, |request| {
                let hits = history.check(request);
                assert_eq!(hits.is_empty(), want, "{tool} {arguments} at {now}: {hits:?}");
                assert!(hits.iter().all(|hit| hit.error.is_none()), "{hits:?}");
                if want {
                    history.record(Event::Request(request)).unwrap();
                }
            }),
            Ends(tool, arguments) => call(tool, &arguments, now, |r| history.record(Event::Response(r))).unwrap(),
            Fails(tool, arguments) => call(tool, &arguments, now, |r| history.record(Event::Error(r))).unwrap(),
        }
    }
}

fn rule(body: &str) -> String {
    format!("[[rule]]\nid = \"r\"\nreason = \"because\"\n{body}\n")
}

#[test]
fn at_most_n_calls_fit_into_a_closed_window() {
    let rules = rule("when = { tools = [\"mail\"] }\nat_most = { count = 2, within = \"1m\" }");
    let mail = || json!({});
    check(
        &rules,
        vec![
            (100, Ask("mail", mail(), true)),
            (110, Ask("mail", mail(), true)),
            (120, Ask("mail", mail(), false)),
            (120, Ask("pay", mail(), true)),
            // Exactly a minute after the first it still counts; a second later it does not.
            (160, Ask("mail", mail(), false)),
            (161, Ask("mail", mail(), true)),
            (161, Ask("mail", mail(), false)),
        ],
    );
}

#[test]
fn at_most_counts_keys_apart() {
    let rules = rule("when = { actions = [\"send\"] }\nper = [\"subject\", \"arguments.to\"]\nat_most = { count = 1 }");
    check(
        &rules,
        vec![
            (1, Ask("mail", json!({"to": "ann"}), true)),
            (2, Ask("mail", json!({"to": "bob"}), true)),
            (3, Ask("mail", json!({"to": "ann"}), false)),
            (1_000_000_000, Ask("mail", json!({"to": "bob"}), false)),
        ],
    );
}

#[test]
fn after_n_errors_no_more_calls() {
    let rules = rule("when = { tools = [\"login\"] }\nat_most = { count = 2, on = \"error\", within = \"1h\" }");
    let x = || json!({});
    check(
        &rules,
        vec![
            (1, Ask("login", x(), true)),
            (2, Fails("login", x())),
            (3, Ask("login", x(), true)),
            (4, Fails("login", x())),
            (5, Ask("login", x(), false)),
            (3_602, Ask("login", x(), false)),
            (3_603, Ask("login", x(), true)),
        ],
    );
}

#[test]
fn never_after_follows_data_classes_and_counts_from_the_request() {
    let rules =
        rule("when = { actions = [\"publish\", \"send\"] }\nnever_after = { of = { data = [\"credentials\"] } }");
    let x = || json!({});
    check(
        &rules,
        vec![
            (1, Ask("post", x(), true)),
            (2, Ask("vault", x(), true)),
            (3, Ask("post", x(), false)),
            (9, Ask("mail", x(), false)),
        ],
    );
}

#[test]
fn only_after_needs_an_answer_and_no_change_since() {
    let rules = rule(
        "when = { tools = [\"delete\"] }\nper = [\"arguments.table\"]\nonly_after = { of = { tools = [\"backup\"] }, until = { tools = [\"pay\"] }, within = \"1d\" }",
    );
    let (t, u) = (|| json!({"table": "t"}), || json!({"table": "u"}));
    check(
        &rules,
        vec![
            (1, Ask("delete", t(), false)),
            (2, Ask("backup", t(), true)),
            // Asked for, not done.
            (3, Ask("delete", t(), false)),
            (4, Fails("backup", t())),
            (5, Ask("delete", t(), false)),
            (6, Ask("backup", t(), true)),
            (7, Ends("backup", t())),
            (8, Ask("delete", t(), true)),
            (8, Ask("delete", u(), false)),
            (9, Ask("pay", u(), true)),
            (10, Ask("delete", t(), true)),
            (11, Ask("pay", t(), true)),
            (12, Ask("delete", t(), false)),
            (13, Ends("backup", t())),
            (86_413, Ask("delete", t(), true)),
            (86_414, Ask("delete", t(), false)),
        ],
    );
}

#[test]
fn a_cooldown_is_over_when_its_pause_is() {
    let rules = rule("when = { tools = [\"post\"] }\ncooldown = { pause = \"30s\" }");
    let x = || json!({});
    check(
        &rules,
        vec![
            (5, Ask("post", x(), true)),
            (5, Ask("post", x(), false)),
            (34, Ask("post", x(), false)),
            (35, Ask("post", x(), true)),
            (64, Ask("post", x(), false)),
        ],
    );
}

#[test]
fn a_budget_is_exact_in_decimals_and_counts_failed_calls() {
    let rules =
        rule("when = { tools = [\"pay\"] }\nbudget = { sum = \"arguments.amount\", max = 0.3, within = \"1h\" }");
    let tenth = || json!({"amount": 0.1});
    check(
        &rules,
        vec![
            (1, Ask("pay", tenth(), true)),
            (1, Fails("pay", tenth())),
            (2, Ask("pay", tenth(), true)),
            // 0.1 + 0.1 + 0.1 is 0.3, as it is not in binary.
            (3, Ask("pay", tenth(), true)),
            (4, Ask("pay", json!({"amount": 0.000001}), false)),
            (4, Ask("pay", json!({"amount": 0}), true)),
            (3_602, Ask("pay", tenth(), true)),
        ],
    );
}

#[test]
fn distinct_recipients_are_counted_inside_lists() {
    let rules =
        rule("when = { actions = [\"send\"] }\ndistinct = { what = \"arguments.to\", max = 3, within = \"1h\" }");
    check(
        &rules,
        vec![
            (1, Ask("mail", json!({"to": ["a", "b"]}), true)),
            (2, Ask("mail", json!({"to": "a"}), true)),
            (3, Ask("mail", json!({"to": ["a", "b", "c", "d"]}), false)),
            (4, Ask("mail", json!({"to": "c"}), true)),
            (5, Ask("mail", json!({"to": "d"}), false)),
            // `b` was last written to at 1, `a` at 2.
            (3_603, Ask("mail", json!({"to": ["x", "y"]}), true)),
        ],
    );
}

#[test]
fn three_payments_in_flight_count_before_any_is_answered() {
    let rules =
        rule("when = { tools = [\"pay\"] }\nbudget = { sum = \"arguments.amount\", max = 5000, within = \"1d\" }");
    let history = Mutex::new(compile(&rules).unwrap().history());
    let barrier = std::sync::Barrier::new(3);
    let through: Vec<bool> = std::thread::scope(|scope| {
        let pay = || {
            barrier.wait();
            call("pay", &json!({"amount": 2000}), 50, |request| {
                // Decided and recorded in one step; answered by nobody yet.
                let mut history = history.lock().unwrap();
                let free = history.check(request).is_empty();
                if free {
                    history.record(Event::Request(request)).unwrap();
                }
                free
            })
        };
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(pay)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(through.iter().filter(|free| **free).count(), 2);
}

fn faults(rules: &str, tool: &str, arguments: Value) -> Vec<Hit> {
    let history = compile(rules).unwrap().history();
    call(tool, &arguments, 1, |request| history.check(request))
}

#[test]
fn a_rule_that_cannot_tell_denies() {
    let budget = rule(
        "effect = \"ask\"\nwhen = { actions = [\"pay\", \"publish\"] }\nbudget = { sum = \"arguments.amount\", max = 10, of = { tools = [\"pay\"] } }",
    );
    let amount = "needed a number of at least 0 in `arguments.amount`, got something else";
    let keyed =
        rule("when = { tools = [\"post\"] }\nper = [\"arguments.to\"]\nnever_after = { of = { tools = [\"vault\"] } }");
    let plain = "needed a text, a number, true or false in `arguments.to`, got something else";
    let distinct = rule("when = { tools = [\"mail\"] }\ndistinct = { what = \"arguments.to\", max = 9 }");
    for (rules, tool, arguments, want) in [
        (&budget, "pay", json!({}), "needed a value in `arguments.amount`, got none"),
        (&budget, "pay", json!({"amount": null}), "needed a value in `arguments.amount`, got none"),
        (&budget, "pay", json!({"amount": -1}), amount),
        (&budget, "pay", json!({"amount": "5"}), amount),
        (&budget, "pay", json!({"amount": 0.0000001}), amount),
        (&budget, "pay", json!({"amount": 1e300}), amount),
        (&budget, "pay", json!({"amount": [5]}), amount),
        (&budget, "pay", json!({"amount": 1e25}), "needed numbers of at least 0 to sum, got something else"),
        (&keyed, "post", json!({}), "needed a value in `arguments.to`, got none"),
        (&keyed, "post", json!({"to": ["a"]}), plain),
        // The call that would be followed is the one that must be known.
        (&keyed, "vault", json!({"to": {"a": 1}}), plain),
        (&distinct, "mail", json!({}), "needed a value in `arguments.to`, got none"),
    ] {
        let hits = faults(rules, tool, arguments.clone());
        assert_eq!(hits.len(), 1, "{tool} {arguments}");
        assert_eq!(hits[0].error.as_deref(), Some(want), "{tool} {arguments}");
        assert_eq!((hits[0].effect, hits[0].id.as_str()), (Decision::Deny, "r"), "{tool} {arguments}");
    }
    assert_eq!(faults(&budget, "post", json!({})), [], "a call that is not summed needs no amount");
    assert_eq!(faults(&keyed, "pay", json!({})), [], "a call that the rule does not concern needs nothing");
}

#[test]
fn an_amount_recorded_against_the_verdict_still_denies() {
    let rules =
        rule("when = { tools = [\"pay\"] }\nbudget = { sum = \"arguments.amount\", max = 10, within = \"5s\" }");
    let mut history = compile(&rules).unwrap().history();
    call("pay", &json!({"amount": -7}), 1, |request| history.record(Event::Request(request))).unwrap();
    let ask = |history: &History, now| call("pay", &json!({"amount": 1}), now, |request| history.check(request));
    let hits = ask(&history, 6);
    assert_eq!(hits[0].error.as_deref(), Some("needed numbers of at least 0 to sum, got something else"));
    assert_eq!(ask(&history, 7), []);
}

#[test]
fn time_that_went_backwards_denies() {
    let rules = rule("when = { tools = [\"pay\"] }\nat_most = { count = 9 }");
    let mut history = compile(&rules).unwrap().history();
    call("mail", &json!({}), 10, |request| history.record(Event::Request(request))).unwrap();
    let ask = |history: &History, now| call("pay", &json!({}), now, |request| history.check(request));
    assert_eq!(ask(&history, 10), []);
    let hits = ask(&history, 9);
    assert_eq!(hits[0].error.as_deref(), Some("time went backwards: needed 10 or later, got 9"));
    assert_eq!(hits[0].effect, Decision::Deny);
    assert_eq!(history.advance(9), Err(HistoryError::Backwards { needed_s: 10, got_s: 9 }));
    assert_eq!(ask(&history, 10), [], "asking the time loses nothing");

    // An event that could not be recorded is missing ever after.
    let lost = call("pay", &json!({}), 3, |request| history.record(Event::Request(request)));
    assert_eq!(lost, Err(HistoryError::Backwards { needed_s: 10, got_s: 3 }));
    assert_eq!(lost.unwrap_err().to_string(), "cannot go back in time: needed 10 s or later, got 3 s");
    let hits = ask(&history, 20);
    assert_eq!(hits[0].error.as_deref(), Some("an event is missing: time went backwards: needed 10 or later, got 3"));
    let stored = history.save();
    assert_eq!(history.rules().restore(stored).unwrap().size(), history.size());
    assert!(!ask(&history.rules().restore(history.save()).unwrap(), 30).is_empty(), "storing does not heal it");
}

#[test]
fn hits_say_who_they_are_in_the_order_of_packs_and_ids() {
    let one = "[[rule]]\nid = \"b\"\nversion = \"3\"\nclause = \"Law 1\"\neffect = \"ask\"\nreason = \"x\"\nat_most = { count = 0 }\n\
               [[rule]]\nid = \"a\"\neffect = \"defer\"\nreason = \"y\"\nat_most = { count = 0 }\n";
    let other = "[[rule]]\nid = \"c\"\nreason = \"z\"\nat_most = { count = 0 }\n";
    let texts = [
        TemporalText { pack: "zebra", version: "1", rules: one },
        TemporalText { pack: "ant", version: "2", rules: other },
        TemporalText { pack: "empty", version: "2", rules: "" },
    ];
    let temporal = Temporal::compile(texts, &tools()).unwrap();
    let got = call("pay", &json!({}), 1, |request| temporal.history().check(request));
    let hit = |id: &str, pack: &str, version: &str, clause: Option<&str>, effect, reason: &str| Hit {
        id: id.to_owned(),
        pack: pack.to_owned(),
        version: version.to_owned(),
        clause: clause.map(str::to_owned),
        effect,
        reason: reason.to_owned(),
        error: None,
    };
    let want = [
        hit("c", "ant", "2", None, Decision::Deny, "z"),
        hit("a", "zebra", "1", None, Decision::Defer, "y"),
        hit("b", "zebra", "3", Some("Law 1"), Decision::Ask, "x"),
    ];
    assert_eq!(got, want);
    assert!(temporal.rules().eq(&want));
    assert_eq!(
        call("unknown", &json!({}), 1, |request| temporal.history().check(request)),
        [],
        "the guard denies those"
    );
}

#[test]
fn a_stored_history_goes_on_under_its_own_rules_alone() {
    let rules = rule(
        "when = { tools = [\"pay\"] }\nper = [\"arguments.to\"]\nbudget = { sum = \"arguments.amount\", max = 10, within = \"1m\" }",
    );
    let temporal = compile(&rules).unwrap();
    let mut history = temporal.history();
    for (to, amount, now) in [("a", 6, 1), ("b", 9, 2), ("a", 1, 3)] {
        call("pay", &json!({"to": to, "amount": amount}), now, |request| history.record(Event::Request(request)))
            .unwrap();
    }
    let text = serde_json::to_string(&history.save()).unwrap();
    let again = temporal.restore(serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(serde_json::to_string(&again.save()).unwrap(), text);
    for (to, amount, now) in [("a", 3, 5), ("a", 4, 5), ("a", 9, 62), ("a", 10, 62), ("b", 2, 62), ("b", 10, 63)] {
        let ask = |h: &History| call("pay", &json!({"to": to, "amount": amount}), now, |request| h.check(request));
        assert_eq!(ask(&again), ask(&history), "{to} {amount} {now}");
    }
    let other = compile(&rules.replace("10", "11")).unwrap();
    let refused = other.restore(history.save()).unwrap_err();
    assert_eq!(
        refused,
        HistoryError::OtherRules { needed: other.digest().to_owned(), got: temporal.digest().to_owned() }
    );
}

#[test]
fn what_left_the_window_is_forgotten() {
    let rules =
        rule("when = { tools = [\"pay\"] }\nper = [\"arguments.to\"]\nat_most = { count = 9, within = \"10s\" }")
            + "[[rule]]\nid = \"all\"\nreason = \"x\"\nwhen = { tools = [\"pay\"] }\nat_most = { count = 100000 }\n";
    let mut history = compile(&rules).unwrap().history();
    let mut largest = 0;
    for now in 0..5_000u64 {
        let to = json!({"to": format!("k{now}")});
        call("pay", &to, now, |request| history.record(Event::Request(request))).unwrap();
        largest = largest.max(history.size());
    }
    // Eleven events and as many keys within the window, and one count without a window.
    assert_eq!(largest, 11 + 11 + 1);
    history.advance(10_000).unwrap();
    assert_eq!(history.size(), 1);
}

#[test]
fn a_text_that_cannot_mean_anything_is_refused_with_what_it_needs() {
    let check = |body: &str, want: &str| {
        let got = compile(&rule(body)).unwrap_err().to_string();
        assert_eq!(got, want, "{body}");
    };
    let start = "cannot take rule `r` over history of pack `p`: needed ";
    let kinds = "exactly one of `at_most`, `never_after`, `only_after`, `cooldown`, `budget` and `distinct`, got none or several";
    check("", &format!("{start}{kinds}"));
    check("at_most = { count = 1 }\ncooldown = { pause = \"1s\" }", &format!("{start}{kinds}"));
    let time = |got: &str| format!("{start}a time such as `30s`, `5m`, `1h` or `7d`, got `{got}`");
    for wrong in ["", "s", "0s", "1w", "-1s", "1.5h", "9223372036854775807d", "1é", "+1s"] {
        check(&format!("at_most = {{ count = 1, within = {wrong:?} }}"), &time(wrong));
    }
    check("cooldown = { pause = \"0s\" }", &time("0s"));
    check("at_most = { count = -1 }", &format!("{start}a count of at least 0, got `-1`"));
    check(
        "effect = \"allow\"\nat_most = { count = 1 }",
        &format!("{start}`deny`, `defer` or `ask` as the effect, got `allow`"),
    );
    check(
        "when = { actions = [\"fly\"] }\nat_most = { count = 1 }",
        &format!("{start}a class of action that the guard knows, got `fly`"),
    );
    check(
        "at_most = { count = 1, of = { data = [\"secret\"] } }",
        &format!("{start}a class of data that the guard knows, got `secret`"),
    );
    check(
        "per = [\"argument.to\"]\nat_most = { count = 1 }",
        &format!("{start}`subject`, `agent`, `run`, `purpose`, `tool` or `arguments.` with a name, got `argument.to`"),
    );
    check(
        "budget = { sum = \"arguments.n\", max = \"many\" }",
        &format!("{start}a number of at least 0 as `max`, got `\"many\"`"),
    );
    let unknown = compile(&rule("at_most = { count = 1, per = \"agent\" }")).unwrap_err().to_string();
    assert!(
        unknown.starts_with("cannot read the rules over history of pack `p`: line 4: unknown field `per`"),
        "{unknown}"
    );
    let twice = compile(&(rule("at_most = { count = 1 }") + &rule("at_most = { count = 2 }"))).unwrap_err();
    let want = TemporalError::Duplicate { rule: "r".to_owned(), first: "p".to_owned(), second: "p".to_owned() };
    assert_eq!(twice, want);
}
