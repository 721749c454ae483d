use super::*;
use crate::fake::Chars;
use crate::{Reaction, Silent, World};
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
    let (codec, limits) = (Arc::new(Chars), Limits::turns(turns, context));
    let clock = Arc::new(|| Duration::ZERO);
    Frame { codec, sampling: Arc::new(sampling), limits, run_seed: 7, clock, asks: None }
}

fn key(question: &str) -> (EpisodeKey, Opening) {
    let task = Task::new("test", vec![Message::new(Role::User, question)], 1.into(), 0.into());
    (EpisodeKey { step: 3, task: task.id.clone(), sample: 2 }, Opening::new(&Chars, &task.messages, [].into()))
}

fn begin(frame: &Frame, world: impl World + 'static) -> Step {
    let (key, opening) = key("hi");
    Turns::begin(9, key, &opening, frame, Place::plain(world))
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
    let world = || Place::plain(Lines(vec![Ok("x"), Ok("y")]));
    let (_, opening) = key("hi");
    let frame = frame(3, 200);
    let (turns, _) = waiting(begin(&frame, Lines(vec![Ok("x"), Ok("y")])));
    let (turns, _) = waiting(turns.feed(says("a")));
    let turns = turns.set_aside(&part(Chars::tokens("b"), 4)).unwrap();
    let record = turns.so_far().clone();
    let (_, want) = waiting(turns.go_on());
    let turns = Turns::restore(9, record.clone(), &opening, &frame, world()).unwrap();
    assert_eq!(turns.so_far(), &record);
    let (turns, job) = waiting(turns.go_on());
    assert_eq!((job.prompt, job.begun, job.stream), (want.prompt, 1, want.stream));
    let (turns, _) = waiting(turns.feed(says("b")));
    assert_eq!(finished(turns.feed(says("c"))).messages.len(), 6);
    // A world that does not repeat itself must not go on as if it had.
    for other in [Lines(vec![Ok("z")]), Lines(vec![]), Lines(vec![Err("gone")])] {
        let attempt = Turns::restore(9, record.clone(), &opening, &frame, Place::plain(other)).err().unwrap();
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
    let attempt = finished(Turns::begin(1, key, &opening, &frame(1, 100), Place::plain(Silent)));
    assert!(matches!(&attempt.settled, Some(Outcome::Failed { cause, .. }) if cause.class == "template"));
}

#[test]
fn j16_the_stream_differs_by_seed_step_task_and_sample() {
    let stream = |seed, step, question: &str, sample| {
        let (mut key, opening) = key(question);
        (key.step, key.sample) = (step, sample);
        let frame = Frame { run_seed: seed, ..frame(1, 100) };
        waiting(Turns::begin(0, key, &opening, &frame, Place::plain(Silent))).1.stream
    };
    let all =
        [stream(1, 1, "a", 1), stream(2, 1, "a", 1), stream(1, 2, "a", 1), stream(1, 1, "b", 1), stream(1, 1, "a", 2)];
    for (i, a) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|b| a.bits(0) != b.bits(0)), "{i}");
    }
    assert_eq!(stream(1, 1, "a", 1), all[0]);
    let (key, _) = key("a");
    assert_eq!(all[0], Stream::new("sample", &[1, 1, key.task.bits(), 1]));
}

#[test]
fn an_observation_that_leaves_no_room_to_answer_is_not_recorded() {
    let all = PROMPT.len() + "a>\n<tool\nx after a>\n<assistant\n".len();
    for (context, stop) in [(all, StopReason::Context), (all + 1, StopReason::Length)] {
        let (turns, _) = waiting(begin(&frame(3, context), Lines(vec![Ok("x")])));
        let attempt = match turns.feed(says("a")) {
            Step::Finished(attempt) => attempt,
            Step::Sample(turns, job) => {
                assert_eq!(job.sampling.max_tokens, 1);
                finished(turns.feed(sampled(Chars::tokens("b"), StopReason::Length)))
            }
        };
        assert!(attempt.sequences[0].len() <= context, "what is trained on fits the window");
        let full = attempt.stop == StopReason::Context;
        assert_eq!((full, attempt.messages.len()), (true, if stop == StopReason::Context { 2 } else { 4 }));
    }
}
