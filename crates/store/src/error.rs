//! Why something could not be stored or read back.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be stored or read back; names the path.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused: a full disk, no permission, a missing file.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried: `read`, `write`, `create`, `rename`, `remove`, `sync`, `lock`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process writes this run.
    #[error("run directory `{path}` is in use by {}, needed alone", holder(*pid))]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// The other process, if it left its id.
        pid: Option<u32>,
    },
    /// There is no run here.
    #[error("`{path}` is not a run directory: it has no `run.json`")]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// A new run needs a folder of its own.
    #[error("cannot start a run in `{path}`: needed a new or empty folder, got one with {found}")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// An artefact of another run lies in this one.
    #[error("`{path}` belongs to run `{got}`, needed run `{needed}`")]
    OtherRun {
        /// The artefact.
        path: PathBuf,
        /// The run it lies in.
        needed: String,
        /// The run whose id it bears.
        got: String,
    },
    /// A name cannot be a run id.
    #[error("run id `{got}` cannot be used, needed 1 to 64 of a-z, A-Z, 0-9, `-` and `_`, not starting with `-`")]
    RunId {
        /// What was given.
        got: String,
    },
    /// A name cannot be a file of a run directory.
    #[error(
        "`{got}` cannot name a file of a run, needed a plain name ending in `{needed}` that the store does not use itself"
    )]
    FileName {
        /// What was given.
        got: String,
        /// The ending it must have.
        needed: &'static str,
    },
    /// A file does not hold what it should.
    #[error("`{path}` is damaged{}: {reason}", at_line(*line))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1, in a file of lines.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// Something given to be stored cannot be.
    #[error("cannot store `{path}`: {reason}")]
    Unstorable {
        /// The file it was meant for.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Lines of a file must come in order of steps.
    #[error("cannot add step {got} to `{path}`: needed at least {needed}")]
    StepOrder {
        /// The file.
        path: PathBuf,
        /// The least step that may follow.
        needed: u64,
        /// The step given.
        got: u64,
    },
    /// The caller could not write its part of a checkpoint.
    #[error("cannot save checkpoint `{path}`: {source}")]
    CheckpointWriter {
        /// The folder that was being written.
        path: PathBuf,
        /// What the caller said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no such checkpoint.
    #[error("no checkpoint of step {step} in `{path}`, got {}", some(have))]
    NoCheckpoint {
        /// The checkpoints' folder.
        path: PathBuf,
        /// The step asked for.
        step: u64,
        /// Steps that are there.
        have: Vec<u64>,
    },
    /// A checkpoint was changed or cut off after it was written.
    #[error("checkpoint `{path}` is damaged: {reason}")]
    BadCheckpoint {
        /// Its folder.
        path: PathBuf,
        /// What is wrong, needed and got.
        reason: String,
    },
    /// Keeping no checkpoint would lose the last good one.
    #[error("`keep` is 0, needed at least 1 checkpoint")]
    KeepNothing,
    /// The index of runs cannot be used; it can be rebuilt from the folders.
    #[error("index of runs `{path}` cannot be used: {source}")]
    Index {
        /// The database file.
        path: PathBuf,
        /// What the database said.
        source: rusqlite::Error,
    },
    /// No run has this name.
    #[error("no run `{name}` in `{path}`")]
    NoRun {
        /// What was asked for.
        name: String,
        /// The index.
        path: PathBuf,
    },
    /// Several runs have this name.
    #[error("`{name}` names {count} runs, needed one: use the folder's path")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// How many runs have it.
        count: usize,
    },
}

impl StoreError {
    /// The system's refusal of an action on a path, as an error.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError::Io { action, path: path.to_path_buf(), source }
    }

    /// A file that does not hold what it should.
    pub(crate) fn damaged(path: &Path, line: Option<usize>, reason: impl ToString) -> StoreError {
        StoreError::Damaged { path: path.to_path_buf(), line, reason: reason.to_string() }
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_string(), |pid| format!("process {pid}"))
}

fn at_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" at line {line}"))
}

fn some(have: &[u64]) -> String {
    if have.is_empty() {
        return "none".to_string();
    }
    have.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}
