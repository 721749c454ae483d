//! What has happened in a session and those begun from it: what was seen, and what was called.

use guard::temporal::{Event, History, HistoryError};
use guard::{Guard, Labels, Request, Verdict};

use crate::Clock;

/// Labels and history of a session and of all begun from it, and the time they have come to.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) labels: Labels,
    history: History,
    steps: u64,
    /// The latest time that was read.
    last_ms: u64,
    /// Whether nothing may run any more.
    pub(crate) stopped: bool,
}

impl Story {
    pub(crate) fn new(labels: Labels, guard: &Guard) -> Story {
        Story { labels, history: guard.history(), steps: 0, last_ms: 0, stopped: false }
    }

    /// The time of the step that was taken last; it never goes back, whatever a clock does.
    pub(crate) fn now(&mut self, clock: &Clock) -> u64 {
        self.last_ms = self.last_ms.max(clock.at(self.steps.saturating_sub(1)));
        self.last_ms
    }

    /// Takes a step, and tells the time of it.
    pub(crate) fn step(&mut self, clock: &Clock) -> u64 {
        self.steps += 1;
        self.now(clock)
    }

    pub(crate) fn see(&mut self, labels: &Labels) {
        self.labels = self.labels.join(labels);
    }

    /// What the rules say of a call.
    pub(crate) fn weigh(&self, guard: &Guard, request: &Request<'_>) -> Verdict {
        guard.decide(request, &self.history)
    }

    /// A call was let through and is in flight from here on.
    ///
    /// - Errors: it cannot be remembered, and so may not run.
    pub(crate) fn begin(&mut self, request: &Request<'_>) -> Result<(), HistoryError> {
        self.history.record(Event::Request(request))
    }

    /// A call in flight has ended: well, or badly, which a call that never began has too.
    pub(crate) fn end(&mut self, request: &Request<'_>, well: bool) {
        let event = if well { Event::Response(request) } else { Event::Error(request) };
        // What happened cannot be undone; a history that misses an event denies from then on, and says so in each ruling.
        let _ = self.history.record(event);
    }
}
