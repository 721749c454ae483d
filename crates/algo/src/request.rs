//! What an algorithm may want to know about finished groups, and what it was told.

use std::collections::BTreeMap;

/// Something to compute about the groups of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// Log-probabilities of every sampled token under the reference: the weights the run began with.
    RefLogp,
    /// Log-probabilities of every sampled token under the policy as the step begins, from a forward pass that does not
    /// read the recorded ones.
    OldLogp,
}

impl Request {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Request::RefLogp => "ref_logp",
            Request::OldLogp => "old_logp",
        }
    }
}

/// A number for each token, by group, episode and sequence, `[T]`; what it holds at tokens that were not sampled, and in
/// episodes that were not graded, is not read.
pub type PerToken = Vec<Vec<Vec<Vec<f32>>>>;

/// What was computed so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    tokens: BTreeMap<Request, PerToken>,
}

impl Answers {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the answer to a request.
    pub fn insert(&mut self, request: Request, answer: PerToken) {
        self.tokens.insert(request, answer);
    }

    /// Whether a request was answered.
    pub fn has(&self, request: Request) -> bool {
        self.tokens.contains_key(&request)
    }

    /// The answer for one sequence.
    pub fn sequence(&self, request: Request, group: usize, episode: usize, sequence: usize) -> Option<&[f32]> {
        self.tokens.get(&request)?.get(group)?.get(episode)?.get(sequence).map(Vec::as_slice)
    }
}
