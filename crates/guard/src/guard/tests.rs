use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Autonomy, Deployment, Labels, Need, Origin, Pack, Packs, Principal, Readers, Shipped};
use episode::ToolSpec;

const HEADER: &str = "name = \"p\"\nversion = \"3\"\nabout = \"a pack\"\n";
const OPEN: &str = "@id(\"open\") @reason(\"all\") permit (principal, action, resource);";

fn pack(rules: &str) -> Pack {
    Pack::read(HEADER, rules, "").unwrap()
}

fn tools() -> Vec<ToolSpec> {
    let parameters = json!({
        "type": "object", "required": ["n"],
        "properties": {
            "n": {"type": "integer"}, "f": {"type": "number"}, "s": {"type": "string"}, "to": {"type": "array", "items": {"type": "string"}},
            "o": {"type": "object", "properties": {"y": {"type": "string"}}}, "path": {"type": "string"},
        },
    });
    vec![
        ToolSpec::new("t", "", "send", parameters.clone()),
        ToolSpec::new("r", "", "read", parameters.clone()).touching(["personal"]),
        ToolSpec::new("odd", "", "conjure", parameters.clone()),
        ToolSpec::new("odd_data", "", "read", parameters).touching(["aura"]),
    ]
}

fn guard(rules: &str) -> Guard {
    Guard::new(&Packs::new([pack(rules)]).unwrap(), &tools(), &Scope::default()).unwrap()
}

fn unchecked(rules: &str) -> Guard {
    Guard::build(&Packs::new([pack(rules)]).unwrap(), &tools(), &Scope::default(), false).unwrap()
}

fn ask(guard: &Guard, tool: &str, arguments: Value) -> Verdict {
    let principal = Principal { subject: "ada".into(), agent: "helper".into(), ..Principal::default() };
    let labels = Labels::default();
    let request = Request {
        principal: &principal,
        tool,
        arguments: arguments.as_object().unwrap(),
        labels: &labels,
        now_s: 1_000,
    };
    guard.decide(&request, &guard.history())
}

fn ids(verdict: &Verdict) -> Vec<&str> {
    verdict.rules.iter().map(|hit| hit.id.as_str()).collect()
}

#[track_caller]
fn check(rules: &str, tool: &str, arguments: Value, want: Decision, named: &[&str]) {
    let verdict = ask(&guard(rules), tool, arguments);
    assert_eq!((verdict.decision, ids(&verdict)), (want, named.to_vec()));
}

fn restriction(id: &str, effect: &str, when: &str) -> String {
    let more = if effect == "modify" { " @rewrite(\"cap n 10\")" } else { "" };
    format!(
        "@id(\"{id}\") @effect(\"{effect}\"){more} @reason(\"r\") forbid (principal, action, resource) when {{ {when} }};\n"
    )
}

#[test]
fn what_no_rule_permits_is_denied() {
    check("", "t", json!({"n": 1}), Decision::Deny, &["default-deny"]);
    check(OPEN, "t", json!({"n": 1}), Decision::Allow, &["open"]);
    let read = "@id(\"r\") @reason(\"x\") permit (principal, action in Action::\"class:read\", resource);";
    check(read, "r", json!({"n": 1}), Decision::Allow, &["r"]);
    check(read, "t", json!({"n": 1}), Decision::Deny, &["default-deny"]);
    let data = "@id(\"d\") @reason(\"x\") permit (principal, action in [Action::\"data:personal\", Action::\"tool:t\"], resource);";
    check(data, "r", json!({"n": 1}), Decision::Allow, &["d"]);
    check(data, "t", json!({"n": 1}), Decision::Allow, &["d"]);
}

#[test]
fn an_unknown_tool_class_or_argument_is_denied_whatever_permits() {
    check(OPEN, "x", json!({}), Decision::Deny, &["unknown-tool"]);
    check(OPEN, "odd", json!({}), Decision::Deny, &["unknown-class"]);
    check(OPEN, "odd_data", json!({}), Decision::Deny, &["unknown-class"]);
    check(OPEN, "t", json!({}), Decision::Deny, &["arguments-misfit"]);
    check(OPEN, "t", json!({"n": 1, "m": 1}), Decision::Deny, &["arguments-misfit"]);
    check(OPEN, "t", json!({"n": "1"}), Decision::Deny, &["arguments-misfit"]);
    let verdict = ask(&guard(OPEN), "odd", json!({}));
    assert_eq!(verdict.reason(), "tool `odd` has the class of action `conjure`, which is not known");
}

#[test]
fn deny_beats_defer_beats_ask_beats_modify_beats_allow_in_every_mixture() {
    let effects = ["modify", "ask", "defer", "deny"];
    for mask in 0_u32..16 {
        let mut rules = OPEN.to_owned();
        let mut want = Decision::Allow;
        for (i, effect) in effects.iter().enumerate().filter(|(i, _)| mask & (1 << i) != 0) {
            rules += &restriction(&format!("r{i}"), effect, "context.input.n > 5");
            want = want.max(Decision::parse(effect).unwrap());
        }
        let verdict = ask(&guard(&rules), "t", json!({"n": 50}));
        assert_eq!(verdict.decision, want, "{mask:b}: {:?}", ids(&verdict));
        assert!(verdict.rules.is_sorted_by(|a, b| a.effect >= b.effect), "the deciding ones first");
        assert_eq!(ask(&guard(&rules), "t", json!({"n": 5})).decision, Decision::Allow);
        // Rewritten where it would run, as it was asked for where it would not.
        let n = if want <= Decision::Ask && mask & 1 != 0 { 10 } else { 50 };
        assert_eq!(verdict.arguments["n"], n, "{mask:b}");
    }
}

#[test]
fn a_call_that_was_rewritten_is_looked_at_again() {
    let open = OPEN.to_owned();
    let cap = restriction("cap", "modify", "context.input.n > 10");
    let rules = open.clone() + &cap + &restriction("ten", "deny", "context.input.n == 10");
    check(&rules, "t", json!({"n": 50}), Decision::Deny, &["ten", "cap", "open"]);
    let rules = open.clone() + &cap + &restriction("many", "ask", "context.input.n == 50");
    check(&rules, "t", json!({"n": 50}), Decision::Ask, &["many", "cap", "open"]);
    // A permit must hold for what will run as well.
    let narrow = "@id(\"fifty\") @reason(\"x\") permit (principal, action, resource) when { context.input.n == 50 };";
    check(&(narrow.to_owned() + &cap), "t", json!({"n": 50}), Decision::Deny, &["default-deny", "cap", "fifty"]);
    // Two rules that undo each other never settle.
    let up = "@id(\"up\") @effect(\"modify\") @rewrite(\"set n 50\") @reason(\"x\") forbid (principal, action, resource) when { context.input.n <= 10 };";
    check(&(open + &cap + up), "t", json!({"n": 50}), Decision::Deny, &["unsettled", "cap", "up", "open"]);
}

#[test]
fn a_rewriting_that_cannot_be_done_denies_and_one_that_changes_nothing_takes_no_part() {
    let rule = |rewrite: &str| {
        format!(
            "{OPEN}@id(\"m\") @effect(\"modify\") @rewrite(\"{rewrite}\") @reason(\"x\") forbid (principal, action, resource);"
        )
    };
    let verdict = ask(&guard(&rule("cap s 3")), "t", json!({"n": 1, "s": "x"}));
    assert_eq!((verdict.decision, verdict.rules[0].id.as_str()), (Decision::Deny, "m"));
    assert_eq!(verdict.rules[0].error.as_deref(), Some("cannot cap argument `s`: needed a number"));
    check(&rule("cap n 3"), "t", json!({"n": 2}), Decision::Allow, &["open"]);
    check(&rule("drop s"), "t", json!({"n": 2}), Decision::Allow, &["open"]);
    let verdict = ask(&guard(&rule("drop s")), "t", json!({"n": 2, "s": "x"}));
    assert_eq!((verdict.decision, Value::Object(verdict.arguments)), (Decision::Modify, json!({"n": 2})));
    // What a rewriting makes must fit the tool as well.
    check(&rule("set n \\\"x\\\""), "t", json!({"n": 2}), Decision::Deny, &["arguments-misfit", "m", "open"]);
}

#[test]
fn who_must_approve_is_the_sum_of_what_every_asking_rule_needs() {
    let rules = format!(
        "{OPEN}@id(\"a\") @effect(\"ask\") @reason(\"x\") forbid (principal, action, resource);
         @id(\"b\") @effect(\"ask\") @approvals(\"2 people of legal, ops within 60 s\") @reason(\"y\") forbid (principal, action, resource);
         @id(\"c\") @effect(\"ask\") @reason(\"x\") forbid (principal, action, resource);"
    );
    let verdict = ask(&guard(&rules), "t", json!({"n": 1}));
    let both = Need { count: 2, roles: ["legal", "ops"].map(str::to_owned).into(), people: true, lifetime_s: 60 };
    assert_eq!(verdict.needs, [Need::default(), both]);
    assert_eq!(verdict.reason(), "x; y");
    let denied = rules + &restriction("d", "deny", "true");
    assert_eq!(ask(&guard(&denied), "t", json!({"n": 1})).needs, []);
}

/// Conditions that fail when they are looked at, each in another way.
const FAULTS: [&str; 34] = [
    "context.nothing == 1",
    "context.input.nothing == 1",
    "context.labels.nothing == 1",
    "principal.name == \"x\"",
    "resource.nothing == 1",
    "Tool::\"other\".name == \"x\"",
    "context.input.s == \"x\"",
    "context.input.n + 9223372036854775807 > 0",
    "context.input.n - 9223372036854775807 - 9223372036854775807 < 0",
    "context.input.n * 9223372036854775807 > 0",
    "-(-9223372036854775807 - context.input.n) > 0",
    "context.input.n < \"x\"",
    "\"x\" <= context.input.n",
    "context.input.n + true > 0",
    "!context.input.n",
    "context.input.n && true",
    "true && context.input.n",
    "context.input.n || true",
    "false || context.input.n",
    "if context.input.n then true else false",
    "context.input.n",
    "context.input.n like \"*\"",
    "context.input.n.contains(1)",
    "[1].containsAll(context.input.n)",
    "context.input.n.containsAny([1])",
    "context.input.n.isEmpty()",
    "context.input.n has x",
    "context.input.n in principal",
    "principal in context.input.n",
    "ip(\"nowhere\").isLoopback()",
    "decimal(\"1.23456\").lessThan(decimal(\"1.0\"))",
    "datetime(\"yesterday\") < datetime(\"2026-01-01\")",
    "duration(\"long\") < duration(\"1h\")",
    "ip(\"127.0.0.1\").lessThan(decimal(\"1.0\"))",
];

#[test]
fn every_rule_fault_denies_and_is_named_whatever_the_rule_wanted() {
    for fault in FAULTS {
        for effect in ["deny", "defer", "ask", "modify"] {
            for clause in [
                fault.to_owned(),
                format!("context.input.n == 2 && ({fault})"),
                format!("!context.paths.top && ({fault})"),
            ] {
                let rules = OPEN.to_owned() + &restriction("faulty", effect, &clause);
                let verdict = ask(&unchecked(&rules), "t", json!({"n": 2}));
                let hit = verdict.rules.first().filter(|hit| hit.id == "faulty");
                let hit = hit.unwrap_or_else(|| panic!("`{clause}` as {effect}: {verdict:?}"));
                assert_eq!((verdict.decision, hit.effect), (Decision::Deny, Decision::Deny), "`{clause}` as {effect}");
                assert!(hit.error.is_some(), "`{clause}` as {effect}: {hit:?}");
            }
        }
        let permit =
            format!("{OPEN}@id(\"faulty\") @reason(\"r\") permit (principal, action, resource) when {{ {fault} }};");
        let verdict = ask(&unchecked(&permit), "t", json!({"n": 2}));
        assert_eq!(
            (verdict.decision, ids(&verdict)),
            (Decision::Deny, vec!["faulty", "open"]),
            "`{fault}` in a permit"
        );
        // Where Cedar does not look, nothing fails: the same rule behind a condition that settles it.
        let apart = OPEN.to_owned() + &restriction("faulty", "deny", &format!("context.input.n == 3 && ({fault})"));
        assert_eq!(ask(&unchecked(&apart), "t", json!({"n": 2})).decision, Decision::Allow, "`{fault}` out of sight");
    }
}

#[test]
fn what_would_fail_is_refused_before_anything_runs() {
    // Only arithmetic that may overflow and a tool that is not there pass the check of types; they deny when they fail.
    for fault in FAULTS {
        let packs = Packs::new([pack(&(OPEN.to_owned() + &restriction("faulty", "deny", fault)))]).unwrap();
        let built = Guard::new(&packs, &tools(), &Scope::default());
        let late = fault.contains("9223372036854775807") || fault.contains("other");
        assert_eq!(built.is_ok(), late, "`{fault}`: {:?}", built.err());
    }
    let wrong = |rule: &str| {
        Guard::new(&Packs::new([pack(rule)]).unwrap(), &tools(), &Scope::default()).unwrap_err().to_string()
    };
    assert_eq!(
        wrong(&restriction("typo", "deny", "context.paths.outsde.isEmpty()")),
        "rule `typo` of pack `p` does not fit the tools: attribute `paths.outsde` in context for Action::\"tool:odd\" not found"
    );
    assert_eq!(
        wrong("@id(\"a\") @reason(\"x\") permit (principal, action == Action::\"tool:x\", resource);"),
        "rule `a` of pack `p` does not fit the tools: unrecognized action `Action::\"tool:x\"`"
    );
    assert!(wrong(&restriction("bidi", "deny", "context.principal.agent == \"a\u{202e}b\"")).contains("bidi"));
}

#[test]
fn rules_that_can_apply_to_no_tool_are_told() {
    let rules = OPEN.to_owned()
        + "@id(\"pay\") @reason(\"x\") forbid (principal, action in Action::\"class:pay\", resource);"
        + &restriction("never", "deny", "context.input has nothing && context.input.nothing == 1")
        + &restriction("sometimes", "deny", "context.input has s && context.input.s == \"x\"");
    let guard = guard(&rules);
    let applies: Vec<(&str, bool)> = guard.rules().iter().map(|info| (info.rule.id.as_str(), info.applies)).collect();
    assert_eq!(applies, [("open", true), ("pay", false), ("never", false), ("sometimes", true)]);
}

#[test]
fn a_permit_counts_from_its_day_on_and_a_restriction_at_once() {
    let header = format!("{HEADER}effective_from = \"1970-01-02\"\n");
    let rules = OPEN.to_owned() + &restriction("one", "deny", "context.input.n == 1");
    let packs = Packs::new([Pack::read(&header, &rules, "").unwrap()]).unwrap();
    let guard = Guard::new(&packs, &tools(), &Scope::default()).unwrap();
    let at = |now_s: u64, n: i64| {
        let (principal, labels, arguments) = (Principal::default(), Labels::default(), json!({"n": n}));
        let arguments = arguments.as_object().unwrap();
        let request = Request { principal: &principal, tool: "t", arguments, labels: &labels, now_s };
        let verdict = guard.decide(&request, &guard.history());
        (verdict.decision, ids(&verdict).join(" "))
    };
    assert_eq!(at(86_399, 2), (Decision::Deny, "default-deny".to_owned()));
    assert_eq!(at(86_400, 2), (Decision::Allow, "open".to_owned()));
    assert_eq!(at(0, 1), (Decision::Deny, "default-deny one".to_owned()));
}

#[test]
fn the_digest_tells_any_two_sets_of_rules_apart() {
    let digest = |header: &str, rules: &str, tools: &[ToolSpec], scope: &Scope| {
        let packs = Packs::new([Pack::read(header, rules, "").unwrap()]).unwrap();
        Guard::new(&packs, tools, scope).unwrap().rules_digest().to_owned()
    };
    let mut tools = tools();
    let base = digest(HEADER, OPEN, &tools, &Scope::default());
    let mut all = vec![
        base.clone(),
        digest(&HEADER.replace('3', "4"), OPEN, &tools, &Scope::default()),
        digest(HEADER, &OPEN.replace("all", "any"), &tools, &Scope::default()),
        digest(HEADER, OPEN, &tools, &Scope::default().granting("send").unwrap()),
        digest(HEADER, OPEN, &tools[1..], &Scope::default()),
    ];
    tools.reverse();
    assert_eq!(digest(HEADER, OPEN, &tools, &Scope::default()), base, "the order of tools is no rule");
    tools[0].data.push("code".to_owned());
    all.push(digest(HEADER, OPEN, &tools, &Scope::default()));
    tools[2].parameters["properties"]["s"]["format"] = json!("path");
    all.push(digest(HEADER, OPEN, &tools, &Scope::default()));
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!((distinct.len(), base.len()), (all.len(), 64), "{all:?}");
}

#[test]
fn two_tools_of_one_name_are_refused() {
    let mut tools = tools();
    tools.push(tools[0].clone());
    let error = Guard::new(&Packs::default(), &tools, &Scope::default()).unwrap_err();
    assert_eq!(error.to_string(), "cannot describe tool `t` to rules: another tool has the same name");
}

/// What Cedar says with nothing taken out of its sight: every rule as it was written, the whole context, types checked.
fn reference(guard: &Guard, request: &Request<'_>) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
    let tool = guard.tools.get(request.tool).filter(|tool| tool.unknown.is_none())?;
    let input = tool.input.read(request.arguments).ok()?;
    let facts = facts::of(request.arguments, &tool.input.kinds, tool.commands, &guard.scope, request.labels);
    let undeclared: Vec<&str> = tool.input.undeclared(request.arguments).collect();
    let seen = Seen { request, facts: &facts, data: &tool.data, undeclared: &undeclared };
    let context = Wanted::everything().context(&seen, input).unwrap();
    let agent = EntityUid::from_type_name_and_id(guard.agent.clone(), EntityId::new(&request.principal.agent));
    let (action, resource) = (tool.action.clone(), tool.resource.clone());
    let call =
        cedar_policy::Request::new(agent, action, resource, context, Some(&guard.schema)).expect("fits the schema");
    let (mut applied, mut failed) = (BTreeSet::new(), BTreeSet::new());
    for permits in [true, false] {
        let rules = guard.rules.values().filter(|rule| (rule.effect == Decision::Allow) == permits);
        let set = PolicySet::from_policies(rules.map(|rule| rule.policy.clone())).unwrap();
        let response = guard.authorizer.is_authorized(&call, &set, &guard.entities);
        applied.extend(response.diagnostics().reason().map(ToString::to_string));
        failed.extend(
            response
                .diagnostics()
                .errors()
                .map(|AuthorizationError::PolicyEvaluationError(e)| e.policy_id().to_string()),
        );
    }
    // The sieve against Cedar, rule by rule.
    for rule in &tool.asked {
        if let Some(answer) = rule.sieve.answer(&seen) {
            assert_eq!(
                (answer, failed.contains(&rule.id)),
                (applied.contains(&rule.id), false),
                "{}: {request:?}",
                rule.id
            );
        }
    }
    Some((applied, failed))
}

fn agrees(guard: &Guard, request: &Request<'_>) {
    let Some((applied, failed)) = reference(guard, request) else { return };
    let hits = guard.look(request, &guard.history());
    let of = |want: fn(&Hit) -> bool| -> BTreeSet<String> {
        hits.iter().filter(|hit| hit.pack != "guard" && want(hit)).map(|hit| hit.id.clone()).collect()
    };
    assert_eq!((of(|hit| hit.error.is_none()), of(|hit| hit.error.is_some())), (applied, failed), "{request:?}");
}

fn laid() -> Packs {
    let over = [Shipped::RedLines, Shipped::Workspace];
    let ground = Packs::new([Shipped::Baseline.pack().unwrap()]).unwrap();
    over.iter().fold(ground, |packs, pack| packs.tighten(pack.pack().unwrap()).unwrap())
}

fn world() -> (Vec<ToolSpec>, Scope) {
    let free = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "to": {"type": "array", "items": {"type": "string"}}, "amount": {}, "text": {"type": "string"},
        "url": {"type": "string"},
    }, "additionalProperties": true});
    let tool = |(i, class): (usize, &crate::ActionClass)| {
        let data = crate::data_classes();
        let data = if i % 2 == 0 {
            vec![]
        } else {
            vec![data[i % data.len()].as_str(), data[(i * 3 + 1) % data.len()].as_str()]
        };
        ToolSpec::new(class.as_str(), "", class.as_str(), free.clone()).touching(data)
    };
    let tools = crate::action_classes().iter().enumerate().map(tool).collect();
    let scope = Scope::default()
        .rooted_at("/w")
        .unwrap()
        .with_host("good.example")
        .unwrap()
        .with_recipient("ada@good.example")
        .unwrap();
    (tools, ["update", "send", "pay", "track_person"].iter().fold(scope, |s, class| s.granting(class).unwrap()))
}

fn some_text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "a.txt",
            "../x",
            "/etc/passwd",
            ".ssh/id_rsa",
            ".git/config",
            ".surefoot",
            "*",
            "~/x",
            "a.pem",
            "https://good.example/x",
            "http://10.0.0.1",
            "https://u:p@evil.example",
            "ada@good.example",
            "eve@evil.example",
            "git://good.example",
            "rm -rf /",
            "https://xn--a.example",
            "data:x",
            ".",
            "x.bak",
            "graders/a",
            "%2e%2e/x",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
    ]
}

prop_compose! {
    fn some_call()(
        tool in 0usize..21, path in prop::option::of(some_text()), to in prop::option::of(prop::collection::vec(some_text(), 0..24)),
        amount in prop::option::of(prop_oneof![any::<f64>().prop_map(|x| json!(x)), any::<i64>().prop_map(|x| json!(x)), some_text().prop_map(|x| json!(x)), Just(json!(true))]),
        text in prop::option::of(some_text()), url in prop::option::of(some_text()), more in prop::option::of(some_text()),
    ) -> (usize, Value) {
        let mut arguments = serde_json::Map::new();
        let mut put = |name: &str, value: Option<Value>| { if let Some(value) = value { arguments.insert(name.to_owned(), value); } };
        put("path", path.map(Value::from));
        put("to", to.map(Value::from));
        put("amount", amount);
        put("text", text.map(Value::from));
        put("url", url.map(Value::from));
        put("more", more.map(Value::from));
        (tool, Value::Object(arguments))
    }
}

prop_compose! {
    fn some_principal()(
        subject in "[ab]?", agent in "[ab]?", purpose in "[ a]?", deployment in 0usize..5, supervised: bool, depth in 0usize..5,
    ) -> Principal {
        let all = [Deployment::Unknown, Deployment::Cloud, Deployment::OnPremises, Deployment::Laptop, Deployment::Edge];
        Principal {
            subject, agent, purpose, run: "r".into(), deployment: all[deployment],
            autonomy: if supervised { Autonomy::Supervised } else { Autonomy::Autonomous }, chain: vec!["x".into(); depth],
        }
    }
}

prop_compose! {
    fn some_labels()(
        untrusted: bool, origins in prop::collection::btree_set(0usize..5, 0..4), classes in prop::collection::btree_set(0usize..10, 0..4),
        readers in prop::option::of(prop::collection::btree_set(some_text(), 0..3)),
    ) -> Labels {
        let all = [Origin::System, Origin::User, Origin::Tool("t".into()), Origin::Web, Origin::Memory];
        Labels {
            untrusted,
            origins: origins.into_iter().map(|i| all[i].clone()).collect(),
            sensitivity: classes.into_iter().map(|i| crate::data_classes()[i].as_str().to_owned()).collect(),
            readers: readers.map_or(Readers::Everyone, Readers::Only),
        }
    }
}

/// A condition over facts, of any shape, some of it faulty.
fn some_condition() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "context.labels.untrusted",
        "context.paths.top",
        "resource.granted",
        "true",
        "false",
        "context.paths.outside.isEmpty()",
        "context.hosts.ports.isEmpty()",
        "context.data.contains(\"personal\")",
        "context.data.containsAny([\"health\", \"location\"])",
        "context.paths.parts.containsAll([\".ssh\", \"id_rsa\"])",
        "context.principal.autonomy == \"supervised\"",
        "context.principal.purpose != \"a\"",
        "context.principal.depth >= 2",
        "context.size.widest < 3",
        "context.size.widest > 3",
        "context.principal.depth <= 1",
        "context.principal.depth == 1",
        "[\"edge\", \"cloud\"].contains(context.principal.deployment)",
        "[\"send\", \"pay\"].contains(resource.action)",
        "resource.data.containsAny([\"health\"])",
        "resource.data.isEmpty()",
        "resource.action != \"send\"",
        "context.labels.origins.contains(\"tool:t\")",
        "context.undeclared.isEmpty()",
        "context.labels.readers.contains(\"ada@good.example\")",
        "context.principal.chain.contains(\"x\")",
        "context.nothing",
        "context.size.widest",
        "context.paths.top == 1",
        "context.principal.depth * 9223372036854775807 > 3",
        "context.input has text",
        "(context.input has text && context.input.text like \"*a*\")",
        "context has nothing",
        "context.labels == context.labels",
        "context.amount has most",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|c| format!("!({c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) && ({b})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a}) || ({b})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn slices_and_sieves_hide_no_shipped_rule_and_every_call_fits_the_schema(
        calls in prop::collection::vec((some_call(), some_principal(), some_labels()), 1..6),
    ) {
        thread_local!(static GUARD: Guard = { let (tools, scope) = world(); Guard::new(&laid(), &tools, &scope).unwrap() });
        GUARD.with(|guard| for ((tool, arguments), principal, labels) in &calls {
            let tool = crate::action_classes()[*tool].as_str();
            agrees(guard, &Request { principal, tool, arguments: arguments.as_object().unwrap(), labels, now_s: 7 });
        });
    }

    #[test]
    fn slices_and_sieves_hide_no_rule_of_any_shape_nor_its_fault(
        conditions in prop::collection::vec((some_condition(), any::<bool>()), 1..8), call in some_call(), principal in some_principal(), labels in some_labels(),
    ) {
        let (tools, scope) = world();
        let tool = crate::action_classes()[call.0].as_str();
        let tools = tools.into_iter().filter(|spec| spec.name == tool).collect::<Vec<_>>();
        let mut rules = OPEN.to_owned();
        for (i, (condition, unless)) in conditions.iter().enumerate() {
            let word = if *unless { "unless" } else { "when" };
            let scope = ["principal", "principal == Agent::\"a\"", "principal is Agent"][i % 3];
            let action = ["action", "action in Action::\"class:send\"", "action in [Action::\"data:personal\", Action::\"class:pay\"]"][i / 2 % 3];
            rules += &format!("@id(\"r{i}\") @reason(\"x\") forbid ({scope}, {action}, resource) {word} {{ {condition} }};\n");
        }
        rules += &format!("@id(\"two\") @reason(\"x\") forbid (principal, action, resource) when {{ {} }} unless {{ {} }};", conditions[0].0, conditions[conditions.len() - 1].0);
        let guard = Guard::build(&Packs::new([pack(&rules)]).unwrap(), &tools, &scope, false).unwrap();
        agrees(&guard, &Request { principal: &principal, tool, arguments: call.1.as_object().unwrap(), labels: &labels, now_s: 7 });
    }

    #[test]
    fn what_is_laid_over_only_makes_answers_stricter(
        call in some_call(), principal in some_principal(), labels in some_labels(),
        own in prop::collection::vec((some_condition(), prop::sample::select(vec!["deny", "ask", "defer"])), 0..4),
    ) {
        let (tools, scope) = world();
        let tool = crate::action_classes()[call.0].as_str();
        let tools = tools.into_iter().filter(|spec| spec.name == tool).collect::<Vec<_>>();
        let request = Request { principal: &principal, tool, arguments: call.1.as_object().unwrap(), labels: &labels, now_s: 7 };
        let mut packs = Packs::new([Shipped::Baseline.pack().unwrap()]).unwrap();
        let rules: String = own.iter().enumerate().map(|(i, (when, effect))| restriction(&format!("o{i}"), effect, when)).collect();
        let mut last = Decision::Allow;
        for more in [None, Some(Shipped::RedLines.pack().unwrap()), Some(Shipped::Workspace.pack().unwrap()), Some(pack(&rules))] {
            packs = match more {
                Some(more) => packs.tighten(more).unwrap(),
                None => packs,
            };
            let guard = Guard::build(&packs, &tools, &scope, false).unwrap();
            let decision = guard.decide(&request, &guard.history()).decision;
            prop_assert!(decision >= last, "{decision:?} after {last:?}");
            last = decision;
        }
    }
}
