//! Rollouts as a stream: the sampler runs ahead of the steps by at most `max_lag` versions of the policy.
//!
//! A step is complete when its groups are; what is being sampled then is set aside, the policy learns, and it goes on under
//! the new weights: its tokens are read again, its random numbers go on by position, and each token keeps the version that
//! sampled it. So the rows of the sampler stay full while the last episodes of a step are still talking.
//!
//! **Order.** When a step is complete, and when a group may begin, is decided by the sampler's own order: which positions it
//! has sampled, and what ended at which. An attempt that has ended counts from then on, whenever its grader answers: where
//! the verdict matters, it is waited for. With several turns an attempt the world's answer is waited for as well. So the
//! same weights, tasks, seed and sampler settings give the same schedule on any number of threads; without lag nothing
//! depends on the schedule, and nothing is waited for but the end.
//!
//! Who begins, who is waited for and who is taken is [`protocol`]'s, and what is kept between steps is a [`Flight`].

mod flight;
mod floor;
pub mod protocol;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agent::Turns;
use episode::{Group, Task};
use policy::{Sampler, Sampling};

pub use flight::{Begun, Flight, Flown};
pub(crate) use floor::{Drawn, Floor, Opened};
use protocol::{Bounds, Verdict};

use crate::{Observer, Rollout, RolloutError};

/// What all steps of a stream have in common.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Groups a step, how far ahead, how many at once, and so on.
    pub bounds: Bounds,
    /// Attempts at each task.
    pub group_size: usize,
    /// The run's seed.
    pub run_seed: u64,
    /// How to draw.
    pub sampling: Arc<Sampling>,
}

/// What one step got.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// Its groups, in the order in which they began.
    pub groups: Vec<Group>,
    /// The places in the curriculum of all that the step took, those it goes on without included.
    pub places: Vec<u64>,
    /// The next place in the curriculum.
    pub cursor: u64,
    /// What is in flight now.
    pub flight: Flight,
    /// Positions that the sampler went through.
    pub n_positions: u64,
    /// Those of them at which the step had enough groups and waited for one that no later step may take.
    pub n_held_up: u64,
}

/// Rollouts that run ahead.
pub struct Stream {
    rollout: Arc<Rollout>,
    terms: Terms,
    /// Attempts that are set aside, by place and seat, with their worlds as they are. What is not here is taken up from
    /// its record.
    live: BTreeMap<(u64, usize), Turns>,
}

impl Stream {
    /// A stream.
    pub fn new(rollout: Arc<Rollout>, terms: Terms) -> Stream {
        Stream { rollout, terms, live: BTreeMap::new() }
    }

    /// What its attempts have in common with those of any other collection.
    pub fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// What all its steps have in common.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Samples until a step is complete. `draw` tells the task at a place in the curriculum, `judge` what becomes of a
    /// finished group.
    ///
    /// - Holds: a function of the weights, the step, the cursor and what is in flight; calling it again with the same gives
    ///   the same, also after an error.
    /// - Errors: as [`Rollout::collect`]; the share of failures is that of one step's episodes.
    pub fn step(
        &mut self,
        sampler: &mut dyn Sampler,
        step: u64,
        cursor: u64,
        flight: &Flight,
        draw: &mut dyn FnMut(u64) -> Task,
        judge: &mut dyn FnMut(&mut Group) -> Verdict,
        observer: &mut dyn Observer,
        cancel: &AtomicBool,
    ) -> Result<Taken, RolloutError> {
        let n_samples = self.terms.group_size;
        let mut supply = |place| Some(Drawn { task: draw(place), n_samples });
        // After an error the attempts have gone on from where the flight says they are.
        let live = std::mem::take(&mut self.live);
        let opened = Opened { terms: &self.terms, step, version: step.saturating_sub(1), cursor, flight, live };
        let mut floor = Floor::open(&self.rollout, sampler.context(), opened, (&mut supply, judge), observer, cancel)?;
        floor.run(sampler)?;
        let (taken, live) = floor.take();
        self.live = live;
        Ok(taken)
    }
}

/// Groups of one task that began for one step become one: their samples are numbered through.
pub(crate) fn merged(groups: impl IntoIterator<Item = Group>) -> Vec<Group> {
    let mut all: Vec<Group> = Vec::new();
    let mut index = BTreeMap::new();
    for group in groups {
        let step = group.episodes.first().map(|e| e.key.step);
        let at = *index.entry((group.task.id.clone(), step)).or_insert(all.len());
        match all.get_mut(at) {
            Some(same) => same.episodes.extend(group.episodes),
            None => all.push(group),
        }
    }
    all
}

#[cfg(test)]
mod tests;
