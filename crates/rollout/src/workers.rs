//! Threads that carry attempts on while the sampler samples: a turn's answer, the next prompt, the verdict.
//!
//! They are not scoped: a grader that hangs in spite of its deadline must not hang the run, which names it and goes.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use agent::{Attempt, Step, Turns};
use env::{Environment, Submission, Ungraded};
use episode::{Cause, Conduct, Episode, Outcome, Part, Task};
use policy::{Job, PolicyError, Sampled};

use crate::RolloutError;

/// The part of a reward that denied calls cost.
const DENIED: &str = "denied";

/// Something to carry on with.
pub(crate) struct Work {
    pub(crate) slot: usize,
    pub(crate) task: Arc<Task>,
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// A turn was sampled.
    Feed(Turns, Sampled),
    /// A turn could not be sampled.
    Fault(Turns, PolicyError),
    /// An attempt ended before its first turn.
    Grade(Attempt),
}

/// What became of it.
#[allow(clippy::large_enum_variant, reason = "it goes through a channel once a turn, and is never kept in numbers")]
pub(crate) enum Done {
    /// The policy speaks again.
    Next(usize, Turns, Job),
    /// The episode is complete.
    Episode(usize, Episode),
}

pub(crate) struct Workers {
    work: Option<Sender<Work>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// How much work was handed out and is not back.
    pub(crate) n_outstanding: usize,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// What is being worked on, by slot, in words.
    under_way: Mutex<BTreeMap<usize, String>>,
}

impl Workers {
    /// Starts `n` threads; a denied call costs `penalty` reward points.
    pub(crate) fn start(n: usize, penalty: f64) -> Result<Self, RolloutError> {
        let (work, queue) = channel();
        let (results, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::with_capacity(n);
        for i in 0..n {
            let (queue, results, shared) = (queue.clone(), results.clone(), shared.clone());
            let thread = std::thread::Builder::new().name(format!("grader {i}"));
            threads.push(thread.spawn(move || toil(&queue, &results, &shared, penalty)).map_err(RolloutError::Thread)?);
        }
        Ok(Workers { work: Some(work), done, threads, shared, n_outstanding: 0 })
    }

    pub(crate) fn hand_out(&mut self, work: Work) {
        self.n_outstanding += 1;
        if let Some(queue) = &self.work {
            queue.send(work).expect("the threads hold the queue's other end until this one is dropped");
        }
    }

    /// A result that is there, or comes within a time.
    pub(crate) fn take(&mut self, within: Duration) -> Option<Done> {
        match self.done.recv_timeout(within) {
            Ok(done) => {
                self.n_outstanding -= 1;
                Some(done)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Asks graders that take long to give up.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// What is being worked on, in words.
    pub(crate) fn under_way(&self) -> String {
        let under_way = self.shared.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        match under_way.values().next() {
            Some(first) if under_way.len() == 1 => first.clone(),
            Some(first) => format!("{first} and {} more", under_way.len() - 1),
            None => "a thread that was never scheduled".to_owned(),
        }
    }

    /// Ends the threads, waiting for them only if they have nothing left to do.
    pub(crate) fn end(mut self) {
        self.stop();
        self.work = None;
        if self.n_outstanding == 0 {
            for thread in self.threads.drain(..) {
                // One that panicked left work behind, which was counted and named.
                let _ = thread.join();
            }
        }
    }
}

fn toil(queue: &Mutex<Receiver<Work>>, results: &Sender<Done>, shared: &Shared, penalty: f64) {
    loop {
        // The lock is held while waiting: whoever has it takes the next work, the others queue behind it.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else { return };
        let slot = work.slot;
        let name = format!("environment `{}` with task `{}`", work.env.name(), work.task.id);
        shared.under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, name);
        let done = carry_on(work, &shared.stop, penalty);
        shared.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        if results.send(done).is_err() {
            return;
        }
    }
}

/// The outcome with what denied calls cost: part of the reward, but no part of whether the task was solved.
fn penalised(outcome: Outcome, conduct: &Conduct, penalty: f64) -> Outcome {
    match outcome {
        Outcome::Graded { reward, mut parts } if penalty > 0.0 && conduct.calls > 0 => {
            let denied = f64::from(conduct.denied);
            parts.push(Part { opinion: true, ..Part::new(DENIED, denied, -penalty) });
            Outcome::Graded { reward: reward - penalty * denied, parts }
        }
        other => other,
    }
}

fn carry_on(work: Work, stop: &AtomicBool, penalty: f64) -> Done {
    let Work { slot, task, env, what } = work;
    let step = match what {
        What::Feed(turns, sampled) => turns.feed(sampled),
        What::Fault(turns, error) => turns.fault(&error),
        What::Grade(attempt) => Step::Finished(attempt),
    };
    match step {
        Step::Sample(turns, job) => Done::Next(slot, turns, job),
        Step::Finished(attempt) => {
            let grade = |attempt: &Attempt| {
                let (reply, state) = (attempt.reply(), &attempt.state);
                let submission = Submission { task: &task, reply, state, cancel: stop };
                // A grader that panics must cost one episode, not the thread and with it the run.
                let judged = catch_unwind(AssertUnwindSafe(|| env.grade(&submission)));
                let judged = judged.unwrap_or_else(|payload| Err(panicked(payload.as_ref())));
                penalised(env::outcome(judged), &attempt.conduct, penalty)
            };
            Done::Episode(slot, attempt.end(grade))
        }
    }
}

fn panicked(payload: &(dyn Any + Send)) -> Ungraded {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    Ungraded::Failed(Cause::new("panic", text))
}
