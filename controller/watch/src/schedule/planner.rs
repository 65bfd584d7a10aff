//! When to begin the next audit of one schedule.

use jiff::{SignedDuration, Timestamp};

use super::Rhythm;

/// A clock that is set back by less than this is taken for one that is adjusted: nothing is done again.
const ADJUSTED: SignedDuration = SignedDuration::from_hours(1);
/// Missed audits that are counted.
const MOST_MISSED: u32 = 1000;

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this time.
    Wait(Timestamp),
    /// An audit begins. `missed` were due before it while this machine slept or was off; they are not made up for.
    Start { missed: u32 },
    /// An audit was due at this time and is left out, because the last one still runs.
    Skip(Timestamp),
}

/// The state of one schedule. Audits never overlap, and after any time without a poll at most one begins.
#[derive(Clone, Debug)]
pub struct Planner {
    rhythm: Rhythm,
    due: Timestamp,
    /// The time of the last poll that began or left out an audit.
    last: Option<Timestamp>,
    running: bool,
}

impl Planner {
    /// `last` is when an audit began last, if one ever did.
    pub fn new(rhythm: Rhythm, now: Timestamp, last: Option<Timestamp>) -> Self {
        let due = match last {
            None if rhythm.begins_at_once() => now,
            Some(last) if last <= now => rhythm.next(last),
            _ => rhythm.next(now),
        };
        Self { rhythm, due, last: last.filter(|last| *last <= now), running: false }
    }

    /// Takes other times from now on. An audit that runs goes on.
    pub fn follow(&mut self, rhythm: Rhythm, now: Timestamp) {
        if rhythm != self.rhythm {
            let running = self.running;
            *self = Self::new(rhythm, now, self.last);
            self.running = running;
        }
    }

    /// When the next audit is due.
    pub const fn due(&self) -> Timestamp {
        self.due
    }

    pub const fn is_running(&self) -> bool {
        self.running
    }

    pub const fn rhythm(&self) -> &Rhythm {
        &self.rhythm
    }

    /// Says what is to be done. Call it again after a start or a skip.
    pub fn poll(&mut self, now: Timestamp) -> Step {
        let set_back = self.last.is_some_and(|last| last.duration_since(now) > ADJUSTED);
        if set_back {
            self.last = None;
            self.due = self.rhythm.next(now);
        }
        if now < self.due {
            return Step::Wait(self.due);
        }
        let due = self.due;
        let mut missed = 0;
        let mut next = self.rhythm.next(due);
        while next <= now && missed < MOST_MISSED {
            missed += 1;
            next = self.rhythm.next(next);
        }
        self.due = self.rhythm.next(now);
        self.last = Some(now);
        if self.running {
            return Step::Skip(due);
        }
        self.running = true;
        Step::Start { missed }
    }

    /// The audit that began has ended.
    pub const fn finished(&mut self) {
        self.running = false;
    }
}
