//! The journal: entries that no tile holds yet.
//!
//! What is handed in together is one frame, written and synced in one go; then it counts as logged. Frames begin at whole
//! pages, so that writing one never touches the sectors of another, and the file is filled with zeros ahead of them, so
//! that a sync has to move data and no metadata. Once a checkpoint covers its entries the journal begins again at its
//! first byte; what is left behind there is older than the checkpoint and is passed over.
//!
//! ```text
//! magic 8 · first entry u64 · number of entries u32 · bytes of entries u32 · root after them 32 · signature 64 · entries
//! ```
//!
//! The signature is of the log's key, so that what lies here is as hard to change as what a checkpoint covers; its text
//! can be no checkpoint, so that nothing is promised before it is on disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::disk::{join_entry, split_entries, sync_parent};
use crate::error::{Fault, LedgerError};
use crate::key::{Signer, Verifier};
use crate::tree::{Tree, leaf_hash};

/// What every frame begins with.
const MAGIC: [u8; 8] = *b"sflog-1\n";

/// What frames begin at a multiple of.
const PAGE: u64 = 4096;

/// The bytes before the entries.
const HEADER: usize = 8 + 8 + 4 + 4 + 32 + 64;

/// How much is filled with zeros at a time.
const AHEAD: u64 = 1 << 20;

/// The most bytes of entries in a frame: any one entry fits.
pub(crate) const LONGEST_BODY: usize = 4 << 20;

/// The journal of a log that is written.
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    /// Where the next frame goes.
    at: u64,
    /// How far the file is filled.
    filled: u64,
}

impl Journal {
    /// Makes a new journal.
    pub(crate) fn create(path: &Path) -> Result<(), LedgerError> {
        File::create_new(path).and_then(|f| f.sync_all()).map_err(LedgerError::io("create", path))?;
        sync_parent(path)
    }

    /// Opens a journal to write on at that byte.
    pub(crate) fn open(path: &Path, at: u64) -> Result<Self, LedgerError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(LedgerError::io("write", path))?;
        let length = file.metadata().map_err(LedgerError::io("read", path))?.len();
        Ok(Self { file, path: path.to_path_buf(), at, filled: length / PAGE * PAGE })
    }

    /// How many bytes hold frames.
    pub(crate) fn used(&self) -> u64 {
        self.at
    }

    /// Writes a frame and waits until it is on disk.
    pub(crate) fn append(
        &mut self,
        signer: &Signer,
        first: u64,
        entries: &[Vec<u8>],
        root: Digest,
    ) -> Result<(), LedgerError> {
        let frame = encode(signer, first, entries, root);
        let end = self.at + frame.len() as u64;
        self.fill(end)?;
        self.file
            .write_all_at(&frame, self.at)
            .and_then(|()| self.file.sync_data())
            .map_err(LedgerError::io("write", &self.path))?;
        self.at = end;
        Ok(())
    }

    /// Begins again at the first byte: a checkpoint covers every frame.
    pub(crate) fn begin_again(&mut self) {
        self.at = 0;
    }

    /// Fills the file at least up to that byte.
    fn fill(&mut self, end: u64) -> Result<(), LedgerError> {
        while self.filled < end {
            self.file
                .write_all_at(&vec![0; AHEAD as usize], self.filled)
                .and_then(|()| self.file.sync_all())
                .map_err(LedgerError::io("write", &self.path))?;
            self.filled += AHEAD;
        }
        Ok(())
    }
}

/// What a journal held.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Where the next frame goes.
    pub(crate) end: u64,
    /// Whether a frame after that was begun and not finished; nobody was told that its entries are logged.
    pub(crate) torn: bool,
}

/// Reads the entries that follow those in `tree`, adds them and shows them to `look` with the tree they made.
///
/// - Errors: `Missing`, `Io`; `Journal` if a frame is broken that is not the last, or one is missing.
pub(crate) fn replay(
    path: &Path,
    verifier: &Verifier,
    tree: &mut Tree,
    look: &mut dyn FnMut(&[Vec<u8>], &Tree),
) -> Result<Replayed, Fault> {
    let unreadable = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Fault::Missing { path: path.to_path_buf() },
        _ => Fault::Io { action: "read", path: path.to_path_buf(), reason: e.to_string() },
    };
    let file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let (mut at, mut again) = (0, false);
    loop {
        let before = tree.size();
        let torn = follow(&file, length, verifier, tree, &mut at, look).map_err(unreadable)?;
        // A frame is written only once the one before it is on disk. So what is broken here was the last one, unless a
        // later one can be found; and none but the log's key could have made that.
        let Some(later) = find_later(&file, at, length, verifier, tree.size()).map_err(unreadable)? else {
            return Ok(Replayed { end: at, torn });
        };
        // A writer at work may have finished what was half written a moment ago.
        if again && tree.size() == before {
            let reason = format!("entries {} to {} are missing", tree.size(), later - 1);
            return Err(Fault::Journal { path: path.to_path_buf(), offset: at, reason });
        }
        again = true;
    }
}

/// Adds the entries of every frame from that byte on that continues the tree; answers whether a frame that does is torn.
fn follow(
    file: &File,
    length: u64,
    verifier: &Verifier,
    tree: &mut Tree,
    at: &mut u64,
    look: &mut dyn FnMut(&[Vec<u8>], &Tree),
) -> io::Result<bool> {
    // Other frames were left behind from before the checkpoint.
    while let Some(header) = Header::read(file, *at, length, verifier)?.filter(|header| header.first == tree.size()) {
        let Some(entries) = header.entries(file, *at)? else {
            return Ok(true);
        };
        let mut longer = tree.clone();
        entries.iter().for_each(|entry| longer.push(leaf_hash(entry), |_, _| ()));
        if longer.root() != header.root {
            return Ok(true);
        }
        *tree = longer;
        look(&entries, tree);
        *at += header.length();
    }
    Ok(false)
}

/// Looks from that byte on for a frame that begins after entry `size`; answers its first entry.
fn find_later(file: &File, mut at: u64, length: u64, verifier: &Verifier, size: u64) -> io::Result<Option<u64>> {
    while at < length {
        if let Some(header) = Header::read(file, at, length, verifier)?.filter(|header| header.first > size) {
            return Ok(Some(header.first));
        }
        at += PAGE;
    }
    Ok(None)
}

/// What a frame says of itself, its signature checked.
struct Header {
    first: u64,
    count: u32,
    bytes: u32,
    root: Digest,
}

impl Header {
    /// Reads the header at that byte; none if there is no signed one.
    fn read(file: &File, at: u64, length: u64, verifier: &Verifier) -> io::Result<Option<Self>> {
        let mut bytes = [0; HEADER];
        if length.saturating_sub(at) < HEADER as u64 {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, at)?;
        Ok(Self::parse(&bytes, verifier).filter(|h| length - at >= HEADER as u64 + u64::from(h.bytes)))
    }

    /// Takes a header apart.
    fn parse(bytes: &[u8; HEADER], verifier: &Verifier) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        if *magic != MAGIC {
            return None;
        }
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (root, signature) = rest.split_first_chunk::<32>()?;
        let header = Self {
            first: u64::from_be_bytes(*first),
            count: u32::from_be_bytes(*count),
            bytes: u32::from_be_bytes(*length),
            root: Digest(*root),
        };
        let sound = header.first.checked_add(u64::from(header.count)).is_some()
            && header.bytes as usize <= LONGEST_BODY
            && verifier.verify(&message(verifier.name(), header.first, header.count, header.root), signature);
        sound.then_some(header)
    }

    /// The entries of the frame that begins at that byte; none if there are not as many as it says.
    fn entries(&self, file: &File, at: u64) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut body = vec![0; self.bytes as usize];
        file.read_exact_at(&mut body, at + HEADER as u64)?;
        Ok(split_entries(&body).filter(|entries| entries.len() == self.count as usize))
    }

    /// The bytes the frame takes.
    fn length(&self) -> u64 {
        (HEADER as u64 + u64::from(self.bytes)).next_multiple_of(PAGE)
    }
}

/// A frame as it is written.
fn encode(signer: &Signer, first: u64, entries: &[Vec<u8>], root: Digest) -> Vec<u8> {
    let count = u32::try_from(entries.len()).expect("a frame's entries fit its bytes");
    let mut frame = Vec::new();
    frame.extend(MAGIC);
    frame.extend(first.to_be_bytes());
    frame.extend(count.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(root.0);
    frame.extend(signer.sign(&message(signer.name(), first, count, root)));
    entries.iter().for_each(|entry| join_entry(&mut frame, entry));
    let bytes = u32::try_from(frame.len() - HEADER).expect("a frame's bytes are bounded");
    frame[20..24].copy_from_slice(&bytes.to_be_bytes());
    frame.resize(frame.len().next_multiple_of(PAGE as usize), 0);
    frame
}

/// What is signed: its first line is no log's name, since names have no spaces.
fn message(origin: &str, first: u64, count: u32, root: Digest) -> Vec<u8> {
    format!("surefoot ledger journal 1\n{origin}\n{first}\n{count}\n{root}\n").into_bytes()
}
