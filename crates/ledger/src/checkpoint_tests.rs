//! The published notes, and another implementation, must agree with what is here.

use signed_note::{Note, StandardVerifier, VerifierList};

use super::*;

/// The example of the note format in Go's checksum database (golang.org/x/mod/sumdb/note).
const PETER: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
const PETERS_TEXT: &str =
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n";
const PETERS_SIGNATURE: &str =
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=";

/// The example of c2sp.org/tlog-checkpoint.
const SOFA: &str = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n\
    — example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n";

fn signer(name: &str) -> Signer {
    Signer::from_seed(name, [9; 32]).unwrap()
}

fn sign(name: &str) -> Checkpoint {
    Checkpoint::sign(&signer(name), 300, Digest::of(b"root"))
}

#[test]
fn the_signature_of_the_published_note_is_good_and_of_a_changed_one_it_is_not() {
    let verifier: Verifier = PETER.parse().unwrap();
    let (name, id, bytes) = signature(PETERS_SIGNATURE).unwrap();
    assert_eq!((name, id), ("PeterNeumann", [0xc7, 0x4f, 0x20, 0xa3]));
    assert_eq!((verifier.name(), verifier.id()), (name, id));
    assert!(verifier.verify(PETERS_TEXT.as_bytes(), &bytes));
    assert!(!verifier.verify(PETERS_TEXT.replace("your", "our").as_bytes(), &bytes));
}

#[test]
fn the_published_checkpoint_is_read_and_its_signature_is_another_keys() {
    let text = SOFA.split_inclusive('\n').take(3).collect::<String>();
    let root = "0ac5186a91863e8e1d90c808014aa89bf5da8e3ee1d9f07630f0378f68f1ab62";
    assert_eq!(statement(&text), Some(("example.com/behind-the-sofa", 20_852_163, Digest::from_hex(root).unwrap())));
    let verifier = signer("example.com/behind-the-sofa").verifier().clone();
    let fault = Checkpoint::open(SOFA.as_bytes(), &verifier).unwrap_err();
    let reason = "signed by `example.com/behind-the-sofa`".to_owned();
    assert_eq!(fault, Fault::Signature { what: LOOSE.into(), key: verifier.to_string(), reason });
}

#[test]
fn another_implementation_reads_what_is_signed_here() {
    let ours = sign("log.example/1");
    let verifier = StandardVerifier::new(&signer("log.example/1").verifier().to_string()).unwrap();
    let note = Note::from_bytes(ours.note().as_bytes()).unwrap();
    let (good, unknown) = note.verify(&VerifierList::new(vec![Box::new(verifier)])).unwrap();
    assert_eq!((good.len(), unknown.len()), (1, 0));
    let theirs = tlog_tiles::Checkpoint::from_bytes(note.text()).unwrap();
    assert_eq!((theirs.origin(), theirs.size()), ("log.example/1", 300));
    assert_eq!(theirs.hash().0, ours.root().0);
    assert_eq!(theirs.extension(), "");
}

#[test]
fn what_is_signed_is_read_back_and_other_signatures_are_carried_along() {
    let ours = sign("log.example/1");
    let verifier = signer("log.example/1").verifier().clone();
    assert_eq!(Checkpoint::open(ours.note().as_bytes(), &verifier).unwrap(), ours);
    let witnessed = format!("{}{PETERS_SIGNATURE}\n", ours.note());
    let read = Checkpoint::open(witnessed.as_bytes(), &verifier).unwrap();
    assert_eq!((read.size(), read.root(), read.note()), (ours.size(), ours.root(), witnessed.as_str()));
}

#[test]
fn a_checkpoint_that_the_key_did_not_sign_is_refused_and_the_reason_is_named() {
    let ours = sign("log.example/1");
    let verifier = signer("log.example/1").verifier().clone();
    let open = |note: &str| Checkpoint::open(note.as_bytes(), &verifier).unwrap_err();
    let signature = |reason: &str| Fault::Signature {
        what: LOOSE.to_owned(),
        key: verifier.to_string(),
        reason: reason.to_owned(),
    };
    let malformed = |reason: &str| Fault::Malformed { path: LOOSE.into(), reason: reason.to_owned() };

    assert_eq!(open(&ours.note().replace("300", "301")), signature("its signature does not fit the text"));
    let other = Signer::from_seed("log.example/1", [8; 32]).unwrap();
    let resigned = Checkpoint::sign(&other, 300, ours.root());
    assert_eq!(open(resigned.note()), signature("signed by `log.example/1`"));
    let elsewhere = sign("log.example/2");
    let origin = |got: &str| Fault::Origin { what: LOOSE.into(), needed: "log.example/1".into(), got: got.into() };
    assert_eq!(open(elsewhere.note()), origin("log.example/2"));

    let line = ours.note().split('\n').nth(4).unwrap();
    for (note, reason) in [
        (ours.note().trim_end().to_owned(), "its last line has no end"),
        (ours.note().replace("\n\n", "\n"), "it bears no signature"),
        (ours.note().replace("— ", "- "), "a signature line is not one"),
        (ours.note().replace(line, &format!("{line}\n")), "it bears no signature"),
        (ours.note().replace("300", "3\t0"), "it holds a control character"),
        ("x".repeat(LONGEST_NOTE + 1), "it is too long for a checkpoint"),
        (String::new(), "it bears no signature"),
    ] {
        match (open(&note), reason) {
            // An empty line after the signature moves the cut: nothing before it is a signature line then.
            (Fault::Malformed { reason, .. }, _) if note.ends_with("\n\n") => assert!(!reason.is_empty()),
            (fault, reason) => assert_eq!(fault, malformed(reason), "{note:?}"),
        }
    }
    assert_eq!(Checkpoint::open(b"\xff\n\n", &verifier), Err(malformed("it is not text")));
}

#[test]
fn a_size_and_a_root_have_one_spelling() {
    let root = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=";
    for (text, good) in [
        (format!("a\n0\n{root}\n"), true),
        (format!("a\n18446744073709551615\n{root}\n"), true),
        (format!("a\n5\n{root}\nextension\nanother\n"), true),
        (format!("a\n18446744073709551616\n{root}\n"), false),
        (format!("a\n05\n{root}\n"), false),
        (format!("a\n+5\n{root}\n"), false),
        (format!("a\n-5\n{root}\n"), false),
        (format!("\n5\n{root}\n"), false),
        (format!("a\n5\n{}\n", &root[4..]), false),
        (format!("a\n5\n{root}\n\nextension\n"), false),
        (format!("a\n5\n{root}"), false),
        ("a\n5\n".to_owned(), false),
    ] {
        assert_eq!(statement(&text).is_some(), good, "{text:?}");
    }
}

#[test]
fn checkpoints_of_one_size_and_two_roots_contradict_each_other() {
    let a = sign("log.example/1");
    let b = Checkpoint::sign(&signer("log.example/1"), 300, Digest::of(b"another"));
    assert_eq!(a.same_history(&a), Ok(()));
    assert_eq!(a.same_history(&b), Err(Fault::Rewritten { size: 300, needed: a.root(), got: b.root() }));
    assert!(matches!(a.same_history(&sign("log.example/2")), Err(Fault::Origin { .. })));
}
