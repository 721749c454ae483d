//! A run directory as the one process that writes it sees it.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Deref;

use episode::Group;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoints, Keep};
use crate::disk::{self, Disk};
use crate::episodes::{self, EPISODES, SIGNALS, TokenValues};
use crate::lines::LineFile;
use crate::run_dir::{CHECKPOINTS, RUN_KEY, SETTINGS, Summary, plain_name, pretty, step_of};
use crate::tensorboard::EventFile;
use crate::{RunDir, StoreError, columns, export};

/// What follows from settings and seed, a line a step.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// What the clock measured, a line a step.
pub(crate) const TIMINGS: &str = "timings.jsonl";
const EVENTS: &str = "events";
const LINES_ENDING: &str = ".jsonl";

/// A run directory that this process alone may write, until it is dropped.
#[derive(Debug)]
pub struct RunWriter {
    run: RunDir,
    disk: Disk,
    files: BTreeMap<String, LineFile>,
    events: Option<EventFile>,
    /// Held, never read: closing it gives the lock back, also when the process is killed.
    _lock: File,
}

impl Deref for RunWriter {
    type Target = RunDir;

    fn deref(&self) -> &RunDir {
        &self.run
    }
}

impl RunWriter {
    pub(crate) fn new(run: RunDir, lock: File, disk: Disk) -> Result<Self, StoreError> {
        for folder in ["", EPISODES, SIGNALS] {
            disk.sweep(&run.path().join(folder))?;
        }
        let writer = RunWriter { run, disk, files: BTreeMap::new(), events: None, _lock: lock };
        writer.checkpoints_to_write(Keep::default())?;
        Ok(writer)
    }

    /// Stores the settings that run, as TOML.
    pub fn write_settings(&self, toml: &str) -> Result<(), StoreError> {
        let text = format!("# run {}\n{toml}", self.run.run_id());
        self.disk.write_whole(&self.run.path().join(SETTINGS), text.as_bytes())
    }

    /// Stores what a list of runs shows.
    pub fn write_summary(&self, summary: &Summary) -> Result<(), StoreError> {
        self.write_json("summary.json", summary)
    }

    /// Stores a value with named fields as a whole file, such as `manifest.json`, stamped with the run's id.
    ///
    /// - Holds: readers see the old file or the new one, also after a crash.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let path = self.run.path().join(plain_name(name, ".json")?);
        let refuse = |reason: String| StoreError::Unstorable { path: path.clone(), reason };
        let value = serde_json::to_value(value).map_err(|e| refuse(e.to_string()))?;
        let Value::Object(fields) = value else { return Err(refuse("it needs named fields".to_string())) };
        if fields.contains_key(RUN_KEY) {
            return Err(refuse(format!("`{RUN_KEY}` is the run's id, got a field of that name")));
        }
        let mut object = Map::new();
        object.insert(RUN_KEY.to_string(), self.run.run_id().as_str().into());
        object.extend(fields);
        self.disk.write_whole(&path, &pretty(&object, &path)?)
    }

    /// Adds a line to a file such as `evals.jsonl`, stamped with the run's id and the step, and syncs it.
    ///
    /// - Units: numbers that are not finite become `null`.
    /// - Holds: on an error the file is as before.
    /// - Errors: [`StoreError::StepOrder`] when the step lies before the last line's.
    pub fn append_line(&mut self, name: &str, step: u64, fields: &impl Serialize) -> Result<(), StoreError> {
        self.file(name)?.append(step, fields, false)
    }

    /// Stores the numbers of a step: `metrics`, which must follow from settings and seed, so that a resumed run's file
    /// equals an uninterrupted one's; `timings`, which the clock measured; both also for TensorBoard.
    ///
    /// - Units: `wall_time_s` in seconds since 1970.
    /// - Errors: [`StoreError::StepOrder`] when the step is not after the last one.
    pub fn write_metrics(
        &mut self,
        step: u64,
        metrics: &Map<String, Value>,
        timings: &Map<String, Value>,
        wall_time_s: f64,
    ) -> Result<(), StoreError> {
        self.file(METRICS)?.append(step, metrics, true)?;
        self.file(TIMINGS)?.append(step, timings, true)?;
        let mut values = export::numbers(metrics);
        values.extend(export::numbers(timings));
        self.events(wall_time_s)?.scalars(step, wall_time_s, &values)
    }

    /// Stores the episodes of a step, as JSON lines and as Parquet; each whole or not at all.
    pub fn write_episodes(&self, step: u64, groups: &[Group]) -> Result<(), StoreError> {
        episodes::write_episodes(&self.disk, &self.run, step, groups)?;
        columns::write_parquet(&self.disk, &self.run, step, groups)
    }

    /// Stores per-token values of a step's episodes.
    pub fn write_token_values(&self, step: u64, values: &[TokenValues]) -> Result<(), StoreError> {
        episodes::write_values(&self.disk, &self.run, step, values)
    }

    /// Writes `metrics.csv` and `params.json` from what is stored so far.
    pub fn export(&self, params: &impl Serialize) -> Result<(), StoreError> {
        export::export(&self.disk, &self.run, params)
    }

    /// The run's checkpoints, for writing; clears away what a killed process left unfinished.
    pub fn checkpoints_to_write(&self, keep: Keep) -> Result<Checkpoints, StoreError> {
        Checkpoints::open(self.run.path().join(CHECKPOINTS), self.run.run_id().clone(), keep)
    }

    /// Takes the run back to the state after step `done`: lines, episodes, values, events and checkpoints of later steps
    /// are removed, so that going on gives the files of a run that was never interrupted.
    pub fn rewind(&mut self, done: u64) -> Result<(), StoreError> {
        for name in disk::names(self.run.path())? {
            if name.ends_with(LINES_ENDING) {
                self.file(&name)?.rewind(done)?;
            }
        }
        for folder in [EPISODES, SIGNALS] {
            let folder = self.run.path().join(folder);
            for name in disk::names(&folder)? {
                if step_of(&name).is_some_and(|step| step > done) {
                    self.disk.remove_file(&folder.join(name))?;
                }
            }
        }
        if self.run.path().join(EVENTS).is_dir() {
            self.events(0.0)?.rewind(done)?;
        }
        self.checkpoints_to_write(Keep::default())?.rewind(done)
    }

    fn file(&mut self, name: &str) -> Result<&mut LineFile, StoreError> {
        if !self.files.contains_key(name) {
            self.files.insert(name.to_string(), self.run.line_file(name)?);
        }
        Ok(self.files.get_mut(name).expect("it was put there just now"))
    }

    fn events(&mut self, wall_time_s: f64) -> Result<&mut EventFile, StoreError> {
        if self.events.is_none() {
            let folder = self.run.path().join(EVENTS);
            self.disk.create_folder(&folder)?;
            let path = folder.join(format!("events.out.tfevents.0.{}", self.run.run_id()));
            self.events = Some(EventFile::open(&path, wall_time_s)?);
        }
        Ok(self.events.as_mut().expect("it was put there just now"))
    }
}
