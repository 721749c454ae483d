//! The same questions answered by two policies, for a person to read.

use episode::{Episode, Message, Task, TaskId};
use serde::{Deserialize, Serialize};

/// One policy's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What it said.
    pub reply: String,
    /// Its reward, or none when it was not graded.
    pub reward: Option<f64>,
    /// Whether it counts as solved.
    pub solved: bool,
}

impl Answer {
    /// The answer an episode gave, solved at the criteria's reward.
    pub fn new(episode: &Episode, criteria: &crate::Criteria<'_>) -> Self {
        Answer {
            reply: episode.reply().to_string(),
            reward: episode.outcome.reward(),
            solved: criteria.is_solved(episode),
        }
    }
}

/// One question with both answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The task.
    pub task: TaskId,
    /// What was asked.
    pub messages: Vec<Message>,
    /// What the grader compares with, as it would be shown.
    pub gold: String,
    /// The untrained policy's answer.
    pub before: Option<Answer>,
    /// The trained policy's answer.
    pub after: Option<Answer>,
}

impl Question {
    /// A task as a question without answers yet.
    pub fn new(task: &Task) -> Self {
        let gold = task.gold.as_str().map_or_else(|| task.gold.to_string(), str::to_string);
        Question { task: task.id.clone(), messages: task.messages.clone(), gold, before: None, after: None }
    }
}

/// The stored form: `samples.json` of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// The questions, in the order they are shown.
    pub questions: Vec<Question>,
}
