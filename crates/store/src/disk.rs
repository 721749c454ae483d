//! The few ways this crate changes a disk, each of which can be made to fail in tests.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::StoreError;

/// Starts the name of everything unfinished; what bears it may be deleted when no one writes.
pub(crate) const UNFINISHED: &str = ".tmp-";

/// Every change of the disk passes here, so that a test can stop the world before any of them.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// How many more changes succeed, and the system's error number after that; none for no limit.
    fuse: Cell<Option<(u64, i32)>>,
}

impl Disk {
    /// A disk on which only this many changes succeed.
    #[cfg(test)]
    pub(crate) fn failing_after(changes: u64, error: i32) -> Self {
        Disk { fuse: Cell::new(Some((changes, error))) }
    }

    fn burn(&self, action: &'static str, path: &Path) -> Result<(), StoreError> {
        match self.fuse.get() {
            None => Ok(()),
            Some((0, error)) => Err(StoreError::io(action, path)(io::Error::from_raw_os_error(error))),
            Some((left, error)) => {
                self.fuse.set(Some((left - 1, error)));
                Ok(())
            }
        }
    }

    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), StoreError> {
        self.burn("create", path)?;
        fs::create_dir_all(path).map_err(StoreError::io("create", path))
    }

    pub(crate) fn sync_file(&self, path: &Path) -> Result<(), StoreError> {
        self.burn("sync", path)?;
        File::open(path).and_then(|f| f.sync_all()).map_err(StoreError::io("sync", path))
    }

    /// Makes names in a folder durable; the same call as for files, told apart for the reader's sake.
    pub(crate) fn sync_folder(&self, path: &Path) -> Result<(), StoreError> {
        self.sync_file(path)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.burn("rename", from)?;
        fs::rename(from, to).map_err(StoreError::io("rename", from))
    }

    pub(crate) fn remove_folder(&self, path: &Path) -> Result<(), StoreError> {
        self.burn("remove", path)?;
        fs::remove_dir_all(path).map_err(StoreError::io("remove", path))
    }

    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.burn("remove", path)?;
        fs::remove_file(path).map_err(StoreError::io("remove", path))
    }

    /// Writes a new file and syncs it, in a folder nobody reads yet.
    pub(crate) fn write_new(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.burn("write", path)?;
        File::create_new(path)
            .and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()))
            .map_err(StoreError::io("write", path))
    }

    /// Writes a whole file: readers see the old one or the new one, also after a crash.
    pub(crate) fn write_whole(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_whole_with(path, |file| file.write_all(bytes).map_err(StoreError::io("write", path)))
    }

    /// As [`Disk::write_whole`], the bytes coming from `fill`.
    pub(crate) fn write_whole_with(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut File) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.burn("write", path)?;
        let folder = parent(path);
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(&folder)
            .map_err(StoreError::io("write", path))?;
        fill(file.as_file_mut())?;
        file.as_file().sync_all().map_err(StoreError::io("write", path))?;
        self.burn("rename", path)?;
        file.persist(path).map_err(|e| StoreError::io("write", path)(e.error))?;
        self.sync_folder(&folder)
    }

    /// Deletes what a killed process left unfinished in a folder.
    pub(crate) fn sweep(&self, folder: &Path) -> Result<(), StoreError> {
        for name in names(folder)? {
            if name.starts_with(UNFINISHED) {
                let path = folder.join(&name);
                if path.is_dir() { self.remove_folder(&path)? } else { self.remove_file(&path)? }
            }
        }
        Ok(())
    }
}

/// The folder a path lies in.
pub(crate) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// The names in a folder, sorted; a folder that is not there has none. Names that are no text are left out: the store
/// makes none.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StoreError::io("read", folder)(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::io("read", folder))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// A whole file, or nothing when it is not there.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io("read", path)(e)),
    }
}

/// The SHA-256 of a file in lower-case hexadecimal, read in pieces.
pub fn hash_file(path: &Path) -> Result<String, StoreError> {
    let mut file = File::open(path).map_err(StoreError::io("read", path))?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(n) => hash.update(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(StoreError::io("read", path)(e)),
        }
    }
}

/// The SHA-256 of bytes in lower-case hexadecimal.
pub fn hash_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// One hash for a folder: over the relative path and the hash of every file in it, by path.
///
/// - Errors: [`StoreError::Unstorable`] at a link or anything else that is neither file nor folder.
pub fn hash_folder(folder: &Path) -> Result<String, StoreError> {
    let mut hash = Sha256::new();
    for relative in files_below(folder)?.files {
        digest_entry(&mut hash, &relative, &hash_file(&folder.join(&relative))?);
    }
    Ok(hex(&hash.finalize()))
}

/// One file's part in the hash of a folder.
pub(crate) fn digest_entry(hash: &mut Sha256, relative: &str, sha256: &str) {
    hash.update((relative.len() as u64).to_le_bytes());
    hash.update(relative.as_bytes());
    hash.update(sha256.as_bytes());
}

/// What lies below a folder.
pub(crate) struct Below {
    /// Paths of files relative to it, with `/`, sorted.
    pub(crate) files: Vec<String>,
    /// The folder itself and those below, deepest first.
    pub(crate) folders: Vec<PathBuf>,
}

/// Lists a folder, refusing what is neither file nor folder.
pub(crate) fn files_below(folder: &Path) -> Result<Below, StoreError> {
    let mut below = Below { files: Vec::new(), folders: Vec::new() };
    let mut open = vec![(folder.to_path_buf(), String::new())];
    while let Some((here, prefix)) = open.pop() {
        for entry in fs::read_dir(&here).map_err(StoreError::io("read", &here))? {
            let entry = entry.map_err(StoreError::io("read", &here))?;
            let kind = entry.file_type().map_err(StoreError::io("read", &entry.path()))?;
            let odd = |reason: &str| StoreError::Unstorable { path: entry.path(), reason: reason.to_string() };
            let name = entry.file_name().into_string().map_err(|_| odd("its name is not valid text"))?;
            let relative = format!("{prefix}{name}");
            if kind.is_dir() {
                open.push((entry.path(), format!("{relative}/")));
            } else if kind.is_file() {
                below.files.push(relative);
            } else {
                return Err(odd("it is neither a file nor a folder"));
            }
        }
        below.folders.push(here);
    }
    below.files.sort();
    below.folders.reverse();
    Ok(below)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_file_is_its_sha256() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        fs::write(&path, "abc").unwrap();
        let want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash_file(&path).unwrap(), want);
        assert_eq!(hash_bytes(b"abc"), want);
        // Longer than one piece.
        fs::write(&path, vec![b'a'; 3_000_001]).unwrap();
        assert_eq!(hash_file(&path).unwrap(), hash_bytes(&vec![b'a'; 3_000_001]));
    }

    #[test]
    fn the_hash_of_a_folder_sees_names_and_bytes() {
        let make = |files: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in files {
                fs::create_dir_all(parent(&folder.path().join(name))).unwrap();
                fs::write(folder.path().join(name), text).unwrap();
            }
            hash_folder(folder.path()).unwrap()
        };
        let one = make(&[("a", "1"), ("b/c", "2")]);
        assert_eq!(one, make(&[("b/c", "2"), ("a", "1")]));
        assert_ne!(one, make(&[("a", "2"), ("b/c", "2")]));
        assert_ne!(one, make(&[("a", "1"), ("c", "2")]));
    }

    #[test]
    fn a_whole_file_is_the_old_or_the_new_one_wherever_writing_stops() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        Disk::default().write_whole(&path, b"old").unwrap();
        let mut done = false;
        for changes in 0..10 {
            let result = Disk::failing_after(changes, 28).write_whole(&path, b"new and longer");
            let now = fs::read(&path).unwrap();
            assert!(now == b"old" || now == b"new and longer");
            done |= result.is_ok();
            if let Err(e) = result {
                assert!(e.to_string().contains("No space left on device"), "{e}");
            }
            if done {
                break;
            }
            fs::write(&path, "old").unwrap();
        }
        assert!(done);
        assert_eq!(names(folder.path()).unwrap(), ["file"]);
    }

    #[test]
    fn a_refusal_names_the_path() {
        let error = Disk::default().write_whole(Path::new("/proc/nowhere/file"), b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot write `/proc/nowhere/file`: No such file"), "{error}");
    }

    #[test]
    fn links_are_refused_in_folders_that_are_hashed() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        assert!(hash_folder(folder.path()).unwrap_err().to_string().ends_with("it is neither a file nor a folder"));
    }
}
