//! What lies around a jail for its probes to reach for: secrets, sockets, files, processes.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use surefoot_jail::Rules;
use tempfile::TempDir;

pub(crate) struct World {
    folder: TempDir,
    pub(crate) is_root: bool,
    mark: String,
    in_temp: PathBuf,
    in_shared_memory: PathBuf,
    tcp: TcpListener,
    udp: UdpSocket,
    /// A descriptor that every program started without walls inherits, as a careless library leaves them.
    leaked: OwnedFd,
    _sockets: [UnixListener; 2],
}

/// A folder in which any user may read.
pub(crate) fn folder_for_all() -> TempDir {
    let folder = tempfile::Builder::new().prefix("probes-").tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = folder_for_all();
        let at = |name: &str| folder.path().join(name);
        for name in ["home/.ssh", "read", "write"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("home/.ssh/key"), "secret").unwrap();
        fs::set_permissions(at("home/.ssh/key"), fs::Permissions::from_mode(0o600)).unwrap();
        for name in ["read/data", "read/cut", "read/mode"] {
            fs::write(at(name), "given").unwrap();
        }
        symlink("../home/.ssh/key", at("read/link")).unwrap();
        let mark = format!("8765432.{}", std::process::id());
        let in_temp = PathBuf::from(format!("/tmp/probe-{mark}"));
        let in_shared_memory = PathBuf::from(format!("/dev/shm/probe-{mark}"));
        for path in [&in_temp, &in_shared_memory] {
            fs::write(path, "secret").unwrap();
        }
        let named = UnixListener::bind(at("host.sock")).unwrap();
        let abstracted = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&mark).unwrap()).unwrap();
        // Without the flag that closes it when a program starts.
        let leaked = rustix::fs::open(at("home/.ssh/key"), OFlags::RDONLY, Mode::empty()).unwrap();
        World {
            is_root: super::super::world_is_roots(),
            mark,
            in_temp,
            in_shared_memory,
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            leaked,
            _sockets: [named, abstracted],
            folder,
        }
    }

    /// What the probes are told, as Python.
    pub(crate) fn facts(&self, victim: u32) -> String {
        let facts = [
            ("WORLD", format!("{:?}", self.folder.path())),
            ("IN_TEMP", format!("{:?}", self.in_temp)),
            ("IN_SHARED_MEMORY", format!("{:?}", self.in_shared_memory)),
            ("MARK", format!("{:?}", self.mark)),
            ("TCP", self.tcp.local_addr().unwrap().port().to_string()),
            ("UDP", self.udp.local_addr().unwrap().port().to_string()),
            ("LEAKED", self.leaked.as_raw_fd().to_string()),
            ("PARENT", std::process::id().to_string()),
            ("VICTIM", victim.to_string()),
            // As root the kernel lets 300 processes more through than were asked for.
            ("MANY", if self.is_root { 400 } else { 100 }.to_string()),
        ];
        facts.into_iter().map(|(name, value)| format!("{name} = {value}\n")).collect()
    }

    /// The rules of a probe.
    pub(crate) fn rules(&self, probe: &str) -> Rules {
        Rules {
            read: vec![self.folder.path().join("read")],
            write: vec![self.folder.path().join("write")],
            memory_bytes: 512 << 20,
            processes: 32,
            cpu_s: if probe == "processor_time" { 1 } else { 30 },
            file_bytes: 4 << 20,
            temp_bytes: 8 << 20,
            open_files: 64,
            ..Rules::default()
        }
    }

    /// For a probe that tries to leave a process behind: whether it did; that process is ended.
    pub(crate) fn left_behind(&self, probe: &str) -> Option<bool> {
        if !super::processes::LEAVE.contains(&probe) {
            return None;
        }
        let mine = format!("{}.{probe}", self.mark);
        let mut left = false;
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(line) = fs::read_to_string(process.path().join("cmdline")) else { continue };
            let Ok(number) = process.file_name().to_string_lossy().parse() else { continue };
            if line.contains(&mine) {
                left = true;
                let pid = rustix::process::Pid::from_raw(number).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        Some(left)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for path in [&self.in_temp, &self.in_shared_memory] {
            let _ = fs::remove_file(path);
        }
    }
}
