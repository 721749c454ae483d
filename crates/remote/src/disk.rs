//! Moving, hashing and syncing bytes.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::record::FileRecord;
use crate::{Phase, RemoteError, Watch};

/// How much is moved between two looks at the cancellation flag.
const PIECE: usize = 1 << 20;

/// What is done with which file, for progress.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) phase: Phase,
    pub(crate) file: &'a str,
    pub(crate) total_bytes: Option<u64>,
    /// More than this is never written; the caller sees it by the size.
    pub(crate) limit_bytes: u64,
}

/// Moves everything from a reader to a writer and says how much it was and its hash.
///
/// - Holds: at most one byte beyond the limit is taken, so that a file of another size is told apart without reading it all.
pub(crate) fn pour(
    from: &mut dyn Read,
    from_path: &Path,
    mut into: Option<(&mut File, &Path)>,
    job: Job<'_>,
    watch: Watch<'_>,
) -> Result<FileRecord, RemoteError> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut size_bytes = 0;
    let mut from = from.take(job.limit_bytes.saturating_add(1));
    loop {
        watch.check()?;
        let n = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(RemoteError::io("read", from_path)(e)),
        };
        hash.update(&piece[..n]);
        if let Some((file, path)) = &mut into {
            file.write_all(&piece[..n]).map_err(RemoteError::io("write", path))?;
        }
        size_bytes += n as u64;
        watch.bytes(job.phase, job.file, size_bytes, job.total_bytes);
    }
    Ok(FileRecord { file: job.file.to_string(), size_bytes, sha256: hex(&hash.finalize()) })
}

/// Writes a new file from a reader, down to the disk.
pub(crate) fn write_new(
    from: &mut dyn Read,
    from_path: &Path,
    to: &Path,
    job: Job<'_>,
    watch: Watch<'_>,
) -> Result<FileRecord, RemoteError> {
    let mut file = File::create_new(to).map_err(RemoteError::io("create", to))?;
    let record = pour(from, from_path, Some((&mut file, to)), job, watch)?;
    file.sync_all().map_err(RemoteError::io("sync", to))?;
    Ok(record)
}

/// Reads and hashes a file that lies under `folder`.
pub(crate) fn hash(folder: &Path, name: &str, watch: Watch<'_>) -> Result<FileRecord, RemoteError> {
    let path = folder.join(name);
    let mut file = File::open(&path).map_err(RemoteError::io("read", &path))?;
    let size = file.metadata().map_err(RemoteError::io("read", &path))?.len();
    let job = Job { phase: Phase::Check, file: name, total_bytes: Some(size), limit_bytes: u64::MAX };
    pour(&mut file, &path, None, job, watch)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), RemoteError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(RemoteError::io("sync", folder))
}

/// Removes a folder and all in it; one that is not there is fine.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), RemoteError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(RemoteError::io("remove", folder)(e)),
        _ => Ok(()),
    }
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), RemoteError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(RemoteError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

/// The size of a file; one that is not there has none.
pub(crate) fn size_if_there(path: &Path) -> Result<Option<u64>, RemoteError> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(meta.len())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(RemoteError::io("read", path)(e)),
    }
}

/// The largest file somewhere below a folder; what vanishes meanwhile does not count.
pub(crate) fn largest_below(folder: &Path) -> u64 {
    let mut largest = 0;
    let mut open = vec![folder.to_path_buf()];
    while let Some(here) = open.pop() {
        for entry in fs::read_dir(here).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => open.push(entry.path()),
                Ok(meta) => largest = largest.max(meta.len()),
                Err(_) => {}
            }
        }
    }
    largest
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::Quiet;

    #[test]
    fn a_file_is_written_once_hashed_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("out");
        let cancel = AtomicBool::new(false);
        let watch = Watch::new(&Quiet, &cancel);
        let job = Job { phase: Phase::Copy, file: "out", total_bytes: None, limit_bytes: 3 };
        let record = write_new(&mut &b"abc"[..], Path::new("abc"), &to, job, watch).unwrap();
        assert_eq!(record.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(record.size_bytes, 3);
        assert_eq!(hash(folder.path(), "out", watch).unwrap(), record);
        let error = write_new(&mut &b"abc"[..], Path::new("abc"), &to, job, watch).unwrap_err();
        assert!(error.to_string().contains("File exists"), "{error}");
        let other = folder.path().join("long");
        assert_eq!(write_new(&mut &b"abcdefgh"[..], Path::new("abc"), &other, job, watch).unwrap().size_bytes, 4);
        cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(hash(folder.path(), "out", watch), Err(RemoteError::Cancelled)));
    }
}
