//! Any program as a grader.
//!
//! It gets one JSON object on standard input, `{"task", "messages", "reply", "gold", "meta"}` and, where the environment has
//! a world, its `"state"` at the end, and answers with one on
//! standard output, `{"reward": number, "parts": {name: number}, "feedback": text}`, the last two being optional. Asked once it must end with
//! status 0; staying alive it answers one line for each line. Whatever else it does is a failure of the grader and never a
//! reward of zero.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use episode::{Cause, Task};
use jail::{JailError, Session, Spec, run_once};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::grader::{Grader, Make, Marks};
use crate::{Submission, Ungraded};

/// What to run and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The program and its arguments; it runs in the run file's folder.
    pub command: Vec<String>,
    /// How long one answer may take.
    #[serde(default = "default_deadline_s")]
    pub deadline_s: f64,
    /// Whether the program stays alive and answers one line for each line, instead of being started for each answer.
    #[serde(default)]
    pub stay_alive: bool,
    /// Environment variables it gets, besides `PATH` and the few others every program needs; nothing else is inherited.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}

pub(crate) fn default_deadline_s() -> f64 {
    10.0
}

impl Make for Settings {
    fn make(&self, base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        let Some((program, args)) = self.command.split_first().filter(|(program, _)| !program.is_empty()) else {
            return Err(("command", "is empty, needed a program and its arguments".to_owned()));
        };
        let deadline = Duration::try_from_secs_f64(self.deadline_s).unwrap_or_default();
        if !(Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&deadline) {
            let reason = format!("is {}, needed a number of seconds from 0.001 to 86400", self.deadline_s);
            return Err(("deadline_s", reason));
        }
        let mut spec = Spec::new(program).args(args).deadline(deadline);
        spec.variables = self.variables.iter().map(|(k, v)| (k.into(), v.into())).collect();
        // An empty base is the current folder, which is where a program starts anyway.
        spec.folder = (!base.as_os_str().is_empty()).then(|| base.to_owned());
        Ok(Box::new(Command { spec, idle: self.stay_alive.then(Mutex::default) }))
    }
}

struct Command {
    spec: Spec,
    /// Programs that wait for a question, one for each thread that ever asked at the same time.
    idle: Option<Mutex<Vec<Session>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    reward: f64,
    #[serde(default)]
    parts: BTreeMap<String, f64>,
    #[serde(default)]
    feedback: Option<String>,
}

impl Grader for Command {
    fn accepts(&self, _task: &Task) -> Result<(), String> {
        Ok(())
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let Submission { task, reply, state, .. } = submission;
        let mut question = json!({
            "task": task.id,
            "messages": task.messages,
            "reply": reply,
            "gold": task.gold,
            "meta": task.meta,
        });
        if !state.is_null() {
            question["state"] = (*state).clone();
        }
        let question = question.to_string();
        match &self.idle {
            Some(idle) => self.ask_session(idle, &question, submission),
            None => self.ask_once(&question, submission),
        }
    }

    fn deadline(&self) -> Duration {
        self.spec.deadline
    }
}

impl Command {
    fn ask_once(&self, question: &str, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let finished = run_once(&self.spec, question.as_bytes(), submission.cancel).map_err(|e| ungraded(&e))?;
        if !finished.exit.success() {
            let stderr = String::from_utf8_lossy(&finished.stderr);
            return Err(failed(
                "exit",
                format!("`{}` ended with {}{}", self.spec.name(), finished.exit, said(&stderr)),
            ));
        }
        self.read(&finished.stdout)
    }

    fn ask_session(
        &self,
        idle: &Mutex<Vec<Session>>,
        question: &str,
        submission: &Submission<'_>,
    ) -> Result<Marks, Ungraded> {
        let waiting = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut session = match waiting {
            Some(session) => session,
            None => Session::start(&self.spec).map_err(|e| ungraded(&e))?,
        };
        // A session that failed, or whose answer makes no sense, is dropped and thereby killed.
        let answer = session.ask(question, submission.cancel).map_err(|e| ungraded(&e))?;
        let marks = self.read(answer.as_bytes())?;
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(marks)
    }

    fn read(&self, answer: &[u8]) -> Result<Marks, Ungraded> {
        let answer: Answer = serde_json::from_slice(answer).map_err(|e| {
            let got: String = String::from_utf8_lossy(answer).chars().take(200).collect();
            let needed = r#"needed {"reward": number, "parts": {name: number}, "feedback": text}"#;
            failed("bad_answer", format!("`{}` answered `{}`, {needed}: {e}", self.spec.name(), got.trim()))
        })?;
        if let Some(bad) = [answer.reward].iter().chain(answer.parts.values()).find(|v| !v.is_finite()) {
            return Err(failed("not_finite", format!("`{}` answered with the number {bad}", self.spec.name())));
        }
        Ok(Marks { value: answer.reward, parts: answer.parts.into_iter().collect(), feedback: answer.feedback })
    }
}

fn failed(class: &str, detail: String) -> Ungraded {
    Ungraded::Failed(Cause::new(class, detail))
}

fn ungraded(error: &JailError) -> Ungraded {
    let class = match error {
        JailError::Cancelled => return Ungraded::Cancelled,
        JailError::Spawn { .. } => "spawn",
        JailError::Missing { .. } | JailError::Given { .. } | JailError::Confine { .. } => "jail",
        JailError::Deadline { .. } => "deadline",
        JailError::Output { .. } | JailError::Chatter { .. } | JailError::Line { .. } => "bad_answer",
        JailError::Ended { .. } => "exit",
        JailError::Io { .. } => "io",
    };
    failed(class, format!("{error}{}", said(error.stderr())))
}

/// The end of what a program complained of.
fn said(stderr: &str) -> String {
    let text = stderr.trim();
    let start = text.char_indices().rev().nth(999).map_or(0, |(at, _)| at);
    if text.is_empty() { String::new() } else { format!("; it said: {}", &text[start..]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use episode::{Message, Role};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    fn settings(script: &str) -> Settings {
        Settings {
            command: vec!["sh".into(), "-c".into(), script.into()],
            deadline_s: 5.0,
            stay_alive: false,
            variables: BTreeMap::new(),
        }
    }

    fn ask(grader: &dyn Grader, reply: &str, cancel: &AtomicBool) -> Result<Marks, Ungraded> {
        let task = Task::new("t", vec![Message::new(Role::User, "q")], json!(42), json!({"level": 1}));
        grader.grade(&Submission { task: &task, reply, state: &serde_json::Value::Null, cancel })
    }

    #[test]
    fn a_program_sees_how_the_world_ended_where_there_is_one() {
        let script = r#"case $(cat) in *'"state":{"won":true}'*) echo '{"reward": 1}';; *'"state"'*) exit 3;; *) echo '{"reward": 0}';; esac"#;
        let grader = settings(script).make(Path::new("")).unwrap();
        let task = Task::new("t", vec![Message::new(Role::User, "q")], json!(42), json!(null));
        for (state, want) in [(json!({"won": true}), 1.0), (serde_json::Value::Null, 0.0)] {
            let submission = Submission { task: &task, reply: "", state: &state, cancel: &AtomicBool::new(false) };
            assert_eq!(grader.grade(&submission).unwrap().value, want);
        }
    }

    fn once(settings: &Settings) -> Result<Marks, Ungraded> {
        let grader = settings.make(Path::new("")).unwrap();
        ask(grader.as_ref(), "said", &AtomicBool::new(false))
    }

    /// The class and the text of a failure.
    fn check_failure(settings: &Settings, class: &str, detail: &str) {
        match once(settings) {
            Err(Ungraded::Failed(cause)) => {
                assert_eq!(cause.class, class, "{cause:?}");
                assert!(cause.detail.contains(detail), "{cause:?}");
            }
            other => panic!("needed a failure of class `{class}`, got {other:?}"),
        }
    }

    #[test]
    fn a_program_gets_everything_and_its_answer_is_the_reward() {
        let script = r#"cat > seen; printf '{"reward": 0.5, "parts": {"style": 2}, "feedback": "too short"}'"#;
        let folder = tempfile::tempdir().unwrap();
        let grader = settings(script).make(folder.path()).unwrap();
        let marks = ask(grader.as_ref(), "the\nreply", &AtomicBool::new(false)).unwrap();
        assert_eq!(
            marks,
            Marks { value: 0.5, parts: vec![("style".to_owned(), 2.0)], feedback: Some("too short".to_owned()) }
        );
        let seen = std::fs::read_to_string(folder.path().join("seen")).unwrap();
        let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
        assert_eq!(
            (&seen["reply"], &seen["gold"], &seen["meta"]["level"]),
            (&json!("the\nreply"), &json!(42), &json!(1))
        );
        assert_eq!(seen["messages"], json!([{"role": "user", "content": "q"}]));
        assert!(seen["task"].as_str().unwrap().starts_with("t/"));
    }

    #[test]
    fn g2_whatever_goes_wrong_is_a_failure_and_never_a_zero() {
        check_failure(&settings("exit 0"), "bad_answer", "needed {\"reward\": number");
        check_failure(&settings("echo nonsense"), "bad_answer", "answered `nonsense`");
        check_failure(&settings(r#"echo '{"reward": NaN}'"#), "bad_answer", "NaN");
        check_failure(&settings(r#"echo '{"reward": 1e999}'"#), "bad_answer", "1e999");
        check_failure(&settings(r#"echo '{"reward": "1"}'"#), "bad_answer", "expected f64");
        check_failure(&settings(r#"echo '{"rewards": 1}'"#), "bad_answer", "unknown field `rewards`");
        check_failure(&settings(r#"echo '{"reward": 1}{"reward": 1}'"#), "bad_answer", "trailing characters");
        check_failure(&settings(r#"echo '{"reward": 1}'; exit 3"#), "exit", "`sh` ended with exit status 3");
        check_failure(&settings("echo ZeroDivisionError >&2; exit 1"), "exit", "it said: ZeroDivisionError");
        let missing = Settings { command: vec!["no-such-program".into()], ..settings("") };
        check_failure(&missing, "spawn", "cannot start `no-such-program`");
    }

    #[test]
    fn g3_a_grader_that_hangs_is_killed_at_its_deadline() {
        let started = Instant::now();
        check_failure(&Settings { deadline_s: 0.2, ..settings("sleep 300") }, "deadline", "within 0.2 s");
        let alive = Settings { deadline_s: 0.2, stay_alive: true, ..settings("sleep 300 & wait") };
        check_failure(&alive, "deadline", "within 0.2 s");
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn g4_a_cancelled_grader_is_cancelled_not_a_wrong_answer() {
        let cancel = AtomicBool::new(true);
        for stay_alive in [false, true] {
            let grader = Settings { stay_alive, ..settings("sleep 300") }.make(Path::new("")).unwrap();
            assert_eq!(ask(grader.as_ref(), "x", &cancel), Err(Ungraded::Cancelled));
        }
        cancel.store(false, Ordering::Relaxed);
    }

    #[test]
    fn a_program_that_stays_alive_answers_line_by_line_and_is_replaced_after_a_failure() {
        let script = r#"n=0; while read -r q; do n=$((n+1)); case $q in *bad*) echo oops;; *) echo "{\"reward\": $n}";; esac; done"#;
        let grader = Settings { stay_alive: true, ..settings(script) }.make(Path::new("")).unwrap();
        let go_on = AtomicBool::new(false);
        let ask = |reply: &str| ask(grader.as_ref(), reply, &go_on);
        assert_eq!((ask("a").unwrap().value, ask("b\nc").unwrap().value), (1.0, 2.0));
        assert!(matches!(ask("bad"), Err(Ungraded::Failed(cause)) if cause.class == "bad_answer"));
        // A fresh one, which counts from 1 again.
        assert_eq!(ask("d").unwrap().value, 1.0);
    }

    #[test]
    fn f12_a_reply_beyond_the_argument_limit_reaches_the_program() {
        let script = r#"n=$(wc -c); echo "{\"reward\": $n}""#;
        let grader = settings(script).make(Path::new("")).unwrap();
        let marks = ask(grader.as_ref(), &"x".repeat(1 << 20), &AtomicBool::new(false)).unwrap();
        assert!(marks.value > 1_048_576.0, "{marks:?}");
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        let check = |settings: Settings, want: (&str, &str)| {
            let (key, reason) = settings.make(Path::new("")).err().unwrap();
            assert_eq!((key, reason.as_str()), want);
        };
        let none = ("command", "is empty, needed a program and its arguments");
        check(Settings { command: vec![], ..settings("") }, none);
        for (got, shown) in [(0.0, "0"), (-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
            let reason = format!("is {shown}, needed a number of seconds from 0.001 to 86400");
            check(Settings { deadline_s: got, ..settings("") }, ("deadline_s", &reason));
        }
    }
}
