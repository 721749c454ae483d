//! The attempts at one task as text for a terminal.

use std::collections::BTreeSet;
use std::fmt::Write;

use episode::{Episode, Outcome, Task, TaskId};
use store::RunDir;

use crate::ViewError;
use crate::text::{short, visible};

/// Stands before every line of text that is not the program's own, so that it cannot be taken for it.
const MARGIN: &str = "  │ ";

/// Every stored attempt at a task, by step; `task` is its id or the unique beginning of one.
///
/// - Holds: the text has no control character but line ends and tabs, and every line of the policy's stands behind a
///   margin.
/// - Errors: [`ViewError::NoTask`]; [`ViewError::Ambiguous`].
pub fn show_task(run: &RunDir, task: &str) -> Result<String, ViewError> {
    let mut seen: BTreeSet<TaskId> = BTreeSet::new();
    let mut first: Option<Task> = None;
    let mut attempts: Vec<Episode> = Vec::new();
    for step in run.episode_steps()? {
        for group in run.episodes(step)? {
            let id = group.task.id.clone();
            if id.as_str().starts_with(task) {
                attempts.extend(group.episodes);
                first.get_or_insert(group.task);
            }
            seen.insert(id);
        }
    }
    // A whole id wins over longer ones that begin with it.
    let exact = seen.iter().find(|id| id.as_str() == task);
    let mut matching: Vec<&TaskId> = match exact {
        Some(id) => vec![id],
        None => seen.iter().filter(|id| id.as_str().starts_with(task)).collect(),
    };
    let count = matching.len();
    let (Some(id), Some(found)) = (matching.pop(), first) else {
        let (task, run) = (task.to_string(), run.run_id().to_string());
        return Err(ViewError::NoTask { task, run, example: seen.first().cloned() });
    };
    if count > 1 {
        return Err(ViewError::Ambiguous { task: task.to_string(), count, example: id.clone() });
    }
    attempts.retain(|e| e.key.task == *id);
    Ok(render(&found, &attempts))
}

fn render(task: &Task, attempts: &[Episode]) -> String {
    let mut out = String::new();
    push(&mut out, format_args!("task {}", visible(task.id.as_str())));
    for message in &task.messages {
        push(&mut out, format_args!("{}:", message.role.as_str()));
        quote(&mut out, &message.content);
    }
    push(&mut out, format_args!("gold: {}", visible(&task.gold.to_string())));
    for episode in attempts {
        let stop = episode.stop.as_str();
        out.push('\n');
        push(
            &mut out,
            format_args!(
                "step {} · sample {} · {} · stopped by {stop} · {} tokens{}",
                episode.key.step,
                episode.key.sample,
                outcome(&episode.outcome),
                episode.n_sampled(),
                mean_logp(episode),
            ),
        );
        for message in &episode.messages {
            if !task.messages.contains(message) {
                push(&mut out, format_args!("{}:", message.role.as_str()));
                quote(&mut out, &message.content);
            }
        }
    }
    out
}

fn push(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("writing to a string cannot fail");
}

fn quote(out: &mut String, text: &str) {
    for line in visible(text).split('\n') {
        push(out, format_args!("{MARGIN}{line}"));
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Graded { reward, parts } => {
            let parts: Vec<String> = parts
                .iter()
                .map(|p| format!("{} {} × {}", visible(&p.name), short(p.value), short(p.weight)))
                .collect();
            let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
            format!("reward {}{parts}", short(*reward))
        }
        Outcome::Failed { stage, cause } => {
            // One line, whatever the detail holds.
            let detail = visible(&cause.detail).replace(['\n', '\t'], " ");
            format!("failed in {}: {} ({detail})", stage.as_str(), visible(&cause.class).replace(['\n', '\t'], " "))
        }
        Outcome::Cancelled => "cancelled".to_string(),
    }
}

fn mean_logp(episode: &Episode) -> String {
    let mut values = Vec::new();
    for sequence in &episode.sequences {
        values.extend(sequence.logp().iter().zip(sequence.sampled()).filter(|(_, s)| **s).map(|(l, _)| f64::from(*l)));
    }
    if values.is_empty() {
        return String::new();
    }
    format!(" · mean log-prob {}", short(values.iter().sum::<f64>() / values.len() as f64))
}
