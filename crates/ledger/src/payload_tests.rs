use tempfile::TempDir;

use super::*;

fn limits(one: u64, all: u64) -> Limits {
    Limits { one, all }
}

#[test]
fn what_is_put_is_got_back_once_kept_and_gone_when_removed() {
    let dir = TempDir::new().unwrap();
    let payloads = Payloads::open(dir.path(), Limits::default()).unwrap();
    let (a, b) = (b"a".repeat(1000), b"".to_vec());
    let digests = payloads.put_many(&[&a, &b, &a]).unwrap();
    assert_eq!(digests, [Digest::of(&a), Digest::of(&b), Digest::of(&a)]);
    assert_eq!((payloads.get(&digests[0]).unwrap(), payloads.get(&digests[1]).unwrap()), (Some(a.clone()), Some(b)));
    assert_eq!(payloads.put(&a).unwrap(), digests[0]);
    assert_eq!(payloads.lock().used, 1000);
    assert_eq!(payloads.get(&Digest::of(b"x")).unwrap(), None);
    assert_eq!((payloads.remove(&digests[0]).unwrap(), payloads.remove(&digests[0]).unwrap()), (true, false));
    assert_eq!(payloads.get(&digests[0]).unwrap(), None);
    assert_eq!(payloads.lock().used, 0);
    assert_eq!(Payloads::verify(dir.path()), []);
}

#[test]
fn a_payload_over_a_limit_is_refused_also_after_opening_again() {
    let dir = TempDir::new().unwrap();
    let payloads = Payloads::open(dir.path(), limits(10, 25)).unwrap();
    let full = |limit, room, got| move |e: &LedgerError| matches!(e, LedgerError::Full { limit: l, room: r, got: g } if (*l, *r, *g) == (limit, room, got));
    assert!(payloads.put(&[1; 11]).is_err_and(|e| full("one payload", 10, 11)(&e)));
    payloads.put_many(&[&[1; 10], &[2; 10]]).unwrap();
    assert!(payloads.put(&[3; 6]).is_err_and(|e| full("all payloads", 5, 6)(&e)));
    // What is there already needs no room.
    payloads.put(&[1; 10]).unwrap();
    let again = Payloads::open(dir.path(), limits(10, 25)).unwrap();
    assert!(again.put(&[3; 6]).is_err_and(|e| full("all payloads", 5, 6)(&e)));
    again.put(&[3; 5]).unwrap();
    again.remove(&Digest::of(&[1; 10])).unwrap();
    again.put(&[4; 10]).unwrap();
}

#[test]
fn a_payload_that_was_changed_is_put_again_and_what_was_never_finished_is_swept() {
    let dir = TempDir::new().unwrap();
    let payloads = Payloads::open(dir.path(), Limits::default()).unwrap();
    let digest = payloads.put(b"payload").unwrap();
    let path = payloads.path(&digest);
    let unfinished = path.with_file_name(".unfinished-x");
    for changed in [&b"changed"[..], b"longer than it was", b""] {
        fs::write(&path, changed).unwrap();
        fs::write(&unfinished, b"half").unwrap();
        let fault = Fault::Payload { path: path.clone(), got: Digest::of(changed) };
        assert_eq!(Payloads::verify(dir.path()), std::slice::from_ref(&fault));
        let payloads = Payloads::open(dir.path(), Limits::default()).unwrap();
        assert!(!unfinished.exists());
        assert!(matches!(payloads.get(&digest), Err(LedgerError::Damaged(f)) if f == fault));
        payloads.put(b"payload").unwrap();
        assert_eq!(payloads.get(&digest).unwrap().unwrap(), b"payload");
        assert_eq!(payloads.lock().used, 7);
    }
}

#[test]
fn what_is_no_payload_is_named() {
    let dir = TempDir::new().unwrap();
    let payloads = Payloads::open(dir.path(), Limits::default()).unwrap();
    let path = payloads.path(&payloads.put(b"payload").unwrap());
    let elsewhere = dir.path().join("zz").join(path.file_name().unwrap());
    fs::create_dir(dir.path().join("zz")).unwrap();
    fs::copy(&path, &elsewhere).unwrap();
    let named = path.with_file_name("name");
    fs::write(&named, b"").unwrap();
    let stray = |path| Fault::Stray { path, reason: "needed a payload under its digest" };
    let mut faults = Payloads::verify(dir.path());
    faults.sort_by_key(|f| f.to_string().contains("zz"));
    assert_eq!(faults, [stray(named), stray(elsewhere)]);
    let gone = dir.path().join("gone");
    assert!(matches!(&Payloads::verify(&gone)[..], [Fault::Io { path, .. }] if *path == gone));
}

#[test]
fn threads_that_put_the_same_and_other_payloads_count_each_once() {
    let dir = TempDir::new().unwrap();
    let payloads = Payloads::open(dir.path(), Limits::default()).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u8 {
            let payloads = &payloads;
            scope.spawn(move || {
                for i in 0..20u8 {
                    // Everyone's, in an order of its own, and one's own.
                    let (a, b, c) = ([i; 10], [i ^ (1 + t); 10], [t, i, 1]);
                    payloads.put_many(&[&a, &b, &c]).unwrap();
                }
            });
        }
    });
    let shared = (0..20u8).flat_map(|i| (0..5).map(move |t| i ^ t)).collect::<BTreeSet<_>>().len();
    assert_eq!(payloads.lock().used, shared as u64 * 10 + 4 * 20 * 3);
    assert_eq!(payloads.lock().used, Payloads::open(dir.path(), Limits::default()).unwrap().lock().used);
    assert!(payloads.lock().busy.is_empty());
    assert_eq!(Payloads::verify(dir.path()), []);
}
