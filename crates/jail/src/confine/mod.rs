//! Starts a program behind its walls.
//!
//! Everything that needs memory or can fail in many ways (rules, filters, paths, arguments) is made ready before; then
//! three short-lived children that share this process's memory, as `posix_spawn`'s child does, make system calls only:
//!
//! ```text
//! this process ── init (new namespaces, new root; becomes `cat` on a pipe that only this process holds)
//!              ├─ usher (steps into init's namespaces, starts the program as its sibling, ends)
//!              └─ program (limits, capabilities, Landlock, seccomp; becomes what was asked for)
//! ```
//!
//! Sharing memory until `exec` is what keeps a start at a few milliseconds whatever this process holds: `fork` would copy
//! the page tables of a loaded model, and an init that never calls `exec` would keep its pages. `init` is `cat` because the
//! first process of a namespace has one task, to end when we do: our death closes its pipe, its end makes the kernel
//! kill every process of the namespace, those that called `setsid` or were adopted by it too.

#![cfg_attr(
    target_os = "linux",
    allow(
        unsafe_code,
        reason = "system calls that no safe library offers: clone with shared memory, mounts, prctl, landlock"
    )
)]

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod clone;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod start;
#[cfg(target_os = "linux")]
mod sys;

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{Jailed, probe, start};
#[cfg(target_os = "linux")]
pub(crate) use start::{Jailed, probe, start};

/// The ends of the three pipes that this process holds.
pub(crate) struct Pipes {
    pub(crate) stdin: std::fs::File,
    pub(crate) stdout: std::fs::File,
    pub(crate) stderr: std::fs::File,
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
