//! One's own tasks from a file (as in `jsonl`), judged by one's own program (as in the grader `command`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::tasks::{Loaded, Source};
use crate::{EnvError, grader, jsonl};

/// Which files, and which program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The tasks, relative to the run file.
    pub tasks: PathBuf,
    /// A file of held-out tasks; without it a share of `tasks` is held out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<PathBuf>,
    /// The share of `tasks` that is held out, chosen by content; 0.1 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_share: Option<f64>,
    /// The program and its arguments; it runs in the run file's folder.
    pub command: Vec<String>,
    /// How long one answer may take.
    #[serde(default = "grader::command::default_deadline_s")]
    pub deadline_s: f64,
    /// Whether the program stays alive and answers one line for each line.
    #[serde(default)]
    pub stay_alive: bool,
    /// Environment variables it gets, besides the few every program needs.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}

impl Source for Settings {
    fn load(&self, env: &str, base: &Path) -> Result<Loaded, EnvError> {
        let Settings { tasks, held_out, held_out_share, .. } = self.clone();
        jsonl::Settings { tasks, held_out, held_out_share }.load(env, base)
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        let Settings { command, deadline_s, stay_alive, variables, .. } = self.clone();
        Some(grader::Kind::Command(grader::command::Settings { command, deadline_s, stay_alive, variables }))
    }
}
