//! A program that is asked once: input in, answer out, gone.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::child::{Pulse, Running};
use crate::{Exit, JailError, Spec};

/// What a program left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended; this alone says whether it succeeded.
    pub exit: Exit,
    /// All it wrote to standard output.
    pub stdout: Vec<u8>,
    /// The end of what it wrote to standard error.
    pub stderr: Vec<u8>,
}

/// Runs a program to its end, feeding it `input` through a pipe.
///
/// - Holds: when this returns, with an answer or an error, no process of the program's group is left, no zombie either.
/// - Errors: [`JailError`]; a program that ends with a failure is not an error but a [`Finished`] that says so.
pub fn run_once(spec: &Spec, input: &[u8], cancel: &AtomicBool) -> Result<Finished, JailError> {
    let started = Instant::now();
    answer(Running::start(spec)?, input, started, spec.deadline, cancel)
}

/// Feeds a running program and collects its answer.
pub(crate) fn answer(
    mut running: Running,
    mut input: &[u8],
    started: Instant,
    deadline: Duration,
    cancel: &AtomicBool,
) -> Result<Finished, JailError> {
    loop {
        if input.is_empty() {
            running.close_stdin();
        }
        if let Pulse::Ended(exit) = running.pulse(&mut input, started, deadline, cancel)? {
            let stdout = std::mem::take(&mut running.out);
            return Ok(Finished { exit, stdout, stderr: running.take_stderr() });
        }
    }
}
