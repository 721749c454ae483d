//! `surefoot grade`: a reward model from preference pairs, as a program that judges and as a grader of a run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

#[path = "../../run/tests/tiny/mod.rs"]
mod tiny;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tiny::Place;

const MODEL: &str = r#"
model = "model"
steps = 12

[train]
kind = "lora"
rank = 4
alpha = 8
targets = ["all"]

[algorithm]
kind = "reward_model"

[optimiser]
learning_rate = 1e-2

[batch]
tasks = 4
group_size = 2

[eval]
tasks = 0

[data]
file = "pairs.jsonl"
"#;

fn command(place: &Place, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
    command.args(words).env("SUREFOOT_HOME", place.path("home")).current_dir(place.folder());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(place: &Place, words: &[&str]) -> (i32, String, String) {
    let output = command(place, words).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn asked(i: usize, reply: &str) -> String {
    let messages = [json!({ "role": "user", "content": format!("say {i}") })];
    json!({ "task": "t", "messages": messages, "reply": reply, "gold": null, "meta": null }).to_string()
}

/// A place with a trained reward model in the run `judge`.
fn trained() -> Place {
    let place = Place::new();
    let pair = |i: usize| {
        let prompt = [json!({ "role": "user", "content": format!("say {i}") })];
        json!({ "prompt": prompt, "chosen": i.to_string(), "rejected": format!("no, {}", i + 1) }).to_string()
    };
    std::fs::write(place.path("pairs.jsonl"), (0..8).map(pair).collect::<Vec<_>>().join("\n")).unwrap();
    std::fs::write(place.path("model.toml"), MODEL).unwrap();
    let (code, _, error) = run(&place, &["train", "model.toml", "--out", "judge", "--json"]);
    assert_eq!(code, 0, "{error}");
    place
}

#[test]
fn a_trained_reward_model_judges_line_by_line_and_prefers_what_was_chosen() {
    let place = trained();
    let mut child = command(&place, &["grade", "--model", "judge"]).spawn().unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut ask = |reply: &str| -> f64 {
        writeln!(to, "{}", asked(3, reply)).unwrap();
        let mut line = String::new();
        // Each answer is there before the next question is asked.
        from.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        let (reward, score) = (answer["reward"].as_f64().unwrap(), answer["parts"]["score"].as_f64().unwrap());
        assert!((reward - 1.0 / (1.0 + (-score).exp())).abs() < 1e-12, "{line}");
        reward
    };
    let (better, worse) = (ask("3"), ask("no, 4"));
    assert!(better > worse, "{better} {worse}");
    assert_eq!(ask("3").to_bits(), better.to_bits(), "the same reply, the same bits");
    drop(to);
    assert!(child.wait().unwrap().success());
}

#[test]
fn it_stands_beside_a_verifier_as_an_opinion() {
    let place = trained();
    let program = env!("CARGO_BIN_EXE_surefoot");
    let home = place.path("home").display().to_string();
    let text = format!(
        "model = 'model'\nsteps = 1\n[algorithm]\nkind = 'grpo'\n[batch]\ntasks = 2\ngroup_size = 2\n[sampling]\n\
         max_tokens = 4\n[eval]\ntasks = 2\n[[env]]\nkind = 'sums'\nn_train = 8\nn_held_out = 4\n[[env.grader]]\n\
         kind = 'last_number'\n[[env.grader]]\nname = 'taste'\nkind = 'command'\nopinion = true\nweight = 0.5\n\
         stay_alive = true\nvariables = {{ SUREFOOT_HOME = '{home}' }}\n\
         command = ['{program}', '--threads', '1', 'grade', '--model', 'judge']\n"
    );
    std::fs::write(place.path("run.toml"), text).unwrap();
    let (code, out, error) = run(&place, &["train", "run.toml", "--out", "run", "--json"]);
    assert_eq!(code, 0, "{error}");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(last["accuracy_after"], 0.0, "an opinion solves nothing: {last}");
    let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let step: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    let taste = step["parts"]["taste"].as_f64().unwrap();
    assert!(taste > 0.0 && taste < 1.0, "{step}");
    assert_eq!(step["reward_mean"].as_f64().unwrap(), 0.5 * taste);
}

#[test]
fn what_cannot_judge_is_refused_with_its_place() {
    let place = trained();
    let (code, out, error) = run(&place, &["grade", "--model", "model"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("`model` has no head that scores") && error.contains("`reward_model`"), "{error}");
    std::fs::write(place.path("bad.jsonl"), format!("{}\n{{\"reply\": 3}}\n", asked(1, "1"))).unwrap();
    let (code, out, error) = run(&place, &["grade", "--model", "judge", "--replies", "bad.jsonl"]);
    assert_eq!((code, out.lines().count()), (2, 1), "{out}");
    assert!(error.contains("bad.jsonl:2"), "{error}");
}
