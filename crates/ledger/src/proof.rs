//! Proofs that an entry is in a log, and that one log continues another.

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::digest::Digest;
use crate::error::Fault;
use crate::tree::{leaf_hash, node_hash};

/// The proof that an entry is in a log of some size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inclusion {
    /// Which entry.
    pub index: u64,
    /// The size of the log.
    pub size: u64,
    /// The roots beside the way from the entry to the root, lowest first.
    pub path: Vec<Digest>,
}

/// The proof that the entries of a log were there before, the first of as many as it has now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consistency {
    /// The size before.
    pub from: u64,
    /// The size now.
    pub to: u64,
    /// The roots from which both roots follow, lowest first.
    pub path: Vec<Digest>,
}

impl Inclusion {
    /// Checks that the entry is the one at that index of the log the checkpoint was signed for.
    ///
    /// - Errors: `Proof`.
    /// - Source: RFC 9162 §2.1.3.2.
    pub fn check(&self, entry: &[u8], at: &Checkpoint) -> Result<(), Fault> {
        let root = (self.size == at.size()).then(|| self.root_with(leaf_hash(entry))).flatten();
        if root == Some(at.root()) { Ok(()) } else { Err(self.fault()) }
    }

    /// The root that follows if the entry has that hash; none if the path has not the length it must have.
    pub(crate) fn root_with(&self, leaf: Digest) -> Option<Digest> {
        let (mut node, mut last) = (self.index, self.size.checked_sub(1)?);
        if node > last {
            return None;
        }
        let mut hash = leaf;
        for side in &self.path {
            if last == 0 {
                return None;
            }
            if node % 2 == 1 || node == last {
                hash = node_hash(*side, hash);
                // A last node without a neighbour rises until it is a right child.
                while node.is_multiple_of(2) && node != 0 {
                    (node, last) = (node / 2, last / 2);
                }
            } else {
                hash = node_hash(hash, *side);
            }
            (node, last) = (node / 2, last / 2);
        }
        (last == 0).then_some(hash)
    }

    /// What a proof that fails is called.
    pub(crate) fn fault(&self) -> Fault {
        Fault::Proof { what: format!("entry {} among {}", self.index, self.size) }
    }
}

impl Consistency {
    /// Checks that the log the new checkpoint was signed for begins with the entries of the old one.
    ///
    /// - Errors: `Origin`; `RolledBack` if the new one is shorter; `Rewritten` if sizes are equal and roots are not;
    ///   `Proof`.
    /// - Source: RFC 9162 §2.1.4.2.
    pub fn check(&self, old: &Checkpoint, new: &Checkpoint) -> Result<(), Fault> {
        old.same_history(new)?;
        if new.size() < old.size() {
            return Err(Fault::RolledBack { needed: old.size(), got: new.size() });
        }
        let about_these = self.from == old.size() && self.to == new.size();
        let holds = if self.from == 0 {
            // Every log begins with nothing.
            self.path.is_empty() && old.root() == Digest::of(b"")
        } else {
            self.roots_with(old.root()) == Some((old.root(), new.root()))
        };
        if about_these && holds { Ok(()) } else { Err(self.fault()) }
    }

    /// The old and the new root that follow, the old one being claimed; none if the path has not the right length.
    pub(crate) fn roots_with(&self, old: Digest) -> Option<(Digest, Digest)> {
        if self.from == self.to {
            return self.path.is_empty().then_some((old, old));
        }
        if self.from == 0 || self.from > self.to {
            // From nothing no root follows.
            return None;
        }
        let (mut node, mut last) = (self.from - 1, self.to - 1);
        while node % 2 == 1 {
            (node, last) = (node / 2, last / 2);
        }
        let mut path = self.path.iter();
        // An old tree that is one complete subtree is the first root itself.
        let first = if self.from.is_power_of_two() { old } else { *path.next()? };
        let (mut old, mut new) = (first, first);
        for side in path {
            if last == 0 {
                return None;
            }
            if node % 2 == 1 || node == last {
                (old, new) = (node_hash(*side, old), node_hash(*side, new));
                while node.is_multiple_of(2) && node != 0 {
                    (node, last) = (node / 2, last / 2);
                }
            } else {
                new = node_hash(new, *side);
            }
            (node, last) = (node / 2, last / 2);
        }
        (last == 0).then_some((old, new))
    }

    /// What a proof that fails is called.
    pub(crate) fn fault(&self) -> Fault {
        Fault::Proof { what: format!("the first {} entries among {}", self.from, self.to) }
    }
}

/// Where the root of a subtree of `2^height` entries is found, being the `n`-th of its height.
pub(crate) type Node = (u32, u64);

/// The roots an inclusion proof lists, lowest first; each is a run of entries, given as the complete subtrees it falls
/// into.
///
/// - Source: RFC 6962 §2.1.1.
pub(crate) fn inclusion_path(index: u64, size: u64) -> Vec<Vec<Node>> {
    let (mut low, mut high, mut path) = (0, size, Vec::new());
    while high - low > 1 {
        let middle = low + split(high - low);
        if index < middle {
            path.push(run(middle, high));
            high = middle;
        } else {
            path.push(run(low, middle));
            low = middle;
        }
    }
    path.reverse();
    path
}

/// The roots a consistency proof lists, as [`inclusion_path`] does; `0 < from < to`.
///
/// - Source: RFC 6962 §2.1.2.
pub(crate) fn consistency_path(from: u64, to: u64) -> Vec<Vec<Node>> {
    let (mut low, mut high, mut path) = (0, to, Vec::new());
    while from != high {
        let middle = low + split(high - low);
        if from <= middle {
            path.push(run(middle, high));
            high = middle;
        } else {
            path.push(run(low, middle));
            low = middle;
        }
    }
    if low != 0 {
        path.push(run(low, high));
    }
    path.reverse();
    path
}

/// The largest power of two below a length of two or more.
fn split(length: u64) -> u64 {
    1 << (length - 1).ilog2()
}

/// The complete subtrees that the entries from `low` to before `high` fall into; `low` begins one of the largest.
fn run(mut low: u64, high: u64) -> Vec<Node> {
    let mut nodes = Vec::new();
    while low < high {
        let height = (high - low).ilog2();
        nodes.push((height, low >> height));
        low += 1 << height;
    }
    nodes
}

#[cfg(test)]
#[path = "proof_tests.rs"]
mod tests;
