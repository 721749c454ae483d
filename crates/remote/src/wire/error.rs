//! What can go wrong on the way to a server.

use std::time::Duration;

/// Why a server gave no usable answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// A setting cannot be used.
    #[error("bad {setting}: {reason}")]
    BadSetting {
        /// Which one.
        setting: &'static str,
        /// What is wrong with it; never the value of a secret.
        reason: String,
    },
    /// The server refused for good.
    #[error("`{url}` answered with status {status}{}", said_of(said))]
    Refused {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The beginning of what it said; empty for a refused secret.
        said: String,
    },
    /// The server could not be reached, or broke off, in every attempt.
    #[error("cannot ask `{url}` in {attempts} attempts: {reason}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// How many attempts there were.
        attempts: u32,
        /// What the last one met.
        reason: String,
    },
    /// The server had not answered at the deadline.
    #[error("no answer from `{url}` within {} s while {doing}", .deadline.as_secs_f64())]
    Deadline {
        /// What was asked for.
        url: String,
        /// How long it had, all attempts together.
        deadline: Duration,
        /// What was waited for.
        doing: String,
    },
    /// The answer is longer than it may be.
    #[error("the answer of `{url}` is longer than {limit} bytes")]
    TooLong {
        /// What was asked for.
        url: String,
        /// How many bytes it may have.
        limit: usize,
    },
    /// The answer makes no sense.
    #[error("`{url}` gave an answer that cannot be used: {reason}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This machine could not start what was needed.
    #[error("cannot {action}: {reason}")]
    Machine {
        /// What was tried, as a verb.
        action: &'static str,
        /// What the system said.
        reason: String,
    },
}

fn said_of(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}
