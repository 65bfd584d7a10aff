//! When an operation has to stop: its time is up, or the controller cancelled it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A moment, and a flag that another thread may raise earlier.
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Instant,
    cancelled: Arc<AtomicBool>,
}

/// Why an operation must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    TimedOut,
    Cancelled,
}

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self { at: Instant::now() + time, cancelled: Arc::default() }
    }

    /// The flag that cancels.
    pub fn canceller(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// The same deadline or an earlier one, `time` from now; cancelled together.
    #[must_use]
    pub fn within(&self, time: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + time), cancelled: Arc::clone(&self.cancelled) }
    }

    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether to stop now, and why.
    pub fn stop(&self) -> Option<Stop> {
        if self.cancelled.load(Ordering::Relaxed) {
            Some(Stop::Cancelled)
        } else if self.remaining().is_zero() {
            Some(Stop::TimedOut)
        } else {
            None
        }
    }
}
