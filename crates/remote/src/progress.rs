//! How long work is watched and stopped.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::RemoteError;

/// The longest time between two looks at the cancellation flag.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// What is being done with a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// They come over the network.
    Download,
    /// They are taken out of a package.
    Unpack,
    /// They are copied into the store.
    Copy,
    /// They are read and hashed.
    Check,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Download => "downloading",
            Phase::Unpack => "unpacking",
            Phase::Copy => "copying",
            Phase::Check => "checking",
        })
    }
}

/// Something a person may want to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// Another process works on this model; its end is awaited.
    Waiting {
        /// The model.
        model: &'a str,
    },
    /// Bytes went by; comes often.
    Bytes {
        /// What is being done.
        phase: Phase,
        /// The file's name.
        file: &'a str,
        /// How many are done.
        done_bytes: u64,
        /// How many there are, where that is known; for a package a rounded guess.
        total_bytes: Option<u64>,
    },
    /// Something failed that may work a little later.
    Retrying {
        /// The file's name.
        file: &'a str,
        /// What happened.
        reason: &'a str,
        /// How long is waited first.
        wait: Duration,
    },
}

/// Receives what happens, from whatever thread it happens on.
pub trait Progress: Sync {
    /// Sees one event; returns soon, since the work waits for it.
    fn event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Sync> Progress for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// A progress nobody looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn event(&self, _: &Event<'_>) {}
}

/// Who is told, and the flag that stops the work.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    progress: &'a dyn Progress,
    cancel: &'a AtomicBool,
}

impl<'a> Watch<'a> {
    /// Work that tells `progress` and stops soon after `cancel` becomes true.
    pub fn new(progress: &'a dyn Progress, cancel: &'a AtomicBool) -> Self {
        Watch { progress, cancel }
    }

    pub(crate) fn cancel(&self) -> &'a AtomicBool {
        self.cancel
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.progress.event(event);
    }

    pub(crate) fn bytes(&self, phase: Phase, file: &str, done_bytes: u64, total_bytes: Option<u64>) {
        self.tell(&Event::Bytes { phase, file, done_bytes, total_bytes });
    }

    /// Stops here if that was asked for.
    pub(crate) fn check(&self) -> Result<(), RemoteError> {
        if self.cancel.load(Ordering::Relaxed) { Err(RemoteError::Cancelled) } else { Ok(()) }
    }

    /// Sleeps, but not past a cancellation.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), RemoteError> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(TICK));
        }
    }
}
