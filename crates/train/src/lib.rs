//! The embedded engine: one set of weights that samples, learns and is saved.
//!
//! [`Engine`] answers `policy`'s traits. Sampling (`sampler`) and training (`learner`) run the same code of `model`
//! over the same weights, so that an episode's recorded log-probabilities are, to the bit, what training computes.

mod batch;
mod checkpoint;
mod engine;
pub mod export;
mod kept;
mod learner;
mod optimiser;
mod sampler;

pub use checkpoint::has_value_head;
pub use engine::{Engine, EngineError, EngineSettings, Precision, Trainable};
