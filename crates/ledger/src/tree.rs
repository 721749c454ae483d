//! The Merkle tree over the entries, kept as its right edge only.
//!
//! Source: RFC 6962 §2.1 for the hashes; c2sp.org/tlog-tiles for the tiles: tile `n` of level `l` holds the roots of the
//! 256 complete subtrees of 256ˡ entries that begin at entry `n`·256ˡ⁺¹.

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// How many hashes a tile and how many entries a bundle has when it is full.
pub(crate) const FULL: u64 = 256;

/// How many levels of tiles a tree can have: sizes have 64 bits.
pub(crate) const LEVELS: u32 = 8;

/// The hash of an entry.
pub(crate) fn leaf_hash(entry: &[u8]) -> Digest {
    Digest(Sha256::new_with_prefix([0]).chain_update(entry).finalize().into())
}

/// The hash of a node over its two subtrees.
pub(crate) fn node_hash(left: Digest, right: Digest) -> Digest {
    let mut bytes = [1; 65];
    bytes[1..33].copy_from_slice(&left.0);
    bytes[33..].copy_from_slice(&right.0);
    Digest::of(&bytes)
}

/// The root of the complete subtree over some hashes, as many as a power of two.
pub(crate) fn subtree(hashes: &[Digest]) -> Digest {
    match hashes {
        [] => Digest::of(b""),
        [one] => *one,
        _ => {
            let (left, right) = hashes.split_at(hashes.len() / 2);
            node_hash(subtree(left), subtree(right))
        }
    }
}

/// Where a tile lies: its level, its place in the level, and how many hashes it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) level: u32,
    pub(crate) n: u64,
    pub(crate) width: u64,
}

/// A tree that entries are added to.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    size: u64,
    /// The complete subtrees the entries fall into, largest first: height and root. One for each bit of the size.
    peaks: Vec<(u32, Digest)>,
    /// For each level of tiles the hashes of its last tile, as far as it goes.
    edge: Vec<Vec<Digest>>,
}

impl Tree {
    /// The tree of that size with that edge; none if the edge has not the lengths the size asks for.
    pub(crate) fn from_edge(size: u64, edge: Vec<Vec<Digest>>) -> Option<Self> {
        let fits = edge.len() == edge_places(size).len()
            && edge.iter().zip(edge_places(size)).all(|(hashes, place)| hashes.len() as u64 == place.width % FULL);
        if !fits {
            return None;
        }
        let mut peaks = Vec::new();
        for (level, hashes) in edge.iter().enumerate().rev() {
            let mut rest = hashes.as_slice();
            while !rest.is_empty() {
                let height = rest.len().ilog2();
                let (complete, others) = rest.split_at(1 << height);
                peaks.push((8 * level as u32 + height, subtree(complete)));
                rest = others;
            }
        }
        Some(Self { size, peaks, edge })
    }

    /// How many entries it is over.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Adds an entry's hash; hands `full` every tile that became complete.
    pub(crate) fn push(&mut self, leaf: Digest, mut full: impl FnMut(Place, Vec<Digest>)) {
        let (mut height, mut hash) = (0, leaf);
        self.record(height, hash, &mut full);
        while let Some(&(h, left)) = self.peaks.last()
            && h == height
        {
            self.peaks.pop();
            (height, hash) = (height + 1, node_hash(left, hash));
            self.record(height, hash, &mut full);
        }
        self.peaks.push((height, hash));
        self.size += 1;
    }

    /// The root over all entries.
    pub(crate) fn root(&self) -> Digest {
        let mut peaks = self.peaks.iter().rev().map(|(_, hash)| *hash);
        match peaks.next() {
            Some(last) => peaks.fold(last, |right, left| node_hash(left, right)),
            None => Digest::of(b""),
        }
    }

    /// The tiles that are begun and not full.
    pub(crate) fn partial(&self) -> impl Iterator<Item = (Place, &[Digest])> {
        (0..).zip(&self.edge).filter(|(_, hashes)| !hashes.is_empty()).map(|(level, hashes)| {
            let n = self.size >> (8 * level) >> 8;
            (Place { level, n, width: hashes.len() as u64 }, hashes.as_slice())
        })
    }

    /// Notes the root of a complete subtree in the tile that holds it, if tiles hold roots of that height.
    fn record(&mut self, height: u32, hash: Digest, full: &mut impl FnMut(Place, Vec<Digest>)) {
        if !height.is_multiple_of(8) {
            return;
        }
        let level = height / 8;
        if self.edge.len() as u32 == level {
            self.edge.push(Vec::new());
        }
        let tile = &mut self.edge[level as usize];
        tile.push(hash);
        if tile.len() as u64 == FULL {
            // The subtree ends with the entry being added, whose index is the size so far.
            let n = self.size >> (8 * level) >> 8;
            full(Place { level, n, width: FULL }, std::mem::take(tile));
        }
    }
}

/// The last tile of every level of a tree of that size. A tile that is exactly full has width 256 and stands for an empty
/// edge.
pub(crate) fn edge_places(size: u64) -> Vec<Place> {
    let counts = (0..LEVELS).map(|level| (level, size >> (8 * level))).take_while(|(_, count)| *count > 0);
    counts.map(|(level, count)| Place { level, n: (count - 1) >> 8, width: (count - 1) % FULL + 1 }).collect()
}
