//! A file that is being fetched, as it lies on the disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::{RemoteError, disk};

/// A file to fetch.
pub(crate) struct Wanted<'a> {
    pub(crate) url: &'a str,
    /// A plain name, checked by the caller.
    pub(crate) name: &'a str,
    /// Where it goes.
    pub(crate) folder: &'a Path,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) sha256: Option<&'a str>,
}

/// The unfinished file and, beside it, the server's mark of the version it belongs to.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    tag: PathBuf,
}

impl Part {
    pub(crate) fn of(file: &Wanted<'_>) -> Self {
        let name = format!(".{}.part", file.name);
        let tag = file.folder.join(format!(".{}.etag", file.name));
        Part { path: file.folder.join(&name), name, tag }
    }

    pub(crate) fn have(&self) -> Result<u64, RemoteError> {
        Ok(disk::size_if_there(&self.path)?.unwrap_or(0))
    }

    pub(crate) fn tag(&self) -> Option<String> {
        fs::read_to_string(&self.tag).ok().filter(|t| t.len() > 1 && t.starts_with('"') && t.ends_with('"'))
    }

    /// Empties the part and then notes the version, so that a mark never stands beside bytes of another version.
    pub(crate) fn start(&self, tag: Option<String>) -> Result<(), RemoteError> {
        self.discard()?;
        File::create(&self.path).map_err(RemoteError::io("create", &self.path))?;
        match tag {
            Some(tag) => fs::write(&self.tag, tag).map_err(RemoteError::io("write", &self.tag)),
            None => Ok(()),
        }
    }

    pub(crate) fn discard(&self) -> Result<(), RemoteError> {
        disk::remove_file(&self.path)?;
        disk::remove_file(&self.tag)
    }

    pub(crate) fn finish(&self, to: &Path) -> Result<(), RemoteError> {
        // An empty file may never have been begun.
        File::options().create(true).append(true).open(&self.path).map_err(RemoteError::io("create", &self.path))?;
        fs::rename(&self.path, to).map_err(RemoteError::io("rename", &self.path))?;
        disk::remove_file(&self.tag)
    }
}
