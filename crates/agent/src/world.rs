//! What surrounds the policy during one attempt.

use episode::{Cause, Message, ToolCall};
use gate::Answer;
use serde_json::Value;

/// What a world makes of a turn without calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reaction {
    /// The attempt is complete; the answer is what was just said.
    End,
    /// The policy is told this and speaks again.
    Say(Vec<Message>),
}

/// One attempt's surroundings; it may keep state from turn to turn.
pub trait World: Send {
    /// Answers a turn of the policy in which it called no tool.
    ///
    /// - Errors: a fault of the world itself; what the policy did wrong is a [`Reaction`].
    fn answer(&mut self, said: &str) -> Result<Reaction, Cause>;

    /// Carries out a call that the gate let through.
    ///
    /// - Errors: a fault of the tool itself, which fails the attempt; a call that makes no sense is an [`Answer`] that is not
    ///   `ok`.
    fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        Err(Cause::new("no_such_tool", format!("the world has no tool `{}`", call.tool)))
    }

    /// Whether what was called ended the attempt.
    fn is_over(&self) -> bool {
        false
    }

    /// How things stand, for the grader; never shown to the policy.
    fn state(&self) -> Value {
        Value::Null
    }
}

/// A world that never answers: one question, one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silent;

impl World for Silent {
    fn answer(&mut self, _said: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }
}
