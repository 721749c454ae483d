//! Where tasks come from: made or read, and split in two for good.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use episode::random::Stream;
use episode::{Message, Task, TaskId};
use serde::de::DeserializeOwned;

use crate::stage::Stage;
use crate::{EnvError, grader};

/// Makes the tasks of one kind of environment.
pub(crate) trait Source {
    fn load(&self, env: &str, base: &Path) -> Result<Loaded, EnvError>;

    /// The grader that belongs to the kind, unless the run file has to name one.
    fn own_grader(&self) -> Option<grader::Kind>;
}

pub(crate) struct Loaded {
    pub(crate) train: Vec<Task>,
    pub(crate) held_out: Vec<Task>,
    pub(crate) gold_reply: GoldReply,
    pub(crate) stage: Option<Box<dyn Stage>>,
}

/// Tells a reply to a task that deserves full marks, where one is known.
pub(crate) type GoldReply = Box<dyn Fn(&Task) -> Option<String> + Send + Sync>;

/// Makes the settings of an environment whose tasks stand in files: the keys that name the files, then the kind's own.
///
/// It is a macro, since a flattened struct would lose the list of known keys in the refusal of an unknown one.
macro_rules! file_settings {
    ($(#[$doc:meta])* { $($own:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            /// The tasks, relative to the run file.
            pub tasks: std::path::PathBuf,
            /// A file of held-out tasks; without it a share of `tasks` is held out.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub held_out: Option<std::path::PathBuf>,
            /// The share of `tasks` that is held out, chosen by content; 0.1 if not given.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub held_out_share: Option<f64>,
            $($own)*
        }

        impl Settings {
            fn files<'a>(&'a self, env: &'a str, base: &'a std::path::Path) -> $crate::tasks::Files<'a> {
                $crate::tasks::Files {
                    env,
                    base,
                    tasks: &self.tasks,
                    held_out: self.held_out.as_deref(),
                    held_out_share: self.held_out_share,
                }
            }
        }
    };
}
pub(crate) use file_settings;

/// The share of a file's tasks that is held out when no file of its own holds them.
pub(crate) const DEFAULT_HELD_OUT_SHARE: f64 = 0.1;

/// A file of tasks, and how its held-out side is found.
pub(crate) struct Files<'a> {
    pub(crate) env: &'a str,
    pub(crate) base: &'a Path,
    pub(crate) tasks: &'a Path,
    pub(crate) held_out: Option<&'a Path>,
    pub(crate) held_out_share: Option<f64>,
}

impl Files<'_> {
    /// Reads a task from every line that is not blank.
    ///
    /// - Holds: without a file of their own, the hash of a task's messages decides on which side it is, so neither the order
    ///   of the file nor another answer to the same question moves it.
    /// - Errors: [`EnvError::Line`] for a line that is no task or repeats another one, in either file.
    pub(crate) fn read<L: DeserializeOwned>(
        &self,
        mut make: impl FnMut(L) -> Result<Task, String>,
    ) -> Result<(Vec<Task>, Vec<Task>), EnvError> {
        let mut seen = BTreeMap::new();
        let tasks = read_file(&self.base.join(self.tasks), &mut make, &mut seen)?;
        let refuse = |reason: &str| EnvError::Setting {
            env: self.env.to_owned(),
            key: "held_out_share".to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(path) = self.held_out {
            if self.held_out_share.is_some() {
                return Err(refuse("would be ignored, since `held_out` names a file"));
            }
            return Ok((tasks, read_file(&self.base.join(path), &mut make, &mut seen)?));
        }
        let share = self.held_out_share.unwrap_or(DEFAULT_HELD_OUT_SHARE);
        if !(0.0..1.0).contains(&share) {
            return Err(refuse(&format!("is {share}, needed a number from 0 to below 1")));
        }
        Ok(tasks.into_iter().partition(|task| !is_held_out(&task.messages, share)))
    }
}

fn is_held_out(messages: &[Message], share: f64) -> bool {
    let text: Vec<&str> = messages.iter().flat_map(|m| [m.role.as_str(), &m.content]).collect();
    Stream::new(&format!("held out\u{0}{}", text.join("\u{0}")), &[]).uniform(0) < share
}

fn read_file<L: DeserializeOwned>(
    path: &Path,
    make: impl FnMut(L) -> Result<Task, String>,
    seen: &mut BTreeMap<TaskId, (PathBuf, usize)>,
) -> Result<Vec<Task>, EnvError> {
    let bytes = std::fs::read(path).map_err(|source| EnvError::File { path: path.to_owned(), source })?;
    parse(path, &bytes, make, seen)
}

/// The tasks in a file's bytes; `path` is for messages.
pub(crate) fn parse<L: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    mut make: impl FnMut(L) -> Result<Task, String>,
    seen: &mut BTreeMap<TaskId, (PathBuf, usize)>,
) -> Result<Vec<Task>, EnvError> {
    let mut tasks = Vec::new();
    for (index, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let refuse = |reason| EnvError::Line { path: path.to_owned(), line: index + 1, reason };
        let line = serde_json::from_slice(line).map_err(|e| refuse(without_line(&e)))?;
        let task = make(line).map_err(refuse)?;
        if let Some((first, n)) = seen.insert(task.id.clone(), (path.to_owned(), index + 1)) {
            return Err(refuse(format!("repeats the task of `{}` line {n}", first.display())));
        }
        tasks.push(task);
    }
    if tasks.is_empty() {
        return Err(EnvError::Line {
            path: path.to_owned(),
            line: 1,
            reason: "needed at least 1 task, got 0".to_owned(),
        });
    }
    Ok(tasks)
}

/// The parser counts lines within the one line it sees; the column is worth keeping.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map_or(&*text, |(reason, _)| reason);
    format!("{reason} (column {})", error.column())
}
