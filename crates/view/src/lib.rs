//! A stored run turned into report pages, JSON and text.
//!
//! [`load`] reads a run directory into a [`RunView`]; [`html`] renders that as one page that works without a network,
//! [`json`] as JSON; [`show_task`] prints the attempts at one task for a terminal; [`study_html`] is the page of a study.
//! Whatever the policy wrote is shown, never obeyed: it is escaped in pages and freed of control characters in terminals.

mod chart;
mod html;
mod load;
mod metrics;
mod study;
mod terminal;
mod text;

pub use html::html;
pub use load::{Curve, EpisodeView, Excerpt, GroupView, Point, RunView, SequenceView, StepView, load};
pub use metrics::{METRICS, Metric};
pub use study::{study_html, study_json, to_target};
pub use terminal::show_task;
pub use text::visible;

use episode::TaskId;

/// Why a run cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The run cannot be read.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// No stored episode is an attempt at this task.
    #[error("no attempt at task `{task}` is stored in run `{run}`{}", for_example(example))]
    NoTask {
        /// What was asked for.
        task: String,
        /// The run.
        run: String,
        /// A task that is there.
        example: Option<TaskId>,
    },
    /// Several tasks begin like this.
    #[error("`{task}` begins the names of {count} tasks, needed one, such as `{example}`")]
    Ambiguous {
        /// What was asked for.
        task: String,
        /// How many tasks begin so.
        count: usize,
        /// One of them.
        example: TaskId,
    },
}

fn for_example(example: &Option<TaskId>) -> String {
    example.as_ref().map_or_else(String::new, |task| format!(", got such as `{task}`"))
}

/// The view as JSON, on one line, ending in a line end.
pub fn json(view: &RunView) -> String {
    let mut text = serde_json::to_string(view).expect("a view has text keys and plain values, which always serialise");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
