//! Reads what a checkpoint covers, and proves it. Needs no lock: what a checkpoint covers never changes.

use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::digest::Digest;
use crate::disk::{checkpoint_path, read_bundle, read_checkpoint, read_tile};
use crate::error::Fault;
use crate::key::Verifier;
use crate::proof::{Consistency, Inclusion, Node, consistency_path, inclusion_path};
use crate::tree::{FULL, Place, node_hash, subtree};

/// The entries of a log that its checkpoint covers.
#[derive(Clone, Debug)]
pub struct Reader {
    dir: PathBuf,
    checkpoint: Checkpoint,
}

impl Reader {
    /// Reads a log's checkpoint; what was logged since is not in it.
    ///
    /// - Errors: `Missing`, `Signature`, `Origin`, `Malformed`, `Io`.
    pub fn open(dir: &Path, verifier: &Verifier) -> Result<Self, Fault> {
        let checkpoint =
            read_checkpoint(dir, verifier)?.ok_or_else(|| Fault::Missing { path: checkpoint_path(dir) })?;
        Ok(Self::at(dir, checkpoint))
    }

    /// Reads as far as a checkpoint goes.
    pub(crate) fn at(dir: &Path, checkpoint: Checkpoint) -> Self {
        Self { dir: dir.to_path_buf(), checkpoint }
    }

    /// The checkpoint it reads as far as.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// An entry, proved to be the one that was logged.
    ///
    /// - Errors: `Proof` if there are not as many entries; `Entry` if it is another; `Missing`, `Malformed`, `Tile`.
    pub fn entry(&self, index: u64) -> Result<Vec<u8>, Fault> {
        let proof = self.inclusion(index)?;
        let n = index / FULL;
        let (path, mut entries) = read_bundle(&self.dir, n, (self.checkpoint.size() - n * FULL).min(FULL))?;
        let place = (index % FULL) as usize;
        if place >= entries.len() || proof.check(&entries[place], &self.checkpoint).is_err() {
            return Err(Fault::Entry { index, path });
        }
        Ok(entries.swap_remove(place))
    }

    /// The proof that the log holds the entry with that index.
    ///
    /// - Holds: it was checked against the checkpoint.
    /// - Errors: `Proof` if there are not as many entries, or the tiles do not lead to the root; `Missing`, `Malformed`.
    pub fn inclusion(&self, index: u64) -> Result<Inclusion, Fault> {
        let size = self.checkpoint.size();
        let mut proof = Inclusion { index, size, path: Vec::new() };
        if index >= size {
            return Err(proof.fault());
        }
        proof.path = self.roots(inclusion_path(index, size))?;
        let leaf = self.node((0, index))?;
        if proof.root_with(leaf) == Some(self.checkpoint.root()) { Ok(proof) } else { Err(proof.fault()) }
    }

    /// The proof that the log began with its first `from` entries when it had as many.
    ///
    /// - Holds: it leads to the checkpoint's root.
    /// - Errors: `RolledBack` if there are not as many entries; `Proof` if the tiles do not lead to the root; `Missing`,
    ///   `Malformed`.
    pub fn consistency(&self, from: u64) -> Result<Consistency, Fault> {
        let to = self.checkpoint.size();
        if from > to {
            return Err(Fault::RolledBack { needed: from, got: to });
        }
        let mut proof = Consistency { from, to, path: Vec::new() };
        if from == 0 || from == to {
            return Ok(proof);
        }
        proof.path = self.roots(consistency_path(from, to))?;
        match proof.roots_with(self.root_at(from)?) {
            Some((_, new)) if new == self.checkpoint.root() => Ok(proof),
            _ => Err(proof.fault()),
        }
    }

    /// The root of the first entries, as the tiles have it.
    pub(crate) fn root_at(&self, size: u64) -> Result<Digest, Fault> {
        let whole = (0..64).rev().filter(|bit| size >> bit & 1 == 1);
        let nodes = whole.map(|bit| (bit, (size >> bit) - 1)).collect();
        Ok(self.roots(vec![nodes])?.remove(0))
    }

    /// The root of each run of complete subtrees.
    fn roots(&self, runs: Vec<Vec<Node>>) -> Result<Vec<Digest>, Fault> {
        let root = |run: Vec<Node>| {
            let mut hashes = run.into_iter().rev().map(|node| self.node(node));
            let last = hashes.next().unwrap_or(Ok(Digest::of(b"")))?;
            hashes.try_fold(last, |right, left| Ok(node_hash(left?, right)))
        };
        runs.into_iter().map(root).collect()
    }

    /// The root of a complete subtree, from the tile that holds it or the hashes it is over.
    fn node(&self, (height, n): Node) -> Result<Digest, Fault> {
        let (level, above) = (height / 8, height % 8);
        let first = n << above;
        let tile = first / FULL;
        let width = ((self.checkpoint.size() >> (8 * level)) - tile * FULL).min(FULL);
        let hashes = read_tile(&self.dir, Place { level, n: tile, width })?;
        let start = (first % FULL) as usize;
        Ok(subtree(&hashes[start..start + (1 << above)]))
    }
}
