//! Everything a confined start needs, made ready while memory may still be taken.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{getegid, geteuid};
use seccompiler::BpfProgram;
use tempfile::TempDir;

use super::calls::{Sockets, filters};
use super::files;
use super::limits::{Limits, limits};
use super::root::MOST_PLACES;
use crate::{JailError, Layer, Layers, Rules, Spec};

/// Folders of the system's programs and libraries; links to one of the others stay links.
const SYSTEM: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// What programs look up in `/etc`. No passwords, no host keys: what is not listed is not there.
const ETC: [&str; 23] = [
    "alternatives",
    "ca-certificates",
    "debian_version",
    "fonts",
    "group",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/tls/certs",
    "protocols",
    "python3",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];

/// Devices without a state.
pub(crate) const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Where programs are looked up when the caller has no `PATH`.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Who a confined program is when the caller is root: no program needs to know itself as root, and files it does not
/// own show the same name.
const NOBODY: u32 = 65534;

/// The lowest process number the kernel hands out again once it has been round.
const RESERVED_PIDS: u32 = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
    /// Reading without running.
    Look,
    /// Seeing names.
    List,
    Device,
}

/// Something of the outside that is there inside.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Where it is, links resolved.
    pub(crate) path: PathBuf,
    pub(crate) source: CString,
    /// Where it will be, from the new root.
    pub(crate) target: CString,
    /// The folders above the target.
    pub(crate) parents: Vec<CString>,
    pub(crate) is_folder: bool,
    pub(crate) right: Right,
}

impl Place {
    fn new(path: PathBuf, target: &Path, is_folder: bool, right: Right) -> Option<Self> {
        let target = target.strip_prefix("/").unwrap_or(target);
        let source = c_string(path.as_os_str()).ok()?;
        let (parents, target) = (parents(target)?, c_string(target.as_os_str()).ok()?);
        Some(Place { path, source, target, parents, is_folder, right })
    }
}

/// A link inside.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) to: CString,
    pub(crate) at: CString,
    pub(crate) parents: Vec<CString>,
}

/// The program, ready for `execve`.
pub(crate) struct Program {
    /// Paths to try, in the order of `PATH`.
    pub(crate) candidates: Vec<CString>,
    pub(crate) folder: CString,
    arguments: Vec<CString>,
    variables: Vec<CString>,
}

impl Program {
    /// Pointers as `execve` wants them; they live as long as the program.
    pub(crate) fn pointers(&self) -> [Vec<*const c_char>; 2] {
        let all = |list: &[CString]| list.iter().map(|c| c.as_ptr()).chain([std::ptr::null()]).collect();
        [all(&self.arguments), all(&self.variables)]
    }
}

/// The namespaces' side.
pub(crate) struct Own {
    pub(crate) flags: i32,
    pub(crate) uid_map: String,
    pub(crate) gid_map: String,
    /// Options of the root, `/tmp` and `/dev/shm`.
    pub(crate) root_options: CString,
    pub(crate) temp_options: CString,
    pub(crate) pid_max: Option<String>,
    pub(crate) system: Vec<Place>,
    pub(crate) given: Vec<Place>,
    pub(crate) links: Vec<Link>,
}

pub(crate) struct Plan {
    pub(crate) own: Option<Own>,
    pub(crate) program: Program,
    pub(crate) limits: Limits,
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) landlock: i32,
    pub(crate) filters: Vec<BpfProgram>,
    /// Its temporary folder where it can have no own root.
    pub(crate) temp: Option<TempDir>,
}

impl Plan {
    pub(crate) fn new(spec: &Spec, rules: &Rules, layers: &Layers) -> Result<Self, JailError> {
        let lost = |source| JailError::Spawn { program: spec.name(), source };
        let namespaces = layers.has(Layer::Namespaces);
        let (mut system, mut links) = system();
        let (mut given, given_links) = given(rules, namespaces)?;
        links.extend(given_links);
        let temp = if namespaces { None } else { Some(TempDir::with_prefix("jail-").map_err(lost)?) };
        if let Some(temp) = &temp {
            given.extend(Place::new(temp.path().to_owned(), temp.path(), true, Right::Write));
        }
        system.retain(|place| reach(&place.path).is_ok());
        let ruleset = match layers.has(Layer::Files) {
            true => {
                let mut places = Vec::new();
                for place in system.iter().chain(&given) {
                    places.push((place, reach(&place.path).map_err(lost)?));
                }
                files::ruleset(&places, rules.network).map_err(|e| lost(io::Error::other(e)))?
            }
            false => None,
        };
        let sockets = match (namespaces, rules.network) {
            (_, true) => Sockets::Internet,
            (true, false) => Sockets::Unix,
            (false, false) => Sockets::Pairs,
        };
        let filters = match layers.has(Layer::SystemCalls) {
            true => filters(sockets).map_err(|e| lost(io::Error::other(e)))?.into(),
            false => Vec::new(),
        };
        let program = program(spec, temp.as_ref().map_or(Path::new("/tmp"), |t| t.path())).map_err(lost)?;
        let own = namespaces.then(|| own(rules, layers, system, given, links)).transpose().map_err(lost)?;
        if own.as_ref().is_some_and(|own| own.system.len() + own.given.len() > MOST_PLACES) {
            return Err(lost(io::Error::other(format!("needed at most {MOST_PLACES} files and folders"))));
        }
        Ok(Plan { own, program, limits: limits(rules, layers), ruleset, landlock: layers.landlock, filters, temp })
    }

    /// A place by its number in reports.
    pub(crate) fn place(&self, index: usize) -> Option<&Place> {
        let own = self.own.as_ref()?;
        own.system.iter().chain(&own.given).nth(index)
    }

    /// The ruleset's number.
    pub(crate) fn ruleset_fd(&self) -> Option<c_int> {
        self.ruleset.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// A handle on something without opening it.
fn reach(path: &Path) -> io::Result<File> {
    Ok(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn own(
    rules: &Rules,
    layers: &Layers,
    system: Vec<Place>,
    given: Vec<Place>,
    links: Vec<Link>,
) -> Result<Own, io::Error> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let inside = |id: u32| if id == 0 { NOBODY } else { id };
    let mut flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if !rules.network {
        flags |= libc::CLONE_NEWNET;
    }
    // A file costs the kernel memory even if it is empty.
    let files = (rules.temp_bytes / 4096).clamp(1024, 65536);
    // The root holds mount points only, and is made read-only once they are there.
    let root_options = c_string(OsStr::new("mode=755,size=1m,nr_inodes=4096"))?;
    let temp_options = format!("mode=1777,size={},nr_inodes={files}", rules.temp_bytes.max(4096));
    let pid_max = (uid == 0 && layers.has(Layer::Processes)).then(|| {
        // Once round, numbers begin at 300 again, so fewer than this would starve a program that lives long. The kernel
        // wants 8 for each processor.
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        RESERVED_PIDS.saturating_add(rules.processes).saturating_add(2).max(cpus.saturating_mul(8)).min(4 << 20)
    });
    Ok(Own {
        flags,
        uid_map: format!("{} {uid} 1", inside(uid)),
        gid_map: format!("{} {gid} 1", inside(gid)),
        root_options,
        temp_options: c_string(OsStr::new(&temp_options))?,
        pid_max: pid_max.map(|n| n.to_string()),
        system,
        given,
        links,
    })
}

/// The system's folders and files, and the links among them.
fn system() -> (Vec<Place>, Vec<Link>) {
    let (mut places, mut links) = (Vec::new(), Vec::new());
    for name in SYSTEM {
        let path = Path::new("/").join(name);
        let Ok(kind) = path.symlink_metadata() else { continue };
        if kind.is_symlink() {
            links.extend(std::fs::read_link(&path).ok().and_then(|to| link(&to, &path)));
        } else if kind.is_dir() {
            places.extend(Place::new(path.clone(), &path, true, Right::Read));
        }
    }
    for name in ETC {
        let path = Path::new("/etc").join(name);
        // Where it is a link, what it leads to is put in its place.
        let Ok(real) = path.canonicalize() else { continue };
        let is_folder = real.is_dir();
        if is_folder || real.is_file() {
            places.extend(Place::new(real, &path, is_folder, Right::Look));
        }
    }
    for name in DEVICES {
        let path = Path::new("/dev").join(name);
        if path.exists() {
            places.extend(Place::new(path.clone(), &path, false, Right::Device));
        }
    }
    for (at, to) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        links.extend(link(&Path::new("/proc/self").join(to), &Path::new("/dev").join(at)));
    }
    (places, links)
}

/// What the rules give, outer folders first, and links where it was given by another name.
fn given(rules: &Rules, namespaces: bool) -> Result<(Vec<Place>, Vec<Link>), JailError> {
    let (mut all, mut links) = (BTreeMap::new(), Vec::new());
    // Given for both is given for writing.
    for (paths, right) in [(&rules.read, Right::Read), (&rules.write, Right::Write)] {
        for path in paths {
            let refused = |why: String| JailError::Given { path: path.clone(), why };
            let real = path.canonicalize().map_err(|e| refused(e.to_string()))?;
            let name = std::path::absolute(path).map_err(|e| refused(e.to_string()))?;
            if ["/proc", "/sys", "/dev"].iter().any(|p| real.starts_with(p)) || real == Path::new("/") {
                return Err(refused("the root and the kernel's own folders cannot be given".to_owned()));
            }
            let is_folder = real.is_dir();
            if !is_folder && !real.is_file() {
                return Err(refused("need a file or a folder".to_owned()));
            }
            if name != real && !name.components().any(|c| c == Component::ParentDir) {
                links.extend(link(&real, &name));
            }
            let place = Place::new(real.clone(), &real, is_folder, right);
            all.insert(real, place.ok_or_else(|| refused("its name holds a zero byte".to_owned()))?);
        }
    }
    let writable = |inner: &Place| {
        all.values().any(|p| p.right == Right::Write && p.path != inner.path && inner.path.starts_with(&p.path))
    };
    // Landlock adds rights up on the way down; only a read-only mount takes one away.
    if let Some(place) = all.values().find(|p| !namespaces && p.right == Right::Read && writable(p)) {
        let why = "for reading only within a folder for writing needs the layer `namespaces`".to_owned();
        return Err(JailError::Given { path: place.path.clone(), why });
    }
    Ok((all.into_values().collect(), links))
}

fn link(to: &Path, at: &Path) -> Option<Link> {
    let at = at.strip_prefix("/").ok()?;
    Some(Link { to: c_string(to.as_os_str()).ok()?, at: c_string(at.as_os_str()).ok()?, parents: parents(at)? })
}

/// The folders above a path, outermost first.
fn parents(path: &Path) -> Option<Vec<CString>> {
    let mut all: Vec<_> = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
    all.reverse();
    all.into_iter().map(|p| c_string(p.as_os_str()).ok()).collect()
}

fn program(spec: &Spec, temp: &Path) -> io::Result<Program> {
    let mut variables: BTreeMap<OsString, OsString> = Spec::passed().collect();
    variables.insert("HOME".into(), temp.into());
    variables.insert("TMPDIR".into(), temp.into());
    variables.extend(spec.variables.iter().cloned());
    let candidates = if spec.program.as_bytes().contains(&b'/') {
        vec![c_string(std::path::absolute(&spec.program)?.as_os_str())?]
    } else {
        let path = variables.get(OsStr::new("PATH")).map_or(OsStr::new(PATH), |p| p.as_os_str());
        let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
        folders.map(|folder| c_string(folder.join(&spec.program).as_os_str())).collect::<io::Result<_>>()?
    };
    let folder = match &spec.folder {
        Some(folder) => std::path::absolute(folder)?,
        None => temp.to_owned(),
    };
    let variables = variables.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        c_string(&name)
    });
    let arguments = std::iter::once(&spec.program).chain(&spec.args);
    Ok(Program {
        candidates,
        folder: c_string(folder.as_os_str())?,
        arguments: arguments.map(|a| c_string(a)).collect::<io::Result<_>>()?,
        variables: variables.collect::<io::Result<_>>()?,
    })
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.to_owned().into_vec()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}
