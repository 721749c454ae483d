//! What the three children do between `clone` and `exec`: system calls on what was made ready, and nothing else.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::atomic::Ordering;

use super::clone::{Stack, share};
use super::limits::{drop_privileges, set};
use super::plan::{Own, Plan};
use super::sys::{self, Errno, Report, Step, call};
use super::{files, root};

/// A program that ends when its input does.
const CAT: [&CStr; 2] = [c"/bin/cat", c"/usr/bin/cat"];

/// What the children see of the parent's memory.
pub(crate) struct Stage<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) report: Report,
    pub(crate) arguments: &'a [*const c_char],
    pub(crate) variables: &'a [*const c_char],
    /// The program's ends of its pipes, or -1 for a trial without a program.
    pub(crate) pipes: [c_int; 3],
    /// The end of the pipe whose other end only the parent holds.
    pub(crate) lifeline: c_int,
    /// The first process of the namespaces, once it is there.
    pub(crate) init: c_int,
    /// For the program.
    pub(crate) stack: Stack,
}

/// The stage a child was given.
fn stage<'a>(argument: *mut c_void) -> &'a Stage<'a> {
    // SAFETY: `share` passes the reference it was given, alive until this child calls `exec` or ends.
    unsafe { &*argument.cast::<Stage<'a>>() }
}

/// Reports why a child could not go on; it was never to return.
fn failed(stage: &Stage<'_>, errno: Errno) -> c_int {
    stage.report.failed(errno);
    127
}

/// The first process of new namespaces: makes the root, then waits for the end of its input.
pub(crate) extern "C" fn init(argument: *mut c_void) -> c_int {
    let stage = stage(argument);
    failed(stage, be_init(stage))
}

fn be_init(stage: &Stage<'_>) -> Errno {
    let Some(own) = &stage.plan.own else { return libc::EINVAL };
    let done = (|| {
        stage.report.at(Step::User);
        map_user(own)?;
        root::build(stage.plan, own, &stage.report)?;
        stage.report.at(Step::Init);
        let name = c"jail";
        call!(libc::SYS_sethostname, name.as_ptr(), name.count_bytes())?;
        call!(libc::SYS_setsid)?;
        sys::default_signals();
        // What is adopted by this process and ends leaves no trace.
        // SAFETY: ignoring is always valid.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        sys::put(stage.lifeline, 0)?;
        for at in [1, 2] {
            let flags = libc::O_WRONLY | libc::O_CLOEXEC;
            let null = call!(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0)?;
            sys::put(null as c_int, at)?;
        }
        harden(stage)?;
        stage.report.at(Step::Init);
        let nothing = [std::ptr::null::<c_char>()];
        let arguments = [c"jail".as_ptr(), std::ptr::null()];
        let mut error = Err(libc::ENOENT);
        for path in CAT {
            error = call!(libc::SYS_execve, path.as_ptr(), arguments.as_ptr(), nothing.as_ptr()).map(drop);
        }
        error
    })();
    done.err().unwrap_or(libc::EIO)
}

/// One user, the caller, under one name; nobody else exists here.
fn map_user(own: &Own) -> Result<(), Errno> {
    sys::write_file(c"/proc/self/setgroups", b"deny")?;
    sys::write_file(c"/proc/self/gid_map", own.gid_map.as_bytes())?;
    sys::write_file(c"/proc/self/uid_map", own.uid_map.as_bytes())
}

/// Steps into the namespaces and starts the program there as a child of this process's parent, which can then wait for it.
pub(crate) extern "C" fn usher(argument: *mut c_void) -> c_int {
    let stage = stage(argument);
    let done = (|| {
        stage.report.at(Step::Enter);
        let Some(own) = &stage.plan.own else { return Err(libc::EINVAL) };
        // Only root can, and only root gains by it: other users' extra groups stay, on files that are not there.
        let _ = call!(libc::SYS_setgroups, 0, std::ptr::null::<u32>());
        prefer_as_victim();
        call!(libc::SYS_setns, stage.init, own.flags)?;
        stage.report.at(Step::Clone);
        // SAFETY: the stage is what `program` takes, and both it and its stack outlive the child, which ends or calls
        // `exec` before this returns; signals are blocked since the parent blocked them.
        let pid = unsafe { share(&stage.stack, libc::CLONE_PARENT, program, stage, &mut -1) }?;
        stage.report.program.store(pid, Ordering::Relaxed);
        Ok(())
    })();
    done.map_or_else(|errno| failed(stage, errno), |()| 0)
}

/// When the machine runs out of memory the kernel takes a confined program before anything else.
fn prefer_as_victim() {
    let _ = sys::write_file(c"/proc/self/oom_score_adj", b"1000");
}

/// Becomes the program.
pub(crate) extern "C" fn program(argument: *mut c_void) -> c_int {
    let stage = stage(argument);
    failed(stage, be_program(stage))
}

fn be_program(stage: &Stage<'_>) -> Errno {
    let plan = stage.plan;
    let done = (|| {
        if plan.own.is_none() {
            prefer_as_victim();
        }
        call!(libc::SYS_setsid)?;
        sys::default_signals();
        for (at, fd) in stage.pipes.iter().enumerate() {
            sys::put(*fd, at as c_int)?;
        }
        stage.report.at(Step::Folder);
        root::change_folder(&plan.program.folder)?;
        stage.report.at(Step::Limits);
        set(&plan.limits)?;
        harden(stage)?;
        stage.report.at(Step::Exec);
        let mut error = Err(libc::ENOENT);
        for path in &plan.program.candidates {
            let tried = call!(libc::SYS_execve, path.as_ptr(), stage.arguments.as_ptr(), stage.variables.as_ptr());
            match tried {
                Err(libc::ENOENT | libc::ENOTDIR) => {}
                Err(libc::EACCES) => error = Err(libc::EACCES),
                other => return other.map(drop),
            }
        }
        error
    })();
    done.err().unwrap_or(libc::EIO)
}

/// No capability, no file descriptor but the first three, no file and no system call beyond the rules.
fn harden(stage: &Stage<'_>) -> Result<(), Errno> {
    stage.report.at(Step::Capabilities);
    drop_privileges()?;
    stage.report.at(Step::Landlock);
    if let Some(ruleset) = stage.plan.ruleset_fd() {
        files::apply(ruleset)?;
    }
    sys::close_from(3)?;
    sys::unblock_signals();
    stage.report.at(Step::Seccomp);
    for filter in &stage.plan.filters {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
        filter_calls(&program)?;
    }
    Ok(())
}

fn filter_calls(program: &libc::sock_fprog) -> Result<(), Errno> {
    // `prctl` takes the pointer as its third argument.
    let mode = libc::SECCOMP_MODE_FILTER as c_ulong;
    call!(libc::SYS_prctl, libc::PR_SET_SECCOMP, mode, std::ptr::from_ref(program), 0, 0).map(drop)
}
