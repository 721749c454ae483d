//! A reward model that judges replies.

use agent::Codec;
use episode::{Message, Token};
use policy::{Batch, Learner, PolicyError, TrainSequence, ValueAt, Want};
use serde::Serialize;
use text::Special;
use train::Engine;

use crate::Chat;

/// A trained value head as a judge of replies.
pub struct Judge {
    engine: Engine,
    chat: Chat,
}

/// What a reply is worth to a reward model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Judgement {
    /// The head's value at the state that has read the reply and the token that ends it; only differences mean something.
    pub score: f32,
    /// σ(score), from 0 to 1.
    pub reward: f64,
}

impl Judge {
    /// A judge from an engine with a value head.
    pub fn new(engine: Engine, chat: Chat) -> Judge {
        Judge { engine, chat }
    }

    /// Judges a reply to some messages.
    ///
    /// - Errors: a template that refuses the messages, a context overflow, an engine without a value head.
    pub fn judge(&mut self, messages: &[Message], reply: &str) -> Result<Judgement, PolicyError> {
        let mut tokens: Vec<Token> = self.chat.open(messages, &[]).map_err(PolicyError::Unsupported)?;
        tokens.extend(self.chat.tokenizer().encode(reply, Special::Literal));
        tokens.extend(self.chat.end());
        let mut last = vec![false; tokens.len()];
        if let Some(last) = last.last_mut() {
            *last = true;
        }
        let want = Want { value: ValueAt::After, top_k: 0 };
        let batch = Batch { want, ..Batch::new(vec![vec![TrainSequence::new(&tokens, &last)]], 1.0, &[]) };
        let found = self.engine.forward(&batch)?;
        let score = found.iter().flatten().next().and_then(|v| v.value.last().copied());
        let score = score.ok_or(PolicyError::NoPrompt)?;
        Ok(Judgement { score, reward: loss::sigmoid(f64::from(score)) })
    }
}
