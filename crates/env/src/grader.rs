//! Graders: what one reply to one task is worth.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use episode::{Cause, Task};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::answer::Number;
use crate::settings::{take, take_weight};
use crate::{EnvError, Submission, Ungraded};

table! {
    /// The kinds of graders.
    Kind: Make;
    command => Command: "any program: JSON in, JSON out";
    expression => Expression: "1 when the last line is a calculation with the numbers given that reaches the target";
    final_number => FinalNumber: "1 when the final answer (after `####`, in `\\boxed{}`, or the last number) is the gold number";
    goal => Goal: "1 when the world ended as the task's gold has it, whatever was said";
    last_number => LastNumber: "1 when the last number of the reply is the gold number";
    only_number => OnlyNumber: "1 when the reply is one whole number and nothing else";
    text => Text: "1 when the reply is the gold text";
}

/// Makes a grader from its settings.
pub(crate) trait Make {
    fn make(&self, base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)>;
}

/// What a grader gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Marks {
    /// 0 for worthless, 1 for right; what lies beyond is the grader's own business.
    pub value: f64,
    /// Anything else it measured, for the record.
    pub parts: Vec<(String, f64)>,
    /// What it has to say about the attempt.
    pub feedback: Option<String>,
}

impl Marks {
    /// Right or wrong.
    pub fn of(is_right: bool) -> Self {
        Marks { value: if is_right { 1.0 } else { 0.0 }, parts: Vec::new(), feedback: None }
    }
}

/// Judges replies; called from several threads.
pub trait Grader: Send + Sync {
    /// Whether this grader can judge answers to a task at all.
    ///
    /// - Errors: what the task lacks.
    fn accepts(&self, task: &Task) -> Result<(), String>;

    /// Judges a reply.
    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded>;

    /// The longest that takes.
    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// One `[[env.grader]]` of a run file.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The name of its part of the reward; the kind if not given.
    pub name: String,
    /// What its verdict is multiplied with in the sum.
    pub weight: f64,
    /// Whether it is an opinion, such as a learned model's: it is part of the reward, but the audit does not ask it to give
    /// full marks to gold answers, and it does not count for whether a task was solved.
    pub opinion: bool,
    /// The kind with its fields.
    pub kind: Kind,
}

impl Settings {
    /// A grader called after its kind, with weight 1.
    pub fn plain(kind: Kind) -> Self {
        Settings { name: kind.tag().to_owned(), weight: 1.0, opinion: false, kind }
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = serde_json::Map::deserialize(deserializer)?;
        let name = take(&mut map, "name").map_err(D::Error::custom)?;
        let weight = take_weight(&mut map).map_err(D::Error::custom)?;
        let opinion = take(&mut map, "opinion").map_err(D::Error::custom)?.unwrap_or(false);
        let kind = Kind::from_map(map).map_err(D::Error::custom)?;
        Ok(Settings { name: name.unwrap_or_else(|| kind.tag().to_owned()), weight, opinion, kind })
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = self.kind.to_map();
        map.insert("name".to_owned(), self.name.clone().into());
        map.insert("weight".to_owned(), self.weight.into());
        map.insert("opinion".to_owned(), self.opinion.into());
        map.serialize(serializer)
    }
}

/// A grader with its name and its weight in the reward.
pub(crate) struct Weighted {
    pub(crate) name: String,
    pub(crate) weight: f64,
    pub(crate) opinion: bool,
    pub(crate) grader: Box<dyn Grader>,
}

pub(crate) fn make_all(env: &str, settings: &[Settings], base: &Path) -> Result<Vec<Weighted>, EnvError> {
    let mut names = BTreeSet::new();
    let mut graders = Vec::with_capacity(settings.len());
    for Settings { name, weight, opinion, kind } in settings {
        if !names.insert(name) {
            return Err(EnvError::Name { what: format!("graders of environment `{env}`"), name: name.clone() });
        }
        let grader = kind.family().make(base).map_err(|(key, reason)| EnvError::Setting {
            env: env.to_owned(),
            key: format!("grader.{name}.{key}"),
            reason,
        })?;
        graders.push(Weighted { name: name.clone(), weight: *weight, opinion: *opinion, grader });
    }
    if graders.iter().all(|g| g.opinion) {
        let reason = "are all opinions, needed at least 1 that can tell a solved task".to_owned();
        return Err(EnvError::Setting { env: env.to_owned(), key: "grader".to_owned(), reason });
    }
    Ok(graders)
}

/// Whether the number that a rule reads from the reply is the gold number.
pub(crate) struct EqualsGold {
    pub(crate) read: fn(&str) -> Option<Number>,
    /// Whether a wrong reply is told what is right.
    pub(crate) tells: bool,
}

impl Grader for EqualsGold {
    fn accepts(&self, task: &Task) -> Result<(), String> {
        gold_number(task).map(|_| ())
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let gold = gold_number(submission.task).map_err(bad_gold)?;
        let is_right = (self.read)(submission.reply) == Some(gold);
        // The gold answer as the task has it, which is how it would have to be said.
        let told = (self.tells && !is_right).then(|| format!("The right answer is {}.", said(&submission.task.gold)));
        Ok(Marks { feedback: told, ..Marks::of(is_right) })
    }
}

fn said(gold: &Value) -> String {
    gold.as_str().map_or_else(|| gold.to_string(), str::to_owned)
}

/// The gold answer as a number.
fn gold_number(task: &Task) -> Result<Number, String> {
    let read = match &task.gold {
        Value::Number(n) => Number::parse(&n.to_string()),
        Value::String(text) => Number::parse(text),
        _ => None,
    };
    read.ok_or_else(|| format!("needed a number as `gold`, got `{}`", task.gold))
}

pub(crate) fn bad_gold(reason: String) -> Ungraded {
    Ungraded::Failed(Cause::new("bad_gold", reason))
}
