//! The file under the approvals: lines that are only ever added, each chained to all before it, synced before anyone is
//! told, and shared between processes by a lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::ApprovalError;
use super::book::Entry;
use crate::digest;

/// What the first line is chained to.
const GENESIS: &str = "surefoot approvals 1";

/// One line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    chain: String,
    entry: Entry,
}

/// The open file and how far it was read.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of complete lines that were read and checked.
    read: u64,
    lines: usize,
    chain: String,
    pub(super) faults: Faults,
}

impl Journal {
    /// Opens or makes the file in a folder, readable by its owner alone.
    pub(super) fn open(folder: &Path) -> Result<Journal, ApprovalError> {
        let path = folder.join("journal.jsonl");
        std::fs::create_dir_all(folder).map_err(ApprovalError::io("create", folder))?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(ApprovalError::io("open", &path))?;
        // The name itself must survive a crash, or a new process would begin an empty journal.
        File::open(folder).and_then(|f| f.sync_all()).map_err(ApprovalError::io("sync", folder))?;
        let chain = digest::of_bytes(GENESIS.as_bytes());
        Ok(Journal { path, file, read: 0, lines: 0, chain, faults: Faults::default() })
    }

    /// Takes the file for this handle alone until the lock is dropped.
    ///
    /// - Errors: `Busy` when another process keeps it for seconds: nothing here takes that long.
    pub(super) fn lock(&self) -> Result<Lock, ApprovalError> {
        const PAUSE: Duration = Duration::from_millis(2);
        const TRIES: u32 = 5_000;
        let lock_error = |e: io::Error| ApprovalError::io("lock", &self.path)(e);
        let file = self.file.try_clone().map_err(lock_error)?;
        for _ in 0..TRIES {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(e) => return Err(lock_error(e.into())),
            }
        }
        Err(ApprovalError::Busy { path: self.path.clone() })
    }

    /// The entries that others added since the last look. Call it under the lock: half a line is then what a dead process
    /// left behind, was never acknowledged, and is removed.
    pub(super) fn catch_up(&mut self) -> Result<Vec<Entry>, ApprovalError> {
        let here = self.file.metadata().map_err(ApprovalError::io("read", &self.path))?;
        let named = std::fs::metadata(&self.path).map_err(ApprovalError::io("read", &self.path))?;
        if (here.dev(), here.ino()) != (named.dev(), named.ino()) {
            return Err(self.damaged("another file has taken its place"));
        }
        let Some(length) = here.len().checked_sub(self.read) else {
            return Err(self.damaged("it has become shorter"));
        };
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| self.damaged("it is too long"))?];
        self.file.read_exact_at(&mut bytes, self.read).map_err(ApprovalError::io("read", &self.path))?;
        let complete = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        let (mut entries, mut chain) = (Vec::new(), self.chain.clone());
        for (n, line) in bytes[..complete].split_inclusive(|b| *b == b'\n').enumerate() {
            let damaged = |reason: &str| ApprovalError::Damaged {
                path: self.path.clone(),
                line: self.lines + n + 1,
                reason: reason.to_owned(),
            };
            let parsed: Line = serde_json::from_slice(line).map_err(|e| damaged(&e.to_string()))?;
            chain = link(&chain, &parsed.entry)?;
            if chain != parsed.chain {
                return Err(damaged("it is not what was written after the line before it"));
            }
            entries.push(parsed.entry);
        }
        if complete < bytes.len() {
            self.truncate(self.read + complete as u64)?;
        }
        self.read += complete as u64;
        self.lines += entries.len();
        self.chain = chain;
        Ok(entries)
    }

    /// Adds entries, all or none; returns when they are durable. Call it under the lock and after [`Journal::catch_up`].
    pub(super) fn append(&mut self, entries: &[Entry]) -> Result<(), ApprovalError> {
        if entries.is_empty() {
            return Ok(());
        }
        let (mut bytes, mut chain) = (Vec::new(), self.chain.clone());
        for entry in entries {
            chain = link(&chain, entry)?;
            let line = Line { chain: chain.clone(), entry: entry.clone() };
            serde_json::to_writer(&mut bytes, &line).map_err(|e| self.damaged(&e.to_string()))?;
            bytes.push(b'\n');
        }
        if let Err(e) = self.write(&bytes) {
            // What was not acknowledged must not count; if even this fails, the next to look decides by what is there.
            let _ = self.truncate(self.read);
            return Err(ApprovalError::io("write", &self.path)(e));
        }
        self.read += bytes.len() as u64;
        self.lines += entries.len();
        self.chain = chain;
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let (bytes, cut) = self.faults.cut(bytes)?;
        self.file.write_all_at(bytes, self.read)?;
        cut?;
        self.faults.pass()?;
        self.file.sync_data()
    }

    fn truncate(&self, length: u64) -> Result<(), ApprovalError> {
        self.faults
            .pass()
            .and_then(|()| self.file.set_len(length))
            .and_then(|()| self.file.sync_data())
            .map_err(ApprovalError::io("write", &self.path))
    }

    pub(super) fn damaged(&self, reason: &str) -> ApprovalError {
        ApprovalError::Damaged { path: self.path.clone(), line: self.lines, reason: reason.to_owned() }
    }
}

/// The hash of an entry and, through the hash before it, of every entry before.
fn link(before: &str, entry: &Entry) -> Result<String, ApprovalError> {
    Ok(digest::of(&(before, entry))?)
}

/// Holds the file; dropping it lets others go on.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Nothing sensible can be done about an error; the lock ends with the process at the latest.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Every change of the file passes here, so that a test can end the world at any of them.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// How many more changes succeed, and how many bytes of the failing write still reach the file.
    #[cfg(test)]
    pub(super) fuse: std::cell::Cell<Option<(u64, usize)>>,
}

#[cfg(not(test))]
impl Faults {
    fn pass(&self) -> io::Result<()> {
        Ok(())
    }

    fn cut<'a>(&self, bytes: &'a [u8]) -> io::Result<(&'a [u8], io::Result<()>)> {
        Ok((bytes, Ok(())))
    }
}

#[cfg(test)]
impl Faults {
    fn pass(&self) -> io::Result<()> {
        match self.fuse.get() {
            None => Ok(()),
            Some((0, _)) => Err(io::Error::other("the world has ended")),
            Some((left, cut)) => {
                self.fuse.set(Some((left - 1, cut)));
                Ok(())
            }
        }
    }

    fn cut<'a>(&self, bytes: &'a [u8]) -> io::Result<(&'a [u8], io::Result<()>)> {
        let cut = self.fuse.get().map_or(0, |(_, cut)| cut);
        match self.pass() {
            Ok(()) => Ok((bytes, Ok(()))),
            Err(e) => Ok((&bytes[..cut.min(bytes.len())], Err(e))),
        }
    }
}
