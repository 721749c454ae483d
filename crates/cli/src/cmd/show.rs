//! `surefoot show`: a run, or its attempts at one task, in the terminal.

use serde_json::json;
use store::RunDir;
use view::{Excerpt, RunView};

use crate::Done;
use crate::cmd::report::load;
use crate::cmd::runs::needed;
use crate::context::{Context, show};
use crate::error::Failure;
use crate::out::table;

/// Show a run, or every stored attempt at one of its tasks
///
/// With --json and without --task, one object with everything the report shows is printed; with --task, one object for
/// each attempt.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its directory, its id or its directory's name
    run: String,
    /// Show the attempts at this task: its id, or the beginning of it
    #[arg(long)]
    task: Option<String>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let run = needed(context, &args.run)?;
    match &args.task {
        Some(task) if context.json() => attempts(context, &run, task),
        Some(task) => context.out.text(&view::show_task(&run, task)?),
        None if context.json() => context.out.text(&view::json(&load(context, &run, Excerpt::default())?)),
        None => {
            let excerpt = Excerpt { first_steps: 0, last_steps: 1, ..Excerpt::default() };
            context.out.text(&view::visible(&overview(&run, &load(context, &run, excerpt)?)))
        }
    }
}

fn attempts(context: &Context, run: &RunDir, task: &str) -> Done {
    // Refuses a beginning that several tasks share, or none.
    view::show_task(run, task)?;
    let mut groups = Vec::new();
    for step in run.episode_steps()? {
        groups.extend(run.episodes(step)?);
    }
    let exact = groups.iter().any(|g| g.task.id.as_str() == task);
    let is_meant = |id: &str| if exact { id == task } else { id.starts_with(task) };
    for group in groups.iter().filter(|g| is_meant(g.task.id.as_str())) {
        for episode in &group.episodes {
            let value = serde_json::to_value(episode)
                .map_err(|e| Failure::failed("cannot write an episode as JSON").why(e.to_string()))?;
            context.out.json(&json!({"task": group.task.id.as_str(), "gold": group.task.gold, "episode": value}))?;
        }
    }
    Ok(())
}

/// The run on one screen: how it stands, its scores, the newest value of every number.
fn overview(run: &RunDir, view: &RunView) -> String {
    let s = &view.summary;
    let pair = |key: &str, value: String| vec![key.to_owned(), value];
    let mut rows = vec![
        pair("run", view.run.clone()),
        pair("path", show(run.path())),
        pair("status", s.status.clone()),
        pair("model", s.model.clone()),
        pair("algorithm", s.algorithm.clone()),
        pair("steps", s.last_step.to_string()),
    ];
    if let Some(best) = s.best_score {
        rows.push(pair("best score", format!("{best:.3}")));
    }
    let mut out = table(&rows);
    if !view.curves.is_empty() {
        let mut rows = vec![["number", "first", "newest", "unit"].map(str::to_owned).to_vec()];
        for curve in &view.curves {
            if let (Some(first), Some(last)) = (curve.points.first(), curve.points.last()) {
                let number = |v: f64| format!("{v:.4}");
                rows.push(vec![curve.title.clone(), number(first.value), number(last.value), curve.unit.clone()]);
            }
        }
        out.push('\n');
        out.push_str(&table(&rows));
    }
    let example = view.episodes.last().and_then(|s| s.groups.first()).map_or("TASK".to_owned(), |g| g.task.to_string());
    out.push_str(&format!("\nattempts at a task: `surefoot show {} --task {example}`\n", view.run));
    out.push_str(&format!("everything as a page: `surefoot report {}`\n", view.run));
    out
}
