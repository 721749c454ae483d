//! Lists a folder.

use episode::{Cause, ToolSpec};
use gate::Answer;
use rustix::fs::{Dir, FileType, OFlags};
use serde_json::{Map, Value};

use super::beneath::Beneath;
use super::{Tool, Workplace, found, refused, said, text, texts};

const NAME: &str = "list_files";

/// See the [module](self).
pub(super) struct ListFiles(pub(super) Workplace);

impl Tool for ListFiles {
    fn spec(&self) -> ToolSpec {
        let path = [("path", "of the folder, relative to the folder that is open; empty for that one")];
        ToolSpec::new(NAME, "Lists a folder's files and folders; folders end with a slash.", "read", texts(&path))
            .touching(["internal"])
    }

    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause> {
        let path = match text(arguments, "path") {
            Ok(path) => path,
            Err(why) => return Ok(refused(NAME, why)),
        };
        let folder = Beneath::open(&self.0.folder).map_err(|e| Cause::new("folder", e.to_string()))?;
        let mut names = Vec::new();
        let listed = folder.at(path, OFlags::RDONLY | OFlags::DIRECTORY).and_then(|file| {
            for entry in Dir::read_from(&file)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name != "." && name != ".." {
                    names.push(name + if entry.file_type() == FileType::Directory { "/" } else { "" });
                }
            }
            Ok(())
        });
        names.sort();
        Ok(match listed {
            Ok(()) if names.is_empty() => found(NAME, "(empty)"),
            Ok(()) => found(NAME, names.join("\n")),
            Err(e) => refused(NAME, said(&e, path)),
        })
    }
}
