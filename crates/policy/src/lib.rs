//! The two traits every engine answers, and a scripted fake.
//!
//! A [`Sampler`] turns prompts into tokens with log-probabilities; a [`Learner`] turns sequences into log-probabilities
//! and derivatives into better weights. The main loop speaks to these alone, so the embedded engine and a remote one are
//! the same to it.

mod learner;
mod sampler;
mod update;
mod values;

pub mod fake;

pub use learner::{
    AdamStep, Batch, Checkpoint, GroupLossFn, Keep, Learner, Slot, TokenGrads, TrainSequence, UpdateReport, ValueAt,
    Want,
};
pub use loss::TokenValues;
pub use sampler::{Job, Jobs, Sampled, Sampler, Sampling, SamplingError};
pub use update::{TokenRecord, UpdateBatch, UpdateOutcome, lag, update_batch};
pub use values::{Ask, Contexts, Under, values};

use std::path::PathBuf;

/// One policy that can be sampled from and trained.
pub trait Policy {
    /// The sampling side.
    fn sampler(&mut self) -> &mut dyn Sampler;

    /// The training side.
    fn learner(&mut self) -> &mut dyn Learner;

    /// The published version: 0 at the start, one more with each step whose updates are published.
    fn version(&self) -> u32;

    /// Makes the learner's weights the sampler's and counts the version up.
    fn publish(&mut self) -> Result<u32, PolicyError>;

    /// Sets the version, when a run resumes.
    fn set_version(&mut self, version: u32);
}

/// Why an engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Vocabulary {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A sequence is longer than the context window.
    #[error("{needed} tokens do not fit the context window of {context}")]
    Context {
        /// Tokens asked for.
        needed: usize,
        /// Size of the window.
        context: usize,
    },
    /// Nothing precedes the first token to predict.
    #[error("a sequence needs at least 1 token before the first one sampled, got 0")]
    NoPrompt,
    /// A sampling setting is out of range or not possible here.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A number that must be finite is not.
    #[error("{what} is not finite at {place}")]
    NotFinite {
        /// Which quantity.
        what: &'static str,
        /// Where it was seen.
        place: String,
    },
    /// The loss could not be computed for a group.
    #[error("group {group} of the update batch: {source}")]
    Loss {
        /// Which group of the batch, from 0.
        group: usize,
        /// What is wrong with it.
        source: loss::LossError,
    },
    /// A checkpoint does not fit this policy.
    #[error("checkpoint `{path}` does not fit: {reason}")]
    Checkpoint {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong, needed and got.
        reason: String,
    },
    /// Reading or writing failed.
    #[error("cannot use `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Stopped because the caller asked.
    #[error("cancelled")]
    Cancelled,
    /// The engine does not offer this.
    #[error("{0}")]
    Unsupported(String),
}
