//! What becomes of a turn: its calls go through the gate to the world, and what the world says comes back as messages.

use std::sync::Arc;
use std::time::Duration;

use episode::{Cause, Conduct, Message, Role, Stage, StopReason, Token, ToolCall, ToolSpec};
use gate::{CarryOut, Ruling, Session};
use serde_json::Value;
use text::dialect::Reading;

use crate::turns::{Frame, Place};
use crate::{Codec, Reaction, World};

/// What the policy is told after its turn.
pub(crate) enum Heard {
    /// The attempt is complete.
    End,
    /// A limit was reached.
    Stop(StopReason),
    /// This, and it speaks again.
    Say(Vec<Message>),
}

/// An attempt's world and its way through the gate.
pub(crate) struct Hands {
    world: Box<dyn World>,
    session: Option<Session>,
    tools: Arc<[ToolSpec]>,
    codec: Arc<dyn Codec>,
    stops: (Vec<Token>, Vec<String>),
}

impl Hands {
    pub(crate) fn new(place: Place, tools: Arc<[ToolSpec]>, frame: &Frame) -> Hands {
        let stops = (frame.sampling.stop_tokens.clone(), frame.sampling.stop_strings.clone());
        Hands {
            world: place.world,
            session: place.session.unwrap_or_default(),
            tools,
            codec: frame.codec.clone(),
            stops,
        }
    }

    pub(crate) fn tools(&self) -> &[ToolSpec] {
        &self.tools
    }

    pub(crate) fn state(&self) -> Value {
        self.world.state()
    }

    /// Says whether what follows happened before, so that it leaves no second receipt.
    pub(crate) fn repeats(&mut self, repeats: bool) {
        if let Some(session) = &mut self.session {
            session.repeats(repeats);
        }
    }

    /// What a turn says, without its stop token and from its first stop string on, and whether it holds its stop token.
    pub(crate) fn read(&self, tokens: &[Token]) -> (Reading, bool) {
        let closed = tokens.last().is_some_and(|t| self.stops.0.contains(t));
        let mut text = self.codec.decode(&tokens[..tokens.len() - usize::from(closed)]);
        if !closed {
            let stops = self.stops.1.iter().filter(|s| !s.is_empty());
            if let Some(end) = stops.filter_map(|s| text.find(s.as_str())).min() {
                text.truncate(end);
            }
        }
        match self.tools.is_empty() {
            true => (Reading::plain(text), closed),
            false => (self.codec.read(&text, &self.tools), closed),
        }
    }

    /// Carries out a turn's calls, or lets the world answer a turn without any.
    ///
    /// - Errors: the stage and cause of a fault of the world, a tool or the gate itself.
    pub(crate) fn hear(
        &mut self,
        reading: &Reading,
        conduct: &mut Conduct,
        frame: &Frame,
        late: Duration,
    ) -> Result<Heard, (Stage, Cause)> {
        if reading.calls.is_empty() {
            return match self.world.answer(&reading.said) {
                Ok(Reaction::End) => Ok(Heard::End),
                Ok(Reaction::Say(messages)) => Ok(Heard::Say(messages)),
                Err(cause) => Err((Stage::Environment, cause)),
            };
        }
        let mut messages = Vec::with_capacity(reading.calls.len());
        for call in &reading.calls {
            if conduct.calls as usize >= frame.limits.calls {
                return Ok(Heard::Stop(StopReason::Calls));
            }
            if (frame.clock)() >= late {
                return Ok(Heard::Stop(StopReason::Deadline));
            }
            messages.push(match call {
                Ok(call) => {
                    conduct.calls += 1;
                    let content = self.carry_out(call, conduct, frame)?;
                    Message { tool: Some(call.tool.clone()), ..Message::new(Role::Tool, content) }
                }
                Err(malformed) => {
                    conduct.malformed += 1;
                    Message::new(Role::Tool, format!("error: {malformed}"))
                }
            });
            if conduct.denied as usize > frame.limits.denied {
                return Ok(Heard::Stop(StopReason::Guard));
            }
            if self.world.is_over() {
                return Ok(Heard::End);
            }
        }
        Ok(Heard::Say(messages))
    }

    /// Puts one call to the gate and, if it may run, to the world; what the policy is told of it.
    fn carry_out(&mut self, call: &ToolCall, conduct: &mut Conduct, frame: &Frame) -> Result<String, (Stage, Cause)> {
        let Some(session) = &mut self.session else {
            conduct.denied += 1;
            return Ok(format!("denied: there is no tool `{}` here", call.tool));
        };
        let broken = |e: gate::GateError| (Stage::Tool, Cause::new("gate", e.to_string()));
        let mut ruling = session.propose(call).map_err(broken)?;
        if let (Ruling::Waiting(pending), Some(asks)) = (&ruling, &frame.asks)
            && asks.ask(pending)
        {
            ruling = session.propose(call).map_err(broken)?;
        }
        match ruling {
            Ruling::Go(permit) => {
                let note = permit.note().map(|n| format!("{n}\n")).unwrap_or_default();
                conduct.modified += u32::from(!note.is_empty());
                let world = &mut self.world;
                let answer = session.carry_out(permit, |call| world.call(call));
                match answer {
                    Ok(answer) => {
                        conduct.failed += u32::from(!answer.ok);
                        Ok(note + &answer.text)
                    }
                    Err(CarryOut::Denied(refusal)) => {
                        conduct.denied += 1;
                        Ok(format!("denied: {refusal}"))
                    }
                    Err(CarryOut::Tool(cause)) => Err((Stage::Tool, cause)),
                    Err(CarryOut::Gate(e)) => Err(broken(e)),
                }
            }
            Ruling::Denied(refusal) | Ruling::Deferred(refusal) => {
                conduct.denied += 1;
                Ok(format!("denied: {refusal}"))
            }
            Ruling::Waiting(pending) => {
                conduct.denied += 1;
                conduct.unapproved += 1;
                Ok(format!("denied: needs an approval that nobody gave ({pending})"))
            }
        }
    }
}
