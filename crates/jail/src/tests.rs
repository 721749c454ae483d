//! Real programs (`sh`, `cat`) against every limit.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Exit, Finished, JailError, Session, Spec, run_once};

static GO_ON: AtomicBool = AtomicBool::new(false);

fn sh(script: &str) -> Spec {
    Spec::new("sh").args(["-c", script])
}

fn run(spec: &Spec, input: &[u8]) -> Result<Finished, JailError> {
    run_once(spec, input, &GO_ON)
}

fn check(script: &str, input: &str, want_exit: Exit, want_stdout: &str) {
    let got = run(&sh(script), input.as_bytes()).unwrap();
    assert_eq!((got.exit, String::from_utf8(got.stdout).unwrap().as_str()), (want_exit, want_stdout), "{script}");
}

/// Whether a process is there and not a zombie.
fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// The pids a script wrote to a file, once there are `n`.
fn pids(file: &Path, n: usize) -> Vec<String> {
    let started = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let pids: Vec<String> = text.lines().map(str::to_owned).collect();
        if pids.len() >= n {
            return pids;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "the script wrote {text:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A killed process may need a moment until the kernel has taken it down.
fn assert_all_dead(pids: &[String]) {
    let started = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| is_alive(pid)) {
        assert!(started.elapsed() < Duration::from_secs(5), "process {pid} outlived its group");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A script that leaves three processes behind and tells their pids.
fn family(file: &Path, then: &str) -> String {
    let file = file.display();
    format!("echo $$ >> {file}; (sleep 300 & echo $! >> {file}; wait) & sleep 300 & echo $! >> {file}; {then}")
}

#[test]
fn input_arrives_and_the_answer_comes_back() {
    check("cat", "hello", Exit::Code(0), "hello");
    check("read a; read b; echo $b-$a", "1\n2\n", Exit::Code(0), "2-1\n");
    check("exit 0", "never read", Exit::Code(0), "");
}

#[test]
fn f15_the_exit_status_decides_not_what_was_written() {
    check("echo fine; exit 3", "", Exit::Code(3), "fine\n");
    check("echo Traceback ZeroDivisionError >&2; echo ok", "", Exit::Code(0), "ok\n");
    check("kill -9 $$", "", Exit::Signal(9), "");
    assert!(!run(&sh("echo success; exit 1"), b"").unwrap().exit.success());
}

#[test]
fn f12_a_payload_far_beyond_the_argument_limit_and_every_pipe_does_not_deadlock() {
    let big = vec![b'x'; 3 << 20];
    let mut spec = Spec::new("cat");
    spec.max_stdout_bytes = 4 << 20;
    assert_eq!(run(&spec, &big).unwrap().stdout, big);
    // Answers before reading, in both streams, more than a pipe holds.
    let script = "head -c 500000 /dev/zero; head -c 500000 /dev/zero >&2; cat > /dev/null; echo end";
    assert_eq!(run(&sh(script), &big).unwrap().stdout.len(), 500_004);
}

#[test]
fn f8_no_key_and_no_endpoint_of_the_caller_is_inherited() {
    // Cargo sets these for the test itself, so they stand for anything a caller's environment may hold.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let mut spec = sh("env");
    spec.variables = vec![("GIVEN".into(), "yes".into())];
    let text = String::from_utf8(run(&spec, b"").unwrap().stdout).unwrap();
    assert!(text.contains("GIVEN=yes") && text.contains("PATH="), "{text}");
    let allowed =
        ["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "GIVEN", "PWD", "OLDPWD", "SHLVL", "_"];
    for line in text.lines() {
        let name = line.split('=').next().unwrap();
        assert!(allowed.contains(&name), "`{name}` reached the child");
    }
}

#[test]
fn f11_a_deadline_kills_the_whole_family() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let spec = sh(&family(&file, "echo last words >&2; wait")).deadline(Duration::from_millis(400));
    let started = Instant::now();
    let error = run(&spec, b"").unwrap_err();
    assert!(matches!(error, JailError::Deadline { .. }), "{error}");
    assert_eq!(error.to_string(), "`sh` gave no answer within 0.4 s and was killed");
    assert_eq!(error.stderr(), "last words\n");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_all_dead(&pids(&file, 3));
}

#[test]
fn f11_children_left_behind_by_a_program_that_ends_are_killed_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let started = Instant::now();
    // They hold standard output open, which must not keep the caller waiting.
    let script =
        family(&file, &format!("while [ $(wc -l < {}) -lt 3 ]; do sleep 0.01; done; echo done", file.display()));
    let got = run(&sh(&script), b"").unwrap();
    assert_eq!(got.stdout, b"done\n");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_all_dead(&pids(&file, 3));
}

#[test]
fn a_cancelled_program_is_killed_at_once_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let cancel = AtomicBool::new(false);
    let spec = sh(&family(&file, "wait")).deadline(Duration::from_secs(300));
    let family = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run_once(&spec, b"", &cancel));
        let family = pids(&file, 3);
        cancel.store(true, Ordering::Relaxed);
        assert!(matches!(waiting.join().unwrap(), Err(JailError::Cancelled)));
        family
    });
    assert_all_dead(&family);
}

#[test]
fn no_zombie_is_left_however_a_run_ends() {
    let is_gone = |pid: &str| !Path::new(&format!("/proc/{}", pid.trim())).exists();
    let got = run(&sh("sleep 300 & echo $$"), b"").unwrap();
    assert!(is_gone(&String::from_utf8(got.stdout).unwrap()));
    let late = run(&sh("echo $$ >&2; exec sleep 300").deadline(Duration::from_millis(300)), b"").unwrap_err();
    assert!(is_gone(late.stderr()), "{late}");
    let mut session = Session::start(&sh("read x; echo $$; exec sleep 300")).unwrap();
    let pid = session.ask("x", &GO_ON).unwrap();
    drop(session);
    assert!(is_gone(&pid));
}

#[test]
fn output_is_bounded_and_standard_error_keeps_its_end() {
    let mut spec = sh("cat /dev/zero");
    spec.max_stdout_bytes = 1000;
    assert_eq!(
        run(&spec, b"").unwrap_err().to_string(),
        "`sh` wrote more than 1000 bytes to standard output and was killed"
    );
    let mut spec = sh("head -c 300000 /dev/zero >&2; echo the end >&2");
    spec.max_stderr_bytes = 8;
    assert_eq!(run(&spec, b"").unwrap().stderr, b"the end\n");
}

#[test]
fn a_missing_program_is_named() {
    let error = run(&Spec::new("no-such-program-here"), b"").unwrap_err().to_string();
    assert!(error.starts_with("cannot start `no-such-program-here`: "), "{error}");
}

#[test]
fn a_name_is_looked_up_in_the_path_that_the_program_gets_past_what_cannot_run() {
    let folder = tempfile::tempdir().unwrap();
    for (name, mode) in [("1", "644"), ("3", "755")] {
        // Written by another process: one of this process's other tests could start a program while the file is open for
        // writing, and what is open for writing cannot run.
        let script = r#"mkdir "$0" && printf '#!/bin/sh\necho $0 $1' > "$0/own" && chmod "$1" "$0/own""#;
        let written =
            std::process::Command::new("sh").args(["-c", script]).arg(folder.path().join(name)).arg(mode).status();
        assert!(written.unwrap().success());
    }
    std::fs::create_dir_all(folder.path().join("2/own")).unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut spec = Spec::new("own").args(["x"]);
    spec.variables = vec![("PATH".into(), [at("0"), at("1"), at("2"), at("3"), "/bin".into()].join(":").into())];
    assert_eq!(run(&spec, b"").unwrap().stdout, format!("{} x\n", at("3/own")).as_bytes());
    spec.variables = vec![("PATH".into(), at("0").into())];
    assert!(matches!(run(&spec, b""), Err(JailError::Spawn { .. })));
}

#[test]
fn a_session_answers_line_by_line() {
    let mut session = Session::start(&sh("n=0; while read x; do n=$((n+1)); echo $n:$x; done")).unwrap();
    assert_eq!(session.ask("a", &GO_ON).unwrap(), "1:a");
    assert_eq!(session.ask("b", &GO_ON).unwrap(), "2:b");
    assert!(matches!(session.ask("two\nlines", &GO_ON), Err(JailError::Line { what: "the question", .. })));
}

#[test]
fn a_session_that_ends_or_hangs_or_chatters_is_an_error() {
    let ask = |script: &str, times: usize| {
        let mut spec = sh(script).deadline(Duration::from_millis(500));
        spec.max_stdout_bytes = 1000;
        let mut session = Session::start(&spec).unwrap();
        for _ in 1..times {
            session.ask("x", &GO_ON).unwrap();
        }
        session.ask("x", &GO_ON).unwrap_err()
    };
    let ended = ask("read x; echo why >&2; exit 4", 1);
    assert_eq!(ended.to_string(), "`sh` ended (exit status 4) instead of answering");
    assert_eq!(ended.stderr(), "why\n");
    assert!(matches!(ask("sleep 300", 1), JailError::Deadline { .. }));
    assert!(matches!(ask("read x; printf half; sleep 300", 1), JailError::Deadline { .. }));
    assert!(matches!(ask("read x; printf 'one\\ntwo\\n'; sleep 300", 1), JailError::Chatter { extra: 4, .. }));
    assert!(matches!(ask("read x; cat /dev/zero", 1), JailError::Output { limit: 1000, .. }));
    assert!(matches!(ask("read x; printf '\\377\\n'; sleep 300", 1), JailError::Line { what: "the answer", .. }));
}

#[test]
fn a_line_nobody_asked_for_is_not_taken_for_the_next_answer() {
    let spec = sh("read x; echo one; sleep 0.2; echo unasked; read x; echo two; sleep 300");
    let mut session = Session::start(&spec).unwrap();
    assert_eq!(session.ask("x", &GO_ON).unwrap(), "one");
    std::thread::sleep(Duration::from_millis(600));
    assert!(matches!(session.ask("x", &GO_ON), Err(JailError::Chatter { .. })));
}

#[test]
fn f11_dropping_a_session_kills_its_family() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let mut session = Session::start(&sh(&family(&file, "read x; echo $x; wait"))).unwrap();
    assert_eq!(session.ask("hello", &GO_ON).unwrap(), "hello");
    let family = pids(&file, 3);
    assert!(family.iter().all(|pid| is_alive(pid)));
    drop(session);
    assert_all_dead(&family);
}
