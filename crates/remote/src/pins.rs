//! Plugins as they were accepted: tools of MCP servers and folders of skills, each by the digest of all that it said.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mcp::Listed;
use crate::skill::Skill;

/// Why the file of accepted plugins cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} `{}`: {reason}", path.display())]
pub struct PinsError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub reason: String,
}

/// Which plugins were accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pins {
    path: PathBuf,
    file: File,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    /// By server and tool.
    mcp: BTreeMap<String, BTreeMap<String, String>>,
    skills: BTreeMap<String, String>,
}

/// The one form of the file there is.
const VERSION: u32 = 1;

impl Pins {
    /// Reads a file of accepted plugins; one that is not there has none.
    ///
    /// - Errors: a file that cannot be read or makes no sense is never taken for an empty one.
    pub fn open(path: impl Into<PathBuf>) -> Result<Pins, PinsError> {
        let path = path.into();
        let file = match fs::read(&path) {
            Ok(bytes) => read(&path, &bytes)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                File { version: VERSION, mcp: BTreeMap::new(), skills: BTreeMap::new() }
            }
            Err(e) => return Err(PinsError { action: "read", path, reason: e.to_string() }),
        };
        Ok(Pins { path, file })
    }

    /// The digest under which a tool was accepted.
    pub fn tool(&self, server: &str, tool: &str) -> Option<&str> {
        self.file.mcp.get(server)?.get(tool).map(String::as_str)
    }

    /// The digest under which a skill was accepted.
    pub fn skill(&self, name: &str) -> Option<&str> {
        self.file.skills.get(name).map(String::as_str)
    }

    /// Accepts tools of a server as they are now, in the file too.
    ///
    /// - Holds: the file is replaced as a whole or not at all.
    pub fn accept_tools<'a>(
        &mut self,
        server: &str,
        tools: impl IntoIterator<Item = &'a Listed>,
    ) -> Result<(), PinsError> {
        let mut file = self.file.clone();
        let pinned = file.mcp.entry(server.to_owned()).or_default();
        pinned.extend(tools.into_iter().map(|t| (t.name.clone(), t.digest.clone())));
        self.write(file)
    }

    /// Accepts a skill as it is now, in the file too.
    pub fn accept_skill(&mut self, skill: &Skill) -> Result<(), PinsError> {
        let mut file = self.file.clone();
        file.skills.insert(skill.name.clone(), skill.digest.clone());
        self.write(file)
    }

    /// Takes back what was accepted of a server.
    pub fn forget_server(&mut self, server: &str) -> Result<(), PinsError> {
        let mut file = self.file.clone();
        file.mcp.remove(server);
        self.write(file)
    }

    /// Takes back a skill.
    pub fn forget_skill(&mut self, name: &str) -> Result<(), PinsError> {
        let mut file = self.file.clone();
        file.skills.remove(name);
        self.write(file)
    }

    fn write(&mut self, file: File) -> Result<(), PinsError> {
        let bad = |e: std::io::Error| PinsError { action: "write", path: self.path.clone(), reason: e.to_string() };
        let mut text = serde_json::to_vec_pretty(&file).expect("texts and numbers always serialise");
        text.push(b'\n');
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = self.path.file_name().ok_or_else(|| bad(std::io::Error::other("it names no file")))?;
        let draft = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
        let written = fs::File::create(&draft)
            .and_then(|mut f| f.write_all(&text).and_then(|()| f.sync_all()))
            .and_then(|()| fs::rename(&draft, &self.path));
        if let Err(error) = written {
            drop(fs::remove_file(&draft));
            return Err(bad(error));
        }
        self.file = file;
        Ok(())
    }
}

fn read(path: &Path, bytes: &[u8]) -> Result<File, PinsError> {
    let bad = |reason: String| PinsError { action: "use", path: path.to_owned(), reason };
    let file: File = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    if file.version != VERSION {
        return Err(bad(format!("needed version {VERSION}, got {}", file.version)));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_that_make_no_sense_are_never_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pins");
        let good = r#"{"version": 1, "mcp": {"s": {"t": "d"}}, "skills": {"k": "e"}}"#;
        std::fs::write(&path, good).unwrap();
        let pins = Pins::open(&path).unwrap();
        assert_eq!((pins.tool("s", "t"), pins.tool("s", "u"), pins.skill("k")), (Some("d"), None, Some("e")));
        for odd in ["", "[]", &good.replace('1', "2"), &good.replace("skills", "skulls"), &good[..20]] {
            std::fs::write(&path, odd).unwrap();
            assert!(matches!(Pins::open(&path), Err(PinsError { action: "use", .. })), "{odd}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let mut nowhere = Pins::open(folder.path().join("no/such/file")).unwrap();
        let listed = Listed {
            name: "t".to_owned(),
            description: String::new(),
            parameters: serde_json::Value::Null,
            digest: "d".to_owned(),
        };
        assert!(matches!(nowhere.accept_tools("s", [&listed]), Err(PinsError { action: "write", .. })));
        assert_eq!(nowhere.tool("s", "t"), None);
    }
}
