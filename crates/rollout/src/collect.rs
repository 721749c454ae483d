//! One step's episodes, from tasks to groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agent::Codec;
use env::Environments;
use episode::{Group, Task};
use policy::{Sampler, Sampling};

use crate::stream::protocol::{Bounds, Verdict};
use crate::stream::{Drawn, Flight, Floor, Opened, Terms};
use crate::{Gates, Observer, RolloutError, Settings};

/// What all collections of a run have in common.
pub struct Rollout {
    /// The model's chat format.
    pub codec: Arc<dyn Codec>,
    /// Where tasks come from and who grades them.
    pub environments: Environments,
    /// The way of every tool call to its environment.
    pub gates: Gates,
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
    /// Samples and grades every attempt: a stream of one step.
    ///
    /// - Holds: groups in the order of the tasks and episodes by sample, equal to the bit whatever the number of threads, the
    ///   order in which things finish, and the other tasks; each place holds exactly one episode. A task that is listed
    ///   twice gets one group of twice the size: by its id it is one task, and numbering its samples on keeps their random
    ///   streams apart.
    /// - Errors: [`RolloutError`]; a failed episode is data until more than the set share of them failed. After an error no
    ///   result is left, and graders that are still busy have been told to stop.
    pub fn collect(
        &self,
        sampler: &mut dyn Sampler,
        plan: &Plan<'_>,
        observer: &mut dyn Observer,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RolloutError> {
        if !(1..=1 << 20).contains(&plan.group_size) {
            let got = plan.group_size as f64;
            return Err(RolloutError::Setting { key: "group_size", got, needed: "a number from 1 to 1048576" });
        }
        if let Some(task) = plan.tasks.iter().find(|t| self.environments.of(t).is_none()) {
            return Err(RolloutError::UnknownEnvironment { task: task.id.clone(), env: task.env.clone() });
        }
        let batch = plan.tasks.len() as u64;
        let terms = Terms {
            bounds: Bounds { batch, max_lag: 0, max_running: u64::MAX, max_draws: 1, steps: 1, holds_lag: false },
            group_size: plan.group_size,
            run_seed: plan.run_seed,
            sampling: plan.sampling.clone(),
        };
        let none = Flight::default();
        let (step, live) = (plan.step, BTreeMap::new());
        let opened = Opened { terms: &terms, step, version: 0, cursor: 0, flight: &none, live };
        let n_samples = plan.group_size;
        let mut draw = |place| {
            let task = usize::try_from(place).ok().and_then(|p| plan.tasks.get(p))?;
            Some(Drawn { task: task.clone(), n_samples })
        };
        let mut keep = |_: &mut Group| Verdict::Keep;
        let mut floor = Floor::open(self, sampler.context(), opened, (&mut draw, &mut keep), observer, cancel)?;
        floor.run(sampler)?;
        Ok(floor.take().0.groups)
    }

    /// The longest that nothing may happen: a grader's deadline and the patience on top.
    pub(crate) fn silence(&self) -> Duration {
        let deadline = self.environments.iter().map(|(env, _)| env.deadline()).max().unwrap_or_default();
        deadline + Duration::from_secs_f64(self.settings.patience_s)
    }
}
