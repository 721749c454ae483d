//! The log that is written: entries from many threads at once, each durable before its writer is told.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::checkpoint::Checkpoint;
use crate::digest::Digest;
use crate::disk::LONGEST_ENTRY;
use crate::error::LedgerError;
use crate::journal::LONGEST_BODY;
use crate::key::Signer;
use crate::writer::Writer;

/// How many bytes may wait for the disk before [`Log::submit`] waits for it too.
const LONGEST_QUEUE: usize = 8 << 20;

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many entries may lie in the journal before a checkpoint covers them; 0 for no bound but the journal's size.
    pub every: u64,
    /// The last checkpoint that is known from elsewhere: a log that does not continue it is not opened.
    pub known: Option<Checkpoint>,
}

impl Default for Options {
    fn default() -> Self {
        Self { every: 4096, known: None }
    }
}

/// An append-only log with one writer, to be shared by its threads.
///
/// Whoever finds no one writing writes what everyone has handed in so far, in one piece with one sync; the others wait for
/// it. An entry is logged once that sync is done: then it survives a crash at any moment, and only then may a checkpoint
/// cover it.
///
/// - Holds: indices are given in the order of handing in, without gaps.
pub struct Log {
    dir: PathBuf,
    signer: Signer,
    state: Mutex<State>,
    turn: Condvar,
    /// Held while the log is open.
    _lock: File,
}

/// What the threads share.
struct State {
    /// Handed in and not yet taken by whoever writes.
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    /// How many entries were handed in.
    taken: u64,
    /// How many are on disk.
    durable: u64,
    /// The root over those.
    root: Digest,
    /// The signed head of those, if it was asked for.
    head: Option<Checkpoint>,
    /// The files; away while someone writes.
    writer: Option<Writer>,
    /// What the first failed write said.
    broken: Option<String>,
}

impl Log {
    /// Opens the log in a folder, or begins one there if there is none; the key's name is the log's.
    ///
    /// - Holds: everything that was ever logged is in it; what a killed writer left half written is cut off.
    /// - Errors: `Locked` if another writer has it; `Damaged` if what is on disk does not fit its checkpoint; `Io`.
    pub fn open(dir: &Path, signer: Signer) -> Result<Self, LedgerError> {
        Self::open_with(dir, signer, Options::default())
    }

    /// As [`Log::open`], kept otherwise.
    ///
    /// - Errors: as well `Damaged` if the log does not continue `options.known`.
    pub fn open_with(dir: &Path, signer: Signer, options: Options) -> Result<Self, LedgerError> {
        fs::create_dir_all(dir).map_err(LedgerError::io("create", dir))?;
        let lock = lock(dir)?;
        let writer = Writer::open(dir, signer.clone(), &options)?;
        let state = State {
            queue: VecDeque::new(),
            queue_bytes: 0,
            taken: writer.size(),
            durable: writer.size(),
            root: writer.root(),
            head: None,
            writer: Some(writer),
            broken: None,
        };
        Ok(Self { dir: dir.to_path_buf(), signer, state: Mutex::new(state), turn: Condvar::new(), _lock: lock })
    }

    /// Logs an entry; on return it is on disk. Its index is answered.
    ///
    /// - Errors: `TooLong`; `Io` or `Broken` if it could not be written: then it is not logged, as far as can be known.
    pub fn append(&self, entry: &[u8]) -> Result<u64, LedgerError> {
        Ok(self.append_many(&[entry])?.start)
    }

    /// Logs entries one after the other, with nothing between; on return all are on disk.
    ///
    /// - Errors: as [`Log::append`]; a crash before the return may leave the first few of them logged.
    pub fn append_many<E: AsRef<[u8]>>(&self, entries: &[E]) -> Result<Range<u64>, LedgerError> {
        let mut state = self.lock();
        let range = self.hand_in(&mut state, entries)?;
        drop(self.drive(state, range.end)?);
        Ok(range)
    }

    /// Hands an entry in without waiting for the disk: it comes after all before it, and is logged once [`Log::commit`]
    /// of its index, or any later append, returns. Its index is answered.
    ///
    /// - Errors: as [`Log::append`].
    pub fn submit(&self, entry: &[u8]) -> Result<u64, LedgerError> {
        let mut state = self.lock();
        let range = self.hand_in(&mut state, &[entry])?;
        if state.queue_bytes > LONGEST_QUEUE {
            drop(self.drive(state, range.end)?);
        }
        Ok(range.start)
    }

    /// Waits until an entry that was handed in is on disk, with all before it.
    ///
    /// - Errors: `NotSubmitted`; `Io`, `Broken`.
    pub fn commit(&self, index: u64) -> Result<(), LedgerError> {
        let state = self.lock();
        if index >= state.taken {
            return Err(LedgerError::NotSubmitted { index, len: state.taken });
        }
        self.drive(state, index + 1).map(drop)
    }

    /// How many entries are logged.
    pub fn len(&self) -> u64 {
        self.lock().durable
    }

    /// Whether nothing is logged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The signed head of everything that is logged so far, without writing it to the log's folder: for whoever keeps it
    /// elsewhere.
    pub fn head(&self) -> Checkpoint {
        let mut state = self.lock();
        let (size, root) = (state.durable, state.root);
        state.head.get_or_insert_with(|| Checkpoint::sign(&self.signer, size, root)).clone()
    }

    /// Logs what was handed in, writes the tiles over it and a checkpoint that covers it, and answers that.
    pub fn checkpoint(&self) -> Result<Checkpoint, LedgerError> {
        let state = self.lock();
        let taken = state.taken;
        let mut state = self.drive(state, taken)?;
        loop {
            self.whole(&state)?;
            if let Some(writer) = state.writer.take() {
                let (mut state, writer, checkpoint) = self.work(state, writer, Writer::publish)?;
                state.writer = Some(writer);
                self.turn.notify_all();
                return Ok(checkpoint);
            }
            state = self.wait(state);
        }
    }

    /// Ends with a checkpoint over everything. A log that is dropped does the same, and has nobody to tell if it fails;
    /// nothing is lost then, since the journal holds what no checkpoint covers.
    pub fn close(self) -> Result<Checkpoint, LedgerError> {
        self.checkpoint()
    }

    /// Puts entries in the queue.
    fn hand_in<E: AsRef<[u8]>>(&self, state: &mut State, entries: &[E]) -> Result<Range<u64>, LedgerError> {
        self.whole(state)?;
        if let Some(long) = entries.iter().find(|e| e.as_ref().len() > LONGEST_ENTRY) {
            return Err(LedgerError::TooLong { needed: LONGEST_ENTRY, got: long.as_ref().len() });
        }
        let first = state.taken;
        for entry in entries {
            state.queue.push_back(entry.as_ref().to_vec());
            state.queue_bytes += entry.as_ref().len() + 2;
        }
        state.taken += entries.len() as u64;
        Ok(first..state.taken)
    }

    /// Sees to it that as many entries are on disk: waits for whoever writes, or writes.
    fn drive<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        needed: u64,
    ) -> Result<MutexGuard<'a, State>, LedgerError> {
        while state.durable < needed {
            self.whole(&state)?;
            let Some(writer) = state.writer.take() else {
                state = self.wait(state);
                continue;
            };
            let batch = state.next_batch();
            let (mut now, mut writer, ()) = self.work(state, writer, |writer| writer.write(batch))?;
            (now.durable, now.root, now.head) = (writer.size(), writer.root(), None);
            if writer.is_due() {
                // Those whose entries are on disk need not wait for the tiles.
                self.turn.notify_all();
                (now, writer, _) = self.work(now, writer, Writer::publish)?;
            }
            now.writer = Some(writer);
            self.turn.notify_all();
            state = now;
        }
        Ok(state)
    }

    /// Lets the others hand in while the files are worked on. A failed step is the last one: after it, nobody knows what
    /// is on disk.
    fn work<'a, T>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut writer: Writer,
        step: impl FnOnce(&mut Writer) -> Result<T, LedgerError>,
    ) -> Result<(MutexGuard<'a, State>, Writer, T), LedgerError> {
        drop(state);
        let mut lost = Lost { log: self, why: Some("a writing thread was lost".to_owned()) };
        match step(&mut writer) {
            Ok(answer) => {
                lost.why = None;
                Ok((self.lock(), writer, answer))
            }
            Err(error) => {
                lost.why = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Refuses to go on after a failed write.
    fn whole(&self, state: &State) -> Result<(), LedgerError> {
        match &state.broken {
            Some(first) => Err(LedgerError::Broken { path: self.dir.clone(), first: first.clone() }),
            None => Ok(()),
        }
    }

    /// The shared state. A thread that panicked while it held it cannot have left it half changed: nothing between taking
    /// and giving back can panic but for want of memory.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changed.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.turn.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = self.checkpoint();
    }
}

/// Tells the waiting threads that the files will not come back, if they do not.
struct Lost<'a> {
    log: &'a Log,
    why: Option<String>,
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if let Some(why) = self.why.take() {
            self.log.lock().broken.get_or_insert(why);
            self.log.turn.notify_all();
        }
    }
}

impl State {
    /// What goes to disk next: as much as fits a frame.
    fn next_batch(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(entry) = self.queue.front() {
            bytes += entry.len() + 2;
            if bytes > LONGEST_BODY {
                break;
            }
            batch.extend(self.queue.pop_front());
        }
        self.queue_bytes -= batch.iter().map(|e| e.len() + 2).sum::<usize>();
        batch
    }
}

/// Takes the log for this writer alone. The system lets go of it when the process ends, however it does.
fn lock(dir: &Path) -> Result<File, LedgerError> {
    let path = dir.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(LedgerError::io("lock", &path))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LedgerError::Locked { path: dir.to_path_buf() }),
        Err(e) => Err(LedgerError::io("lock", &path)(e.into())),
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
