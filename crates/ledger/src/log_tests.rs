use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::disk::checkpoint_path;
use crate::error::Fault;
use crate::reader::Reader;
use crate::tree::{Tree, leaf_hash};
use crate::verify::{verify, verify_with};

fn signer() -> Signer {
    Signer::from_seed("log.example/test", [7; 32]).unwrap()
}

fn entry(i: u64) -> Vec<u8> {
    format!("entry {i}").into_bytes()
}

fn root_of(entries: impl IntoIterator<Item = Vec<u8>>) -> Digest {
    let mut tree = Tree::default();
    entries.into_iter().for_each(|e| tree.push(leaf_hash(&e), |_, _| ()));
    tree.root()
}

fn on_demand() -> Options {
    Options { every: 0, known: None }
}

/// Copies what a killed writer would have left.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

#[test]
fn what_is_appended_is_read_back_proved_and_verified_at_every_size() {
    let dir = TempDir::new().unwrap();
    let mut size = 0;
    for more in [0, 1, 1, 1, 252, 1, 1, 255, 1, 600] {
        let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
        let old = log.head();
        let entries: Vec<_> = (size..size + more).map(entry).collect();
        assert_eq!(log.append_many(&entries).unwrap(), size..size + more);
        size += more;
        let new = log.close().unwrap();
        assert_eq!((new.size(), new.root()), (size, root_of((0..size).map(entry))));

        let reader = Reader::open(dir.path(), signer().verifier()).unwrap();
        assert_eq!(*reader.checkpoint(), new);
        reader.consistency(old.size()).unwrap().check(&old, &new).unwrap();
        for index in (0..size).step_by(37).chain(size.checked_sub(1)) {
            assert_eq!(reader.entry(index).unwrap(), entry(index));
            reader.inclusion(index).unwrap().check(&entry(index), &new).unwrap();
            assert!(reader.inclusion(index).unwrap().check(b"another", &new).is_err());
        }
        let verified = verify(dir.path(), signer().verifier(), Some(&old)).unwrap();
        assert_eq!((verified.size, verified.root, verified.pending, verified.torn), (size, new.root(), 0, false));
    }
}

#[test]
fn a_log_that_was_not_closed_keeps_everything_that_was_acknowledged() {
    let dir = TempDir::new().unwrap();
    let killed = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
    log.append_many(&(0..300).map(entry).collect::<Vec<_>>()).unwrap();
    log.checkpoint().unwrap();
    (300..310).for_each(|i| assert_eq!(log.append(&entry(i)).unwrap(), i));
    copy(dir.path(), killed.path());
    let head = log.head();

    let verified = verify(killed.path(), signer().verifier(), Some(&head)).unwrap();
    assert_eq!((verified.checkpoint.size(), verified.size, verified.pending), (300, 310, 10));
    let again = Log::open_with(killed.path(), signer(), on_demand()).unwrap();
    assert_eq!((again.len(), again.head().root()), (310, head.root()));
    assert_eq!(again.append(&entry(310)).unwrap(), 310);
    assert_eq!(again.close().unwrap().root(), root_of((0..311).map(entry)));
}

#[test]
fn a_frame_that_was_not_finished_is_cut_off_wherever_it_was_torn() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
    for i in 0..3 {
        log.append(&entry(i)).unwrap();
    }
    log.append(&vec![1; 9000]).unwrap();
    let journal = fs::read(dir.path().join("journal")).unwrap();
    // Three frames of a page each, then one of three pages.
    let last = 3 * 4096;
    for cut in (last..last + 9200).step_by(97) {
        let torn = TempDir::new().unwrap();
        copy(dir.path(), torn.path());
        let mut bytes = journal.clone();
        bytes[cut..last + 3 * 4096].fill(0);
        fs::write(torn.path().join("journal"), &bytes).unwrap();
        let whole = cut >= last + 120 + 2 + 9000;
        let size = if whole { 4 } else { 3 };
        let verified = verify(torn.path(), signer().verifier(), None).unwrap();
        assert_eq!(verified.size, size, "{cut}");
        let log = Log::open_with(torn.path(), signer(), on_demand()).unwrap();
        assert_eq!(log.len(), size, "{cut}");
        assert_eq!(log.append(b"after").unwrap(), size);
        assert_eq!(log.close().unwrap().size(), size + 1);
        verify(torn.path(), signer().verifier(), None).unwrap();
    }
    // A file that ends early is torn as well.
    let short = TempDir::new().unwrap();
    copy(dir.path(), short.path());
    fs::write(short.path().join("journal"), &journal[..last + 200]).unwrap();
    assert_eq!(Log::open_with(short.path(), signer(), on_demand()).unwrap().len(), 3);
}

#[test]
fn a_broken_frame_that_is_not_the_last_is_damage_and_not_a_torn_end() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
    for i in 0..5 {
        log.append(&entry(i)).unwrap();
    }
    let journal = fs::read(dir.path().join("journal")).unwrap();
    for at in [4096, 4096 + 100, 4096 + 20, 4096 + 125] {
        let broken = TempDir::new().unwrap();
        copy(dir.path(), broken.path());
        let mut bytes = journal.clone();
        bytes[at] ^= 1;
        fs::write(broken.path().join("journal"), &bytes).unwrap();
        let fault = Fault::Journal {
            path: broken.path().join("journal"),
            offset: 4096,
            reason: "entries 1 to 1 are missing".to_owned(),
        };
        assert_eq!(verify(broken.path(), signer().verifier(), None), Err(vec![fault.clone()]), "{at}");
        match Log::open_with(broken.path(), signer(), on_demand()) {
            Err(LedgerError::Damaged(got)) => assert_eq!(got, fault),
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn frames_left_behind_before_the_checkpoint_are_passed_over() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
    for i in 0..8 {
        log.append(&entry(i)).unwrap();
    }
    log.checkpoint().unwrap();
    // The crash came before anything else was written: every frame is older than the checkpoint.
    let killed = TempDir::new().unwrap();
    copy(dir.path(), killed.path());
    assert_eq!(Log::open_with(killed.path(), signer(), on_demand()).unwrap().len(), 8);
    // Two new frames lie over old ones, and old ones follow them.
    for i in 8..10 {
        log.append(&entry(i)).unwrap();
    }
    let killed = TempDir::new().unwrap();
    copy(dir.path(), killed.path());
    let verified = verify(killed.path(), signer().verifier(), Some(&log.head())).unwrap();
    assert_eq!((verified.size, verified.pending, verified.torn), (10, 2, false));
    assert_eq!(Log::open_with(killed.path(), signer(), on_demand()).unwrap().len(), 10);
}

#[test]
fn a_checkpoint_comes_by_itself_after_so_many_entries() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), Options { every: 10, known: None }).unwrap();
    for i in 0..25 {
        log.append(&entry(i)).unwrap();
        let on_disk = Reader::open(dir.path(), signer().verifier()).unwrap();
        assert_eq!(on_disk.checkpoint().size(), (i + 1) / 10 * 10);
    }
    drop(log);
    assert_eq!(Reader::open(dir.path(), signer().verifier()).unwrap().checkpoint().size(), 25);
}

#[test]
fn a_second_writer_is_refused_and_the_next_one_is_not() {
    let dir = TempDir::new().unwrap();
    let log = Log::open(dir.path(), signer()).unwrap();
    assert!(matches!(Log::open(dir.path(), signer()), Err(LedgerError::Locked { path }) if path == dir.path()));
    drop(log);
    Log::open(dir.path(), signer()).unwrap();
}

#[test]
fn an_entry_of_64_kib_is_refused_and_one_byte_less_is_not() {
    let dir = TempDir::new().unwrap();
    let log = Log::open(dir.path(), signer()).unwrap();
    log.append(&vec![1; LONGEST_ENTRY]).unwrap();
    let error = log.append_many(&[vec![], vec![1; LONGEST_ENTRY + 1]]).unwrap_err();
    assert!(matches!(error, LedgerError::TooLong { needed: 65535, got: 65536 }));
    assert_eq!(log.append(b"").unwrap(), 1);
    log.close().unwrap();
    let reader = Reader::open(dir.path(), signer().verifier()).unwrap();
    assert_eq!((reader.entry(0).unwrap().len(), reader.entry(1).unwrap().len()), (65535, 0));
}

#[test]
fn more_than_a_frame_holds_is_written_in_several() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
    let entries: Vec<_> = (0..200).map(|i| vec![i as u8; 60_000]).collect();
    assert_eq!(log.append_many(&entries).unwrap(), 0..200);
    let killed = TempDir::new().unwrap();
    copy(dir.path(), killed.path());
    assert_eq!(verify(killed.path(), signer().verifier(), None).unwrap().root, root_of(entries));
}

#[test]
fn what_is_submitted_keeps_its_place_and_is_logged_once_committed() {
    let dir = TempDir::new().unwrap();
    let log = Log::open(dir.path(), signer()).unwrap();
    let first = log.submit(b"a").unwrap();
    let second = log.submit(b"b").unwrap();
    assert_eq!((first, second, log.len()), (0, 1, 0));
    assert!(matches!(log.commit(2), Err(LedgerError::NotSubmitted { index: 2, len: 2 })));
    log.commit(first).unwrap();
    assert_eq!(log.len(), 2);
    log.submit(b"c").unwrap();
    assert_eq!(log.append(b"d").unwrap(), 3);
    assert_eq!(log.close().unwrap().root(), root_of([b"a", b"b", b"c", b"d"].map(|e| e.to_vec())));
}

#[test]
fn many_threads_lose_nothing_and_each_index_names_its_entry() {
    let dir = TempDir::new().unwrap();
    let log = Arc::new(Log::open_with(dir.path(), signer(), Options { every: 500, known: None }).unwrap());
    let (threads, each) = (8, 300);
    let told = AtomicU64::new(0);
    let mut given: Vec<(u64, Vec<u8>)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let (log, told) = (&log, &told);
                scope.spawn(move || {
                    let mut given = Vec::new();
                    for i in 0..each {
                        let text = format!("thread {t} entry {i}").into_bytes();
                        let index = if i % 3 == 0 {
                            let index = log.submit(&text).unwrap();
                            log.commit(index).unwrap();
                            index
                        } else {
                            log.append(&text).unwrap()
                        };
                        // Acknowledged means that the head covers it.
                        assert!(log.len() > index);
                        if i % 100 == 0 {
                            assert!(log.checkpoint().unwrap().size() > index);
                        }
                        told.fetch_max(index + 1, Ordering::Relaxed);
                        given.push((index, text));
                    }
                    assert!(given.is_sorted());
                    given
                })
            })
            .collect();
        handles.into_iter().flat_map(|h| h.join().unwrap()).collect()
    });
    given.sort();
    assert_eq!(told.into_inner(), threads * each);
    assert!(given.iter().map(|(index, _)| *index).eq(0..threads * each));
    Arc::into_inner(log).unwrap().close().unwrap();
    let mut seen = Vec::new();
    verify_with(dir.path(), signer().verifier(), None, &mut |index, entry| {
        seen.push((index, entry.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, given);
}

#[test]
fn a_log_can_be_verified_while_it_is_written() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), Options { every: 7, known: None }).unwrap();
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..400 {
                log.append(&entry(i)).unwrap();
            }
            done.store(1, Ordering::Release);
        });
        let mut known = None;
        while done.load(Ordering::Acquire) == 0 {
            let verified = verify(dir.path(), signer().verifier(), known.as_ref()).unwrap();
            known = Some(verified.checkpoint);
        }
    });
}

#[test]
fn after_a_failed_write_nothing_more_is_taken() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), Options { every: 2, known: None }).unwrap();
    log.append(b"a").unwrap();
    // A file where the tiles' folder must go: the checkpoint that is due cannot be made.
    fs::write(dir.path().join("tile"), b"").unwrap();
    assert!(matches!(log.append(b"b"), Err(LedgerError::Io { action: "create", .. })));
    let refused = log.append(b"c").unwrap_err();
    assert!(matches!(&refused, LedgerError::Broken { path, .. } if path == dir.path()), "{refused}");
    assert!(matches!(log.checkpoint(), Err(LedgerError::Broken { .. })));
    drop(log);
    fs::remove_file(dir.path().join("tile")).unwrap();
    let log = Log::open(dir.path(), signer()).unwrap();
    assert_eq!(log.len(), 2);
}

#[test]
fn a_log_that_lost_its_checkpoint_or_its_journal_is_not_begun_anew() {
    let dir = TempDir::new().unwrap();
    Log::open(dir.path(), signer()).unwrap().append(b"a").unwrap();
    for path in [checkpoint_path(dir.path()), dir.path().join("journal")] {
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        match Log::open(dir.path(), signer()) {
            Err(LedgerError::Damaged(Fault::Missing { path: got })) => assert_eq!(got, path),
            other => panic!("{:?}", other.map(|_| ())),
        }
        fs::write(&path, bytes).unwrap();
    }
    Log::open(dir.path(), signer()).unwrap();
}

#[test]
fn a_log_that_does_not_continue_what_is_known_is_not_opened() {
    let dir = TempDir::new().unwrap();
    let log = Log::open_with(dir.path(), signer(), on_demand()).unwrap();
    log.append_many(&[b"a", b"b", b"c"]).unwrap();
    let early = log.head();
    log.checkpoint().unwrap();
    let old = TempDir::new().unwrap();
    copy(dir.path(), old.path());
    log.append_many(&[b"d", b"e"]).unwrap();
    let late = log.head();
    let open = |dir: &Path, known: &Checkpoint| {
        Log::open_with(dir, signer(), Options { every: 0, known: Some(known.clone()) }).map(|log| log.len())
    };
    let damage = |opened: Result<u64, LedgerError>| match opened {
        Err(LedgerError::Damaged(fault)) => fault,
        other => panic!("{other:?}"),
    };
    assert_eq!(open(old.path(), &early).unwrap(), 3);
    assert_eq!(damage(open(old.path(), &late)), Fault::RolledBack { needed: 5, got: 3 });
    let killed = TempDir::new().unwrap();
    copy(dir.path(), killed.path());
    assert_eq!(open(killed.path(), &late).unwrap(), 5);
    assert_eq!(open(killed.path(), &early).unwrap(), 5);

    let forked = TempDir::new().unwrap();
    let fork = Log::open_with(forked.path(), signer(), on_demand()).unwrap();
    fork.append_many(&[b"a", b"b", b"C", b"d", b"e", b"f"]).unwrap();
    let copied = TempDir::new().unwrap();
    copy(forked.path(), copied.path());
    let rewritten = |c: &Checkpoint, got: &[&[u8]]| Fault::Rewritten {
        size: c.size(),
        needed: c.root(),
        got: root_of(got.iter().map(|e| e.to_vec())),
    };
    // In the journal, and in tiles.
    assert_eq!(damage(open(copied.path(), &late)), rewritten(&late, &[b"a", b"b", b"C", b"d", b"e"]));
    fork.close().unwrap();
    assert_eq!(damage(open(forked.path(), &early)), rewritten(&early, &[b"a", b"b", b"C"]));
}
