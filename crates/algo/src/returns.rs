//! Credit token by token: rewards where they were earned, and what follows from them over sampled tokens alone.
//!
//! An episode is one chain of its sampled tokens, over turns and sequences: what lies between them was not decided by the
//! policy and is stepped over. N sampled tokens of an episode

use episode::{Episode, Role};

use crate::advantage::{all_equal, mean, spread};
use crate::step::{Step, Worth, sampled};
use crate::{AlgoError, Spread};

/// Rewards of an episode's sampled tokens: each turn's own at its last one, what is left of the episode's reward at the very
/// last one, and a KL in the reward at every one.
///
/// - Shapes: `[N]`.
/// - Holds: without a KL they sum to `reward`, up to rounding.
/// - Errors: [`AlgoError::TurnRewards`] when there is not one for each sampled turn; [`AlgoError::NotFinite`].
pub(crate) fn token_rewards(step: &Step<'_>, (g, e): (usize, usize), reward: f64) -> Result<Vec<f64>, AlgoError> {
    let (group, episode) = (&step.groups[g], &step.groups[g].episodes[e]);
    let mut rewards = vec![0.0; episode.n_sampled()];
    let ends = turn_ends(episode);
    let turns = &episode.turn_rewards;
    if !turns.is_empty() && turns.len() != ends.len() {
        let (got, needed) = (turns.len(), ends.len());
        return Err(AlgoError::TurnRewards { task: group.task.id.clone(), episode: e, got, needed });
    }
    for (end, own) in ends.iter().zip(turns) {
        crate::assemble::finite("turn reward", group, e, *own)?;
        rewards[*end] += own;
    }
    if let Some(last) = rewards.last_mut() {
        *last += reward - turns.iter().sum::<f64>();
    }
    if step.common.kl.in_reward() {
        for (reward, divergence) in rewards.iter_mut().zip(step.divergences(g, e)?) {
            *reward -= step.common.kl.coefficient * divergence;
        }
    }
    Ok(rewards)
}

/// Places, among an episode's sampled tokens, of the last one of each sampled turn.
fn turn_ends(episode: &Episode) -> Vec<usize> {
    let (mut ends, mut n) = (Vec::new(), 0);
    for sequence in &episode.sequences {
        for turn in sequence.turns().iter().filter(|t| t.role == Role::Assistant) {
            let own = sequence.sampled()[turn.span.clone()].iter().filter(|s| **s).count();
            n += own;
            if own > 0 {
                ends.push(n - 1);
            }
        }
    }
    ends
}

/// What follows each token: its reward and all later ones, discounted.
///
/// - Shapes: `[N]` → `[N]`.
pub(crate) fn to_go(rewards: &[f64], gamma: f64) -> Vec<f64> {
    let mut all = rewards.to_vec();
    for n in (1..all.len()).rev() {
        all[n - 1] += gamma * all[n];
    }
    all
}

/// Generalised advantages: how much better each token was than its value, over the rewards and values that followed.
///
/// - Shapes: `rewards`, `values` `[N]` → `[N]`; the value after the last token is 0, an episode being over.
/// - Source: arXiv:1506.02438.
pub(crate) fn generalised(rewards: &[f64], values: &[f64], gamma: f64, lambda: f64) -> Vec<f64> {
    let mut all = vec![0.0; rewards.len()];
    let (mut next_value, mut next) = (0.0, 0.0);
    for n in (0..rewards.len()).rev() {
        next = rewards[n] + gamma * next_value - values[n] + gamma * lambda * next;
        next_value = values[n];
        all[n] = next;
    }
    all
}

/// Centres and scales the advantages of all tokens of a step that weigh anything, to a mean of 0 and a spread of 1.
///
/// - Holds: equal advantages give exact zeros.
pub(crate) fn whiten(tokens: &mut [(Vec<f64>, bool)]) {
    let all: Vec<f64> = tokens.iter().filter(|(_, weighs)| *weighs).flat_map(|(own, _)| own).copied().collect();
    let (equal, centre) = (all_equal(&all), mean(&all));
    // Over n, and as small an addition as keeps out a division by 0: as the public implementations have it.
    let scale = spread(&all, Spread::Population) + 1e-8;
    // An infinite spread would turn every advantage into a silent 0; not a number is refused with its place.
    let scale = if scale.is_finite() { scale } else { f64::NAN };
    for advantage in tokens.iter_mut().flat_map(|(own, _)| own) {
        *advantage = if equal { 0.0 } else { (*advantage - centre) / scale };
    }
}

/// Advantages by token of a step's graded episodes, `[N]` each with whether they weigh anything, in order.
pub(crate) type ByToken = Vec<(Vec<f64>, bool)>;

/// Computes advantages by token for each graded episode, and whitens them over the step if asked.
///
/// - Shapes: `advantages` gives `[N]` for an episode and its rewards `[N]`.
pub(crate) fn by_token(
    step: &Step<'_>,
    whitened: bool,
    mut advantages: impl FnMut((usize, usize), Vec<f64>) -> Result<Vec<f64>, AlgoError>,
) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
    let mut tokens: ByToken = Vec::new();
    for (g, rewards) in step.rewards.iter().enumerate() {
        for (e, reward) in rewards.iter().enumerate() {
            let Some(reward) = reward else { continue };
            let own = advantages((g, e), token_rewards(step, (g, e), *reward)?)?;
            tokens.push((own, step.idle(&step.groups[g].episodes[e]).is_none()));
        }
    }
    if whitened {
        whiten(&mut tokens);
    }
    let mut tokens = tokens.into_iter();
    let mut all = Vec::with_capacity(step.groups.len());
    for (group, rewards) in step.groups.iter().zip(&step.rewards) {
        let worth = |(episode, reward): (&Episode, &Option<f64>)| {
            let (own, _) = reward.and_then(|_| tokens.next())?;
            Some(Worth { idle: step.idle(episode), ..Worth::each(lay_out(episode, &own)) })
        };
        all.push(group.episodes.iter().zip(rewards).map(worth).collect());
    }
    Ok(all)
}

/// Puts what belongs to an episode's sampled tokens where they are, 0 elsewhere.
///
/// - Shapes: `[N]` → `[T]` by sequence.
pub(crate) fn lay_out(episode: &Episode, own: &[f64]) -> Vec<Vec<f32>> {
    let mut own = own.iter();
    let mut all = Vec::with_capacity(episode.sequences.len());
    for sequence in &episode.sequences {
        let mut out = vec![0.0; sequence.len()];
        for t in sampled(sequence) {
            out[t] = own.next().map_or(0.0, |value| *value as f32);
        }
        all.push(out);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b8_generalised_advantages_over_sampled_tokens() {
        // γ .9, λ .8, the token between the two was not sampled.
        let got = generalised(&[0.0, 1.0], &[0.5, 0.25], 0.9, 0.8);
        assert!((got[0] - 0.265).abs() < 1e-15 && (got[1] - 0.75).abs() < 1e-15, "{got:?}");
        // With λ = 1 they are what followed, less the value.
        let (rewards, values) = ([0.5, 0.0, -1.0, 2.0], [0.1, 0.2, 0.3, 0.4]);
        let got = generalised(&rewards, &values, 0.9, 1.0);
        for ((got, to_go), value) in got.iter().zip(to_go(&rewards, 0.9)).zip(values) {
            assert!((got - (to_go - value)).abs() < 1e-12);
        }
    }

    #[test]
    fn what_follows_is_discounted() {
        assert_eq!(to_go(&[1.0, 0.0, 4.0], 0.5), [2.0, 2.0, 4.0]);
        assert!(to_go(&[], 0.5).is_empty());
    }

    #[test]
    fn b11_whitening_is_over_the_whole_step_and_leaves_out_what_weighs_nothing() {
        let mut tokens = vec![(vec![1.0, 2.0], true), (vec![100.0], false), (vec![3.0], true)];
        whiten(&mut tokens);
        let spread = (2.0f64 / 3.0).sqrt() + 1e-8;
        assert_eq!(tokens[0].0, [-1.0 / spread, 0.0]);
        assert_eq!(tokens[2].0, [1.0 / spread]);
        let mut equal = vec![(vec![0.1; 5], true), (vec![0.1; 3], true)];
        whiten(&mut equal);
        assert!(equal.iter().flat_map(|(own, _)| own).all(|a| *a == 0.0));
    }
}
