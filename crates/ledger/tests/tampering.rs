//! Every way in which somebody may change a log, and what verifying it says.
//!
//! Each attack is made on a copy of one log of 600 entries. `None` under `alone` means that the key alone does not show it:
//! then only the last known checkpoint does, which is what witnesses are for.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use surefoot_ledger::{
    Checkpoint, Digest, Fault, LedgerError, Limits, Log, Options, Payloads, Reader, Signer, Witness, canonical, verify,
    verify_with,
};
use tempfile::TempDir;

const SIZE: u64 = 600;

fn key() -> Signer {
    Signer::from_seed("log.example/receipts", [1; 32]).unwrap()
}

fn thief() -> Signer {
    Signer::from_seed("log.example/receipts", [2; 32]).unwrap()
}

/// A receipt as the gate may write it: a time, an approval, a payload's digest.
fn entry(i: u64) -> Vec<u8> {
    canonical(&serde_json::json!({"time": 1000 + i, "approval": format!("a{i}"), "payload": Digest::of(&payload(i))}))
        .unwrap()
}

fn payload(i: u64) -> Vec<u8> {
    format!("payload {i}").into_bytes()
}

fn entries(range: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    range.map(entry).collect()
}

/// Writes a log anew.
fn write(dir: &Path, signer: Signer, entries: &[Vec<u8>]) -> Checkpoint {
    let _ = fs::remove_dir_all(dir);
    let log = Log::open_with(dir, signer, Options { every: 0, known: None }).unwrap();
    log.append_many(entries).unwrap();
    log.close().unwrap()
}

/// Tiles and bundles as they would be over those entries, under the old checkpoint: what somebody without the key can do.
fn write_below(dir: &Path, entries: &[Vec<u8>]) {
    let forged = TempDir::new().unwrap();
    write(forged.path(), thief(), entries);
    fs::remove_dir_all(dir.join("tile")).unwrap();
    copy(&forged.path().join("tile"), &dir.join("tile"));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let target = to.join(file.file_name());
        if file.path().is_dir() {
            copy(&file.path(), &target);
        } else {
            fs::copy(file.path(), target).unwrap();
        }
    }
}

/// Changes the entries of a bundle.
fn rebundle(path: &Path, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut entries) = (bytes.as_slice(), Vec::new());
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let (entry, tail) = tail.split_at(usize::from(u16::from_be_bytes(*length)));
        entries.push(entry.to_vec());
        rest = tail;
    }
    change(&mut entries);
    let join = |e: &Vec<u8>| [&(e.len() as u16).to_be_bytes()[..], e].concat();
    fs::write(path, entries.iter().flat_map(join).collect::<Vec<u8>>()).unwrap();
}

/// One log that is attacked again and again.
struct Lab {
    _root: TempDir,
    /// The log, and the log as it was when it had 500 entries.
    log: PathBuf,
    early: PathBuf,
    /// What a witness knows.
    known: Checkpoint,
}

impl Lab {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let (log, early) = (root.path().join("log"), root.path().join("early"));
        write(&early, key(), &entries(0..500));
        let known = write(&log, key(), &entries(0..SIZE));
        Self { log, early, known, _root: root }
    }

    /// A copy to attack.
    fn copy(&self) -> (TempDir, PathBuf) {
        let root = TempDir::new().unwrap();
        let dir = root.path().join("log");
        copy(&self.log, &dir);
        (root, dir)
    }
}

type Attack = fn(&Path, &Lab);

/// Says what must be among the faults; the path is the log's.
type Seen = fn(&Fault, &Path) -> bool;

struct Case {
    name: &'static str,
    attack: Attack,
    /// With the last known checkpoint.
    known: Seen,
    /// With the key alone.
    alone: Option<Seen>,
}

fn bundle(dir: &Path, name: &str) -> PathBuf {
    dir.join("tile/entries").join(name)
}

fn is_root(fault: &Fault, _: &Path) -> bool {
    matches!(fault, Fault::Root { size: SIZE, .. })
}

fn is_unsigned(fault: &Fault, _: &Path) -> bool {
    matches!(fault, Fault::Signature { .. })
}

fn is_rewritten(fault: &Fault, _: &Path) -> bool {
    matches!(fault, Fault::Rewritten { size: SIZE, .. })
}

fn is_rolled_back_to_500(fault: &Fault, _: &Path) -> bool {
    *fault == Fault::RolledBack { needed: SIZE, got: 500 }
}

fn is_entry_300(fault: &Fault, dir: &Path) -> bool {
    *fault == Fault::Entry { index: 300, path: bundle(dir, "001") }
}

const CASES: &[Case] = &[
    Case {
        name: "edit: an entry is changed",
        attack: |dir, _| rebundle(&bundle(dir, "001"), |e| e[44] = b"changed".to_vec()),
        known: is_entry_300,
        alone: Some(is_entry_300),
    },
    Case {
        name: "edit: an entry is changed, and all tiles with it",
        attack: |dir, _| {
            let mut all = entries(0..SIZE);
            all[300] = b"changed".to_vec();
            write_below(dir, &all);
        },
        known: is_root,
        alone: Some(is_root),
    },
    Case {
        name: "delete: an entry is taken out of its bundle",
        attack: |dir, _| rebundle(&bundle(dir, "001"), |e| drop(e.remove(44))),
        known: |f, dir| *f == Fault::Count { path: bundle(dir, "001"), needed: 256, got: 255 },
        alone: Some(is_entry_300),
    },
    Case {
        name: "delete: an entry is taken out, all after it move up, and all tiles with them",
        attack: |dir, _| {
            let mut all = entries(0..SIZE + 1);
            all.remove(300);
            write_below(dir, &all);
        },
        known: is_root,
        alone: Some(is_root),
    },
    Case {
        name: "insert: an entry is put between two",
        attack: |dir, _| rebundle(&bundle(dir, "001"), |e| e.insert(44, b"between".to_vec())),
        known: |f, dir| *f == Fault::Count { path: bundle(dir, "001"), needed: 256, got: 257 },
        alone: Some(is_entry_300),
    },
    Case {
        name: "reorder: two entries change places",
        attack: |dir, _| rebundle(&bundle(dir, "001"), |e| e.swap(44, 45)),
        known: is_entry_300,
        alone: Some(|f, dir| *f == Fault::Entry { index: 301, path: bundle(dir, "001") }),
    },
    Case {
        name: "reorder: two full bundles change places, with their tiles",
        attack: |dir, _| {
            for part in ["tile/entries", "tile/0"] {
                fs::rename(dir.join(part).join("000"), dir.join("spare")).unwrap();
                fs::rename(dir.join(part).join("001"), dir.join(part).join("000")).unwrap();
                fs::rename(dir.join("spare"), dir.join(part).join("001")).unwrap();
            }
        },
        known: is_root,
        alone: Some(is_root),
    },
    Case {
        name: "tail truncation: the last bundle is taken away",
        attack: |dir, _| fs::remove_dir_all(bundle(dir, "002.p")).unwrap(),
        known: |f, dir| *f == Fault::Missing { path: bundle(dir, "002.p/88") },
        alone: Some(|f, dir| *f == Fault::Missing { path: bundle(dir, "002.p/88") }),
    },
    Case {
        name: "tail truncation: the last entries are cut off their bundle",
        attack: |dir, _| rebundle(&bundle(dir, "002.p/88"), |e| e.truncate(80)),
        known: |f, dir| *f == Fault::Count { path: bundle(dir, "002.p/88"), needed: 88, got: 80 },
        alone: Some(|f, dir| *f == Fault::Count { path: bundle(dir, "002.p/88"), needed: 88, got: 80 }),
    },
    Case {
        name: "tail truncation: the log is cut to 500 entries with the log's own key",
        attack: |dir, _| drop(write(dir, key(), &entries(0..500))),
        known: is_rolled_back_to_500,
        alone: None,
    },
    Case {
        name: "whole deletion: nothing is left",
        attack: |dir, _| fs::remove_dir_all(dir).unwrap(),
        known: |f, _| *f == Fault::RolledBack { needed: SIZE, got: 0 },
        alone: Some(|f, dir| *f == Fault::Missing { path: dir.join("checkpoint") }),
    },
    Case {
        name: "whole deletion: an empty log of the same key in its place",
        attack: |dir, _| drop(write(dir, key(), &[])),
        known: |f, _| *f == Fault::RolledBack { needed: SIZE, got: 0 },
        alone: None,
    },
    Case {
        name: "full re-forge: the whole history is written anew with another key of the same name",
        attack: |dir, _| drop(write(dir, thief(), &entries(0..SIZE))),
        known: is_unsigned,
        alone: Some(is_unsigned),
    },
    Case {
        name: "full re-forge: the whole history is written anew with the stolen key",
        attack: |dir, _| {
            let mut all = entries(0..SIZE);
            all[3] = b"never happened".to_vec();
            write(dir, key(), &all);
        },
        known: is_rewritten,
        alone: None,
    },
    Case {
        name: "full re-forge: as before, and the log has grown since",
        attack: |dir, _| {
            let mut all = entries(0..SIZE + 700);
            all[3] = b"never happened".to_vec();
            write(dir, key(), &all);
        },
        known: is_rewritten,
        alone: None,
    },
    Case {
        name: "fork: another verifier is shown another history from entry 500 on",
        attack: |dir, _| {
            let mut all = entries(0..500);
            all.extend((500..SIZE).map(|i| format!("told to the other {i}").into_bytes()));
            write(dir, key(), &all);
        },
        known: is_rewritten,
        alone: None,
    },
    Case {
        name: "rollback: an older copy of the whole folder is put back",
        attack: |dir, lab| {
            fs::remove_dir_all(dir).unwrap();
            copy(&lab.early, dir);
        },
        known: is_rolled_back_to_500,
        alone: None,
    },
    Case {
        name: "rollback: an older checkpoint is put back",
        attack: |dir, lab| {
            fs::copy(lab.early.join("checkpoint"), dir.join("checkpoint")).unwrap();
        },
        known: is_rolled_back_to_500,
        // The tiles it needs are those of its size: this copy never had them.
        alone: Some(|f, dir| *f == Fault::Missing { path: dir.join("tile/1/000.p/1") }),
    },
    Case {
        name: "splice: a bundle and its tile come from another log of the same key",
        attack: |dir, _| {
            let other = TempDir::new().unwrap();
            write(other.path(), key(), &(0..SIZE).map(|i| format!("other {i}").into_bytes()).collect::<Vec<_>>());
            for file in ["tile/entries/000", "tile/0/000"] {
                fs::copy(other.path().join(file), dir.join(file)).unwrap();
            }
        },
        known: is_root,
        alone: Some(|f, dir| *f == Fault::Tile { path: dir.join("tile/1/000.p/2"), position: 0 }),
    },
    Case {
        name: "splice: another log of the same seed, all of it",
        attack: |dir, _| drop(write(dir, Signer::from_seed("log.example/other", [1; 32]).unwrap(), &entries(0..SIZE))),
        known: |f, _| matches!(f, Fault::Origin { needed, got, .. } if needed == "log.example/receipts" && got == "log.example/other"),
        alone: Some(|f, _| matches!(f, Fault::Origin { .. })),
    },
    Case {
        name: "re-sign: the checkpoint bears the signature of another key",
        attack: |dir, lab| {
            let forged = TempDir::new().unwrap();
            let other = write(forged.path(), thief(), &entries(0..SIZE));
            assert_eq!(other.root(), lab.known.root());
            fs::write(dir.join("checkpoint"), other.note()).unwrap();
        },
        known: is_unsigned,
        alone: Some(is_unsigned),
    },
    Case {
        name: "re-sign: the checkpoint says another size under its old signature",
        attack: |dir, lab| fs::write(dir.join("checkpoint"), lab.known.note().replace("600", "500")).unwrap(),
        known: is_unsigned,
        alone: Some(is_unsigned),
    },
    Case {
        name: "re-sign: the journal's signature is passed off as a checkpoint's",
        attack: |dir, _| {
            let log = Log::open_with(dir, key(), Options { every: 0, known: None }).unwrap();
            log.append(b"pending").unwrap();
            // The frame says size and root too, in another text.
            let frame = fs::read(dir.join("journal")).unwrap();
            let note = log.head();
            let lines: Vec<&str> = note.note().lines().collect();
            let id = &signature_bytes(lines[4])[..4];
            let forged = [id, &frame[56..120]].concat();
            let line = format!("— log.example/receipts {}", base64(&forged));
            drop(log);
            fs::write(dir.join("checkpoint"), note.note().replace(lines[4], &line)).unwrap();
        },
        known: is_unsigned,
        alone: Some(is_unsigned),
    },
    Case {
        name: "replay: an entry is put in a second time at the end, with its tiles",
        attack: |dir, _| {
            let mut all = entries(0..SIZE);
            all.pop();
            all.push(entry(10));
            write_below(dir, &all);
        },
        known: is_root,
        alone: Some(is_root),
    },
    Case {
        name: "tile: a hash is changed under an entry that is not",
        attack: |dir, _| flip(&dir.join("tile/0/001"), 44 * 32 + 5),
        known: |f, dir| *f == Fault::Tile { path: dir.join("tile/0/001"), position: 44 },
        alone: Some(|f, dir| *f == Fault::Tile { path: dir.join("tile/0/001"), position: 44 }),
    },
    Case {
        name: "tile: a root in an upper tile is changed",
        attack: |dir, _| flip(&dir.join("tile/1/000.p/2"), 40),
        known: |f, dir| *f == Fault::Tile { path: dir.join("tile/1/000.p/2"), position: 1 },
        alone: Some(|f, dir| *f == Fault::Tile { path: dir.join("tile/1/000.p/2"), position: 1 }),
    },
    Case {
        name: "journal: an entry that no checkpoint covers yet is changed, and others follow it",
        attack: |dir, lab| pending(dir, lab, |journal| flip(journal, 130)),
        known: is_broken_journal,
        alone: Some(is_broken_journal),
    },
    Case {
        name: "journal: a frame is written by somebody without the key",
        attack: |dir, lab| pending(dir, lab, |journal| flip(journal, 60)),
        known: is_broken_journal,
        alone: Some(is_broken_journal),
    },
];

fn is_broken_journal(fault: &Fault, dir: &Path) -> bool {
    let reason = "entries 600 to 600 are missing".to_owned();
    *fault == Fault::Journal { path: dir.join("journal"), offset: 0, reason }
}

/// Leaves three frames in the journal, as a killed writer does, and lets somebody at it.
fn pending(dir: &Path, _: &Lab, attack: impl FnOnce(&Path)) {
    let log = Log::open_with(dir, key(), Options { every: 0, known: None }).unwrap();
    (0..3).for_each(|i| assert_eq!(log.append(&entry(SIZE + i)).unwrap(), SIZE + i));
    let journal = fs::read(dir.join("journal")).unwrap();
    let checkpoint = fs::read(dir.join("checkpoint")).unwrap();
    drop(log);
    let fresh = TempDir::new().unwrap();
    write(fresh.path(), key(), &entries(0..SIZE));
    fs::remove_dir_all(dir).unwrap();
    copy(fresh.path(), dir);
    assert_eq!(fs::read(dir.join("checkpoint")).unwrap(), checkpoint);
    fs::write(dir.join("journal"), journal).unwrap();
    attack(&dir.join("journal"));
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn base64(bytes: &[u8]) -> String {
    use base64::prelude::*;
    BASE64_STANDARD.encode(bytes)
}

fn signature_bytes(line: &str) -> Vec<u8> {
    use base64::prelude::*;
    BASE64_STANDARD.decode(line.rsplit(' ').next().unwrap()).unwrap()
}

#[test]
fn every_attack_is_seen_and_named() {
    let lab = Lab::new();
    for case in CASES {
        let (_root, dir) = lab.copy();
        assert_eq!(verify(&dir, key().verifier(), Some(&lab.known)).unwrap().size, SIZE, "{}", case.name);
        (case.attack)(&dir, &lab);
        let faults = verify(&dir, key().verifier(), Some(&lab.known)).expect_err(case.name);
        assert!(faults.iter().any(|f| (case.known)(f, &dir)), "{}: {faults:?}", case.name);
        match (verify(&dir, key().verifier(), None), case.alone) {
            (Err(faults), Some(seen)) => assert!(faults.iter().any(|f| seen(f, &dir)), "{}: {faults:?}", case.name),
            (Ok(_), None) => (),
            (alone, _) => panic!("{}: {alone:?}", case.name),
        }
    }
}

#[test]
fn every_byte_of_a_log_matters() {
    let dir = TempDir::new().unwrap();
    let checkpoint = write(dir.path(), key(), &entries(0..300));
    let mut files = vec![dir.path().join("checkpoint")];
    let mut folders = vec![dir.path().join("tile")];
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    assert_eq!(files.len(), 6);
    for path in files {
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(1 + good.len() / 60) {
            flip(&path, at);
            let faults = verify(dir.path(), key().verifier(), Some(&checkpoint));
            assert!(faults.is_err_and(|f| !f.is_empty()), "{} {at}", path.display());
            fs::write(&path, &good).unwrap();
        }
        for cut in [0, 1, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..cut]).unwrap();
            assert!(verify(dir.path(), key().verifier(), Some(&checkpoint)).is_err(), "{} {cut}", path.display());
            fs::write(&path, &good).unwrap();
        }
    }
    verify(dir.path(), key().verifier(), Some(&checkpoint)).unwrap();
}

#[test]
fn faults_beyond_a_hundred_are_counted() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), key(), &entries(0..SIZE));
    let mut look = |i: u64, _: &[u8]| if i < 250 { Err("no".to_owned()) } else { Ok(()) };
    let faults = verify_with(dir.path(), key().verifier(), None, &mut look).unwrap_err();
    assert_eq!((faults.len(), &faults[100]), (101, &Fault::More { count: 150 }));
    assert_eq!(faults[7].to_string(), "entry 7: no");
}

#[test]
fn two_verifiers_who_were_told_two_histories_find_out() {
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut other = entries(0..SIZE + 50);
    let told_a = write(a.path(), key(), &other);
    other[510] = b"another".to_vec();
    let told_b = write(b.path(), key(), &other);
    // Comparing what they hold is enough when the sizes are equal.
    assert!(matches!(told_a.same_history(&told_b), Err(Fault::Rewritten { size: 650, .. })));
    // When they are not, no proof leads from one to the other.
    other.extend(entries(650..700));
    let longer_b = write(b.path(), key(), &other);
    let proof = Reader::open(b.path(), key().verifier()).unwrap().consistency(650).unwrap();
    proof.check(&told_b, &longer_b).unwrap();
    assert!(matches!(proof.check(&told_a, &longer_b), Err(Fault::Proof { .. })));

    let file = a.path().join("witness");
    let mut witness = Witness::open(&file, key().verifier().clone()).unwrap();
    assert_eq!(witness.known(), None);
    witness.visit(a.path()).unwrap();
    assert_eq!(witness.known(), Some(&told_a));
    assert!(matches!(&witness.visit(b.path()).unwrap_err()[..], [Fault::Rewritten { size: 650, .. }]));
    let refused = witness.observe(longer_b, &proof).unwrap_err();
    assert!(matches!(refused, LedgerError::Damaged(Fault::Proof { .. })), "{refused}");
    // It still knows what it knew, also in its next life.
    drop(witness);
    assert_eq!(Witness::open(&file, key().verifier().clone()).unwrap().known(), Some(&told_a));
    flip(&file, 30);
    let refused = Witness::open(&file, key().verifier().clone()).unwrap_err();
    assert!(matches!(refused, LedgerError::Damaged(Fault::Signature { .. })), "{refused}");
}

#[test]
fn a_witness_follows_a_log_that_grows_and_knows_heads_that_no_tile_covers() {
    let root = TempDir::new().unwrap();
    let dir = root.path().join("log");
    let mut witness = Witness::open(&root.path().join("witness"), key().verifier().clone()).unwrap();
    let log = Log::open_with(&dir, key(), Options { every: 0, known: None }).unwrap();
    for i in 0..5 {
        log.append(&entry(i)).unwrap();
        let checkpoint = log.checkpoint().unwrap();
        let from = witness.known().map_or(0, Checkpoint::size);
        let proof = Reader::open(&dir, key().verifier()).unwrap().consistency(from).unwrap();
        witness.observe(checkpoint, &proof).unwrap();
    }
    log.append(&entry(5)).unwrap();
    let head = log.head();
    let verified = verify(&dir, key().verifier(), Some(&head)).unwrap();
    assert_eq!((verified.size, verified.checkpoint.size()), (6, 5));
    // Cutting the journal's end is seen by whoever knows the head.
    fs::write(dir.join("journal"), b"").unwrap();
    assert_eq!(verify(&dir, key().verifier(), Some(&head)), Err(vec![Fault::RolledBack { needed: 6, got: 5 }]));
    assert_eq!(verify(&dir, key().verifier(), witness.known()).unwrap().size, 5);
}

/// What the gate checks through the hook: times that run back, approvals used twice, payloads that are gone or changed.
fn meaning(payloads: &Payloads) -> impl FnMut(u64, &[u8]) -> Result<(), String> + '_ {
    let (mut last, mut used) = (0, HashSet::new());
    move |_, entry| {
        let receipt: serde_json::Value = serde_json::from_slice(entry).map_err(|e| e.to_string())?;
        let time = receipt["time"].as_u64().ok_or("no time")?;
        if time < last {
            return Err(format!("its time is {time}, but the entry before it has {last}"));
        }
        last = time;
        if !used.insert(receipt["approval"].to_string()) {
            return Err(format!("approval {} was used before", receipt["approval"]));
        }
        let digest = serde_json::from_value(receipt["payload"].clone()).map_err(|e| e.to_string())?;
        match payloads.get(&digest) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(format!("payload {digest} is gone")),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[test]
fn clocks_set_back_replays_and_swapped_payloads_are_seen_by_whoever_knows_the_meaning() {
    let root = TempDir::new().unwrap();
    let (dir, store) = (root.path().join("log"), root.path().join("payloads"));
    let payloads = Payloads::open(&store, Limits::default()).unwrap();
    (0..20).for_each(|i| assert_eq!(payloads.put(&payload(i)).unwrap(), Digest::of(&payload(i))));
    let check = |entries: &[Vec<u8>]| {
        write(&dir, key(), entries);
        verify_with(&dir, key().verifier(), None, &mut meaning(&payloads)).map(|v| v.size)
    };
    let meaning = |index, reason: &str| Err(vec![Fault::Meaning { index, reason: reason.to_owned() }]);
    assert_eq!(check(&entries(0..10)), Ok(10));

    let back_dated =
        canonical(&serde_json::json!({"time": 900, "approval": "b", "payload": Digest::of(&payload(1))})).unwrap();
    let all = [entries(0..10), vec![back_dated]].concat();
    assert_eq!(check(&all), meaning(10, "its time is 900, but the entry before it has 1009"));

    let replayed =
        canonical(&serde_json::json!({"time": 1010, "approval": "a3", "payload": Digest::of(&payload(1))})).unwrap();
    let all = [entries(0..10), vec![replayed]].concat();
    assert_eq!(check(&all), meaning(10, "approval \"a3\" was used before"));

    let digest = Digest::of(&payload(4));
    let name = digest.to_string();
    let file = store.join(&name[..2]).join(&name);
    fs::write(&file, payload(5)).unwrap();
    let swapped = Fault::Payload { path: file.clone(), got: Digest::of(&payload(5)) };
    assert_eq!(Payloads::verify(&store), vec![swapped.clone()]);
    assert_eq!(check(&entries(0..10)), meaning(4, &swapped.to_string()));
    assert!(matches!(payloads.get(&digest), Err(LedgerError::Damaged(fault)) if fault == swapped));

    // A payload may be taken away for good; the log stays whole.
    assert!(payloads.remove(&digest).unwrap());
    assert_eq!(check(&entries(0..10)), meaning(4, &format!("payload {digest} is gone")));
    verify(&dir, key().verifier(), None).unwrap();
}
