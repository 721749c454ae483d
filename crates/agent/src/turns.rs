//! The loop itself, one attempt at a time, without waiting for anything.

use std::sync::Arc;
use std::time::Duration;

use episode::random::Stream;
use episode::{Cause, Conduct, EpisodeKey, Message, Role, Sequence, Stage, StopReason, Token, ToolSpec};
use gate::Session;
use policy::{Job, PolicyError, Sampled, Sampling};
use serde_json::Value;

use crate::hands::{Hands, Heard};
use crate::{Asks, Attempt, Codec, Next, Opening, World};

/// How far an attempt may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// At most this many turns of the policy; at least 1.
    pub turns: usize,
    /// The most tokens a sequence may have; see [`policy::Sampler::context`].
    pub context: usize,
    /// At most this many sampled tokens, over all turns.
    pub tokens: usize,
    /// At most this many tool calls.
    pub calls: usize,
    /// At most this many calls that the gate did not let through.
    pub denied: usize,
    /// The longest an attempt may take, without the time in which it was set aside; looked at between turns and calls.
    pub wall: Duration,
}

impl Limits {
    /// This many turns within a context, and nothing else limited.
    pub fn turns(turns: usize, context: usize) -> Self {
        let (tokens, calls, denied) = (usize::MAX, usize::MAX, usize::MAX);
        Limits { turns, context, tokens, calls, denied, wall: Duration::MAX }
    }
}

/// What all attempts of one collection have in common.
#[derive(Clone)]
pub struct Frame {
    /// The model's chat format.
    pub codec: Arc<dyn Codec>,
    /// How to draw; its stop tokens end a turn.
    pub sampling: Arc<Sampling>,
    /// How far an attempt may go.
    pub limits: Limits,
    /// The run's seed.
    pub run_seed: u64,
    /// The time since some moment; never goes back.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Who is asked when the gate wants an approval; nobody in training, and then such a call is denied.
    pub asks: Option<Arc<dyn Asks>>,
}

/// What comes next.
#[allow(clippy::large_enum_variant, reason = "it is made and taken apart once a turn, and never kept in numbers")]
pub enum Step {
    /// The policy speaks: sample the job and feed the result to the attempt it belongs to.
    Sample(Turns, Job),
    /// The attempt has ended.
    Finished(Attempt),
}

/// One attempt under way, waiting for the policy's next turn.
pub struct Turns {
    id: u64,
    frame: Frame,
    hands: Hands,
    prompt: Arc<[Token]>,
    turns_taken: usize,
    /// When it began, or was taken up again.
    since: Duration,
    attempt: Attempt,
}

/// Where an attempt takes place.
pub struct Place {
    /// Its world.
    pub world: Box<dyn World>,
    /// Its way through the gate; without one there are no tools. What kept it from being opened fails the attempt.
    pub session: Result<Option<Session>, String>,
}

impl Place {
    /// A world without tools.
    pub fn plain(world: impl World + 'static) -> Self {
        Place { world: Box::new(world), session: Ok(None) }
    }
}

impl Turns {
    /// Begins an attempt; `id` names its jobs.
    ///
    /// - Holds: the random stream depends on (run seed, step, task, sample, sequence) alone, and the token at position `p` of
    ///   the sequence uses its number `p`, so turns never share numbers and scheduling cannot matter.
    pub fn begin(id: u64, key: EpisodeKey, opening: &Opening, frame: &Frame, place: Place) -> Step {
        let messages = opening.messages.to_vec();
        let role = messages.last().map_or(Role::User, |m| m.role);
        let mut sequence = Sequence::new();
        let mut settled = None;
        let prompt = opening.tokens.clone().unwrap_or_else(|reason| {
            settled = Attempt::failed(Stage::Environment, Cause::new("template", reason));
            Vec::new().into()
        });
        if let Err(reason) = &place.session {
            settled = Attempt::failed(Stage::Tool, Cause::new("gate", reason));
        }
        sequence.append_context(role, &prompt);
        // Nothing was said yet, so nothing but the system can have stopped it.
        let stop = StopReason::Cancelled;
        let conduct = Conduct::default();
        let attempt = Attempt { key, sequences: vec![sequence], messages, stop, conduct, state: Value::Null, settled };
        Turns::of(id, attempt, opening.tools.clone(), prompt, frame, place).ask()
    }

    fn of(
        id: u64,
        attempt: Attempt,
        tools: Arc<[ToolSpec]>,
        prompt: Arc<[Token]>,
        frame: &Frame,
        place: Place,
    ) -> Turns {
        let hands = Hands::new(place, tools, frame);
        let since = (frame.clock)();
        Turns { id, frame: frame.clone(), hands, prompt, turns_taken: 0, since, attempt }
    }

    /// An attempt that was set aside, from its record; `opening` is its task's.
    ///
    /// What the world was told and answered is told again, and must be answered alike: a world that cannot repeat itself
    /// fails the attempt. The gate rules again and writes no second receipts.
    ///
    /// - Holds: going on is the same as if it had never been put down.
    pub fn restore(
        id: u64,
        attempt: Attempt,
        opening: &Opening,
        frame: &Frame,
        place: Place,
    ) -> Result<Turns, Box<Attempt>> {
        let mut turns = Turns::of(id, attempt, opening.tools.clone(), Vec::new().into(), frame, place);
        if turns.attempt.sequences.is_empty() {
            return Err(Box::new(turns.failed(Stage::Environment, Cause::new("record", "it has no sequence"))));
        }
        match turns.repeat(opening.messages.len()) {
            Ok(()) => Ok(turns),
            Err((stage, cause)) => Err(Box::new(turns.failed(stage, cause))),
        }
    }

    /// Tells the world again what it was told.
    fn repeat(&mut self, n_given: usize) -> Result<(), (Stage, Cause)> {
        let odd = |text: &str| (Stage::Environment, Cause::new("not_repeatable", text));
        let messages = self.attempt.messages.clone();
        let mut rest = messages.iter().skip(n_given).peekable();
        let told = self.complete_turns();
        let mut conduct = Conduct { restarts: self.attempt.conduct.restarts, ..Conduct::default() };
        self.hands.repeats(true);
        for tokens in told {
            self.turns_taken += 1;
            let (said, _) = self.hands.read(&tokens);
            if rest.next().map(|m| m.role) != Some(Role::Assistant) {
                return Err(odd("its record has other turns than its tokens"));
            }
            let late = self.since.saturating_add(self.frame.limits.wall);
            let Heard::Say(answered) = self.hands.hear(&said, &mut conduct, &self.frame, late)? else {
                return Err(odd("it no longer answers what it answered before the attempt was set aside"));
            };
            for message in &answered {
                if rest.next_if_eq(&message).is_none() {
                    return Err(odd("it answered otherwise when the attempt was taken up again"));
                }
            }
        }
        if rest.peek().is_some() {
            return Err(odd("it no longer answers what it answered before the attempt was set aside"));
        }
        self.hands.repeats(false);
        self.attempt.conduct = conduct;
        Ok(())
    }

    /// The tokens of each turn that the policy completed.
    fn complete_turns(&self) -> Vec<Vec<Token>> {
        let mut turns = Vec::new();
        for sequence in &self.attempt.sequences {
            for turn in sequence.turns().iter().filter(|t| sequence.sampled().get(t.span.start) == Some(&true)) {
                turns.push(sequence.tokens()[turn.span.clone()].to_vec());
            }
        }
        if self.attempt.sequences.last().is_some_and(|s| s.n_open() > 0) {
            turns.pop();
        }
        turns
    }

    /// The attempt as it stands: what [`Turns::restore`] takes.
    pub fn so_far(&self) -> &Attempt {
        &self.attempt
    }

    /// Names its jobs anew.
    #[must_use]
    pub fn named(mut self, id: u64) -> Turns {
        self.id = id;
        self
    }

    /// Takes what was sampled of the last job, which is set aside.
    ///
    /// - Errors: the attempt, failed, when the sampler cannot vouch for it; see [`Turns::feed`].
    pub fn set_aside(mut self, part: &Sampled) -> Result<Turns, Box<Attempt>> {
        if part.tokens.is_empty() && part.logp.is_empty() && part.logp_t1.is_empty() {
            return Ok(self);
        }
        match self.sequence().extend_sampled(&part.tokens, &part.logp, &part.logp_t1, part.version) {
            Ok(()) => Ok(self),
            Err(error) => Err(Box::new(self.failed(Stage::Sampler, Cause::new("bad_sample", error.to_string())))),
        }
    }

    /// Goes on with a job that was set aside.
    pub fn go_on(mut self) -> Step {
        self.prompt = self.sequence().tokens().into();
        self.since = (self.frame.clock)();
        self.ask()
    }

    /// Takes what was sampled for the last job.
    ///
    /// What the sampler cannot vouch for (a missing log-probability, another length) fails the attempt and appends nothing;
    /// it is never rebuilt from text.
    pub fn feed(mut self, sampled: Sampled) -> Step {
        let sequence = self.sequence();
        let appended = sequence.extend_sampled(&sampled.tokens, &sampled.logp, &sampled.logp_t1, sampled.version);
        let turn = sequence.tokens()[sequence.len() - sequence.n_open()..].to_vec();
        let is_full = sequence.len() >= self.frame.limits.context;
        if let Err(error) = appended {
            return self.fail(Stage::Sampler, Cause::new("bad_sample", error.to_string()));
        }
        self.turns_taken += 1;
        let (said, closed) = self.hands.read(&turn);
        let calls = said.calls.iter().filter_map(|c| c.as_ref().ok().cloned()).collect();
        self.attempt.messages.push(Message { calls, ..Message::new(Role::Assistant, said.said.clone()) });
        self.attempt.stop = sampled.stop;
        match sampled.stop {
            StopReason::Eos | StopReason::Stop => self.react(&said, closed),
            StopReason::Cancelled => {
                self.attempt.settled = Some(episode::Outcome::Cancelled);
                self.finish()
            }
            StopReason::Length if is_full => self.stop(StopReason::Context),
            _ => self.finish(),
        }
    }

    /// Takes the news that the last job could not be sampled.
    pub fn fault(mut self, error: &PolicyError) -> Step {
        match error {
            PolicyError::Cancelled => {
                self.attempt.settled = Some(episode::Outcome::Cancelled);
                self.stop(StopReason::Cancelled)
            }
            // The engine counted otherwise than the limit given here; an overlong prompt is still no fault.
            PolicyError::Context { .. } => self.stop(StopReason::Context),
            other => self.fail(Stage::Sampler, Cause::new("sampler", other.to_string())),
        }
    }

    fn react(mut self, said: &text::dialect::Reading, closed: bool) -> Step {
        let late = self.since.saturating_add(self.frame.limits.wall);
        let messages = match self.hands.hear(said, &mut self.attempt.conduct, &self.frame, late) {
            Ok(Heard::End) => return self.finish(),
            Ok(Heard::Stop(reason)) => return self.stop(reason),
            // Left out of the record, since the policy never sees it.
            Ok(Heard::Say(_)) if self.turns_taken >= self.frame.limits.turns => return self.stop(StopReason::Turns),
            Ok(Heard::Say(messages)) => messages,
            Err((stage, cause)) => return self.fail(stage, cause),
        };
        let (history, tools) = (&self.attempt.messages, self.hands.tools());
        let role = messages.last().map_or(Role::User, |m| m.role);
        let next = self.frame.codec.go_on(history, tools, closed, &messages);
        let so_far = self.sequence().len();
        match next {
            // Nor does it see what leaves no room to answer, which would not fit into training either.
            Ok(Next::Append(tokens)) if so_far + tokens.len() >= self.frame.limits.context => {
                return self.stop(StopReason::Context);
            }
            Ok(Next::Anew(tokens)) if tokens.len() >= self.frame.limits.context => {
                return self.stop(StopReason::Context);
            }
            Ok(Next::Append(tokens)) => self.sequence().append_context(role, &tokens),
            Ok(Next::Anew(tokens)) => {
                self.attempt.conduct.restarts += 1;
                let mut sequence = Sequence::new();
                sequence.append_context(role, &tokens);
                self.attempt.sequences.push(sequence);
            }
            Err(reason) => return self.fail(Stage::Environment, Cause::new("template", reason)),
        }
        self.attempt.messages.extend(messages);
        self.prompt = self.sequence().tokens().into();
        self.ask()
    }

    /// The next job, or the end when no token fits any more.
    fn ask(self) -> Step {
        if self.attempt.settled.is_some() {
            return self.finish();
        }
        let begun = self.attempt.sequences.last().map_or(0, Sequence::n_open);
        let before = self.prompt.len().saturating_sub(begun);
        let context = self.frame.limits.context.saturating_sub(before);
        if context <= begun {
            return self.stop(StopReason::Context);
        }
        let sampled: usize = self.attempt.sequences.iter().map(Sequence::n_sampled).sum();
        let tokens = self.frame.limits.tokens.saturating_sub(sampled - begun);
        if tokens <= begun {
            return self.stop(StopReason::Length);
        }
        let room = context.min(tokens);
        let mut sampling = self.frame.sampling.clone();
        if sampling.max_tokens > room {
            Arc::make_mut(&mut sampling).max_tokens = room;
        }
        let stream = stream(self.frame.run_seed, &self.attempt.key, self.attempt.sequences.len() - 1);
        let job = Job { id: self.id, prompt: self.prompt.clone(), begun, sampling, stream };
        Step::Sample(self, job)
    }

    fn sequence(&mut self) -> &mut Sequence {
        self.attempt.sequences.last_mut().expect("`begin` makes the first sequence and none is removed")
    }

    fn fail(self, stage: Stage, cause: Cause) -> Step {
        Step::Finished(self.failed(stage, cause))
    }

    fn failed(mut self, stage: Stage, cause: Cause) -> Attempt {
        self.attempt.settled = Attempt::failed(stage, cause);
        self.attempt
    }

    fn stop(mut self, stop: StopReason) -> Step {
        self.attempt.stop = stop;
        self.finish()
    }

    fn finish(mut self) -> Step {
        self.attempt.state = self.hands.state();
        Step::Finished(self.attempt)
    }
}

/// The random numbers of an attempt's sequence, counted from 0.
fn stream(run_seed: u64, key: &EpisodeKey, sequence: usize) -> Stream {
    let mut words = vec![run_seed, key.step, key.task.bits(), u64::from(key.sample)];
    // Positions begin again in a second sequence, so its numbers must be others.
    words.extend((sequence > 0).then_some(sequence as u64));
    Stream::new("sample", &words)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
