//! The conformance corpus of Dogwood 1.1.0, its temporal parts, decided by the guard's temporal engine.
//!
//! Prints, for each part of the corpus and for both ways in which Dogwood hands over its formulas (relativised over one
//! history, and plain over one history a principal), how many cases agree, and what is outside. Ends with an error when a
//! case disagrees.

#![allow(dead_code, reason = "the engine's file is shared with the guard, which uses all of it")]

mod adapter;
mod differential;
#[path = "../../src/temporal/engine/mod.rs"]
mod engine;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use dogwood_language::corpus::{self, CorpusTrace};
use dogwood_language::{
    Authorizer, Decision, InMemoryTemporalEngine, LoweredPolicySet, PolicySchema, ServiceSchema, TemporalEngine,
    Validator, parse_trace,
};

use adapter::{Engine, Tally};

/// The events that a case has unless it says otherwise: the corpus was written before principals were told apart by default.
const EVENTS: &str = "
decision event <A>::request { ...inputs(A), callerPrincipal: principalType(A), callerResource: resourceType(A),
    requestId: String, sessionId: String, }
event <A>::response { ...inputs(A), ...outputs(A), callerPrincipal: principalType(A), callerResource: resourceType(A),
    requestId: String, sessionId: String, }
event <A>::error { ...inputs(A), callerPrincipal: principalType(A), callerResource: resourceType(A),
    requestId: String, sessionId: String, }
";

struct Case {
    name: String,
    policy: String,
    schema: String,
    events: Option<String>,
    macros: Option<String>,
    traces: Vec<CorpusTrace>,
}

#[derive(Default)]
struct Count {
    passed: usize,
    failed: Vec<String>,
    outside: Vec<String>,
    /// Cases that Dogwood's own engine does not pass either, for want of what is not embedded.
    lacking: Vec<String>,
    leaves: Tally,
}

impl Case {
    fn policies(&self) -> Result<LoweredPolicySet, String> {
        let schema = PolicySchema::from_cedarschema_str(&self.schema).map_err(|e| format!("{e:?}"))?;
        let mut service = ServiceSchema::builder().event_schema_str(self.events.as_deref().unwrap_or(EVENTS));
        if let Some(macros) = &self.macros {
            service = service.macros_str(macros);
        }
        let service = service.build().map_err(|e| format!("{e:?}"))?;
        LoweredPolicySet::from_str(&self.policy, &service, &schema).map_err(|e| format!("{e:?}"))
    }

    fn run(&self, partitioned: bool, count: &mut Count) {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let mut wrong = Vec::new();
        let own = |trace| self.replay(trace, partitioned, InMemoryTemporalEngine::new());
        if self.traces.iter().any(|trace| !matches!(own(trace), Ok(None))) {
            count.lacking.push(self.name.clone());
            return;
        }
        for trace in &self.traces {
            *tally.lock().expect("one thread") = Tally::default();
            match self.replay(trace, partitioned, Engine::new(tally.clone())) {
                Ok(None) => {}
                Ok(Some(difference)) => wrong.push(format!("{} trace {}: {difference}", self.name, trace.index)),
                Err(fault) => wrong.push(format!("{} trace {}: {fault}", self.name, trace.index)),
            }
        }
        let tally = tally.lock().expect("one thread");
        count.leaves.constant += tally.constant;
        count.leaves.window += tally.window;
        count.leaves.outside.extend(&tally.outside);
        if !tally.outside.is_empty() {
            count.outside.push(format!("{}: {}", self.name, tally.outside.join("; ")));
        } else if wrong.is_empty() {
            count.passed += 1;
        } else {
            count.failed.extend(wrong);
        }
    }

    /// Decides a trace; what differs from what is expected, if anything.
    fn replay(
        &self,
        trace: &CorpusTrace,
        partitioned: bool,
        engine: impl TemporalEngine + 'static,
    ) -> Result<Option<String>, String> {
        let mut builder = Authorizer::builder(self.policies()?).temporal_engine(engine);
        if partitioned {
            builder = builder.partition_temporal();
        }
        let mut authorizer = builder.build().map_err(|e| format!("{e:?}"))?;
        let mut got = Vec::new();
        for (i, event) in parse_trace(&trace.trace_log).map_err(|e| format!("{e:?}"))?.iter().enumerate() {
            if let Some(response) = authorizer.is_authorized(event) {
                let allowed = response.decision() == Decision::Allow;
                got.push(format!("@{} (time point {i}): {allowed}", event.timestamp()));
            }
        }
        let want: Vec<&str> = trace.expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Ok((got != want).then(|| format!("needed {want:?}, got {got:?}")))
    }
}

fn report(part: &str, cases: &[Case]) -> bool {
    let mut agreed = true;
    for (way, partitioned) in [("relativised", false), ("partitioned", true)] {
        let mut count = Count::default();
        cases.iter().for_each(|case| case.run(partitioned, &mut count));
        println!(
            "{part:<9} {way:<12} {:>3} cases: {:>3} passed, {} failed, {} outside, {} that need what is not embedded; \
             formulas: {} at constant cost, {} at the window's cost, {} outside",
            cases.len(),
            count.passed,
            count.failed.len(),
            count.outside.len(),
            count.lacking.len(),
            count.leaves.constant,
            count.leaves.window,
            count.leaves.outside.len(),
        );
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        count.leaves.outside.iter().for_each(|why| *reasons.entry(why).or_default() += 1);
        reasons.iter().for_each(|(why, n)| println!("  outside, {n} leaves: {why}"));
        if list() {
            count.outside.iter().for_each(|line| println!("  outside: {line}"));
            count.lacking.iter().for_each(|line| println!("  not embedded in full: {line}"));
        }
        count.failed.iter().for_each(|line| println!("  failed: {line}"));
        agreed &= count.failed.is_empty();
    }
    agreed
}

/// Whether to name every case that is outside or not embedded in full.
fn list() -> bool {
    std::env::args().any(|arg| arg == "--list")
}

fn main() -> ExitCode {
    let (rejected, passing): (Vec<_>, Vec<_>) =
        corpus::temporal_cases().into_iter().partition(corpus::TemporalCase::is_parse_rejected);
    let temporal: Vec<Case> = passing
        .into_iter()
        .map(|c| Case {
            name: c.name,
            policy: c.policy_src,
            schema: c.schema_src,
            events: c.event_schema_src,
            macros: None,
            traces: c.traces,
        })
        .collect();
    let macros: Vec<Case> = corpus::macro_cases()
        .into_iter()
        .map(|c| Case {
            name: c.name,
            policy: c.policy_src,
            schema: c.schema_src,
            events: c.event_schema_src,
            macros: c.macros_src,
            traces: c.traces,
        })
        .collect();
    let mixed: Vec<Case> = corpus::mixed_cases()
        .into_iter()
        .map(|c| Case {
            name: c.name,
            policy: c.policy_src,
            schema: c.schema_src,
            events: c.event_schema_src,
            macros: None,
            traces: c.traces,
        })
        .collect();
    let mut agreed = report("temporal", &temporal);
    agreed &= report("macros", &macros);
    agreed &= report("mixed", &mixed);
    let rejected: Vec<Case> = rejected
        .into_iter()
        .map(|c| Case {
            name: c.name,
            policy: c.policy_src,
            schema: c.schema_src,
            events: c.event_schema_src,
            macros: None,
            traces: c.traces,
        })
        .collect();
    let (mut parser, mut validator, mut rest) = (0, 0, Vec::new());
    for case in &rejected {
        match case.policies() {
            Err(_) => parser += 1,
            Ok(policies) if !Validator::new().validate(&policies).validation_passed() => validator += 1,
            Ok(_) => rest.push(&case.name),
        }
    }
    println!(
        "rejected  {} cases, which never reach an engine: {parser} refused by Dogwood's parser, {validator} by its validator, {} \
         about what is not embedded (information providers)",
        rejected.len(),
        rest.len()
    );
    if list() {
        rest.iter().for_each(|name| println!("  not embedded in full: {name}"));
    }
    match differential::run(20_000) {
        Ok(same) => agreed &= same,
        Err(fault) => {
            println!("  failed: {fault}");
            agreed = false;
        }
    }
    if agreed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
