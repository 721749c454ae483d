//! A program that is asked once: input in, answer out, gone.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

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
    let mut running = Running::start(spec)?;
    let mut input = input;
    loop {
        if input.is_empty() {
            running.close_stdin();
        }
        if let Pulse::Ended(exit) = running.pulse(&mut input, started, spec.deadline, cancel)? {
            let stdout = std::mem::take(&mut running.out);
            return Ok(Finished { exit, stdout, stderr: running.take_stderr() });
        }
    }
}
