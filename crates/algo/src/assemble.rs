//! From what episodes are worth to signals by token, the same for every algorithm.

use episode::random::Stream;
use episode::{Episode, Group, Outcome, Sequence};
use loss::{Loss, Old, Signal, StepRow};

use crate::advantage::{all_equal, mean, spread};
use crate::shared::Common;
use crate::step::{Advantage, Place, Worth, sampled};
use crate::{AlgoError, Answers, Data, Dropped, GroupSignals, GroupStats, Signals, Spread, Why};

/// What the signals of a step share.
pub(crate) struct Assembly<'a> {
    pub(crate) groups: &'a [Group],
    pub(crate) answers: &'a Answers,
    pub(crate) loss: Loss,
    pub(crate) common: Common,
    /// Whether nobody sampled an episode's tokens.
    pub(crate) given: fn(&Episode) -> bool,
    /// What is noted of whole groups.
    pub(crate) dropped: Vec<Dropped>,
}

/// By where an algorithm's episodes may come from, how to tell that nobody sampled one's tokens.
pub(crate) fn given(data: Data) -> fn(&Episode) -> bool {
    match data {
        Data::Episodes => |_| false,
        Data::Answers => |_| true,
        // What nobody sampled has no recorded log-probability, which is written as 0 throughout.
        Data::EpisodesOrAnswers | Data::EpisodesOrPairs => {
            |episode| episode.sequences.iter().all(|s| sampled(s).all(|t| s.logp()[t] == 0.0))
        }
    }
}

/// Signals of a step, by group, episode and sequence.
type All = Vec<Vec<Option<Vec<Signal>>>>;

impl Assembly<'_> {
    /// Gives every token what its episode says it is worth.
    ///
    /// - Shapes: `worth` by group and episode, absent for episodes that are nowhere.
    pub(crate) fn finish(mut self, worth: Vec<Vec<Option<Worth>>>) -> Result<Signals, AlgoError> {
        let mut all: All = Vec::with_capacity(self.groups.len());
        for (g, (group, worth)) in self.groups.iter().zip(worth).enumerate() {
            let mut episodes = Vec::with_capacity(group.episodes.len());
            for (e, (episode, worth)) in group.episodes.iter().zip(worth).enumerate() {
                if let Some(why) = why_nothing(episode, worth.as_ref()) {
                    self.dropped.push(Dropped { group: g, episode: Some(e), why });
                }
                episodes.push(worth.map(|worth| self.episode(g, e, worth)).transpose()?);
            }
            all.push(episodes);
        }
        self.select(&mut all)?;
        let mut groups = Vec::with_capacity(self.groups.len());
        for (group, episodes) in self.groups.iter().zip(all) {
            let inert = |(episode, signals): (&Episode, &Option<Vec<Signal>>)| {
                let mut pairs = episode.sequences.iter().zip(signals.iter().flatten());
                pairs.all(|(sequence, signal)| self.loss.is_inert(sequence.sampled(), signal))
            };
            let has_signal = !group.episodes.iter().zip(&episodes).all(inert);
            groups.push(GroupSignals { episodes, stats: stats(group), has_signal });
        }
        Ok(Signals { loss: self.loss, plan: self.common.plan, groups, dropped: self.dropped })
    }

    fn episode(&self, g: usize, e: usize, worth: Worth) -> Result<Vec<Signal>, AlgoError> {
        let group = &self.groups[g];
        let episode = &group.episodes[e];
        let given = (self.given)(episode);
        let weight = if worth.idle.is_some() { 0.0 } else { 1.0 };
        let mut own = match worth.advantage {
            Advantage::Same(advantage) => {
                let advantage = advantage as f32;
                finite("advantage", group, e, f64::from(advantage))?;
                let of = |sequence: &Sequence| each(sequence, advantage);
                episode.sequences.iter().map(of).collect()
            }
            Advantage::Each(own) => {
                let wrong = own.iter().flatten().find(|a| !a.is_finite());
                wrong.map_or(Ok(()), |a| finite("advantage", group, e, f64::from(*a)))?;
                own
            }
        }
        .into_iter();
        let mut values = worth.value.unwrap_or_default().into_iter();
        let mut signals = Vec::with_capacity(episode.sequences.len());
        for (s, sequence) in episode.sequences.iter().enumerate() {
            let at = (g, e, s);
            let old = match (given, self.loss.correction.needs_forward()) {
                (true, _) => Old::Given,
                (false, true) => Old::Forward(now(group, self.answers, at, sequence)?.to_vec()),
                (false, false) => Old::Recorded,
            };
            // Kept for the metrics too when the KL went into the reward.
            let with_ref = self.loss.needs_ref() || self.answers.reference.is_some();
            let logp_ref = if with_ref { Some(reference(group, self.answers, at, sequence)?.to_vec()) } else { None };
            signals.push(Signal {
                advantage: own.next().unwrap_or_default(),
                weight: each(sequence, weight),
                old,
                logp_ref,
                episode: e as u32,
                lag: if given { None } else { self.lag(sequence) },
                value: values.next(),
                teacher: self.answers.teacher_of(at).cloned(),
                pair: worth.pair,
                pull: None,
            });
        }
        Ok(signals)
    }

    /// Published versions since each token was sampled; absent for none at all.
    fn lag(&self, sequence: &Sequence) -> Option<Vec<u32>> {
        let version = self.answers.version?;
        let behind = |t: usize| version.saturating_sub(sequence.version()[t]);
        if sampled(sequence).all(|t| behind(t) == 0) {
            return None;
        }
        let of = |(t, sampled): (usize, &bool)| if *sampled { behind(t) } else { 0 };
        Some(sequence.sampled().iter().enumerate().map(of).collect())
    }

    /// Makes the choices that look at a whole step: what they leave out weighs 0 and stays in the denominators.
    fn select(&self, all: &mut All) -> Result<(), AlgoError> {
        let (select, correction) = (&self.common.select, &self.common.correction);
        let mut places: Vec<Place> = Vec::new();
        let mut trained: Vec<Vec<bool>> = Vec::new();
        if !select.is_active() && !matches!(correction, loss::Correction::M2po(_)) {
            return Ok(());
        }
        for (g, group) in all.iter().enumerate() {
            for (e, signals) in group.iter().enumerate() {
                for (s, signal) in signals.iter().flatten().enumerate() {
                    // What weighs nothing has no part in what is chosen.
                    let sampled = self.groups[g].episodes[e].sequences[s].sampled();
                    let weighs = |(sampled, weight): (&bool, &f32)| *sampled && *weight != 0.0;
                    trained.push(sampled.iter().zip(&signal.weight).map(weighs).collect());
                    places.push((g, e, s));
                }
            }
        }
        let mut rows = Vec::with_capacity(places.len());
        for (at, trained) in places.iter().zip(&trained) {
            let (g, e, s) = *at;
            let Some(signal) = all[g][e].as_ref().map(|signals| &signals[s]) else { continue };
            let sequence = &self.groups[g].episodes[e].sequences[s];
            let old = match self.answers.now {
                Some(_) => now(&self.groups[g], self.answers, *at, sequence)?,
                None => sequence.logp(),
            };
            rows.push(StepRow {
                trained,
                logp: old,
                logp_sampler: Some(sequence.logp()),
                entropy: self.answers.now_of(*at).map(|v| v.entropy.as_slice()),
                advantage: &signal.advantage,
            });
        }
        let chosen = if select.is_active() { select.choose(&rows, self.seed())? } else { loss::Chosen::default() };
        let kept = [chosen.keep, correction.select(&rows)];
        for (row, (g, e, s)) in places.into_iter().enumerate() {
            let Some(signal) = all[g][e].as_mut().map(|signals| &mut signals[s]) else { continue };
            for kept in kept.iter().flatten() {
                let left_out = signal.weight.iter_mut().zip(&kept[row]).filter(|(_, kept)| !**kept);
                left_out.for_each(|(weight, _)| *weight = 0.0);
            }
            signal.pull = chosen.pull.as_ref().map(|pull| pull[row].clone());
        }
        Ok(())
    }

    /// What chance there is in a selection comes from the step's own episodes alone, whatever their order.
    fn seed(&self) -> u64 {
        let keys = self.groups.iter().flat_map(|g| &g.episodes).map(|e| &e.key);
        let bits = |key: &episode::EpisodeKey| {
            Stream::new("select", &[key.step, key.task.bits(), u64::from(key.sample)]).key()
        };
        keys.fold(0, |all, key| all ^ bits(key))
    }
}

/// A number at every sampled token, 0 elsewhere.
fn each(sequence: &Sequence, value: f32) -> Vec<f32> {
    sequence.sampled().iter().map(|sampled| if *sampled { value } else { 0.0 }).collect()
}

pub(crate) fn reference<'a>(
    group: &Group,
    answers: &'a Answers,
    at: Place,
    sequence: &Sequence,
) -> Result<&'a [f32], AlgoError> {
    whole("reference", answers.reference_of(at), group, at, sequence.len())
}

pub(crate) fn now<'a>(
    group: &Group,
    answers: &'a Answers,
    at: Place,
    sequence: &Sequence,
) -> Result<&'a [f32], AlgoError> {
    whole("now", answers.now_of(at).map(|v| v.logp.as_slice()), group, at, sequence.len())
}

/// An answer that has as many numbers as are needed.
pub(crate) fn whole<'a>(
    request: &'static str,
    found: Option<&'a [f32]>,
    group: &Group,
    (_, episode, at): Place,
    needed: usize,
) -> Result<&'a [f32], AlgoError> {
    match found {
        Some(values) if values.len() == needed => Ok(values),
        _ => Err(AlgoError::Answer {
            request,
            task: group.task.id.clone(),
            episode,
            sequence: at,
            got: found.map_or_else(|| "nothing".to_owned(), |values| values.len().to_string()),
            needed,
        }),
    }
}

fn why_nothing(episode: &Episode, worth: Option<&Worth>) -> Option<Why> {
    match (&episode.outcome, worth) {
        (Outcome::Failed { cause, .. }, _) => Some(Why::Failed { class: cause.class.clone() }),
        (Outcome::Cancelled, _) => Some(Why::Cancelled),
        (Outcome::Graded { .. }, _) if episode.n_sampled() == 0 => Some(Why::NothingSampled),
        (Outcome::Graded { .. }, Some(worth)) => worth.idle.clone(),
        (Outcome::Graded { .. }, None) => None,
    }
}

fn stats(group: &Group) -> GroupStats {
    let rewards = group.rewards();
    let some = |value: f64| (!rewards.is_empty()).then_some(value);
    let std = if all_equal(&rewards) { 0.0 } else { spread(&rewards, Spread::Population) };
    GroupStats {
        n_episodes: group.episodes.len(),
        n_graded: rewards.len(),
        reward_mean: some(mean(&rewards)),
        reward_std: some(std),
    }
}

pub(crate) fn finite(what: &'static str, group: &Group, episode: usize, value: f64) -> Result<(), AlgoError> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(AlgoError::NotFinite { what, task: group.task.id.clone(), episode, value }),
    }
}
