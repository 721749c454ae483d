//! `surefoot audit`: who did what, why it was allowed, and under which rules.

use std::path::PathBuf;

use gate::receipt::audit::{Filter, Line, Tally};
use gate::receipt;
use guard::Decision;

use crate::Done;
use crate::cmd::verify::{folder, key};
use crate::context::Context;
use crate::error::Failure;
use crate::out::table;

/// Tell who did what with tools, why it was allowed, and how often each rule spoke
///
/// Reads receipts, checking their log on the way. With --json: a line for each call, then one with the counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder of receipts, or a run's directory
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Calls of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Calls made for this subject
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Calls of this agent, or of one it started
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Calls in which this rule took part
    #[arg(long, value_name = "ID")]
    rule: Option<String>,
    /// Calls in which a rule for this clause of law, contract or policy took part
    #[arg(long, value_name = "TEXT")]
    clause: Option<String>,
    /// Calls ruled so: allow, modify, ask, defer or deny
    #[arg(long, value_name = "RULING", value_parser = ruling)]
    ruled: Option<Decision>,
    /// Print the counts alone
    #[arg(long)]
    counts: bool,
    /// Print at most this many calls
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

fn ruling(word: &str) -> Result<Decision, String> {
    Decision::parse(word).ok_or_else(|| "needed allow, modify, ask, defer or deny".to_owned())
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let folder = folder(&args.log)?;
    let verifier = key(&folder.join(run::PUBLIC_KEY))?;
    let receipts = receipt::read(&folder.join(run::LOG), &verifier).map_err(|faults| {
        let first = faults.first().map(ToString::to_string).unwrap_or_default();
        Failure::failed(format!("the log has {} faults", faults.len())).why(first).hint("`surefoot verify` lists them")
    })?;
    let filter = Filter {
        session: args.session,
        subject: args.subject,
        agent: args.agent,
        tool: args.tool,
        rule: args.rule,
        clause: args.clause,
        ruled: args.ruled,
        ..Filter::default()
    };
    let mut report = receipt::audit::report(&receipts, filter);
    let calls = std::mem::take(&mut report.calls);
    let shown = if args.counts { 0 } else { calls.len().min(args.limit) };
    if context.json() {
        calls[..shown].iter().try_for_each(|call| context.out.json(call))?;
        return context.out.json(&report);
    }
    if shown > 0 {
        let mut rows = vec![["session", "call", "for", "agent", "tool", "ruled", "ended", "why"].map(str::to_owned).to_vec()];
        rows.extend(calls[..shown].iter().map(row));
        context.out.text(&view::visible(&table(&rows)))?;
        if calls.len() > shown {
            context.note(&format!("{} more calls: give `--limit`", calls.len() - shown));
        }
    }
    let total: u64 = report.ruled.values().sum();
    context.out.line(format!("{total} calls: {}", tally(&report.ruled)))?;
    for (title, counts) in [("rule", &report.by_rule), ("clause", &report.by_clause), ("tool", &report.by_tool)] {
        let rows: Vec<Vec<String>> =
            counts.iter().map(|(name, t)| vec![format!("  {title} {name}"), tally(t)]).collect();
        context.out.text(&view::visible(&table(&rows)))?;
    }
    Ok(())
}

fn row(line: &Line) -> Vec<String> {
    let rules: Vec<&str> = line.rules.iter().map(|r| r.id.as_str()).collect();
    let why = if line.reason.is_empty() { rules.join(", ") } else { line.reason.clone() };
    vec![
        line.session.clone(),
        line.call.to_string(),
        line.subject.clone(),
        line.agent.clone(),
        line.tool.clone(),
        line.ruled.as_str().to_owned(),
        line.ended.map_or("-", |e| e.as_str()).to_owned(),
        why,
    ]
}

fn tally(tally: &Tally) -> String {
    let parts: Vec<String> = tally.iter().map(|(ruled, n)| format!("{n} {}", ruled.as_str())).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
