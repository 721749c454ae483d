//! What time a session thinks it is.

use std::fmt;
use std::sync::Arc;

/// Where a gate's sessions take their time from.
///
/// - Units: milliseconds since 1970.
#[derive(Clone)]
pub enum Clock {
    /// One clock for all, such as the machine's.
    Shared(Arc<dyn Fn() -> u64 + Send + Sync>),
    /// Each session's own, which moves with its calls alone: what a session decides, and the bytes of its receipts, are a
    /// function of its calls. Training uses this one, so that an attempt that was set aside is ruled upon as before.
    Logical {
        /// When every session begins.
        start_ms: u64,
        /// How long each step of a call takes: proposing it, and its end.
        tick_ms: u64,
    },
}

impl Clock {
    /// The machine's clock.
    pub fn machine() -> Clock {
        Clock::Shared(Arc::new(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            // A machine that thinks it is before 1970 is at the beginning of time.
            since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
        }))
    }

    /// The time after this many steps of a session.
    pub(crate) fn at(&self, steps: u64) -> u64 {
        match self {
            Clock::Shared(now) => now(),
            Clock::Logical { start_ms, tick_ms } => start_ms.saturating_add(tick_ms.saturating_mul(steps)),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clock::Shared(_) => f.write_str("Shared"),
            Clock::Logical { start_ms, tick_ms } => write!(f, "Logical({start_ms} + n × {tick_ms})"),
        }
    }
}
