//! Writes a text file, whole.

use std::io::Write;

use episode::{Cause, ToolSpec};
use gate::Answer;
use rustix::fs::OFlags;
use serde_json::{Map, Value};

use super::beneath::Beneath;
use super::{Tool, Workplace, done, refused, said, text, texts};

const NAME: &str = "write_file";

/// See the [module](self).
pub(super) struct WriteFile(pub(super) Workplace);

impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        let fields = [("path", "of the file, relative to the folder"), ("text", "that it is to hold, all of it")];
        ToolSpec::new(NAME, "Writes a text file, in place of what it held.", "update", texts(&fields))
            .touching(["internal"])
    }

    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause> {
        let (path, body) = match (text(arguments, "path"), text(arguments, "text")) {
            (Ok(path), Ok(body)) => (path, body),
            (Err(why), _) | (_, Err(why)) => return Ok(refused(NAME, why)),
        };
        let folder = Beneath::open(&self.0.folder).map_err(|e| Cause::new("folder", e.to_string()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
        let written = folder
            .make_parents(path)
            .and_then(|()| folder.at(path, flags))
            .and_then(|mut file| file.write_all(body.as_bytes()));
        Ok(match written {
            Ok(()) => done(NAME, format!("wrote {} bytes to `{path}`", body.len())),
            Err(e) => refused(NAME, said(&e, path)),
        })
    }
}
