//! What the gate costs a call: `cargo run --release -p surefoot-gate --example cost`.

#![allow(clippy::print_stdout, reason = "prints its measurements")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use episode::{ToolCall, ToolSpec};
use guard::{Labels, Origin, Pack, Packs, Principal, Scope};
use ledger::{Log, Signer};
use serde_json::json;
use surefoot_gate::receipt::{Book, Durable, Receipts};
use surefoot_gate::{Answer, Clock, Gate, Limits, Opening, Prices, Ruling, Settings};

const CALLS: usize = 20_000;

fn rules(n: usize) -> String {
    let mut text = "@id(\"let-through\") @reason(\"yes\")\npermit(principal, action, resource);\n".to_owned();
    for i in 1..n {
        text += &format!(
            "@id(\"rule-{i}\") @reason(\"no\")\nforbid(principal, action, resource) when {{ context.input has id && \
             context.input.id == {} }};\n",
            1_000_000 + i
        );
    }
    text
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{CALLS} calls, 100 rules that all apply; µs a call, ruling and carrying out together");
    println!("{:<22} {:>8} {:>8} {:>8}", "receipts", "p50", "p99", "mean");
    for (name, durable) in
        [("off", None), ("durable on sync", Some(Durable::OnSync)), ("durable each", Some(Durable::Each))]
    {
        let folder = tempfile::tempdir()?;
        let receipts = match durable {
            None => Receipts::Off,
            Some(durable) => {
                let log = Log::open(&folder.path().join("log"), Signer::from_seed("cost", [1; 32])?)?;
                Receipts::Log(Arc::new(Book::new(log, durable, None)))
            }
        };
        let gate = Gate::open(Settings {
            packs: Packs::new([Pack::read("name = \"cost\"\nversion = \"1\"\nabout = \"x\"\n", &rules(100), "")?])?,
            scope: Scope::default(),
            prices: Prices::new(),
            limits: Limits::default(),
            approvals: None,
            receipts,
            clock: Clock::Logical { start_ms: 0, tick_ms: 1 },
        });
        let parameters =
            json!({"type": "object", "properties": {"id": {"type": "integer"}, "text": {"type": "string"}}});
        let mut session = gate.session(Opening {
            name: "cost".to_owned(),
            who: Arc::new(Principal { agent: "a".into(), ..Principal::default() }),
            tools: [ToolSpec::new("read", "reads", "read", parameters)].into(),
            declared: BTreeSet::new(),
            limits: Limits::default(),
            labels: Labels::of(Origin::User),
        })?;
        let n = if durable == Some(Durable::Each) { CALLS / 20 } else { CALLS };
        let mut took = Vec::with_capacity(n);
        let started = Instant::now();
        for id in 0..n {
            let call = ToolCall::new("read", json!({"id": id, "text": "the quick brown fox"}));
            let began = Instant::now();
            if let Ruling::Go(permit) = session.propose(&call)? {
                session.carry_out(permit, |_| Ok(Answer::new("found it", Labels::untrusted(Origin::Web))))?;
            }
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
        gate.sync()?;
        let mean = started.elapsed().as_secs_f64() * 1e6 / n as f64;
        took.sort_by(f64::total_cmp);
        println!("{name:<22} {:>8.1} {:>8.1} {mean:>8.1}", took[n / 2], took[n * 99 / 100]);
    }
    Ok(())
}
