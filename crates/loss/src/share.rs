//! Tokens that share one loss: those of an episode, and those of a pair.

use std::collections::BTreeMap;

use crate::exp::{log_sigmoid, sigmoid};
use crate::term::{TermGroup, View};

/// Places of rows in the group.
pub(crate) type Places = Vec<usize>;

/// The rows of each episode that has a live token, in the order of the episodes.
pub(crate) fn episodes(rows: &[View<'_>]) -> Vec<Places> {
    let mut episodes: BTreeMap<u32, Places> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate().filter(|(_, row)| row.live().next().is_some()) {
        episodes.entry(row.row.episode).or_default().push(place);
    }
    episodes.into_values().collect()
}

/// The chosen and the rejected rows of each pair that has a live token on both sides, in the order of the pairs: of a pair
/// with one side there is nothing to prefer.
pub(crate) fn pairs(rows: &[View<'_>]) -> Vec<[Places; 2]> {
    let mut pairs: BTreeMap<u32, [Places; 2]> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate().filter(|(_, row)| row.live().next().is_some()) {
        if let Some(pair) = row.row.pair {
            pairs.entry(pair.index).or_default()[usize::from(!pair.chosen)].push(place);
        }
    }
    pairs.into_values().filter(|sides| sides.iter().all(|side| !side.is_empty())).collect()
}

/// Σ over the live tokens of some rows.
pub(crate) fn sum<'a>(rows: &[View<'a>], places: &[usize], token: impl Fn(&View<'a>, usize) -> f64) -> f64 {
    let mut sum = 0.0;
    for row in places.iter().map(|place| &rows[*place]) {
        row.live().for_each(|t| sum += token(row, t));
    }
    sum
}

/// Spreads a loss evenly over the live tokens of some rows, so that it is their sum.
///
/// Returns what the loss is multiplied with in the reduced one: the mean scale of those tokens.
pub(crate) fn spread(rows: &[View<'_>], places: &[usize], loss: f64, out: &mut TermGroup) -> f64 {
    let n = sum(rows, places, |_, _| 1.0);
    for place in places {
        for t in rows[*place].live() {
            out.rows[*place].loss[t] = loss / n;
        }
    }
    sum(rows, places, |row, t| row.scale[t]) / n
}

/// −log σ(m) of a margin m, and its derivative −σ(−m).
pub(crate) fn logistic(margin: f64) -> (f64, f64) {
    (-log_sigmoid(margin), -sigmoid(-margin))
}
