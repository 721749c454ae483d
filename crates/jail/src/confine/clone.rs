//! A child that shares this process's memory until it calls `exec` or ends, the way `posix_spawn` makes its own.

use std::ffi::{c_int, c_void};
use std::io;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::sys::{Errno, errno};

const STACK: usize = 256 << 10;
const GUARD: usize = 64 << 10;

/// A stack for one such child, with a guard below.
pub(crate) struct Stack(*mut c_void);

impl Stack {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: new memory that nobody else knows of, private to this stack.
        unsafe {
            let low = mmap_anonymous(
                std::ptr::null_mut(),
                GUARD + STACK,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?;
            let stack = Stack(low);
            mprotect(low, GUARD, MprotectFlags::empty())?;
            Ok(stack)
        }
    }

    fn top(&self) -> *mut c_void {
        // Page-aligned, so it has every alignment a stack needs.
        self.0.wrapping_byte_add(GUARD + STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the children that ran on it are gone.
        let _ = unsafe { munmap(self.0, GUARD + STACK) };
    }
}

/// Runs `entry(argument)` in a child that shares memory, and returns its number once it ended or called `exec`.
///
/// With `CLONE_PIDFD` in `flags`, `pidfd` gets a descriptor for it.
///
/// # Safety
/// `argument` is what `entry` takes. `entry` makes system calls only: no allocation, no lock, no unwinding; it writes only
/// to memory that this thread, suspended meanwhile, would own. Every signal is blocked in the calling thread.
pub(crate) unsafe fn share<T>(
    stack: &Stack,
    flags: c_int,
    entry: extern "C" fn(*mut c_void) -> c_int,
    argument: &T,
    pidfd: &mut c_int,
) -> Result<i32, Errno> {
    let flags = flags | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = std::ptr::from_ref(argument).cast_mut().cast();
    // SAFETY: the stack is this child's own; the rest is the caller's word.
    let pid = unsafe { libc::clone(entry, stack.top(), flags, argument, std::ptr::from_mut(pidfd)) };
    if pid < 0 { Err(errno()) } else { Ok(pid) }
}

/// Blocks every signal of the calling thread until dropped, so that no handler runs in a child that shares its memory.
pub(crate) struct Blocked(libc::sigset_t);

impl Blocked {
    pub(crate) fn all() -> Self {
        // SAFETY: both sets are plain memory that the calls fill.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Blocked(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the call that blocked.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
