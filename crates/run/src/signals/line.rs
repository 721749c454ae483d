//! A line as it is typed: an episode by its per-token lists, or as a run recorded it.

use std::fmt;

use episode::{Cause, Episode, Outcome, Part, Stage, StopReason, Task};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// One entry a token, `null` where it was not sampled.
pub(super) type List<V> = Option<Vec<Option<V>>>;

/// A line; which fields go together is checked when it becomes an episode.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Line {
    pub(super) run: Option<String>,
    pub(super) step: Option<u64>,
    pub(super) group: Option<GroupField>,
    pub(super) task: Option<TaskField>,
    pub(super) episode: Option<Box<Episode>>,
    pub(super) reward: Option<f64>,
    pub(super) outcome: Option<OutcomeField>,
    pub(super) stop: Option<StopReason>,
    pub(super) pair: Option<Side>,
    pub(super) turn_rewards: Option<Vec<f64>>,
    pub(super) sampled: Option<Vec<u8>>,
    pub(super) logp_sampler: List<f32>,
    pub(super) logp_old: List<f32>,
    pub(super) logp: List<f32>,
    pub(super) logp_ref: List<f32>,
    pub(super) logp_teacher: List<f32>,
    pub(super) value: List<f32>,
    pub(super) value_new: List<f32>,
    pub(super) entropy: List<f32>,
    pub(super) topk: Option<TopField>,
    pub(super) version: List<u32>,
    pub(super) turn: List<u32>,
    pub(super) anchor: List<Anchor>,
}

/// Log-probabilities of the k tokens that the student found most likely in the place of each token.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TopField {
    pub(super) ids: List<Vec<u32>>,
    pub(super) logp_old: List<Vec<f32>>,
    pub(super) logp: List<Vec<f32>>,
    pub(super) logp_teacher: List<Vec<f32>>,
}

/// Which side of a preference an episode is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    Chosen,
    Rejected,
}

/// What names a group: a text, or a whole number that stands for its digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupField(pub(super) String);

/// A task's name, or the whole task as a run records it.
#[derive(Debug)]
pub(super) enum TaskField {
    Name(String),
    Whole(Box<Task>),
}

/// What tells two states apart; its words are compared by no algorithm yet, so only its shape is looked at.
#[derive(Debug)]
pub(super) struct Anchor;

/// An outcome with exactly the fields of its kind.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields, expecting = "an outcome, an object with `kind`")]
pub(super) enum OutcomeField {
    Graded {
        reward: f64,
        #[serde(default)]
        parts: Vec<Part>,
    },
    Failed {
        stage: Stage,
        cause: Cause,
    },
    Cancelled {},
}

impl From<OutcomeField> for Outcome {
    fn from(outcome: OutcomeField) -> Outcome {
        match outcome {
            OutcomeField::Graded { reward, parts } => Outcome::Graded { reward, parts },
            OutcomeField::Failed { stage, cause } => Outcome::Failed { stage, cause },
            OutcomeField::Cancelled {} => Outcome::Cancelled,
        }
    }
}

impl<'de> Deserialize<'de> for GroupField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = GroupField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a whole number at least 0")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<GroupField, E> {
                Ok(GroupField(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<GroupField, E> {
                Ok(GroupField(number.to_string()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for TaskField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = TaskField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a task's name or a recorded task")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TaskField, E> {
                Ok(TaskField::Name(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TaskField, A::Error> {
                Task::deserialize(MapAccessDeserializer::new(map)).map(|task| TaskField::Whole(Box::new(task)))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for Anchor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Anchor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a whole number at least 0")
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Anchor, E> {
                Ok(Anchor)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Anchor, E> {
                Ok(Anchor)
            }
        }
        deserializer.deserialize_any(Any)
    }
}
