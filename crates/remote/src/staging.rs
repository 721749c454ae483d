//! The only way into the store: one process at a time builds a model beside its place and moves it there whole.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::record::{RECORD_FILE, RECORD_FORMAT};
use crate::{Event, FileRecord, ModelRecord, RemoteError, Watch, disk};

/// How long another process's work on the same model is awaited.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(30 * 60);

/// A model's lock; the system lets go of it when this is dropped or the process dies.
pub(crate) struct Lock {
    _file: File,
}

/// The least that is waited: a program that any thread is just starting holds a copy of every open file, an open lock among
/// them, until it runs.
const GRACE: Duration = Duration::from_millis(200);

impl Lock {
    /// Waits for the lock of a model.
    ///
    /// - Errors: [`RemoteError::Locked`] when another process still has it after `wait`.
    pub(crate) fn take(root: &Path, name: &str, wait: Duration, watch: Option<Watch<'_>>) -> Result<Lock, RemoteError> {
        fs::create_dir_all(root).map_err(RemoteError::io("create", root))?;
        let path = root.join(format!(".lock-{name}"));
        // The file stays: deleting it would let two processes lock two files of one name.
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(RemoteError::io("create", &path))?;
        let started = Instant::now();
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(RemoteError::io("lock", &path)(e)),
            }
            if started.elapsed() >= wait.max(GRACE) {
                let waited_s = started.elapsed().as_secs();
                return Err(RemoteError::Locked { name: name.to_string(), waited_s, lock: path });
            }
            if let Some(watch) = watch {
                if !std::mem::replace(&mut told, true) {
                    watch.tell(&Event::Waiting { model: name });
                }
                watch.check()?;
            }
            std::thread::sleep(crate::progress::TICK);
        }
    }
}

/// A model being put together, under its lock.
pub(crate) struct Staging<'a> {
    root: &'a Path,
    name: &'a str,
    folder: PathBuf,
    keep: bool,
    _lock: Lock,
}

/// The folder in which a model is put together.
pub(crate) fn staging_folder(root: &Path, name: &str) -> PathBuf {
    root.join(format!(".part-{name}"))
}

fn displaced_folder(root: &Path, name: &str) -> PathBuf {
    root.join(format!(".old-{name}"))
}

impl<'a> Staging<'a> {
    /// Begins, or goes on with what an earlier process left when `resume` is set; else leftovers go first.
    pub(crate) fn open(root: &'a Path, name: &'a str, lock: Lock, resume: bool) -> Result<Self, RemoteError> {
        let folder = staging_folder(root, name);
        disk::remove_folder(&displaced_folder(root, name))?;
        if !resume {
            disk::remove_folder(&folder)?;
        }
        fs::create_dir_all(&folder).map_err(RemoteError::io("create", &folder))?;
        Ok(Staging { root, name, folder, keep: resume, _lock: lock })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Moves the finished model to its place; nobody sees it before, and a damaged one of that name makes way.
    ///
    /// - Holds: every file listed was synced by whoever wrote it; files not listed are an error of this crate.
    pub(crate) fn commit(
        mut self,
        source: String,
        licence: Option<String>,
        mut files: Vec<FileRecord>,
    ) -> Result<PathBuf, RemoteError> {
        files.sort_by(|a, b| a.file.cmp(&b.file));
        // A clock before 1970 is no reason to lose a download.
        let installed_unix_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let name = self.name.to_string();
        let record = ModelRecord { format: RECORD_FORMAT, name, source, licence, installed_unix_s, files };
        let mut text = serde_json::to_string_pretty(&record).expect("a record of numbers and strings is JSON");
        text.push('\n');
        let path = self.folder.join(RECORD_FILE);
        fs::write(&path, text).map_err(RemoteError::io("write", &path))?;
        File::open(&path).and_then(|f| f.sync_all()).map_err(RemoteError::io("sync", &path))?;
        disk::sync_folder(&self.folder)?;
        let place = self.root.join(self.name);
        let displaced = displaced_folder(self.root, self.name);
        if fs::symlink_metadata(&place).is_ok() {
            fs::rename(&place, &displaced).map_err(RemoteError::io("rename", &place))?;
        }
        fs::rename(&self.folder, &place).map_err(RemoteError::io("rename", &self.folder))?;
        self.keep = true;
        disk::sync_folder(self.root)?;
        disk::remove_folder(&displaced)?;
        Ok(place)
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if !self.keep {
            // A failure leaves a hidden folder that the next attempt on this model removes.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
