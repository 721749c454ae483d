//! What an algorithm answers: worth by token, the loss to descend, and what was left out and why.

use std::fmt;
use std::ops::Range;

use episode::{Group, Sequence};
use loss::{Loss, Signal};
use serde::{Deserialize, Serialize};

/// What the episodes of a step teach.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// What to descend.
    pub loss: Loss,
    /// How the step is cut into updates.
    pub plan: Plan,
    /// One a group, in the order of the groups.
    pub groups: Vec<GroupSignals>,
    /// What teaches nothing, and why.
    pub dropped: Vec<Dropped>,
}

impl Signals {
    /// The sequences of some groups with what they are worth, ready for an update.
    ///
    /// - Shapes: by group and sequence; sequences of dropped episodes are left out.
    pub fn batch<'a>(&'a self, groups: &'a [Group], range: Range<usize>) -> Vec<Vec<(&'a Sequence, &'a Signal)>> {
        let pairs = groups.iter().zip(&self.groups).skip(range.start).take(range.len());
        pairs.map(|(group, signals)| signals.sequences(group)).collect()
    }

    /// Whether any group teaches anything.
    pub fn has_signal(&self) -> bool {
        self.groups.iter().any(|g| g.has_signal)
    }
}

/// What the episodes of one task teach.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSignals {
    /// By episode and sequence; absent for an episode that failed or was cancelled.
    pub episodes: Vec<Option<Vec<Signal>>>,
    /// What its rewards look like.
    pub stats: GroupStats,
    /// Whether any derivative of it may differ from 0.
    pub has_signal: bool,
}

impl GroupSignals {
    fn sequences<'a>(&'a self, group: &'a Group) -> Vec<(&'a Sequence, &'a Signal)> {
        let graded = group.episodes.iter().zip(&self.episodes);
        let signals = graded.filter_map(|(episode, signals)| Some(episode.sequences.iter().zip(signals.as_ref()?)));
        signals.flatten().collect()
    }
}

/// What the rewards of a group look like, over its graded episodes, as they were graded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupStats {
    /// Episodes of the group.
    pub n_episodes: usize,
    /// Those that were graded.
    pub n_graded: usize,
    /// Mean reward; absent without a graded episode.
    pub reward_mean: Option<f64>,
    /// Population spread of the rewards, exactly 0 when they are all the same; absent without a graded episode.
    pub reward_std: Option<f64>,
}

/// Something that teaches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Which group, from 0.
    pub group: usize,
    /// Which of its episodes, from 0; absent for the whole group.
    pub episode: Option<usize>,
    /// Why.
    pub why: Why,
}

/// Why something teaches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Why {
    /// The system failed: in no statistic and no denominator.
    Failed {
        /// The class of its cause.
        class: String,
    },
    /// It was cancelled: in no statistic and no denominator.
    Cancelled,
    /// It has a reward but no sampled token: in the group's statistics.
    NothingSampled,
    /// A limit cut it off and the settings mask it: in the statistics and the denominator.
    Truncated,
    /// Too few graded episodes for a comparison.
    TooFewGraded {
        /// The least that is needed.
        needed: usize,
        /// Those there are.
        got: usize,
        /// All episodes of the group.
        of: usize,
    },
    /// All graded episodes have the same reward, so that comparing them teaches nothing: in the denominator.
    NoSpread,
    /// Its reward is below what is learned: in no denominator.
    BelowThreshold,
    /// It is in no pair: in no denominator.
    Unpaired,
    /// There is neither another success nor feedback to show a teacher: in the denominator.
    NoContext,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Failed { class } => write!(f, "failed with `{class}`"),
            Why::Cancelled => f.write_str("cancelled"),
            Why::NothingSampled => f.write_str("no sampled token"),
            Why::Truncated => f.write_str("cut off by a limit and masked"),
            Why::TooFewGraded { needed, got, of } => {
                write!(f, "needed at least {needed} graded episodes, got {got} of {of}")
            }
            Why::NoSpread => f.write_str("all graded episodes have the same reward"),
            Why::BelowThreshold => f.write_str("reward below the threshold"),
            Why::Unpaired => f.write_str("in no pair"),
            Why::NoContext => f.write_str("neither another success nor feedback to show a teacher"),
        }
    }
}

/// How a step is cut into updates. Mini-batches count groups, so neither the length of episodes nor the number of their
/// turns changes how many updates there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Passes over the step.
    pub epochs: u32,
    /// Groups in an update; absent for all of them.
    pub minibatch_groups: Option<u32>,
}

impl Plan {
    /// One update for the whole step.
    pub const ONE: Plan = Plan { epochs: 1, minibatch_groups: None };

    /// Which groups each update of a step takes, in order; the last of an epoch may have fewer.
    ///
    /// - Holds: each epoch takes every group once; the order of groups is the step's own, which the curriculum has
    ///   already drawn at random.
    pub fn batches(&self, n_groups: usize) -> Vec<Range<usize>> {
        let size = self.minibatch_groups.map_or(n_groups, |n| n as usize).max(1);
        let epoch = (0..n_groups).step_by(size).map(|start| start..n_groups.min(start + size));
        (0..self.epochs).flat_map(|_| epoch.clone()).collect()
    }
}
