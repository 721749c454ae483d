//! A whole run shown, with a policy that attacks whoever looks.

use std::collections::BTreeMap;
use std::path::Path;

use episode::{Cause, Episode, EpisodeKey, Group, Message, Outcome, Role, Sequence, Stage, StopReason, Task, Token};
use eval::{Answer, Answers, Criteria, EvalLine, Question, score};
use serde_json::{Map, Value, json};
use store::{RunDir, RunId, RunWriter, Summary, TokenValues};

use super::*;

const ATTACK: &str =
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'><!--\u{1b}]0;owned\u{7}\u{202e}";

fn task(n: u64) -> Task {
    let question = format!("What is {n} + 1? {ATTACK}");
    Task::new("sums", vec![Message::new(Role::User, question)], json!(ATTACK), Value::Null)
}

fn attempt(task: &Task, step: u64, sample: u32, reward: f64) -> Episode {
    let mut sequence = Sequence::new();
    sequence.append_context(Role::User, &[1, 2, 3]);
    sequence.append_sampled(&[10, 11, 2], &[-0.5, -1.25, -0.1], &[-0.5, -1.25, -0.1], 0).unwrap();
    let outcome = if sample == 1 {
        Outcome::Failed { stage: Stage::Grader, cause: Cause::new(ATTACK, format!("{ATTACK}\nstep 9 · fake")) }
    } else {
        Outcome::Graded { reward, parts: vec![] }
    };
    Episode {
        key: EpisodeKey { step, task: task.id.clone(), sample },
        sequences: vec![sequence],
        messages: vec![Message::new(Role::Assistant, format!("{ATTACK}\ntask fake"))],
        outcome,
        stop: StopReason::Eos,
        turn_rewards: Vec::new(),
        conduct: episode::Conduct::default(),
    }
}

fn group(n: u64, step: u64) -> Group {
    let task = task(n);
    let episodes = (0..2).map(|sample| attempt(&task, step, sample, if step > 5 { 1.0 } else { 0.0 })).collect();
    Group { task, episodes }
}

fn numbers(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

/// A run of ten steps in which every text that can be foreign is the attack.
fn hostile(path: &Path) -> RunWriter {
    let mut run = RunDir::create(path, RunId::new("run-1").unwrap()).unwrap();
    let text = ATTACK.to_string();
    let summary = Summary {
        status: text.clone(),
        started: 1e9,
        algorithm: text.clone(),
        model: text.clone(),
        last_step: 10,
        best_score: None,
    };
    run.write_summary(&summary).unwrap();
    run.write_settings(&format!("name = '''{ATTACK}'''\n")).unwrap();
    run.write_json("manifest.json", &json!({ATTACK: {"weights": ATTACK}})).unwrap();
    let answer = Answer { reply: text.clone(), reward: Some(1.0), solved: true };
    let question = Question { before: Some(answer), ..Question::new(&task(1)) };
    run.write_json("samples.json", &Answers { questions: vec![question] }).unwrap();
    for step in 1..=10 {
        let metrics = json!({"reward_mean": step as f64 / 10.0, "reward_std": 0.25, "entropy": 1.5, ATTACK: step});
        run.write_metrics(step, &numbers(metrics), &numbers(json!({"tokens_per_s": 900.5})), 0.0).unwrap();
        let groups: Vec<Group> = (0..6).map(|n| group(n, step)).collect();
        run.write_episodes(step, &groups).unwrap();
        let advantage = vec![vec![None, None, None, Some(0.5), Some(-0.25), Some(0.0)]];
        let values = BTreeMap::from([("advantage".to_string(), advantage)]);
        let task = groups[0].task.id.clone();
        run.write_token_values(step, &[TokenValues { group: 0, task, sample: 0, values }]).unwrap();
        if step == 1 || step == 10 {
            let line = EvalLine { step, score: score(ATTACK, &groups, &Criteria::default()).unwrap() };
            run.append_line("evals.jsonl", step, &line).unwrap();
        }
    }
    run
}

fn decode(token: Token) -> String {
    if token == 10 { ATTACK.to_string() } else { format!("t{token}") }
}

fn view_of(run: &RunDir) -> RunView {
    load(run, Excerpt::default(), &decode).unwrap()
}

/// Every tag of a page with its attributes, read as a browser does: scripts and styles end at their own end tag only.
fn tags(page: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        // An attribute's quoted value may hold any character but its quote.
        let mut quote = None;
        let end = rest.find(|c| match (quote, c) {
            (None, '"' | '\'') => {
                quote = Some(c);
                false
            }
            (Some(q), c) if q == c => {
                quote = None;
                false
            }
            (None, '>') => true,
            _ => false,
        });
        let (tag, after) = rest.split_at(end.expect("every tag of the page ends"));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        out.push((name.to_ascii_lowercase(), attributes.to_string()));
        rest = after;
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}")).unwrap()..];
        }
    }
    out
}

/// CASES F10: text of a completion ran as a script in the viewer.
#[test]
fn nothing_the_policy_wrote_becomes_markup() {
    let folder = tempfile::tempdir().unwrap();
    let page = html(&view_of(&hostile(&folder.path().join("run"))));
    let ours = "!doctype html head meta title style body header h1 h2 h3 div span b nav a main section p br svg line text \
                polyline polygon circle table thead tbody tr th td pre noscript label select button script footer";
    let mut n_scripts = 0;
    for (name, attributes) in tags(&page) {
        assert!(ours.split(' ').any(|o| o == name.trim_start_matches('/')), "`{name}` is not ours");
        // What stands between quotes is a value; every second piece is outside.
        let outside: String = attributes.split(['"', '\'']).step_by(2).collect();
        assert!(!outside.split(' ').any(|a| a.starts_with("on")), "`{name} {attributes}` runs code");
        n_scripts += usize::from(name == "script");
    }
    assert_eq!(n_scripts, 2);
    assert_eq!(page.matches("<!--").count(), 0);
    // What was attacked with is shown, in each place.
    let shown = "&lt;img src=x onerror=alert(1)&gt;";
    assert!(page.matches(shown).count() >= 12, "{}", page.matches(shown).count());
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
}

#[test]
fn the_page_runs_its_own_script_alone_and_loads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let page = html(&view_of(&hostile(&folder.path().join("run"))));
    assert!(page.contains("content=\"default-src 'none'; script-src 'sha256-"));
    for needle in ["http://", "https://", "src=\"", "url(", "@import", "innerHTML", "eval("] {
        assert!(!page.contains(needle), "{needle}");
    }
    for (name, attributes) in tags(&page) {
        assert!(!attributes.contains("href=") || attributes.contains("href=\"#"), "{name} {attributes}");
    }
}

#[test]
fn the_embedded_episodes_are_the_stored_ones() {
    let folder = tempfile::tempdir().unwrap();
    let page = html(&view_of(&hostile(&folder.path().join("run"))));
    let (_, rest) = page.split_once("id=\"episode-data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["texts"]["10"], ATTACK);
    let sequence = &data["steps"][0]["groups"][0]["episodes"][0]["sequences"][0];
    assert_eq!(sequence["tokens"], json!([1, 2, 3, 10, 11, 2]));
    assert_eq!(sequence["sampled"], json!([0, 0, 0, 1, 1, 1]));
    assert_eq!(sequence["logp"], json!([null, null, null, -0.5, -1.25, -0.1]));
    assert_eq!(sequence["values"]["advantage"], json!([null, null, null, 0.5, -0.25, 0.0]));
    assert_eq!(data["steps"][0]["groups"][0]["episodes"][1]["sequences"][0]["values"], json!({}));
}

#[test]
fn a_long_run_is_shown_in_part_and_the_page_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = hostile(&folder.path().join("run"));
    let view = view_of(&run);
    let steps: Vec<u64> = view.episodes.iter().map(|s| s.step).collect();
    assert_eq!(steps, [1, 2, 3, 8, 9, 10]);
    assert!(view.episodes.iter().all(|s| s.groups.len() == 4 && s.n_groups == 6));
    assert!(html(&view).contains("the first 3 and last 3 of 10 steps, at most 4 tasks of each"));
    let excerpt = Excerpt { first_steps: 9, last_steps: 9, groups: 9, tokens: 4 };
    let view = load(&run, excerpt, &decode).unwrap();
    let sequence = &view.episodes[9].groups[5].episodes[0].sequences[0];
    assert_eq!((view.episodes.len(), sequence.tokens.len(), sequence.logp.len(), sequence.n_left_out), (10, 4, 4, 2));
    assert_eq!(view.episodes[0].groups[0].episodes[0].sequences[0].values["advantage"], [None, None, None, Some(0.5)]);
    assert!(html(&view).contains("This page holds all 10 steps"));
}

#[test]
fn every_number_has_a_curve_and_the_known_ones_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let view = view_of(&hostile(&folder.path().join("run")));
    let keys: Vec<&str> = view.curves.iter().map(|c| c.key.as_str()).collect();
    assert_eq!(keys, ["reward_mean", "entropy", "tokens_per_s", ATTACK]);
    let reward = &view.curves[0];
    assert_eq!((reward.title.as_str(), reward.unit.as_str(), reward.points.len()), ("Reward", "points", 10));
    assert_eq!(reward.points[4], Point { step: 5, value: 0.5, spread: Some(0.25) });
    assert!(reward.explanation.starts_with("Should rise"));
    assert_eq!(view.curves[3].explanation, "");
}

#[test]
fn accuracy_is_shown_before_and_after_with_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let page = html(&view_of(&hostile(&folder.path().join("run"))));
    // Six tasks, two attempts each, of which the system failed one: none of 12, then 6 of 12 solved.
    assert!(page.contains("<span class=\"from\">0.0 %</span> → <span class=\"up\">50.0 %</span>"), "{page}");
    assert!(page.contains("6 of 12 attempts at 6 tasks solved · 6 failed by the system · 0 cut off"));
    let interval = eval::wilson(6, 12);
    let percent = |v: f64| format!("{:.1} %", v * 100.0);
    assert!(page.contains(&format!("step 10: {} to {}", percent(interval.low), percent(interval.high))));
    assert!(page.contains("✓ reward 1") && page.contains("not asked"));
}

#[test]
fn a_run_that_has_only_begun_can_be_shown() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::create(&folder.path().join("run"), RunId::new("r").unwrap()).unwrap();
    let page = html(&view_of(&run));
    for text in ["This run was not evaluated.", "None were stored.", "No step has reported yet.", "all 0 steps"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn json_holds_the_same_as_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let view = view_of(&hostile(&folder.path().join("run")));
    let text = json(&view);
    assert_eq!(text.lines().count(), 1);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["run"], "run-1");
    assert_eq!(value["evals"][1]["solved"], 6);
    assert_eq!(value["curves"][0]["points"][4], json!({"step": 5, "value": 0.5, "spread": 0.25}));
    assert_eq!(value["token_texts"]["10"], ATTACK);
    assert_eq!(value["episodes"][0]["groups"][0]["episodes"][1]["outcome"]["kind"], "failed");
}

#[test]
fn a_task_is_printed_with_all_its_attempts_and_cannot_take_over_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let run = hostile(&folder.path().join("run"));
    let id = task(3).id;
    let text = show_task(&run, id.as_str()).unwrap();
    assert_eq!(text, show_task(&run, &id.as_str()[..16]).unwrap());
    assert!(text.starts_with(&format!("task {id}\nuser:\n  │ What is 3 + 1? </script>")), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(!text.contains('\u{202e}') && text.contains("␛]0;owned␇⟨U+202E⟩"));
    assert_eq!(text.lines().filter(|l| l.starts_with("step ")).count(), 20);
    // A line of the policy's cannot pass for one of the program's.
    assert_eq!(text.lines().filter(|l| l.starts_with("task ")).count(), 1);
    assert!(text.contains("\n  │ task fake\n"));
    let want = "step 6 · sample 0 · reward 1 · stopped by eos · 3 tokens · mean log-prob -0.6167";
    assert!(text.lines().any(|l| l == want), "{text}");
    assert!(text.contains("step 1 · sample 1 · failed in grader: </script>"));
}

#[test]
fn a_task_that_is_not_there_or_not_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = hostile(&folder.path().join("run"));
    let error = show_task(&run, "nothing").unwrap_err().to_string();
    assert!(error.starts_with("no attempt at task `nothing` is stored in run `run-1`, got such as `sums/"), "{error}");
    let error = show_task(&run, "sums/").unwrap_err().to_string();
    assert!(error.starts_with("`sums/` begins the names of 6 tasks, needed one, such as `sums/"), "{error}");
}
