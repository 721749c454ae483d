//! Reads a text file.

use std::io::Read;

use episode::{Cause, ToolSpec};
use gate::Answer;
use rustix::fs::OFlags;
use serde_json::{Map, Value};

use super::beneath::Beneath;
use super::{MAX_ANSWER_BYTES, Tool, Workplace, found, refused, said, text, texts};

const NAME: &str = "read_file";

/// See the [module](self).
pub(super) struct ReadFile(pub(super) Workplace);

impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        let path = [("path", "of the file, relative to the folder")];
        ToolSpec::new(NAME, "Reads a text file.", "read", texts(&path)).touching(["internal"])
    }

    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause> {
        let path = match text(arguments, "path") {
            Ok(path) => path,
            Err(why) => return Ok(refused(NAME, why)),
        };
        let folder = Beneath::open(&self.0.folder).map_err(|e| Cause::new("folder", e.to_string()))?;
        let mut bytes = Vec::new();
        // One byte more than is shown tells that there is more; a file that never ends is read no further.
        let limit = MAX_ANSWER_BYTES as u64 + 1;
        let read = folder.at(path, OFlags::RDONLY | OFlags::NONBLOCK).and_then(|file| {
            if !file.metadata()?.is_file() {
                return Err(std::io::Error::other("it is no file"));
            }
            file.take(limit).read_to_end(&mut bytes)
        });
        Ok(match read {
            Ok(_) => found(NAME, String::from_utf8_lossy(&bytes)),
            Err(e) => refused(NAME, said(&e, path)),
        })
    }
}
