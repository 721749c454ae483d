//! `surefoot runs`: the runs there are.

use std::path::{Path, PathBuf};

use serde_json::json;
use store::{Index, RunDir, RunRow};

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;
use crate::open::find_run;
use crate::out::table;

/// List and remove runs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the runs, oldest first
    List {
        /// Make the index anew from the run directories, as when it is damaged
        #[arg(long)]
        rebuild: bool,
    },
    /// Delete a run's directory with everything in it
    Rm {
        /// Its directory, its id or its directory's name
        run: String,
    },
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    match args.action {
        Action::List { rebuild } => list(context, rebuild),
        Action::Rm { run } => remove(context, &run),
    }
}

fn list(context: &Context, rebuild: bool) -> Done {
    let rows = match (rebuild, context.root.is_dir()) {
        (true, true) => Index::rebuild(&context.root)?.list()?,
        (false, true) => context.runs()?.list()?,
        // Looking makes nothing.
        (_, false) => Vec::new(),
    };
    if context.json() {
        return rows.iter().try_for_each(|row| context.out.json(row));
    }
    if rows.is_empty() {
        context.note("there are no runs yet; `surefoot quickstart` makes one");
        return Ok(());
    }
    let mut lines = vec![["run", "status", "step", "best", "algorithm", "model", "path"].map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(line));
    context.out.text(&view::visible(&table(&lines)))
}

fn line(row: &RunRow) -> Vec<String> {
    let s = &row.summary;
    // A killed process leaves `running` behind, so who holds the directory decides.
    let status = match (s.status.as_str(), row.in_use) {
        ("running", false) => "stopped (can be resumed)".to_owned(),
        (status, _) => status.to_owned(),
    };
    let best = s.best_score.map_or_else(|| "-".to_owned(), |b| format!("{b:.3}"));
    vec![row.run.clone(), status, s.last_step.to_string(), best, s.algorithm.clone(), s.model.clone(), show(&row.path)]
}

fn remove(context: &Context, name: &str) -> Done {
    let run = needed(context, name)?;
    let path: PathBuf = run.path().to_owned();
    context.runs()?.remove(&path)?;
    if context.json() {
        return context.out.json(&json!({"run": run.run_id().as_str(), "path": show(&path)}));
    }
    context.out.line(view::visible(&format!("{}: removed, `{}`", run.run_id(), show(&path))))
}

/// The run of a directory, an id or a directory's name.
///
/// - Errors: there is none.
pub(crate) fn needed(context: &Context, name: &str) -> Result<RunDir, Failure> {
    match find_run(context, name)? {
        Some(run) => Ok(run),
        // A path that is no run is said to be one of the two.
        None if Path::new(name).exists() => Ok(RunDir::read(Path::new(name))?),
        None => {
            let message = format!("no run `{name}`: needed a run directory, a run's id or its directory's name");
            Err(Failure::bad(message).hint("`surefoot runs list` shows the runs there are"))
        }
    }
}
