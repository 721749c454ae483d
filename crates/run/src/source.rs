//! Where a step's episodes come from: the policy's own attempts, or given answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::Mixture;
use episode::random::Stream;
use episode::{Episode, Group, Outcome, Part};
use policy::{Policy, Sampling};
use rollout::{Plan, Rollout, RolloutError};

use crate::{Phase, Progress, RunError, Watching};

/// Somewhere episodes come from.
pub trait Source {
    /// `n` groups from a place in the curriculum on.
    ///
    /// - Holds: depends on the step, the place and the weights alone.
    fn collect(
        &mut self,
        policy: &mut dyn Policy,
        step: u64,
        cursor: u64,
        n: usize,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RunError>;

    /// Episodes that `n` groups have.
    fn n_episodes(&self, n: usize) -> usize;
}

/// The policy's own attempts.
pub struct Attempts {
    /// Runs them.
    pub rollout: Arc<Rollout>,
    /// The order of the training tasks.
    pub mixture: Mixture,
    /// Attempts at each task.
    pub group_size: usize,
    /// The run's seed.
    pub seed: u64,
    /// How to draw.
    pub sampling: Arc<Sampling>,
    /// Replace rewards by coin flips.
    pub coin_flips: bool,
}

impl Source for Attempts {
    fn collect(
        &mut self,
        policy: &mut dyn Policy,
        step: u64,
        cursor: u64,
        n: usize,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RunError> {
        progress.phase(Phase::Collecting, self.n_episodes(n));
        let tasks = self.mixture.draw_at(cursor, n);
        let plan = Plan {
            tasks: &tasks,
            group_size: self.group_size,
            run_seed: self.seed,
            step,
            sampling: self.sampling.clone(),
        };
        let groups = self.rollout.collect(policy.sampler(), &plan, &mut Watching(progress), cancel);
        let mut groups = groups.map_err(|source| match source {
            RolloutError::Cancelled => RunError::Interrupted,
            source => RunError::Rollout { step, source },
        })?;
        if cancel.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        if self.coin_flips {
            groups.iter_mut().flat_map(|g| &mut g.episodes).for_each(|e| flip(e, self.seed));
        }
        Ok(groups)
    }

    fn n_episodes(&self, n: usize) -> usize {
        n * self.group_size
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

impl Source for Answers {
    fn collect(
        &mut self,
        _: &mut dyn Policy,
        step: u64,
        cursor: u64,
        n: usize,
        progress: &mut dyn Progress,
        _: &AtomicBool,
    ) -> Result<Vec<Group>, RunError> {
        progress.phase(Phase::Collecting, n);
        let len = self.groups.len() as u64;
        let mut out: Vec<Group> = Vec::with_capacity(n);
        for place in cursor..cursor + n as u64 {
            // Each pass over the file has an order of its own.
            let order = Stream::new("answers", &[self.seed, place / len]).permutation(self.groups.len());
            let mut group = self.groups[order[(place % len) as usize]].clone();
            for episode in &mut group.episodes {
                episode.key.step = step;
                // The same answer twice in one step, in a small file, is two episodes.
                episode.key.sample = (place / len) as u32;
            }
            out.push(group);
        }
        Ok(out)
    }

    fn n_episodes(&self, n: usize) -> usize {
        n
    }
}
