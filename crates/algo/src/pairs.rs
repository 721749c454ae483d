//! Pairs of a better and a worse attempt at one task, from their rewards; a given pair has rewards of 1 and 0.

use episode::Group;
use loss::Pair;
use serde::{Deserialize, Serialize};

use crate::step::{Step, Worth};
use crate::{Dropped, Why};

/// Which attempts at a task are put against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairs {
    /// The best against the worst, the first of each where several are.
    BestWorst,
    /// The best against the worst, the second best against the second worst, and so on while their rewards differ: every
    /// attempt is in one pair at most.
    Ranked,
}

impl Pairs {
    /// The sides of a group's graded episodes, from their rewards in order; absent for those in no pair.
    pub(crate) fn of(self, rewards: &[f64]) -> Vec<Option<Pair>> {
        let mut order: Vec<usize> = (0..rewards.len()).collect();
        // Stable, so that of equal rewards the first comes first.
        order.sort_by(|a, b| rewards[*b].total_cmp(&rewards[*a]));
        let mut worst: Vec<usize> = (0..rewards.len()).collect();
        worst.sort_by(|a, b| rewards[*a].total_cmp(&rewards[*b]));
        let most = match self {
            Pairs::BestWorst => 1,
            Pairs::Ranked => rewards.len() / 2,
        };
        let mut sides = vec![None; rewards.len()];
        for (index, (better, worse)) in order.into_iter().zip(worst).take(most).enumerate() {
            if rewards[better] <= rewards[worse] {
                break;
            }
            let side = |chosen| Some(Pair { index: index as u32, chosen });
            (sides[better], sides[worse]) = (side(true), side(false));
        }
        sides
    }

    /// Whether a group has any pair.
    pub(crate) fn any(group: &Group) -> bool {
        group.has_spread()
    }

    /// Worth of each episode that is in a pair; the others are nowhere.
    pub(crate) fn worth(self, step: &mut Step<'_>) -> Vec<Vec<Option<Worth>>> {
        let mut all = Vec::with_capacity(step.groups.len());
        for g in 0..step.groups.len() {
            let graded = step.graded(g);
            let mut sides = self.of(&graded).into_iter();
            let whole = graded.len() >= 2 && !Pairs::any(&step.groups[g]);
            if whole {
                step.dropped.push(Dropped { group: g, episode: None, why: Why::NoSpread });
            }
            let mut group = Vec::with_capacity(step.rewards[g].len());
            for (e, reward) in step.rewards[g].iter().enumerate() {
                let pair = reward.and_then(|_| sides.next()).flatten();
                if reward.is_some() && pair.is_none() && !whole {
                    step.dropped.push(Dropped { group: g, episode: Some(e), why: Why::Unpaired });
                }
                group.push(
                    pair.map(|pair| Worth { pair: Some(pair), ..Worth::same(if pair.chosen { 1.0 } else { -1.0 }) }),
                );
            }
            all.push(group);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: Pairs, rewards: &[f64], want: &[Option<(u32, bool)>]) {
        let got: Vec<_> = pairs.of(rewards).into_iter().map(|p| p.map(|p| (p.index, p.chosen))).collect();
        assert_eq!(got, want, "{pairs:?} {rewards:?}");
    }

    #[test]
    fn the_best_is_put_against_the_worst() {
        let (better, worse) = (Some((0, true)), Some((0, false)));
        check(Pairs::BestWorst, &[1.0, 0.0], &[better, worse]);
        check(Pairs::BestWorst, &[0.5, 0.0, 1.0, 1.0, 0.0], &[None, worse, better, None, None]);
        check(Pairs::BestWorst, &[0.5, 0.5], &[None, None]);
        check(Pairs::BestWorst, &[1.0], &[None]);
        check(Pairs::BestWorst, &[], &[]);
    }

    #[test]
    fn ranked_pairs_never_share_an_attempt_nor_join_equal_rewards() {
        let (a, b) = (|chosen| Some((0, chosen)), |chosen| Some((1, chosen)));
        check(Pairs::Ranked, &[3.0, 0.0, 2.0, 1.0], &[a(true), a(false), b(true), b(false)]);
        check(Pairs::Ranked, &[1.0, 1.0, 1.0, 0.0], &[a(true), None, None, a(false)]);
        check(Pairs::Ranked, &[0.0, 0.0, 1.0, 1.0], &[a(false), b(false), a(true), b(true)]);
        check(Pairs::Ranked, &[0.5, 0.2, 0.2], &[a(true), a(false), None]);
    }
}
