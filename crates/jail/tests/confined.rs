//! What a confined program can do, that its limits are its own, and that nothing of it outlives anything.

#![allow(clippy::unwrap_used, reason = "a test's own steps must not fail")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surefoot_jail::{Exit, Finished, JailError, Layer, Rules, Session, Spec, layers, run_once};

static GO_ON: AtomicBool = AtomicBool::new(false);

/// Whether anything can be confined here; if not, that it is refused has been seen.
fn can_confine() -> bool {
    if layers().missing(&Rules::default()).is_empty() {
        return true;
    }
    let refused = run_once(&sh("true", Rules::default()), b"", &GO_ON).unwrap_err();
    assert!(matches!(refused, JailError::Missing { .. }), "{refused}");
    false
}

fn sh(script: &str, rules: Rules) -> Spec {
    Spec::new("sh").args(["-c", script]).confined(rules)
}

fn run(script: &str, rules: Rules) -> Result<Finished, JailError> {
    run_once(&sh(script, rules), b"", &GO_ON)
}

fn check(script: &str, rules: Rules, want_exit: Exit, want_stdout: &str) {
    if can_confine() {
        let got = run(script, rules).unwrap();
        let said = (got.exit, String::from_utf8_lossy(&got.stdout).into_owned());
        assert_eq!(said, (want_exit, want_stdout.to_owned()), "{script}: {}", String::from_utf8_lossy(&got.stderr));
    }
}

struct Folders {
    folder: tempfile::TempDir,
}

impl Folders {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["in", "out", "out/gold", "hidden"] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("file"), name).unwrap();
        }
        Folders { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn rules(&self) -> Rules {
        Rules { read: vec![self.at("in")], write: vec![self.at("out")], ..Rules::default() }
    }
}

/// Processes with a mark among their arguments.
fn alive(mark: &str) -> usize {
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|p| fs::read(p.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(mark.len()).any(|part| part == mark.as_bytes())).count()
}

fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// A script that leaves processes in other sessions, and one that ignores every signal it may.
fn family(mark: &str, then: &str) -> String {
    let sleeper = format!("sh -c \"trap '' HUP INT TERM; sleep 300; true\" {mark}");
    format!("setsid {sleeper} & (setsid {sleeper} &) & {sleeper} & echo ready; {then}")
}

#[test]
fn ordinary_work_is_possible() {
    let f = Folders::new();
    let (input, output) = (f.at("in/file"), f.at("out/new"));
    let (input, output) = (input.display(), output.display());
    check(&format!("cat {input} && cp {input} {output} && cat {output}"), f.rules(), Exit::Code(0), "inin");
    if can_confine() {
        assert_eq!(fs::read(f.at("out/new")).unwrap(), b"in");
    }
    check(
        "pwd; echo $HOME $TMPDIR; echo x > $TMPDIR/t && cat /tmp/t",
        Rules::default(),
        Exit::Code(0),
        "/tmp\n/tmp /tmp\nx\n",
    );
    check(
        "echo x > /dev/null && head -c 2 /dev/zero | wc -c && ls / | grep usr",
        Rules::default(),
        Exit::Code(0),
        "2\nusr\n",
    );
    check("sleep 0.01 & wait && (exit 4) || echo $?", Rules::default(), Exit::Code(0), "4\n");
}

#[test]
fn an_interpreter_with_its_threads_processes_and_sockets_works() {
    let script = "
import ctypes, hashlib, multiprocessing, socket, subprocess, tempfile, threading
a, b = socket.socketpair()
a.send(b'x'); assert b.recv(1) == b'x'
t = threading.Thread(target=lambda: None); t.start(); t.join()
assert subprocess.run(['echo', 'hi'], capture_output=True).stdout == b'hi\\n'
with tempfile.NamedTemporaryFile() as f: f.write(b'x')
lock = multiprocessing.Lock()
p = multiprocessing.Process(target=lock.acquire); p.start(); p.join()
assert p.exitcode == 0 and not lock.acquire(timeout=0.01)
print(hashlib.sha256(b'').hexdigest()[:4])
";
    if can_confine() {
        let mut spec = Spec::new("python3").args(["-c", script]).confined(Rules::default());
        spec.variables = vec![("PATH".into(), "/usr/bin:/usr/local/bin:/bin".into())];
        let got = run_once(&spec, b"", &GO_ON).unwrap();
        assert_eq!(got.stdout, b"e3b0\n", "{}", String::from_utf8_lossy(&got.stderr));
    }
}

#[test]
fn its_end_is_told_as_it_was() {
    check("exit 3", Rules::default(), Exit::Code(3), "");
    check("kill -9 $$", Rules::default(), Exit::Signal(9), "");
    check("kill -6 $$", Rules::default(), Exit::Signal(6), "");
    if can_confine() {
        let missing = run_once(&Spec::new("no-such-program-here").confined(Rules::default()), b"", &GO_ON).unwrap_err();
        assert!(missing.to_string().starts_with("cannot start `no-such-program-here`: No such file"), "{missing}");
        let mut nowhere = sh("true", Rules::default());
        nowhere.folder = Some("/no/such/folder".into());
        let nowhere = run_once(&nowhere, b"", &GO_ON).unwrap_err().to_string();
        assert!(nowhere.starts_with("cannot confine `sh`: stepping into its folder: No such file"), "{nowhere}");
    }
}

#[test]
fn f6_a_verifier_and_a_stale_reward_that_were_not_given_are_not_there() {
    let f = Folders::new();
    let hidden = f.at("hidden");
    let script =
        format!("ls {0}; cat {0}/file; cd {1}/../hidden || echo shut", hidden.display(), f.at("out").display());
    check(&script, f.rules(), Exit::Code(0), "shut\n");
    // What one run left in its private folders is not there for the next.
    check("echo 1 > /tmp/reward; echo 1 > /dev/shm/reward", Rules::default(), Exit::Code(0), "");
    check(
        "cat /tmp/reward /dev/shm/reward; ls -A /tmp /dev/shm",
        Rules::default(),
        Exit::Code(0),
        "/dev/shm:\n\n/tmp:\n",
    );
}

#[test]
fn f8_no_endpoint_and_no_key_of_the_caller_is_inherited() {
    if !can_confine() {
        return;
    }
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let mut spec = sh("env; cat /proc/*/environ", Rules::default());
    spec.variables = vec![("GIVEN".into(), "yes".into())];
    let got = String::from_utf8(run_once(&spec, b"", &GO_ON).unwrap().stdout).unwrap();
    assert!(got.contains("GIVEN=yes") && !got.contains("CARGO"), "{got}");
}

#[test]
fn f12_a_payload_far_beyond_the_argument_limit_goes_through_standard_input() {
    if can_confine() {
        let big = vec![b'x'; 3 << 20];
        let mut spec = sh("cat", Rules::default());
        spec.max_stdout_bytes = 4 << 20;
        assert_eq!(run_once(&spec, &big, &GO_ON).unwrap().stdout, big);
    }
}

#[test]
fn f11_nothing_is_left_after_an_end_a_deadline_a_cancellation_or_a_drop() {
    if !can_confine() {
        return;
    }
    let mark = mark("family");
    let wait_for_all = "while [ $(cat /proc/*/cmdline | tr '\\0' '\\n' | grep -c ^family) -lt 3 ]; do sleep 0.01; done";
    // Its own end.
    let got = run(&family(&mark, wait_for_all), Rules::default()).unwrap();
    assert_eq!((got.exit, got.stdout.as_slice(), alive(&mark)), (Exit::Code(0), &b"ready\n"[..], 0));
    // A deadline.
    let late = sh(&family(&mark, "wait"), Rules::default()).deadline(Duration::from_millis(500));
    assert!(matches!(run_once(&late, b"", &GO_ON), Err(JailError::Deadline { .. })));
    assert_eq!(alive(&mark), 0);
    // A cancellation, once they are all there.
    let cancel = AtomicBool::new(false);
    let long = sh(&family(&mark, "wait"), Rules::default()).deadline(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run_once(&long, b"", &cancel));
        let started = Instant::now();
        // A fork that has not yet become its own program counts as what it came from, so this may be met early.
        while alive(&mark) < 4 && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        cancel.store(true, Ordering::Relaxed);
        assert!(matches!(waiting.join().unwrap(), Err(JailError::Cancelled)));
    });
    assert_eq!(alive(&mark), 0);
    // A drop.
    for _ in 0..30 {
        let mut session =
            Session::start(&sh(&family(&mark, "read x; echo $x; wait").replace("echo ready; ", ""), Rules::default()))
                .unwrap();
        assert_eq!(session.ask("hello", &GO_ON).unwrap(), "hello");
        drop(session);
        assert_eq!(alive(&mark), 0);
    }
}

/// Started again by the test below; a caller that is killed while its program runs.
#[test]
fn helper_that_holds_a_family() {
    let Ok(mark) = std::env::var("HOLD_FAMILY") else { return };
    let mut session =
        Session::start(&sh(&family(&mark, "read x; echo $x; wait").replace("echo ready; ", ""), Rules::default()))
            .unwrap();
    session.ask("hello", &GO_ON).unwrap();
    // Heard by the test.
    writeln!(std::io::stderr(), "holding").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn f11_nothing_is_left_of_a_caller_that_was_killed_without_a_word() {
    if !can_confine() {
        return;
    }
    let mark = mark("killed");
    let mut caller = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_holds_a_family", "--nocapture"])
        .env("HOLD_FAMILY", &mark)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(caller.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")));
    assert!(alive(&mark) > 0);
    caller.kill().unwrap();
    caller.wait().unwrap();
    let started = Instant::now();
    while alive(&mark) > 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "{} left", alive(&mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn many_at_once_do_not_mix_and_leave_no_descriptor() {
    if !can_confine() {
        return;
    }
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let one = |n: usize| {
        let text = format!("{n}\n");
        let got = run_once(&sh("cat; ls /proc/self/fd | wc -l", Rules::default()), text.as_bytes(), &GO_ON).unwrap();
        // Its three and the one that lists them.
        assert_eq!(String::from_utf8(got.stdout).unwrap(), format!("{n}\n4\n"));
    };
    one(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || (0..10).for_each(|n| one(thread * 100 + n)));
        }
    });
    // Other tests of this program hold some meanwhile; a leak of one a start would be forty.
    assert!(open() < 100, "{} descriptors open", open());
}

#[test]
fn what_is_given_can_be_a_file_a_link_or_nested() {
    let f = Folders::new();
    symlink(f.at("in"), f.at("by-another-name")).unwrap();
    let rules = |read: &[&str], write: &[&str]| {
        let all = |names: &[&str]| names.iter().map(|n| f.at(n)).collect();
        Rules { read: all(read), write: all(write), ..Rules::default() }
    };
    let at = |name: &str| f.at(name).display().to_string();
    check(&format!("cat {}; ls {}", at("in/file"), at("in")), rules(&["in/file"], &[]), Exit::Code(0), "infile\n");
    check(&format!("cat {}/file", at("by-another-name")), rules(&["by-another-name"], &[]), Exit::Code(0), "in");
    let script = format!("echo x > {}; echo x > {} || cat {1}", at("out/file"), at("out/gold/file"));
    check(&script, rules(&["out/gold"], &["out"]), Exit::Code(0), "out/gold");
    let script = format!("echo x > {}; echo x > {} || echo shut", at("out/gold/file"), at("out/file"));
    check(&script, rules(&["out"], &["out/gold"]), Exit::Code(0), "shut\n");
    check(&format!("echo y >> {}", at("in/file")), rules(&["in"], &["in"]), Exit::Code(0), "");
    let mut inside = sh("pwd", rules(&["in"], &[]));
    inside.folder = Some(f.at("in"));
    if can_confine() {
        assert_eq!(run_once(&inside, b"", &GO_ON).unwrap().stdout, format!("{}\n", at("in")).as_bytes());
    }
}

#[test]
fn what_cannot_be_given_is_refused_by_name() {
    if !can_confine() {
        return;
    }
    let refused = |path: &str| {
        let rules = Rules { read: vec![path.into()], ..Rules::default() };
        run("true", rules).unwrap_err().to_string()
    };
    let own = "the root and the kernel's own folders cannot be given";
    for path in ["/", "/proc", "/proc/self", "/sys", "/dev/null", "/usr/.."] {
        assert_eq!(refused(path), format!("cannot give `{path}` to a confined program: {own}"));
    }
    assert!(refused("/no/such/thing").starts_with("cannot give `/no/such/thing` to a confined program: No such file"));
}

#[test]
fn a_program_in_a_given_folder_runs_and_a_fallback_is_looked_for_in_path() {
    let f = Folders::new();
    let own = f.at("in/own");
    // By another process: what a program started meanwhile by another test holds open for writing cannot run.
    let script = r#"printf '#!/bin/sh\necho own\n' > "$0" && chmod 755 "$0""#;
    assert!(Command::new("sh").args(["-c", script]).arg(&own).status().unwrap().success());
    if can_confine() {
        let mut spec = Spec::new("own").confined(f.rules());
        spec.variables =
            vec![("PATH".into(), format!("/no/such/folder:{}:/usr/bin:/bin", f.at("in").display()).into())];
        assert_eq!(run_once(&spec, b"", &GO_ON).unwrap().stdout, b"own\n");
        assert_eq!(run_once(&Spec::new(&own).confined(f.rules()), b"", &GO_ON).unwrap().stdout, b"own\n");
        assert!(run_once(&Spec::new(&own).confined(Rules::default()), b"", &GO_ON).is_err());
    }
}

#[test]
fn a_program_with_the_network_reaches_it_and_nothing_else_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "
import socket
socket.create_connection(('127.0.0.1', {port}), 5); print('tcp')
for family in (socket.AF_PACKET, 40, 38):
    try: socket.socket(family, socket.SOCK_RAW); print(family)
    except PermissionError: pass
try: open('{}'); print('hidden')
except FileNotFoundError: pass
",
        Folders::new().at("hidden/file").display()
    );
    let rules = Rules { network: true, ..Rules::default() };
    if layers().missing(&rules).is_empty() {
        let mut spec = Spec::new("python3").args(["-c", &script]).confined(rules);
        spec.variables = vec![("PATH".into(), "/usr/bin:/usr/local/bin:/bin".into())];
        let got = run_once(&spec, b"", &GO_ON).unwrap();
        assert_eq!(got.stdout, b"tcp\n", "{}", String::from_utf8_lossy(&got.stderr));
    }
}

#[test]
fn the_layers_of_this_system_are_named_with_a_reason_for_each_that_is_missing() {
    let text = layers().to_string();
    for layer in Layer::ALL {
        let line = text.lines().find(|line| line.starts_with(&format!("{layer}: "))).unwrap();
        assert_eq!(layers().has(layer), line.ends_with(": there"), "{line}");
        let why = layers().absent().find(|(l, _)| *l == layer).map(|(_, why)| why);
        assert!(why.is_none_or(|why| !why.is_empty() && line.ends_with(why)), "{line}");
    }
    assert!(Path::new("/proc").exists());
}
