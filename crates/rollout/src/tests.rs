//! Whole collections with a scripted policy and environments that obey the test.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent::World;
use agent::fake::Chars;
use env::{Environment, Environments, Split, Submission, Ungraded, Verdict};
use episode::random::Stream;
use episode::{Cause, Episode, Group, Message, Outcome, Part, Role, Stage, StopReason, Task, Token};
use policy::fake::Scripted;
use policy::{Jobs, PolicyError, Sampled, Sampler, Sampling};

use crate::{EVALUATION, Failures, Gates, Observer, Plan, Quiet, Rollout, RolloutError, Settings};

static GO_ON: AtomicBool = AtomicBool::new(false);

type Judge = Box<dyn Fn(&Submission<'_>) -> Result<f64, Ungraded> + Send + Sync>;
type MakeWorld = fn() -> Box<dyn World>;

/// An environment whose grader is a closure.
struct Quiz {
    name: &'static str,
    judge: Judge,
    world: MakeWorld,
}

impl Environment for Quiz {
    fn name(&self) -> &str {
        self.name
    }

    fn tasks(&self, _split: Split) -> &[Task] {
        &[]
    }

    fn gold_reply(&self, _task: &Task) -> Option<String> {
        None
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Verdict, Ungraded> {
        let value = (self.judge)(submission)?;
        Ok(Verdict { reward: value, parts: vec![Part::new("right", value, 1.0)] })
    }

    fn deadline(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn full_marks(&self) -> f64 {
        1.0
    }

    fn world(&self, _task: &Task) -> Box<dyn World> {
        (self.world)()
    }
}

fn silent() -> Box<dyn World> {
    Box::new(agent::Silent)
}

/// Right when the reply is the gold text.
fn honest(submission: &Submission<'_>) -> Result<f64, Ungraded> {
    Ok(if submission.task.gold == *submission.reply { 1.0 } else { 0.0 })
}

fn rollout(
    settings: Settings,
    judge: impl Fn(&Submission<'_>) -> Result<f64, Ungraded> + Send + Sync + 'static,
) -> Rollout {
    let quiz = Quiz { name: "quiz", judge: Box::new(judge), world: silent };
    let environments = Environments::new(vec![(Arc::new(quiz), 1.0)]).unwrap();
    Rollout { codec: Arc::new(Chars), environments, gates: Gates::none(), settings }
}

fn task(question: &str, gold: &str) -> Task {
    Task::new("quiz", vec![Message::new(Role::User, question)], gold.into(), 0.into())
}

fn plan(tasks: &[Task], group_size: usize) -> Plan<'_> {
    let sampling = Arc::new(Sampling::plain(1.0, 20, vec![Chars::END]));
    Plan { tasks, group_size, run_seed: 5, step: 2, sampling }
}

/// A policy that answers with a number from its random stream.
fn dice() -> Scripted {
    Scripted::new(Box::new(|_, key| Chars::turn(&Stream::from_key(key).below(0, 4).to_string())))
}

/// A policy that repeats the question.
fn parrot() -> Scripted {
    Scripted::new(Box::new(|prompt, _| {
        let text: Vec<Token> = prompt[6..].iter().take_while(|t| **t != Chars::END).copied().collect();
        [text, vec![Chars::END]].concat()
    }))
}

fn collect(rollout: &Rollout, policy: &mut dyn Sampler, plan: &Plan<'_>) -> Result<Vec<Group>, RolloutError> {
    rollout.collect(policy, plan, &mut Quiet, &GO_ON)
}

fn rewards(groups: &[Group]) -> Vec<Vec<f64>> {
    groups.iter().map(Group::rewards).collect()
}

#[test]
fn k13_three_tasks_by_four_are_twelve_episodes() {
    let tasks = [task("a", "a"), task("b", "x"), task("c", "c")];
    let groups = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&tasks, 4)).unwrap();
    assert_eq!(rewards(&groups), [vec![1.0; 4], vec![0.0; 4], vec![1.0; 4]]);
    let episode = &groups[1].episodes[2];
    assert_eq!((episode.reply(), episode.stop, episode.key.sample, episode.key.step), ("b", StopReason::Eos, 2, 2));
    assert_eq!(episode.sequences[0].n_sampled(), 2);
    assert_eq!(episode.key.task, groups[1].task.id);
}

#[test]
fn b2_attempts_are_grouped_by_task_id_wherever_the_task_stands() {
    let (p1, p2) = (task("p1", "p1"), task("p2", "?"));
    let tasks = [p1.clone(), p2.clone(), p1.clone(), p2.clone()];
    let groups = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&tasks, 1)).unwrap();
    assert_eq!(groups.iter().map(|g| &g.task.id).collect::<Vec<_>>(), [&p1.id, &p2.id]);
    assert_eq!(rewards(&groups), [[1.0, 1.0], [0.0, 0.0]]);
    let samples: Vec<u32> = groups[0].episodes.iter().map(|e| e.key.sample).collect();
    assert_eq!(samples, [0, 1]);
}

#[test]
fn h5_one_question_with_two_answers_is_two_groups() {
    let tasks = [task("same", "same"), task("same", "other")];
    let groups = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&tasks, 2)).unwrap();
    assert_eq!(rewards(&groups), [[1.0, 1.0], [0.0, 0.0]]);
}

#[test]
fn h4_each_task_goes_to_the_environment_that_made_it() {
    let quiz = |name, value| {
        let env = Quiz { name, judge: Box::new(move |_| Ok(value)), world: silent };
        (Arc::new(env) as Arc<dyn Environment>, 1.0)
    };
    let environments = Environments::new(vec![quiz("one", 1.0), quiz("two", 2.0)]).unwrap();
    let rollout = Rollout { codec: Arc::new(Chars), environments, gates: Gates::none(), settings: Settings::default() };
    let of = |env: &str| Task::new(env, vec![Message::new(Role::User, "q")], 0.into(), 0.into());
    let groups = collect(&rollout, &mut parrot(), &plan(&[of("two"), of("one")], 1)).unwrap();
    assert_eq!(rewards(&groups), [[2.0], [1.0]]);
    let stranger = [of("three")];
    let error = collect(&rollout, &mut parrot(), &plan(&stranger, 1)).unwrap_err().to_string();
    assert!(error.ends_with("belongs to environment `three`, which this run does not have"), "{error}");
}

#[test]
fn d15_an_odd_number_of_tasks_over_two_threads_loses_none() {
    let tasks: Vec<Task> = (0..5).map(|i| task(&i.to_string(), &i.to_string())).collect();
    let groups = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&tasks, 1)).unwrap();
    assert_eq!(rewards(&groups), vec![vec![1.0]; 5]);
}

#[test]
fn j13_the_order_is_that_of_the_tasks_however_late_a_grader_is() {
    let judge = |s: &Submission<'_>| {
        std::thread::sleep(Duration::from_millis(if s.reply == "0" { 80 } else { 1 }));
        honest(s)
    };
    let tasks: Vec<Task> = (0..6).map(|i| task(&i.to_string(), &i.to_string())).collect();
    #[derive(Default)]
    struct Order(Vec<String>, usize);
    impl Observer for Order {
        fn finished(&mut self, episode: &Episode) {
            self.0.push(episode.reply().to_owned());
        }
        fn tokens(&mut self, n_tokens: usize) {
            self.1 += n_tokens;
        }
    }
    let mut order = Order::default();
    let rollout = rollout(Settings { graders: 3, ..Settings::default() }, judge);
    let groups = rollout.collect(&mut parrot(), &plan(&tasks, 1), &mut order, &GO_ON).unwrap();
    assert_ne!(order.0[0], "0", "the slow one must not finish first for this test to mean anything");
    assert_eq!((order.0.len(), order.1), (6, 12));
    let replies: Vec<&str> = groups.iter().map(|g| g.episodes[0].reply()).collect();
    assert_eq!(replies, ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn j15_one_seed_gives_the_same_episodes_on_any_number_of_threads_and_in_any_company() {
    let tasks: Vec<Task> = (0..9).map(|i| task(&format!("q{i}"), "2")).collect();
    let run = |graders: usize, tasks: &[Task]| {
        collect(&rollout(Settings { graders, ..Settings::default() }, honest), &mut dice(), &plan(tasks, 6)).unwrap()
    };
    let alone = run(1, &tasks);
    assert!(alone.iter().any(Group::has_spread));
    for graders in [2, 7] {
        assert_eq!(run(graders, &tasks), alone);
    }
    assert_eq!(run(2, &tasks[3..4]), alone[3..4]);
}

/// Remembers which random streams it was given.
struct Listener(Scripted, Arc<Mutex<Vec<u64>>>);

impl Listener {
    fn new() -> Self {
        let keys: Arc<Mutex<Vec<u64>>> = Arc::default();
        let heard = keys.clone();
        let script = move |_: &[Token], key| {
            heard.lock().unwrap().push(key);
            Chars::turn("x")
        };
        Listener(Scripted::new(Box::new(script)), keys)
    }
}

#[test]
fn j16_every_attempt_has_a_stream_of_its_own_and_evaluation_the_same_at_every_step() {
    let tasks = [task("a", "a"), task("b", "b"), task("a", "a")];
    let keys = |run_seed, step| {
        let mut listener = Listener::new();
        let plan = Plan { run_seed, step, ..plan(&tasks, 8) };
        collect(&rollout(Settings::default(), honest), &mut listener.0, &plan).unwrap();
        let keys = listener.1.lock().unwrap().clone();
        assert_eq!(keys.len(), 24);
        keys
    };
    let all: Vec<u64> = [keys(1, 0), keys(1, 1), keys(2, 0), keys(1, EVALUATION)].concat();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4 * 24);
    assert_eq!(keys(1, EVALUATION), keys(1, EVALUATION));
}

fn fails(s: &Submission<'_>) -> Result<f64, Ungraded> {
    match s.reply.starts_with("bad") {
        true => Err(Ungraded::Failed(Cause::new("crashed", "exit 3"))),
        false => honest(s),
    }
}

#[test]
fn g2_a_grader_that_fails_is_a_failure_that_is_counted_and_never_a_zero() {
    let tasks = [task("bad", "x"), task("b", "b"), task("c", "x"), task("d", "x"), task("e", "x")];
    let groups = collect(&rollout(Settings::default(), fails), &mut parrot(), &plan(&tasks, 1)).unwrap();
    let cause = Cause::new("crashed", "exit 3");
    assert_eq!(groups[0].episodes[0].outcome, Outcome::Failed { stage: Stage::Grader, cause });
    assert_eq!(rewards(&groups)[..2], [vec![], vec![1.0]]);
    let failures = Failures::of(groups.iter().flat_map(|g| &g.episodes));
    assert_eq!(failures.to_string(), "1 of 5 episodes failed: 1 in the grader by `crashed`, such as: exit 3");
}

#[test]
fn more_failures_than_allowed_stop_the_collection_with_their_counts() {
    let tasks = [task("bad", "x"), task("bad2", "x"), task("c", "x"), task("d", "x"), task("e", "x")];
    let error = collect(&rollout(Settings::default(), fails), &mut parrot(), &plan(&tasks, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 of 5 episodes failed: 2 in the grader by `crashed`, such as: exit 3, at most 1 may"
    );
    let all = Settings { max_failed: 1.0, ..Settings::default() };
    assert_eq!(collect(&rollout(all, fails), &mut parrot(), &plan(&tasks, 1)).unwrap().len(), 5);
}

#[test]
fn a_grader_that_panics_costs_one_episode() {
    let judge = |s: &Submission<'_>| if s.reply == "boom" { panic!("at the disco") } else { honest(s) };
    let tasks: Vec<Task> = ["boom", "b", "c", "d", "e"].iter().map(|q| task(q, q)).collect();
    let settings = Settings { graders: 1, ..Settings::default() };
    let groups = collect(&rollout(settings, judge), &mut parrot(), &plan(&tasks, 1)).unwrap();
    let cause = Cause::new("panic", "at the disco");
    assert_eq!(groups[0].episodes[0].outcome, Outcome::Failed { stage: Stage::Grader, cause });
    assert_eq!(rewards(&groups)[1..], vec![vec![1.0]; 4]);
}

#[test]
fn i11_a_grader_that_ignores_its_deadline_is_named_and_does_not_hold_the_run() {
    let judge = |s: &Submission<'_>| {
        while s.reply == "stuck" && !s.cancel.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        honest(s)
    };
    let tasks = [task("stuck", "x"), task("b", "b")];
    let started = Instant::now();
    let settings = Settings { patience_s: 0.2, ..Settings::default() };
    let error = collect(&rollout(settings, judge), &mut parrot(), &plan(&tasks, 1)).unwrap_err();
    let want = format!("waited 0.3 s in vain for environment `quiz` with task `{}`", tasks[0].id);
    assert_eq!(error.to_string(), want);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn g4_cancelling_is_not_scoring() {
    let cancel = Arc::new(AtomicBool::new(false));
    let graded = Arc::new(AtomicUsize::new(0));
    let (pull, count) = (cancel.clone(), graded.clone());
    // The first grader pulls the cord and then waits to be told to give up, as a program would be.
    let judge = move |s: &Submission<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
        pull.store(true, Ordering::Relaxed);
        while !s.cancel.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Ungraded::Cancelled)
    };
    #[derive(Default)]
    struct Outcomes(Vec<Outcome>);
    impl Observer for Outcomes {
        fn finished(&mut self, episode: &Episode) {
            self.0.push(episode.outcome.clone());
        }
    }
    let mut seen = Outcomes::default();
    let tasks: Vec<Task> = (0..50).map(|i| task(&i.to_string(), "x")).collect();
    let rollout = rollout(Settings { graders: 1, ..Settings::default() }, judge);
    let error = rollout.collect(&mut parrot(), &plan(&tasks, 4), &mut seen, &cancel).unwrap_err();
    assert!(matches!(error, RolloutError::Cancelled), "{error}");
    assert!(!seen.0.is_empty() && seen.0.iter().all(|o| *o == Outcome::Cancelled));
}

/// A sampler that breaks what it is told to break.
struct Broken(&'static str);

impl Sampler for Broken {
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        if self.0 == "idle" {
            return Ok(());
        }
        while let Some(job) = jobs.next() {
            let tokens = Chars::turn("b");
            let logp = vec![-0.1; tokens.len()];
            let good = Sampled { id: job.id, tokens, logp_t1: logp.clone(), logp, stop: StopReason::Eos, version: 0 };
            match self.0 {
                "silent" => {}
                "twice" => {
                    jobs.done(good.clone());
                    jobs.done(good);
                }
                "bare" => jobs.done(Sampled { logp: vec![], ..good }),
                "nan" => jobs.failed(job.id, PolicyError::NotFinite { what: "logit", place: "block 3".into() }),
                "down" => return Err(PolicyError::Unsupported("out of order".into())),
                "cancelled" => return Err(PolicyError::Cancelled),
                other => panic!("{other}"),
            }
        }
        Ok(())
    }

    fn context(&self) -> usize {
        100
    }
}

#[test]
fn g7_d13_a_failed_sample_keeps_its_cause_starts_nothing_and_is_not_graded() {
    let graded = Arc::new(AtomicUsize::new(0));
    for (how, class, detail) in [
        ("bare", "bad_sample", "`logp` has 0 entries, needed 2, one a token"),
        ("nan", "sampler", "logit is not finite at block 3"),
    ] {
        let count = graded.clone();
        let judge = move |_: &Submission<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(1.0)
        };
        let settings = Settings { max_failed: 1.0, ..Settings::default() };
        let tasks = [task("a", "a")];
        let groups = collect(&rollout(settings, judge), &mut Broken(how), &plan(&tasks, 2)).unwrap();
        for episode in &groups[0].episodes {
            let cause = Cause::new(class, detail);
            assert_eq!(episode.outcome, Outcome::Failed { stage: Stage::Sampler, cause });
            assert_eq!((episode.sequences[0].n_sampled(), episode.reply()), (0, ""));
        }
    }
    assert_eq!(graded.load(Ordering::Relaxed), 0);
}

#[test]
fn a_sampler_that_breaks_its_contract_is_an_error_not_a_hang() {
    let check = |how, want: &str| {
        let tasks = [task("a", "a"), task("b", "b")];
        let error = collect(&rollout(Settings::default(), honest), &mut Broken(how), &plan(&tasks, 1)).unwrap_err();
        assert_eq!(error.to_string(), want);
    };
    check("idle", "the sampler returned without taking a job that was there");
    check("silent", "the sampler returned with 2 jobs unanswered");
    check("twice", "the sampler answered job 1, which it does not have");
    check("down", "sampling stopped: out of order");
    check("cancelled", "cancelled");
}

#[test]
fn i17_a_prompt_beyond_the_window_is_graded_as_saying_nothing() {
    let long = "q".repeat(5000);
    let tasks = [task(&long, "x"), task("b", "b")];
    let groups = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&tasks, 2)).unwrap();
    assert_eq!(rewards(&groups), [[0.0, 0.0], [1.0, 1.0]]);
    assert!(groups[0].episodes.iter().all(|e| e.stop == StopReason::Context && e.n_sampled() == 0));
    let only = [task(&long, "x")];
    let groups = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&only, 3)).unwrap();
    assert_eq!(rewards(&groups), [[0.0; 3]]);
}

#[test]
fn an_episode_of_several_turns_goes_back_to_the_sampler() {
    struct Twice(usize);
    impl World for Twice {
        fn answer(&mut self, said: &str) -> Result<agent::Reaction, Cause> {
            // Long enough that the sampler has returned for want of jobs.
            std::thread::sleep(Duration::from_millis(5));
            self.0 += 1;
            let again = vec![Message::new(Role::Tool, format!("heard {said}"))];
            Ok(if self.0 < 3 { agent::Reaction::Say(again) } else { agent::Reaction::End })
        }
    }
    let quiz = Quiz { name: "quiz", judge: Box::new(honest), world: || Box::new(Twice(0)) };
    let environments = Environments::new(vec![(Arc::new(quiz), 1.0)]).unwrap();
    let settings = Settings { turns: 3, ..Settings::default() };
    let rollout = Rollout { codec: Arc::new(Chars), environments, gates: Gates::none(), settings };
    let tasks: Vec<Task> = (0..4).map(|i| task(&i.to_string(), "3")).collect();
    // Says which of its turns this is.
    let mut policy = Scripted::new(Box::new(|prompt, _| {
        let turns = prompt.windows(2).filter(|w| *w == [Chars::START, u32::from('a')]).count();
        Chars::turn(&turns.to_string())
    }));
    let groups = collect(&rollout, &mut policy, &plan(&tasks, 2)).unwrap();
    assert_eq!(rewards(&groups), [[1.0, 1.0]; 4]);
    for episode in groups.iter().flat_map(|g| &g.episodes) {
        let said: Vec<&str> = episode.messages[1..].iter().map(|m| m.content.as_str()).collect();
        assert_eq!(said, ["1", "heard 1", "2", "heard 2", "3"]);
        assert_eq!(episode.n_sampled(), 6);
    }
}

#[test]
fn settings_out_of_range_are_named() {
    let check = |settings: Settings, want: &str| assert_eq!(settings.check().unwrap_err().to_string(), want);
    check(Settings { turns: 0, ..Settings::default() }, "`turns` is 0, needed at least 1");
    check(Settings { graders: 0, ..Settings::default() }, "`graders` is 0, needed a number from 1 to 256");
    check(Settings { max_failed: f64::NAN, ..Settings::default() }, "`max_failed` is NaN, needed a number from 0 to 1");
    let forever = Settings { patience_s: f64::INFINITY, ..Settings::default() };
    check(forever, "`patience_s` is inf, needed a number of seconds from 0.1 to 86400");
    let tasks = [task("a", "a")];
    let error = collect(&rollout(Settings::default(), honest), &mut parrot(), &plan(&tasks, 0)).unwrap_err();
    assert_eq!(error.to_string(), "`group_size` is 0, needed a number from 1 to 1048576");
    let error = serde_json::from_str::<Settings>(r#"{"turn": 1}"#).unwrap_err().to_string();
    assert!(error.starts_with("unknown field `turn`, expected one of `turns`, `tokens`,"), "{error}");
}
