//! From rewards and worth by episode to signals by token, the same for every algorithm that gives an episode one worth.

use episode::{Episode, Group, Outcome, Sequence};
use loss::{Loss, Old, Signal};

use crate::advantage::{all_equal, mean, spread};
use crate::{
    AlgoError, Answers, Dropped, GroupSignals, GroupStats, KlSettings, Now, Plan, Request, Signals, Spread, Truncated,
    Why,
};

/// What an episode is worth, and what it weighs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worth {
    pub(crate) advantage: f64,
    pub(crate) weight: f32,
}

/// What each graded episode is rewarded with once truncation and a KL in the reward are paid for; absent for the others.
pub(crate) fn rewards(
    groups: &[Group],
    answers: &Answers,
    truncated: (Truncated, Option<f64>),
    kl: &KlSettings,
) -> Result<Vec<Vec<Option<f64>>>, AlgoError> {
    let mut all = Vec::with_capacity(groups.len());
    for (g, group) in groups.iter().enumerate() {
        let mut rewards = Vec::with_capacity(group.episodes.len());
        for (e, episode) in group.episodes.iter().enumerate() {
            let Some(mut reward) = episode.outcome.reward() else {
                rewards.push(None);
                continue;
            };
            if let ((Truncated::Penalise, Some(penalty)), true) = (truncated, Truncated::applies(episode)) {
                reward -= penalty;
            }
            if kl.in_reward() {
                reward -= kl.coefficient * divergence(group, answers, kl, (g, e))?;
            }
            finite("reward", group, e, reward)?;
            rewards.push(Some(reward));
        }
        all.push(rewards);
    }
    Ok(all)
}

/// The estimated divergence of π_old from the reference over an episode's sampled tokens, summed.
fn divergence(group: &Group, answers: &Answers, kl: &KlSettings, at: (usize, usize)) -> Result<f64, AlgoError> {
    let mut sum = 0.0;
    for (s, sequence) in group.episodes[at.1].sequences.iter().enumerate() {
        let at = (at.0, at.1, s);
        let reference = reference(group, answers, at, sequence)?;
        let old = if answers.now.is_some() { now(group, answers, at, sequence)? } else { sequence.logp() };
        for t in (0..sequence.len()).filter(|t| sequence.sampled()[*t]) {
            sum += kl.estimator.value_and_slope(f64::from(old[t]), f64::from(reference[t])).0;
        }
    }
    Ok(sum)
}

/// What a group of episodes shares.
pub(crate) struct Assembly<'a> {
    pub(crate) groups: &'a [Group],
    pub(crate) answers: &'a Answers,
    pub(crate) loss: Loss,
    pub(crate) plan: Plan,
    /// Whether the tokens were given rather than sampled by a policy.
    pub(crate) given: bool,
    /// What is noted of whole groups.
    pub(crate) dropped: Vec<Dropped>,
}

impl Assembly<'_> {
    /// Gives every token of an episode what the episode is worth.
    ///
    /// - Shapes: `worth` by group and episode, absent for episodes that were not graded.
    pub(crate) fn finish(mut self, worth: &[Vec<Option<Worth>>]) -> Result<Signals, AlgoError> {
        let mut groups = Vec::with_capacity(self.groups.len());
        for (g, (group, worth)) in self.groups.iter().zip(worth).enumerate() {
            let mut episodes = Vec::with_capacity(worth.len());
            for (e, (episode, worth)) in group.episodes.iter().zip(worth).enumerate() {
                if let Some(why) = why_nothing(episode, *worth) {
                    self.dropped.push(Dropped { group: g, episode: Some(e), why });
                }
                episodes.push(match worth {
                    Some(worth) => Some(self.episode(g, e, *worth)?),
                    None => None,
                });
            }
            let inert = |(episode, signals): (&Episode, &Option<Vec<Signal>>)| {
                let pairs = episode.sequences.iter().zip(signals.iter().flatten());
                pairs.into_iter().all(|(sequence, signal)| self.loss.is_inert(sequence.sampled(), signal))
            };
            let has_signal = !group.episodes.iter().zip(&episodes).all(inert);
            groups.push(GroupSignals { episodes, stats: stats(group)?, has_signal });
        }
        Ok(Signals { loss: self.loss, plan: self.plan, groups, dropped: self.dropped })
    }

    fn episode(&self, g: usize, e: usize, worth: Worth) -> Result<Vec<Signal>, AlgoError> {
        let group = &self.groups[g];
        let advantage = worth.advantage as f32;
        finite("advantage", group, e, f64::from(advantage))?;
        let mut signals = Vec::new();
        for (s, sequence) in group.episodes[e].sequences.iter().enumerate() {
            let at = (g, e, s);
            let old = match (self.given, self.loss.correction.needs_forward()) {
                (true, _) => Old::Given,
                (false, true) => Old::Forward(now(group, self.answers, at, sequence)?.to_vec()),
                (false, false) => Old::Recorded,
            };
            // Kept for the metrics too when the KL went into the reward.
            let with_ref = self.loss.needs_ref() || self.answers.reference.is_some();
            let logp_ref = if with_ref { Some(reference(group, self.answers, at, sequence)?.to_vec()) } else { None };
            let each =
                |value: f32| sequence.sampled().iter().map(|sampled| if *sampled { value } else { 0.0 }).collect();
            signals.push(Signal {
                advantage: each(advantage),
                weight: each(worth.weight),
                old,
                logp_ref,
                episode: e as u32,
                ..Signal::default()
            });
        }
        Ok(signals)
    }
}

/// What is still to be asked for a KL and a correction.
pub(crate) fn requests(groups: &[Group], answers: &Answers, kl: &KlSettings, forward: bool) -> Vec<Request> {
    let graded = groups.iter().any(|g| g.episodes.iter().any(|e| e.outcome.reward().is_some()));
    let wanted = [
        (kl.active() && answers.reference.is_none(), Request::Reference),
        (forward && answers.now.is_none(), Request::Now(Now::default())),
    ];
    wanted.into_iter().filter(|(needed, _)| graded && *needed).map(|(_, request)| request).collect()
}

fn reference<'a>(
    group: &Group,
    answers: &'a Answers,
    at: (usize, usize, usize),
    sequence: &Sequence,
) -> Result<&'a [f32], AlgoError> {
    whole("reference", answers.reference_of(at), group, at, sequence)
}

fn now<'a>(
    group: &Group,
    answers: &'a Answers,
    at: (usize, usize, usize),
    sequence: &Sequence,
) -> Result<&'a [f32], AlgoError> {
    whole("now", answers.now_of(at).map(|v| v.logp.as_slice()), group, at, sequence)
}

/// An answer that has a number for each token.
fn whole<'a>(
    request: &'static str,
    found: Option<&'a [f32]>,
    group: &Group,
    (_, episode, at): (usize, usize, usize),
    sequence: &Sequence,
) -> Result<&'a [f32], AlgoError> {
    match found {
        Some(values) if values.len() == sequence.len() => Ok(values),
        _ => Err(AlgoError::Answer {
            request,
            task: group.task.id.clone(),
            episode,
            sequence: at,
            got: found.map_or_else(|| "nothing".to_owned(), |values| values.len().to_string()),
            needed: sequence.len(),
        }),
    }
}

fn why_nothing(episode: &Episode, worth: Option<Worth>) -> Option<Why> {
    match (&episode.outcome, worth) {
        (Outcome::Failed { cause, .. }, _) => Some(Why::Failed { class: cause.class.clone() }),
        (Outcome::Cancelled, _) => Some(Why::Cancelled),
        (Outcome::Graded { .. }, _) if episode.n_sampled() == 0 => Some(Why::NothingSampled),
        (Outcome::Graded { .. }, Some(worth)) if worth.weight == 0.0 => Some(Why::Truncated),
        (Outcome::Graded { .. }, _) => None,
    }
}

fn stats(group: &Group) -> Result<GroupStats, AlgoError> {
    let rewards = group.rewards();
    let some = |value: f64| (!rewards.is_empty()).then_some(value);
    let std = if all_equal(&rewards) { 0.0 } else { spread(&rewards, Spread::Population) };
    Ok(GroupStats {
        n_episodes: group.episodes.len(),
        n_graded: rewards.len(),
        reward_mean: some(mean(&rewards)),
        reward_std: some(std),
    })
}

fn finite(what: &'static str, group: &Group, episode: usize, value: f64) -> Result<(), AlgoError> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(AlgoError::NotFinite { what, task: group.task.id.clone(), episode, value }),
    }
}
