//! One attempt, and the attempts at one task in one step.

use serde::{Deserialize, Serialize};

use crate::{Conduct, Message, Outcome, Sequence, StopReason, Task, TaskId};

/// What makes an episode's random stream its own: independent of batch, thread and time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EpisodeKey {
    /// The step that was being collected when it began; with `max_lag` a later one may train on it.
    pub step: u64,
    /// The task.
    pub task: TaskId,
    /// Which of the group's attempts, from 0.
    pub sample: u32,
}

/// One attempt at one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Step, task and sample.
    pub key: EpisodeKey,
    /// The tokens; a second sequence begins where the context is no longer an extension of what was sampled.
    pub sequences: Vec<Sequence>,
    /// What was said, as text, for people and graders; the tokens are the record.
    pub messages: Vec<Message>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why the policy stopped.
    pub stop: StopReason,
    /// What each sampled turn was rewarded with on its own, in reward points, as part of the reward and not on top of it;
    /// empty where turns have no rewards of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_rewards: Vec<f64>,
    /// What it did with tools.
    #[serde(default, skip_serializing_if = "Conduct::is_empty")]
    pub conduct: Conduct,
}

impl Episode {
    /// Number of tokens the policy sampled, over all sequences.
    pub fn n_sampled(&self) -> usize {
        self.sequences.iter().map(Sequence::n_sampled).sum()
    }

    /// The policy's last message, empty when it said nothing.
    pub fn reply(&self) -> &str {
        self.messages.iter().rev().find(|m| m.role == crate::Role::Assistant).map_or("", |m| &m.content)
    }
}

/// The episodes of one task in one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The task.
    pub task: Task,
    /// Its attempts, by `sample`.
    pub episodes: Vec<Episode>,
}

impl Group {
    /// Rewards of the graded episodes, in order; failures and cancellations are left out.
    pub fn rewards(&self) -> Vec<f64> {
        self.episodes.iter().filter_map(|e| e.outcome.reward()).collect()
    }

    /// Whether the graded rewards are not all the same: without spread a group-relative algorithm learns nothing.
    pub fn has_spread(&self) -> bool {
        let rewards = self.rewards();
        rewards.windows(2).any(|w| w[0] != w[1])
    }
}
