//! What is told of a step whose tokens older policies may have sampled: how old they are, how the rollouts ran ahead, and
//! who was trained on when.

use algo::Signals;
use episode::{Group, Sequence};
use loss::{Correction, Term};
use policy::lag;
use rollout::stream::{Flown, Taken};
use serde_json::{Map, Value, json};

use crate::source::Collected;

/// The file of schedules, a line a step.
pub(crate) const SCHEDULE: &str = "schedule.jsonl";

/// How a step came by its groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedule {
    /// Places in the curriculum that it took, those of groups that were left out included.
    pub places: Vec<u64>,
    /// Positions that the sampler went through.
    pub n_positions: u64,
    /// Those at which the step had enough groups and waited for one that no later step may take.
    pub n_held_up: u64,
    /// Where the groups behind the fresh ones were replayed from.
    pub replayed: Vec<String>,
}

impl Schedule {
    pub(crate) fn of(taken: &Taken) -> Schedule {
        let Taken { places, n_positions, n_held_up, .. } = taken;
        let (n_positions, n_held_up) = (*n_positions, *n_held_up);
        Schedule { places: places.clone(), n_positions, n_held_up, replayed: Vec::new() }
    }

    /// Adds its numbers to a step's.
    pub(crate) fn measure(&self, collected: &Collected, version: u32, metrics: &mut Map<String, Value>) {
        let sequences = collected.groups.iter().flat_map(|g| &g.episodes).flat_map(|e| &e.sequences);
        let lags: Map<String, Value> = lag(sequences, version).iter().map(|(l, n)| (l.to_string(), json!(n))).collect();
        metrics.insert("lags".to_owned(), lags.into());
        metrics.insert("held_up".to_owned(), self.n_held_up.into());
        metrics.insert("n_in_flight".to_owned(), collected.flight.n_aside().into());
        metrics.insert("n_queued".to_owned(), collected.flight.n_queued().into());
        let n = collected.groups.len();
        let share = (n > 0).then(|| (n - collected.n_fresh) as f64 / n as f64);
        metrics.insert("replay_share".to_owned(), share.map_or(Value::Null, Value::from));
    }

    /// Its line of `schedule.jsonl`.
    pub(crate) fn line(&self, collected: &Collected, version: u32) -> Value {
        let group = |(index, group): (usize, &Group)| {
            let from = index.checked_sub(collected.n_fresh).and_then(|i| self.replayed.get(i));
            let episodes: Vec<Vec<(u32, u64)>> =
                group.episodes.iter().map(|e| e.sequences.iter().flat_map(runs).collect()).collect();
            json!({ "task": group.task.id, "from": from, "episodes": episodes })
        };
        let in_flight: Vec<Value> = collected
            .flight
            .groups
            .iter()
            .map(|g| {
                let n_sampled = g.attempts.iter().map(|a| match a {
                    Flown::Waiting => None,
                    Flown::Aside(attempt) => Some(attempt.sequences.iter().map(Sequence::n_sampled).sum::<usize>()),
                    Flown::Ended(episode) => Some(episode.n_sampled()),
                });
                json!({ "place": g.place, "n_sampled": n_sampled.collect::<Vec<_>>() })
            })
            .collect();
        json!({
            "version": version,
            "places": self.places,
            "n_positions": self.n_positions,
            "groups": collected.groups.iter().enumerate().map(group).collect::<Vec<_>>(),
            "in_flight": in_flight,
        })
    }
}

/// What a person should know of a step that takes tokens of older policies for the policy's own; nothing when a rule
/// weighs them, or the loss was made for them.
pub(crate) fn uncorrected(signals: &Signals, collected: &Collected, version: u32) -> Option<String> {
    let sequences = collected.groups.iter().flat_map(|g| &g.episodes).flat_map(|e| &e.sequences);
    let oldest = lag(sequences, version).into_keys().next_back().unwrap_or(0);
    let plain = matches!(signals.loss.term, Term::PolicyGradient(_) | Term::Reinforce(_));
    let rule = signals.loss.correction == Correction::default();
    (oldest > 0 && plain && rule).then(|| {
        format!(
            "tokens up to {oldest} versions old are trained on as if the policy had just sampled them: \
             `algorithm.correction.rule` is `none`"
        )
    })
}

/// The versions of a sequence's sampled tokens, in runs of one version and their length.
fn runs(sequence: &Sequence) -> Vec<(u32, u64)> {
    let mut runs: Vec<(u32, u64)> = Vec::new();
    for (version, _) in sequence.version().iter().zip(sequence.sampled()).filter(|(_, sampled)| **sampled) {
        match runs.last_mut() {
            Some((last, n)) if last == version => *n += 1,
            _ => runs.push((*version, 1)),
        }
    }
    runs
}
