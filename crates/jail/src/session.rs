//! A program that stays alive and answers one line for each line it is asked.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::child::{Pulse, Running};
use crate::{JailError, Spec};

/// A program that is asked line by line. Dropping it kills it with its children.
pub struct Session {
    running: Running,
    deadline: Duration,
}

impl Session {
    /// Starts the program; its first answer may take as long as every other.
    pub fn start(spec: &Spec) -> Result<Self, JailError> {
        Ok(Session { running: Running::start(spec)?, deadline: spec.deadline })
    }

    /// Sends one line and waits for the one line that answers it, both without their line ends.
    ///
    /// - Errors: [`JailError`]; after one the program may be out of step, so the session is to be dropped.
    pub fn ask(&mut self, question: &str, cancel: &AtomicBool) -> Result<String, JailError> {
        let program = self.running.name();
        if question.contains('\n') {
            return Err(JailError::Line { program, what: "the question" });
        }
        self.running.read()?;
        if !self.running.out.is_empty() {
            return Err(JailError::Chatter { program, extra: self.running.out.len() });
        }
        let started = Instant::now();
        let line = [question.as_bytes(), b"\n"].concat();
        let mut input: &[u8] = &line;
        loop {
            let pulse = self.running.pulse(&mut input, started, self.deadline, cancel)?;
            if let Some(end) = self.running.out.iter().position(|b| *b == b'\n') {
                // An answer to a question that was not read yet, or more than one line, is not an answer to this one.
                let extra = self.running.out.len() - end - 1;
                if extra > 0 || !input.is_empty() {
                    let extra = if extra > 0 { extra } else { end + 1 };
                    return Err(JailError::Chatter { program: self.running.name(), extra });
                }
                let mut answer = std::mem::take(&mut self.running.out);
                answer.truncate(end);
                return String::from_utf8(answer)
                    .map_err(|_| JailError::Line { program: self.running.name(), what: "the answer" });
            }
            if let Pulse::Ended(exit) = pulse {
                let stderr = self.running.stderr_text();
                return Err(JailError::Ended { program: self.running.name(), exit, stderr });
            }
        }
    }
}
