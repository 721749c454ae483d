//! A group that began, and where each of its attempts is.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent::{Attempt, Opening, Turns};
use env::Environment;
use episode::{Episode, Group, Task};

use super::{Begun, Flown};

/// A group that began.
pub(super) struct Table {
    pub(super) step: u64,
    pub(super) first_sample: u32,
    pub(super) task: Arc<Task>,
    pub(super) env: Arc<dyn Environment>,
    /// The prompt, rendered when the first attempt begins and dropped with the last.
    pub(super) opening: Option<Opening>,
    pub(super) seats: Vec<Seat>,
    /// Whether it is trained on, once that is known.
    pub(super) kept: Option<bool>,
    /// The sampler's position when its last attempt was sampled.
    pub(super) sampled_at: u64,
}

/// An attempt's place in its group.
pub(super) enum Seat {
    Waiting,
    /// At the sampler, or about to be.
    Sampling,
    /// At a worker.
    Working,
    Aside(Box<Turns>),
    Ended(Episode),
}

impl Table {
    pub(super) fn waiting(&self) -> Option<usize> {
        self.seats.iter().position(|s| matches!(s, Seat::Waiting))
    }

    /// The group, whose seats are empty then.
    pub(super) fn group(&mut self) -> Group {
        let ended = |seat| if let Seat::Ended(episode) = seat { Some(episode) } else { None };
        let episodes = std::mem::take(&mut self.seats).into_iter().filter_map(ended).collect();
        Group { task: (*self.task).clone(), episodes }
    }

    pub(super) fn set_aside(self, place: u64, live: &mut BTreeMap<(u64, usize), Turns>) -> Begun {
        let flown = |(index, seat)| match seat {
            Seat::Ended(episode) => Flown::Ended(episode),
            Seat::Aside(turns) => {
                let attempt: Attempt = turns.so_far().clone();
                live.insert((place, index), *turns);
                Flown::Aside(attempt)
            }
            // Nothing is at the sampler or a worker when a step is taken.
            Seat::Waiting | Seat::Sampling | Seat::Working => Flown::Waiting,
        };
        Begun {
            place,
            step: self.step,
            first_sample: self.first_sample,
            kept: self.kept,
            task: Arc::unwrap_or_clone(self.task),
            attempts: self.seats.into_iter().enumerate().map(flown).collect(),
        }
    }
}
