//! What a confined program may reach and how much it may use.

use std::path::PathBuf;

use crate::Layer;

/// The walls around a confined program; what is not given here is not there.
///
/// Besides these it sees the system's programs and libraries (`/usr`, `/bin`, `/lib…`, and those files of `/etc` that
/// name no secret) read-only, an empty private `/tmp` and `/dev/shm`, its own `/proc` (read-only) and five harmless
/// devices. `HOME` and `TMPDIR` are `/tmp`.
///
/// - Units: bytes, seconds of processor time, processes and threads together.
/// - Holds: `memory_bytes`, `cpu_s` and `file_bytes` bind each process, not their sum, so a program's memory is bounded by
///   `processes × memory_bytes + 2 × temp_bytes`; choose the factors accordingly. `temp_bytes` binds `/tmp` and `/dev/shm`
///   one by one. A folder given for writing has no bound on its sum but its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Files and folders it may read and run, seen at their own paths.
    pub read: Vec<PathBuf>,
    /// Files and folders it may also write, seen at their own paths.
    pub write: Vec<PathBuf>,
    /// Whether it has the machine's network; without, it has not even a loopback.
    pub network: bool,
    /// Address space of a process. Programs that reserve far more than they use (JavaScript and Java engines) need more.
    pub memory_bytes: u64,
    /// Processes and threads at one time. As root the kernel counts these in another way, which lets up to 300 more through.
    pub processes: u32,
    /// Processor time of a process.
    pub cpu_s: u64,
    /// The longest file a process may write.
    pub file_bytes: u64,
    /// What `/tmp` may hold, and `/dev/shm` as much again; both lie in memory.
    pub temp_bytes: u64,
    /// Open files of a process.
    pub open_files: u32,
    /// Layers the program may run without where the system lacks them; see [`crate::layers`].
    pub allow_missing: Vec<Layer>,
}

impl Default for Rules {
    /// No folder, no network, 2 GiB, 64 processes, a minute of processor time, 256 MiB of files.
    fn default() -> Self {
        Rules {
            read: Vec::new(),
            write: Vec::new(),
            network: false,
            memory_bytes: 2 << 30,
            processes: 64,
            cpu_s: 60,
            file_bytes: 256 << 20,
            temp_bytes: 256 << 20,
            open_files: 256,
            allow_missing: Vec::new(),
        }
    }
}
