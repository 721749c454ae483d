//! Where the parts of a log lie, and how they are written so that a crash leaves whole files only.
//!
//! Source: c2sp.org/tlog-tiles for the names and for what is in tiles and bundles.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use tempfile::NamedTempFile;

use crate::checkpoint::{Checkpoint, LONGEST_NOTE};
use crate::digest::Digest;
use crate::error::{Fault, LedgerError};
use crate::key::Verifier;
use crate::tree::{FULL, Place};

/// The most bytes of an entry: its length is written in two.
pub const LONGEST_ENTRY: usize = u16::MAX as usize;

/// The most bytes of a bundle.
const LONGEST_BUNDLE: usize = FULL as usize * (2 + LONGEST_ENTRY);

/// How the name of a file begins that is not finished.
const UNFINISHED: &str = ".unfinished-";

/// The checkpoint's file.
pub(crate) fn checkpoint_path(dir: &Path) -> PathBuf {
    dir.join("checkpoint")
}

/// The journal's file.
pub(crate) fn journal_path(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// The file of a tile.
pub(crate) fn tile_path(dir: &Path, place: Place) -> PathBuf {
    numbered(dir.join("tile").join(place.level.to_string()), place.n, place.width)
}

/// The file of a bundle, the `n`-th 256 entries, of which it has `width`.
pub(crate) fn bundle_path(dir: &Path, n: u64, width: u64) -> PathBuf {
    numbered(dir.join("tile").join("entries"), n, width)
}

/// `x001/x234/067`, and `.p/W` after it for what is not full.
fn numbered(mut path: PathBuf, n: u64, width: u64) -> PathBuf {
    let mut groups = vec![format!("{:03}", n % 1000)];
    let mut rest = n / 1000;
    while rest > 0 {
        groups.push(format!("x{:03}", rest % 1000));
        rest /= 1000;
    }
    let last = groups.remove(0);
    path.extend(groups.iter().rev());
    if width == FULL {
        return path.join(last);
    }
    path.join(format!("{last}.p")).join(width.to_string())
}

/// Reads the hashes of a tile; the full tile serves where a partial one was taken away.
pub(crate) fn read_tile(dir: &Path, place: Place) -> Result<Vec<Digest>, Fault> {
    let (path, bytes) = read_or_full(tile_path(dir, place), tile_path(dir, full(place)), 32 * FULL as usize)?;
    let needed = if path == tile_path(dir, place) { place.width } else { FULL };
    let (hashes, rest) = bytes.as_chunks::<32>();
    if hashes.len() as u64 != needed || !rest.is_empty() {
        return Err(Fault::Malformed { path, reason: format!("it has {} bytes, needed {}", bytes.len(), 32 * needed) });
    }
    Ok(hashes.iter().take(place.width as usize).map(|h| Digest(*h)).collect())
}

/// Reads the entries of a bundle, however many it holds, with the file they were read from; of a full one that serves for
/// a partial one, as many as were asked for.
pub(crate) fn read_bundle(dir: &Path, n: u64, width: u64) -> Result<(PathBuf, Vec<Vec<u8>>), Fault> {
    let partial = bundle_path(dir, n, width);
    let (path, bytes) = read_or_full(partial.clone(), bundle_path(dir, n, FULL), LONGEST_BUNDLE)?;
    let mut entries = split_entries(&bytes)
        .ok_or_else(|| Fault::Malformed { path: path.clone(), reason: "an entry is cut off".to_owned() })?;
    if path != partial {
        entries.truncate(width as usize);
    }
    Ok((path, entries))
}

/// Puts an entry's length before it, as bundles and the journal hold it.
pub(crate) fn join_entry(out: &mut Vec<u8>, entry: &[u8]) {
    let length = u16::try_from(entry.len()).expect("entries longer than two bytes can say are refused when handed in");
    out.extend(length.to_be_bytes());
    out.extend(entry);
}

/// Takes entries apart again; none if the last one is cut off.
pub(crate) fn split_entries(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (entry, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        entries.push(entry.to_vec());
        bytes = rest;
    }
    Some(entries)
}

/// Reads the checkpoint of a log; none if it has none.
pub(crate) fn read_checkpoint(dir: &Path, verifier: &Verifier) -> Result<Option<Checkpoint>, Fault> {
    let path = checkpoint_path(dir);
    match read(&path, LONGEST_NOTE)? {
        Some(note) => Checkpoint::open_as(&note, verifier, &path.display().to_string()).map(Some),
        None => Ok(None),
    }
}

/// Reads a file of no more than that many bytes; none if it is not there.
pub(crate) fn read(path: &Path, longest: usize) -> Result<Option<Vec<u8>>, Fault> {
    let unreadable = |e: io::Error| Fault::Io { action: "read", path: path.to_path_buf(), reason: e.to_string() };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(unreadable(e)),
    };
    let mut bytes = Vec::new();
    file.take(longest as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > longest {
        let reason = format!("it has more than {longest} bytes");
        return Err(Fault::Malformed { path: path.to_path_buf(), reason });
    }
    Ok(Some(bytes))
}

/// The full tile in a tile's place.
fn full(place: Place) -> Place {
    Place { width: FULL, ..place }
}

/// Reads a file, or the other if it is not there.
fn read_or_full(partial: PathBuf, full: PathBuf, longest: usize) -> Result<(PathBuf, Vec<u8>), Fault> {
    if let Some(bytes) = read(&partial, longest)? {
        return Ok((partial, bytes));
    }
    match read(&full, longest)? {
        Some(bytes) => Ok((full, bytes)),
        None => Err(Fault::Missing { path: partial }),
    }
}

/// How many files of a batch are open at a time.
const MOST_OPEN: usize = 64;

/// How many syncs run at a time: the system does several in hardly more time than one.
const SYNCS: usize = 8;

/// Files that become durable together.
#[derive(Default)]
pub(crate) struct Batch {
    /// Written and not yet synced.
    files: Vec<(NamedTempFile, PathBuf)>,
    /// The folders that got new names.
    folders: BTreeSet<PathBuf>,
}

impl Batch {
    /// Writes a file whole: readers find the old one or the new one. Durable after [`Batch::finish`].
    pub(crate) fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<(), LedgerError> {
        let folder = parent(path);
        self.make(&folder)?;
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(&folder)
            .map_err(LedgerError::io("create", path))?;
        file.write_all(bytes).map_err(LedgerError::io("write", path))?;
        self.files.push((file, path.to_path_buf()));
        self.folders.insert(folder);
        if self.files.len() < MOST_OPEN { Ok(()) } else { self.place() }
    }

    /// Makes a folder and those above it.
    fn make(&mut self, folder: &Path) -> Result<(), LedgerError> {
        if folder.is_dir() {
            return Ok(());
        }
        let above = parent(folder);
        self.make(&above)?;
        match fs::create_dir(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(LedgerError::io("create", folder)(e)),
            _ => {
                self.folders.insert(above);
                Ok(())
            }
        }
    }

    /// Makes everything durable.
    pub(crate) fn finish(mut self) -> Result<(), LedgerError> {
        self.place()?;
        let folders: Vec<_> = self.folders.into_iter().collect();
        together(&folders, |folder| sync(folder))
    }

    /// Syncs the files and puts them in their places.
    fn place(&mut self) -> Result<(), LedgerError> {
        together(&self.files, |(file, path)| file.as_file().sync_data().map_err(LedgerError::io("write", path)))?;
        self.files.drain(..).try_for_each(|(file, path)| {
            file.persist(&path).map(drop).map_err(|e| LedgerError::io("write", &path)(e.error))
        })
    }
}

/// Does something with every item, several at a time.
fn together<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<(), LedgerError> + Sync) -> Result<(), LedgerError> {
    let share = items.len().div_ceil(SYNCS).max(1);
    if items.len() <= 1 {
        return items.iter().try_for_each(work);
    }
    let work = &work;
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for part in items.chunks(share) {
            let task = move || part.iter().try_for_each(work);
            match thread::Builder::new().spawn_scoped(scope, task) {
                Ok(worker) => workers.push(worker),
                // No thread to be had: do it here.
                Err(_) => task()?,
            }
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("a sync answers and does not panic"))
    })
}

/// Writes one file whole and durably.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), LedgerError> {
    let mut batch = Batch::default();
    batch.write(path, bytes)?;
    batch.finish()
}

/// Makes the name of a file durable.
pub(crate) fn sync_parent(path: &Path) -> Result<(), LedgerError> {
    sync(&parent(path))
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> Result<(), LedgerError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(LedgerError::io("sync", folder))
}

/// Deletes what a killed writer left unfinished in a folder.
pub(crate) fn sweep(folder: &Path) -> Result<(), LedgerError> {
    for entry in fs::read_dir(folder).map_err(LedgerError::io("read", folder))? {
        let path = entry.map_err(LedgerError::io("read", folder))?.path();
        if is_unfinished(&path) {
            fs::remove_file(&path).map_err(LedgerError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Whether a file is one that was never finished.
pub(crate) fn is_unfinished(path: &Path) -> bool {
    path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(UNFINISHED))
}

/// The folder a path lies in.
pub(crate) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_and_bundles_lie_where_the_specification_puts_them() {
        // The examples of c2sp.org/tlog-tiles.
        let tile = |level, n, width| tile_path(Path::new(""), Place { level, n, width }).display().to_string();
        assert_eq!(tile(0, 1_234_067, FULL), "tile/0/x001/x234/067");
        assert_eq!(tile(1, 0, 1), "tile/1/000.p/1");
        assert_eq!(tile(0, 273, 112), "tile/0/273.p/112");
        assert_eq!(bundle_path(Path::new(""), 1_000, FULL).display().to_string(), "tile/entries/x001/000");
        assert_eq!(bundle_path(Path::new(""), 0, 5).display().to_string(), "tile/entries/000.p/5");
    }

    #[test]
    fn entries_come_apart_as_they_were_put_together_and_a_cut_one_is_seen() {
        let entries = [b"".to_vec(), b"x".to_vec(), vec![7; LONGEST_ENTRY]];
        let mut bytes = Vec::new();
        entries.iter().for_each(|e| join_entry(&mut bytes, e));
        assert_eq!(split_entries(&bytes).unwrap(), entries);
        assert_eq!(bytes[..5], [0, 0, 0, 1, b'x']);
        for cut in [1, 3, 4, bytes.len() - 1] {
            assert_eq!(split_entries(&bytes[..cut]), None, "{cut}");
        }
    }
}
