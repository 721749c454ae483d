//! The published vectors, RFC 6962's own definitions, and another implementation must agree with what is here.

use proptest::prelude::*;
use tlog_tiles::{Hash, HashReader, check_record, check_tree, prove_record, prove_tree, record_hash, stored_hashes};

use super::*;
use crate::key::Signer;
use crate::tree::{FULL, Place, Tree, edge_places, node_hash};

/// The inputs of the reference tests of Certificate Transparency (google/certificate-transparency,
/// `merkletree/merkle_tree_test.cc`).
const INPUTS: [&[u8]; 8] = [
    b"",
    b"\x00",
    b"\x10",
    b"\x20\x21",
    b"\x30\x31",
    b"\x40\x41\x42\x43",
    b"\x50\x51\x52\x53\x54\x55\x56\x57",
    b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
];

/// The roots over the first of them, as printed there.
const ROOTS: [&str; 8] = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

fn hex(text: &str) -> Digest {
    Digest::from_hex(text).unwrap()
}

fn tree(entries: &[Vec<u8>]) -> Tree {
    let mut tree = Tree::default();
    entries.iter().for_each(|entry| tree.push(leaf_hash(entry), |_, _| ()));
    tree
}

fn inputs() -> Vec<Vec<u8>> {
    INPUTS.iter().map(|input| input.to_vec()).collect()
}

/// MTH of RFC 6962 §2.1, word for word.
fn mth(entries: &[Vec<u8>]) -> Digest {
    match entries {
        [] => Digest::of(b""),
        [entry] => leaf_hash(entry),
        _ => {
            let (left, right) = entries.split_at(largest_power_below(entries.len()));
            node_hash(mth(left), mth(right))
        }
    }
}

/// PATH of RFC 6962 §2.1.1.
fn path(m: usize, entries: &[Vec<u8>]) -> Vec<Digest> {
    if entries.len() == 1 {
        return Vec::new();
    }
    let k = largest_power_below(entries.len());
    let (left, right) = entries.split_at(k);
    let (mut path, other) = if m < k { (path(m, left), mth(right)) } else { (path(m - k, right), mth(left)) };
    path.push(other);
    path
}

/// SUBPROOF of RFC 6962 §2.1.2.
fn subproof(m: usize, entries: &[Vec<u8>], known: bool) -> Vec<Digest> {
    if m == entries.len() {
        return if known { Vec::new() } else { vec![mth(entries)] };
    }
    let k = largest_power_below(entries.len());
    let (left, right) = entries.split_at(k);
    let (mut proof, other) =
        if m <= k { (subproof(m, left, known), mth(right)) } else { (subproof(m - k, right, false), mth(left)) };
    proof.push(other);
    proof
}

fn largest_power_below(n: usize) -> usize {
    let mut k = 1;
    while 2 * k < n {
        k *= 2;
    }
    k
}

/// The roots of the runs a proof lists, from the entries themselves.
fn roots(runs: Vec<Vec<Node>>, entries: &[Vec<u8>]) -> Vec<Digest> {
    let node = |&(height, n): &Node| mth(&entries[(n << height) as usize..((n + 1) << height) as usize]);
    let root = |run: &Vec<Node>| run.iter().rev().map(node).reduce(|right, left| node_hash(left, right)).unwrap();
    runs.iter().map(root).collect()
}

fn inclusion(index: u64, entries: &[Vec<u8>]) -> Inclusion {
    let size = entries.len() as u64;
    Inclusion { index, size, path: roots(inclusion_path(index, size), entries) }
}

fn consistency(from: u64, entries: &[Vec<u8>]) -> Consistency {
    let to = entries.len() as u64;
    Consistency { from, to, path: roots(consistency_path(from, to), entries) }
}

/// Every hash of a tree, as the other implementation numbers them.
struct Stored(Vec<Hash>);

impl Stored {
    fn of(entries: &[Vec<u8>]) -> Self {
        let mut all = Self(Vec::new());
        for (n, entry) in entries.iter().enumerate() {
            let new = stored_hashes(n as u64, entry, &all).unwrap();
            all.0.extend(new);
        }
        all
    }
}

impl HashReader for Stored {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        Ok(indexes.iter().map(|i| self.0[*i as usize]).collect())
    }
}

fn theirs(hashes: &[Digest]) -> Vec<Hash> {
    hashes.iter().map(|digest| Hash(digest.0)).collect()
}

#[test]
fn the_roots_are_those_of_the_reference_tests() {
    assert_eq!(tree(&[]).root().to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (n, want) in (1..).zip(ROOTS) {
        assert_eq!(tree(&inputs()[..n]).root(), hex(want), "{n}");
    }
}

#[test]
fn the_proofs_are_those_of_the_reference_tests() {
    let inclusions: [(u64, usize, &[&str]); 5] = [
        (0, 1, &[]),
        (
            0,
            8,
            &[
                "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
            ],
        ),
        (
            5,
            8,
            &[
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
                "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ],
        ),
        (2, 3, &["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
        (
            1,
            5,
            &[
                "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            ],
        ),
    ];
    for (index, size, want) in inclusions {
        let proof = inclusion(index, &inputs()[..size]);
        assert_eq!(proof.path, want.iter().map(|h| hex(h)).collect::<Vec<_>>(), "{index} of {size}");
        assert_eq!(proof.root_with(leaf_hash(INPUTS[index as usize])), Some(hex(ROOTS[size - 1])));
    }
    let consistencies: [(u64, usize, &[&str]); 4] = [
        (1, 1, &[]),
        (
            1,
            8,
            &[
                "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
            ],
        ),
        (
            6,
            8,
            &[
                "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
                "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ],
        ),
        (
            2,
            5,
            &[
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            ],
        ),
    ];
    for (from, to, want) in consistencies {
        let proof = consistency(from, &inputs()[..to]);
        assert_eq!(proof.path, want.iter().map(|h| hex(h)).collect::<Vec<_>>(), "{from} to {to}");
        let (old, new) = (hex(ROOTS[from as usize - 1]), hex(ROOTS[to - 1]));
        assert_eq!(proof.roots_with(old), Some((old, new)));
    }
}

#[test]
fn roots_and_proofs_agree_with_the_rfc_and_with_another_implementation_at_every_small_size() {
    let entries: Vec<_> = (0..40u8).map(|i| vec![i; usize::from(i)]).collect();
    let stored = Stored::of(&entries);
    for size in 1..=entries.len() {
        let (some, n) = (&entries[..size], size as u64);
        let root = mth(some);
        assert_eq!(tree(some).root(), root);
        assert_eq!(tlog_tiles::tree_hash(n, &stored).unwrap(), Hash(root.0));
        for index in 0..n {
            let proof = inclusion(index, some);
            assert_eq!(proof.path, path(index as usize, some));
            assert_eq!(prove_record(n, index, &stored).unwrap(), theirs(&proof.path));
            let leaf = leaf_hash(&some[index as usize]);
            assert_eq!(record_hash(&some[index as usize]), Hash(leaf.0));
            assert_eq!(proof.root_with(leaf), Some(root));
        }
        for from in 1..n {
            let proof = consistency(from, some);
            assert_eq!(proof.path, subproof(from as usize, some, true));
            assert_eq!(prove_tree(n, from, &stored).unwrap(), theirs(&proof.path));
            let old = mth(&some[..from as usize]);
            assert_eq!(proof.roots_with(old), Some((old, root)));
        }
    }
}

#[test]
fn the_tiles_of_a_tree_hold_the_hashes_they_must_and_the_tree_grows_on_from_its_edge() {
    let entries: Vec<_> = (0..66_000u32).map(|i| i.to_be_bytes().to_vec()).collect();
    let mut whole = Tree::default();
    let mut full = Vec::new();
    for (n, entry) in (0..).zip(&entries) {
        if [0, 1, 255, 256, 257, 65_535, 65_536, 65_999].contains(&n) {
            let mut edge = vec![Vec::new(); edge_places(n).len()];
            whole.partial().for_each(|(place, hashes)| edge[place.level as usize] = hashes.to_vec());
            let mut again = Tree::from_edge(n, edge).unwrap();
            assert_eq!((again.size(), again.root()), (n, whole.root()));
            again.push(leaf_hash(entry), |_, _| ());
            let mut on = whole.clone();
            on.push(leaf_hash(entry), |_, _| ());
            assert_eq!(again.root(), on.root());
        }
        whole.push(leaf_hash(entry), |place, hashes| full.push((place, hashes)));
    }
    let counts = |level| full.iter().filter(|(place, _)| place.level == level).count();
    assert_eq!((counts(0), counts(1), counts(2)), (257, 1, 0));
    for (Place { level, n, width }, hashes) in
        full.iter().map(|(p, h)| (*p, h.as_slice())).chain(whole.partial()).filter(|(p, _)| p.n % 50 == 0)
    {
        assert_eq!(hashes.len() as u64, width);
        let span = 1u64 << (8 * level);
        for (i, hash) in (n * FULL..).zip(hashes).step_by(if level == 0 { 1 } else { 100 }) {
            assert_eq!(*hash, mth(&entries[(i * span) as usize..((i + 1) * span) as usize]), "{level} {n} {i}");
        }
    }
    assert!(Tree::from_edge(5, vec![vec![Digest::of(b""); 4]]).is_none());
    assert!(Tree::from_edge(0, vec![vec![]]).is_none());
}

#[test]
fn a_proof_holds_only_for_the_checkpoints_it_is_about() {
    let signer = Signer::from_seed("log.example/a", [1; 32]).unwrap();
    let at = |n: usize| Checkpoint::sign(&signer, n as u64, mth(&inputs()[..n]));
    let proof = consistency(3, &inputs()[..7]);
    proof.check(&at(3), &at(7)).unwrap();
    assert_eq!(proof.check(&at(7), &at(3)), Err(Fault::RolledBack { needed: 7, got: 3 }));
    assert_eq!(proof.check(&at(3), &at(8)), Err(proof.fault()));
    assert_eq!(proof.check(&at(4), &at(7)), Err(proof.fault()));
    let fork = Checkpoint::sign(&signer, 7, Digest::of(b"another history"));
    assert_eq!(proof.check(&at(3), &fork), Err(proof.fault()));
    let rewritten = Fault::Rewritten { size: 7, needed: at(7).root(), got: fork.root() };
    assert_eq!(Consistency { from: 7, to: 7, path: vec![] }.check(&at(7), &fork), Err(rewritten));
    let other = Signer::from_seed("log.example/b", [1; 32]).unwrap();
    let other = Checkpoint::sign(&other, 7, at(7).root());
    assert!(matches!(proof.check(&at(3), &other), Err(Fault::Origin { .. })));
    // From nothing every log goes on, and a checkpoint of nothing has one root.
    let nothing = Consistency { from: 0, to: 7, path: vec![] };
    nothing.check(&at(0), &at(7)).unwrap();
    let false_nothing = Checkpoint::sign(&signer, 0, Digest::of(b"x"));
    assert_eq!(nothing.check(&false_nothing, &at(7)), Err(nothing.fault()));
}

proptest! {
    /// No path but the right one leads to the root: whatever is changed is seen, and nothing panics.
    #[test]
    fn a_changed_proof_does_not_hold(size in 1usize..80, a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>(),
                                     change in 0..6, noise in any::<[u8; 32]>()) {
        let entries: Vec<_> = (0..size as u8).map(|i| vec![i]).collect();
        let root = mth(&entries);
        let index = a.index(size) as u64;
        let alter = |path: &mut Vec<Digest>, n: &mut u64, m: &mut u64| match change {
            0 if !path.is_empty() => *b.get_mut(path.as_mut_slice()) = Digest(noise),
            1 if !path.is_empty() => path.truncate(b.index(path.len())),
            2 => path.push(Digest(noise)),
            3 => *n ^= 1 << (noise[0] % 64),
            4 => *m ^= 1 << (noise[0] % 64),
            _ => path.insert(0, Digest(noise)),
        };
        let leaf = leaf_hash(&entries[index as usize]);
        let mut proof = inclusion(index, &entries);
        alter(&mut proof.path, &mut proof.index, &mut proof.size);
        // The size is the checkpoint's to say; a proof about another size is refused before the path is looked at.
        if proof.size == size as u64 {
            prop_assert_ne!(proof.root_with(leaf), Some(root));
        } else {
            proof.root_with(leaf);
        }
        let from = index + 1;
        let old = mth(&entries[..from as usize]);
        let mut proof = consistency(from, &entries);
        alter(&mut proof.path, &mut proof.from, &mut proof.to);
        if (proof.from, proof.to) == (from, size as u64) {
            prop_assert_ne!(proof.roots_with(old), Some((old, root)));
        } else {
            proof.roots_with(old);
        }
    }

    /// The other implementation accepts what this one makes, at sizes with every shape of edge.
    #[test]
    fn another_implementation_accepts_the_proofs(size in 2usize..700, a in any::<prop::sample::Index>()) {
        let entries: Vec<_> = (0..size as u16).map(|i| i.to_be_bytes().to_vec()).collect();
        let (index, root, size) = (a.index(size) as u64, Hash(tree(&entries).root().0), size as u64);
        let proof = inclusion(index, &entries);
        check_record(&theirs(&proof.path), size, root, index, record_hash(&entries[index as usize])).unwrap();
        let from = index.max(1);
        let old = Hash(tree(&entries[..from as usize]).root().0);
        check_tree(&theirs(&consistency(from, &entries).path), size, root, from, old).unwrap();
    }
}
