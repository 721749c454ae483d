//! Making a file or folder appear whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::ExportError;

/// Starts the name of everything unfinished.
const UNFINISHED: &str = ".tmp-export-";

/// The folder a path lies in.
pub(super) fn parent(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Refuses a place where something is, be it a link to nothing, and one in no folder.
pub(super) fn free(target: &Path) -> Result<(), ExportError> {
    fs::read_dir(parent(target)).map_err(ExportError::io("write", target))?;
    match fs::symlink_metadata(target) {
        Ok(_) => Err(ExportError::Exists { path: target.to_owned() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ExportError::io("look at", target)(e)),
    }
}

/// The library tells where its own file would have been, which says nothing to the user.
fn plain(error: io::Error) -> io::Error {
    error.kind().into()
}

/// Fills a folder beside its place, syncs what is in it and gives it its name.
pub(super) fn folder(target: &Path, fill: impl FnOnce(&Path) -> Result<(), ExportError>) -> Result<(), ExportError> {
    let failed = ExportError::io("write", target);
    let beside = parent(target);
    let mut builder = tempfile::Builder::new();
    let unfinished = builder
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(&beside)
        .map_err(|e| failed(plain(e)))?;
    fill(unfinished.path())?;
    for entry in fs::read_dir(unfinished.path()).map_err(&failed)? {
        sync(&entry.map_err(&failed)?.path())?;
    }
    sync(unfinished.path())?;
    // A rename would replace an empty folder; that nothing is here was seen before, and now once more.
    free(target)?;
    fs::rename(unfinished.path(), target).map_err(&failed)?;
    // It bears its name now, and must not be removed under the old one.
    let _renamed = unfinished.keep();
    sync(&beside)
}

/// Fills a file beside its place, syncs it and gives it its name.
pub(super) fn file(
    target: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let failed = ExportError::io("write", target);
    let beside = parent(target);
    let mut builder = tempfile::Builder::new();
    let unfinished = builder
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(&beside)
        .map_err(|e| failed(plain(e)))?;
    let mut out = BufWriter::with_capacity(1 << 20, unfinished.as_file());
    fill(&mut out)?;
    out.flush().map_err(&failed)?;
    drop(out);
    unfinished.as_file().sync_all().map_err(&failed)?;
    unfinished.persist_noclobber(target).map_err(|e| match e.error.kind() {
        io::ErrorKind::AlreadyExists => ExportError::Exists { path: target.to_owned() },
        _ => failed(e.error),
    })?;
    sync(&beside)
}

fn sync(path: &Path) -> Result<(), ExportError> {
    File::open(path).and_then(|f| f.sync_all()).map_err(ExportError::io("sync", path))
}

/// The file, or every file of the folder, with its size.
pub(super) fn sizes(target: &Path) -> Result<Vec<(PathBuf, u64)>, ExportError> {
    let failed = ExportError::io("look at", target);
    if !target.is_dir() {
        return Ok(vec![(target.to_owned(), fs::metadata(target).map_err(&failed)?.len())]);
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(target).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        all.push((entry.path(), entry.metadata().map_err(&failed)?.len()));
    }
    all.sort();
    Ok(all)
}
