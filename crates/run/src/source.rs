//! Where a step's episodes come from: the policy's own attempts, or given answers.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use algo::{Admission, Algorithm};
use env::Mixture;
use episode::random::Stream;
use episode::{Episode, Group, Outcome, Part, Task};
use policy::Policy;
use rollout::stream::protocol::Verdict;
use rollout::stream::{Flight, Stream as Rollouts};
use rollout::{Plan, RolloutError};

use crate::lag::Schedule;
use crate::{Phase, Progress, RunError, Settings, State};

/// What a step learns from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collected {
    /// Its groups.
    pub groups: Vec<Group>,
    /// How many of them, from the first on, are the policy's own attempts or given answers; the others were replayed, or are
    /// further attempts that the algorithm asked for.
    pub n_fresh: usize,
    /// The next place in the curriculum.
    pub cursor: u64,
    /// What was begun and is not taken by this step.
    pub flight: Flight,
    /// How many groups of each of the latest steps, this one included, were the policy's own; see [`State::own`].
    pub own: Vec<u64>,
    /// What is recorded of a step whose tokens older policies may have sampled.
    pub schedule: Option<Schedule>,
}

/// Somewhere episodes come from.
pub trait Source {
    /// The groups of a step: as many as the algorithm keeps of those that the curriculum gives.
    ///
    /// - Holds: depends on settings, the state and the weights alone.
    fn collect(
        &mut self,
        policy: &mut dyn Policy,
        settings: &Settings,
        state: &State,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Collected, RunError>;

    /// Further attempts that an algorithm asks for within a step, a group for each task with its number of attempts. A
    /// round is each time it asks, counted from 1.
    ///
    /// - Holds: as [`Source::collect`]; no random number is shared with the step's other attempts.
    fn attempt(
        &mut self,
        policy: &mut dyn Policy,
        step_and_round: (u64, u64),
        tasks: &[(Task, usize)],
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RunError>;
}

/// The policy's own attempts, running ahead as far as the settings let them.
pub struct Attempts {
    rollouts: Rollouts,
    /// The order of the training tasks.
    mixture: Mixture,
    seed: u64,
    /// Replace rewards by coin flips.
    coin_flips: bool,
    /// Tasks drawn already, from a place on.
    ahead: (u64, VecDeque<Task>),
}

impl Attempts {
    /// Attempts at the tasks of a mixture.
    pub fn new(rollouts: Rollouts, mixture: Mixture, seed: u64, coin_flips: bool) -> Attempts {
        Attempts { rollouts, mixture, seed, coin_flips, ahead: (0, VecDeque::new()) }
    }
}

impl Source for Attempts {
    fn collect(
        &mut self,
        policy: &mut dyn Policy,
        settings: &Settings,
        state: &State,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Collected, RunError> {
        let bounds = self.rollouts.terms().bounds;
        progress.phase(Phase::Collecting, bounds.batch as usize * self.rollouts.terms().group_size);
        let step = state.step + 1;
        let algorithm = settings.algorithm.algorithm();
        let progress = RefCell::new(progress);
        let (mixture, ahead, seed, coin_flips) = (&self.mixture, &mut self.ahead, self.seed, self.coin_flips);
        let mut draw = |place: u64| {
            if ahead.0 != place || ahead.1.is_empty() {
                *ahead = (place, mixture.draw_at(place, bounds.batch.max(1) as usize).into());
            }
            ahead.0 += 1;
            ahead.1.pop_front().expect("at least 1 task was drawn")
        };
        let mut judge = |group: &mut Group| {
            if coin_flips {
                group.episodes.iter_mut().for_each(|e| flip(e, seed));
            }
            admit(algorithm, group, &mut **progress.borrow_mut())
        };
        let mut watching = Watching(&progress);
        let sampler = policy.sampler();
        let (cursor, flight) = (state.cursor, &state.flight);
        let taken = self.rollouts.step(sampler, step, cursor, flight, &mut draw, &mut judge, &mut watching, cancel);
        let taken = taken.map_err(|source| match source {
            RolloutError::Cancelled => RunError::Interrupted,
            source => RunError::Rollout { step, source },
        })?;
        if cancel.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        self.rollouts.rollout().gates.sync().map_err(|e| RunError::Gate(e.to_string()))?;
        let schedule = (bounds.max_lag > 0).then(|| Schedule::of(&taken));
        let n_fresh = taken.groups.len();
        let (groups, cursor, flight) = (taken.groups, taken.cursor, taken.flight);
        Ok(Collected { groups, n_fresh, cursor, flight, schedule, own: Vec::new() })
    }

    fn attempt(
        &mut self,
        policy: &mut dyn Policy,
        (step, round): (u64, u64),
        tasks: &[(Task, usize)],
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RunError> {
        progress.phase(Phase::Collecting, tasks.iter().map(|(_, n)| n).sum());
        let terms = self.rollouts.terms();
        let progress = RefCell::new(progress);
        let mut groups: Vec<Option<Group>> = vec![None; tasks.len()];
        // What differs in size, or asks the same again, which one collection would make one group, is collected on its own.
        for pass in 0.. {
            let Some(first) = groups.iter().position(Option::is_none) else { break };
            let (n, mut ids) = (tasks[first].1, BTreeSet::new());
            let is_next = |i: &usize| groups[*i].is_none() && tasks[*i].1 == n && ids.insert(&tasks[*i].0.id);
            let places: Vec<usize> = (0..tasks.len()).filter(is_next).collect();
            let chosen: Vec<Task> = places.iter().map(|i| tasks[*i].0.clone()).collect();
            // A task that is asked again in the same words must not get the same answers.
            let run_seed = Stream::new("further", &[terms.run_seed, round, pass]).bits(0);
            let plan = Plan { tasks: &chosen, group_size: n, run_seed, step, sampling: terms.sampling.clone() };
            let found = self.rollouts.rollout().collect(policy.sampler(), &plan, &mut Watching(&progress), cancel);
            let found = found.map_err(|source| match source {
                RolloutError::Cancelled => RunError::Interrupted,
                source => RunError::Rollout { step, source },
            })?;
            if cancel.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            for (place, mut group) in places.into_iter().zip(found) {
                if self.coin_flips {
                    group.episodes.iter_mut().for_each(|e| flip(e, run_seed));
                }
                groups[place] = Some(group);
            }
        }
        self.rollouts.rollout().gates.sync().map_err(|e| RunError::Gate(e.to_string()))?;
        Ok(groups.into_iter().flatten().collect())
    }
}

/// Passes what a collection reports on to the run's progress, which is told of groups meanwhile.
struct Watching<'a, 'b>(&'a RefCell<&'b mut dyn Progress>);

impl rollout::Observer for Watching<'_, '_> {
    fn tokens(&mut self, n_tokens: usize) {
        self.0.borrow_mut().tokens(n_tokens);
    }

    fn finished(&mut self, episode: &Episode) {
        self.0.borrow_mut().finished(episode);
    }
}

/// What becomes of a group; one that is left out is told of.
pub(crate) fn admit(algorithm: &dyn Algorithm, group: &Group, progress: &mut dyn Progress) -> Verdict {
    match algorithm.admit(group) {
        Admission::Keep => Verdict::Keep,
        Admission::Drop(why) => {
            progress.left_out(group, &why);
            Verdict::Drop
        }
        Admission::DrawMore(why) => {
            progress.left_out(group, &why);
            Verdict::DrawMore
        }
    }
}

/// Replaces a graded episode's reward by a fair coin.
fn flip(episode: &mut Episode, seed: u64) {
    let key = &episode.key;
    let coin = Stream::new("coin", &[seed, key.step, key.task.bits(), u64::from(key.sample)]).below(0, 2) as f64;
    if let Outcome::Graded { reward, parts } = &mut episode.outcome {
        *reward = coin;
        *parts = vec![Part::new("coin_flip", coin, 1.0)];
    }
}

/// Given answers.
pub struct Answers {
    /// Each answer as a finished episode, by place in the file.
    pub groups: Vec<Group>,
    /// The run's seed.
    pub seed: u64,
}

impl Answers {
    fn draw(&self, step: u64, place: u64) -> Group {
        let len = self.groups.len() as u64;
        // Each pass over the file has an order of its own.
        let order = Stream::new("answers", &[self.seed, place / len]).permutation(self.groups.len());
        let mut group = self.groups[order[(place % len) as usize]].clone();
        let n = group.episodes.len();
        for (index, episode) in group.episodes.iter_mut().enumerate() {
            episode.key.step = step;
            // The same answer twice in one step, in a small file, is two episodes.
            episode.key.sample = (place / len) as u32 * n as u32 + index as u32;
        }
        group
    }
}

impl Source for Answers {
    fn collect(
        &mut self,
        _: &mut dyn Policy,
        settings: &Settings,
        state: &State,
        progress: &mut dyn Progress,
        _: &AtomicBool,
    ) -> Result<Collected, RunError> {
        let wanted = settings.batch.tasks;
        progress.phase(Phase::Collecting, wanted);
        let algorithm = settings.algorithm.algorithm();
        let most = state.cursor + (wanted * algorithm.max_draws()) as u64;
        let (mut groups, mut missing, mut cursor) = (Vec::new(), wanted, state.cursor);
        while missing > 0 && cursor < most {
            let group = self.draw(state.step + 1, cursor);
            cursor += 1;
            let verdict = admit(algorithm, &group, progress);
            missing -= usize::from(verdict != Verdict::DrawMore);
            if verdict == Verdict::Keep {
                groups.push(group);
            }
        }
        Ok(Collected { n_fresh: groups.len(), groups, cursor, ..Collected::default() })
    }

    fn attempt(
        &mut self,
        _: &mut dyn Policy,
        _: (u64, u64),
        _: &[(Task, usize)],
        _: &mut dyn Progress,
        _: &AtomicBool,
    ) -> Result<Vec<Group>, RunError> {
        Err(RunError::Settings("the algorithm asks for further attempts, but `[data]` gives the answers".to_owned()))
    }
}
