//! Payloads by their digest, beside a log that holds the digests.
//!
//! A payload can be taken away without touching the log: its entry and every proof stay valid, and still say what the
//! payload's digest was.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::digest::Digest;
use crate::disk::{Batch, is_unfinished, read, sweep, sync_parent};
use crate::error::{Fault, LedgerError};

/// How much a store of payloads takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most bytes of one payload.
    pub one: u64,
    /// The most bytes of all together.
    pub all: u64,
}

impl Default for Limits {
    /// 16 MiB, and 16 GiB together.
    fn default() -> Self {
        Self { one: 16 << 20, all: 16 << 30 }
    }
}

/// A folder of payloads: `ab/abcd…`, each named by its SHA-256.
#[derive(Debug)]
pub struct Payloads {
    dir: PathBuf,
    limits: Limits,
    state: Mutex<State>,
    turn: Condvar,
}

/// What the threads share.
#[derive(Debug, Default)]
struct State {
    /// The bytes there are, or soon will be.
    used: u64,
    /// The payloads that some thread puts or removes at this moment.
    busy: BTreeSet<Digest>,
}

impl Payloads {
    /// Opens a folder of payloads, or makes it. One process at a time puts payloads there: the one that writes the log.
    pub fn open(dir: &Path, limits: Limits) -> Result<Self, LedgerError> {
        fs::create_dir_all(dir).map_err(LedgerError::io("create", dir))?;
        let mut state = State::default();
        for folder in list(dir)?.into_iter().filter(|path| path.is_dir()) {
            sweep(&folder)?;
            for file in list(&folder)? {
                state.used += fs::metadata(&file).map_err(LedgerError::io("read", &file))?.len();
            }
        }
        Ok(Self { dir: dir.to_path_buf(), limits, state: Mutex::new(state), turn: Condvar::new() })
    }

    /// Keeps a payload; on return it is on disk. One that is there already is kept once.
    ///
    /// - Errors: `Full` if it passes a limit; `Io`.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, LedgerError> {
        Ok(self.put_many(&[bytes])?.remove(0))
    }

    /// Keeps payloads that become durable together, which costs less than one by one.
    ///
    /// - Errors: as [`Payloads::put`]; some may have been kept then.
    pub fn put_many(&self, payloads: &[&[u8]]) -> Result<Vec<Digest>, LedgerError> {
        let digests: Vec<_> = payloads.iter().map(|bytes| Digest::of(bytes)).collect();
        let claim = self.claim(digests.iter().copied().collect());
        let mut missing: Vec<(PathBuf, &[u8])> = Vec::new();
        let mut seen = BTreeSet::new();
        for (digest, bytes) in digests.iter().zip(payloads) {
            if seen.insert(digest) && !self.holds(digest, bytes)? {
                missing.push((self.path(digest), bytes));
            }
        }
        let mut reserved = 0;
        for (path, bytes) in &missing {
            reserved += self.reserve(bytes.len() as u64, path).inspect_err(|_| self.give_back(reserved))?;
        }
        let mut batch = Batch::default();
        let written =
            missing.iter().try_for_each(|(path, bytes)| batch.write(path, bytes)).and_then(|()| batch.finish());
        drop(claim);
        // What was reserved stays so: after a failure nobody knows which of them are there.
        written.map(|()| digests)
    }

    /// A payload, checked against its digest; none if it is not there.
    ///
    /// - Errors: `Damaged` with `Payload` if it was changed.
    pub fn get(&self, digest: &Digest) -> Result<Option<Vec<u8>>, LedgerError> {
        let path = self.path(digest);
        let bytes = read(&path, usize::try_from(self.limits.one).unwrap_or(usize::MAX - 1))?;
        match bytes.as_deref().map(Digest::of) {
            Some(got) if got != *digest => Err(Fault::Payload { path, got }.into()),
            _ => Ok(bytes),
        }
    }

    /// Takes a payload away; answers whether it was there.
    pub fn remove(&self, digest: &Digest) -> Result<bool, LedgerError> {
        let path = self.path(digest);
        let _claim = self.claim([*digest].into());
        let size = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(LedgerError::io("remove", &path)(e)),
        };
        fs::remove_file(&path).map_err(LedgerError::io("remove", &path))?;
        self.give_back(size);
        sync_parent(&path)?;
        Ok(true)
    }

    /// Checks every payload in a folder against its name.
    ///
    /// - Holds: a payload that is not there is no fault: which ones must be, the log's entries say.
    pub fn verify(dir: &Path) -> Vec<Fault> {
        let mut faults = Vec::new();
        let files = match list(dir) {
            Ok(folders) => folders.into_iter().map(|folder| list(&folder)).collect::<Result<Vec<_>, _>>(),
            Err(error) => Err(error),
        };
        match files {
            Err(error) => faults.push(Fault::Io { action: "read", path: dir.to_path_buf(), reason: error.to_string() }),
            Ok(files) => faults.extend(files.into_iter().flatten().filter_map(|file| check(&file).err())),
        }
        faults
    }

    /// Where a payload lies.
    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.dir.join(&name[..2]).join(name)
    }

    /// Whether a payload lies there as it was put. One that was changed is put again.
    fn holds(&self, digest: &Digest, bytes: &[u8]) -> Result<bool, LedgerError> {
        let path = self.path(digest);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() == bytes.len() as u64 => {
                Ok(read(&path, bytes.len())?.as_deref() == Some(bytes))
            }
            _ => Ok(false),
        }
    }

    /// Takes room for a payload, in place of what lies there; answers how much more that is.
    fn reserve(&self, got: u64, path: &Path) -> Result<u64, LedgerError> {
        let old = fs::metadata(path).map_or(0, |m| m.len());
        let mut state = self.lock();
        let others = state.used.saturating_sub(old);
        let room = self.limits.all.saturating_sub(others);
        if got > self.limits.one {
            return Err(LedgerError::Full { limit: "one payload", room: self.limits.one, got });
        }
        if got > room {
            return Err(LedgerError::Full { limit: "all payloads", room, got });
        }
        state.used = others + got;
        Ok(got.saturating_sub(old))
    }

    /// Gives room back.
    fn give_back(&self, bytes: u64) {
        let mut state = self.lock();
        state.used = state.used.saturating_sub(bytes);
    }

    /// Waits until nobody else puts or removes those payloads, and keeps others from it.
    fn claim(&self, digests: BTreeSet<Digest>) -> Claim<'_> {
        let mut state = self.lock();
        while !state.busy.is_disjoint(&digests) {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.busy.extend(&digests);
        Claim { payloads: self, digests }
    }

    /// The shared state, which no panic can leave half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Payloads that one thread puts or removes.
struct Claim<'a> {
    payloads: &'a Payloads,
    digests: BTreeSet<Digest>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.payloads.lock();
        state.busy.retain(|digest| !self.digests.contains(digest));
        self.payloads.turn.notify_all();
    }
}

/// Checks a payload against its name, reading it piece by piece.
fn check(path: &Path) -> Result<(), Fault> {
    use sha2::Digest as _;
    if is_unfinished(path) {
        return Ok(());
    }
    let name = path.file_name().and_then(|n| n.to_str()).and_then(Digest::from_hex);
    let Some(needed) = name.filter(|digest| path.parent().is_some_and(|p| p.ends_with(&digest.to_string()[..2])))
    else {
        return Err(Fault::Stray { path: path.to_path_buf(), reason: "needed a payload under its digest" });
    };
    let failed = |e: io::Error| Fault::Io { action: "read", path: path.to_path_buf(), reason: e.to_string() };
    let mut hasher = sha2::Sha256::new();
    let mut file = fs::File::open(path).map_err(failed)?;
    let mut piece = vec![0; 64 << 10];
    loop {
        match io::Read::read(&mut file, &mut piece).map_err(failed)? {
            0 => break,
            n => hasher.update(&piece[..n]),
        }
    }
    let got = Digest(hasher.finalize().into());
    if got == needed { Ok(()) } else { Err(Fault::Payload { path: path.to_path_buf(), got }) }
}

/// What lies in a folder, sorted.
fn list(folder: &Path) -> Result<Vec<PathBuf>, LedgerError> {
    let entries = fs::read_dir(folder).map_err(LedgerError::io("read", folder))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(LedgerError::io("read", folder))?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
#[path = "payload_tests.rs"]
mod tests;
