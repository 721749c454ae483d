//! How long a decision takes with a hundred rules and labels: `cargo run --release -p surefoot-guard --example decide`.
//!
//! Prints the median and the 99th percentile for each kind of call, and for all of them mixed, over calls whose arguments
//! differ each time.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::time::Instant;

use episode::ToolSpec;
use serde_json::{Map, Value, json};
use surefoot_guard::{Guard, GuardError, Labels, Origin, Pack, Packs, Principal, Readers, Request, Scope, Shipped};

const CALLS: usize = 20_000;
const RULES: usize = 100;

fn main() -> Result<(), GuardError> {
    let mut packs = Packs::new([Shipped::Baseline.pack()?])?;
    for shipped in [Shipped::RedLines, Shipped::Workspace] {
        packs = packs.tighten(shipped.pack()?)?;
    }
    let shipped: usize = packs.iter().map(|pack| pack.rule_ids().count()).sum();
    let own: String = (shipped..RULES)
        .map(|i| {
            format!(
                "@id(\"own-{i}\") @reason(\"a rule of the run\")\nforbid (principal, action, resource) when {{ \
                 context.labels.sensitivity.contains(\"credentials\") && context.hosts.within.contains(\"h{i}.example\") }};\n"
            )
        })
        .collect();
    packs = packs.tighten(Pack::read("name = \"own\"\nversion = \"1\"\nabout = \"fills up\"\n", &own, "")?)?;
    let tools = [
        tool(
            "mail",
            "send",
            json!({"to": {"type": "array", "items": {"type": "string"}}, "subject": {"type": "string"}, "body": {"type": "string"}}),
        ),
        tool("write_file", "create", json!({"path": {"type": "string"}, "content": {"type": "string"}})),
        tool("fetch", "fetch", json!({"url": {"type": "string"}})),
        tool("pay", "pay", json!({"payee": {"type": "string"}, "amount": {"type": "number"}})),
        tool("run", "execute", json!({"command": {"type": "string"}})),
    ];
    let scope =
        Scope::default().rooted_at("/desk/repo")?.with_host("api.example.org")?.with_recipient("@ours.example")?;
    let scope = ["send", "create", "fetch", "pay", "execute"].iter().try_fold(scope, |s, class| s.granting(class))?;
    let guard = Guard::new(&packs, &tools, &scope)?;
    let principal = Principal {
        subject: "ada".into(),
        agent: "helper".into(),
        run: "run-1".into(),
        purpose: "office work".into(),
        chain: vec!["planner".into()],
        ..Principal::default()
    };
    let labels = Labels {
        origins: [Origin::User, Origin::Web, Origin::Tool("read_file".into())].into(),
        untrusted: true,
        sensitivity: ["internal".to_owned(), "personal".to_owned()].into(),
        readers: Readers::Only(["ada@ours.example".to_owned(), "bob@ours.example".to_owned()].into()),
    };
    let history = guard.history();
    let mut all = Vec::new();
    println!("{} rules, {} tools, {CALLS} calls each; microseconds a decision", guard.rules().len(), tools.len());
    for tool in &tools {
        let mut times = Vec::with_capacity(CALLS);
        for i in 0..CALLS {
            let arguments = arguments(&tool.name, i);
            let request = Request {
                principal: &principal,
                tool: &tool.name,
                arguments: &arguments,
                labels: &labels,
                now_s: i as u64,
            };
            let start = Instant::now();
            let verdict = guard.decide(&request, &history);
            times.push(start.elapsed().as_nanos() as u64);
            std::hint::black_box(verdict);
        }
        print(&tool.name, &mut times);
        all.extend(times);
    }
    print("all", &mut all);
    Ok(())
}

fn tool(name: &str, class: &str, properties: Value) -> ToolSpec {
    ToolSpec::new(name, name, class, json!({"type": "object", "properties": properties})).touching(["internal"])
}

fn arguments(tool: &str, i: usize) -> Map<String, Value> {
    let text = "Dear Bob, here are the figures for the third quarter; see the second page for what changed since.";
    let value = match tool {
        "mail" => json!({"to": ["bob@ours.example", format!("p{i}@ours.example")], "subject": "Figures", "body": text}),
        "write_file" => json!({"path": format!("reports/{i}/figures.md"), "content": text}),
        "fetch" => json!({"url": format!("https://api.example.org/v1/figures?quarter={i}")}),
        "pay" => json!({"payee": "bob@ours.example", "amount": (i % 90) as f64 + 0.5}),
        _ => json!({"command": format!("grep -rn figures reports/{i} | sort > out.txt")}),
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn print(name: &str, times: &mut [u64]) {
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize] as f64 / 1000.0;
    println!("{name:>11}  p50 {:6.1}  p99 {:6.1}  max {:8.1}", at(0.5), at(0.99), at(1.0));
}
