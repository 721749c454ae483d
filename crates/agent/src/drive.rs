//! One attempt on the caller's thread, turn by turn: how an agent is used rather than trained.

use std::sync::atomic::{AtomicBool, Ordering};

use episode::Message;
use policy::{Job, Jobs, PolicyError, Sampled, Sampler};

use crate::{Attempt, Step};

/// Carries an attempt to its end. `heard` is told of messages as they come: first those given, then each turn's.
///
/// - Errors: what stops the sampler altogether; anything else is the attempt's own end.
pub fn drive(
    mut step: Step,
    sampler: &mut dyn Sampler,
    heard: &mut dyn FnMut(&[Message]),
    cancel: &AtomicBool,
) -> Result<Attempt, PolicyError> {
    let mut n_heard = 0;
    let mut tell = |messages: &[Message]| {
        heard(&messages[n_heard..]);
        n_heard = messages.len();
    };
    loop {
        let (turns, job) = match step {
            Step::Finished(attempt) => {
                tell(&attempt.messages);
                return Ok(attempt);
            }
            Step::Sample(turns, job) => (turns, job),
        };
        tell(&turns.so_far().messages);
        let mut one = One { job: Some(job), result: None, cancel };
        sampler.sample(&mut one)?;
        step = match one.result {
            Some(Ok(sampled)) => turns.feed(sampled),
            Some(Err(error)) => turns.fault(&error),
            None => turns.fault(&PolicyError::Cancelled),
        };
    }
}

/// A source of one job.
struct One<'a> {
    job: Option<Job>,
    result: Option<Result<Sampled, PolicyError>>,
    cancel: &'a AtomicBool,
}

impl Jobs for One<'_> {
    fn next(&mut self) -> Option<Job> {
        self.job.take()
    }

    fn done(&mut self, result: Sampled) {
        self.result = Some(Ok(result));
    }

    fn failed(&mut self, _: u64, error: PolicyError) {
        self.result = Some(Err(error));
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}
