//! One step's episodes, from tasks to groups.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent::{Codec, Frame, Limits, Step, Turns};
use env::Environments;
use episode::{Group, Outcome, Task};
use policy::{Job, Jobs, PolicyError, Sampled, Sampler, Sampling};

use crate::slots::Slots;
use crate::workers::{Done, What, Work, Workers};
use crate::{Failures, Observer, RolloutError, Settings};

/// How often a wait looks at whether it was cancelled.
const TICK: Duration = Duration::from_millis(20);

/// What all collections of a run have in common.
pub struct Rollout {
    /// The model's chat format.
    pub codec: Arc<dyn Codec>,
    /// Where tasks come from and who grades them.
    pub environments: Environments,
    /// Limits and threads.
    pub settings: Settings,
}

/// What one collection is about.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// The tasks; one that is listed twice gets one group of twice the size.
    pub tasks: &'a [Task],
    /// Attempts at each task.
    pub group_size: usize,
    /// The run's seed.
    pub run_seed: u64,
    /// The step, or [`crate::EVALUATION`].
    pub step: u64,
    /// How to draw.
    pub sampling: Arc<Sampling>,
}

impl Rollout {
    /// Samples and grades every attempt.
    ///
    /// - Holds: groups in the order of the tasks and episodes by sample, equal to the bit whatever the number of threads, the
    ///   order in which things finish, and the other tasks; each place holds exactly one episode.
    /// - Errors: [`RolloutError`]; a failed episode is data until more than the set share of them failed. After an error no
    ///   result is left, and graders that are still busy have been told to stop.
    pub fn collect(
        &self,
        sampler: &mut dyn Sampler,
        plan: &Plan<'_>,
        observer: &mut dyn Observer,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RolloutError> {
        self.settings.check()?;
        plan.sampling.check()?;
        if !(1..=1 << 20).contains(&plan.group_size) {
            let got = plan.group_size as f64;
            return Err(RolloutError::Setting { key: "group_size", got, needed: "a number from 1 to 1048576" });
        }
        let slots = Slots::new(plan.tasks, plan.group_size, &self.environments)?;
        let limits = Limits { turns: self.settings.turns, context: sampler.context() };
        let (codec, sampling) = (self.codec.clone(), plan.sampling.clone());
        let mut floor = Floor {
            step: plan.step,
            // A hair more, so that 0.29 of 100 is 29.
            n_allowed: (self.settings.max_failed * slots.len() as f64 + 1e-9) as usize,
            failures: Failures { n_episodes: slots.len(), ..Failures::default() },
            frame: Frame { codec, sampling, limits, run_seed: plan.run_seed },
            workers: Workers::start(self.settings.graders)?,
            slots,
            n_begun: 0,
            n_taken: 0,
            ready: VecDeque::new(),
            sampling: BTreeMap::new(),
            was_cancelled: false,
            broken: None,
            observer,
            cancel,
        };
        let result = floor.run(sampler, self.silence());
        floor.workers.end();
        result.map(|()| floor.slots.groups())
    }

    /// The longest that nothing may happen: a grader's deadline and the patience on top.
    fn silence(&self) -> Duration {
        let deadline = self.environments.iter().map(|(env, _)| env.deadline()).max().unwrap_or_default();
        deadline + Duration::from_secs_f64(self.settings.patience_s)
    }
}

/// Where the sampler gets its jobs and the workers bring their results.
struct Floor<'a> {
    step: u64,
    n_allowed: usize,
    failures: Failures,
    frame: Frame,
    workers: Workers,
    slots: Slots,
    n_begun: usize,
    n_taken: usize,
    /// Later turns that wait for the sampler.
    ready: VecDeque<(usize, Turns, Job)>,
    /// Attempts whose turn is at the sampler.
    sampling: BTreeMap<usize, Turns>,
    was_cancelled: bool,
    broken: Option<String>,
    observer: &'a mut dyn Observer,
    cancel: &'a AtomicBool,
}

impl Floor<'_> {
    fn run(&mut self, sampler: &mut dyn Sampler, silence: Duration) -> Result<(), RolloutError> {
        let mut moved = Instant::now();
        loop {
            if self.has_job() && !self.cancelled() {
                let before = (self.n_taken, self.n_begun);
                match sampler.sample(self) {
                    Ok(()) => {}
                    Err(PolicyError::Cancelled) => self.was_cancelled = true,
                    Err(error) => return Err(RolloutError::Sampler(error)),
                }
                self.check_contract(before)?;
                moved = Instant::now();
            }
            if self.cancelled() {
                self.workers.stop();
            }
            if self.workers.n_outstanding == 0 && (self.cancelled() || !self.has_job()) {
                return self.verdict();
            }
            if self.has_job() && !self.cancelled() {
                continue;
            }
            match self.workers.take(TICK) {
                Some(done) => {
                    self.take(done);
                    moved = Instant::now();
                }
                None if moved.elapsed() > silence => {
                    let (waiting_for, seconds) = (self.workers.under_way(), silence.as_secs_f64());
                    return Err(RolloutError::Stalled { waiting_for, seconds });
                }
                None => {}
            }
        }
    }

    fn has_job(&self) -> bool {
        self.n_begun < self.slots.len() || !self.ready.is_empty()
    }

    fn has_too_many_failed(&self) -> bool {
        self.failures.n_failed() > self.n_allowed
    }

    fn check_contract(&mut self, before: (usize, usize)) -> Result<(), RolloutError> {
        if let Some(what) = self.broken.take() {
            return Err(RolloutError::Contract { what });
        }
        if self.cancelled() {
            // What a sampler does not give back then is not needed.
            self.sampling.clear();
            return Ok(());
        }
        let unanswered = self.sampling.len();
        if unanswered > 0 {
            return Err(RolloutError::Contract { what: format!("returned with {unanswered} jobs unanswered") });
        }
        if (self.n_taken, self.n_begun) == before {
            return Err(RolloutError::Contract { what: "returned without taking a job that was there".to_owned() });
        }
        Ok(())
    }

    fn verdict(&mut self) -> Result<(), RolloutError> {
        if self.has_too_many_failed() {
            let failures = std::mem::take(&mut self.failures);
            return Err(RolloutError::TooManyFailed { failures, allowed: self.n_allowed });
        }
        if self.was_cancelled || self.cancelled() { Err(RolloutError::Cancelled) } else { Ok(()) }
    }

    fn take(&mut self, done: Done) {
        match done {
            Done::Next(slot, turns, job) => self.ready.push_back((slot, turns, job)),
            Done::Episode(slot, episode) => {
                self.failures.note(&episode.outcome);
                self.was_cancelled |= episode.outcome == Outcome::Cancelled;
                self.observer.finished(&episode);
                self.slots.fill(slot, episode);
            }
        }
    }

    fn take_what_is_there(&mut self) {
        while let Some(done) = self.workers.take(Duration::ZERO) {
            self.take(done);
        }
    }

    fn hand_out(&mut self, slot: usize, what: What) {
        let (task, env) = self.slots.task(slot);
        self.workers.hand_out(Work { slot, task, env, what });
    }

    fn give(&mut self, slot: usize, turns: Turns, job: Job) -> Option<Job> {
        self.n_taken += 1;
        self.sampling.insert(slot, turns);
        Some(job)
    }

    /// The attempt that a result belongs to; a result for none is the sampler's fault.
    fn turns_of(&mut self, id: u64) -> Option<(usize, Turns)> {
        let slot = usize::try_from(id).ok();
        let found = slot.and_then(|slot| Some((slot, self.sampling.remove(&slot)?)));
        if found.is_none() {
            self.broken = Some(format!("answered job {id}, which it does not have"));
        }
        found
    }
}

impl Jobs for Floor<'_> {
    fn next(&mut self) -> Option<Job> {
        self.take_what_is_there();
        if self.cancelled() {
            return None;
        }
        // Attempts under way come first: they end sooner, and fewer are open at a time.
        if let Some((slot, turns, job)) = self.ready.pop_front() {
            return self.give(slot, turns, job);
        }
        while self.n_begun < self.slots.len() {
            let slot = self.n_begun;
            self.n_begun += 1;
            let opening = self.slots.opening(slot, self.frame.codec.as_ref());
            let (task, env) = self.slots.task(slot);
            let key = self.slots.key(slot, self.step);
            match Turns::begin(slot as u64, key, &opening, &self.frame, env.world(&task)) {
                Step::Sample(turns, job) => return self.give(slot, turns, job),
                Step::Finished(attempt) => self.hand_out(slot, What::Grade(attempt)),
            }
        }
        None
    }

    fn done(&mut self, result: Sampled) {
        if let Some((slot, turns)) = self.turns_of(result.id) {
            self.hand_out(slot, What::Feed(turns, result));
        }
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        if let Some((slot, turns)) = self.turns_of(id) {
            self.hand_out(slot, What::Fault(turns, error));
        }
    }

    fn progress(&mut self, n_tokens: usize) {
        self.observer.tokens(n_tokens);
        self.take_what_is_there();
    }

    /// Too many failures stop the sampling too: nothing can make up for them.
    fn cancelled(&self) -> bool {
        self.was_cancelled || self.cancel.load(Ordering::Relaxed) || self.has_too_many_failed()
    }
}
