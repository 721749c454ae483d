//! One step as an algorithm sees it: what every graded episode is rewarded with once its penalties are paid, and what it
//! is worth.

use episode::{Episode, Group, Sequence};
use loss::{Pair, ValueTarget};

use crate::advantage::centred;
use crate::assemble::{finite, now, reference};
use crate::method::why_nothing;
use crate::shared::Common;
use crate::{AlgoError, Answers, Dropped, Flat, Spread, Truncated, Why};

/// A group, an episode of it and a sequence of that, each from 0.
pub(crate) type Place = (usize, usize, usize);

/// What an episode is worth.
#[derive(Debug, Clone)]
pub(crate) struct Worth {
    pub(crate) advantage: Advantage,
    /// Why its tokens weigh 0, if they do.
    pub(crate) idle: Option<Why>,
    /// What a value head is to learn, by sequence.
    pub(crate) value: Option<Vec<ValueTarget>>,
    /// Its side of a pair.
    pub(crate) pair: Option<Pair>,
}

/// What the tokens of an episode are worth.
#[derive(Debug, Clone)]
pub(crate) enum Advantage {
    /// All the same.
    Same(f64),
    /// Each its own, by sequence, `[T]`.
    Each(Vec<Vec<f32>>),
}

impl Worth {
    pub(crate) fn same(advantage: f64) -> Self {
        Worth { advantage: Advantage::Same(advantage), idle: None, value: None, pair: None }
    }

    pub(crate) fn each(advantage: Vec<Vec<f32>>) -> Self {
        Worth { advantage: Advantage::Each(advantage), ..Worth::same(0.0) }
    }
}

/// One step as an algorithm sees it.
pub(crate) struct Step<'a> {
    pub(crate) groups: &'a [Group],
    pub(crate) answers: &'a Answers,
    pub(crate) common: Common,
    /// By group and episode, once penalties are paid; absent for episodes that were not graded.
    pub(crate) rewards: Vec<Vec<Option<f64>>>,
    /// What is noted of whole groups.
    pub(crate) dropped: Vec<Dropped>,
}

impl<'a> Step<'a> {
    /// Pays truncation, over-long responses and, unless it stays with its token, a KL in the reward.
    pub(crate) fn new(
        groups: &'a [Group],
        answers: &'a Answers,
        common: Common,
        by_token: bool,
    ) -> Result<Self, AlgoError> {
        let mut step = Step { groups, answers, common, rewards: Vec::with_capacity(groups.len()), dropped: Vec::new() };
        for (g, group) in groups.iter().enumerate() {
            let mut rewards = Vec::with_capacity(group.episodes.len());
            for (e, episode) in group.episodes.iter().enumerate() {
                let Some(mut reward) = episode.outcome.reward() else {
                    rewards.push(None);
                    continue;
                };
                let common = &step.common;
                if let (Truncated::Penalise, Some(penalty), true) =
                    (common.truncated, common.truncated_penalty, Truncated::applies(episode))
                {
                    reward -= penalty;
                }
                reward -= common.overlong.penalty(episode.n_sampled());
                if common.kl.in_reward() && !by_token {
                    reward -= common.kl.coefficient * step.divergences(g, e)?.iter().sum::<f64>();
                }
                finite("reward", group, e, reward)?;
                rewards.push(Some(reward));
            }
            step.rewards.push(rewards);
        }
        Ok(step)
    }

    /// The estimated divergence of π_old from the reference at each sampled token of an episode, in order.
    pub(crate) fn divergences(&self, g: usize, e: usize) -> Result<Vec<f64>, AlgoError> {
        let group = &self.groups[g];
        let mut all = Vec::new();
        for (s, sequence) in group.episodes[e].sequences.iter().enumerate() {
            let at = (g, e, s);
            let reference = reference(group, self.answers, at, sequence)?;
            let old = self.old(at, sequence)?;
            let estimate = |t| self.common.kl.estimator().value_and_slope(f64::from(old[t]), f64::from(reference[t])).0;
            all.extend(sampled(sequence).map(estimate));
        }
        Ok(all)
    }

    /// Log-probabilities under π_old as far as they are known: from a pass when there was one, else as recorded.
    pub(crate) fn old<'s>(&'s self, at: Place, sequence: &'s Sequence) -> Result<&'s [f32], AlgoError> {
        match self.answers.now {
            Some(_) => now(&self.groups[at.0], self.answers, at, sequence),
            None => Ok(sequence.logp()),
        }
    }

    /// Rewards of a group's graded episodes, in order.
    pub(crate) fn graded(&self, g: usize) -> Vec<f64> {
        self.rewards[g].iter().flatten().copied().collect()
    }

    /// Whether a group whose rewards are all equal is left out.
    pub(crate) fn leaves_out(&self, g: usize, needed: usize) -> bool {
        let why = why_nothing(&self.groups[g], &self.graded(g), needed);
        self.common.flat == Flat::Drop && why == Some(Why::NoSpread)
    }

    /// Why the tokens of an episode weigh 0 whatever it is worth, if they do.
    pub(crate) fn idle(&self, episode: &Episode) -> Option<Why> {
        let masked = self.common.truncated == Truncated::Mask && Truncated::applies(episode);
        masked.then_some(Why::Truncated)
    }

    /// Worth of each graded episode from the rewards of its group's graded episodes, the same for all its tokens.
    pub(crate) fn compare(
        &mut self,
        needed: usize,
        advantages: impl Fn(&[f64]) -> Vec<f64>,
    ) -> Vec<Vec<Option<Worth>>> {
        let mut all = Vec::with_capacity(self.groups.len());
        for (g, group) in self.groups.iter().enumerate() {
            let graded = self.graded(g);
            let why = why_nothing(group, &graded, needed);
            let left_out = self.leaves_out(g, needed);
            self.dropped.extend(why.map(|why| Dropped { group: g, episode: None, why }));
            if left_out {
                all.push(group.episodes.iter().map(|_| None).collect());
                continue;
            }
            let mut advantages = advantages(&graded).into_iter();
            let each = |(reward, episode): (&Option<f64>, &Episode)| {
                let advantage = reward.and_then(|_| advantages.next())?;
                Some(Worth { idle: self.idle(episode), ..Worth::same(advantage) })
            };
            all.push(self.rewards[g].iter().zip(&group.episodes).map(each).collect());
        }
        all
    }

    /// Worth of each graded episode by how much better it did than its group, in spreads or in reward points.
    pub(crate) fn compare_by_spread(&mut self, needed: usize) -> Vec<Vec<Option<Worth>>> {
        let (kind, eps) = self.common.spread.unwrap_or((Spread::None, None));
        self.compare(needed, |rewards| centred(rewards, kind, eps.unwrap_or(Spread::EPS)))
    }

    /// Worth of each graded episode from its own reward, the same for all its tokens.
    pub(crate) fn alone(&self, advantage: impl Fn(f64) -> f64) -> Vec<Vec<Option<Worth>>> {
        let worth = |(reward, episode): (&Option<f64>, &Episode)| {
            reward.map(|reward| Worth { idle: self.idle(episode), ..Worth::same(advantage(reward)) })
        };
        let group =
            |(rewards, group): (&Vec<Option<f64>>, &Group)| rewards.iter().zip(&group.episodes).map(worth).collect();
        self.rewards.iter().zip(self.groups).map(group).collect()
    }

    /// Worth of each graded episode.
    pub(crate) fn each(
        &self,
        worth: impl Fn(&Self, (usize, usize), f64) -> Result<Option<Worth>, AlgoError>,
    ) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        let mut all = Vec::with_capacity(self.groups.len());
        for (g, rewards) in self.rewards.iter().enumerate() {
            let mut episodes = Vec::with_capacity(rewards.len());
            for (e, reward) in rewards.iter().enumerate() {
                episodes.push(match reward {
                    Some(reward) => worth(self, (g, e), *reward)?,
                    None => None,
                });
            }
            all.push(episodes);
        }
        Ok(all)
    }
}

/// Positions of the sampled tokens of a sequence, in order.
pub(crate) fn sampled(sequence: &Sequence) -> impl Iterator<Item = usize> + '_ {
    sequence.sampled().iter().enumerate().filter(|(_, sampled)| **sampled).map(|(t, _)| t)
}
