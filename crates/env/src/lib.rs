//! Environments and graders: where tasks come from, and what an answer is worth.
//!
//! An [`Environment`] has a name, tasks on two sides of a fixed split, and graders; a grader that cannot judge says so with
//! a cause, which is never a zero. [`Settings`] is what a run file says of one, [`Environments`] all of a run's, [`Mixture`]
//! the order in which their training tasks are drawn, and [`Audit`] the proof that an environment can be trusted before a
//! run starts.

#[macro_use]
mod table;

table! {
    /// The kinds of environments.
    Kind: Source;
    files => Files: "errands in a small file tree, by tools";
    shop => Shop: "errands in a shop's database, by tools";
    countdown => Countdown: "the numbers game: reach a target from a few numbers";
    wordgrid => Wordgrid: "guess a word of five letters in several turns";
    sums => Sums: "arithmetic questions made from a seed";
    gsm8k => Gsm8k: "word problems from a file in the format of GSM8K";
    jsonl => Jsonl: "your own tasks from a file, judged by the graders listed";
    command => Command: "your own tasks from a file, judged by your own program";
}

mod audit;
mod draw;
mod environment;
mod levels;
mod mixture;
mod settings;
mod stage;
mod tasks;

pub mod answer;
pub mod grader;
pub mod injection;

#[cfg(test)]
mod broken;

pub use audit::{Audit, Check, Probe, audit};
pub use environment::{Environment, Environments, Split, Submission, TaskSet, Ungraded, Verdict, outcome};
pub use mixture::Mixture;
pub use settings::Settings;

use std::path::PathBuf;

use tasks::Source;

/// Why an environment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A file cannot be read.
    #[error("cannot read `{path}`: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line of a file is not what it should be.
    #[error("`{path}` line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A setting cannot be used.
    #[error("environment `{env}`: `{key}` {reason}")]
    Setting {
        /// The environment's name.
        env: String,
        /// Which setting.
        key: String,
        /// Needed and got.
        reason: String,
    },
    /// Two things share a name that must tell them apart.
    #[error("two {what} are called `{name}`: give one of them another `name`")]
    Name {
        /// `environments`, or `graders of ...`.
        what: String,
        /// The name.
        name: String,
    },
    /// A run without environments.
    #[error("a run needs at least 1 `[[env]]`, got 0")]
    None,
    /// Fewer tasks than asked for.
    #[error("environment `{env}`: needed {needed} {split} tasks, got {got}: {detail}")]
    TooFew {
        /// The environment's name.
        env: String,
        /// Which side of the split.
        split: Split,
        /// How many were asked for.
        needed: usize,
        /// How many there are.
        got: usize,
        /// Where they would have to come from.
        detail: String,
    },
}
