//! `surefoot approvals`: what waits for an answer, and the answer.

use std::path::PathBuf;

use gate::{Approvals, Approver, Consent, Roster};
use serde_json::Value;

use crate::Done;
use crate::cmd::agent::{now_ms, who};
use crate::context::Context;
use crate::error::Failure;
use crate::out::table;

/// List calls that wait for an approval, and answer them
///
/// An approval is good for one call with exactly the arguments shown, under the rules that asked, until it expires.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Where receipts and approvals are kept [default: `agent` in SUREFOOT_HOME]
    #[arg(long, value_name = "DIR", global = true)]
    record: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List what waits
    List,
    /// Let a call run, once, as shown
    Grant {
        /// Its id
        id: String,
    },
    /// Refuse a call
    Refuse {
        /// Its id
        id: String,
    },
    /// List calls that began on an approval and of whose end nothing is known
    InDoubt,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let record = args.record.clone().unwrap_or_else(|| context.root.join("agent")).join("approvals");
    if !record.is_dir() {
        if matches!(args.action, Action::List | Action::InDoubt) {
            context.note("nothing has asked for an approval yet");
            return Ok(());
        }
        return Err(Failure::bad(format!("there are no approvals in `{}`", record.display())));
    }
    let user = who();
    let approvals = Approvals::open(&record, Roster::person(&user)).map_err(Failure::gate)?;
    let answer = |id: &str, consent| {
        let standing = approvals.answer(id, &Approver::Person(user.clone()), consent, now_ms()).map_err(Failure::gate)?;
        match context.json() {
            true => context.out.json(&serde_json::json!({ "id": id, "standing": standing.to_string() })),
            false => context.out.line(view::visible(&format!("{id}: {standing}"))),
        }
    };
    match &args.action {
        Action::Grant { id } => answer(id, Consent::Grant),
        Action::Refuse { id } => answer(id, Consent::Refuse),
        Action::List => list(&approvals.pending(now_ms()).map_err(Failure::gate)?, context),
        Action::InDoubt => {
            let begun = approvals.in_doubt().map_err(Failure::gate)?;
            list(&begun.into_iter().map(|(pending, _)| pending).collect::<Vec<_>>(), context)
        }
    }
}

fn list(pending: &[gate::Pending], context: &Context) -> Done {
    if context.json() {
        return pending.iter().try_for_each(|p| context.out.json(p));
    }
    if pending.is_empty() {
        context.note("nothing waits for an answer");
        return Ok(());
    }
    let mut rows = vec![["id", "tool", "arguments", "for", "why"].map(str::to_owned).to_vec()];
    rows.extend(pending.iter().map(|p| {
        let arguments = Value::Object(p.arguments.clone()).to_string();
        vec![p.id.clone(), p.tool.clone(), arguments, p.principal.subject.clone(), p.reason.clone()]
    }));
    context.out.text(&view::visible(&table(&rows)))
}
