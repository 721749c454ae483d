//! A writer that is killed at any moment loses nothing that it said was logged.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use surefoot_ledger::{Checkpoint, Log, Options, Signer, verify, verify_with};
use tempfile::TempDir;

/// Tells the second process where to write.
const PLACE: &str = "LEDGER_TEST_APPENDER";

const ROUNDS: u64 = 60;

fn key() -> Signer {
    Signer::from_seed("log.example/killed", [3; 32]).unwrap()
}

/// Appends from three threads, one entry or several at a time, with many checkpoints between; tells what is logged once it
/// is.
fn append<W: Write>(dir: &Path, calls: u64, tell: impl Fn() -> W + Sync) {
    let log = Log::open_with(dir, key(), Options { every: 23, known: None }).unwrap();
    let told = AtomicU64::new(0);
    thread::scope(|scope| {
        for t in 0..3u64 {
            let (log, told, tell) = (&log, &told, &tell);
            scope.spawn(move || {
                for i in 0..calls {
                    let entries: Vec<_> = (0..1 + (t + i) % 3)
                        .map(|j| {
                            format!(
                                "{} thread {t} call {i} {j} {}",
                                std::process::id(),
                                "x".repeat((i % 50) as usize * 40)
                            )
                        })
                        .collect();
                    let range = log.append_many(&entries).unwrap();
                    let mut lines = String::new();
                    for (index, entry) in range.zip(&entries) {
                        lines += &format!("logged {index} {entry}\n");
                    }
                    told.fetch_add(entries.len() as u64, Ordering::Relaxed);
                    let mut out = tell();
                    out.write_all(lines.as_bytes()).and_then(|()| out.flush()).unwrap();
                }
            });
        }
    });
    assert_eq!(log.close().unwrap().size(), told.into_inner());
}

/// By itself a test of the writer that is killed below, and that writer when it is told where to write.
#[test]
fn the_writer_logs_what_it_says() {
    if let Some(dir) = std::env::var_os(PLACE) {
        append(&PathBuf::from(dir), u64::MAX, || std::io::stdout().lock());
    }
    let dir = TempDir::new().unwrap();
    append(dir.path(), 20, std::io::sink);
    assert_eq!(verify(dir.path(), key().verifier(), None).unwrap().size, 3 * 20 * 2);
}

#[test]
fn a_writer_killed_at_any_moment_loses_nothing_that_it_said_was_logged() {
    let dir = TempDir::new().unwrap();
    let mut logged: Vec<(u64, String)> = Vec::new();
    let mut known: Option<Checkpoint> = None;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let (mut pending, mut torn) = (0, 0);
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_writer_logs_what_it_says", "--nocapture"])
            .env(PLACE, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        while !first.contains("logged ") {
            first.clear();
            assert_ne!(lines.read_line(&mut first).unwrap(), 0, "the writer ended by itself in round {round}");
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_micros(random % 25_000));
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let mut told = vec![first];
        // A last line without an end was not told.
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
            told.push(std::mem::take(&mut line));
        }
        killer.join().unwrap();
        for line in told.iter().filter_map(|line| line.split("logged ").nth(1)) {
            let (index, entry) = line.trim_end_matches('\n').split_once(' ').unwrap();
            logged.push((index.parse().unwrap(), entry.to_owned()));
        }
        // Before anything repairs it, and again after the next writer did.
        let mut entries = Vec::new();
        let verified = verify_with(dir.path(), key().verifier(), known.as_ref(), &mut |index, entry| {
            assert_eq!(index, entries.len() as u64);
            entries.push(entry.to_vec());
            Ok(())
        })
        .unwrap_or_else(|faults| panic!("round {round}: {faults:?}"));
        assert_eq!(verified.size, entries.len() as u64);
        for (index, entry) in &logged {
            let got = entries.get(*index as usize).map(|e| String::from_utf8_lossy(e));
            assert_eq!(got.as_deref(), Some(entry.as_str()), "round {round}: entry {index} of {}", entries.len());
        }
        pending += u64::from(verified.pending > 0);
        torn += u64::from(verified.torn);
        known = Some(verified.checkpoint);
    }
    // The kills must have come at moments that matter, or this test shows nothing.
    assert!(pending > ROUNDS / 10, "only {pending} of {ROUNDS} kills left entries in the journal ({torn} torn)");
    assert!(logged.len() as u64 > ROUNDS);
    let last = Log::open(dir.path(), key()).unwrap().close().unwrap();
    assert!(logged.iter().all(|(index, _)| *index < last.size()));
}
