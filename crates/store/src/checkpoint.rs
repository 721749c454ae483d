//! Checkpoints that survive a crash at any byte.
//!
//! A checkpoint is filled in a folder nobody reads, every file is synced and hashed, the hashes go into a manifest, and
//! only then is the folder renamed into its place; older ones are removed after that, never before. So at any moment the
//! newest folder of the name `step-…` is whole, and what is not is named `.tmp-…`.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::disk::{self, Disk, UNFINISHED};
use crate::run_dir::{pretty, step_name, step_of};
use crate::{RunId, StoreError, hash_file};

const MANIFEST: &str = "manifest.json";
const STATE: &str = "state.json";
/// A checkpoint that is being replaced by one of the same step stands here meanwhile.
const REPLACED: &str = ".old-";

/// Which checkpoints stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// This many of the newest; at least 1.
    pub last: usize,
    /// Also the one with the highest metric, the earlier one on a tie.
    pub best: bool,
}

impl Default for Keep {
    fn default() -> Self {
        Keep { last: 2, best: true }
    }
}

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    run_id: RunId,
    keep: Keep,
    disk: Disk,
}

/// A checkpoint whose every file was compared with its hash.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// The step after which it was saved.
    pub step: u64,
    /// Its metric, higher being better.
    pub metric: Option<f64>,
    /// Its files but the manifest, by path.
    pub files: Vec<CheckpointFile>,
    /// Newer or better ones that were passed over because they are damaged.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that was passed over.
#[derive(Debug, Clone, PartialEq)]
pub struct Skipped {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFile {
    /// Relative to the checkpoint, with `/`.
    pub path: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    run: RunId,
    step: u64,
    metric: Option<f64>,
    files: Vec<CheckpointFile>,
    /// Over everything above, so that the manifest cannot be changed alone.
    sha256: String,
}

impl Manifest {
    fn seal(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.run.as_str());
        hash.update([0]);
        hash.update(self.step.to_le_bytes());
        hash.update([u8::from(self.metric.is_some())]);
        hash.update(self.metric.unwrap_or_default().to_le_bytes());
        for file in &self.files {
            hash.update(file.size_bytes.to_le_bytes());
            disk::digest_entry(&mut hash, &file.path, &file.sha256);
        }
        disk::hex(&hash.finalize())
    }
}

impl Checkpoint {
    /// Reads the state that was saved beside the files.
    pub fn state<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        let path = self.path.join(STATE);
        let bytes = fs::read(&path).map_err(StoreError::io("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|e| StoreError::damaged(&path, None, e))
    }

    /// One hash over the paths and bytes of all its files: equal for two runs that did the same.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for file in &self.files {
            disk::digest_entry(&mut hash, &file.path, &file.sha256);
        }
        disk::hex(&hash.finalize())
    }
}

impl Checkpoints {
    /// The checkpoints in a folder, for reading.
    pub(crate) fn at_folder(folder: PathBuf, run_id: RunId) -> Self {
        Checkpoints { folder, run_id, keep: Keep::default(), disk: Disk::default() }
    }

    /// The checkpoints in a folder, for writing; the caller alone may write there. Clears away what a killed process left.
    pub(crate) fn open(folder: PathBuf, run_id: RunId, keep: Keep) -> Result<Self, StoreError> {
        if keep.last == 0 {
            return Err(StoreError::KeepNothing);
        }
        let checkpoints = Checkpoints { folder, run_id, keep, disk: Disk::default() };
        checkpoints.recover()?;
        Ok(checkpoints)
    }

    /// The steps that have a checkpoint, ascending, damaged ones included.
    pub fn steps(&self) -> Result<Vec<u64>, StoreError> {
        let mut steps: Vec<u64> = disk::names(&self.folder)?.iter().filter_map(|n| step_of(n)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Saves a checkpoint: `fill` writes its files into the empty folder it is given, `state` goes beside them as
    /// `state.json`. Then removes those that need not stay.
    ///
    /// - Units: `metric` is higher for a better one; one that is not finite counts as none.
    /// - Holds: wherever this stops, the checkpoints before it or the new one are whole and found.
    /// - Errors: [`StoreError::CheckpointWriter`] with what `fill` said; a full disk or missing permission with its path.
    pub fn save<E>(
        &self,
        step: u64,
        metric: Option<f64>,
        state: &impl Serialize,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Checkpoint, StoreError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.disk.create_folder(&self.folder)?;
        let name = step_name(step);
        let temporary = tempfile::Builder::new()
            .prefix(&format!("{UNFINISHED}{name}-"))
            .permissions(fs::Permissions::from_mode(0o777))
            .tempdir_in(&self.folder)
            .map_err(StoreError::io("create", &self.folder))?
            .keep();
        let filled = fill(&temporary)
            .map_err(|e| StoreError::CheckpointWriter { path: self.folder.join(&name), source: e.into() })
            .and_then(|()| self.seal(&temporary, step, metric, state))
            .and_then(|manifest| self.put_in_place(&temporary, &name).map(|()| manifest));
        let manifest = match filled {
            Ok(manifest) => manifest,
            Err(error) => {
                // The first error is the one to tell; what cannot be removed now is swept at the next opening.
                let _ = self.disk.remove_folder(&temporary);
                return Err(error);
            }
        };
        self.prune()?;
        let path = self.folder.join(name);
        Ok(Checkpoint { path, step, metric: manifest.metric, files: manifest.files, skipped: Vec::new() })
    }

    /// The checkpoint after a step.
    ///
    /// - Errors: [`StoreError::NoCheckpoint`] naming those that are there; [`StoreError::BadCheckpoint`].
    pub fn at(&self, step: u64) -> Result<Checkpoint, StoreError> {
        let have = self.steps()?;
        if !have.contains(&step) {
            return Err(StoreError::NoCheckpoint { path: self.folder.clone(), step, have });
        }
        self.verify(step)
    }

    /// The newest whole checkpoint; none when there is none at all.
    ///
    /// - Errors: that of the newest when every one is damaged.
    pub fn latest(&self) -> Result<Option<Checkpoint>, StoreError> {
        let mut steps = self.steps()?;
        steps.reverse();
        self.first_whole(steps)
    }

    /// The whole checkpoint with the highest metric, the earlier one on a tie; none when none has a metric.
    pub fn best(&self) -> Result<Option<Checkpoint>, StoreError> {
        let mut rated: Vec<(f64, u64)> = Vec::new();
        for step in self.steps()? {
            if let Ok(Manifest { metric: Some(metric), .. }) = self.manifest(step) {
                rated.push((metric, step));
            }
        }
        rated.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.first_whole(rated.into_iter().map(|(_, step)| step))
    }

    /// Removes the checkpoints of later steps.
    pub(crate) fn rewind(&self, done: u64) -> Result<(), StoreError> {
        for step in self.steps()?.into_iter().filter(|s| *s > done) {
            self.discard(&step_name(step))?;
        }
        Ok(())
    }

    fn first_whole(&self, steps: impl IntoIterator<Item = u64>) -> Result<Option<Checkpoint>, StoreError> {
        let mut skipped = Vec::new();
        let mut first = None;
        for step in steps {
            match self.verify(step) {
                Ok(found) => return Ok(Some(Checkpoint { skipped, ..found })),
                Err(StoreError::BadCheckpoint { path, reason }) => {
                    skipped.push(Skipped { path: path.clone(), reason: reason.clone() });
                    first.get_or_insert(StoreError::BadCheckpoint { path, reason });
                }
                Err(other) => return Err(other),
            }
        }
        first.map_or(Ok(None), Err)
    }

    /// Writes state and manifest into a filled folder and makes all of it durable.
    fn seal(
        &self,
        folder: &Path,
        step: u64,
        metric: Option<f64>,
        state: &impl Serialize,
    ) -> Result<Manifest, StoreError> {
        let state_path = folder.join(STATE);
        self.disk.write_new(&state_path, &pretty(state, &state_path)?)?;
        let below = disk::files_below(folder)?;
        let mut files = Vec::new();
        for path in below.files {
            let whole = folder.join(&path);
            self.disk.sync_file(&whole)?;
            let size_bytes = fs::metadata(&whole).map_err(StoreError::io("read", &whole))?.len();
            files.push(CheckpointFile { sha256: hash_file(&whole)?, size_bytes, path });
        }
        let metric = metric.filter(|m| m.is_finite());
        let mut manifest = Manifest { run: self.run_id.clone(), step, metric, files, sha256: String::new() };
        manifest.sha256 = manifest.seal();
        let path = folder.join(MANIFEST);
        self.disk.write_new(&path, &pretty(&manifest, &path)?)?;
        for folder in &below.folders {
            self.disk.sync_folder(folder)?;
        }
        Ok(manifest)
    }

    fn put_in_place(&self, temporary: &Path, name: &str) -> Result<(), StoreError> {
        let target = self.folder.join(name);
        let replaced = self.folder.join(format!("{REPLACED}{name}"));
        let replaces = target.exists();
        if replaces {
            self.disk.rename(&target, &replaced)?;
        }
        if let Err(error) = self.disk.rename(temporary, &target) {
            if replaces {
                let _ = self.disk.rename(&replaced, &target);
            }
            return Err(error);
        }
        self.disk.sync_folder(&self.folder)?;
        if replaces { self.disk.remove_folder(&replaced) } else { Ok(()) }
    }

    /// Finishes or undoes what a killed process left.
    fn recover(&self) -> Result<(), StoreError> {
        self.disk.sweep(&self.folder)?;
        for name in disk::names(&self.folder)? {
            if let Some(target) = name.strip_prefix(REPLACED) {
                let (replaced, target) = (self.folder.join(&name), self.folder.join(target));
                if target.exists() {
                    self.disk.remove_folder(&replaced)?;
                } else {
                    self.disk.rename(&replaced, &target)?;
                    self.disk.sync_folder(&self.folder)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the checkpoints that need not stay; those that are visibly damaged neither count nor go.
    fn prune(&self) -> Result<(), StoreError> {
        let mut whole: Vec<(u64, Option<f64>)> = Vec::new();
        for step in self.steps()? {
            if let Ok(manifest) = self.manifest(step) {
                whole.push((step, manifest.metric));
            }
        }
        let best = whole
            .iter()
            .filter_map(|(step, metric)| metric.map(|m| (m, *step)))
            .min_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)))
            .map(|(_, step)| step)
            .filter(|_| self.keep.best);
        let n_old = whole.len().saturating_sub(self.keep.last);
        for (step, _) in &whole[..n_old] {
            if best != Some(*step) {
                self.discard(&step_name(*step))?;
            }
        }
        Ok(())
    }

    /// Removes a checkpoint; its name goes first, so that half of it is never taken for a whole one.
    fn discard(&self, name: &str) -> Result<(), StoreError> {
        let doomed = self.folder.join(format!("{UNFINISHED}{name}-removed"));
        self.disk.rename(&self.folder.join(name), &doomed)?;
        self.disk.remove_folder(&doomed)
    }

    /// A checkpoint's manifest, its files there and of their sizes.
    fn manifest(&self, step: u64) -> Result<Manifest, StoreError> {
        let folder = self.folder.join(step_name(step));
        let bad = |reason: String| StoreError::BadCheckpoint { path: folder.clone(), reason };
        let path = folder.join(MANIFEST);
        let bytes = disk::read_if_there(&path)?.ok_or_else(|| bad("it has no `manifest.json`".to_string()))?;
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|e| bad(format!("`manifest.json` cannot be read: {e}")))?;
        if manifest.seal() != manifest.sha256 {
            return Err(bad("`manifest.json` was changed".to_string()));
        }
        if manifest.run != self.run_id {
            let (needed, got) = (self.run_id.to_string(), manifest.run.to_string());
            return Err(StoreError::OtherRun { path: folder, needed, got });
        }
        if manifest.step != step {
            return Err(bad(format!("it is of step {}, needed {step}", manifest.step)));
        }
        for file in &manifest.files {
            let got = fs::metadata(folder.join(&file.path)).map(|m| m.len());
            match got {
                Ok(got) if got == file.size_bytes => {}
                Ok(got) => {
                    return Err(bad(format!("`{}` has {got} bytes, needed {}", file.path, file.size_bytes)));
                }
                Err(e) => return Err(bad(format!("`{}` cannot be read: {e}", file.path))),
            }
        }
        Ok(manifest)
    }

    fn verify(&self, step: u64) -> Result<Checkpoint, StoreError> {
        let manifest = self.manifest(step)?;
        let path = self.folder.join(step_name(step));
        let bad = |reason: String| StoreError::BadCheckpoint { path: path.clone(), reason };
        for file in &manifest.files {
            let got = hash_file(&path.join(&file.path))?;
            if got != file.sha256 {
                return Err(bad(format!("`{}` has SHA-256 {got}, needed {}", file.path, file.sha256)));
            }
        }
        let listed = |f: &String| f == MANIFEST || manifest.files.iter().any(|m| m.path == *f);
        if let Some(extra) = disk::files_below(&path)?.files.iter().find(|f| !listed(f)) {
            return Err(bad(format!("`{extra}` is not in its manifest")));
        }
        Ok(Checkpoint { path, step, metric: manifest.metric, files: manifest.files, skipped: Vec::new() })
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
