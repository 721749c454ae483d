//! Word problems in the format of GSM8K: `{"question", "answer"}` a line, the answer a worked solution that ends with
//! `#### number`.
//!
//! Source: Cobbe et al., "Training verifiers to solve math word problems", arXiv:2110.14168.

use std::path::Path;

use episode::{Message, Role, Task};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::Number;
use crate::tasks::{Loaded, Source, file_settings};
use crate::{EnvError, grader};

file_settings! {
    /// Which files, and how the question is put.
    {
        /// What is said to the policy; `{question}` stands for the problem.
        #[serde(default = "default_prompt")]
        pub prompt: String,
        /// Standing instructions said first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub system: Option<String>,
    }
}

fn default_prompt() -> String {
    "{question}\nThink step by step, then end with a line \"#### \" and the number.".to_owned()
}

impl Source for Settings {
    fn load(&self, env: &str, base: &Path) -> Result<Loaded, EnvError> {
        check_prompt(env, &self.prompt)?;
        let (train, held_out) = self.files(env, base).read(|line: Line| {
            let Line { question, answer } = line;
            let gold = answer.rsplit_once("####").map(|(_, gold)| gold.trim()).unwrap_or("");
            if Number::parse(gold).is_none() {
                return Err(format!("needed `answer` to end with `####` and one number, got `{gold}`"));
            }
            let mut messages: Vec<Message> = self.system.iter().map(|s| Message::new(Role::System, s)).collect();
            messages.push(Message::new(Role::User, self.prompt.replace("{question}", &question)));
            Ok(Task::new(env, messages, gold.into(), json!({ "solution": answer })))
        })?;
        Ok(Loaded { train, held_out, gold_reply: Box::new(gold_reply), stage: None })
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        Some(grader::Kind::FinalNumber(grader::final_number::Settings::default()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    question: String,
    answer: String,
}

fn gold_reply(task: &Task) -> Option<String> {
    task.meta.get("solution").and_then(Value::as_str).map(str::to_owned)
}

pub(crate) fn check_prompt(env: &str, prompt: &str) -> Result<(), EnvError> {
    if prompt.contains("{question}") {
        return Ok(());
    }
    let reason = format!("is `{prompt}`, needed a text with `{{question}}` in it");
    Err(EnvError::Setting { env: env.to_owned(), key: "prompt".to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Split, Submission, TaskSet};
    use std::sync::atomic::AtomicBool;

    fn load(lines: &[(&str, &str)]) -> Result<TaskSet, String> {
        let folder = tempfile::tempdir().unwrap();
        let text: Vec<String> = lines.iter().map(|(q, a)| json!({"question": q, "answer": a}).to_string()).collect();
        std::fs::write(folder.path().join("t.jsonl"), text.join("\n")).unwrap();
        let settings = Settings {
            tasks: "t.jsonl".into(),
            held_out: None,
            held_out_share: Some(0.0),
            prompt: default_prompt(),
            system: None,
        };
        let settings = crate::Settings::plain(crate::Kind::Gsm8k(settings));
        settings.load(folder.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn only_the_exact_final_number_earns_the_reward() {
        let env = load(&[("How many?", "So 1,000 + 80 = <<1000+80=1080>>1,080.\n#### 1,080")]).unwrap();
        let task = &env.tasks(Split::Train)[0];
        assert!(task.messages[0].content.starts_with("How many?\n"));
        let cancel = AtomicBool::new(false);
        for (reply, want) in [
            (env.gold_reply(task).unwrap().as_str(), 1.0),
            ("#### 1080", 1.0),
            ("It is $1,080.00.", 1.0),
            (r"\boxed{1{,}080}", 1.0),
            ("1080 apples", 1.0),
            ("#### 10800", 0.0),
            ("#### 80", 0.0),
            ("1,080\n#### 81", 0.0),
            ("1080 or 1081", 0.0),
            ("", 0.0),
        ] {
            let verdict = env.grade(&Submission { task, reply, state: &serde_json::Value::Null, cancel: &cancel }).unwrap();
            assert_eq!(verdict.reward, want, "{reply}");
        }
    }

    #[test]
    fn a_solution_without_a_final_number_is_refused_with_its_line() {
        let error = load(&[("a", "#### 1"), ("b", "so 5")]).err().unwrap();
        assert!(
            error.ends_with("t.jsonl` line 2: needed `answer` to end with `####` and one number, got ``"),
            "{error}"
        );
    }
}
