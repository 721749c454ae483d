//! The system calls a confined program has.
//!
//! Neither a list of what is allowed (it would follow every C library, interpreter and driver) nor one of what is denied
//! (the next kernel's calls would be open) but both: *exist* holds every number this was written for, less those no tool
//! needs; any other number, later kernels' included, answers `ENOSYS`, on which libraries fall back to an older way.
//! *Forbidden* then judges by arguments among those that exist, and answers `EPERM`.
//!
//! A call through another architecture's table (32-bit, x32) kills the process or does not exist.

use std::collections::BTreeMap;
use std::ffi::c_long;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The last number of the kernel this was written for (6.18), the same on every architecture.
const LAST: c_long = 468;

/// Where each architecture's own table ends; between it and 424, where the common numbers begin, there are none.
const LAST_OWN: c_long = if cfg!(target_arch = "x86_64") { 334 } else { 294 };

/// What does not exist, by the reason.
const ABSENT: &[(&str, &[c_long])] = &[
    // A ring's operations pass by every filter.
    ("io_uring", &[425, 426, 427]),
    (
        "other processes' memory, files and identity",
        &[
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kcmp,
            libc::SYS_migrate_pages,
            libc::SYS_move_pages,
            438, // pidfd_getfd
            440, // process_madvise
            448, // process_mrelease
        ],
    ),
    // clone3 hides its flags behind a pointer; C libraries fall back to clone, whose flags `forbidden` sees.
    ("new namespaces", &[libc::SYS_unshare, libc::SYS_setns, 435]),
    (
        "mounts",
        &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            428, // open_tree
            429, // move_mount
            430, // fsopen
            431, // fsconfig
            432, // fsmount
            433, // fspick
            442, // mount_setattr
            457, // statmount
            458, // listmount
            467, // open_tree_attr
        ],
    ),
    ("the kernel's keys, which are no namespace's", &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl]),
    (
        "the kernel's programs, probes and traps",
        &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_syslog, libc::SYS_fanotify_init],
    ),
    (
        "modules and other kernels",
        &[
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_kexec_load,
            libc::SYS_kexec_file_load,
        ],
    ),
    (
        "the machine's settings",
        &[
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_acct,
            libc::SYS_quotactl,
            443, // quotactl_fd
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_adjtimex,
            libc::SYS_clock_adjtime,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_vhangup,
        ],
    ),
    ("files by a number instead of a path", &[libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at]),
    // Their memory is in no process's address space once it is let go, so no limit would count it.
    (
        "memory that no limit counts",
        &[
            libc::SYS_memfd_create,
            447, // memfd_secret
            libc::SYS_shmget,
            libc::SYS_shmat,
            libc::SYS_msgget,
            libc::SYS_semget,
            libc::SYS_mq_open,
        ],
    ),
    #[cfg(target_arch = "x86_64")]
    (
        "relics",
        &[
            libc::SYS_ioperm,
            libc::SYS_iopl,
            libc::SYS_modify_ldt,
            libc::SYS_uselib,
            libc::SYS_ustat,
            libc::SYS_sysfs,
            libc::SYS__sysctl,
            libc::SYS_nfsservctl,
            libc::SYS_lookup_dcookie,
        ],
    ),
];

/// `TIOCSTI` and `TIOCLINUX`, whose type differs between C libraries.
const TYPING: [u64; 2] = [0x5412, 0x541c];

/// What a socket may be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Pairs only: where paths of unix sockets cannot be fenced in.
    Pairs,
    /// Unix sockets.
    Unix,
    /// Unix sockets, internet sockets and the kernel's table of addresses.
    Internet,
}

/// Both filters, in the order in which they are applied.
pub(crate) fn filters(sockets: Sockets) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let build = |rules: BTreeMap<i64, Vec<SeccompRule>>, others, these| -> Result<BpfProgram, _> {
        SeccompFilter::new(rules, others, these, arch)?.try_into()
    };
    let exist = exist().map(|number| (number, Vec::new())).collect();
    Ok([
        build(exist, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)?,
        build(forbidden(sockets)?, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?,
    ])
}

fn exist() -> impl Iterator<Item = c_long> {
    (0..=LAST_OWN).chain(424..=LAST).filter(|number| !ABSENT.iter().any(|(_, absent)| absent.contains(number)))
}

fn forbidden(sockets: Sockets) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let when = |argument, op, value: u64| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let not_one_of = |argument, values: &[libc::c_int]| -> Result<SeccompRule, _> {
        SeccompRule::new(values.iter().map(|v| when(argument, Ne, *v as u32 as u64)).collect::<Result<_, _>>()?)
    };
    let namespaces = [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ];
    let mut rules = BTreeMap::new();
    let flag = |flag: libc::c_int| SeccompRule::new(vec![when(0, MaskedEq(flag as u64), flag as u64)?]);
    rules.insert(libc::SYS_clone, namespaces.into_iter().map(flag).collect::<Result<_, _>>()?);
    let families: &[libc::c_int] = match sockets {
        Sockets::Pairs => &[],
        Sockets::Unix => &[libc::AF_UNIX],
        Sockets::Internet => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
    };
    // A rule without conditions is no rule to the library: none at all for the call means always.
    let sockets = if families.is_empty() { Vec::new() } else { vec![not_one_of(0, families)?] };
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_socketpair, vec![not_one_of(0, &[libc::AF_UNIX])?]);
    // Typing into a terminal in somebody's name.
    let typing = TYPING.map(|request| SeccompRule::new(vec![when(1, Eq, request)?]));
    rules.insert(libc::SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
    // Asking, and the ordinary way; others turn off what protects memory.
    rules.insert(libc::SYS_personality, vec![not_one_of(0, &[0, -1])?]);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_every_program_needs_exist_and_unknown_ones_do_not() {
        let exist: Vec<c_long> = exist().collect();
        for number in [libc::SYS_read, libc::SYS_execve, libc::SYS_clone, libc::SYS_futex, libc::SYS_openat, 439, 452] {
            assert!(exist.contains(&number), "{number}");
        }
        let absent =
            [libc::SYS_ptrace, libc::SYS_finit_module, libc::SYS_kexec_load, libc::SYS_kexec_file_load, 425, 435];
        for number in absent.into_iter().chain([400, 423, LAST + 1, 1000]) {
            assert!(!exist.contains(&number), "{number}");
        }
    }

    #[test]
    fn every_absent_call_is_within_the_tables_so_the_list_does_something() {
        for (reason, numbers) in ABSENT {
            for number in *numbers {
                assert!((0..=LAST_OWN).contains(number) || (424..=LAST).contains(number), "{reason}: {number}");
            }
        }
    }

    #[test]
    fn filters_are_within_the_kernels_length() {
        for sockets in [Sockets::Pairs, Sockets::Unix, Sockets::Internet] {
            for filter in filters(sockets).unwrap() {
                assert!((1..=4096).contains(&filter.len()), "{}", filter.len());
            }
        }
    }
}
