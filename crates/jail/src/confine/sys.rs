//! System calls by number, for the moments between `clone` and `exec`: they touch no memory but what they are given and
//! take no lock.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// A system's error number.
pub(crate) type Errno = c_int;

/// The last error of this thread.
pub(crate) fn errno() -> Errno {
    // Reads the number and allocates nothing.
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A result of a system call as a result.
pub(crate) fn check(value: impl Into<c_long>) -> Result<c_long, Errno> {
    let value = value.into();
    if value < 0 { Err(errno()) } else { Ok(value) }
}

/// Calls the kernel with plain numbers and pointers.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        // SAFETY: the numbers and pointers of each use are right for that call, and the pointers are to memory that is
        // alive until it returns.
        $crate::confine::sys::check(unsafe { libc::syscall($number $(, $argument)*) })
    };
}
pub(crate) use call;

// The numbers from 424 on are the same on every architecture.
pub(crate) const OPEN_TREE: c_long = 428;
pub(crate) const MOVE_MOUNT: c_long = 429;
pub(crate) const CLOSE_RANGE: c_long = 436;
pub(crate) const OPENAT2: c_long = 437;
pub(crate) const MOUNT_SETATTR: c_long = 442;
pub(crate) const LANDLOCK_CREATE_RULESET: c_long = 444;
pub(crate) const LANDLOCK_ADD_RULE: c_long = 445;
pub(crate) const LANDLOCK_RESTRICT_SELF: c_long = 446;

/// Writes a few bytes to a file that is there.
pub(crate) fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let fd = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
    let written = call!(libc::SYS_write, fd, text.as_ptr(), text.len());
    let _ = call!(libc::SYS_close, fd);
    if written? == text.len() as c_long { Ok(()) } else { Err(libc::EIO) }
}

/// Puts a file descriptor at a number, open across `exec`.
pub(crate) fn put(fd: c_int, at: c_int) -> Result<(), Errno> {
    // Callers hold only numbers above 2, so the two differ.
    call!(libc::SYS_dup3, fd, at, 0).map(drop)
}

/// Closes every file descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> Result<(), Errno> {
    call!(CLOSE_RANGE, first, u32::MAX, 0).map(drop)
}

/// Ignored and handled signals get their default back, and none stays blocked; what `exec` would hand on otherwise.
pub(crate) fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: the default is always valid; this process's handlers are its own, not its parent's.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets every signal through.
pub(crate) fn unblock_signals() {
    let none = 0_u64;
    let _ = call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, std::ptr::null_mut::<c_void>(), 8);
}

/// What a child tells its parent through the memory they share.
#[derive(Default)]
pub(crate) struct Report {
    step: AtomicI32,
    item: AtomicI32,
    errno: AtomicI32,
    /// The program's number, as its parent sees it.
    pub(crate) program: AtomicI32,
    /// Whether the new root has a `/proc`.
    pub(crate) own_proc: AtomicBool,
    /// Why the number of processes cannot be bounded for root, or 0.
    pub(crate) pid_max: AtomicI32,
}

/// What a child was doing when it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Step {
    Begin,
    User,
    Open,
    Root,
    Place,
    Attach,
    Devices,
    Proc,
    Pivot,
    Init,
    Enter,
    Clone,
    Folder,
    Limits,
    Capabilities,
    Landlock,
    Seccomp,
    Exec,
}

impl Step {
    const ALL: [(Step, &str); 18] = [
        (Step::Begin, "beginning"),
        (Step::User, "making its own user"),
        (Step::Open, "opening"),
        (Step::Root, "making its own root"),
        (Step::Place, "making a place for"),
        (Step::Attach, "attaching"),
        (Step::Devices, "making its temporary folders"),
        (Step::Proc, "making its own /proc"),
        (Step::Pivot, "stepping into its own root"),
        (Step::Init, "starting its first process"),
        (Step::Enter, "stepping into its namespaces"),
        (Step::Clone, "starting its process"),
        (Step::Folder, "stepping into its folder"),
        (Step::Limits, "setting its limits"),
        (Step::Capabilities, "dropping its capabilities"),
        (Step::Landlock, "applying its file rules"),
        (Step::Seccomp, "applying its system-call rules"),
        (Step::Exec, "running it"),
    ];
}

impl Report {
    pub(crate) fn at(&self, step: Step) {
        self.step.store(step as i32, Ordering::Relaxed);
        self.item.store(-1, Ordering::Relaxed);
    }

    /// Which of the given places the step is about.
    pub(crate) fn item(&self, item: usize) {
        self.item.store(item as i32, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, errno: Errno) {
        self.errno.store(errno, Ordering::Relaxed);
    }

    /// The step, the item and the error of a child that failed.
    pub(crate) fn failure(&self) -> Option<(Step, Option<usize>, Errno)> {
        let errno = self.errno.load(Ordering::Relaxed);
        let step = self.step.load(Ordering::Relaxed);
        let step = Step::ALL.iter().find(|(s, _)| *s as i32 == step).map_or(Step::Begin, |(s, _)| *s);
        (errno != 0).then(|| (step, usize::try_from(self.item.load(Ordering::Relaxed)).ok(), errno))
    }
}

impl Step {
    pub(crate) fn text(self) -> &'static str {
        Step::ALL.iter().find(|(s, _)| *s == self).map_or("", |(_, text)| text)
    }
}
