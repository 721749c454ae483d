//! Finds a text in the folder's files.

use std::io::Read;

use episode::{Cause, ToolSpec};
use gate::Answer;
use rustix::fs::{Dir, FileType, OFlags};
use serde_json::{Map, Value};

use super::beneath::Beneath;
use super::{Tool, Workplace, found, refused, text, texts};

const NAME: &str = "search_files";
/// Lines that are shown.
const MAX_LINES: usize = 200;
/// Files that are looked at.
const MAX_FILES: usize = 10_000;
/// Bytes of a file that are looked at.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// See the [module](self).
pub(super) struct SearchFiles(pub(super) Workplace);

impl Tool for SearchFiles {
    fn spec(&self) -> ToolSpec {
        let fields = [("text", "to find, as it stands")];
        ToolSpec::new(NAME, "Finds a text in all files: lines as path:number:line.", "search", texts(&fields))
            .touching(["internal"])
    }

    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause> {
        let wanted = match text(arguments, "text") {
            Ok("") => return Ok(refused(NAME, "needed a text to find, got an empty one")),
            Ok(wanted) => wanted,
            Err(why) => return Ok(refused(NAME, why)),
        };
        let broken = |e: std::io::Error| Cause::new("folder", e.to_string());
        let folder = Beneath::open(&self.0.folder).map_err(broken)?;
        let (mut lines, mut waiting, mut n_files) = (Vec::new(), vec![String::new()], 0);
        while let Some(path) = waiting.pop() {
            // What vanishes or may not be read meanwhile holds nothing to find.
            let Ok(open) = folder.at(&path, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            let mut names: Vec<(String, FileType)> = Dir::read_from(&open)
                .map_err(|e| broken(e.into()))?
                .filter_map(Result::ok)
                .map(|e| (e.file_name().to_string_lossy().into_owned(), e.file_type()))
                .filter(|(name, _)| name != "." && name != "..")
                .collect();
            names.sort_by(|a, b| b.0.cmp(&a.0));
            for (name, kind) in names.into_iter().rev() {
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                match kind {
                    FileType::Directory => waiting.push(path),
                    FileType::RegularFile if n_files < MAX_FILES => {
                        n_files += 1;
                        let mut bytes = Vec::new();
                        let file = folder.at(&path, OFlags::RDONLY | OFlags::NONBLOCK);
                        if file.and_then(|f| f.take(MAX_FILE_BYTES).read_to_end(&mut bytes)).is_err() {
                            continue;
                        }
                        let body = String::from_utf8_lossy(&bytes);
                        let hits = body.lines().enumerate().filter(|(_, line)| line.contains(wanted));
                        lines.extend(hits.map(|(n, line)| format!("{path}:{}:{}", n + 1, line.trim_end())));
                    }
                    _ => {}
                }
                if lines.len() > MAX_LINES {
                    lines.truncate(MAX_LINES);
                    lines.push("… and more".to_owned());
                    return Ok(found(NAME, lines.join("\n")));
                }
            }
        }
        Ok(if lines.is_empty() { found(NAME, "(nothing found)") } else { found(NAME, lines.join("\n")) })
    }
}
