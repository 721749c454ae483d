//! The places that episodes of a step fill: which task, which sample.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent::{Codec, Opening};
use env::{Environment, Environments};
use episode::{Episode, EpisodeKey, Group, Task};

use crate::RolloutError;

/// One task with its attempts; a slot is a number over all attempts of all tasks, task after task.
struct Place {
    task: Arc<Task>,
    env: Arc<dyn Environment>,
    first_slot: usize,
    n_samples: usize,
    opening: Option<Opening>,
}

pub(crate) struct Slots {
    places: Vec<Place>,
    episodes: Vec<Option<Episode>>,
}

impl Slots {
    /// A place for each task, in the order given.
    ///
    /// A task that is listed twice gets one group of twice the size: by its id it is one task, and numbering its samples on
    /// keeps their random streams apart.
    pub(crate) fn new(tasks: &[Task], group_size: usize, envs: &Environments) -> Result<Self, RolloutError> {
        let mut index = BTreeMap::new();
        let mut places: Vec<Place> = Vec::new();
        for task in tasks {
            let at = *index.entry(&task.id).or_insert(places.len());
            if at < places.len() {
                places[at].n_samples += group_size;
                continue;
            }
            let env = envs
                .of(task)
                .ok_or_else(|| RolloutError::UnknownEnvironment { task: task.id.clone(), env: task.env.clone() })?;
            let (task, env) = (Arc::new(task.clone()), env.clone());
            places.push(Place { task, env, first_slot: 0, n_samples: group_size, opening: None });
        }
        let mut n = 0;
        for place in &mut places {
            place.first_slot = n;
            n += place.n_samples;
        }
        Ok(Slots { places, episodes: vec![None; n] })
    }

    pub(crate) fn len(&self) -> usize {
        self.episodes.len()
    }

    fn place(&self, slot: usize) -> usize {
        self.places.partition_point(|p| p.first_slot <= slot) - 1
    }

    pub(crate) fn task(&self, slot: usize) -> (Arc<Task>, Arc<dyn Environment>) {
        let place = &self.places[self.place(slot)];
        (place.task.clone(), place.env.clone())
    }

    pub(crate) fn key(&self, slot: usize, step: u64) -> EpisodeKey {
        let place = &self.places[self.place(slot)];
        EpisodeKey { step, task: place.task.id.clone(), sample: (slot - place.first_slot) as u32 }
    }

    /// The task's rendered prompt, rendered when its first attempt begins and dropped with the last.
    pub(crate) fn opening(&mut self, slot: usize, codec: &dyn Codec) -> Opening {
        let at = self.place(slot);
        let place = &mut self.places[at];
        let opening = place.opening.take().unwrap_or_else(|| Opening::new(codec, &place.task.messages));
        if slot + 1 < place.first_slot + place.n_samples {
            place.opening = Some(opening.clone());
        }
        opening
    }

    pub(crate) fn fill(&mut self, slot: usize, episode: Episode) {
        self.episodes[slot] = Some(episode);
    }

    /// The groups in the order of the tasks, each one's episodes by sample.
    pub(crate) fn groups(self) -> Vec<Group> {
        let mut episodes = self.episodes.into_iter();
        let group = |place: Place| Group {
            episodes: episodes.by_ref().take(place.n_samples).flatten().collect(),
            task: Arc::unwrap_or_clone(place.task),
        };
        self.places.into_iter().map(group).collect()
    }
}
