//! Reaching for processes outside, for more rights, and for a life after the end.

use crate::Open::{ForAll, ForRoot};
use crate::Probe;

/// Those that leave a process behind, named after them, rather than say how it went.
pub(crate) const LEAVE: &[&str] = &["daemon", "daemon_that_ignores_signals", "orphan_of_an_orphan"];

pub(crate) const PROBES: &[Probe] = &[
    ("see_the_parent", ForAll, "verdict(b'probes' in open(f'/proc/{PARENT}/cmdline', 'rb').read())"),
    (
        "environment_of_others",
        ForAll,
        "
def reads(pid):
    try: return b'CARGO_PKG_NAME=surefoot-jail' in open(f'/proc/{pid}/environ', 'rb').read()
    except OSError: return False
verdict(any(reads(pid) for pid in os.listdir('/proc') if pid.isdigit()))",
    ),
    (
        "files_through_a_process",
        ForAll,
        "verdict(open(f'/proc/{PARENT}/root{WORLD}/home/.ssh/key').read() == 'secret')",
    ),
    ("memory_of_another", ForRoot, "open(f'/proc/{VICTIM}/mem', 'r+b'); verdict(True)"),
    ("signal_the_parent", ForAll, "os.kill(PARENT, 0); verdict(True)"),
    ("kill_another", ForAll, "os.kill(VICTIM, 9); verdict(True)"),
    ("kill_another_group", ForAll, "os.killpg(VICTIM, 9); verdict(True)"),
    ("slow_another", ForAll, "os.setpriority(os.PRIO_PROCESS, VICTIM, 19); verdict(True)"),
    ("limit_another", ForAll, "resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0)); verdict(True)"),
    ("hold_another", ForAll, "os.pidfd_open(PARENT); verdict(True)"),
    (
        "trace_a_process",
        ForAll,
        "
child = os.fork()
if child == 0: time.sleep(20); os._exit(0)
result, error = call((101, 117), 16, child, 0, 0)
os.kill(child, 9)
verdict(result == 0, errno.errorcode.get(error))",
    ),
    (
        "read_memory_of_a_process",
        ForAll,
        "
here = ctypes.create_string_buffer(b'memory')
child = os.fork()
if child == 0: time.sleep(20); os._exit(0)
there = ctypes.create_string_buffer(6)
to = (ctypes.c_size_t * 2)(ctypes.addressof(there), 6)
at = (ctypes.c_size_t * 2)(ctypes.addressof(here), 6)
result, error = call((310, 270), child, to, 1, at, 1, 0)
os.kill(child, 9)
verdict(there.raw == b'memory', errno.errorcode.get(error))",
    ),
    ("gain_rights_by_running", ForAll, "verdict('NoNewPrivs:\\t0' in open('/proc/self/status').read())"),
    ("capabilities_to_gain", ForAll, "verdict('CapBnd:\\t0000000000000000' not in open('/proc/self/status').read())"),
    ("become_another_user", ForRoot, "os.setuid(12345); verdict(True)"),
    ("better_priority", ForRoot, "os.setpriority(os.PRIO_PROCESS, 0, -5); verdict(True)"),
    (
        "daemon",
        ForAll,
        "
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execlp('sleep', MARK + '.daemon', '60')
    os._exit(0)
time.sleep(0.3)",
    ),
    (
        "daemon_that_ignores_signals",
        ForAll,
        "
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.execlp('sleep', MARK + '.daemon_that_ignores_signals', '60')
time.sleep(0.3)",
    ),
    (
        "orphan_of_an_orphan",
        ForAll,
        "
script = '(setsid sh -c \"sleep 60; true\" \"$0\" &) & exit'
subprocess.Popen(['setsid', 'sh', '-c', script, MARK + '.orphan_of_an_orphan'],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep(0.3)",
    ),
];
