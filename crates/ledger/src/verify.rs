//! Checks a whole log from its files, its public key and the last checkpoint that is known: nothing else is trusted.

use std::path::Path;

use crate::checkpoint::Checkpoint;
use crate::digest::Digest;
use crate::disk::{checkpoint_path, journal_path, read_bundle, read_checkpoint, read_tile, tile_path};
use crate::error::Fault;
use crate::journal::replay;
use crate::key::Verifier;
use crate::tree::{FULL, Place, Tree, leaf_hash};

/// How many faults are listed.
const MOST_FAULTS: usize = 100;

/// Whoever knows what entries mean: is shown each with its index, and says what is wrong with it.
pub type Look<'a> = dyn FnMut(u64, &[u8]) -> Result<(), String> + 'a;

/// A log in which nothing is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The checkpoint on disk.
    pub checkpoint: Checkpoint,
    /// How many entries there are, with those in the journal.
    pub size: u64,
    /// The root over all of them.
    pub root: Digest,
    /// How many lie in the journal: signed one by one, not yet covered by the checkpoint.
    pub pending: u64,
    /// Whether the journal ends with something half written, which a killed writer leaves and the next one cuts off.
    pub torn: bool,
}

/// Checks that every entry is the one that was logged, in its place, under a checkpoint the log's key signed, and that the
/// log continues what was known of it.
///
/// - Holds: given a known checkpoint, no change to the entries it covers passes, whoever made it and whatever keys he has;
///   given the key alone, none passes that was made without it, save that the log, or its end, may be an older one.
/// - Errors: every fault that was found, in the order of the log; after 100 the rest is counted.
pub fn verify(dir: &Path, verifier: &Verifier, known: Option<&Checkpoint>) -> Result<Verified, Vec<Fault>> {
    verify_with(dir, verifier, known, &mut |_, _| Ok(()))
}

/// As [`verify`], and shows each entry with its index to `look`, whose complaints become faults.
///
/// The ledger does not know what it logs. So what only the meaning of the entries shows (a clock that runs back, an
/// approval used twice, a payload that is gone) is for `look` to say.
///
/// - Errors: as well `Meaning`.
pub fn verify_with(
    dir: &Path,
    verifier: &Verifier,
    known: Option<&Checkpoint>,
    look: &mut Look<'_>,
) -> Result<Verified, Vec<Fault>> {
    let mut faults = Faults::default();
    let checkpoint = match read_checkpoint(dir, verifier) {
        Ok(Some(checkpoint)) => checkpoint,
        Ok(None) => {
            faults.add(Fault::Missing { path: checkpoint_path(dir) });
            faults.list.extend(known.map(|known| Fault::RolledBack { needed: known.size(), got: 0 }));
            return Err(faults.list);
        }
        Err(fault) => return Err(vec![fault]),
    };
    if let Some(known) = known {
        match known.same_history(&checkpoint) {
            Err(fault @ Fault::Origin { .. }) => return Err(vec![fault]),
            Err(fault) => faults.add(fault),
            Ok(()) => (),
        }
    }
    let mut check = Check { dir, look, known, faults };
    let covered = check.covered(&checkpoint);
    let end = covered.and_then(|tree| check.journal(verifier, tree));
    match end {
        Some((tree, torn)) if check.faults.list.is_empty() => {
            let (size, root) = (tree.size(), tree.root());
            Ok(Verified { pending: size - checkpoint.size(), checkpoint, size, root, torn })
        }
        _ => Err(check.faults.list()),
    }
}

/// One pass over a log.
struct Check<'a> {
    dir: &'a Path,
    look: &'a mut Look<'a>,
    known: Option<&'a Checkpoint>,
    faults: Faults,
}

/// What entries, or tiles, say the log is.
#[derive(Default)]
struct Story {
    tree: Tree,
    /// Tiles above the lowest that say something else.
    tiles: Faults,
    /// The root when there were as many entries as the known checkpoint covers.
    at_known: Option<Digest>,
}

impl Check<'_> {
    /// Checks what the checkpoint covers; answers the tree over it if that is what was signed.
    ///
    /// Entries and lowest tiles say the same twice. Whichever leads to the signed root is what was logged, and where the
    /// other differs is the place of the change.
    fn covered(&mut self, checkpoint: &Checkpoint) -> Option<Tree> {
        let size = checkpoint.size();
        let mut by_entries = Some(Story::default());
        let mut by_tiles = Story::default();
        let mut differ = Vec::new();
        let mut found = Faults::default();
        for n in 0..size.div_ceil(FULL) {
            let width = (size - n * FULL).min(FULL);
            let place = Place { level: 0, n, width };
            let hashes = read_tile(self.dir, place).map_err(|fault| found.add(fault)).ok();
            let entries = read_bundle(self.dir, n, width).map_err(|fault| found.add(fault)).ok();
            let leaves = entries.map(|(path, entries)| {
                for (index, entry) in (n * FULL..).zip(&entries).take(width as usize) {
                    if let Err(reason) = (self.look)(index, entry) {
                        found.add(Fault::Meaning { index, reason });
                    }
                }
                if entries.len() as u64 != width {
                    found.add(Fault::Count { path: path.clone(), needed: width, got: entries.len() as u64 });
                }
                (path, entries.iter().map(|entry| leaf_hash(entry)).collect::<Vec<_>>())
            });
            if let (Some(hashes), Some((path, leaves))) = (&hashes, &leaves) {
                let pairs = (n * FULL..).zip(hashes.iter().zip(leaves));
                differ.extend(
                    pairs.filter(|(_, (a, b))| a != b).map(|(index, _)| (index, path.clone())).take(MOST_FAULTS),
                );
                differ.truncate(MOST_FAULTS);
            }
            let leaves = leaves.map(|(_, leaves)| leaves);
            match leaves.as_ref().filter(|leaves| leaves.len() as u64 == width) {
                Some(leaves) => {
                    if let Some(story) = &mut by_entries {
                        story.go_on(self.dir, leaves, self.known);
                    }
                }
                None => by_entries = None,
            }
            match hashes.or(leaves).filter(|leaves| leaves.len() as u64 == width) {
                Some(hashes) => by_tiles.go_on(self.dir, &hashes, self.known),
                // Neither says what was there: what follows has no place in the tree.
                None => {
                    self.faults.join(found);
                    self.faults.join(by_tiles.tiles);
                    return None;
                }
            }
        }
        self.faults.join(found);
        let signed = |story: &Story| story.tree.root() == checkpoint.root();
        let by_entries = by_entries.filter(|story| signed(story) || !signed(&by_tiles));
        let tiles_hold = signed(&by_tiles);
        let mut story = match by_entries {
            Some(story) if !tiles_hold => story,
            _ => by_tiles,
        };
        story.end(self.dir);
        let holds = signed(&story);
        for (index, path) in differ {
            self.faults.add(if holds && !tiles_hold {
                let place = Place { level: 0, n: index / FULL, width: (size - index / FULL * FULL).min(FULL) };
                Fault::Tile { path: tile_path(self.dir, place), position: index % FULL }
            } else {
                Fault::Entry { index, path }
            });
        }
        self.faults.join(story.tiles);
        if !holds {
            self.faults.add(Fault::Root { size, needed: checkpoint.root(), got: story.tree.root() });
        }
        if let (Some(known), Some(got)) = (self.known, story.at_known)
            && got != known.root()
            && known.size() != size
        {
            self.faults.add(Fault::Rewritten { size: known.size(), needed: known.root(), got });
        }
        holds.then_some(story.tree)
    }

    /// Checks what the journal adds, and that the log is as long as it was known to be.
    fn journal(&mut self, verifier: &Verifier, mut tree: Tree) -> Option<(Tree, bool)> {
        let covered = tree.size();
        let (look, faults, known) = (&mut *self.look, &mut self.faults, self.known);
        let tree_at_checkpoint = tree.clone();
        let mut growing = tree.clone();
        let replayed = replay(&journal_path(self.dir), verifier, &mut tree, &mut |entries, _| {
            for entry in entries {
                if let Err(reason) = look(growing.size(), entry) {
                    faults.add(Fault::Meaning { index: growing.size(), reason });
                }
                growing.push(leaf_hash(entry), |_, _| ());
                if let Some(known) = known
                    && known.size() == growing.size()
                    && known.root() != growing.root()
                {
                    let (size, needed) = (known.size(), known.root());
                    faults.add(Fault::Rewritten { size, needed, got: growing.root() });
                }
            }
        });
        let torn = match replayed {
            Ok(replayed) => replayed.torn,
            // Whoever copies a log for others to read need not copy what no checkpoint covers.
            Err(Fault::Missing { .. }) => false,
            // A writer may have begun the journal again since the checkpoint was read; then that is a new one.
            Err(Fault::Journal { path, offset, .. }) if grown(self.dir, verifier, covered) => {
                if self.known.is_none_or(|known| known.size() <= covered) {
                    return Some((tree_at_checkpoint, false));
                }
                let reason = "the log was written to meanwhile, verify it again".to_owned();
                self.faults.add(Fault::Journal { path, offset, reason });
                return None;
            }
            Err(fault) => {
                self.faults.add(fault);
                false
            }
        };
        let known = known.filter(|known| known.size() > covered && known.size() > tree.size());
        self.faults.list.extend(known.map(|known| Fault::RolledBack { needed: known.size(), got: tree.size() }));
        Some((tree, torn))
    }
}

/// Whether the log has a checkpoint over more entries.
fn grown(dir: &Path, verifier: &Verifier, size: u64) -> bool {
    matches!(read_checkpoint(dir, verifier), Ok(Some(checkpoint)) if checkpoint.size() > size)
}

impl Story {
    /// Adds entries, comparing the tiles above them that become full.
    fn go_on(&mut self, dir: &Path, leaves: &[Digest], known: Option<&Checkpoint>) {
        for leaf in leaves {
            let tiles = &mut self.tiles;
            self.tree.push(*leaf, |place, hashes| tiles.compare(dir, place, &hashes));
            if known.is_some_and(|known| known.size() == self.tree.size()) {
                self.at_known = Some(self.tree.root());
            }
        }
    }

    /// Compares the tiles that are not full.
    fn end(&mut self, dir: &Path) {
        for (place, hashes) in self.tree.partial() {
            self.tiles.compare(dir, place, hashes);
        }
    }
}

/// Faults, as many as are worth listing.
#[derive(Default)]
struct Faults {
    list: Vec<Fault>,
    left_out: u64,
}

impl Faults {
    /// Adds a fault.
    fn add(&mut self, fault: Fault) {
        if self.list.len() < MOST_FAULTS { self.list.push(fault) } else { self.left_out += 1 }
    }

    /// Adds the faults of another.
    fn join(&mut self, other: Self) {
        other.list.into_iter().for_each(|fault| self.add(fault));
        self.left_out += other.left_out;
    }

    /// Compares a tile above the lowest with the hashes it must have.
    fn compare(&mut self, dir: &Path, place: Place, needed: &[Digest]) {
        if place.level == 0 {
            return;
        }
        match read_tile(dir, place) {
            Err(fault) => self.add(fault),
            Ok(got) => {
                if let Some(position) = got.iter().zip(needed).position(|(a, b)| a != b) {
                    self.add(Fault::Tile { path: tile_path(dir, place), position: position as u64 });
                }
            }
        }
    }

    /// The list, its end saying how many it leaves out.
    fn list(mut self) -> Vec<Fault> {
        if self.left_out > 0 {
            self.list.push(Fault::More { count: self.left_out });
        }
        self.list
    }
}
