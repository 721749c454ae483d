//! What can go wrong with a log, and what can be wrong with one.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;

/// Why the ledger could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The system refused: a full disk, no permission, a missing file.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried: `read`, `write`, `create`, `sync`, `lock`, `remove`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process writes this log.
    #[error("log `{path}` is in use by another writer, needed alone")]
    Locked {
        /// The log's folder.
        path: PathBuf,
    },
    /// An entry is too long for an entry bundle.
    #[error("an entry has {got} bytes, needed at most {needed}: log a digest and keep the payload beside the log")]
    TooLong {
        /// The most an entry may have.
        needed: usize,
        /// What it has.
        got: usize,
    },
    /// A payload would pass a limit of its store.
    #[error("a payload of {got} bytes does not fit: {room} bytes are left under the limit on {limit}")]
    Full {
        /// Which limit: `one payload` or `all payloads`.
        limit: &'static str,
        /// What is left under it.
        room: u64,
        /// What was to be put.
        got: u64,
    },
    /// The log on disk, or what is said of it, does not hold together.
    #[error(transparent)]
    Damaged(#[from] Fault),
    /// An earlier write failed, so nothing more is taken: what is on disk is unknown until the log is opened again.
    #[error("log `{path}` takes nothing more since a write failed: {first}; open it again")]
    Broken {
        /// The log's folder.
        path: PathBuf,
        /// The first failure.
        first: String,
    },
    /// An entry that was never handed in cannot be waited for.
    #[error("entry {index} was never handed in: the log has taken {len}")]
    NotSubmitted {
        /// The entry.
        index: u64,
        /// How many were handed in.
        len: u64,
    },
    /// A key's name cannot be a log's origin.
    #[error("`{got}` cannot name a key, needed a name without spaces, control characters and `+`")]
    KeyName {
        /// What was given.
        got: String,
    },
    /// A key's text is not one.
    #[error("`{place}` is not a {needed}")]
    Key {
        /// The file, or the text of a public key.
        place: String,
        /// What was needed: `private key`, `public key`.
        needed: &'static str,
    },
    /// Others can read a private key.
    #[error("private key `{path}` has mode {got:o}, needed 600: others may have read it")]
    KeyMode {
        /// The key's file.
        path: PathBuf,
        /// Its permission bits.
        got: u32,
    },
}

impl LedgerError {
    /// Says of a failed call what was tried on what.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }
}

/// One thing that is wrong with a log, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A file the checkpoint needs is not there.
    #[error("`{path}` is missing")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system refused to read or write a file.
    #[error("cannot {action} `{path}`: {reason}")]
    Io {
        /// What was tried: `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A file is not made as it should be.
    #[error("`{path}` is malformed: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A checkpoint does not bear the signature of the log's key.
    #[error("{what} is not signed by key `{key}`: {reason}")]
    Signature {
        /// What was to be signed: a file, or `a checkpoint`.
        what: String,
        /// The public key that was needed.
        key: String,
        /// Why it does not count.
        reason: String,
    },
    /// A checkpoint is of another log.
    #[error("{what} is of log `{got}`, needed `{needed}`")]
    Origin {
        /// The file, or `a checkpoint`.
        what: String,
        /// The log that was asked about.
        needed: String,
        /// The log it is of.
        got: String,
    },
    /// The log is shorter than one that was seen before: its end, or all of it, was cut off.
    #[error("the log has {got} entries, but {needed} were there before")]
    RolledBack {
        /// The size of the last known checkpoint.
        needed: u64,
        /// The log's size.
        got: u64,
    },
    /// The first entries are not those that were there before: history was rewritten, or two histories were told.
    #[error("the first {size} entries have root {got}, but had {needed} before: history was rewritten or forked")]
    Rewritten {
        /// The size of the last known checkpoint.
        size: u64,
        /// Its root.
        needed: Digest,
        /// The root of as many entries now.
        got: Digest,
    },
    /// The entries are not those the checkpoint was signed for.
    #[error("the {size} entries have root {got}, but {needed} was signed")]
    Root {
        /// The checkpoint's size.
        size: u64,
        /// The root in it.
        needed: Digest,
        /// The root of the entries on disk.
        got: Digest,
    },
    /// An entry is not the one whose hash the tree holds.
    #[error("entry {index} in `{path}` is not the one that was logged")]
    Entry {
        /// The entry.
        index: u64,
        /// Its bundle.
        path: PathBuf,
    },
    /// A bundle holds more or fewer entries than it must.
    #[error("`{path}` holds {got} entries, needed {needed}")]
    Count {
        /// The bundle.
        path: PathBuf,
        /// How many it must hold.
        needed: u64,
        /// How many it holds.
        got: u64,
    },
    /// A hash in a tile is not the one the entries give.
    #[error("hash {position} in `{path}` is not the one the entries give")]
    Tile {
        /// The tile.
        path: PathBuf,
        /// Which of its hashes, from 0.
        position: u64,
    },
    /// The journal is broken before its end.
    #[error("`{path}` is broken at byte {offset}: {reason}")]
    Journal {
        /// The journal.
        path: PathBuf,
        /// Where it breaks.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// A proof does not lead from what it is about to the root.
    #[error("the proof of {what} does not hold")]
    Proof {
        /// What was to be proved.
        what: String,
    },
    /// A payload is not what its name says.
    #[error("payload `{path}` has digest {got}")]
    Payload {
        /// The payload's file.
        path: PathBuf,
        /// The digest of what is in it.
        got: Digest,
    },
    /// Something lies where only parts of the log may lie.
    #[error("`{path}` does not belong there: {reason}")]
    Stray {
        /// The file.
        path: PathBuf,
        /// Why it does not.
        reason: &'static str,
    },
    /// Whoever knows what the entries mean found one that cannot be.
    #[error("entry {index}: {reason}")]
    Meaning {
        /// The entry.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// There are more faults than are worth listing.
    #[error("and {count} more")]
    More {
        /// How many were left out.
        count: u64,
    },
}
