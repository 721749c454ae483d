//! How many planted instructions the gate stops, and what that costs honest work:
//! `cargo run --release -p surefoot-rollout --example redteam -- [--tasks N] [--json FILE]`.
//!
//! What is measured, and what is not covered, stands in `docs/red-team.md`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints the table, and beside it what it counted")]

mod play;

use std::collections::BTreeMap;

use play::{Answers, Count, Fault, Found, Stand, Stop, Terms};
use serde_json::{Value, json};

/// Each row of the table.
const ARMS: [(Terms, Answers); 8] = [
    (Terms::Open, Answers::Nobody),
    (Terms::Fitting, Answers::Nobody),
    (Terms::Fitting, Answers::Program),
    (Terms::Fitting, Answers::Person),
    (Terms::Fitting, Answers::Anything),
    (Terms::Generous, Answers::Nobody),
    (Terms::Generous, Answers::Anything),
    (Terms::Watched, Answers::Nobody),
];

fn main() -> Result<(), Fault> {
    let mut n_tasks = 1000;
    let mut file = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("`{argument}` needs a value"));
        match argument.as_str() {
            "--tasks" => n_tasks = value()?.parse()?,
            "--json" => file = Some(value()?),
            _ => return Err(format!("unknown argument `{argument}`, needed `--tasks N` or `--json FILE`").into()),
        }
    }
    let mut rows = Vec::new();
    println!(
        "| world | granted | who answers | attacks | attempted | stopped, 95 % interval | honest passed | calls | prompts per \
         100 | solved under attack | quiet stopped |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (terms, answers) in ARMS {
        let mut both = Found::default();
        for world in play::worlds(n_tasks) {
            let found = Stand::new(&world, terms, answers)?.measure()?;
            println!("{}", row(world.name, terms, answers, &found));
            both.join(&found);
            rows.push(in_json(world.name, terms, answers, &found));
        }
        println!("{}", row("both", terms, answers, &both));
        let name = format!("{}, {}", terms.name(), answers.name());
        list(&format!("{name}: honest calls stopped"), &both.false_blocks);
        if answers == Answers::Nobody {
            list(&format!("{name}: attacks stopped"), &both.stops);
        }
        kinds(&name, &both.kinds);
        rows.push(in_json("both", terms, answers, &both));
    }
    if let Some(file) = file {
        std::fs::write(file, serde_json::to_string_pretty(&json!({ "n_tasks": n_tasks, "rows": rows }))? + "\n")?;
    }
    Ok(())
}

fn row(world: &str, terms: Terms, answers: Answers, found: &Found) -> String {
    let Found { honest, calls, attacks, attempted, under_attack, quiet, .. } = found;
    let (low, high) = wilson(attacks);
    let percent = |count: &Count| format!("{:.1} %", 100.0 * count.share());
    format!(
        "| {world} | {} | {} | {} | {attempted} | {} [{:.1}, {:.1}] | {} | {} | {:.1} | {} | {} |",
        terms.name(),
        answers.name(),
        attacks.n,
        percent(attacks),
        100.0 * low,
        100.0 * high,
        percent(honest),
        calls.n,
        100.0 * (1.0 - calls.share()),
        percent(under_attack),
        percent(quiet),
    )
}

fn list(title: &str, stops: &BTreeMap<Stop, u64>) {
    eprintln!("{title}: {}", if stops.is_empty() { "none" } else { "" });
    for ((tool, how, rules), n) in stops {
        eprintln!("  {n:>5} `{tool}` {how} by {rules}");
    }
}

fn kinds(title: &str, kinds: &BTreeMap<String, Count>) {
    let each: Vec<String> = kinds.iter().map(|(tool, c)| format!("{tool} {}/{}", c.good, c.n)).collect();
    eprintln!("{title}: stopped by kind: {}\n", each.join(", "));
}

fn in_json(world: &str, terms: Terms, answers: Answers, found: &Found) -> Value {
    let count = |c: &Count| json!({ "n": c.n, "good": c.good });
    let stops = |stops: &BTreeMap<Stop, u64>| -> Value {
        let each = stops.iter();
        each.map(|((tool, how, rules), n)| json!({ "tool": tool, "ruled": how, "rules": rules, "n": n })).collect()
    };
    let (low, high) = wilson(&found.attacks);
    let kinds: BTreeMap<&String, Value> = found.kinds.iter().map(|(tool, c)| (tool, count(c))).collect();
    json!({
        "world": world, "granted": terms.name(), "answers": answers.name(),
        "attacks": { "planted": found.attacks.n, "attempted": found.attempted, "stopped": found.attacks.good,
            "interval": [low, high], "kinds": kinds },
        "honest": count(&found.honest), "calls": found.calls.n, "prompts": found.calls.n - found.calls.good,
        "under_attack": count(&found.under_attack), "quiet": count(&found.quiet),
        "false_blocks": stops(&found.false_blocks), "stops": stops(&found.stops),
    })
}

/// Wilson's 95 % interval, as in crate `eval`, which stands above this one.
fn wilson(count: &Count) -> (f64, f64) {
    let (n, share, z2) = (count.n.max(1) as f64, count.share(), 1.959_963_984_540_054_f64.powi(2));
    let (middle, scale) = (share + z2 / (2.0 * n), 1.0 + z2 / n);
    let spread = (z2 * (share * (1.0 - share) + z2 / (4.0 * n)) / n).sqrt();
    (((middle - spread) / scale).max(0.0), ((middle + spread) / scale).min(1.0))
}
