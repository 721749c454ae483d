//! What OpenEnv servers say.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::OpenEnvError;
use crate::wire::{WireError, shown};

/// What a reset or a step shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// What there is to see; its fields are the environment's own.
    pub observation: Map<String, Value>,
    /// What the last action was worth, in reward points.
    pub reward: Option<f64>,
    /// Whether the episode is over.
    pub done: bool,
}

/// The form of an environment's actions, observations and state, as JSON Schemas.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Schemas {
    /// Of actions.
    pub action: Value,
    /// Of observations.
    pub observation: Value,
    /// Of the state.
    pub state: Value,
}

/// A tool of an environment that has them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub description: String,
    /// The schema of its arguments.
    #[serde(alias = "inputSchema")]
    pub input_schema: Value,
}

#[derive(Deserialize)]
struct Wire {
    observation: Map<String, Value>,
    #[serde(default)]
    reward: Value,
    #[serde(default)]
    done: bool,
}

impl Seen {
    pub(super) fn read(url: &str, value: Value) -> Result<Seen, OpenEnvError> {
        let wire: Wire = read(url, value)?;
        let reward = match &wire.reward {
            Value::Null => None,
            Value::Bool(b) => Some(f64::from(u8::from(*b))),
            other => {
                let number = other.as_f64().filter(|r| r.is_finite());
                let odd = || OpenEnvError::Reward { url: url.to_owned(), got: shown(&other.to_string()) };
                Some(number.ok_or_else(odd)?)
            }
        };
        Ok(Seen { observation: wire.observation, reward, done: wire.done })
    }
}

/// A value in the form that is needed.
pub(super) fn read<T: for<'a> Deserialize<'a>>(url: &str, value: Value) -> Result<T, OpenEnvError> {
    serde_json::from_value(value)
        .map_err(|e| OpenEnvError::Wire(WireError::BadAnswer { url: url.to_owned(), reason: shown(&e.to_string()) }))
}
