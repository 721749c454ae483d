//! Ways out of a jail and ways to exhaust it, each shown to work on this machine without walls and to be stopped behind
//! them, as root (where these tests run as root) and as an ordinary user.
//!
//! A probe prints `OPEN` if it got through and `SHUT` with a reason if not; exhaustion is tried in amounts that harm
//! nobody. One that only root could succeed at is shown open as root and stopped for both.

#![allow(clippy::unwrap_used, reason = "a test's own steps must not fail")]

mod probes {
    pub(crate) mod exhaustion;
    pub(crate) mod files;
    pub(crate) mod kernel;
    pub(crate) mod network;
    pub(crate) mod processes;
    pub(crate) mod world;
}

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use probes::world::World;
use surefoot_jail::{Finished, JailError, Spec, layers, run_once};

/// Whom a probe works for without walls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    ForAll,
    ForRoot,
}

/// One attempt: a name, whom it works for, and Python that calls `verdict(got_through)`.
pub(crate) type Probe = (&'static str, Open, &'static str);

fn table() -> Vec<Probe> {
    use probes::{exhaustion, files, kernel, network, processes};
    [files::PROBES, processes::PROBES, network::PROBES, kernel::PROBES, exhaustion::PROBES].concat()
}

/// Python before every probe. Numbers from 424 on are every architecture's; the others are asked of the C library's calls.
const BEFORE: &str = r#"
import ctypes, errno, mmap, os, resource, signal, socket, struct, subprocess, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
ARM = os.uname().machine == "aarch64"
def call(number, *arguments):
    if isinstance(number, tuple): number = number[1 if ARM else 0]
    ctypes.set_errno(0)
    wrap = lambda a: ctypes.c_long(a) if isinstance(a, int) else a
    return libc.syscall(ctypes.c_long(number), *map(wrap, arguments)), ctypes.get_errno()
def reaches(number, *arguments):
    "Whether the kernel looked at the arguments at all."
    result, error = call(number, *arguments)
    return result >= 0 or error not in (errno.ENOSYS, errno.EPERM, errno.EACCES)
def verdict(got_through, why=""):
    print("OPEN" if got_through else "SHUT", why, flush=True)
"#;

fn script(probe: &str, world: &World, victim: u32) -> String {
    let body: String = probe.trim().lines().map(|line| format!("    {line}\n")).collect();
    let facts = world.facts(victim);
    format!(
        "{BEFORE}\n{facts}\ntry:\n{body}except (OSError, MemoryError, RuntimeError, ValueError) as e:\n    verdict(False, repr(e))\n"
    )
}

fn run(spec: &Spec) -> Result<Finished, JailError> {
    run_once(spec, b"", &AtomicBool::new(false))
}

fn python(script: String) -> Spec {
    let mut spec = Spec::new("python3").args(["-c".to_owned(), script]).deadline(Duration::from_secs(60));
    spec.variables = vec![("PATH".into(), "/usr/bin:/usr/local/bin:/bin".into())];
    spec
}

/// What one probe came to, with and without walls, where that is not what it must come to.
fn check(world: &World, (name, open, probe): &Probe) -> Vec<String> {
    let mut faults = Vec::new();
    // What only root could do needs no showing that others cannot.
    let without = *open == Open::ForAll || world.is_root;
    for walled in [false, true].into_iter().filter(|walled| *walled || without) {
        let mut victim = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let mut spec = python(script(probe, world, victim.id()));
        if walled {
            spec = spec.confined(world.rules(name));
        }
        let got = run(&spec);
        let _ = victim.kill();
        let _ = victim.wait();
        let said = match &got {
            Ok(got) => {
                format!("{} {}{}", got.exit, String::from_utf8_lossy(&got.stdout), String::from_utf8_lossy(&got.stderr))
            }
            Err(error) => format!("{error}\n{}", error.stderr()),
        };
        let stdout = got.as_ref().map_or(&b""[..], |got| &got.stdout);
        // A limit may end it by a signal instead of an answer.
        let killed = got.as_ref().is_ok_and(|got| matches!(got.exit, surefoot_jail::Exit::Signal(9 | 24 | 25)));
        let left = world.left_behind(name);
        let is_open = stdout.starts_with(b"OPEN") && left != Some(false) || left == Some(true);
        let is_shut = !is_open && (stdout.starts_with(b"SHUT") || killed || left == Some(false));
        if !(if walled { is_shut } else { is_open }) {
            let side = if walled { "behind walls it must be shut" } else { "without walls it must be open" };
            faults.push(format!("{name}: {side}, got: {said}"));
        }
    }
    faults
}

fn check_all() {
    let missing = layers().missing(&surefoot_jail::Rules::default());
    if !missing.is_empty() {
        // Nothing can be shown to hold here but that nothing runs.
        let refused = run(&Spec::new("true").confined(surefoot_jail::Rules::default()));
        assert!(matches!(refused, Err(JailError::Missing { .. })), "{}", layers());
        return;
    }
    let (world, table) = (World::new(), table());
    let names: BTreeSet<_> = table.iter().map(|(name, ..)| name).collect();
    assert!(names.len() == table.len() && table.len() >= 40, "{} probes", table.len());
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(probe) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
                    faults.lock().unwrap().extend(check(&world, probe));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} of {} probes:\n{}", faults.len(), table.len(), faults.join("\n"));
}

#[test]
fn every_probe_gets_through_without_walls_and_not_behind_them() {
    check_all();
}

/// Where the tests run as root: the same by a process of a user without any right.
#[test]
fn every_probe_is_stopped_for_an_ordinary_user_too() {
    if !world_is_roots() {
        // The other test is this one.
        return;
    }
    // The test's own program, where that user can reach it.
    let folder = probes::world::folder_for_all();
    let copy = folder.path().join("probes");
    // By another process, so that no program started meanwhile holds it open for writing.
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap().success());
    let mut again = Command::new(&copy);
    again.args(["--exact", "every_probe_gets_through_without_walls_and_not_behind_them"]).current_dir("/");
    let output = again.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

const NOBODY: u32 = 65534;

fn world_is_roots() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}
