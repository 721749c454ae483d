//! Faults of checkpoints: every place where saving can stop, every byte that can be lost.

use std::collections::BTreeMap;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;

fn id() -> RunId {
    RunId::new("run-1").unwrap()
}

fn open(folder: &Path, last: usize, best: bool) -> Checkpoints {
    Checkpoints::open(folder.to_path_buf(), id(), Keep { last, best }).unwrap()
}

/// Fills a checkpoint with bytes that follow from its step, in two levels of folders.
fn fill(step: u64) -> impl Fn(&Path) -> io::Result<()> {
    move |folder| {
        fs::write(folder.join("weights.bin"), vec![step as u8; 300])?;
        fs::create_dir(folder.join("optimiser"))?;
        fs::write(folder.join("optimiser/moments.bin"), step.to_le_bytes())
    }
}

fn save(checkpoints: &Checkpoints, step: u64, metric: Option<f64>) -> Result<Checkpoint, StoreError> {
    checkpoints.save(step, metric, &BTreeMap::from([("step", step)]), fill(step))
}

/// A found checkpoint has exactly what was saved at its step.
fn assert_whole(checkpoint: &Checkpoint) {
    let step = checkpoint.step;
    assert_eq!(fs::read(checkpoint.path.join("weights.bin")).unwrap(), vec![step as u8; 300]);
    assert_eq!(fs::read(checkpoint.path.join("optimiser/moments.bin")).unwrap(), step.to_le_bytes());
    assert_eq!(checkpoint.state::<BTreeMap<String, u64>>().unwrap()["step"], step);
}

#[test]
fn what_was_saved_is_found_with_its_state_and_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let saved = save(&open(folder.path(), 2, true), 12, Some(0.5)).unwrap();
    let found = open(folder.path(), 2, true).latest().unwrap().unwrap();
    assert_eq!(saved, found);
    assert_whole(&found);
    let files: Vec<&str> = found.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(files, ["optimiser/moments.bin", "state.json", "weights.bin"]);
    assert_eq!(found.files[2].sha256, crate::hash_bytes(&[12; 300]));
    assert!(found.path.ends_with("step-000012"));
}

#[test]
fn the_digest_depends_on_files_alone() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = save(&open(a.path(), 1, true), 3, Some(0.5)).unwrap();
    let other = Checkpoints::open(b.path().to_path_buf(), RunId::new("run-2").unwrap(), Keep::default()).unwrap();
    assert_eq!(first.digest(), save(&other, 3, None).unwrap().digest());
    assert_ne!(first.digest(), save(&other, 4, None).unwrap().digest());
}

/// CASES J5: keep = 1 deleted the old checkpoint before the new one was safe.
#[test]
fn wherever_saving_stops_one_whole_checkpoint_is_found() {
    for replace in [false, true] {
        let mut n_stopped = 0;
        for changes in 0.. {
            let folder = tempfile::tempdir().unwrap();
            save(&open(folder.path(), 1, false), 1, None).unwrap();
            let mut failing = open(folder.path(), 1, false);
            failing.disk = Disk::failing_after(changes, 5);
            let step = if replace { 1 } else { 2 };
            let result = save(&failing, step, None);
            drop(failing);
            let found = open(folder.path(), 1, false).latest().unwrap().unwrap();
            assert_whole(&found);
            assert!(found.skipped.is_empty());
            assert!(disk::names(folder.path()).unwrap().iter().all(|n| n.starts_with("step-")));
            if result.is_ok() {
                assert_eq!(found.step, step);
                break;
            }
            n_stopped += 1;
        }
        assert!(n_stopped >= 9, "only {n_stopped} places to stop were tried");
    }
}

/// Every byte of every file: cut off there, or changed there.
#[test]
fn any_lost_or_changed_byte_is_seen_and_the_one_before_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path(), 3, true);
    save(&checkpoints, 1, Some(0.1)).unwrap();
    let newest = save(&checkpoints, 2, Some(0.2)).unwrap().path;
    for name in ["weights.bin", "optimiser/moments.bin", "state.json", "manifest.json"] {
        let path = newest.join(name);
        let bytes = fs::read(&path).unwrap();
        let blank = |i: usize| name.ends_with(".json") && bytes[i].is_ascii_whitespace();
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            for bad in [&bytes[..i], &changed] {
                // White space at the end of the manifest says nothing.
                if name == "manifest.json" && blank(i) {
                    continue;
                }
                fs::write(&path, bad).unwrap();
                let found = checkpoints.latest().unwrap().unwrap();
                assert_eq!(found.step, 1, "{name} byte {i}");
                assert_eq!(found.skipped.len(), 1);
                assert_eq!(checkpoints.best().unwrap().unwrap().step, 1);
                assert!(matches!(checkpoints.at(2), Err(StoreError::BadCheckpoint { .. })));
            }
        }
        fs::write(&path, &bytes).unwrap();
        assert_eq!(checkpoints.latest().unwrap().unwrap().step, 2);
        fs::remove_file(&path).unwrap();
        assert_eq!(checkpoints.latest().unwrap().unwrap().step, 1);
        fs::write(&path, &bytes).unwrap();
    }
    fs::write(newest.join("extra"), "x").unwrap();
    let error = checkpoints.at(2).unwrap_err().to_string();
    assert!(error.ends_with("step-000002` is damaged: `extra` is not in its manifest"), "{error}");
}

#[test]
fn when_all_are_damaged_that_is_an_error_not_a_fresh_start() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path(), 3, true);
    assert_eq!(checkpoints.latest().unwrap(), None);
    let path = save(&checkpoints, 1, None).unwrap().path;
    fs::write(path.join("weights.bin"), "short").unwrap();
    let error = checkpoints.latest().unwrap_err().to_string();
    assert!(error.ends_with("step-000001` is damaged: `weights.bin` has 5 bytes, needed 300"), "{error}");
}

#[test]
fn the_newest_and_the_best_stay() {
    let check = |keep: (usize, bool), metrics: &[Option<f64>], want: &[u64]| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = open(folder.path(), keep.0, keep.1);
        for (i, metric) in metrics.iter().enumerate() {
            save(&checkpoints, i as u64 + 1, *metric).unwrap();
        }
        assert_eq!(checkpoints.steps().unwrap(), want, "{keep:?} {metrics:?}");
    };
    check((1, false), &[Some(0.9), Some(0.1), Some(0.2)], &[3]);
    check((1, true), &[Some(0.9), Some(0.1), Some(0.2)], &[1, 3]);
    check((2, true), &[Some(0.1), Some(0.9), Some(0.2), Some(0.3)], &[2, 3, 4]);
    check((1, true), &[None, None], &[2]);
    // A tie keeps the earlier one; a number that is not finite is no metric.
    check((1, true), &[Some(0.5), Some(0.5), Some(0.1)], &[1, 3]);
    check((1, true), &[Some(f64::NAN), Some(0.1), None], &[2, 3]);
}

#[test]
fn a_damaged_checkpoint_never_displaces_a_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path(), 2, true);
    save(&checkpoints, 1, Some(0.3)).unwrap();
    let bad = save(&checkpoints, 2, Some(0.9)).unwrap().path;
    fs::write(bad.join("weights.bin"), "").unwrap();
    save(&checkpoints, 3, Some(0.1)).unwrap();
    assert_eq!(checkpoints.at(1).unwrap().step, 1);
    assert_eq!(checkpoints.best().unwrap().unwrap().step, 1);
}

#[test]
fn keeping_nothing_is_refused() {
    let error = Checkpoints::open(PathBuf::from("/nowhere"), id(), Keep { last: 0, best: true }).unwrap_err();
    assert_eq!(error.to_string(), "`keep` is 0, needed at least 1 checkpoint");
}

#[test]
fn a_step_without_checkpoint_names_those_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path(), 3, true);
    save(&checkpoints, 9, None).unwrap();
    save(&checkpoints, 10, None).unwrap();
    let error = checkpoints.at(4).unwrap_err().to_string();
    assert!(error.starts_with("no checkpoint of step 4 in `") && error.ends_with("`, got 9, 10"), "{error}");
}

/// CASES I18.
#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(&open(folder.path(), 1, true), 1, None).unwrap();
    let other = Checkpoints::at_folder(folder.path().to_path_buf(), RunId::new("run-2").unwrap());
    for error in [other.latest().unwrap_err(), other.at(1).unwrap_err()] {
        assert!(error.to_string().ends_with("belongs to run `run-1`, needed run `run-2`"), "{error}");
    }
}

#[test]
fn what_the_caller_could_not_write_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path(), 1, true);
    save(&checkpoints, 1, None).unwrap();
    let error = checkpoints.save(2, None, &0, |_| Err("tensor `w` is not finite")).unwrap_err().to_string();
    assert!(error.starts_with("cannot save checkpoint `") && error.ends_with("step-000002`: tensor `w` is not finite"));
    assert_eq!(disk::names(folder.path()).unwrap(), ["step-000001"]);
}

#[test]
fn a_full_disk_names_the_file_and_keeps_the_old_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(&open(folder.path(), 1, true), 1, None).unwrap();
    let mut full = open(folder.path(), 1, true);
    full.disk = Disk::failing_after(1, 28);
    let error = save(&full, 2, None).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot write `") && error.ends_with("state.json`: No space left on device (os error 28)")
    );
    assert_eq!(open(folder.path(), 1, true).latest().unwrap().unwrap().step, 1);
}

/// The environment variable that makes this test the process to kill.
const VICTIM: &str = "SUREFOOT_TEST_CHECKPOINT_VICTIM";

/// CASES J5, with a real process: kill −9 at many moments, in a loop of savings.
#[test]
fn a_killed_process_leaves_a_whole_checkpoint() {
    if let Some(folder) = std::env::var_os(VICTIM) {
        let checkpoints = open(Path::new(&folder), 1, false);
        let first = checkpoints.latest().unwrap().map_or(1, |c| c.step + 1);
        for step in first.. {
            save(&checkpoints, step, None).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    save(&open(folder.path(), 1, false), 1, None).unwrap();
    let mut newest = 1;
    for round in 0..12u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoint::tests::a_killed_process_leaves_a_whole_checkpoint", "--test-threads=1"])
            .env(VICTIM, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let reader = Checkpoints::at_folder(folder.path().to_path_buf(), id());
        while reader.steps().unwrap().last().is_none_or(|s| *s <= newest) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 1700));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let found = open(folder.path(), 1, false).latest().unwrap().unwrap();
        assert_whole(&found);
        assert!(found.skipped.is_empty());
        assert!(found.step > newest, "nothing was saved in round {round}");
        newest = found.step;
    }
}
