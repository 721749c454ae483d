//! Why an algorithm could not do what it was asked.

use episode::TaskId;
use loss::LossError;

use crate::Settings;

/// Why an algorithm could not do what it was asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AlgoError {
    /// There is no algorithm of this name.
    #[error("no algorithm `{got}`, needed one of {known}")]
    Unknown {
        /// What was asked for.
        got: String,
        /// The names there are.
        known: String,
    },
    /// The group size can teach nothing with this algorithm.
    #[error("`{algorithm}` needs a group size of at least {needed}, got {got}{hint}")]
    GroupSize {
        /// Which algorithm.
        algorithm: &'static str,
        /// The least it works with.
        needed: usize,
        /// What was given.
        got: usize,
        /// What to do instead; empty or a clause.
        hint: &'static str,
    },
    /// A setting is out of its range.
    #[error("`{key}` is {got}, needed {needed}")]
    Setting {
        /// Which setting.
        key: &'static str,
        /// What was given.
        got: String,
        /// What is possible.
        needed: &'static str,
    },
    /// A setting is given that another one makes useless.
    #[error("`{key}` does nothing with {with}: leave it out, or {instead}")]
    Unused {
        /// The useless one.
        key: &'static str,
        /// What makes it so.
        with: String,
        /// What would give it an effect.
        instead: &'static str,
    },
    /// A setting is left out that another one needs.
    #[error("{with} needs `{key}`, got none")]
    Needed {
        /// The one that is missing.
        key: &'static str,
        /// What needs it.
        with: String,
    },
    /// A setting takes something off rewards that must not become negative.
    #[error("`{key}` can make a reward negative, which `max_rl` cannot read: use {instead}")]
    Negative {
        /// Which setting.
        key: &'static str,
        /// What goes instead.
        instead: &'static str,
    },
    /// A reward is negative where its mean is to be divided by.
    #[error("reward of episode {episode} of task `{task}` is {value}, needed at least 0 with `max_rl`")]
    NegativeReward {
        /// Which task.
        task: TaskId,
        /// Which episode of the group, from 0.
        episode: usize,
        /// What it was.
        value: f64,
    },
    /// An episode has rewards by turn, but not one for each.
    #[error("episode {episode} of task `{task}` has {got} turn rewards, needed {needed}, one a sampled turn")]
    TurnRewards {
        /// Which task.
        task: TaskId,
        /// Which episode of the group, from 0.
        episode: usize,
        /// How many it has.
        got: usize,
        /// Its sampled turns.
        needed: usize,
    },
    /// The loss refuses its settings.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// A number that must be finite is not.
    #[error("{what} of episode {episode} of task `{task}` is {value}, needed a finite number")]
    NotFinite {
        /// Which quantity.
        what: &'static str,
        /// Which task.
        task: TaskId,
        /// Which episode of the group, from 0.
        episode: usize,
        /// What it was.
        value: f64,
    },
    /// A request was not answered for all it asked.
    #[error(
        "the answer to `{request}` has {got} for sequence {sequence} of episode {episode} of task `{task}`, needed {needed} numbers"
    )]
    Answer {
        /// Which request.
        request: &'static str,
        /// Which task.
        task: TaskId,
        /// Which episode of the group, from 0.
        episode: usize,
        /// Which sequence of the episode, from 0.
        sequence: usize,
        /// What there is: nothing, or a number of numbers.
        got: String,
        /// The sequence's number of tokens.
        needed: usize,
    },
}

impl AlgoError {
    /// The task and the episode of its group that are to blame, where one is.
    pub fn place(&self) -> Option<(&TaskId, usize)> {
        match self {
            AlgoError::NegativeReward { task, episode, .. }
            | AlgoError::TurnRewards { task, episode, .. }
            | AlgoError::NotFinite { task, episode, .. }
            | AlgoError::Answer { task, episode, .. } => Some((task, *episode)),
            _ => None,
        }
    }

    pub(crate) fn unknown(got: &str) -> Self {
        let known: Vec<String> = Settings::NAMES.iter().map(|name| format!("`{name}`")).collect();
        AlgoError::Unknown { got: got.to_owned(), known: known.join(", ") }
    }
}
