//! The files of a log that is written: the journal, and what is published from it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::digest::Digest;
use crate::disk::{
    Batch, bundle_path, checkpoint_path, join_entry, journal_path, parent, read_bundle, read_checkpoint, read_tile,
    sweep, tile_path, write_durably,
};
use crate::error::{Fault, LedgerError};
use crate::journal::{Journal, replay};
use crate::key::Signer;
use crate::log::Options;
use crate::reader::Reader;
use crate::tree::{FULL, Place, Tree, edge_places, leaf_hash};

/// How many bytes of journal call for a checkpoint.
const FULL_JOURNAL: u64 = 16 << 20;

/// What writes a log.
pub(crate) struct Writer {
    dir: PathBuf,
    signer: Signer,
    every: u64,
    tree: Tree,
    journal: Journal,
    /// The checkpoint on disk.
    published: Checkpoint,
    /// The entries from the beginning of the last bundle that was not full when that checkpoint was made.
    recent: Vec<Vec<u8>>,
    /// Tiles that became full since.
    full: Vec<(Place, Vec<Digest>)>,
}

impl Writer {
    /// Reads what there is, or begins a log.
    pub(crate) fn open(dir: &Path, signer: Signer, options: &Options) -> Result<Self, LedgerError> {
        sweep(dir)?;
        let published = match read_checkpoint(dir, signer.verifier())? {
            Some(checkpoint) => checkpoint,
            None => begin(dir, &signer)?,
        };
        let (mut tree, mut recent) = load(dir, &published)?;
        let mut full = Vec::new();
        let mut known_root = None;
        let journal = journal_path(dir);
        let replayed = replay(&journal, signer.verifier(), &mut tree.clone(), &mut |entries, _| {
            for entry in entries {
                tree.push(leaf_hash(entry), |place, hashes| full.push((place, hashes)));
                if options.known.as_ref().is_some_and(|known| known.size() == tree.size()) {
                    known_root = Some(tree.root());
                }
            }
            recent.extend_from_slice(entries);
        })?;
        if let Some(known) = &options.known {
            continues(dir, known, &published, tree.size(), known_root)?;
        }
        let journal = Journal::open(&journal, replayed.end)?;
        Ok(Self { dir: dir.to_path_buf(), signer, every: options.every, tree, journal, published, recent, full })
    }

    /// How many entries are on disk.
    pub(crate) fn size(&self) -> u64 {
        self.tree.size()
    }

    /// The root over them.
    pub(crate) fn root(&self) -> Digest {
        self.tree.root()
    }

    /// Whether so much lies in the journal that a checkpoint should cover it.
    pub(crate) fn is_due(&self) -> bool {
        let waiting = self.size() - self.published.size();
        (self.every > 0 && waiting >= self.every) || (waiting > 0 && self.journal.used() >= FULL_JOURNAL)
    }

    /// Puts entries on disk.
    pub(crate) fn write(&mut self, entries: Vec<Vec<u8>>) -> Result<(), LedgerError> {
        let first = self.size();
        for entry in &entries {
            self.tree.push(leaf_hash(entry), |place, hashes| self.full.push((place, hashes)));
        }
        self.journal.append(&self.signer, first, &entries, self.tree.root())?;
        self.recent.extend(entries);
        Ok(())
    }

    /// Writes bundles and tiles of everything in the journal, then the checkpoint that covers them, and begins the journal
    /// again. A crash between any two of these steps leaves the old checkpoint with the journal, or the new one.
    pub(crate) fn publish(&mut self) -> Result<Checkpoint, LedgerError> {
        let (old, new) = (self.published.size(), self.size());
        if old == new {
            return Ok(self.published.clone());
        }
        let mut batch = Batch::default();
        let begun = old / FULL;
        for (n, entries) in (begun..).zip(self.recent.chunks(FULL as usize)) {
            let mut bytes = Vec::new();
            entries.iter().for_each(|entry| join_entry(&mut bytes, entry));
            batch.write(&bundle_path(&self.dir, n, entries.len() as u64), &bytes)?;
        }
        let there = edge_places(old);
        let partial = self.tree.partial().filter(|(place, _)| !there.contains(place));
        for (place, hashes) in self.full.iter().map(|(place, hashes)| (*place, hashes.as_slice())).chain(partial) {
            batch.write(&tile_path(&self.dir, place), &hashes.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>())?;
        }
        batch.finish()?;
        let checkpoint = Checkpoint::sign(&self.signer, new, self.tree.root());
        write_durably(&checkpoint_path(&self.dir), checkpoint.note().as_bytes())?;

        self.journal.begin_again();
        self.published = checkpoint.clone();
        self.drop_partials(old)?;
        self.full.clear();
        let whole_bundles = new / FULL - begun;
        self.recent.drain(..(whole_bundles * FULL) as usize);
        Ok(checkpoint)
    }

    /// Deletes what was kept of tiles and bundles before they became full.
    fn drop_partials(&self, old: u64) -> Result<(), LedgerError> {
        let remove = |file: PathBuf| {
            let folder = parent(&file);
            match fs::remove_dir_all(&folder) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(LedgerError::io("remove", &folder)(e)),
                _ => Ok(()),
            }
        };
        for (place, _) in &self.full {
            remove(tile_path(&self.dir, Place { width: 1, ..*place }))?;
        }
        (old / FULL..self.size() / FULL).try_for_each(|n| remove(bundle_path(&self.dir, n, 1)))
    }
}

/// Begins a log in a folder without one.
///
/// - Errors: `Damaged` if there are parts of one: then its checkpoint was taken away.
fn begin(dir: &Path, signer: &Signer) -> Result<Checkpoint, LedgerError> {
    let checkpoint = checkpoint_path(dir);
    let journal = journal_path(dir);
    let parts = dir.join("tile").exists() || fs::metadata(&journal).is_ok_and(|m| m.len() > 0);
    if parts {
        return Err(Fault::Missing { path: checkpoint }.into());
    }
    if !journal.exists() {
        Journal::create(&journal)?;
    }
    let empty = Checkpoint::sign(signer, 0, Tree::default().root());
    write_durably(&checkpoint, empty.note().as_bytes())?;
    Ok(empty)
}

/// The tree a checkpoint covers, and the entries of its last bundle if that is not full.
fn load(dir: &Path, checkpoint: &Checkpoint) -> Result<(Tree, Vec<Vec<u8>>), Fault> {
    let size = checkpoint.size();
    let mut edge = Vec::new();
    for place in edge_places(size) {
        edge.push(if place.width == FULL { Vec::new() } else { read_tile(dir, place)? });
    }
    let (n, width) = (size / FULL, size % FULL);
    let mut recent = Vec::new();
    if width > 0 {
        let (path, entries) = read_bundle(dir, n, width)?;
        if entries.len() as u64 != width {
            return Err(Fault::Count { path, needed: width, got: entries.len() as u64 });
        }
        for ((index, entry), hash) in (n * FULL..).zip(&entries).zip(edge.first().into_iter().flatten()) {
            if leaf_hash(entry) != *hash {
                return Err(Fault::Entry { index, path });
            }
        }
        recent = entries;
    }
    let tree = Tree::from_edge(size, edge).expect("every tile was read with the width it must have");
    if tree.root() != checkpoint.root() {
        return Err(Fault::Root { size, needed: checkpoint.root(), got: tree.root() });
    }
    Ok((tree, recent))
}

/// Whether a log of that size continues a checkpoint that is known from elsewhere; `root` is the root of as many entries as
/// it covers, if those reach into the journal.
fn continues(
    dir: &Path,
    known: &Checkpoint,
    published: &Checkpoint,
    size: u64,
    root: Option<Digest>,
) -> Result<(), Fault> {
    known.same_history(published)?;
    if known.size() > size {
        return Err(Fault::RolledBack { needed: known.size(), got: size });
    }
    let rewritten = |got| Fault::Rewritten { size: known.size(), needed: known.root(), got };
    if known.size() > published.size() {
        return if root == Some(known.root()) { Ok(()) } else { Err(rewritten(root.unwrap_or(published.root()))) };
    }
    let reader = Reader::at(dir, published.clone());
    let got = reader.root_at(known.size())?;
    if got != known.root() {
        return Err(rewritten(got));
    }
    reader.consistency(known.size())?.check(known, published)
}
