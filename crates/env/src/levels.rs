//! What environments with levels of difficulty share: checking them, mixing them by weight, and filling a side with tasks.

use std::collections::{BTreeMap, BTreeSet};

use episode::Task;
use episode::random::Stream;
use serde::Serialize;
use serde_json::json;

use crate::draw::Draw;
use crate::{EnvError, Split};

/// Refuses settings without a level or with a weight that is none, and those without a training task.
pub(crate) fn check<L: Copy + Serialize>(env: &str, levels: &BTreeMap<L, f64>, n_train: usize) -> Result<(), EnvError> {
    let refuse = |key: String, reason: String| Err(EnvError::Setting { env: env.to_owned(), key, reason });
    if levels.is_empty() {
        return refuse("levels".to_owned(), "is empty, needed at least 1 level with its weight".to_owned());
    }
    for (level, weight) in levels {
        if !(weight.is_finite() && *weight > 0.0) {
            let level = json!(level);
            let key = format!("levels.{}", level.as_str().unwrap_or_default());
            return refuse(key, format!("is {weight}, needed a number above 0"));
        }
    }
    if n_train == 0 {
        return refuse("n_train".to_owned(), "is 0, needed at least 1".to_owned());
    }
    Ok(())
}

/// Tasks of one side, none twice, the levels mixed by weight. `make` makes one of a level, or none where the draw gives none or
/// one of the other side.
///
/// - Holds: a function of `purpose`, `seed` and what `make` does with its draws.
/// - Errors: [`EnvError::TooFew`] after `tries` draws for each task wanted.
pub(crate) fn fill<L: Copy + Ord>(
    (env, purpose): (&str, &str),
    (split, n, tries): (Split, usize, u64),
    (levels, seed): (&BTreeMap<L, f64>, u64),
    mut make: impl FnMut(L, &mut Draw) -> Option<Task>,
) -> Result<Vec<Task>, EnvError> {
    let total: f64 = levels.values().sum();
    let (mut tasks, mut seen) = (Vec::with_capacity(n), BTreeSet::new());
    for index in 0..(n as u64).saturating_mul(tries) {
        if tasks.len() == n {
            break;
        }
        let mut draw = Draw::new(Stream::new(&format!("{purpose} {split}"), &[seed, index]));
        let mut at = draw.uniform() * total;
        let found = levels.iter().find(|(_, weight)| {
            at -= *weight;
            at < 0.0
        });
        let Some((level, _)) = found.or(levels.last_key_value()) else { break };
        tasks.extend(make(*level, &mut draw).filter(|task| seen.insert(task.id.clone())));
    }
    if tasks.len() < n {
        let (got, detail) = (tasks.len(), "its levels have no more".to_owned());
        return Err(EnvError::TooFew { env: env.to_owned(), split, needed: n, got, detail });
    }
    Ok(tasks)
}

/// The side of what is told by a text: one of five is held out.
pub(crate) fn side_of(purpose: &str, text: &str) -> Split {
    match Stream::new(&format!("{purpose} side {text}"), &[]).below(0, 5) {
        0 => Split::HeldOut,
        _ => Split::Train,
    }
}
