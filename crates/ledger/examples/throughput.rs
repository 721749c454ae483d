//! Measures how many entries a second a log takes, and what the syncs cost.
//!
//! ```text
//! cargo run --release -p surefoot-ledger --example throughput -- [FOLDER] [SECONDS]
//! ```
//!
//! The folder decides what is measured: a disk's syncs cost what they cost, those of a file system in memory nothing. The
//! difference between the two runs is the price of durability.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{Write, stdout};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use surefoot_ledger::{Log, Options, Signer, verify};

/// The bytes of an entry: a receipt with its digests.
const ENTRY: usize = 400;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let place = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = arguments.next().map_or(Ok(3), |s| s.to_string_lossy().parse())?;
    let mut out = stdout().lock();

    let one = sync_cost(&place)?;
    writeln!(out, "{}: one sync of a page takes {:.0} us (median of 200)", place.display(), one * 1e6)?;
    writeln!(out, "threads  entries per call  entries/s  per call: median us, 99 % us")?;
    for (threads, each) in [(1, 1), (2, 1), (8, 1), (64, 1), (1, 16), (2, 64), (2, 256)] {
        let dir = tempfile::tempdir_in(&place)?;
        let (rate, median, late) = run(dir.path(), threads, each, Duration::from_secs(seconds))?;
        writeln!(out, "{threads:7}  {each:16}  {rate:9.0}  {median:8.0}, {late:.0}")?;
    }
    let dir = tempfile::tempdir_in(&place)?;
    let signer = Signer::from_seed("throughput", [1; 32])?;
    let log = Log::open(dir.path(), signer.clone())?;
    let n = 200_000;
    let start = Instant::now();
    (0..n).try_for_each(|i| log.submit(&entry(0, i)).map(drop))?;
    log.commit(n - 1)?;
    writeln!(out, "one thread, handed in and committed at the end: {:.0} entries/s", n as f64 / secs(start))?;
    log.close()?;
    let start = Instant::now();
    verify(dir.path(), signer.verifier(), None).map_err(|faults| faults[0].clone())?;
    writeln!(out, "verified {:.0} entries/s", n as f64 / secs(start))?;
    Ok(())
}

/// Runs threads that append without pause; answers entries a second, and the median and the 99th percentile of a call in
/// microseconds.
fn run(dir: &Path, threads: usize, each: usize, time: Duration) -> Result<(f64, f64, f64), Box<dyn Error>> {
    let log = Log::open_with(dir, Signer::from_seed("throughput", [1; 32])?, Options::default())?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    let mut calls = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                let (log, stop, done) = (&log, &stop, &done);
                scope.spawn(move || {
                    let mut calls = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let entries: Vec<_> = (0..each).map(|i| entry(t, (calls.len() * each + i) as u64)).collect();
                        let call = Instant::now();
                        log.append_many(&entries).map_err(|e| e.to_string())?;
                        calls.push(call.elapsed().as_secs_f64() * 1e6);
                        done.fetch_add(each as u64, Ordering::Relaxed);
                    }
                    Ok(calls)
                })
            })
            .collect();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let lists: Result<Vec<Vec<f64>>, String> =
            workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a thread was lost".to_owned()))).collect();
        lists.map(|lists| lists.concat())
    })?;
    let rate = done.into_inner() as f64 / secs(start);
    calls.sort_by(f64::total_cmp);
    log.close()?;
    Ok((rate, calls[calls.len() / 2], calls[calls.len() * 99 / 100]))
}

/// The median cost of writing a page over itself and syncing it.
fn sync_cost(place: &Path) -> Result<f64, Box<dyn Error>> {
    let path = tempfile::NamedTempFile::new_in(place)?.into_temp_path();
    let file = OpenOptions::new().write(true).open(&path)?;
    let mut costs = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        file.write_all_at(&[1; 4096], 0)?;
        file.sync_data()?;
        costs.push(secs(start));
    }
    costs.sort_by(f64::total_cmp);
    Ok(costs[100])
}

/// An entry that no other is like.
fn entry(thread: usize, i: u64) -> Vec<u8> {
    let mut entry = format!("thread {thread} entry {i} ").into_bytes();
    entry.resize(ENTRY, b'.');
    entry
}

/// The seconds since then.
fn secs(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}
