//! What surrounds the policy during one attempt.

use episode::{Cause, Message};

/// What a world makes of the policy's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reaction {
    /// The attempt is complete; the answer is what was just said.
    End,
    /// The policy is told this and speaks again.
    Say(Vec<Message>),
}

/// One attempt's surroundings; it may keep state from turn to turn.
pub trait World: Send {
    /// Answers a turn of the policy.
    ///
    /// - Errors: a fault of the world itself; what the policy did wrong is a [`Reaction`].
    fn answer(&mut self, said: &str) -> Result<Reaction, Cause>;
}

/// A world that never answers: one question, one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silent;

impl World for Silent {
    fn answer(&mut self, _said: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }
}
