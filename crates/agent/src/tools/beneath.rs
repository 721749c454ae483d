//! Files beneath a folder: the system resolves paths and refuses any that lead out of it, by `..`, by a link or by starting
//! at the root, so nothing can change between looking and opening.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// A folder that is held open.
pub(super) struct Beneath(File);

/// Links within the folder are followed; those that lead out, and the system's own magic ones, are not.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

impl Beneath {
    pub(super) fn open(folder: &Path) -> io::Result<Beneath> {
        let fd = openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Beneath(fd.into()))
    }

    /// Opens what is at a path.
    pub(super) fn at(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let path = if path.is_empty() { "." } else { path };
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        Ok(openat2(&self.0, path, flags | OFlags::CLOEXEC, mode, INSIDE)?.into())
    }

    /// Opens the folder that holds a path, and its last part.
    pub(super) fn parent(&self, path: &str) -> io::Result<(File, PathBuf)> {
        let whole = Path::new(path);
        let Some(Component::Normal(name)) = whole.components().next_back() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let parent = whole.parent().map_or("", |p| p.to_str().unwrap_or(""));
        Ok((self.at(parent, OFlags::PATH | OFlags::DIRECTORY)?, name.into()))
    }

    /// Makes the folders that lead to a path.
    pub(super) fn make_parents(&self, path: &str) -> io::Result<()> {
        let mut so_far = PathBuf::new();
        let parents = Path::new(path).parent().unwrap_or(Path::new(""));
        for part in parents.components() {
            so_far.push(part);
            let text = so_far.to_str().ok_or(io::ErrorKind::InvalidInput)?;
            match self.at(text, OFlags::PATH | OFlags::DIRECTORY) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let (parent, name) = self.parent(text)?;
                    rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?;
                }
                other => drop(other?),
            }
        }
        Ok(())
    }
}
