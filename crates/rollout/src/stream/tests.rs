//! Streams with a sampler of a few rows, graders that take their time, and everything drawn by seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agent::World;
use agent::fake::Chars;
use env::{Environment, Environments, Split, Submission, Ungraded, Verdict as Marks};
use episode::random::Stream as Numbers;
use episode::{Cause, Episode, Group, Message, Outcome, Part, Role, StopReason, Task, Token};
use policy::{Job, Jobs, PolicyError, Sampled, Sampler, Sampling};

use super::protocol::{Bounds, Verdict};
use super::{Flight, Flown, Stream, Taken, Terms};
use crate::{Gates, Quiet, Rollout, RolloutError, Settings};

static GO_ON: AtomicBool = AtomicBool::new(false);

/// A sampler that draws a token a row at each position. What is said follows from the random stream; its log-probability
/// also from the weights.
struct Rows {
    n_rows: usize,
    version: u32,
    /// The longest reply.
    longest: u64,
}

struct Row {
    job: Job,
    tokens: Vec<Token>,
    logp: Vec<f32>,
}

impl Rows {
    fn n_tokens(&self, job: &Job) -> usize {
        job.stream.below(1 << 40, self.longest) as usize + 1
    }

    fn part(&self, row: Row, stop: StopReason) -> Sampled {
        let Row { job, tokens, logp } = row;
        Sampled { id: job.id, logp_t1: logp.clone(), logp, tokens, stop, version: self.version }
    }
}

impl Sampler for Rows {
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        let mut rows: Vec<Row> = Vec::new();
        loop {
            if jobs.cancelled() {
                rows.drain(..).for_each(|row| jobs.done(self.part(row, StopReason::Cancelled)));
                return Ok(());
            }
            if jobs.paused() {
                rows.drain(..).for_each(|row| jobs.set_aside(self.part(row, StopReason::Cancelled)));
                return Ok(());
            }
            while rows.len() < self.n_rows {
                let Some(job) = jobs.next() else { break };
                if job.stream.below(1 << 41, 40) == 0 && job.begun > 0 {
                    jobs.failed(job.id, PolicyError::NotFinite { what: "a logit", place: "a test".into() });
                    continue;
                }
                rows.push(Row { job, tokens: Vec::new(), logp: Vec::new() });
            }
            if rows.is_empty() {
                return Ok(());
            }
            let n_drawn = rows.len();
            for mut row in std::mem::take(&mut rows) {
                let (begun, all) = (row.job.begun + row.tokens.len(), self.n_tokens(&row.job));
                let position = (row.job.prompt.len() + row.tokens.len()) as u64;
                let letter = u32::from(b'a') + row.job.stream.below(position, 26) as u32;
                row.tokens.push(if begun + 1 == all { Chars::END } else { letter });
                row.logp.push(-0.25 - self.version as f32);
                match begun + 1 == all {
                    true => jobs.done(self.part(row, StopReason::Eos)),
                    false => rows.push(row),
                }
            }
            jobs.progress(n_drawn);
        }
    }

    fn context(&self) -> usize {
        400
    }
}

/// An environment whose grader takes its time, or fails, as the reply and a seed have it.
struct Slow {
    seed: u64,
    delay_us: u64,
    turns: usize,
}

/// Asks for more a few times, after a while.
struct Talks(usize, u64);

impl World for Talks {
    fn answer(&mut self, said: &str) -> Result<agent::Reaction, Cause> {
        std::thread::sleep(Duration::from_micros(said.len() as u64 % 7 * self.1 / 7));
        self.0 -= 1;
        let again = vec![Message::new(Role::User, format!("more {}", said.len()))];
        Ok(if self.0 > 0 { agent::Reaction::Say(again) } else { agent::Reaction::End })
    }
}

fn number(text: &str, seed: u64, n: u64) -> u64 {
    Numbers::new(text, &[seed]).below(0, n)
}

impl Environment for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn tasks(&self, _: Split) -> &[Task] {
        &[]
    }

    fn gold_reply(&self, _: &Task) -> Option<String> {
        None
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        // How long it takes has nothing to do with what it says.
        std::thread::sleep(Duration::from_micros(number(submission.reply, self.delay_us, self.delay_us + 1)));
        if number(submission.reply, self.seed, 30) == 0 {
            return Err(Ungraded::Failed(Cause::new("crashed", "exit 3")));
        }
        let value = number(submission.reply, self.seed, 2) as f64;
        Ok(Marks { reward: value, parts: vec![Part::new("even", value, 1.0)] })
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn full_marks(&self) -> f64 {
        1.0
    }

    fn world(&self, _: &Task) -> Box<dyn World> {
        Box::new(Talks(self.turns, self.delay_us))
    }
}

/// One stream, drawn by seed.
#[derive(Debug, Clone)]
struct Plan {
    bounds: Bounds,
    group_size: usize,
    n_rows: usize,
    longest: u64,
    n_tasks: u64,
    turns: usize,
    seed: u64,
}

impl Plan {
    fn drawn(seed: u64) -> Plan {
        let numbers = Numbers::new("plan", &[seed]);
        let pick = |at: u64, n: u64| numbers.below(at, n);
        let bounds = Bounds {
            batch: 1 + pick(0, 3),
            max_lag: pick(1, 4),
            max_running: 1 + pick(2, 8),
            max_draws: 1 + pick(3, 3),
            steps: 1 + pick(4, 6),
            holds_lag: pick(5, 4) == 0,
        };
        let (group_size, n_rows) = (1 + pick(6, 4) as usize, 1 + pick(7, 12) as usize);
        let (longest, n_tasks, turns) = (1 + pick(8, 24), 1 + pick(9, 9), 1 + pick(10, 2) as usize);
        Plan { bounds, group_size, n_rows, longest, n_tasks, turns, seed }
    }

    fn stream(&self, graders: usize, delay_us: u64) -> Stream {
        let slow = Slow { seed: self.seed, delay_us, turns: self.turns };
        let environments = Environments::new(vec![(Arc::new(slow), 1.0)]).unwrap();
        let settings = Settings { graders, max_failed: 1.0, turns: self.turns, ..Settings::default() };
        let sampling = Arc::new(Sampling::plain(1.0, 30, vec![Chars::END]));
        let terms = Terms { bounds: self.bounds, group_size: self.group_size, run_seed: self.seed, sampling };
        Stream::new(Arc::new(Rollout { codec: Arc::new(Chars), environments, gates: Gates::none(), settings }), terms)
    }

    fn task(&self, place: u64) -> Task {
        let question = format!("q{}", Numbers::new("task", &[self.seed, place]).below(0, self.n_tasks));
        Task::new("slow", vec![Message::new(Role::User, question)], 0.into(), 0.into())
    }

    /// Every step of the run; at the steps in `anew` another process takes it up from its record.
    fn run(&self, graders: usize, delay_us: u64, anew: &[u64]) -> Vec<Taken> {
        let mut stream = self.stream(graders, delay_us);
        let (mut cursor, mut flight, mut all) = (0, Flight::default(), Vec::new());
        for step in 1..=self.bounds.steps {
            if anew.contains(&step) {
                stream = self.stream(graders, delay_us);
                let lines = flight.groups.iter().map(|g| serde_json::to_string(g).unwrap());
                flight = Flight { groups: lines.map(|l| serde_json::from_str(&l).unwrap()).collect() };
            }
            let taken = self.step(&mut stream, step, cursor, &flight).unwrap();
            (cursor, flight) = (taken.cursor, taken.flight.clone());
            // Without lag nothing depends on the schedule, which is then as the threads have it.
            let is_ahead = self.bounds.max_lag > 0;
            let [n_positions, n_held_up] = [taken.n_positions, taken.n_held_up].map(|n| if is_ahead { n } else { 0 });
            all.push(Taken { n_positions, n_held_up, ..taken });
        }
        all
    }

    fn step(&self, stream: &mut Stream, step: u64, cursor: u64, flight: &Flight) -> Result<Taken, RolloutError> {
        let mut rows = Rows { n_rows: self.n_rows, version: step as u32 - 1, longest: self.longest };
        let mut judge = |group: &mut Group| match (group.has_spread(), self.seed % 3) {
            (true, _) | (_, 0) => Verdict::Keep,
            (false, 1) => Verdict::Drop,
            (false, _) => Verdict::DrawMore,
        };
        stream.step(&mut rows, step, cursor, flight, &mut |p| self.task(p), &mut judge, &mut Quiet, &GO_ON)
    }
}

fn versions(episode: &Episode) -> Vec<u64> {
    let sampled = |s: &episode::Sequence| -> Vec<u64> {
        s.version().iter().zip(s.sampled()).filter(|(_, s)| **s).map(|(v, _)| u64::from(*v)).collect()
    };
    episode.sequences.iter().flat_map(sampled).collect()
}

/// A simulator: whatever the seed, the schedule follows from it alone, every bound holds, and nothing is lost.
#[test]
fn i4_i10_i12_i13_streams_drawn_by_seed_keep_their_bounds_whoever_is_late_and_whoever_resumes() {
    let (mut n_spanning, mut n_held_up, mut n_queued, mut n_failed) = (0, 0, 0, 0);
    for seed in 0..150 {
        let plan = Plan::drawn(seed);
        let all = plan.run(1, 0, &[]);
        let slow = plan.run(1 + seed as usize % 4, 300, &[]);
        assert!(slow == all, "seed {seed}: slow graders changed the schedule of {plan:?}");
        let anew: Vec<u64> =
            (1..=plan.bounds.steps).filter(|s| Numbers::new("anew", &[seed]).below(*s, 2) == 0).collect();
        assert!(plan.run(2, 0, &anew) == all, "seed {seed}: taken up anew at {anew:?}");
        let Bounds { batch, max_lag, .. } = plan.bounds;
        let mut taken_places = Vec::new();
        for (step, taken) in (1..).zip(&all) {
            n_held_up += usize::from(taken.n_held_up > 0);
            n_queued += taken.flight.n_queued();
            assert!(taken.places.len() as u64 <= batch && taken.places.is_sorted(), "seed {seed}");
            taken_places.extend(taken.places.clone());
            for episode in taken.groups.iter().flat_map(|g| &g.episodes) {
                let versions = versions(episode);
                assert!(versions.is_sorted(), "seed {seed}");
                assert!(versions.iter().all(|v| *v < step && step <= v + 1 + max_lag), "seed {seed}: {versions:?}");
                let logp = episode.sequences[0].logp().iter().zip(episode.sequences[0].sampled());
                let logp: Vec<f32> = logp.filter(|(_, s)| **s).map(|(l, _)| *l).collect();
                assert_eq!(logp, versions.iter().map(|v| -0.25 - *v as f32).collect::<Vec<_>>(), "seed {seed}");
                n_spanning += usize::from(versions.first() != versions.last());
                n_failed += usize::from(matches!(episode.outcome, Outcome::Failed { .. }));
            }
            for group in &taken.groups {
                assert_eq!(group.episodes.len() % plan.group_size, 0, "seed {seed}: a group stays whole");
            }
        }
        assert!(all.last().unwrap().flight.is_empty(), "seed {seed}: no step takes what is left");
        taken_places.sort_unstable();
        assert!(taken_places.windows(2).all(|w| w[0] < w[1]), "seed {seed}: a group was taken twice");
        // What was begun was taken, unless another was drawn for it.
        let n_begun = all.last().unwrap().cursor;
        let n_lost = n_begun - taken_places.len() as u64;
        assert!(n_lost == 0 || seed % 3 == 2, "seed {seed}: {n_lost} of {n_begun} groups were lost");
        let keys: Vec<_> = all.iter().flat_map(|t| &t.groups).flat_map(|g| &g.episodes).map(|e| &e.key).collect();
        let distinct: BTreeMap<_, _> = keys.iter().map(|k| (*k, ())).collect();
        assert_eq!(distinct.len(), keys.len(), "J16: two attempts share a random stream at seed {seed}");
    }
    let seen = [n_spanning, n_held_up, n_queued, n_failed];
    assert!(seen.iter().all(|n| *n > 20), "the streams were too tame to mean anything: {seen:?}");
}

#[test]
fn what_is_said_does_not_depend_on_where_it_was_set_aside() {
    let plan = Plan { turns: 1, ..Plan::drawn(3) };
    let said = |max_lag, n_rows| {
        let bounds = Bounds { max_lag, batch: 2, max_running: 9, max_draws: 1, steps: 5, holds_lag: false };
        let plan = Plan { bounds, n_rows, n_tasks: 1000, group_size: 3, longest: 24, ..plan.clone() };
        let all = plan.run(2, 0, &[]);
        let episodes = all.into_iter().flat_map(|t| t.groups).flat_map(|g| g.episodes);
        // The stream's key holds the step in which the attempt began.
        episodes.map(|e| (e.key.clone(), e.sequences[0].tokens().to_vec())).collect::<BTreeMap<_, _>>()
    };
    let (ahead, alone) = (said(2, 10), said(0, 4));
    let both: Vec<_> = ahead.iter().filter_map(|(key, tokens)| Some((tokens, alone.get(key)?))).collect();
    assert!(both.len() > 5, "{} attempts began in the same step", both.len());
    assert!(both.iter().all(|(a, b)| a == b));
}

#[test]
fn i11_a_grader_that_hangs_is_named_where_its_verdict_is_waited_for() {
    struct Stuck;
    impl Environment for Stuck {
        fn name(&self) -> &str {
            "slow"
        }
        fn tasks(&self, _: Split) -> &[Task] {
            &[]
        }
        fn gold_reply(&self, _: &Task) -> Option<String> {
            None
        }
        fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
            while !submission.cancel.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(Ungraded::Cancelled)
        }
        fn deadline(&self) -> Duration {
            Duration::from_millis(20)
        }
        fn full_marks(&self) -> f64 {
            1.0
        }
    }
    let plan = Plan { turns: 1, ..Plan::drawn(1) };
    let bounds = Bounds { max_lag: 2, ..plan.bounds };
    let environments = Environments::new(vec![(Arc::new(Stuck), 1.0)]).unwrap();
    let settings = Settings { patience_s: 0.2, ..Settings::default() };
    let sampling = Arc::new(Sampling::plain(1.0, 30, vec![Chars::END]));
    let terms = Terms { bounds, group_size: 2, run_seed: 1, sampling };
    let mut stream =
        Stream::new(Arc::new(Rollout { codec: Arc::new(Chars), environments, gates: Gates::none(), settings }), terms);
    let error = plan.step(&mut stream, 1, 0, &Flight::default()).unwrap_err().to_string();
    assert!(error.starts_with("waited 0.22 s in vain for environment `slow` with task `slow/"), "{error}");
}

#[test]
fn i17_a_prompt_beyond_the_window_is_graded_as_saying_nothing_and_holds_nobody_up() {
    let plan = Plan { turns: 1, ..Plan::drawn(1) };
    let bounds = Bounds { batch: 2, max_lag: 1, max_running: 4, max_draws: 1, steps: 2, holds_lag: false };
    let plan = Plan { bounds, group_size: 2, ..plan };
    let mut stream = plan.stream(1, 0);
    let mut rows = Rows { n_rows: 3, version: 0, longest: 9 };
    let mut draw = |place| {
        let question = if place == 0 { "q".repeat(500) } else { format!("q{place}") };
        Task::new("slow", vec![Message::new(Role::User, question)], 0.into(), 0.into())
    };
    let none = Flight::default();
    let taken = stream.step(&mut rows, 1, 0, &none, &mut draw, &mut |_| Verdict::Keep, &mut Quiet, &GO_ON).unwrap();
    assert_eq!(taken.places, [0, 1]);
    assert!(taken.groups[0].episodes.iter().all(|e| e.stop == StopReason::Context && e.n_sampled() == 0));
}

#[test]
fn a_step_that_was_cancelled_is_done_again_to_the_bit() {
    let bounds = Bounds { batch: 2, max_lag: 2, max_running: 9, max_draws: 1, steps: 4, holds_lag: false };
    let plan = Plan { bounds, n_rows: 10, group_size: 3, longest: 24, turns: 2, ..Plan::drawn(3) };
    let mut stream = plan.stream(2, 0);
    let first = plan.step(&mut stream, 1, 0, &Flight::default()).unwrap();
    assert!(first.flight.n_aside() > 0);
    let want = plan.step(&mut stream, 2, first.cursor, &first.flight).unwrap();
    // The attempts of the stream have gone on; the record says where they were.
    assert_eq!(plan.step(&mut stream, 2, first.cursor, &first.flight).unwrap(), want);
    struct Stops<'a>(&'a AtomicBool, usize);
    impl crate::Observer for Stops<'_> {
        fn tokens(&mut self, _: usize) {
            self.1 += 1;
            self.0.store(self.1 > 3, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let cancel = AtomicBool::new(false);
    let mut rows = Rows { n_rows: plan.n_rows, version: 1, longest: plan.longest };
    let (cursor, flight) = (first.cursor, &first.flight);
    let mut draw = |p| plan.task(p);
    let mut keep = |_: &mut Group| Verdict::Keep;
    let mut stops = Stops(&cancel, 0);
    let error = stream.step(&mut rows, 2, cursor, flight, &mut draw, &mut keep, &mut stops, &cancel).unwrap_err();
    assert!(matches!(error, RolloutError::Cancelled), "{error}");
    assert_eq!(plan.step(&mut stream, 2, cursor, flight).unwrap(), want);
}

#[test]
fn attempts_set_aside_keep_what_they_have_said_in_the_record() {
    let bounds = Bounds { batch: 1, max_lag: 3, max_running: 9, max_draws: 1, steps: 9, holds_lag: false };
    let plan = Plan { bounds, n_rows: 8, group_size: 2, longest: 24, turns: 1, ..Plan::drawn(3) };
    let all = plan.run(1, 0, &[]);
    let aside = all.iter().flat_map(|t| &t.flight.groups).flat_map(|g| &g.attempts);
    let said: Vec<usize> = aside
        .filter_map(|a| match a {
            Flown::Aside(attempt) => Some(attempt.sequences[0].n_open()),
            Flown::Waiting | Flown::Ended(_) => None,
        })
        .collect();
    assert!(said.iter().any(|n| *n > 0), "{said:?}");
}
