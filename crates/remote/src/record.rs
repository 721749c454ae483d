//! What the store knows about a model, and which names are names.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{KnownModel, RemoteError};

/// The record's file name inside a model's folder.
pub const RECORD_FILE: &str = "model.json";

/// The record's version; another one is refused.
pub(crate) const RECORD_FORMAT: u32 = 1;

/// Begins the names of models that came from a hub, so that nothing else can pass for one.
pub(crate) const HUB_PREFIX: &str = "hf-";

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name inside the model's folder.
    pub file: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// What is known about an installed model; written last, so that a model with a record is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecord {
    /// The record's own version.
    pub format: u32,
    /// The model's name.
    pub name: String,
    /// Where it came from: `pip:PACKAGE==VERSION`, `hf:ORG/NAME@COMMIT` or `import:PATH`.
    pub source: String,
    /// Its licence, where the source says it.
    pub licence: Option<String>,
    /// When it was installed, in seconds since 1970 UTC.
    pub installed_unix_s: u64,
    /// Its files, by name.
    pub files: Vec<FileRecord>,
}

impl ModelRecord {
    /// The size of all its files.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size_bytes).sum()
    }

    /// What a loader is given: the one GGUF file, or the folder.
    pub(crate) fn entry(&self, folder: &Path) -> PathBuf {
        match self.files.as_slice() {
            [one] if one.file.ends_with(".gguf") => folder.join(&one.file),
            _ => folder.to_path_buf(),
        }
    }

    /// Reads the record in a model's folder; what it says of itself must fit that folder.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<ModelRecord, RemoteError> {
        let path = folder.join(RECORD_FILE);
        let damaged = |reason: String| RemoteError::Damaged { path: path.clone(), reason };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(damaged("it is missing".into())),
            Err(e) => return Err(RemoteError::io("read", &path)(e)),
        };
        let record: ModelRecord = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if record.format != RECORD_FORMAT {
            return Err(damaged(format!("needed format {RECORD_FORMAT}, got {}", record.format)));
        }
        if record.name != name {
            return Err(damaged(format!("needed the record of `{name}`, got that of `{}`", record.name)));
        }
        if record.files.is_empty() {
            return Err(damaged("it lists no file".into()));
        }
        match record.files.iter().find(|f| !is_plain_file_name(&f.file)) {
            Some(bad) => Err(damaged(format!("it lists `{}`, which is not a plain file name", bad.file))),
            None => Ok(record),
        }
    }

    /// Whether these are the bits a known name means.
    pub(crate) fn is(&self, known: &KnownModel) -> bool {
        matches!(self.files.as_slice(), [one] if one.sha256 == known.sha256 && one.size_bytes == known.size_bytes)
    }
}

/// Whether this names a file directly inside a folder: no separator, no `..`, nothing hidden, not the record.
pub(crate) fn is_plain_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.starts_with('.')
        && !name.contains(['/', '\\', '\0'])
        && name != RECORD_FILE
}

/// Whether a name can be that of a model in the store.
pub(crate) fn check_name(name: &str) -> Result<(), RemoteError> {
    let bad = |reason| Err(RemoteError::BadName { name: name.to_string(), reason });
    if name.is_empty() || name.len() > 200 {
        return bad("needed 1 to 200 characters");
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@')) {
        return bad("needed letters, digits, `-`, `_` and `.` only");
    }
    if !name.as_bytes()[0].is_ascii_alphanumeric() {
        return bad("needed a letter or digit first");
    }
    Ok(())
}

/// Whether a name can be given to a model by hand.
pub(crate) fn check_new_name(name: &str) -> Result<(), RemoteError> {
    check_name(name)?;
    let bad = |reason| Err(RemoteError::BadName { name: name.to_string(), reason });
    if name.contains('@') {
        return bad("`@` names a commit or a step, needed a name without it");
    }
    if name.starts_with(HUB_PREFIX) {
        return bad("`hf-` begins the names of models from a hub, needed another beginning");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_store() {
        for good in ["smollm2-135m", "a", "Qwen2.5_x", "hf-o--n@0123"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "-x", "a b", "é", "a\0", &"x".repeat(201)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for bad in ["hf-o--n", "a@b"] {
            assert!(check_new_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn file_names_are_plain() {
        for good in ["model.safetensors", "a b", "é.gguf"] {
            assert!(is_plain_file_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "/a", "a/", "a/.", "./a", "..\\a", ".git", "a\0", "model.json"] {
            assert!(!is_plain_file_name(bad), "{bad}");
        }
    }
}
