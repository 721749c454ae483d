//! One's own tasks from a file (as in `jsonl`), judged by one's own program (as in the grader `command`).

use std::collections::BTreeMap;
use std::path::Path;

use crate::tasks::{Loaded, Source, file_settings};
use crate::{EnvError, grader, jsonl};

file_settings! {
    /// Which files, and which program.
    {
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
}

impl Source for Settings {
    fn load(&self, env: &str, base: &Path) -> Result<Loaded, EnvError> {
        jsonl::read(&self.files(env, base))
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        let Settings { command, deadline_s, stay_alive, variables, .. } = self.clone();
        Some(grader::Kind::Command(grader::command::Settings { command, deadline_s, stay_alive, variables }))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Environment, Split, Submission};
    use serde_json::{Value, json};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn the_program_gets_the_meta_of_a_task_as_written_and_never_its_gold_reply() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"{"prompt": "q", "gold": [1], "gold_reply": "secret", "meta": {"gold_reply": 3, "level": 1}}"#;
        std::fs::write(folder.path().join("t.jsonl"), line).unwrap();
        let script = r#"cat > seen; echo '{"reward": 1}'"#;
        let text =
            format!("kind = 'command'\ntasks = 't.jsonl'\nheld_out_share = 0\ncommand = ['sh', '-c', '''{script}''']");
        let env = toml::from_str::<crate::Settings>(&text).unwrap().load(folder.path()).unwrap();
        let task = &env.tasks(Split::Train)[0];
        assert_eq!(env.gold_reply(task).as_deref(), Some("secret"));
        env.grade(&Submission { task, reply: "r", state: &serde_json::Value::Null, cancel: &AtomicBool::new(false) }).unwrap();
        let seen = std::fs::read_to_string(folder.path().join("seen")).unwrap();
        assert!(!seen.contains("secret"), "{seen}");
        let seen: Value = serde_json::from_str(&seen).unwrap();
        assert_eq!(seen["meta"], json!({"gold_reply": 3, "level": 1}));
    }
}
