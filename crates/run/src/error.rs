//! Why a run cannot start or go on.

use std::path::PathBuf;

use algo::AlgoError;
use env::EnvError;
use eval::ScoreError;
use policy::PolicyError;
use rollout::RolloutError;
use store::StoreError;
use train::EngineError;

use crate::open::OpenError;

/// Why a run cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run file.
    #[error("{0}")]
    Settings(String),
    /// A file could not be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The data file.
    #[error("`{path}` line {line}: {reason}")]
    Data {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The model.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The environments.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A grader cannot be trusted.
    #[error("the audit of environment `{env}` failed, so the run does not start\n{report}")]
    Audit {
        /// Which.
        env: String,
        /// What was found.
        report: String,
    },
    /// Collecting episodes.
    #[error("step {step}: {source}")]
    Rollout {
        /// Which step.
        step: u64,
        /// What happened.
        source: RolloutError,
    },
    /// The algorithm.
    #[error("step {step}: {source}")]
    Algo {
        /// Which step.
        step: u64,
        /// What happened.
        source: AlgoError,
    },
    /// The policy.
    #[error("step {step}: {source}")]
    Policy {
        /// Which step.
        step: u64,
        /// What happened.
        source: PolicyError,
    },
    /// An evaluation.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// The run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Steps in a row taught nothing.
    #[error("{n} steps in a row taught nothing, last step {step}: {why}")]
    Idle {
        /// How many.
        n: u64,
        /// The last of them.
        step: u64,
        /// What was seen.
        why: String,
    },
    /// The gate that tool calls pass cannot do its work.
    #[error("the gate: {0}")]
    Gate(String),
    /// The run does not fit what it is resumed with.
    #[error("cannot resume `{path}`: {reason}")]
    Resume {
        /// The run.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// Stopped because the caller asked; the run can be resumed.
    #[error("interrupted")]
    Interrupted,
}

impl RunError {
    /// Whether the fault lies in what the user gave.
    pub fn is_bad_input(&self) -> bool {
        match self {
            RunError::Settings(_) | RunError::Io { .. } | RunError::Data { .. } => true,
            RunError::Open(_) | RunError::Engine(_) | RunError::Env(_) | RunError::Audit { .. } => true,
            RunError::Resume { .. } | RunError::Store(_) => true,
            RunError::Rollout { .. } | RunError::Algo { .. } | RunError::Policy { .. } => false,
            RunError::Score(_) | RunError::Gate(_) | RunError::Idle { .. } | RunError::Interrupted => false,
        }
    }
}
