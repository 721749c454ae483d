//! A run directory read into what is shown.

use std::collections::{BTreeMap, BTreeSet};

use episode::{Message, Outcome, Sequence, StopReason, TaskId, Token};
use eval::{Answers, EvalLine};
use serde::Serialize;
use serde_json::{Map, Value};
use store::{RunDir, Summary, TokenValues};

use crate::ViewError;
use crate::metrics::METRICS;

/// How much of a run's episodes is shown; all of them may be gigabytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Excerpt {
    /// This many of the first steps.
    pub first_steps: usize,
    /// This many of the last steps.
    pub last_steps: usize,
    /// This many groups of each.
    pub groups: usize,
    /// This many tokens of each sequence.
    pub tokens: usize,
}

impl Default for Excerpt {
    fn default() -> Self {
        Excerpt { first_steps: 3, last_steps: 3, groups: 4, tokens: 2000 }
    }
}

/// Everything that is shown of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunView {
    /// The run's id.
    pub run: String,
    /// How it stands.
    pub summary: Summary,
    /// The settings that ran, as TOML.
    pub settings: Option<String>,
    /// Hashes of what went in.
    pub manifest: Option<Value>,
    /// Every number the steps reported, those of [`METRICS`] first.
    pub curves: Vec<Curve>,
    /// Every score, in order.
    pub evals: Vec<EvalLine>,
    /// The same questions answered before and after.
    pub answers: Option<Answers>,
    /// Steps whose episodes are stored.
    pub n_episode_steps: usize,
    /// What was chosen of them.
    pub excerpt: Excerpt,
    /// The chosen steps.
    pub episodes: Vec<StepView>,
    /// The text of every token in them.
    pub token_texts: BTreeMap<Token, String>,
}

/// One number over the steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Its key.
    pub key: String,
    /// Its title; the key where the number is not a known one.
    pub title: String,
    /// Its unit, empty for a plain number.
    pub unit: String,
    /// What to watch, empty where the number is not a known one.
    pub explanation: String,
    /// By step, ascending.
    pub points: Vec<Point>,
}

/// A number at a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// The step.
    pub step: u64,
    /// The number.
    pub value: f64,
    /// The spread around it, where one is reported.
    pub spread: Option<f64>,
}

/// One step's episodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepView {
    /// The step.
    pub step: u64,
    /// How many groups it has in all.
    pub n_groups: usize,
    /// Those that are shown.
    pub groups: Vec<GroupView>,
}

/// The attempts at one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupView {
    /// The task.
    pub task: TaskId,
    /// What was asked.
    pub prompt: Vec<Message>,
    /// What the grader compares with.
    pub gold: Value,
    /// The attempts.
    pub episodes: Vec<EpisodeView>,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpisodeView {
    /// Which of the group's attempts.
    pub sample: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Why the policy stopped.
    pub stop: StopReason,
    /// Sampled tokens.
    pub n_sampled: usize,
    /// What was said.
    pub reply: String,
    /// Its tokens.
    pub sequences: Vec<SequenceView>,
}

/// The tokens of an attempt with what is known about each; every list has one entry a token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SequenceView {
    /// Token ids.
    pub tokens: Vec<Token>,
    /// 1 where the policy sampled the token.
    pub sampled: Vec<u8>,
    /// Log-probability under π, in nats, where sampled.
    pub logp: Vec<Option<f32>>,
    /// Further values by name, such as `advantage`.
    pub values: BTreeMap<String, Vec<Option<f32>>>,
    /// Tokens after these that are not shown.
    pub n_left_out: usize,
}

/// Reads what is shown of a run; `decode` gives the text of a token.
///
/// - Holds: reads `metrics.jsonl`, `timings.jsonl`, `evals.jsonl`, `samples.json`, `manifest.json`, settings, summary, and
///   of the steps in the excerpt `episodes/` and `signals/`; each may be missing.
pub fn load(run: &RunDir, excerpt: Excerpt, decode: &dyn Fn(Token) -> String) -> Result<RunView, ViewError> {
    let steps = run.episode_steps()?;
    let n_episode_steps = steps.len();
    let mut episodes = Vec::new();
    let mut used = BTreeSet::new();
    let last = steps.len().saturating_sub(excerpt.last_steps);
    for (i, step) in steps.into_iter().enumerate() {
        if i < excerpt.first_steps || i >= last {
            let view = load_step(run, step, excerpt)?;
            let sequences = view.groups.iter().flat_map(|g| &g.episodes).flat_map(|e| &e.sequences);
            used.extend(sequences.flat_map(|s| s.tokens.iter().copied()));
            episodes.push(view);
        }
    }
    Ok(RunView {
        run: run.run_id().to_string(),
        summary: run.summary()?.unwrap_or_default(),
        settings: run.settings()?,
        manifest: run.read_json("manifest.json")?,
        curves: load_curves(run)?,
        evals: run.read_lines("evals.jsonl")?,
        answers: run.read_json("samples.json")?,
        n_episode_steps,
        excerpt,
        episodes,
        token_texts: used.into_iter().map(|token| (token, decode(token))).collect(),
    })
}

fn load_curves(run: &RunDir) -> Result<Vec<Curve>, ViewError> {
    let mut by_key: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for file in ["metrics.jsonl", "timings.jsonl"] {
        for mut line in run.read_lines::<Map<String, Value>>(file)? {
            let step = line.shift_remove("step").and_then(|s| s.as_u64()).unwrap_or_default();
            for (key, value) in store::numbers(&line) {
                by_key.entry(key).or_default().insert(step, value);
            }
        }
    }
    let spreads: Vec<&str> = METRICS.iter().filter_map(|m| m.spread).collect();
    let mut curves = Vec::new();
    for metric in METRICS {
        // A spread is drawn around its number; alone it would be drawn twice.
        let drawn_around = spreads.contains(&metric.key)
            && METRICS.iter().any(|m| m.spread == Some(metric.key) && by_key.contains_key(m.key));
        let Some(values) = by_key.get(metric.key).filter(|_| !drawn_around) else { continue };
        let spread = metric.spread.and_then(|s| by_key.get(s));
        let spread_at = |step: &u64| spread.and_then(|s| s.get(step)).copied();
        let points = values.iter().map(|(step, value)| Point { step: *step, value: *value, spread: spread_at(step) });
        curves.push(Curve {
            key: metric.key.to_string(),
            title: metric.title.to_string(),
            unit: metric.unit.to_string(),
            explanation: metric.explanation.to_string(),
            points: points.collect(),
        });
    }
    let unknown = by_key.iter().filter(|(key, _)| METRICS.iter().all(|m| m.key != key.as_str()));
    curves.extend(unknown.map(|(key, values)| Curve {
        key: key.clone(),
        title: key.clone(),
        unit: String::new(),
        explanation: String::new(),
        points: values.iter().map(|(step, value)| Point { step: *step, value: *value, spread: None }).collect(),
    }));
    Ok(curves)
}

fn load_step(run: &RunDir, step: u64, excerpt: Excerpt) -> Result<StepView, ViewError> {
    let groups = run.episodes(step)?;
    let values: BTreeMap<(TaskId, u32), TokenValues> =
        run.token_values(step)?.into_iter().map(|v| ((v.task.clone(), v.sample), v)).collect();
    let n_groups = groups.len();
    let view = |group: episode::Group| GroupView {
        episodes: group
            .episodes
            .iter()
            .map(|e| EpisodeView {
                sample: e.key.sample,
                outcome: e.outcome.clone(),
                stop: e.stop,
                n_sampled: e.n_sampled(),
                reply: e.reply().to_string(),
                sequences: e
                    .sequences
                    .iter()
                    .enumerate()
                    .map(|(i, s)| view_sequence(s, i, values.get(&(e.key.task.clone(), e.key.sample)), excerpt.tokens))
                    .collect(),
            })
            .collect(),
        task: group.task.id,
        prompt: group.task.messages,
        gold: group.task.gold,
    };
    Ok(StepView { step, n_groups, groups: groups.into_iter().take(excerpt.groups).map(view).collect() })
}

fn view_sequence(sequence: &Sequence, index: usize, values: Option<&TokenValues>, limit: usize) -> SequenceView {
    let shown = sequence.len().min(limit);
    let mut by_name = BTreeMap::new();
    for (name, lists) in values.iter().flat_map(|v| &v.values) {
        let mut list = lists.get(index).cloned().unwrap_or_default();
        list.resize(shown, None);
        by_name.insert(name.clone(), list);
    }
    let logp = sequence.logp().iter().zip(sequence.sampled()).map(|(l, s)| s.then_some(*l));
    SequenceView {
        tokens: sequence.tokens()[..shown].to_vec(),
        sampled: sequence.sampled()[..shown].iter().map(|s| u8::from(*s)).collect(),
        logp: logp.take(shown).collect(),
        values: by_name,
        n_left_out: sequence.len() - shown,
    }
}
