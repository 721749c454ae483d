//! Whether an environment can be trusted, found out by asking its graders.

mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use episode::Task;

use world::Answer;

use crate::{EnvError, Environment, Settings, Split, Submission, TaskSet, Ungraded, Verdict, outcome};

/// How thoroughly to look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// How many tasks of each side are asked about.
    pub n_tasks: usize,
    /// The highest mean share of full marks for saying nothing, junk, keywords or the question itself.
    pub max_junk: f64,
}

impl Default for Probe {
    fn default() -> Self {
        Probe { n_tasks: 24, max_junk: 0.1 }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// What, such as `gold` or `echo`.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub passed: bool,
    /// The numbers behind it, or what is wrong.
    pub detail: String,
}

/// What was found about one environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Audit {
    /// The environment.
    pub env: String,
    /// Everything that was looked at.
    pub checks: Vec<Check>,
}

impl Audit {
    /// Whether a run may start.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.passed)
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "environment `{}`: {}", self.env, if self.passed() { "passed" } else { "FAILED" })?;
        for Check { name, passed, detail } in &self.checks {
            write!(f, "\n  {} {name:<9} {detail}", if *passed { "ok  " } else { "FAIL" })?;
        }
        Ok(())
    }
}

/// Text that sounds like an answer and holds none.
const KEYWORDS: &str =
    "The answer is correct. Final answer: #### \\boxed{} yes true pass success reward def solution return";
const GARBAGE: &str = "\u{0}\u{FFFD}}{][)(\\\"'`<|im_end|>\u{202E} -- ;; %s %n ../.. NaN inf";
const CONSTANTS: [&str; 8] = ["0", "1", "2", "10", "42", "A", "yes", "true"];

/// Loads an environment twice and asks its graders about gold answers and about answers that deserve nothing.
///
/// Every grader must give 1 to each gold answer; nothing, junk, keywords and the question itself must earn next to
/// nothing; no constant answer may earn more than a guess; the same settings must give the same tasks, with no task on both
/// sides; judging twice must agree; and no grader may fail on any of this.
///
/// Where there are tools, gold is calls and so is what earns nothing: calls drawn at random must earn next to nothing, no
/// other task's gold calls more than a guess; rules must know the tools, and a planted instruction that is carried out must
/// be told from one that is not.
///
/// - Errors: [`EnvError`] when it cannot be loaded at all; `None` as the audit when cancelled.
pub fn audit(settings: &Settings, base: &Path, probe: &Probe, cancel: &AtomicBool) -> Result<Option<Audit>, EnvError> {
    let env = settings.load(base)?;
    let again = settings.load(base)?;
    let mut checks = vec![same_tasks(&env, &again), no_leak(&env)];
    let judge = Judge { env: &env, cancel };
    match judge.checks(probe, settings.max_constant, &mut checks) {
        Ok(()) => Ok(Some(Audit { env: settings.name.clone(), checks })),
        Err(Stopped) => Ok(None),
    }
}

fn same_tasks(env: &TaskSet, again: &TaskSet) -> Check {
    let passed = env.train == again.train && env.held_out == again.held_out;
    let (train, held_out) = (env.train.len(), env.held_out.len());
    let detail = match passed {
        true => format!("{train} train and {held_out} held-out tasks, the same when loaded twice"),
        false => "loading twice gave different tasks".to_owned(),
    };
    Check { name: "tasks", passed, detail }
}

fn no_leak(env: &TaskSet) -> Check {
    let train: BTreeMap<_, _> = env.train.iter().map(|t| (&t.id, t)).collect();
    let leaked = env.held_out.iter().find(|t| train.contains_key(&t.id));
    let detail = leaked.map_or("no task is on both sides".to_owned(), |t| format!("task `{}` is on both sides", t.id));
    Check { name: "split", passed: leaked.is_none(), detail }
}

struct Judge<'a> {
    env: &'a TaskSet,
    cancel: &'a AtomicBool,
}

struct Stopped;

/// What a cheap way of answering earns.
struct Mean {
    /// As a share of full marks; nothing when a grader failed on it.
    earned: Option<f64>,
    check: Check,
}

impl Mean {
    fn fault(name: &'static str, detail: String) -> Mean {
        Mean { earned: None, check: Check { name, passed: false, detail } }
    }

    fn at_most(name: &'static str, mean: f64, limit: f64) -> Mean {
        let detail = format!("earns {mean:.3}, at most {limit:.3} allowed");
        Mean { earned: Some(mean), check: Check { name, passed: mean <= limit, detail } }
    }
}

/// How far gold is above the best of the cheap ways: what is left for solving tasks, and not for gaming the grader.
fn headroom(cheap: &[Mean]) -> Check {
    let earned = cheap.iter().filter_map(|mean| Some((mean.check.name, mean.earned?)));
    let (name, best) = earned.fold(("nothing", 0.0), |best, one| if one.1 > best.1 { one } else { best });
    let detail = format!("{:.3} of full marks is left above the best cheap way, `{name}`", 1.0 - best);
    Check { name: "headroom", passed: true, detail }
}

impl Judge<'_> {
    fn checks(&self, probe: &Probe, max_constant: f64, checks: &mut Vec<Check>) -> Result<(), Stopped> {
        let side = |split| self.env.tasks(split).iter().take(probe.n_tasks);
        let tasks: Vec<&Task> = side(Split::Train).chain(side(Split::HeldOut)).collect();
        checks.push(self.gold(&tasks)?);
        let echo = |task: &Task| Answer::said(task.messages.last().map_or(String::new(), |m| m.content.clone()));
        let mut cheap = vec![
            self.floor("null", &tasks, probe.max_junk, |_| Answer::said(""))?,
            self.floor("echo", &tasks, probe.max_junk, echo)?,
            self.floor("garbage", &tasks, probe.max_junk, |_| Answer::said(GARBAGE))?,
            self.floor("keyword", &tasks, probe.max_junk, |_| Answer::said(KEYWORDS))?,
        ];
        // Among few tasks even the best guess is right more often.
        let max_constant = max_constant.max(1.0 / tasks.len().max(1) as f64);
        cheap.push(self.constant(&tasks, max_constant)?);
        let has_tools = tasks.iter().any(|t| !self.env.tools(t).is_empty());
        if has_tools {
            cheap.push(self.random(&tasks, probe.max_junk)?);
        }
        let headroom = headroom(&cheap);
        checks.extend(cheap.into_iter().map(|mean| mean.check));
        checks.push(headroom);
        if has_tools {
            checks.push(self.tools(&tasks));
        }
        checks.extend(self.attacks(&tasks));
        checks.push(self.twice(&tasks)?);
        Ok(())
    }

    fn grade(&self, task: &Task, answer: &Answer) -> Result<Result<Verdict, String>, Stopped> {
        let state = match self.act(task, answer) {
            Ok(end) => end.state,
            Err(detail) => return Ok(Err(detail)),
        };
        let (reply, state) = (&*answer.reply, &state);
        match self.env.grade(&Submission { task, reply, state, cancel: self.cancel }) {
            Ok(verdict) => Ok(Ok(verdict)),
            Err(Ungraded::Cancelled) => Err(Stopped),
            Err(Ungraded::Failed(cause)) => Ok(Err(format!("task `{}`: {}: {}", task.id, cause.class, cause.detail))),
        }
    }

    fn gold(&self, tasks: &[&Task]) -> Result<Check, Stopped> {
        let check = |passed, detail| Ok(Check { name: "gold", passed, detail });
        let mut n = 0;
        for task in tasks {
            let Some(gold) = self.gold_answer(task) else { continue };
            n += 1;
            match self.grade(task, &gold)? {
                Err(failure) => return check(false, failure),
                Ok(verdict) => {
                    // Parts of weight 0 are remarks and opinions may differ: neither is a verdict.
                    let verdicts = verdict.parts.iter().filter(|p| p.weight != 0.0 && !p.opinion);
                    let low = verdicts.into_iter().find(|p| (p.value - 1.0).abs() > 1e-9);
                    if let Some(part) = low {
                        let shown = shorten(&gold.to_string());
                        let detail = format!("task `{}`: `{}` gives {} to `{shown}`", task.id, part.name, part.value);
                        return check(false, format!("{detail}, needed 1"));
                    }
                }
            }
        }
        match (n, tasks.len()) {
            (0, _) => check(true, "not checked: no task has a gold answer that is text, or known calls".to_owned()),
            (n, all) => check(true, format!("full marks for the gold answer of {n} of {all} tasks")),
        }
    }

    /// What deserves full marks, if it is known.
    fn gold_answer(&self, task: &Task) -> Option<Answer> {
        let (reply, calls) = (self.env.gold_reply(task), self.env.gold_calls(task));
        (reply.is_some() || calls.is_some())
            .then(|| Answer { reply: reply.unwrap_or_default(), calls: calls.unwrap_or_default() })
    }

    /// The mean share of full marks that a way of answering earns.
    fn mean(&self, tasks: &[&Task], answer: impl Fn(&Task) -> Answer) -> Result<Result<f64, String>, Stopped> {
        let mut total = 0.0;
        for task in tasks {
            match self.grade(task, &answer(task))? {
                Ok(verdict) => total += outcome(Ok(verdict)).verified().unwrap_or(0.0) / self.env.full_marks(),
                Err(failure) => return Ok(Err(failure)),
            }
        }
        Ok(Ok(total / tasks.len().max(1) as f64))
    }

    fn floor(
        &self,
        name: &'static str,
        tasks: &[&Task],
        limit: f64,
        answer: impl Fn(&Task) -> Answer,
    ) -> Result<Mean, Stopped> {
        Ok(match self.mean(tasks, answer)? {
            Err(detail) => Mean::fault(name, detail),
            Ok(mean) => Mean::at_most(name, mean, limit),
        })
    }

    fn constant(&self, tasks: &[&Task], limit: f64) -> Result<Mean, Stopped> {
        let name = "constant";
        let mut answers: Vec<Answer> = CONSTANTS.iter().map(|c| Answer::said(*c)).collect();
        answers.extend(self.most_common_gold(tasks).map(Answer::said));
        let calls = tasks.iter().filter_map(|t| self.env.gold_calls(t));
        answers.extend(calls.map(|calls| Answer { reply: String::new(), calls }));
        let mut best = (f64::NEG_INFINITY, Answer::said(""));
        for answer in answers {
            match self.mean(tasks, |_| answer.clone())? {
                Err(detail) => return Ok(Mean::fault(name, detail)),
                Ok(mean) if mean > best.0 => best = (mean, answer),
                Ok(_) => {}
            }
        }
        let (mean, answer) = best;
        let detail =
            format!("the best one, `{}`, earns {mean:.3}, at most {limit:.3} allowed", shorten(&answer.to_string()));
        Ok(Mean { earned: Some(mean), check: Check { name, passed: mean <= limit, detail } })
    }

    /// The gold answer to say if one may say only one; the first of equals in the order of the tasks.
    fn most_common_gold(&self, tasks: &[&Task]) -> Option<String> {
        let golds: Vec<String> = tasks.iter().filter_map(|t| self.env.gold_reply(t)).collect();
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        for gold in &golds {
            *counts.entry(gold).or_default() += 1;
        }
        golds.iter().rev().max_by_key(|gold| counts[gold]).cloned()
    }

    fn twice(&self, tasks: &[&Task]) -> Result<Check, Stopped> {
        let name = "twice";
        for task in tasks {
            for answer in [self.gold_answer(task).unwrap_or(Answer::said("")), Answer::said("1")] {
                let (first, second) = (self.grade(task, &answer)?, self.grade(task, &answer)?);
                if first != second {
                    let detail = format!(
                        "task `{}`: judging `{}` twice gave two verdicts",
                        task.id,
                        shorten(&answer.to_string())
                    );
                    return Ok(Check { name, passed: false, detail });
                }
            }
        }
        Ok(Check { name, passed: true, detail: "judging an answer twice gives one verdict".to_owned() })
    }
}

fn shorten(text: &str) -> String {
    let line = text.replace(['\n', '\r'], " ");
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, command, gsm8k, jsonl, sums};
    use std::collections::BTreeMap as Map;

    fn look(settings: &Settings, base: &Path) -> Audit {
        audit(settings, base, &Probe { n_tasks: 6, ..Probe::default() }, &AtomicBool::new(false)).unwrap().unwrap()
    }

    /// The audit of a program as the grader of six tasks with gold answers 100 to 105.
    fn of_program(script: &str) -> Audit {
        let folder = tempfile::tempdir().unwrap();
        let lines: Vec<String> = (0..6).map(|i| format!(r#"{{"prompt": "q{i}", "gold": {}}}"#, 100 + i)).collect();
        std::fs::write(folder.path().join("t"), lines.join("\n")).unwrap();
        let settings = Settings::plain(Kind::Command(command::Settings {
            tasks: "t".into(),
            held_out: None,
            held_out_share: Some(0.0),
            command: vec!["sh".into(), "-c".into(), script.into()],
            deadline_s: 5.0,
            stay_alive: true,
            variables: Map::new(),
        }));
        look(&settings, folder.path())
    }

    /// A program that answers each question with what a shell expression over the question `$q` prints.
    fn program(case: &str) -> String {
        format!("while read -r q; do case $q in {case} *) r=0;; esac; echo \"{{\\\"reward\\\": $r}}\"; done")
    }

    /// Right exactly when the reply is the gold number, told from the JSON text by one pattern for each gold.
    fn honest() -> String {
        let line = |i: usize| format!("*'\"reply\":\"{i}\",\"gold\":{i},'*) r=1;;");
        (100..106).map(line).collect()
    }

    fn check_fails(audit: &Audit, names: &[&str]) {
        let failed: Vec<&str> = audit.checks.iter().filter(|c| !c.passed).map(|c| c.name).collect();
        assert_eq!(failed, names, "{audit}");
        assert!(!audit.passed());
    }

    #[test]
    fn what_we_ship_passes() {
        let sums = look(&Settings::plain(Kind::Sums(sums::Settings::default())), Path::new(""));
        assert!(sums.passed(), "{sums}");
        let text = sums.to_string();
        assert!(
            text.starts_with("environment `sums`: passed\n  ok   tasks     600 train and 300 held-out tasks"),
            "{text}"
        );
        assert!(text.contains("\n  ok   gold      full marks for the gold answer of 12 of 12 tasks"), "{text}");

        let folder = tempfile::tempdir().unwrap();
        let line = |i: usize| format!(r#"{{"question": "q {i}?", "answer": "so\n#### {}"}}"#, 50 + i);
        std::fs::write(folder.path().join("t"), (0..40).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let words: gsm8k::Settings = serde_json::from_str(r#"{"tasks": "t"}"#).unwrap();
        let words = look(&Settings::plain(Kind::Gsm8k(words)), folder.path());
        assert!(words.passed(), "{words}");
        let own = of_program(&program(&honest()));
        assert!(own.passed(), "{own}");
    }

    #[test]
    fn g9_a_grader_that_always_says_zero_does_not_start() {
        check_fails(&of_program(&program("")), &["gold"]);
    }

    #[test]
    fn f7_full_marks_for_any_text_do_not_start() {
        check_fails(
            &of_program(&program(r#"*'"reply":""'*) r=0;; *) r=1;;"#)),
            &["echo", "garbage", "keyword", "constant"],
        );
        check_fails(&of_program(&program("*) r=1;;")), &["null", "echo", "garbage", "keyword", "constant"]);
    }

    #[test]
    fn f7_a_keyword_an_echo_or_a_floor_is_found() {
        let honest = honest();
        check_fails(&of_program(&program(&format!("{honest} *correct*) r=1;;"))), &["keyword"]);
        check_fails(&of_program(&program(&format!(r#"{honest} *'"reply":"q'*) r=1;;"#))), &["echo"]);
        check_fails(&of_program(&program(&format!(r#"{honest} *'"reply":""'*) r=0.2;;"#))), &["null"]);
        check_fails(&of_program(&program(&format!(r#"{honest} *'"reply":"42"'*) r=1;;"#))), &["constant"]);
    }

    #[test]
    fn a_grader_that_changes_its_mind_is_found() {
        let script = "n=0; while read -r q; do n=$((n+1)); case $q in *) r=0.0$((n%7));; esac; echo \"{\\\"reward\\\": $r}\"; \
                      done";
        let audit = of_program(script);
        assert!(audit.checks.iter().any(|c| c.name == "twice" && !c.passed), "{audit}");
    }

    #[test]
    fn a_grader_that_crashes_on_junk_is_found_with_its_cause() {
        let crash = program(&format!("{} *NaN*) exit 7;;", honest()));
        let audit = of_program(&crash);
        check_fails(&audit, &["garbage"]);
        assert!(audit.to_string().contains("exit: `sh` ended (exit status 7) instead of answering"), "{audit}");
    }

    #[test]
    fn without_gold_answers_the_audit_says_so() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}").unwrap();
        let source = jsonl::Settings { tasks: "t".into(), held_out: None, held_out_share: Some(0.0) };
        let mut settings = Settings::plain(Kind::Jsonl(source));
        let zero = vec!["sh".to_owned(), "-c".to_owned(), program("")];
        let grader: crate::grader::command::Settings =
            serde_json::from_value(serde_json::json!({ "command": zero, "stay_alive": true })).unwrap();
        settings.graders = vec![crate::grader::Settings::plain(crate::grader::Kind::Command(grader))];
        let audit = look(&settings, folder.path());
        assert!(audit.passed() && audit.to_string().contains("not checked: no task has a gold answer"), "{audit}");
    }

    #[test]
    fn a_cancelled_audit_gives_no_verdict() {
        let settings = Settings::plain(Kind::Sums(sums::Settings::default()));
        // Graders that need no time do not look; a program does.
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), r#"{"prompt": "a", "gold": 1}"#).unwrap();
        let mut slow = settings.clone();
        slow.kind = Kind::Command(
            serde_json::from_value(serde_json::json!({"tasks": "t", "held_out_share": 0, "command": ["cat"]})).unwrap(),
        );
        let got = audit(&slow, folder.path(), &Probe::default(), &AtomicBool::new(true)).unwrap();
        assert_eq!(got, None);
    }

    /// The audit of a shop whose stage somebody broke.
    fn of_stage(stage: Box<dyn crate::stage::Stage>) -> Audit {
        let levels = [(crate::shop::Level::Claim, 1.0)].into();
        let shop = crate::shop::Settings { levels, injections: 1.0, n_train: 20, n_held_out: 4, ..Default::default() };
        let mut env = Settings::plain(Kind::Shop(shop)).load(Path::new("")).unwrap();
        env.stage = Some(stage);
        let cancel = AtomicBool::new(false);
        let (judge, mut checks) = (Judge { env: &env, cancel: &cancel }, Vec::new());
        assert!(judge.checks(&Probe { n_tasks: 4, ..Probe::default() }, 0.25, &mut checks).is_ok());
        Audit { env: "shop".to_owned(), checks }
    }

    /// A world that is as its task wants it to end, whatever is done.
    struct Solved(serde_json::Value);

    impl agent::World for Solved {
        fn answer(&mut self, _said: &str) -> Result<agent::Reaction, episode::Cause> {
            Ok(agent::Reaction::End)
        }

        fn call(&mut self, call: &episode::ToolCall) -> Result<gate::Answer, episode::Cause> {
            Ok(gate::Answer::new(format!("{} done", call.tool), guard::Labels::default()))
        }

        fn state(&self) -> serde_json::Value {
            self.0.clone()
        }
    }

    struct Broken {
        action: &'static str,
    }

    impl crate::stage::Stage for Broken {
        fn tools(&self, _task: &Task) -> std::sync::Arc<[episode::ToolSpec]> {
            let schema = serde_json::json!({"type": "object", "properties": {}, "required": []});
            [episode::ToolSpec::new("look", "Looks.", self.action, schema)].into()
        }

        fn world(&self, task: &Task) -> Box<dyn agent::World> {
            Box::new(Solved(task.gold.clone()))
        }

        fn gold_calls(&self, _task: &Task) -> Option<Vec<episode::ToolCall>> {
            Some(vec![episode::ToolCall::new("look", serde_json::json!({}))])
        }
    }

    #[test]
    fn f7_a_world_that_is_solved_from_the_start_is_found() {
        let audit = of_stage(Box::new(Broken { action: "read" }));
        check_fails(&audit, &["null", "echo", "garbage", "keyword", "constant", "random", "attacks"]);
        let text = audit.to_string();
        assert!(text.contains("headroom  0.000 of full marks is left above the best cheap way, `null`"), "{text}");
        assert!(text.contains("its attack succeeds and is not told"), "{text}");
    }

    #[test]
    fn tools_that_rules_do_not_know_are_found() {
        let audit = of_stage(Box::new(Broken { action: "peek" }));
        let check = audit.checks.iter().find(|c| c.name == "tools").unwrap();
        assert_eq!((check.passed, &*check.detail), (false, "tool `look`: no class of action is called `peek`"));
    }
}
