//! One's own tasks from a file, a JSON object a line.
//!
//! Either `"prompt"` (one user message) or `"messages"` (ending with the user's), and optionally `"gold"` (any JSON, for the
//! grader), `"gold_reply"` (a reply that deserves full marks, for the audit; without it a `gold` that is a text or a number
//! is taken) and `"meta"` (any JSON, kept with the episodes).

use std::collections::BTreeMap;
use std::path::Path;

use episode::{Message, Role, Task, TaskId};
use serde::Deserialize;
use serde_json::Value;

use crate::tasks::{Files, Loaded, Source, file_settings};
use crate::{EnvError, grader};

file_settings! {
    /// Which files.
    {}
}

impl Source for Settings {
    fn load(&self, env: &str, base: &Path) -> Result<Loaded, EnvError> {
        read(&self.files(env, base))
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        None
    }
}

/// Reads the tasks of files.
///
/// - Holds: a reply that deserves full marks stays beside the tasks, so neither graders nor episodes get it.
pub(crate) fn read(files: &Files<'_>) -> Result<Loaded, EnvError> {
    let mut replies = Replies::new();
    let (train, held_out) = files.read(|line: Line| line.task(files.env, &mut replies))?;
    Ok(Loaded { train, held_out, gold_reply: Box::new(move |task| gold_reply(task, &replies)), stage: None })
}

/// The replies that lines give for their tasks.
type Replies = BTreeMap<TaskId, String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Said>>,
    #[serde(default)]
    gold: Value,
    gold_reply: Option<String>,
    #[serde(default)]
    meta: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    role: Role,
    content: String,
}

impl Line {
    fn task(self, env: &str, replies: &mut Replies) -> Result<Task, String> {
        let messages = match (self.prompt, self.messages) {
            (Some(prompt), None) => vec![Message::new(Role::User, prompt)],
            (None, Some(said)) => said.into_iter().map(|s| Message::new(s.role, s.content)).collect(),
            (Some(_), Some(_)) => return Err("needed either `prompt` or `messages`, got both".to_owned()),
            (None, None) => return Err("needed either `prompt` or `messages`, got neither".to_owned()),
        };
        match messages.last().map(|m| m.role) {
            Some(Role::User) => {}
            Some(other) => return Err(format!("the last message must be the user's, got one of `{}`", other.as_str())),
            None => return Err("needed at least 1 message, got 0".to_owned()),
        }
        let task = Task::new(env, messages, self.gold, self.meta);
        replies.extend(self.gold_reply.map(|reply| (task.id.clone(), reply)));
        Ok(task)
    }
}

/// Reads a task file from memory and grades an empty and an odd reply to each task: for fuzzing.
///
/// - Holds: whatever the bytes are, it returns.
pub fn fuzz(bytes: &[u8]) -> Result<(), EnvError> {
    let mut replies = Replies::new();
    let make = |line: Line| line.task("fuzz", &mut replies);
    let tasks = crate::tasks::parse(Path::new("fuzz"), bytes, make, &mut BTreeMap::new())?;
    for task in &tasks {
        let gold = task.gold.to_string();
        for reply in ["", &gold, gold_reply(task, &replies).as_deref().unwrap_or("\\boxed{1,2}")] {
            let _ = (
                crate::answer::last_number(reply),
                crate::answer::final_answer(reply),
                crate::answer::is_only_number(reply),
            );
        }
    }
    Ok(())
}

fn gold_reply(task: &Task, replies: &Replies) -> Option<String> {
    replies.get(&task.id).cloned().or_else(|| match &task.gold {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broken::broken;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn broken_task_files_never_panic() {
        let whole = br#"{"prompt": "a", "gold": 4}
{"messages": [{"role": "user", "content": "2 + 2"}], "gold": "1,234.5", "gold_reply": "4", "meta": {"l": [1]}}
"#;
        let files = broken("broken tasks", whole, b"{}[]\",:0\\\xff", 20_000);
        let n_read = files.filter(|bytes| fuzz(bytes).is_ok()).count();
        assert!((100..19_000).contains(&n_read), "{n_read} of 20000 were still task files");
    }

    fn load(lines: &str, share: f64) -> Result<Loaded, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.jsonl"), lines).unwrap();
        let settings = Settings { tasks: "t.jsonl".into(), held_out: None, held_out_share: Some(share) };
        let base = folder.path().display().to_string();
        settings.load("mine", folder.path()).map_err(|e| e.to_string().replace(&base, "FOLDER"))
    }

    fn check(lines: &str, want: &str) {
        assert_eq!(load(lines, 0.0).err().as_deref(), Some(want), "{lines}");
    }

    #[test]
    fn a_line_is_a_prompt_or_messages_with_what_the_grader_needs() {
        let lines = concat!(
            r#"{"prompt": "Capital of France?", "gold": "Paris"}"#,
            "\r\n\n",
            r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "gold": 5}"#,
            "\n",
            r#"{"prompt": "code", "gold": {"tests": []}, "gold_reply": "x = 1", "meta": {"level": 3}}"#,
        );
        let Loaded { train: tasks, gold_reply, .. } = load(lines, 0.0).unwrap();
        assert_eq!(tasks.len(), 3);
        assert_eq!(tasks[0].messages, [Message::new(Role::User, "Capital of France?")]);
        assert_eq!(tasks[1].messages[0], Message::new(Role::System, "s"));
        let golds: Vec<Option<String>> = tasks.iter().map(gold_reply).collect();
        assert_eq!(golds, [Some("Paris".into()), Some("5".into()), Some("x = 1".into())]);
        assert!(tasks.iter().all(|t| t.env == "mine"));
        assert_eq!((&tasks[1].meta, &tasks[2].meta), (&Value::Null, &json!({"level": 3})), "as written");
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let good = r#"{"prompt": "a"}"#;
        let at = |bad: &str| format!("{good}\n\n{bad}\n{good}");
        check(&at("{"), "`FOLDER/t.jsonl` line 3: EOF while parsing an object (column 1)");
        check(&at("{}"), "`FOLDER/t.jsonl` line 3: needed either `prompt` or `messages`, got neither");
        check(
            &at(r#"{"prompt": "a", "answer": 1}"#),
            "`FOLDER/t.jsonl` line 3: unknown field `answer`, expected one of `prompt`, `messages`, `gold`, `gold_reply`, \
             `meta` (column 24)",
        );
        check(
            &at(r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#),
            "`FOLDER/t.jsonl` line 3: the last message must be the user's, got one of `assistant`",
        );
        check(&at(r#"{"messages": []}"#), "`FOLDER/t.jsonl` line 3: needed at least 1 message, got 0");
        check(&format!("{good}\n{good}"), "`FOLDER/t.jsonl` line 2: repeats the task of `FOLDER/t.jsonl` line 1");
        check("\n \n", "`FOLDER/t.jsonl` line 1: needed at least 1 task, got 0");
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error_with_a_line() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.jsonl"), b"{\"prompt\": \"a\"}\n{\"prompt\": \"\xff\"}\n").unwrap();
        let settings = Settings { tasks: "t.jsonl".into(), held_out: None, held_out_share: None };
        let error = settings.load("mine", folder.path()).err().unwrap().to_string();
        assert!(error.contains("t.jsonl` line 2: "), "{error}");
    }

    #[test]
    fn the_content_decides_the_side_not_the_order_or_the_answer() {
        let line = |i: usize, gold: usize| format!(r#"{{"prompt": "question {i}", "gold": {gold}}}"#);
        let forward: Vec<String> = (0..400).map(|i| line(i, i)).collect();
        let backward: Vec<String> = (0..400).rev().map(|i| line(i, i + 1)).collect();
        let side = |lines: &[String]| -> BTreeSet<String> {
            load(&lines.join("\n"), 0.3).unwrap().held_out.iter().map(|t| t.messages[0].content.clone()).collect()
        };
        assert_eq!(side(&forward), side(&backward));
        assert!((90..150).contains(&side(&forward).len()), "{}", side(&forward).len());
    }

    #[test]
    fn h5_one_prompt_with_two_answers_is_two_tasks() {
        let tasks = load("{\"prompt\": \"a\", \"gold\": 1}\n{\"prompt\": \"a\", \"gold\": 2}", 0.0).unwrap().train;
        assert_ne!(tasks[0].id, tasks[1].id);
    }

    #[test]
    fn a_task_in_both_files_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (name, lines) in [("a", "{\"prompt\": \"x\"}"), ("b", "{\"prompt\": \"y\"}\n{\"prompt\": \"x\"}")] {
            std::fs::write(folder.path().join(name), lines).unwrap();
        }
        let mut settings = Settings { tasks: "a".into(), held_out: Some("b".into()), held_out_share: None };
        let error = settings.load("mine", folder.path()).err().unwrap().to_string();
        assert!(error.contains("b` line 2: repeats the task of `") && error.ends_with("a` line 1"), "{error}");
        settings.held_out_share = Some(0.5);
        let error = settings.load("mine", folder.path()).err().unwrap().to_string();
        assert_eq!(error, "environment `mine`: `held_out_share` would be ignored, since `held_out` names a file");
        settings = Settings { tasks: "c".into(), held_out: None, held_out_share: None };
        let error = settings.load("mine", folder.path()).err().unwrap().to_string();
        assert!(error.starts_with("cannot read `") && error.contains("c`: "), "{error}");
    }
}
