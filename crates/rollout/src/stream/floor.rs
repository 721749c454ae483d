//! Where the sampler gets its jobs and the workers bring their results.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent::{Frame, Opening, Step, Turns};
use env::{Environment, Environments};
use episode::{EpisodeKey, Group, Outcome, Task, TaskId};
use policy::{Job, Jobs, PolicyError, Sampled, Sampler};

use super::protocol::{Member, Next, Protocol, Stage, Verdict};
use super::table::{Seat, Table};
use super::{Begun, Flight, Flown, Taken, Terms, merged};
use crate::workers::{Done, What, Work, Workers};
use crate::{Failures, Gates, Observer, Rollout, RolloutError};

/// How often a wait looks at whether it was cancelled.
const TICK: Duration = Duration::from_millis(20);

/// A task to begin with.
pub(crate) struct Drawn {
    pub(crate) task: Task,
    pub(crate) n_samples: usize,
}

/// What a floor begins with.
pub(crate) struct Opened<'a> {
    pub(crate) terms: &'a Terms,
    /// What the keys of the episodes that begin bear.
    pub(crate) step: u64,
    /// Steps done.
    pub(crate) version: u64,
    pub(crate) cursor: u64,
    pub(crate) flight: &'a Flight,
    pub(crate) live: BTreeMap<(u64, usize), Turns>,
}

/// The task at a place, while there are any, and what becomes of a finished group.
pub(crate) type Callbacks<'a> = (&'a mut dyn FnMut(u64) -> Option<Drawn>, &'a mut dyn FnMut(&mut Group) -> Verdict);

pub(crate) struct Floor<'a> {
    terms: &'a Terms,
    step: u64,
    cursor: u64,
    environments: &'a Environments,
    gates: &'a Gates,
    frame: Frame,
    workers: Workers,
    silence: Duration,
    protocol: Protocol,
    tables: BTreeMap<u64, Table>,
    /// Groups that have waiting seats.
    open: VecDeque<u64>,
    /// How many attempts at a task began for this step.
    n_samples: BTreeMap<TaskId, u32>,
    /// Which attempt a job is of.
    seats: Vec<(u64, usize)>,
    /// Jobs of attempts under way that wait for the sampler.
    ready: VecDeque<(u64, Turns, Job)>,
    /// Attempts whose turn is at the sampler.
    sampling: BTreeMap<u64, Turns>,
    callbacks: Callbacks<'a>,
    n_allowed: usize,
    failures: Failures,
    n_positions: u64,
    /// Counts whatever is begun or given to the sampler.
    n_moves: usize,
    was_cancelled: bool,
    broken: Option<String>,
    error: Option<RolloutError>,
    observer: &'a mut dyn Observer,
    cancel: &'a AtomicBool,
}

impl<'a> Floor<'a> {
    pub(crate) fn open(
        rollout: &'a Rollout,
        context: usize,
        opened: Opened<'a>,
        callbacks: Callbacks<'a>,
        observer: &'a mut dyn Observer,
        cancel: &'a AtomicBool,
    ) -> Result<Self, RolloutError> {
        let Opened { terms, step, version, cursor, flight, live } = opened;
        rollout.settings.check()?;
        terms.sampling.check()?;
        let limits = rollout.settings.limits(context);
        let start = Instant::now();
        let clock = Arc::new(move || start.elapsed());
        let (codec, sampling) = (rollout.codec.clone(), terms.sampling.clone());
        let n_episodes = (terms.bounds.batch as usize).saturating_mul(terms.group_size);
        let members = flight.groups.iter().map(|g| {
            let stage = if g.kept.is_some() { Stage::Finished } else { Stage::Sampling };
            (g.place, Member { began: g.step.saturating_sub(1), stage })
        });
        let mut floor = Floor {
            terms,
            step,
            cursor,
            environments: &rollout.environments,
            gates: &rollout.gates,
            frame: Frame { codec, sampling, limits, run_seed: terms.run_seed, clock, asks: None },
            workers: Workers::start(rollout.settings.graders, rollout.gates.penalty())?,
            silence: rollout.silence(),
            protocol: Protocol::new(terms.bounds, version, members),
            tables: BTreeMap::new(),
            open: VecDeque::new(),
            n_samples: BTreeMap::new(),
            seats: Vec::new(),
            ready: VecDeque::new(),
            sampling: BTreeMap::new(),
            callbacks,
            // A hair more, so that 0.29 of 100 is 29.
            n_allowed: (rollout.settings.max_failed * n_episodes as f64 + 1e-9) as usize,
            failures: Failures { n_episodes, ..Failures::default() },
            n_positions: 0,
            n_moves: 0,
            was_cancelled: false,
            broken: None,
            error: None,
            observer,
            cancel,
        };
        floor.take_up(flight, live);
        Ok(floor)
    }

    /// Takes up what is in flight: attempts go on in the order in which they began.
    fn take_up(&mut self, flight: &Flight, mut live: BTreeMap<(u64, usize), Turns>) {
        for begun in &flight.groups {
            let Begun { place, step, first_sample, kept, task, attempts } = begun.clone();
            let Some(env) = self.environment(&task) else { return };
            let waits = attempts.contains(&Flown::Waiting);
            let mut aside = Vec::new();
            let seat = |(index, flown)| match flown {
                Flown::Waiting => Seat::Waiting,
                Flown::Ended(episode) => Seat::Ended(episode),
                Flown::Aside(attempt) => {
                    aside.push((index, attempt));
                    Seat::Sampling
                }
            };
            let seats = attempts.into_iter().enumerate().map(seat).collect();
            let (task, sampled_at) = (Arc::new(task), 0);
            let table = Table {
                step,
                first_sample,
                task: task.clone(),
                env: env.clone(),
                opening: None,
                seats,
                kept,
                sampled_at,
            };
            self.tables.insert(place, table);
            if waits {
                self.open.push_back(place);
            }
            // Needed only by attempts whose worlds are gone, as after a restart.
            let mut opening = None;
            for (index, attempt) in aside {
                let id = self.name(place, index);
                let kept = live.remove(&(place, index)).filter(|t| *t.so_far() == attempt);
                let turns = match kept {
                    Some(turns) => Ok(turns.named(id)),
                    None => {
                        let codec = self.frame.codec.as_ref();
                        let opening =
                            opening.get_or_insert_with(|| Opening::new(codec, &task.messages, env.tools(&task)));
                        let place = self.gates.place(env.as_ref(), &task, &attempt.key);
                        Turns::restore(id, attempt, opening, &self.frame, place)
                    }
                };
                match turns.map(Turns::go_on) {
                    Ok(Step::Sample(turns, job)) => self.ready.push_back((id, turns, job)),
                    Ok(Step::Finished(attempt)) => self.hand_out(id, What::Grade(attempt)),
                    Err(attempt) => self.hand_out(id, What::Grade(*attempt)),
                }
            }
        }
    }

    /// Samples until the step is complete.
    pub(crate) fn run(&mut self, sampler: &mut dyn Sampler) -> Result<(), RolloutError> {
        let result = self.sample(sampler);
        self.workers.stop();
        result
    }

    fn sample(&mut self, sampler: &mut dyn Sampler) -> Result<(), RolloutError> {
        let mut moved = Instant::now();
        loop {
            self.take_what_is_there();
            if !self.cancelled() && self.has_job() && !self.is_complete() {
                let before = self.n_moves;
                match sampler.sample(self) {
                    Ok(()) => {}
                    Err(PolicyError::Cancelled) => self.was_cancelled = true,
                    Err(error) => return Err(RolloutError::Sampler(error)),
                }
                self.check_contract(before)?;
                moved = Instant::now();
                continue;
            }
            if self.cancelled() {
                self.workers.stop();
            }
            if self.workers.n_outstanding == 0 {
                if self.cancelled() || self.protocol.next() == Next::Take {
                    return self.verdict();
                }
                continue;
            }
            // What has ended is graded before the step is taken, so that what is left over is whole.
            match self.workers.take(TICK) {
                Some(done) => {
                    self.take_in(done);
                    moved = Instant::now();
                }
                None if moved.elapsed() > self.silence => return Err(self.stalled()),
                None => {}
            }
        }
    }

    fn stalled(&self) -> RolloutError {
        RolloutError::Stalled { waiting_for: self.workers.under_way(), seconds: self.silence.as_secs_f64() }
    }

    fn has_job(&self) -> bool {
        !self.ready.is_empty() || !self.open.is_empty() || self.protocol.may_begin()
    }

    fn has_too_many_failed(&self) -> bool {
        self.failures.n_failed() > self.n_allowed
    }

    fn check_contract(&mut self, before: usize) -> Result<(), RolloutError> {
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
        if self.n_moves == before && self.has_job() && !self.is_complete() {
            return Err(RolloutError::Contract { what: "returned without taking a job that was there".to_owned() });
        }
        Ok(())
    }

    fn verdict(&mut self) -> Result<(), RolloutError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.has_too_many_failed() {
            let failures = std::mem::take(&mut self.failures);
            return Err(RolloutError::TooManyFailed { failures, allowed: self.n_allowed });
        }
        if self.was_cancelled || self.cancelled() { Err(RolloutError::Cancelled) } else { Ok(()) }
    }

    /// Whether the order in which results come could change what happens.
    fn is_ahead(&self) -> bool {
        self.terms.bounds.max_lag > 0
    }

    /// Whether an attempt that is at a worker may come back to the sampler, so that the order counts in which it does.
    fn is_ordered(&self) -> bool {
        self.is_ahead() && self.frame.limits.turns > 1
    }

    /// Whether the step has what it needs; waits for verdicts that decide it.
    fn is_complete(&mut self) -> bool {
        if self.is_ordered() {
            self.settle();
        }
        match self.protocol.next() {
            Next::Sample => false,
            Next::Take => true,
            Next::Judge if !self.is_ahead() => false,
            Next::Judge => {
                self.settle();
                self.protocol.next() == Next::Take
            }
        }
    }

    /// Waits for everything that is at the workers, and takes it in in one order.
    fn settle(&mut self) {
        let mut came = Vec::new();
        let mut moved = Instant::now();
        while self.workers.n_outstanding > 0 && !self.cancelled() {
            match self.workers.take(TICK) {
                Some(done) => {
                    came.push(done);
                    moved = Instant::now();
                }
                None if moved.elapsed() > self.silence => self.error = Some(self.stalled()),
                None => {}
            }
        }
        came.sort_by_key(|done| match done {
            Done::Next(id, ..) | Done::Episode(id, _) => self.seats.get(*id).copied(),
        });
        came.into_iter().for_each(|done| self.take_in(done));
    }

    fn take_what_is_there(&mut self) {
        if self.is_ordered() {
            return;
        }
        while let Some(done) = self.workers.take(Duration::ZERO) {
            self.take_in(done);
        }
    }

    fn take_in(&mut self, done: Done) {
        match done {
            Done::Next(id, turns, job) => {
                self.sit(id, Seat::Sampling);
                self.ready.push_back((id as u64, turns, job));
            }
            Done::Episode(id, episode) => {
                self.failures.note(&episode.outcome);
                self.was_cancelled |= episode.outcome == Outcome::Cancelled;
                self.observer.finished(&episode);
                self.sit(id, Seat::Ended(episode));
            }
        }
    }

    /// Notes where an attempt is, and what that makes of its group.
    fn sit(&mut self, id: usize, seat: Seat) {
        let (place, index) = self.seats[id];
        let table = self.tables.get_mut(&place).expect("a group stays until it is taken");
        table.seats[index] = seat;
        let has = |what: fn(&Seat) -> bool| table.seats.iter().any(what);
        let all = !has(|s| matches!(s, Seat::Waiting | Seat::Sampling | Seat::Aside(_)));
        if all && self.protocol.members().get(&place).is_some_and(|m| m.stage == Stage::Sampling) {
            // At the position that the sampler is at, which is counted when it has gone through it.
            table.sampled_at = self.n_positions + 1;
        }
        let all_ended = all && !has(|s| matches!(s, Seat::Working));
        self.protocol.sampled(place, all);
        if all_ended && !self.cancelled() {
            self.judge(place);
        }
    }

    fn judge(&mut self, place: u64) {
        let Some(table) = self.tables.get_mut(&place) else { return };
        let mut group = table.group();
        let verdict = (self.callbacks.1)(&mut group);
        table.kept = Some(verdict == Verdict::Keep);
        table.seats = group.episodes.into_iter().map(Seat::Ended).collect();
        self.protocol.judged(place, verdict);
        if verdict == Verdict::DrawMore {
            self.tables.remove(&place);
        }
    }

    fn hand_out(&mut self, id: u64, what: What) {
        let (place, _) = self.seats[id as usize];
        let table = &self.tables[&place];
        let (task, env) = (table.task.clone(), table.env.clone());
        self.workers.hand_out(Work { slot: id as usize, task, env, what });
        self.sit(id as usize, Seat::Working);
    }

    fn give(&mut self, id: u64, turns: Turns, job: Job) -> Option<Job> {
        self.n_moves += 1;
        self.sampling.insert(id, turns);
        Some(job)
    }

    /// A name for the jobs of an attempt.
    fn name(&mut self, place: u64, index: usize) -> u64 {
        self.seats.push((place, index));
        self.seats.len() as u64 - 1
    }

    fn environment(&mut self, task: &Task) -> Option<Arc<dyn Environment>> {
        let env = self.environments.of(task).cloned();
        if env.is_none() {
            let (task, env) = (task.id.clone(), task.env.clone());
            self.error = Some(RolloutError::UnknownEnvironment { task, env });
        }
        env
    }

    /// An attempt that has not begun: of a group that has, or of one that begins with it.
    fn unbegun(&mut self) -> Option<(u64, usize)> {
        if let Some(place) = self.open.front().copied() {
            return self.tables[&place].waiting().map(|index| (place, index));
        }
        loop {
            if self.is_ahead() && !self.protocol.may_begin() && self.protocol.may_come_to_begin() {
                self.settle();
            }
            if self.cancelled() || !self.protocol.may_begin() {
                return None;
            }
            let place = self.cursor;
            self.n_moves += 1;
            let Some(Drawn { task, n_samples }) = (self.callbacks.0)(place) else {
                self.protocol.ran_dry();
                return None;
            };
            let env = self.environment(&task)?;
            self.cursor += 1;
            let count = self.n_samples.entry(task.id.clone()).or_default();
            let first_sample = *count;
            *count += n_samples as u32;
            let seats = (0..n_samples).map(|_| Seat::Waiting).collect();
            let (step, task) = (self.step, Arc::new(task));
            let table = Table { step, first_sample, task, env, opening: None, seats, kept: None, sampled_at: 0 };
            self.tables.insert(place, table);
            self.protocol.begin(place);
            if n_samples > 0 {
                self.open.push_back(place);
                return Some((place, 0));
            }
        }
    }

    /// Begins an attempt; one that ends at once goes to the workers.
    fn begin(&mut self, place: u64, index: usize) -> Option<(u64, Turns, Job)> {
        let id = self.name(place, index);
        let table = self.tables.get_mut(&place).expect("a group stays until it is taken");
        let codec = self.frame.codec.as_ref();
        let opening = table
            .opening
            .take()
            .unwrap_or_else(|| Opening::new(codec, &table.task.messages, table.env.tools(&table.task)));
        let sample = table.first_sample + index as u32;
        let key = EpisodeKey { step: table.step, task: table.task.id.clone(), sample };
        let place = self.gates.place(table.env.as_ref(), &table.task, &key);
        let step = Turns::begin(id, key, &opening, &self.frame, place);
        table.seats[index] = Seat::Sampling;
        if table.waiting().is_some() {
            table.opening = Some(opening);
        } else {
            self.open.pop_front();
        }
        match step {
            Step::Sample(turns, job) => Some((id, turns, job)),
            Step::Finished(attempt) => {
                self.hand_out(id, What::Grade(attempt));
                None
            }
        }
    }

    /// The attempt that a result belongs to; a result for none is the sampler's fault.
    fn turns_of(&mut self, id: u64) -> Option<Turns> {
        let found = self.sampling.remove(&id);
        if found.is_none() {
            self.broken = Some(format!("answered job {id}, which it does not have"));
        }
        found
    }

    /// What the step takes, and what stays in flight.
    pub(crate) fn take(mut self) -> (Taken, BTreeMap<(u64, usize), Turns>) {
        let mut ends: Vec<u64> = self
            .protocol
            .members()
            .iter()
            .filter(|(_, m)| m.stage == Stage::Finished)
            .map(|(place, _)| self.tables[place].sampled_at)
            .collect();
        ends.sort_unstable();
        let enough = (self.terms.bounds.batch as usize).checked_sub(1).and_then(|last| ends.get(last));
        let n_held_up = enough.map_or(0, |at| self.n_positions.saturating_sub(*at));
        for (id, turns, _) in std::mem::take(&mut self.ready) {
            self.sit(id as usize, Seat::Aside(Box::new(turns)));
        }
        let places = self.protocol.take();
        let mut groups = Vec::new();
        for place in &places {
            let table = self.tables.remove(place).filter(|t| t.kept == Some(true));
            groups.extend(table.map(|mut t| t.group()));
        }
        let (mut flight, mut live) = (Flight::default(), BTreeMap::new());
        for (place, table) in std::mem::take(&mut self.tables) {
            flight.groups.push(table.set_aside(place, &mut live));
        }
        self.workers.end();
        let (cursor, n_positions) = (self.cursor, self.n_positions);
        (Taken { groups: merged(groups), places, cursor, flight, n_positions, n_held_up }, live)
    }
}

impl Jobs for Floor<'_> {
    fn next(&mut self) -> Option<Job> {
        self.take_what_is_there();
        if self.cancelled() || (self.is_ahead() && self.is_complete()) {
            return None;
        }
        // Attempts under way come first: they end sooner, and fewer are open at a time.
        if let Some((id, turns, job)) = self.ready.pop_front() {
            return self.give(id, turns, job);
        }
        while let Some((place, index)) = self.unbegun() {
            self.n_moves += 1;
            if let Some((id, turns, job)) = self.begin(place, index) {
                return self.give(id, turns, job);
            }
        }
        None
    }

    fn done(&mut self, result: Sampled) {
        if let Some(turns) = self.turns_of(result.id) {
            self.hand_out(result.id, What::Feed(turns, result));
        }
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        if let Some(turns) = self.turns_of(id) {
            self.hand_out(id, What::Fault(turns, error));
        }
    }

    fn progress(&mut self, n_tokens: usize) {
        self.n_positions += 1;
        self.observer.tokens(n_tokens);
        self.take_what_is_there();
    }

    /// Too many failures stop the sampling too: nothing can make up for them.
    fn cancelled(&self) -> bool {
        self.was_cancelled || self.error.is_some() || self.cancel.load(Ordering::Relaxed) || self.has_too_many_failed()
    }

    fn paused(&mut self) -> bool {
        self.is_ahead() && self.is_complete()
    }

    fn set_aside(&mut self, part: Sampled) {
        let Some(turns) = self.turns_of(part.id) else { return };
        match turns.set_aside(&part) {
            Ok(turns) => self.sit(part.id as usize, Seat::Aside(Box::new(turns))),
            Err(attempt) => self.hand_out(part.id, What::Grade(*attempt)),
        }
    }
}
