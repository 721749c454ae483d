//! How much a confined process may use, and what it may not become.

use std::ffi::{c_int, c_ulong};

use super::sys::{Errno, call, check};
use crate::{Layer, Layers, Rules};

/// Resource limits, as numbers ready to be set.
pub(crate) type Limits = Vec<(c_int, u64, u64)>;

/// Pending signals of a user; enough for any program, little for a kernel.
const PENDING_SIGNALS: u64 = 1024;

/// Locked memory of a process, enough for keys in memory.
const LOCKED_BYTES: u64 = 64 << 10;

/// Limits are on each process; the kernel has no others without control groups, which need rights this does not ask for.
pub(crate) fn limits(rules: &Rules, layers: &Layers) -> Limits {
    let mut limits: Limits = vec![
        (libc::RLIMIT_AS as c_int, rules.memory_bytes, rules.memory_bytes),
        // A warning that ends the program by default, a second later what it cannot catch.
        (libc::RLIMIT_CPU as c_int, rules.cpu_s, rules.cpu_s.saturating_add(1)),
        (libc::RLIMIT_FSIZE as c_int, rules.file_bytes, rules.file_bytes),
        (libc::RLIMIT_NOFILE as c_int, rules.open_files.into(), rules.open_files.into()),
        (libc::RLIMIT_CORE as c_int, 0, 0),
        (libc::RLIMIT_MSGQUEUE as c_int, 0, 0),
        (libc::RLIMIT_MEMLOCK as c_int, LOCKED_BYTES, LOCKED_BYTES),
        (libc::RLIMIT_SIGPENDING as c_int, PENDING_SIGNALS, PENDING_SIGNALS),
        (libc::RLIMIT_NICE as c_int, 0, 0),
        (libc::RLIMIT_RTPRIO as c_int, 0, 0),
    ];
    if layers.has(Layer::Namespaces) {
        // The namespace's first process counts too. Without an own user namespace the count would be over all the
        // user's processes, and the limit would stop a program before it begins.
        let processes = u64::from(rules.processes) + 1;
        limits.push((libc::RLIMIT_NPROC as c_int, processes, processes));
    }
    limits
}

/// Sets limits of the calling process. One that is already lower stays so.
pub(crate) fn set(limits: &[(c_int, u64, u64)]) -> Result<(), Errno> {
    for (resource, soft, hard) in limits {
        let mut now = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        call!(libc::SYS_prlimit64, 0, *resource, std::ptr::null::<libc::rlimit64>(), &raw mut now)?;
        let hard = (*hard).min(now.rlim_max);
        let new = libc::rlimit64 { rlim_cur: (*soft).min(hard), rlim_max: hard };
        call!(libc::SYS_prlimit64, 0, *resource, &raw const new, std::ptr::null_mut::<libc::rlimit64>())?;
    }
    Ok(())
}

/// Gives up every capability for good, and the way to get any by running something.
pub(crate) fn drop_privileges() -> Result<(), Errno> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as c_ulong);
    // Numbers beyond the last capability, and a process without the right to drop, are answered with an error: the latter
    // has nothing to drop, since what it may not drop it cannot get under no-new-privileges.
    for capability in 0..64 {
        let _ = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    // The kernel's `struct __user_cap_header_struct`, version 3, and its two halves of three words.
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    call!(libc::SYS_capset, header.as_ptr(), none.as_ptr()).map(drop)
}

/// One of the process's own settings.
fn prctl(option: c_int, value: c_ulong) -> Result<(), Errno> {
    let zero: c_ulong = 0;
    // SAFETY: used with options that take a plain number or, for the filter, a pointer to a live program.
    check(unsafe { libc::prctl(option, value, zero, zero, zero) }).map(drop)
}
