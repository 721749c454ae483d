//! Child processes that cannot outlive their welcome: an own process group, a deadline, bounded output, a cleared
//! environment, and everything killed together; behind walls of the kernel's where the caller asks for them.
//!
//! [`run_once`] feeds a program its input and collects its answer; a [`Session`] keeps one alive and exchanges lines with
//! it. Both end every process of the group with `SIGKILL` on a deadline, on cancellation, on a fault and on drop, and leave
//! no zombie. What is left when this process dies by itself, by `kill -9` for example, is killed as well.
//!
//! Without more, a program is the user's own and may do what the user may, and a descendant that leaves the process group
//! (`setsid`) is out of reach. With [`Spec::confined`] it stands behind [`Rules`]: own namespaces with a root that holds
//! only what was given, no network, Landlock and seccomp on top, limits, no capability, no way to gain one, and no
//! descendant that lives on. No layer needs root, and none of them is left out silently: [`layers`] says what this system
//! lacks before anything runs, and such a program is refused unless its rules allow that lack by name.
//!
//! What the walls do not cover: faults of the kernel itself (they leave it a smaller surface, not none; use a virtual
//! machine against those); time and caches as a channel between programs on one processor; the sum of memory and processor
//! time over its processes ([`Rules`] says what bounds it); the disk under a folder given for writing; what a program with
//! the network sends where; unix sockets that lie in a given folder (before version 9 of Landlock's interface); reading the
//! machine's figures in its `/proc` (load, processors, memory). A confined program of root owns root's files in what is
//! given to it.

mod once;
mod session;
mod spec;

mod layers;
mod rules;

mod child;
mod confine;
mod watch;

pub use layers::{Layer, Layers, layers};
pub use once::{Finished, run_once};
pub use rules::Rules;
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
    /// The system lacks layers that its rules need.
    #[error("cannot confine `{program}`: this system lacks {layers}")]
    Missing {
        /// The program.
        program: String,
        /// The layers, each with the reason.
        layers: String,
    },
    /// A file or folder cannot be given to a confined program.
    #[error("cannot give `{}` to a confined program: {why}", .path.display())]
    Given {
        /// What was given.
        path: std::path::PathBuf,
        /// Why not.
        why: String,
    },
    /// A wall could not be put up; nothing ran.
    #[error("cannot confine `{program}`: {step}: {source}")]
    Confine {
        /// The program.
        program: String,
        /// What was being done.
        step: String,
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
