//! How far a run is: what, with the weights, is enough to go on.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use episode::Token;
use policy::UpdateOutcome;
use rollout::stream::Flight;
use serde::{Deserialize, Serialize};

use crate::RunError;
use crate::source::Collected;

/// What is in flight, in a checkpoint: a line a group.
const FLIGHT: &str = "in_flight.jsonl";

/// How far a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps done.
    pub step: u64,
    /// Tasks drawn from the curriculum.
    pub cursor: u64,
    /// Optimiser moves made.
    pub n_updates: u64,
    /// Steps in a row that taught nothing.
    pub idle: u64,
    /// Steps that taught nothing, all of them.
    pub skipped: u64,
    /// The best held-out accuracy so far.
    pub best: Option<f64>,
    /// Evaluations in a row that were not better.
    pub worse: u64,
    /// How many groups of each of the latest steps were the policy's own, as far back as they are replayed from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<u64>,
    /// Tokens the policy never samples; follows from the tokenizer.
    #[serde(skip)]
    pub banned: Vec<Token>,
    /// Groups that were begun and no step has taken; in a file of its own.
    #[serde(skip)]
    pub flight: Flight,
}

impl State {
    /// Counts a step that is done.
    pub(crate) fn advance(&mut self, step: u64, collected: Collected, outcomes: &[UpdateOutcome]) {
        let moved = outcomes.iter().filter(|o| o.report.is_some()).count() as u64;
        self.step = step;
        self.cursor = collected.cursor;
        self.flight = collected.flight;
        self.own = collected.own;
        self.n_updates += moved;
        let taught = u64::from(moved == 0);
        self.skipped += taught;
        self.idle = if moved == 0 { self.idle + 1 } else { 0 };
    }

    /// Takes note of a held-out accuracy.
    pub(crate) fn note(&mut self, accuracy: f64) {
        if self.best.is_none_or(|best| accuracy > best) {
            (self.best, self.worse) = (Some(accuracy), 0);
        } else {
            self.worse += 1;
        }
    }

    /// Writes what is in flight into a checkpoint; nothing when there is nothing.
    pub(crate) fn save_flight(&self, folder: &Path) -> Result<(), RunError> {
        if self.flight.is_empty() {
            return Ok(());
        }
        let path = folder.join(FLIGHT);
        let failed = |source| RunError::Io { path: path.clone(), source };
        let mut out = BufWriter::new(fs::File::create(&path).map_err(failed)?);
        for group in &self.flight.groups {
            serde_json::to_writer(&mut out, group).map_err(|e| failed(e.into()))?;
            out.write_all(b"\n").map_err(failed)?;
        }
        out.flush().map_err(failed)
    }

    /// Reads what [`State::save_flight`] wrote.
    pub(crate) fn load_flight(&mut self, folder: &Path) -> Result<(), RunError> {
        let path = folder.join(FLIGHT);
        self.flight = Flight::default();
        if !path.exists() {
            return Ok(());
        }
        let text = fs::read_to_string(&path).map_err(|source| RunError::Io { path: path.clone(), source })?;
        for (index, line) in text.lines().enumerate() {
            let bad =
                |e: serde_json::Error| RunError::Data { path: path.clone(), line: index + 1, reason: e.to_string() };
            self.flight.groups.push(serde_json::from_str(line).map_err(bad)?);
        }
        Ok(())
    }
}
