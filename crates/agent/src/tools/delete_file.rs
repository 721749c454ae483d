//! Deletes a file.

use episode::{Cause, ToolSpec};
use gate::Answer;
use rustix::fs::{AtFlags, unlinkat};
use serde_json::{Map, Value};

use super::beneath::Beneath;
use super::{Tool, Workplace, done, refused, said, text, texts};

const NAME: &str = "delete_file";

/// See the [module](self).
pub(super) struct DeleteFile(pub(super) Workplace);

impl Tool for DeleteFile {
    fn spec(&self) -> ToolSpec {
        let path = [("path", "of the file, relative to the folder")];
        ToolSpec::new(NAME, "Deletes a file for good.", "delete", texts(&path)).touching(["internal"])
    }

    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause> {
        let path = match text(arguments, "path") {
            Ok(path) => path,
            Err(why) => return Ok(refused(NAME, why)),
        };
        let folder = Beneath::open(&self.0.folder).map_err(|e| Cause::new("folder", e.to_string()))?;
        let deleted = folder.parent(path).and_then(|(parent, name)| Ok(unlinkat(&parent, &name, AtFlags::empty())?));
        Ok(match deleted {
            Ok(()) => done(NAME, format!("deleted `{path}`")),
            Err(e) => refused(NAME, said(&e, path)),
        })
    }
}
