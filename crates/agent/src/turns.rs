//! The loop itself, one attempt at a time, without waiting for anything.

use std::sync::Arc;

use episode::random::Stream;
use episode::{Cause, EpisodeKey, Message, Role, Sequence, Stage, StopReason, Token};
use policy::{Job, PolicyError, Sampled, Sampling};

use crate::{Attempt, Codec, Opening, Reaction, World};

/// How far an attempt may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// At most this many turns of the policy; at least 1.
    pub turns: usize,
    /// The most tokens a sequence may have; see [`policy::Sampler::context`].
    pub context: usize,
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
}

/// What comes next.
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
    world: Box<dyn World>,
    stream: Stream,
    prompt: Arc<[Token]>,
    turns_taken: usize,
    attempt: Attempt,
}

impl Turns {
    /// Begins an attempt; `id` names its jobs.
    ///
    /// - Holds: the random stream depends on (run seed, step, task, sample) alone, and the token at position `p` of the
    ///   sequence uses its number `p`, so turns never share numbers and scheduling cannot matter.
    pub fn begin(id: u64, key: EpisodeKey, opening: &Opening, frame: &Frame, world: Box<dyn World>) -> Step {
        let stream = stream(frame.run_seed, &key);
        let messages = opening.messages.to_vec();
        let role = messages.last().map_or(Role::User, |m| m.role);
        let mut sequence = Sequence::new();
        let mut settled = None;
        let prompt = opening.tokens.clone().unwrap_or_else(|reason| {
            settled = Attempt::failed(Stage::Environment, Cause::new("template", reason));
            Vec::new().into()
        });
        sequence.append_context(role, &prompt);
        // Nothing was said yet, so nothing but the system can have stopped it.
        let stop = StopReason::Cancelled;
        let attempt = Attempt { key, sequences: vec![sequence], messages, stop, settled };
        Turns { id, frame: frame.clone(), world, stream, prompt, turns_taken: 0, attempt }.ask()
    }

    /// An attempt that was set aside, from its record; its first `n_given` messages are the task's.
    ///
    /// What the world was told and answered is told again, and must be answered alike: a world that cannot repeat itself
    /// fails the attempt.
    ///
    /// - Holds: going on is the same as if it had never been put down.
    pub fn restore(
        id: u64,
        attempt: Attempt,
        n_given: usize,
        frame: &Frame,
        world: Box<dyn World>,
    ) -> Result<Turns, Box<Attempt>> {
        let stream = stream(frame.run_seed, &attempt.key);
        let prompt = Vec::new().into();
        let mut turns = Turns { id, frame: frame.clone(), world, stream, prompt, turns_taken: 0, attempt };
        if turns.attempt.sequences.is_empty() {
            return Err(Box::new(turns.failed(Stage::Environment, Cause::new("record", "it has no sequence"))));
        }
        let messages = turns.attempt.messages.clone();
        let mut rest = messages.iter().skip(n_given).peekable();
        while let Some(said) = rest.next() {
            turns.turns_taken += 1;
            let answered = match turns.world.answer(&said.content) {
                Ok(Reaction::Say(messages)) => messages,
                Ok(Reaction::End) => Vec::new(),
                Err(cause) => return Err(Box::new(turns.failed(Stage::Environment, cause))),
            };
            for message in &answered {
                if rest.next_if_eq(&message).is_none() {
                    let text = "it answered otherwise when the attempt was taken up again";
                    return Err(Box::new(turns.failed(Stage::Environment, Cause::new("not_repeatable", text))));
                }
            }
            if answered.is_empty() || rest.peek().is_some_and(|m| m.role != Role::Assistant) {
                let text = "it no longer answers what it answered before the attempt was set aside";
                return Err(Box::new(turns.failed(Stage::Environment, Cause::new("not_repeatable", text))));
            }
        }
        Ok(turns)
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
        let said = self.text_of(&turn, sampled.stop);
        self.attempt.messages.push(Message::new(Role::Assistant, said.clone()));
        self.attempt.stop = sampled.stop;
        match sampled.stop {
            StopReason::Eos | StopReason::Stop => {
                let closed = self.is_closed(&sampled.tokens);
                self.react(&said, closed)
            }
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

    fn react(mut self, said: &str, closed: bool) -> Step {
        let messages = match self.world.answer(said) {
            Ok(Reaction::End) => return self.finish(),
            // Left out of the record, since the policy never sees it.
            Ok(Reaction::Say(_)) if self.turns_taken >= self.frame.limits.turns => return self.stop(StopReason::Turns),
            Ok(Reaction::Say(messages)) => messages,
            Err(cause) => return self.fail(Stage::Environment, cause),
        };
        let tokens = match self.frame.codec.go_on(closed, &messages) {
            Ok(tokens) => tokens,
            Err(reason) => return self.fail(Stage::Environment, Cause::new("template", reason)),
        };
        let role = messages.last().map_or(Role::User, |m| m.role);
        self.attempt.messages.extend(messages);
        self.sequence().append_context(role, &tokens);
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
        let room = self.frame.limits.context.saturating_sub(before);
        if room <= begun {
            return self.stop(StopReason::Context);
        }
        let mut sampling = self.frame.sampling.clone();
        if sampling.max_tokens > room {
            Arc::make_mut(&mut sampling).max_tokens = room;
        }
        let job = Job { id: self.id, prompt: self.prompt.clone(), begun, sampling, stream: self.stream };
        Step::Sample(self, job)
    }

    fn is_closed(&self, tokens: &[Token]) -> bool {
        tokens.last().is_some_and(|t| self.frame.sampling.stop_tokens.contains(t))
    }

    /// What was said: without the stop token, and up to the first stop string.
    fn text_of(&self, tokens: &[Token], stop: StopReason) -> String {
        let n = tokens.len() - usize::from(self.is_closed(tokens));
        let mut text = self.frame.codec.decode(&tokens[..n]);
        if stop == StopReason::Stop {
            let stops = self.frame.sampling.stop_strings.iter().filter(|s| !s.is_empty());
            if let Some(end) = stops.filter_map(|s| text.find(s.as_str())).min() {
                text.truncate(end);
            }
        }
        text
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

    fn finish(self) -> Step {
        Step::Finished(self.attempt)
    }
}

/// An attempt's random numbers.
fn stream(run_seed: u64, key: &EpisodeKey) -> Stream {
    Stream::new("sample", &[run_seed, key.step, key.task.bits(), u64::from(key.sample)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Chars;
    use crate::{Silent, World};
    use episode::{Outcome, Task};

    /// A world that says each of its lines once and is then content, or breaks.
    struct Lines(Vec<Result<&'static str, &'static str>>);

    impl World for Lines {
        fn answer(&mut self, said: &str) -> Result<Reaction, Cause> {
            if self.0.is_empty() {
                return Ok(Reaction::End);
            }
            match self.0.remove(0) {
                Ok(line) => Ok(Reaction::Say(vec![Message::new(Role::Tool, format!("{line} after {said}"))])),
                Err(why) => Err(Cause::new("broken", why)),
            }
        }
    }

    fn frame(turns: usize, context: usize) -> Frame {
        let mut sampling = Sampling::plain(1.0, 8, vec![Chars::END]);
        sampling.stop_strings = vec!["\n\n".to_owned()];
        Frame { codec: Arc::new(Chars), sampling: Arc::new(sampling), limits: Limits { turns, context }, run_seed: 7 }
    }

    fn key(question: &str) -> (EpisodeKey, Opening) {
        let task = Task::new("test", vec![Message::new(Role::User, question)], 1.into(), 0.into());
        (EpisodeKey { step: 3, task: task.id.clone(), sample: 2 }, Opening::new(&Chars, &task.messages))
    }

    fn begin(frame: &Frame, world: impl World + 'static) -> Step {
        let (key, opening) = key("hi");
        Turns::begin(9, key, &opening, frame, Box::new(world))
    }

    fn sampled(tokens: Vec<Token>, stop: StopReason) -> Sampled {
        let logp = vec![-0.5; tokens.len()];
        Sampled { id: 9, logp_t1: logp.clone(), logp, tokens, stop, version: 4 }
    }

    fn says(text: &str) -> Sampled {
        sampled(Chars::turn(text), StopReason::Eos)
    }

    fn waiting(step: Step) -> (Turns, Job) {
        match step {
            Step::Sample(turns, job) => (turns, job),
            Step::Finished(attempt) => panic!("needed a job, got {attempt:?}"),
        }
    }

    fn finished(step: Step) -> Attempt {
        match step {
            Step::Finished(attempt) => attempt,
            Step::Sample(_, job) => panic!("needed the end, got {job:?}"),
        }
    }

    const PROMPT: &str = "<user\nhi>\n<assistant\n";

    /// Special tokens as angle brackets, to be read.
    fn read(tokens: &[Token]) -> String {
        let shown = |t: &Token| match *t {
            Chars::START => '<',
            Chars::END => '>',
            other => char::from_u32(other).unwrap(),
        };
        tokens.iter().map(shown).collect()
    }

    #[test]
    fn one_turn_ends_with_the_reply_without_its_stop_token() {
        let (turns, job) = waiting(begin(&frame(1, 100), Silent));
        assert_eq!((job.id, read(&job.prompt).as_str()), (9, PROMPT));
        let attempt = finished(turns.feed(says("42")));
        assert_eq!((attempt.reply(), attempt.stop, &attempt.settled), ("42", StopReason::Eos, &None));
        assert_eq!(read(attempt.sequences[0].tokens()), format!("{PROMPT}42>"));
    }

    #[test]
    fn d5_only_sampled_tokens_are_marked_stop_token_included_and_separator_excluded() {
        let (turns, _) = waiting(begin(&frame(2, 100), Lines(vec![Ok("no")])));
        let (turns, job) = waiting(turns.feed(says("a")));
        let attempt = finished(turns.feed(says("b")));
        let sequence = &attempt.sequences[0];
        let text = format!("{PROMPT}a>\n<tool\nno after a>\n<assistant\nb>");
        assert_eq!(read(sequence.tokens()), text);
        assert_eq!(read(&job.prompt), text[..text.len() - 2]);
        let marked: Vec<usize> = (0..text.len()).filter(|i| sequence.sampled()[*i]).collect();
        let (first, last) = (PROMPT.len(), text.len() - 2);
        assert_eq!(marked, [first, first + 1, last, last + 1]);
    }

    #[test]
    fn d12_every_list_grows_with_every_append() {
        let (turns, _) = waiting(begin(&frame(3, 200), Lines(vec![Ok("x"), Ok("y")])));
        let (turns, _) = waiting(turns.feed(says("a")));
        let (turns, _) = waiting(turns.feed(says("b")));
        let attempt = finished(turns.feed(says("c")));
        let s = &attempt.sequences[0];
        let lengths = [s.tokens().len(), s.sampled().len(), s.logp().len(), s.logp_t1().len(), s.version().len()];
        assert!(lengths.iter().all(|n| *n == s.len()), "{lengths:?}");
        assert_eq!(s.n_sampled(), 6);
        assert_eq!(s.turns().len(), 6);
    }

    #[test]
    fn e1_each_prompt_extends_the_one_before_with_what_was_sampled() {
        let mut next = waiting(begin(&frame(4, 400), Lines(vec![Ok("x"), Ok("y"), Ok("z")])));
        for round in 0..3 {
            // Token ids no encoder would choose: they stay as they were sampled.
            let odd = sampled(vec![round + 1, 1, 1, Chars::END], StopReason::Eos);
            let before = [&next.1.prompt[..], &odd.tokens].concat();
            next = waiting(next.0.feed(odd));
            assert_eq!(next.1.prompt[..before.len()], before);
        }
    }

    fn part(tokens: Vec<Token>, version: u32) -> Sampled {
        Sampled { version, ..sampled(tokens, StopReason::Cancelled) }
    }

    #[test]
    fn d12_a_turn_set_aside_goes_on_as_one_turn_of_two_versions() {
        let (turns, first) = waiting(begin(&frame(1, 100), Silent));
        let turns = turns.set_aside(&part(Chars::tokens("4"), 4)).unwrap();
        let (turns, job) = waiting(turns.go_on());
        assert_eq!((read(&job.prompt), job.begun), (format!("{PROMPT}4"), 1));
        assert_eq!((job.sampling.max_tokens, job.stream), (first.sampling.max_tokens, first.stream));
        let attempt = finished(turns.feed(Sampled { version: 5, ..says("2") }));
        assert_eq!((attempt.reply(), attempt.stop), ("42", StopReason::Eos));
        let s = &attempt.sequences[0];
        assert_eq!((s.turns().len(), s.n_sampled()), (2, 3));
        assert_eq!(s.version()[PROMPT.len()..], [4, 5, 5]);
        assert_eq!([s.sampled().len(), s.logp().len(), s.logp_t1().len(), s.version().len()], [s.len(); 4]);
    }

    #[test]
    fn a_turn_set_aside_before_its_first_token_asks_the_same_again() {
        let (turns, first) = waiting(begin(&frame(1, PROMPT.len() + 3), Silent));
        let (turns, again) = waiting(turns.set_aside(&part(vec![], 4)).unwrap().go_on());
        assert_eq!((first.prompt, first.begun), (again.prompt, again.begun));
        // The window's end counts what was sampled before as part of the turn.
        let (turns, job) = waiting(turns.set_aside(&part(Chars::tokens("12"), 4)).unwrap().go_on());
        assert_eq!((job.sampling.max_tokens, job.begun), (3, 2));
        let (turns, _) = waiting(turns.set_aside(&part(vec![], 5)).unwrap().go_on());
        let attempt = finished(turns.feed(Sampled { version: 6, ..says("") }));
        assert_eq!(attempt.sequences[0].turns().len(), 2, "a turn is one however often it was set aside");
    }

    #[test]
    fn a_stop_string_that_began_before_a_turn_was_set_aside_still_ends_its_text() {
        let (turns, _) = waiting(begin(&frame(1, 100), Silent));
        let turns = turns.set_aside(&part(Chars::tokens("ab\n"), 4)).unwrap();
        let (turns, _) = waiting(turns.go_on());
        assert_eq!(finished(turns.feed(sampled(Chars::tokens("\nc"), StopReason::Stop))).reply(), "ab");
    }

    #[test]
    fn an_attempt_taken_up_from_its_record_goes_on_where_it_was() {
        let world = || Box::new(Lines(vec![Ok("x"), Ok("y")]));
        let frame = frame(3, 200);
        let (turns, _) = waiting(begin(&frame, Lines(vec![Ok("x"), Ok("y")])));
        let (turns, _) = waiting(turns.feed(says("a")));
        let turns = turns.set_aside(&part(Chars::tokens("b"), 4)).unwrap();
        let record = turns.so_far().clone();
        let (_, want) = waiting(turns.go_on());
        let turns = Turns::restore(9, record.clone(), 1, &frame, world()).unwrap();
        assert_eq!(turns.so_far(), &record);
        let (turns, job) = waiting(turns.go_on());
        assert_eq!((job.prompt, job.begun, job.stream), (want.prompt, 1, want.stream));
        let (turns, _) = waiting(turns.feed(says("b")));
        assert_eq!(finished(turns.feed(says("c"))).messages.len(), 6);
        // A world that does not repeat itself must not go on as if it had.
        for other in [Lines(vec![Ok("z")]), Lines(vec![]), Lines(vec![Err("gone")])] {
            let attempt = Turns::restore(9, record.clone(), 1, &frame, Box::new(other)).err().unwrap();
            assert!(matches!(attempt.settled, Some(Outcome::Failed { stage: Stage::Environment, .. })));
        }
    }

    #[test]
    fn d13_a_part_without_log_probabilities_fails_the_attempt() {
        let (turns, _) = waiting(begin(&frame(1, 100), Silent));
        let attempt = turns.set_aside(&Sampled { logp: vec![], ..part(Chars::tokens("4"), 4) }).err().unwrap();
        assert!(matches!(&attempt.settled, Some(Outcome::Failed { cause, .. }) if cause.class == "bad_sample"));
    }

    #[test]
    fn a_turn_cut_by_a_stop_string_is_closed_by_context_and_its_text_ends_before_it() {
        let (turns, _) = waiting(begin(&frame(2, 100), Lines(vec![Ok("x")])));
        let (turns, job) = waiting(turns.feed(sampled(Chars::tokens("ab\n\nc"), StopReason::Stop)));
        assert!(read(&job.prompt).starts_with(&format!("{PROMPT}ab\n\nc>\n<tool\nx after ab>")));
        let attempt = finished(turns.feed(says("d")));
        assert_eq!(attempt.sequences[0].n_sampled(), 7);
    }

    #[test]
    fn the_turn_limit_is_a_stop_reason_and_the_unseen_observation_is_not_recorded() {
        let (turns, _) = waiting(begin(&frame(1, 100), Lines(vec![Ok("x")])));
        let attempt = finished(turns.feed(says("a")));
        assert_eq!((attempt.stop, attempt.settled, attempt.messages.len()), (StopReason::Turns, None, 2));
    }

    #[test]
    fn i17_a_prompt_beyond_the_window_is_a_truncated_attempt_to_be_graded() {
        for context in [PROMPT.len(), 3, 0] {
            let attempt = finished(begin(&frame(1, context), Silent));
            assert_eq!((attempt.stop, attempt.reply(), &attempt.settled), (StopReason::Context, "", &None));
        }
        let (turns, _) = waiting(begin(&frame(1, 100), Silent));
        let attempt = finished(turns.fault(&PolicyError::Context { needed: 9, context: 8 }));
        assert_eq!((attempt.stop, attempt.settled), (StopReason::Context, None));
    }

    #[test]
    fn the_window_shortens_the_turn_and_names_itself_as_the_reason() {
        let (turns, job) = waiting(begin(&frame(1, PROMPT.len() + 2), Silent));
        assert_eq!(job.sampling.max_tokens, 2);
        let attempt = finished(turns.feed(sampled(Chars::tokens("12"), StopReason::Length)));
        assert_eq!((attempt.stop, attempt.reply()), (StopReason::Context, "12"));
        let (turns, job) = waiting(begin(&frame(1, 100), Silent));
        assert_eq!(job.sampling.max_tokens, 8);
        let attempt = finished(turns.feed(sampled(Chars::tokens("12345678"), StopReason::Length)));
        assert_eq!(attempt.stop, StopReason::Length);
    }

    #[test]
    fn d13_tokens_without_log_probabilities_fail_the_attempt_and_leave_no_trace() {
        let (turns, _) = waiting(begin(&frame(1, 100), Silent));
        let mut bare = says("42");
        bare.logp.clear();
        let attempt = finished(turns.feed(bare));
        let Some(Outcome::Failed { stage: Stage::Sampler, cause }) = &attempt.settled else { panic!("{attempt:?}") };
        assert_eq!(cause.class, "bad_sample");
        assert_eq!(cause.detail, "`logp` has 0 entries, needed 3, one a token");
        assert_eq!((attempt.sequences[0].n_sampled(), attempt.messages.len()), (0, 1));
    }

    #[test]
    fn g7_a_failure_keeps_its_first_cause_and_is_not_graded() {
        let (turns, _) = waiting(begin(&frame(2, 100), Lines(vec![Err("disk on fire")])));
        let attempt = finished(turns.feed(says("a")));
        let episode = attempt.end(|_| panic!("graded a failed attempt"));
        let cause = Cause::new("broken", "disk on fire");
        assert_eq!(episode.outcome, Outcome::Failed { stage: Stage::Environment, cause });
    }

    #[test]
    fn g4_a_cancelled_attempt_is_cancelled_not_scored() {
        let (turns, _) = waiting(begin(&frame(1, 100), Silent));
        let attempt = finished(turns.feed(sampled(Chars::tokens("4"), StopReason::Cancelled)));
        let episode = attempt.end(|_| panic!("graded a cancelled attempt"));
        assert_eq!((episode.outcome, episode.stop), (Outcome::Cancelled, StopReason::Cancelled));
        let (turns, _) = waiting(begin(&frame(1, 100), Silent));
        assert_eq!(finished(turns.fault(&PolicyError::Cancelled)).settled, Some(Outcome::Cancelled));
    }

    #[test]
    fn a_message_the_template_refuses_fails_the_attempt() {
        let (key, opening) = key("\u{0}");
        let attempt = finished(Turns::begin(1, key, &opening, &frame(1, 100), Box::new(Silent)));
        assert!(matches!(&attempt.settled, Some(Outcome::Failed { cause, .. }) if cause.class == "template"));
    }

    #[test]
    fn j16_the_stream_differs_by_seed_step_task_and_sample() {
        let stream = |seed, step, question: &str, sample| {
            let (mut key, opening) = key(question);
            (key.step, key.sample) = (step, sample);
            let frame = Frame { run_seed: seed, ..frame(1, 100) };
            waiting(Turns::begin(0, key, &opening, &frame, Box::new(Silent))).1.stream
        };
        let all = [
            stream(1, 1, "a", 1),
            stream(2, 1, "a", 1),
            stream(1, 2, "a", 1),
            stream(1, 1, "b", 1),
            stream(1, 1, "a", 2),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a.bits(0) != b.bits(0)), "{i}");
        }
        assert_eq!(stream(1, 1, "a", 1), all[0]);
        let (key, _) = key("a");
        assert_eq!(all[0], Stream::new("sample", &[1, 1, key.task.bits(), 1]));
    }
}
