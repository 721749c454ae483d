//! The main loop, the run file, resume.
//!
//! [`post_train`](post_train::post_train) is the loop. A [`Session`] is a run that is open: its policy, where its episodes
//! come from ([`source`]), what is written of it ([`record`]), and how far it is ([`State`]).

pub mod codec;
mod data;
mod error;
pub mod estimate;
pub mod evaluate;
mod fulfil;
mod gate;
mod judge;
mod kept;
pub mod lag;
pub mod open;
pub mod post_train;
pub mod record;
pub mod replay;
pub mod schedule;
mod session;
pub mod settings;
pub mod signals;
pub mod source;
mod state;
pub mod study;

pub use codec::Chat;
pub use error::RunError;
pub use estimate::Estimate;
pub use evaluate::{Evaluator, Trial};
pub use fulfil::Advice;
pub use gate::{GateSettings, LOG, PUBLIC_KEY, ToolSettings, packs, receipts};
pub use judge::{Judge, Judgement};
pub use open::{OpenError, Opened, open};
pub use post_train::Ended;
pub use record::Recorder;
pub use session::{Begin, Manifest, RECEIPTS, Session};
pub use settings::{RunFile, Settings};
pub use state::State;

use algo::Why;
use episode::{Episode, Group};
use eval::Score;

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Trying held-out tasks.
    Evaluating,
    /// Sampling a step's episodes.
    Collecting,
    /// Moving the weights.
    Learning,
    /// Writing a checkpoint.
    Saving,
}

/// One step as a person wants to see it.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSummary {
    /// The step.
    pub step: u64,
    /// All steps of the run.
    pub of: u64,
    /// Mean reward of the graded episodes.
    pub reward: Option<f64>,
    /// Entropy of the policy, nats a token.
    pub entropy: Option<f64>,
    /// Sampled tokens a second while collecting.
    pub tokens_per_s: f64,
    /// Seconds the step took.
    pub seconds: f64,
}

/// Told what happens while a run goes on; for progress, not for results.
pub trait Progress {
    /// A phase begins; `total` is how many episodes it will have, where that is known.
    fn phase(&mut self, phase: Phase, total: usize) {
        let _ = (phase, total);
    }

    /// This many tokens were sampled.
    fn tokens(&mut self, n_tokens: usize) {
        let _ = n_tokens;
    }

    /// An episode ended.
    fn finished(&mut self, episode: &Episode) {
        let _ = episode;
    }

    /// A group was left out of a step.
    fn left_out(&mut self, group: &Group, why: &Why) {
        let _ = (group, why);
    }

    /// A step is done.
    fn step(&mut self, summary: &StepSummary) {
        let _ = summary;
    }

    /// Held-out tasks were tried.
    fn score(&mut self, step: u64, score: &Score) {
        let _ = (step, score);
    }

    /// Something that a person should know.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

/// Looks away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet;

impl Progress for Quiet {}

/// Passes what a collection reports on to a run's progress.
pub(crate) struct Watching<'a>(pub(crate) &'a mut dyn Progress);

impl rollout::Observer for Watching<'_> {
    fn tokens(&mut self, n_tokens: usize) {
        self.0.tokens(n_tokens);
    }

    fn finished(&mut self, episode: &Episode) {
        self.0.finished(episode);
    }
}
