//! A learner without weights: it answers from what lines say, and keeps the derivatives it is given.

use std::collections::BTreeMap;
use std::path::Path;

use episode::{Group, Sequence, Token};
use loss::{TokenValues, Top};
use policy::{
    AdamStep, Batch, Checkpoint, GroupLossFn, Keep, Learner, PolicyError, Slot, TokenGrads, TrainSequence,
    UpdateReport, ValueAt,
};

use super::given::Given;

/// One sequence of the input, and where its line has its numbers.
pub(super) struct Place<'a> {
    pub(super) sequence: &'a Sequence,
    pub(super) given: &'a Given,
    /// Group, episode and sequence.
    pub(super) at: (usize, usize, usize),
    /// Where the sequence begins in the lists of the line.
    pub(super) start: usize,
}

impl<'a> Place<'a> {
    /// The sequences of groups, in canonical order.
    pub(super) fn all(groups: &'a [Group], given: &[&'a [Given]]) -> Vec<Place<'a>> {
        let mut places = Vec::new();
        for (g, (group, given)) in groups.iter().zip(given).enumerate() {
            for (e, (episode, given)) in group.episodes.iter().zip(*given).enumerate() {
                let mut start = 0;
                for (s, sequence) in episode.sequences.iter().enumerate() {
                    places.push(Place { sequence, given, at: (g, e, s), start });
                    start += sequence.len();
                }
            }
        }
        places
    }

    /// The line's number of a token of the sequence.
    pub(super) fn token(&self, t: usize) -> usize {
        (self.start + t).saturating_sub(self.given.offset)
    }

    /// The sequence's part of a list of the line.
    pub(super) fn part<'l>(&self, list: &'l [f32]) -> &'l [f32] {
        &list[self.start..self.start + self.sequence.len()]
    }

    /// The sequence's part of one list of other tokens.
    pub(super) fn top(&self, logp: &[f32]) -> Option<Top> {
        let top = self.given.top.as_ref()?;
        let at = self.start * top.k..(self.start + self.sequence.len()) * top.k;
        Some(Top { k: top.k, ids: top.ids.get(at.clone())?.to_vec(), logp: logp.get(at)?.to_vec() })
    }
}

/// Answers from recorded lists.
pub(super) struct Recorded<'a> {
    /// Every sequence that may be asked about, in canonical order.
    places: &'a [Place<'a>],
    /// Which place has its tokens where: on the way they are not copied.
    by_address: BTreeMap<*const Token, usize>,
    /// How many parts a batch is cut into.
    micro_batches: usize,
    /// The derivatives of each place; absent where none were computed.
    pub(super) grads: Vec<Option<TokenGrads>>,
}

impl<'a> Recorded<'a> {
    pub(super) fn new(places: &'a [Place<'a>], micro_batches: usize) -> Self {
        let by_address = places.iter().enumerate().map(|(i, place)| (place.sequence.tokens().as_ptr(), i)).collect();
        Recorded { places, by_address, micro_batches, grads: vec![None; places.len()] }
    }

    fn find(&self, sequence: &TrainSequence<'_>) -> Result<usize, PolicyError> {
        let found = self.by_address.get(&sequence.tokens.as_ptr()).copied();
        found.ok_or_else(|| PolicyError::Unsupported("only the episodes of the input can be asked about".to_owned()))
    }

    fn values(&self, group: &[TrainSequence<'_>], batch: &Batch<'_>) -> Result<Vec<TokenValues>, PolicyError> {
        let value_of = |sequence: &TrainSequence<'_>| {
            let place = &self.places[self.find(sequence)?];
            let given = place.given;
            let part = |list: Option<&[f32]>| list.map_or_else(Vec::new, |list| place.part(list).to_vec());
            let value = given.value_new.as_deref().or(given.value.as_deref());
            let top = given.top.as_ref().and_then(|top| place.top(top.now()?));
            Ok(TokenValues {
                // Where no log-probability is known, none can be read: only values are then compared.
                logp: given.now().map_or_else(|| vec![0.0; place.sequence.len()], |now| place.part(now).to_vec()),
                entropy: part(given.entropy.as_deref()),
                value: if batch.want.value == ValueAt::Nowhere { Vec::new() } else { part(value) },
                top: sequence.top.and(top),
            })
        };
        group.iter().map(value_of).collect()
    }
}

fn no_weights<T>(what: &str) -> Result<T, PolicyError> {
    Err(PolicyError::Unsupported(format!("recorded numbers cannot {what}: they have no weights")))
}

impl Checkpoint for Recorded<'_> {
    fn save(&self, _: &Path) -> Result<(), PolicyError> {
        no_weights("be saved")
    }

    fn load(&mut self, _: &Path) -> Result<(), PolicyError> {
        no_weights("be loaded")
    }
}

impl Learner for Recorded<'_> {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        batch.groups.iter().map(|group| self.values(group, batch)).collect()
    }

    fn forward_backward(&mut self, batch: &Batch<'_>, loss: &mut GroupLossFn<'_>) -> Result<(), PolicyError> {
        let size = batch.groups.len().div_ceil(self.micro_batches).max(1);
        for (part, groups) in batch.groups.chunks(size).enumerate() {
            let values: Vec<_> = groups.iter().map(|group| self.values(group, batch)).collect::<Result<_, _>>()?;
            for (i, (group, values)) in groups.iter().zip(&values).enumerate() {
                let grads = loss(part * size + i, values)?;
                for (sequence, grads) in group.iter().zip(grads) {
                    let place = self.find(sequence)?;
                    self.grads[place] = Some(grads);
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, _: Slot, _: Keep) -> Result<(), PolicyError> {
        no_weights("be kept")
    }

    fn forward_kept(&mut self, _: Slot, _: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        no_weights("be asked under other weights")
    }

    fn update(&mut self, _: &AdamStep) -> Result<UpdateReport, PolicyError> {
        no_weights("be moved")
    }
}
