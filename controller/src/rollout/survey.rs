//! How fresh the word of who else is out is.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

/// Age after which a survey decides nothing any more.
const FRESH: SignedDuration = SignedDuration::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Surveys {
    asked: u64,
    in_flight: Option<Timestamp>,
    last: Option<Answer>,
    /// Hosts that turned out to be others' since the survey was asked for: it may have missed them.
    refused: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Answer {
    number: u64,
    asked_at: Timestamp,
    answered_at: Timestamp,
}

impl Surveys {
    /// Surveys asked for so far.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Whether a new survey has to be asked for; none while one is under way.
    pub(super) fn ask(&mut self, now: Timestamp) -> bool {
        if self.in_flight.is_some() {
            return false;
        }
        self.asked += 1;
        self.in_flight = Some(now);
        self.refused.clear();
        true
    }

    /// Everybody who is out by it.
    pub(super) fn answered(&mut self, out: Vec<usize>, now: Timestamp) -> BTreeSet<usize> {
        // Why unasked ones do not count as fresh: nobody knows when they were made.
        if let Some(asked_at) = self.in_flight.take() {
            self.last = Some(Answer { number: self.asked, asked_at, answered_at: now });
        }
        out.into_iter().chain(std::mem::take(&mut self.refused)).collect()
    }

    /// Whether there was one to fail.
    pub(super) fn failed(&mut self) -> bool {
        self.in_flight.take().is_some()
    }

    /// Nobody will answer any more.
    pub(super) fn forget(&mut self) {
        self.in_flight = None;
    }

    pub(super) fn refused(&mut self, host: usize) {
        if self.in_flight.is_some() {
            self.refused.insert(host);
        }
    }

    /// Whether the last one may decide anything now.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        self.last.is_some_and(|last| now.duration_since(last.answered_at) <= FRESH)
    }

    /// Whether it may decide on a wish that was made after so many surveys were asked for: it was made after the wish,
    /// or is a second old at most.
    pub(super) fn decides(&self, asked_before: u64, now: Timestamp) -> bool {
        self.is_fresh(now)
            && self
                .last
                .is_some_and(|last| last.number > asked_before || now.duration_since(last.asked_at) <= FRESH)
    }
}
