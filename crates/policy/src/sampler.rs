//! The sampling side: jobs in, tokens with log-probabilities out.

use std::sync::Arc;

use episode::random::Stream;
use episode::{StopReason, Token};
use serde::{Deserialize, Serialize};

use crate::PolicyError;

/// How tokens are drawn. As a distribution, π is softmax(logits / temperature) with the banned tokens removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token (lowest id on a tie), and π is then the one at temperature 1.
    pub temperature: f32,
    /// Keep only the k most likely tokens; ties at the edge keep the lower id.
    pub top_k: Option<u32>,
    /// Keep the smallest set of most likely tokens whose probability reaches this.
    pub top_p: Option<f32>,
    /// Keep tokens at least this times as likely as the most likely one.
    pub min_p: Option<f32>,
    /// At most this many sampled tokens, the stop token included.
    pub max_tokens: usize,
    /// Sampling one of these ends the turn; it is part of the tokens.
    pub stop_tokens: Vec<Token>,
    /// The turn ends when its text contains one of these.
    pub stop_strings: Vec<String>,
    /// Tokens that are never sampled, such as image placeholders; part of π.
    pub banned: Vec<Token>,
}

/// A sampling setting that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// Out of its range.
    #[error("`{key}` is {got}, needed {needed}")]
    Range {
        /// Which setting.
        key: &'static str,
        /// What was given.
        got: f64,
        /// What is possible.
        needed: &'static str,
    },
    /// Every token of the vocabulary is banned.
    #[error("all {0} tokens of the vocabulary are banned")]
    AllBanned(usize),
}

impl Sampling {
    /// Plain sampling at a temperature: nothing cut off, nothing banned.
    pub fn plain(temperature: f32, max_tokens: usize, stop_tokens: Vec<Token>) -> Self {
        Sampling {
            temperature,
            top_k: None,
            top_p: None,
            min_p: None,
            max_tokens,
            stop_tokens,
            stop_strings: Vec::new(),
            banned: Vec::new(),
        }
    }

    /// Checks every range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let range = |key, got: f32, ok: bool, needed| {
            if ok { Ok(()) } else { Err(SamplingError::Range { key, got: f64::from(got), needed }) }
        };
        let t = self.temperature;
        range("temperature", t, t == 0.0 || (1e-3..=100.0).contains(&t), "0, or a number from 0.001 to 100")?;
        if let Some(k) = self.top_k {
            range("top_k", k as f32, k >= 1, "at least 1")?;
        }
        for (key, value) in [("top_p", self.top_p), ("min_p", self.min_p)] {
            if let Some(p) = value {
                range(key, p, p > 0.0 && p <= 1.0, "a number above 0 and at most 1")?;
            }
        }
        range("max_tokens", self.max_tokens as f32, self.max_tokens >= 1, "at least 1")
    }

    /// Whether tokens outside a kept set can never be drawn, so that the recorded log-probability (under all of π) is not
    /// that of the draw.
    pub fn cuts_the_tail(&self) -> bool {
        self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }
}

/// One turn to sample.
#[derive(Debug, Clone)]
pub struct Job {
    /// The caller's name for it, returned with the result.
    pub id: u64,
    /// Every token before those to sample; jobs with equal prompts share the work.
    pub prompt: Arc<[Token]>,
    /// How many of the prompt's last tokens are the turn's own, sampled before it was set aside: they count as part of the
    /// turn for `max_tokens` and stop strings.
    pub begun: usize,
    /// How to draw.
    pub sampling: Arc<Sampling>,
    /// The random stream; the token at position `p` of the sequence uses number `p` of it.
    pub stream: Stream,
}

/// One sampled turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The job's name.
    pub id: u64,
    /// What was sampled, stop token included, `[n]`.
    pub tokens: Vec<Token>,
    /// Log-probabilities under π, `[n]`, nats.
    pub logp: Vec<f32>,
    /// Log-probabilities at temperature 1 with nothing banned, `[n]`, nats.
    pub logp_t1: Vec<f32>,
    /// Why it ended.
    pub stop: StopReason,
    /// The policy version that sampled it.
    pub version: u32,
}

/// Where a sampler gets its jobs and leaves its results.
///
/// A sampler asks for a job whenever it has room, so a finished row is replaced at once; a result may make the source
/// offer a further job (the next turn of an episode).
pub trait Jobs {
    /// The next job, or nothing for now.
    fn next(&mut self) -> Option<Job>;

    /// Takes a result, in the order things finish.
    fn done(&mut self, result: Sampled);

    /// Takes a job that could not be sampled; the others go on.
    fn failed(&mut self, id: u64, error: PolicyError);

    /// Told after each token position: how many tokens were sampled at it.
    fn progress(&mut self, n_tokens: usize) {
        let _ = n_tokens;
    }

    /// Asked between tokens; once true, the sampler returns and unfinished jobs are given back with
    /// [`StopReason::Cancelled`].
    fn cancelled(&self) -> bool {
        false
    }

    /// Asked between tokens; once true, the sampler gives every unfinished job to [`Jobs::set_aside`] and returns. A source
    /// that is paused has no further job. A sampler that finishes a job before it looks at the next has nothing to set
    /// aside and need not ask.
    fn paused(&mut self) -> bool {
        false
    }

    /// Takes back a job of a paused source with what was sampled of it so far, which may be nothing; its `stop` means
    /// nothing. It goes on later, maybe under other weights, as a job whose prompt ends with these tokens.
    fn set_aside(&mut self, part: Sampled) {
        self.done(part);
    }
}

/// Something that samples turns.
pub trait Sampler {
    /// Samples until the source has no more jobs.
    ///
    /// - Holds: a job's result depends on its prompt, settings, stream and the weights alone, never on its neighbours.
    /// - Errors: only what stops every job; a job's own trouble goes to [`Jobs::failed`].
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError>;

    /// The most tokens a sequence may have.
    fn context(&self) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl Fn(&mut Sampling), want: Option<&str>) {
        let mut sampling = Sampling::plain(1.0, 8, vec![2]);
        change(&mut sampling);
        assert_eq!(sampling.check().err().map(|e| e.to_string()).as_deref(), want);
    }

    #[test]
    fn settings_outside_their_range_are_named() {
        check(|_| (), None);
        check(|s| s.temperature = 0.0, None);
        check(|s| s.temperature = -1.0, Some("`temperature` is -1, needed 0, or a number from 0.001 to 100"));
        check(|s| s.temperature = f32::NAN, Some("`temperature` is NaN, needed 0, or a number from 0.001 to 100"));
        check(|s| s.top_k = Some(0), Some("`top_k` is 0, needed at least 1"));
        check(|s| s.top_p = Some(1.5), Some("`top_p` is 1.5, needed a number above 0 and at most 1"));
        check(|s| s.min_p = Some(0.0), Some("`min_p` is 0, needed a number above 0 and at most 1"));
        check(|s| s.max_tokens = 0, Some("`max_tokens` is 0, needed at least 1"));
    }
}
