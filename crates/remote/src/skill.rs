//! Agent Skills: folders of instructions, whose declared tools are a ceiling.
//!
//! A folder holds `SKILL.md`, a head of a few fields and a body of instructions, and whatever files the body speaks of.
//! The head gives no rights: the tools it names are the most that may be used while it is followed, never a permission.
//! A folder says nothing of its own integrity, so it has a digest over all its files, and is used only as it was accepted
//! ([`crate::Pins`]).
//!
//! - Source: agentskills.io, specification.

mod ceiling;
mod front;

#[cfg(test)]
mod tests;

pub use ceiling::{Allowed, Ceiling};

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use front::Field;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Pins;

/// The file that makes a folder a skill.
const SKILL_FILE: &str = "SKILL.md";
/// Files of a folder, folders inside each other, bytes of all files, bytes of `SKILL.md`.
const MAX_FILES: usize = 2000;
const MAX_DEPTH: usize = 16;
const MAX_BYTES: u64 = 64 << 20;
const MAX_SKILL_BYTES: u64 = 256 << 10;
/// The most lines of a body that the specification advises.
const ADVISED_LINES: usize = 500;

/// Why a folder is no skill, or one that may not be used.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder holds something that a skill may not.
    #[error("`{}` cannot be part of a skill: {reason}", path.display())]
    NotAFile {
        /// What.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// Too much.
    #[error("skill folder `{}` is too large: needed at most {limit} {what}", folder.display())]
    TooLarge {
        /// The folder.
        folder: PathBuf,
        /// Of what.
        what: &'static str,
        /// How many.
        limit: u64,
    },
    /// The head cannot be read.
    #[error("line {line} of `{}`: {reason}", path.display())]
    Head {
        /// The file.
        path: PathBuf,
        /// Which line of it, from 1.
        line: usize,
        /// What is wrong, needed and got.
        reason: String,
    },
    /// A field is missing or against the rules.
    #[error("`{field}` of `{}`: {reason}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Which one.
        field: String,
        /// What is wrong, needed and got.
        reason: String,
    },
    /// Nobody accepted it.
    #[error("skill `{name}` was not accepted yet")]
    NotAccepted {
        /// Its name.
        name: String,
    },
    /// It is not what was accepted.
    #[error("skill `{name}` changed since it was accepted ({accepted} then, {now} now)")]
    Changed {
        /// Its name.
        name: String,
        /// The digest that was accepted.
        accepted: String,
        /// The digest it has now.
        now: String,
    },
}

/// A folder of instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Its name, which is also the folder's.
    pub name: String,
    /// What it does and when to follow it.
    pub description: String,
    /// Its licence, as it says.
    pub license: Option<String>,
    /// What it needs around it, as it says.
    pub compatibility: Option<String>,
    /// Anything else it says.
    pub metadata: BTreeMap<String, String>,
    /// The most tools that may be used while it is followed; none declared, no ceiling of its own.
    pub ceiling: Option<Ceiling>,
    /// The instructions.
    pub body: String,
    /// Where it lies.
    pub folder: PathBuf,
    /// The SHA-256, in hexadecimal, over every file's path, contents and leave to be run.
    pub digest: String,
    /// What is against the specification's advice, though not against its rules.
    pub notes: Vec<String>,
}

impl Skill {
    /// Reads a folder.
    ///
    /// - Holds: the digest depends on the names, contents and run flags of the files alone, not on the machine, the order of
    ///   its directory or the time.
    /// - Errors: [`SkillError`]; links and devices are refused, since what they show can change without the folder changing.
    pub fn read(folder: &Path) -> Result<Skill, SkillError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SkillError::Io { action, path, source }
        };
        let whole = folder.canonicalize().map_err(io("find", folder))?;
        let mut walk = Walk { folder: &whole, files: Vec::new(), bytes: 0, main: None };
        walk.enter(&whole, 0)?;
        walk.files.sort();
        let digest = digest(&ledger::canonical(&walk.files).expect("texts and flags have a canonical form"));
        let path = whole.join(SKILL_FILE);
        let Some(main) = walk.main else {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(SkillError::Io { action: "read", path, source: missing });
        };
        let name = whole.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let mut skill = parse(&main, name, &path)?;
        (skill.folder, skill.digest) = (whole.clone(), digest);
        Ok(skill)
    }

    /// Reads a folder that was accepted, and refuses any other.
    ///
    /// - Errors: `NotAccepted`, `Changed`, and those of [`Skill::read`].
    pub fn accepted(folder: &Path, pins: &Pins) -> Result<Skill, SkillError> {
        let skill = Skill::read(folder)?;
        match pins.skill(&skill.name) {
            None => Err(SkillError::NotAccepted { name: skill.name }),
            Some(accepted) if accepted != skill.digest => {
                Err(SkillError::Changed { name: skill.name, accepted: accepted.to_owned(), now: skill.digest })
            }
            Some(_) => Ok(skill),
        }
    }
}

/// What the digest is over: one file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Part {
    path: String,
    runs: bool,
    sha256: String,
}

struct Walk<'a> {
    folder: &'a Path,
    files: Vec<Part>,
    bytes: u64,
    main: Option<String>,
}

impl Walk<'_> {
    fn enter(&mut self, here: &Path, depth: usize) -> Result<(), SkillError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SkillError::Io { action, path, source }
        };
        let too_large = |what, limit| SkillError::TooLarge { folder: self.folder.to_owned(), what, limit };
        if depth > MAX_DEPTH {
            return Err(too_large("folders inside each other", MAX_DEPTH as u64));
        }
        for entry in fs::read_dir(here).map_err(io("read", here))? {
            let path = entry.map_err(io("read", here))?.path();
            let found = fs::symlink_metadata(&path).map_err(io("look at", &path))?;
            if found.is_dir() {
                self.enter(&path, depth + 1)?;
                continue;
            }
            if !found.is_file() {
                let reason = if found.is_symlink() { "it is a link" } else { "it is no plain file" };
                return Err(SkillError::NotAFile { path, reason });
            }
            self.bytes += found.len();
            let too_large = |what, limit| Err(SkillError::TooLarge { folder: self.folder.to_owned(), what, limit });
            if self.files.len() >= MAX_FILES {
                return too_large("files", MAX_FILES as u64);
            }
            if self.bytes > MAX_BYTES {
                return too_large("bytes", MAX_BYTES);
            }
            let Some(name) = path.strip_prefix(self.folder).ok().and_then(Path::to_str).map(str::to_owned) else {
                return Err(SkillError::NotAFile { path, reason: "its name is not UTF-8" });
            };
            let bytes = fs::read(&path).map_err(io("read", &path))?;
            let runs = found.permissions().mode() & 0o111 != 0;
            self.files.push(Part { path: name.clone(), runs, sha256: digest(&bytes) });
            if name == SKILL_FILE {
                if bytes.len() as u64 > MAX_SKILL_BYTES {
                    return too_large("bytes of `SKILL.md`", MAX_SKILL_BYTES);
                }
                // The very bytes that went into the digest are the ones that are followed.
                let text = String::from_utf8(bytes);
                self.main = Some(text.map_err(|_| SkillError::NotAFile { path, reason: "it is not UTF-8" })?);
            }
        }
        Ok(())
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Takes `SKILL.md` apart and checks its fields.
fn parse(text: &str, folder: &str, path: &Path) -> Result<Skill, SkillError> {
    let (fields, body) =
        front::split(text).map_err(|(line, reason)| SkillError::Head { path: path.to_owned(), line, reason })?;
    let bad =
        |field: &str, reason: String| SkillError::Field { path: path.to_owned(), field: field.to_owned(), reason };
    let mut skill = Skill {
        name: String::new(),
        description: String::new(),
        license: None,
        compatibility: None,
        metadata: BTreeMap::new(),
        ceiling: None,
        body: body.trim().to_owned(),
        folder: PathBuf::new(),
        digest: String::new(),
        notes: Vec::new(),
    };
    for (key, field) in fields {
        let got = field.kind();
        match (key.as_str(), field) {
            ("name", Field::Text(text)) => skill.name = text,
            ("description", Field::Text(text)) => skill.description = text,
            ("license", Field::Text(text)) => skill.license = Some(text),
            ("compatibility", Field::Text(text)) => skill.compatibility = Some(text),
            ("metadata", Field::Map(map)) => skill.metadata = map.into_iter().collect(),
            ("allowed-tools", Field::Text(text)) => {
                skill.ceiling = Some(Ceiling::parse(&text).map_err(|e| bad(&key, e))?)
            }
            ("allowed-tools", Field::List(list)) => {
                skill.ceiling = Some(Ceiling::parse(&list.join(" ")).map_err(|e| bad(&key, e))?);
            }
            ("name" | "description" | "license" | "compatibility", _) => {
                return Err(bad(&key, format!("needed a text, got {got}")));
            }
            ("metadata", _) => return Err(bad(&key, format!("needed names with texts, got {got}"))),
            ("allowed-tools", _) => return Err(bad(&key, format!("needed a text or a list, got {got}"))),
            _ => return Err(bad(&key, "there is no such field".to_owned())),
        }
    }
    let length = |field: &str, text: &str, most: usize| match text.chars().count() {
        0 => Err(bad(field, format!("needed 1 to {most} characters, got none"))),
        n if n > most => Err(bad(field, format!("needed 1 to {most} characters, got {n}"))),
        _ => Ok(()),
    };
    length("name", &skill.name, 64)?;
    length("description", skill.description.trim(), 1024)?;
    if let Some(text) = &skill.compatibility {
        length("compatibility", text, 500)?;
    }
    let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !skill.name.bytes().all(letters)
        || skill.name.starts_with('-')
        || skill.name.ends_with('-')
        || skill.name.contains("--")
    {
        let reason = format!("needed lower-case letters, digits and single hyphens between them, got `{}`", skill.name);
        return Err(bad("name", reason));
    }
    if skill.name != folder {
        return Err(bad("name", format!("needed the folder's name `{folder}`, got `{}`", skill.name)));
    }
    let lines = skill.body.lines().count();
    if lines > ADVISED_LINES {
        skill.notes.push(format!("its instructions have {lines} lines; at most {ADVISED_LINES} are advised"));
    }
    Ok(skill)
}
