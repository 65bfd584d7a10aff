//! When an operation has to stop: at its deadline, or when the controller cancels it.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A point in time, and a flag that another thread may set before.
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

    /// Returns the flag that cancels the operation.
    pub fn canceller(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Returns a deadline that is at most `time` from now and not later than this one; both are cancelled together.
    #[must_use]
    pub fn within(&self, time: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + time), cancelled: Arc::clone(&self.cancelled) }
    }

    /// Wraps a reader that fails when it is time to stop, because a user of the node may create a file of any length.
    pub fn reader<R: Read>(&self, reader: R) -> impl Read {
        Bounded { reader, deadline: self }
    }

    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns why to stop now, if so.
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

struct Bounded<'a, R> {
    reader: R,
    deadline: &'a Deadline,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.deadline.stop() {
            Some(stop) => Err(stop.into()),
            None => self.reader.read(buffer),
        }
    }
}

impl From<Stop> for io::Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::TimedOut => {
                Self::new(io::ErrorKind::TimedOut, "it did not end within the time that it has")
            }
            Stop::Cancelled => Self::other("it was cancelled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_without_end_ends_with_its_time() {
        let read = |deadline: &Deadline| {
            let mut reader = deadline.reader(io::repeat(0));
            io::copy(&mut reader, &mut io::sink()).unwrap_err()
        };
        let over = read(&Deadline::after(Duration::from_millis(20)));
        assert_eq!(
            (over.kind(), over.to_string().contains("within the time")),
            (io::ErrorKind::TimedOut, true)
        );
        let cancelled = Deadline::after(Duration::from_secs(60));
        cancelled.canceller().store(true, Ordering::Relaxed);
        assert_eq!(read(&cancelled).to_string(), "it was cancelled");
    }
}
