//! Child processes that cannot outlive their welcome: an own process group, a deadline, bounded output, a cleared
//! environment, and everything killed together.
//!
//! [`run_once`] feeds a program its input and collects its answer; a [`Session`] keeps one alive and exchanges lines with
//! it. Both end every process of the group with `SIGKILL` on a deadline, on cancellation, on a fault and on drop, and leave
//! no zombie. A shell that outlives this process kills what is left when it dies by itself, by `kill -9` for example.
//!
//! What this does not cover: a descendant that leaves the process group by itself (`setsid`) is out of reach, and nothing
//! here limits what a program may read, write or connect to. File and system-call rules belong in [`Spec`], applied where
//! `child` starts the program.

mod child;
mod once;
mod session;
mod spec;
mod watch;

pub use once::{Finished, run_once};
pub use session::Session;
pub use spec::{Exit, Spec};

use std::time::Duration;

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The program could not be started.
    #[error("cannot start `{program}`: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It was still running at its deadline and was killed with its children.
    #[error("`{program}` gave no answer within {} s and was killed", .deadline.as_secs_f64())]
    Deadline {
        /// The program.
        program: String,
        /// How long it had.
        deadline: Duration,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It wrote more than it may and was killed with its children.
    #[error("`{program}` wrote more than {limit} bytes to standard output and was killed")]
    Output {
        /// The program.
        program: String,
        /// How many bytes it may write.
        limit: usize,
    },
    /// A program that should have stayed alive ended.
    #[error("`{program}` ended ({exit}) instead of answering")]
    Ended {
        /// The program.
        program: String,
        /// How it ended.
        exit: Exit,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It wrote something that was not the one line asked for.
    #[error("`{program}` wrote {extra} bytes besides its answer, needed exactly one line a question")]
    Chatter {
        /// The program.
        program: String,
        /// How many bytes were too many.
        extra: usize,
    },
    /// A question or an answer is not one line of UTF-8.
    #[error("{what} of `{program}` is not one line of UTF-8")]
    Line {
        /// The program.
        program: String,
        /// `the question` or `the answer`.
        what: &'static str,
    },
    /// A pipe or a wait failed.
    #[error("lost contact with `{program}`: {source}")]
    Io {
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The caller asked to stop; the program was killed with its children.
    #[error("cancelled")]
    Cancelled,
}

impl JailError {
    /// What the program wrote to standard error before it was given up, where that is known.
    pub fn stderr(&self) -> &str {
        match self {
            JailError::Deadline { stderr, .. } | JailError::Ended { stderr, .. } => stderr,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests;
