//! A root of its own for a confined program, made of mounts by `init`: an empty memory file system with the system's
//! folders, the given ones, and fresh `/tmp`, `/dev/shm` and `/proc`.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::sync::atomic::Ordering;

use super::files;
use super::plan::{Own, Place, Plan, Right};
use super::sys::{self, Errno, Report, Step, call};

/// Folders that every system has one of; the new root is built on it, out of sight of everybody else.
const GROUND: [&CStr; 3] = [c"/tmp", c"/usr", c"/bin"];

const HARMLESS: c_ulong = libc::MS_NOSUID | libc::MS_NODEV;

/// Most places that one program may be given, with the system's own.
pub(crate) const MOST_PLACES: usize = 1024;

/// Builds the root and steps into it.
pub(crate) fn build(plan: &Plan, own: &Own, report: &Report) -> Result<(), Errno> {
    report.at(Step::Root);
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    // Opened before the new root covers a part of the old one.
    report.at(Step::Open);
    let mut open = [-1; MOST_PLACES];
    for (index, place) in own.system.iter().chain(&own.given).enumerate() {
        report.item(index);
        *open.get_mut(index).ok_or(libc::E2BIG)? = open_place(place)?;
    }
    let (system, given) = open.split_at_mut(own.system.len());

    report.at(Step::Root);
    let tmpfs = |at: &CStr, options: &CStr| mount(Some(c"tmpfs"), at, Some(c"tmpfs"), HARMLESS, Some(options));
    let mut ground = Err(libc::ENOENT);
    for folder in GROUND {
        if ground.is_err() {
            ground = tmpfs(folder, &own.root_options).and_then(|()| change_folder(folder));
        }
    }
    ground?;
    for (index, (place, fd)) in own.system.iter().zip(system).enumerate() {
        attach(place, *fd, report, index)?;
    }
    report.at(Step::Devices);
    for folder in [c"dev", c"dev/shm", c"tmp", c"proc"] {
        make_folder(folder)?;
    }
    tmpfs(c"tmp", &own.temp_options)?;
    tmpfs(c"dev/shm", &own.temp_options)?;
    for (index, (place, fd)) in own.given.iter().zip(given).enumerate() {
        attach(place, *fd, report, own.system.len() + index)?;
    }
    report.at(Step::Place);
    for link in &own.links {
        for parent in &link.parents {
            make_folder(parent)?;
        }
        // Something that is there already is what the link would lead to, or what was given in its place.
        let _ = call!(libc::SYS_symlinkat, link.to.as_ptr(), libc::AT_FDCWD, link.at.as_ptr());
    }
    report.at(Step::Proc);
    own_proc(own, report)?;
    if let Some(ruleset) = plan.ruleset_fd() {
        report.at(Step::Landlock);
        // All that is there was given, so its names may be seen from the root on.
        let fresh = [(c".", Right::List), (c"tmp", Right::Write), (c"dev/shm", Right::Write), (c"proc", Right::Look)];
        for (path, right) in fresh {
            files::add(ruleset, path, right, plan.landlock)?;
        }
    }
    report.at(Step::Pivot);
    set_attributes(libc::AT_FDCWD, c".", libc::MOUNT_ATTR_RDONLY, 0)?;
    // The old root comes to lie on the new one, and goes.
    call!(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr())?;
    call!(libc::SYS_umount2, c".".as_ptr(), libc::MNT_DETACH)?;
    change_folder(c"/")
}

/// A system without the right to mount one (some containers hide parts of theirs) leaves the folder empty.
fn own_proc(own: &Own, report: &Report) -> Result<(), Errno> {
    let flags = HARMLESS | libc::MS_NOEXEC;
    let mounted = mount(Some(c"proc"), c"proc", Some(c"proc"), flags, None).is_ok();
    report.own_proc.store(mounted, Ordering::Relaxed);
    if let Some(pid_max) = &own.pid_max {
        let path = if mounted { c"proc/sys/kernel/pid_max" } else { c"/proc/sys/kernel/pid_max" };
        let set = sys::write_file(path, pid_max.as_bytes());
        report.pid_max.store(set.err().unwrap_or(0), Ordering::Relaxed);
        set?;
    }
    // Root's own settings of the kernel are files there.
    if mounted { set_attributes(libc::AT_FDCWD, c"proc", libc::MOUNT_ATTR_RDONLY, 0) } else { Ok(()) }
}

/// Opened without following a link: paths were resolved before, and a link that came since is somebody's trick.
fn open_place(place: &Place) -> Result<c_int, Errno> {
    const NO_LINKS: u64 = 0x04;
    let how = [(libc::O_PATH | libc::O_CLOEXEC) as u64, 0, NO_LINKS];
    let at = libc::AT_FDCWD;
    let fd = call!(sys::OPENAT2, at, place.source.as_ptr(), how.as_ptr(), size_of_val(&how))?;
    let tree = call!(sys::OPEN_TREE, fd, c"".as_ptr(), TREE);
    let _ = call!(libc::SYS_close, fd);
    let tree = tree? as c_int;
    let attributes = libc::MOUNT_ATTR_NOSUID
        | match place.right {
            Right::Read | Right::Look | Right::List => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV,
            Right::Write => libc::MOUNT_ATTR_NODEV,
            // Writing to a device is not writing to its file system.
            Right::Device => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOEXEC,
        };
    set_attributes(tree, c"", attributes, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)?;
    Ok(tree)
}

/// A copy of the mounts there and below.
const TREE: c_int = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE | libc::O_CLOEXEC | 1;

fn attach(place: &Place, tree: c_int, report: &Report, index: usize) -> Result<(), Errno> {
    const FROM_EMPTY_PATH: c_int = 4;
    report.at(Step::Place);
    report.item(index);
    for parent in &place.parents {
        make_folder(parent)?;
    }
    if place.is_folder {
        make_folder(&place.target)?;
    } else {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        match call!(libc::SYS_openat, libc::AT_FDCWD, place.target.as_ptr(), flags, 0o444) {
            Ok(fd) => drop(call!(libc::SYS_close, fd)),
            Err(libc::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    report.at(Step::Attach);
    report.item(index);
    let target = place.target.as_ptr();
    call!(sys::MOVE_MOUNT, tree, c"".as_ptr(), libc::AT_FDCWD, target, FROM_EMPTY_PATH)?;
    let _ = call!(libc::SYS_close, tree);
    Ok(())
}

fn make_folder(path: &CStr) -> Result<(), Errno> {
    match call!(libc::SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o755) {
        Ok(_) | Err(libc::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

pub(crate) fn change_folder(path: &CStr) -> Result<(), Errno> {
    call!(libc::SYS_chdir, path.as_ptr()).map(drop)
}

fn set_attributes(fd: c_int, path: &CStr, attributes: u64, flags: c_int) -> Result<(), Errno> {
    // The kernel's `struct mount_attr`: set, clear, propagation, user namespace.
    let change = [attributes, 0, 0, 0];
    call!(sys::MOUNT_SETATTR, fd, path.as_ptr(), flags, change.as_ptr(), size_of_val(&change)).map(drop)
}

fn mount(
    what: Option<&CStr>,
    at: &CStr,
    kind: Option<&CStr>,
    flags: c_ulong,
    options: Option<&CStr>,
) -> Result<(), Errno> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let options: *const c_void = pointer(options).cast();
    call!(libc::SYS_mount, pointer(what), at.as_ptr(), pointer(kind), flags, options).map(drop)
}
