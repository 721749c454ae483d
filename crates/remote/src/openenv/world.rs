//! An episode at an OpenEnv server as a world.

use std::collections::BTreeMap;

use agent::{Reaction, World};
use episode::{Cause, ToolCall, ToolSpec};
use gate::Answer;
use guard::{Labels, Origin};
use serde_json::{Map, Value, json};

use super::{Code, OpenEnv, OpenEnvError, Seen};
use crate::mcp::ToolClass;
use crate::wire::WireError;

/// The tool by which an environment that has none of its own is stepped.
const ACT: &str = "act";

/// How the policy acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// By one tool, `act`, whose arguments are the action.
    Action,
    /// By the environment's own tools.
    Tools,
}

/// An episode under way. Its state, for a grader: the sum of rewards, the last one, the steps, whether it is over, and the
/// server's own state.
#[derive(Debug)]
pub struct OpenEnvWorld {
    env: OpenEnv,
    shape: Shape,
    tools: Vec<ToolSpec>,
    classes: BTreeMap<String, ToolClass>,
    seen: Seen,
    reward: f64,
    steps: u64,
}

impl OpenEnvWorld {
    /// Resets the environment with a seed and takes over.
    ///
    /// What its tools may do is said by `classes`, not by the server: a tool that is missing belongs to no class of action,
    /// which a guard denies.
    ///
    /// - Errors: what the server cannot do.
    pub fn begin(
        env: OpenEnv,
        shape: Shape,
        seed: u64,
        more: &Map<String, Value>,
        classes: BTreeMap<String, ToolClass>,
    ) -> Result<OpenEnvWorld, OpenEnvError> {
        let seen = env.reset(Some(seed), more)?;
        let spec = |name: &str, description: &str, parameters: Value| {
            let class = classes.get(name);
            let action = class.map(|c| c.action.clone()).unwrap_or_default();
            ToolSpec::new(name, description, action, parameters)
                .touching(class.map(|c| c.data.clone()).unwrap_or_default())
        };
        let tools = match shape {
            Shape::Action => {
                vec![spec(ACT, "takes one step in the environment", without_metadata(env.schemas()?.action))]
            }
            Shape::Tools => env.tools()?.into_iter().map(|t| spec(&t.name, &t.description, t.input_schema)).collect(),
        };
        Ok(OpenEnvWorld { env, shape, tools, classes, reward: seen.reward.unwrap_or(0.0), seen, steps: 0 })
    }

    /// The tools the policy acts by.
    pub fn tools(&self) -> &[ToolSpec] {
        &self.tools
    }

    /// What there is to see at the beginning, for the first message.
    pub fn first(&self) -> String {
        Value::Object(self.seen.observation.clone()).to_string()
    }

    fn labels(&self, tool: &str) -> Labels {
        let class = self.classes.get(tool);
        let sensitivity = class.map(|c| c.data.iter().cloned().collect()).unwrap_or_default();
        let untrusted = !class.is_some_and(|c| c.trusted);
        Labels { untrusted, sensitivity, ..Labels::of(Origin::Tool(tool.to_owned())) }
    }

    fn action(&self, call: &ToolCall) -> Map<String, Value> {
        match self.shape {
            Shape::Action => call.arguments.clone(),
            Shape::Tools => {
                let action = json!({"type": "call_tool", "tool_name": call.tool, "arguments": call.arguments});
                action.as_object().expect("written as an object above").clone()
            }
        }
    }
}

impl World for OpenEnvWorld {
    fn answer(&mut self, _said: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }

    fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        if !self.tools.iter().any(|t| t.name == call.tool) {
            return Err(Cause::new("no_such_tool", format!("the world has no tool `{}`", call.tool)));
        }
        let labels = self.labels(&call.tool);
        let seen = match self.env.step(&self.action(call)) {
            Ok(seen) => seen,
            // The policy's own mistake, which the server names.
            Err(OpenEnvError::Said { code: Code::Validation, said, .. }) => {
                return Ok(Answer::refused(format!("the action is not of the needed form: {said}"), labels));
            }
            Err(error) => return Err(cause(&error)),
        };
        self.steps += 1;
        self.reward += seen.reward.unwrap_or(0.0);
        let (text, ok) = match self.shape {
            Shape::Action => (Value::Object(seen.observation.clone()).to_string(), true),
            Shape::Tools => result(&seen.observation),
        };
        self.seen = seen;
        Ok(Answer { text, labels, ok })
    }

    fn is_over(&self) -> bool {
        self.seen.done
    }

    fn state(&self) -> Value {
        // A server that says nothing of its state leaves the rest as it is.
        let server = self.env.state().unwrap_or(Value::Null);
        json!({
            "reward": self.reward, "last_reward": self.seen.reward, "steps": self.steps, "done": self.seen.done,
            "server": server,
        })
    }
}

/// What a tool of the environment answered, and whether it did what it was asked.
fn result(observation: &Map<String, Value>) -> (String, bool) {
    if let Some(message) = observation.get("error").and_then(|e| e["message"].as_str()) {
        return (message.to_owned(), false);
    }
    let result = observation.get("result").unwrap_or(&Value::Null);
    let ok = result["is_error"] != true && result["isError"] != true;
    let parts = result["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = parts.filter_map(|p| p["text"].as_str()).collect();
    let text = match (result, texts.is_empty()) {
        (_, false) => texts.join("\n"),
        (Value::String(text), _) => text.clone(),
        (other, _) => other.to_string(),
    };
    (text, ok)
}

fn cause(error: &OpenEnvError) -> Cause {
    let class = match error {
        OpenEnvError::Wire(WireError::Deadline { .. }) => "deadline",
        OpenEnvError::Said { code: Code::Execution, .. } => "environment",
        OpenEnvError::Said { code: Code::Capacity, .. } => "capacity",
        OpenEnvError::Closed { .. } => "closed",
        _ => "openenv",
    };
    Cause::new(class, error.to_string())
}

/// The schema of an action without the field that is for programs.
fn without_metadata(mut schema: Value) -> Value {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove("metadata");
    }
    schema
}
