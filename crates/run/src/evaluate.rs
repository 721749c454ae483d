//! Held-out tasks at fixed seeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::{Environments, Split};
use episode::{Group, Task};
use eval::{Criteria, Score};
use policy::{Policy, Sampling};
use rollout::{EVALUATION, Plan, Rollout, RolloutError};

use crate::{Phase, Progress, RunError, Watching};

/// Seed of every evaluation, so that runs with different seeds are tried on the same draws.
const SEED: u64 = 0;

/// What one evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The score.
    pub score: Score,
    /// The attempts.
    pub groups: Vec<Group>,
}

/// Tries a policy on held-out tasks.
pub struct Evaluator {
    rollout: Arc<Rollout>,
    tasks: Vec<Task>,
    attempts: usize,
    sampling: Arc<Sampling>,
    pass_at: Vec<u64>,
    solved_at: f64,
}

impl Evaluator {
    /// An evaluator over at most `limit` held-out tasks of each environment.
    ///
    /// - Units: an episode is solved at the full marks of its environment; with several, at the lowest of theirs.
    pub fn new(
        rollout: Arc<Rollout>,
        limit: usize,
        attempts: usize,
        sampling: Arc<Sampling>,
        pass_at: Vec<u64>,
    ) -> Self {
        let tasks = rollout.environments.tasks(Split::HeldOut, limit);
        let solved_at = full_marks(&rollout.environments);
        Evaluator { rollout, tasks, attempts, sampling, pass_at, solved_at }
    }

    /// Number of tasks.
    pub fn n_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The tasks.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// What counts as solved.
    pub fn criteria(&self) -> Criteria<'_> {
        Criteria { solved_at: self.solved_at, ks: &self.pass_at, well_formed: Some(&is_only_number) }
    }

    /// Tries every task.
    pub fn run(
        &self,
        name: &str,
        policy: &mut dyn Policy,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Trial, RunError> {
        progress.phase(Phase::Evaluating, self.tasks.len() * self.attempts);
        let plan = Plan {
            tasks: &self.tasks,
            group_size: self.attempts,
            run_seed: SEED,
            step: EVALUATION,
            sampling: self.sampling.clone(),
        };
        let groups = self.rollout.collect(policy.sampler(), &plan, &mut Watching(progress), cancel);
        let groups = groups.map_err(|source| match source {
            RolloutError::Cancelled => RunError::Interrupted,
            source => RunError::Rollout { step: 0, source },
        })?;
        if cancel.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        self.rollout.gates.sync().map_err(|e| RunError::Gate(e.to_string()))?;
        let score = eval::score(name, &groups, &self.criteria())?;
        Ok(Trial { score, groups })
    }
}

/// Reward that counts as solved: the full marks, a hair less for weights that do not add up exactly.
fn full_marks(environments: &Environments) -> f64 {
    environments.iter().map(|(e, _)| e.full_marks()).fold(f64::INFINITY, f64::min) - 1e-9
}

fn is_only_number(episode: &episode::Episode) -> bool {
    env::answer::is_only_number(episode.reply())
}
