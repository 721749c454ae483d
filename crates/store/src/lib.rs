//! Run directories, checkpoints, episode files and the index of runs.
//!
//! A run directory holds everything one run made. Only [`RunWriter`] changes it, and only one process at a time has one;
//! [`RunDir`] reads. Whole files are written beside their place, synced and renamed; lines are synced one by one. Every
//! artefact bears the run's id, and one that bears another is refused.
//!
//! ```text
//! RUN/
//!   run.json                      the marker: format and run id
//!   lock                          held by the process that writes; holds its process id
//!   summary.json                  what the index of runs shows
//!   settings.toml                 the settings that ran
//!   manifest.json                 hashes of what went in
//!   metrics.jsonl                 a line a step: what follows from settings and seed
//!   timings.jsonl                 a line a step: what the clock measured
//!   evals.jsonl, ….jsonl          further lines with a `step`
//!   samples.json, ….json          further whole files
//!   events/events.out.tfevents.0.ID   the numbers of both, for TensorBoard
//!   metrics.csv, params.json      the same as a table with its settings, for other trackers
//!   episodes/step-000012.jsonl    the step's episodes, a line each; and as .parquet
//!   signals/step-000012.jsonl     per-token values of those episodes
//!   checkpoints/step-000012/      weights and states, with a manifest of their hashes
//! ```
//!
//! Steps count from 1; what is measured before training bears step 0; checkpoint 12 is the state after step 12.

mod checkpoint;
mod columns;
mod disk;
mod episodes;
mod error;
mod export;
mod index;
mod lines;
mod place;
mod run_dir;
mod tensorboard;
mod writer;

pub use checkpoint::{Checkpoint, CheckpointFile, Checkpoints, Keep, Skipped};
pub use disk::{hash_bytes, hash_file, hash_folder};
pub use episodes::TokenValues;
pub use error::StoreError;
pub use export::numbers;
pub use index::{Index, RunRow};
pub use place::{default_root, models_folder, runs_folder};
pub use run_dir::{RunDir, RunId, Summary, step_name};
pub use writer::RunWriter;
