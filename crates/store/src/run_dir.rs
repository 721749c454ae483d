//! A run directory as a reader sees it.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::disk::{self, Disk};
use crate::lines::{self, LineFile};
use crate::{Checkpoints, RunWriter, StoreError};

/// The version of the layout of a run directory.
const FORMAT: u64 = 1;
const MARKER: &str = "run.json";
const LOCK: &str = "lock";
const SUMMARY: &str = "summary.json";
pub(crate) const SETTINGS: &str = "settings.toml";
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// The key under which every JSON artefact bears its run's id.
pub(crate) const RUN_KEY: &str = "run";

/// A run's name, borne by everything it makes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// A run id from text.
    ///
    /// - Errors: [`StoreError::RunId`] unless it is 1 to 64 of `a-z A-Z 0-9 - _`, not starting with `-`: it becomes part
    ///   of file names and command lines.
    pub fn new(text: impl Into<String>) -> Result<Self, StoreError> {
        let text = text.into();
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if plain && (1..=64).contains(&text.len()) && !text.starts_with('-') {
            Ok(RunId(text))
        } else {
            Err(StoreError::RunId { got: text })
        }
    }

    /// The run id that follows from content, such as settings, seed and a nonce: 16 hexadecimal digits.
    pub fn from_content(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        RunId(disk::hex(&hash.finalize()[..8]))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Refuses an artefact that bears another id, or none.
    pub(crate) fn check(&self, path: &Path, line: Option<usize>, got: Option<&str>) -> Result<(), StoreError> {
        match got {
            Some(got) if got == self.0 => Ok(()),
            Some(got) => {
                let (needed, got) = (self.0.clone(), got.to_string());
                Err(StoreError::OtherRun { path: path.to_path_buf(), needed, got })
            }
            None => Err(StoreError::damaged(path, line, "it bears no run id")),
        }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RunId {
    type Error = StoreError;

    fn try_from(text: String) -> Result<Self, StoreError> {
        RunId::new(text)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

/// What a list of runs shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How it stands, a word of the caller's such as `running` or `finished`.
    pub status: String,
    /// When it was started, in seconds since 1970.
    pub started: f64,
    /// The algorithm's name.
    pub algorithm: String,
    /// The model's name.
    pub model: String,
    /// The last step done.
    pub last_step: u64,
    /// The best score so far.
    pub best_score: Option<f64>,
}

/// A run directory, for reading; another process may be writing it.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
    run_id: RunId,
}

#[derive(Serialize, Deserialize)]
struct Marker {
    format: u64,
    run: RunId,
}

impl RunDir {
    /// Starts a new run in a new or empty folder and keeps every other process from writing it.
    ///
    /// - Errors: [`StoreError::NotEmpty`] when something is there, [`StoreError::Locked`], or the system's refusal.
    pub fn create(path: &Path, run_id: RunId) -> Result<RunWriter, StoreError> {
        let disk = Disk::default();
        disk.create_folder(path)?;
        refuse_full(path)?;
        let lock = lock(path)?;
        // Another process may have been faster between the look and the lock.
        refuse_full(path)?;
        disk.sweep(path)?;
        let marker = Marker { format: FORMAT, run: run_id.clone() };
        disk.write_whole(&path.join(MARKER), &pretty(&marker, path)?)?;
        disk.sync_folder(&disk::parent(path))?;
        RunWriter::new(RunDir { path: path.to_path_buf(), run_id }, lock, disk)
    }

    /// Whether a new run could be started in a folder, without touching it.
    ///
    /// - Errors: [`StoreError::NotEmpty`] when something is there.
    pub fn check_vacant(path: &Path) -> Result<(), StoreError> {
        if path.exists() { refuse_full(path) } else { Ok(()) }
    }

    /// Opens a run to go on writing it, keeps every other process from doing so, and clears away what a killed one left
    /// unfinished.
    ///
    /// - Errors: [`StoreError::NotARun`], [`StoreError::Locked`] naming the other process.
    pub fn open(path: &Path) -> Result<RunWriter, StoreError> {
        let run = RunDir::read(path)?;
        let lock = lock(path)?;
        RunWriter::new(run, lock, Disk::default())
    }

    /// Opens a run for reading.
    pub fn read(path: &Path) -> Result<RunDir, StoreError> {
        let marker_path = path.join(MARKER);
        let bytes = disk::read_if_there(&marker_path)
            .ok()
            .flatten()
            .ok_or_else(|| StoreError::NotARun { path: path.to_path_buf() })?;
        let marker: Marker = serde_json::from_slice(&bytes).map_err(|e| StoreError::damaged(&marker_path, None, e))?;
        if marker.format != FORMAT {
            let reason = format!("its layout is version {}, needed {FORMAT}", marker.format);
            return Err(StoreError::damaged(&marker_path, None, reason));
        }
        Ok(RunDir { path: path.to_path_buf(), run_id: marker.run })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's id.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Whether a process is writing the run now.
    pub fn in_use(&self) -> bool {
        let Ok(file) = File::open(self.path.join(LOCK)) else { return false };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// The settings that ran, as TOML; none before they were written.
    pub fn settings(&self) -> Result<Option<String>, StoreError> {
        let path = self.path.join(SETTINGS);
        let Some(bytes) = disk::read_if_there(&path)? else { return Ok(None) };
        let text = String::from_utf8(bytes).map_err(|e| StoreError::damaged(&path, None, e))?;
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let got = first.strip_prefix("# run ").map(str::trim);
        self.run_id.check(&path, Some(1), got)?;
        Ok(Some(rest.to_string()))
    }

    /// A whole file written by [`RunWriter::write_json`]; none when it is not there.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StoreError> {
        let path = self.path.join(plain_name(name, ".json")?);
        let Some(bytes) = disk::read_if_there(&path)? else { return Ok(None) };
        let mut object: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|e| StoreError::damaged(&path, None, e))?;
        let id = object.shift_remove(RUN_KEY);
        self.run_id.check(&path, None, id.as_ref().and_then(Value::as_str))?;
        serde_json::from_value(Value::Object(object)).map(Some).map_err(|e| StoreError::damaged(&path, None, e))
    }

    /// What a list of runs shows; none before it was written.
    pub fn summary(&self) -> Result<Option<Summary>, StoreError> {
        self.read_json(SUMMARY)
    }

    /// The lines of a file, run id left out; none of a file that is not there. A last line that is being written is left
    /// out too.
    ///
    /// - Errors: [`StoreError::Damaged`] naming the line; [`StoreError::OtherRun`].
    pub fn read_lines<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, StoreError> {
        lines::read(&self.path.join(plain_name(name, ".jsonl")?), &self.run_id)
    }

    /// The run's checkpoints, for reading.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::at_folder(self.path.join(CHECKPOINTS), self.run_id.clone())
    }

    pub(crate) fn line_file(&self, name: &str) -> Result<LineFile, StoreError> {
        LineFile::open(&self.path.join(plain_name(name, ".jsonl")?), &self.run_id)
    }
}

/// The name of a step's file or folder, without ending: names sort as steps do up to a million.
pub fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// The step in a name made by [`step_name`], whatever ending follows.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let stem = name.split('.').next()?;
    let step = stem.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == stem).then_some(step)
}

/// Checks that a name is a plain one the store does not use itself.
pub(crate) fn plain_name<'a>(name: &'a str, ending: &'static str) -> Result<&'a str, StoreError> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    let own = name == MARKER || name.starts_with('.') || name.len() <= ending.len();
    if plain && !own && name.ends_with(ending) {
        Ok(name)
    } else {
        Err(StoreError::FileName { got: name.to_string(), needed: ending })
    }
}

/// JSON for a person to read, with a line end.
pub(crate) fn pretty(value: &impl Serialize, path: &Path) -> Result<Vec<u8>, StoreError> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| StoreError::Unstorable { path: path.to_path_buf(), reason: e.to_string() })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn refuse_full(path: &Path) -> Result<(), StoreError> {
    if let Ok(run) = RunDir::read(path) {
        let found = format!("run `{}` in it", run.run_id);
        return Err(StoreError::NotEmpty { path: path.to_path_buf(), found });
    }
    let names = disk::names(path)?;
    match names.iter().find(|n| *n != LOCK && !n.starts_with(disk::UNFINISHED)) {
        Some(name) => Err(StoreError::NotEmpty { path: path.to_path_buf(), found: format!("`{name}` in it") }),
        None => Ok(()),
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = path.join(LOCK);
    let refused = StoreError::io("lock", &lock_path);
    let file = match File::options().create(true).truncate(false).read(true).write(true).open(&lock_path) {
        Ok(file) => file,
        Err(e) => return Err(refused(e)),
    };
    // A reader asking whether the run is in use holds the lock for a moment, and so does a program that any thread of its
    // last writer was just starting: its copy of the open file is closed only once it runs.
    const TRIES: u32 = 25;
    for attempt in 0..TRIES {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let pid = format!("{}\n", std::process::id());
                return file
                    .set_len(0)
                    .and_then(|()| std::os::unix::fs::FileExt::write_all_at(&file, pid.as_bytes(), 0))
                    .map(|()| file)
                    .map_err(refused);
            }
            Err(rustix::io::Errno::WOULDBLOCK) if attempt + 1 < TRIES => std::thread::sleep(Duration::from_millis(20)),
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(e) => return Err(refused(e.into())),
        }
    }
    let pid = std::fs::read_to_string(&lock_path).ok().and_then(|t| t.trim().parse().ok());
    Err(StoreError::Locked { path: path.to_path_buf(), pid })
}

#[cfg(test)]
#[path = "run_dir_tests.rs"]
mod tests;
