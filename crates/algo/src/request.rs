//! What an algorithm may want to know about finished groups, and what it was told.

use episode::Message;
use loss::{Teacher, TokenValues};

/// Something for each sequence, by group, episode and sequence; what it holds for episodes that were not graded, or at
/// tokens that were not sampled, is not read.
pub type PerSequence<T> = Vec<Vec<Vec<T>>>;

/// Something to compute about the groups of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Log-probabilities of every sampled token under the reference; see [`crate::Algorithm::reference`].
    Reference,
    /// What the policy thinks as the step begins, from a pass that does not read what was recorded.
    Now(Now),
    /// What the teacher thinks; whose weights the run keeps.
    Teacher(Asked),
    /// Further attempts by the policy as it is, such as a review and a second try. Each becomes a group behind those that are
    /// there, and what was answered before is asked again, since it does not cover them.
    Attempts(Vec<Further>),
}

/// Further attempts at the task of a group, in other words.
#[derive(Debug, Clone, PartialEq)]
pub struct Further {
    /// The group.
    pub of: usize,
    /// What the policy reads.
    pub messages: Vec<Message>,
    /// How many attempts; at least 1.
    pub n: usize,
}

/// What is asked of the policy as the step begins, beside log-probabilities and entropies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// The value head's estimates.
    pub value: bool,
    /// How many of the most likely tokens in the place of each sampled one; 0 for none.
    pub top_k: usize,
}

/// Whose weights the teacher has.
#[derive(Debug, Clone, PartialEq)]
pub enum TeacherRule {
    /// The policy's as the step begins.
    Current,
    /// Those the run began with.
    Frozen,
    /// After each step they move this share of the way to the policy.
    Ema(f64),
    /// Another model's: its name or path.
    Model(String),
}

/// What is asked of the teacher.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// By group and episode, what the teacher reads in place of the prompt; an absent episode is not asked about. Absent
    /// altogether, the teacher reads each episode's own prompt.
    pub contexts: Option<Vec<Vec<Option<Vec<Message>>>>>,
    /// Whether log-probabilities of the student's most likely tokens are wanted too; [`Request::Now`] named them.
    pub top: bool,
}

/// What was computed so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    /// Log-probabilities under the reference, `[T]` each.
    pub reference: Option<PerSequence<Vec<f32>>>,
    /// What the policy thinks as the step begins.
    pub now: Option<PerSequence<TokenValues>>,
    /// What the teacher thinks; absent where it was not asked.
    pub teacher: Option<PerSequence<Option<Teacher>>>,
    /// Of each group behind those that were collected, the group it is a further attempt of, in the order they were asked for.
    pub further: Vec<usize>,
    /// The policy's version as the step begins, from which lag is counted; absent where none is known.
    pub version: Option<u32>,
}

impl Answers {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Log-probabilities of one sequence under the reference, `[T]`.
    pub fn reference_of(&self, (g, e, s): (usize, usize, usize)) -> Option<&[f32]> {
        self.reference.as_ref()?.get(g)?.get(e)?.get(s).map(Vec::as_slice)
    }

    /// What the policy thought of one sequence as the step began.
    pub fn now_of(&self, (g, e, s): (usize, usize, usize)) -> Option<&TokenValues> {
        self.now.as_ref()?.get(g)?.get(e)?.get(s)
    }

    /// What the teacher thinks of one sequence.
    pub fn teacher_of(&self, (g, e, s): (usize, usize, usize)) -> Option<&Teacher> {
        self.teacher.as_ref()?.get(g)?.get(e)?.get(s)?.as_ref()
    }
}
