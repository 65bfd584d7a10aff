//! When an operation has to stop: its time is up, or the controller cancelled it.

use std::{
    io::{self, Read},
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

    /// A reader that ends with an error when it is time to stop: a user of the node may make a file of any length.
    pub fn reader<R: Read>(&self, reader: R) -> impl Read {
        Bounded { reader, deadline: self }
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
