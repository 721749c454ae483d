//! Every algorithm on lines that have every field.

mod input;
mod table;

use algo::Settings;
use serde_json::{Map, Value, json};

use super::{EpisodeSignals, Found, Input, settings, signals};

/// A line.
pub(super) type Fields = Map<String, Value>;

/// Rewards of the lines of two groups, three lines each.
const REWARDS: [f64; 6] = [1.0, 0.0, 0.5, 0.0, 0.25, 1.0];

/// Lines with every field. All numbers are short in base 2, so that small steps from them are exact.
pub(super) fn rich() -> Vec<Fields> {
    (0..REWARDS.len()).map(rich_line).collect()
}

fn rich_line(i: usize) -> Fields {
    let sampled = [[0, 1, 1, 0, 1], [1, 0, 1, 1, 1]][i % 2];
    let list = |of: &dyn Fn(usize) -> Value| -> Value {
        (0..sampled.len()).map(|t| if sampled[t] == 1 { of(t) } else { Value::Null }).collect()
    };
    // No two tokens alike, so that no choice between them hangs on their order.
    let sampler = |t: usize| -0.5 - ((5 * i + 3 * t) % 7) as f64 / 8.0 - (5 * i + t) as f64 / 512.0;
    let step = |a: usize, b: usize, t: usize| (((a * i + b * t) % 3) as f64 - 1.0) / 16.0;
    let old = |t: usize| sampler(t) + step(1, 1, t);
    let now = |t: usize| old(t) + step(2, 1, t) + 1.0 / 64.0;
    let value = |t: usize| ((3 * i + t) % 5) as f64 / 8.0;
    let turn = |t: usize| usize::from(t > 1);
    let mut line = json!({
        "task": (["first", "second"][i / 3]), "group": i / 3, "reward": REWARDS[i], "sampled": sampled, "stop": "eos",
        "logp_sampler": list(&|t| json!(sampler(t))),
        "logp_old": list(&|t| json!(old(t))),
        "logp": list(&|t| json!(now(t))),
        "logp_ref": list(&|t| json!(sampler(t) - 1.0 / 8.0)),
        "logp_teacher": list(&|t| json!(sampler(t) + 1.0 / 4.0 + (7 * i + 3 * t) as f64 / 512.0)),
        "value": list(&|t| json!(value(t))),
        "value_new": list(&|t| json!(value(t) + 1.0 / 32.0)),
        "entropy": list(&|t| json!(0.5 + t as f64 / 16.0 + i as f64 / 256.0)),
        "topk": {
            "ids": list(&|t| json!([t, t + 7])),
            "logp_old": list(&|t| json!([-1.0, -1.5 - t as f64 / 8.0])),
            "logp": list(&|t| json!([-1.125, -1.5 - t as f64 / 16.0])),
            "logp_teacher": list(&|t| json!([-0.75, -2.0 - t as f64 / 8.0])),
        },
        "turn": list(&|t| json!(turn(t))),
        "turn_rewards": [0.25, REWARDS[i] - 0.25],
        "version": list(&|t| json!(3 + turn(t))),
        "anchor": list(&|t| json!(t)),
    });
    if REWARDS[i] == 1.0 || REWARDS[i] == 0.0 {
        line["pair"] = json!(if REWARDS[i] == 1.0 { "chosen" } else { "rejected" });
    }
    match line {
        Value::Object(fields) => fields,
        _ => panic!("a line is an object"),
    }
}

/// The lines as they are typed.
pub(super) fn text(lines: &[Fields]) -> Vec<u8> {
    let lines: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
    lines.concat().into_bytes()
}

pub(super) fn set(name: &str, changes: &[&str]) -> Settings {
    settings(name, &changes.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>()).unwrap()
}

pub(super) fn ask(lines: &[Fields], settings: &Settings) -> Found {
    signals(&Input::read(&text(lines)).unwrap(), settings, 1).unwrap()
}

/// Every derivative of an episode, by what it is taken by.
pub(super) fn derivatives(episode: &EpisodeSignals) -> Vec<(&'static str, Vec<f64>)> {
    let list = |list: &[Option<f32>]| list.iter().map(|d| f64::from(d.unwrap_or(0.0))).collect::<Vec<f64>>();
    let some = |of: &Option<Vec<Option<f32>>>| of.as_deref().map(list).unwrap_or_default();
    let top = episode.dloss_dtop.iter().flatten().flatten().flatten().map(|d| f64::from(*d)).collect();
    vec![
        ("logp", list(&episode.dloss_dlogp)),
        ("value_new", some(&episode.dloss_dvalue)),
        ("entropy", some(&episode.dloss_dentropy)),
        ("topk", top),
    ]
}
