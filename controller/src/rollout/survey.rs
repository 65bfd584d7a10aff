//! How fresh the word of who else is out is, and since when it stands against everybody.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// Age after which a survey decides nothing any more.
const FRESH: SignedDuration = SignedDuration::from_secs(1);
/// From an answer that stands against somebody to the next survey.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

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

    /// When to ask again, where the last answer stands against somebody.
    pub(super) fn again(&self) -> Timestamp {
        let again = self.last.and_then(|last| last.answered_at.checked_add(AGAIN).ok());
        again.unwrap_or(Timestamp::MIN)
    }

    /// Whether the one under way was asked for so soon after the last answer that both tell of the same outages.
    pub(super) fn goes_on(&self) -> bool {
        let soon =
            |(asked_at, last): (Timestamp, Answer)| asked_at.duration_since(last.answered_at) <= AGAIN * 3;
        self.in_flight.zip(self.last).is_none_or(soon)
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

/// Since when nothing but outages that surveys report takes up the fleet's budget, or a domain's limit. They may be over
/// in a moment, such as a scheduler that lost all its nodes for one: who wants a place waits for that for a while.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Patience {
    fleet: Option<Timestamp>,
    domains: BTreeMap<usize, Timestamp>,
}

impl Patience {
    /// Since when, for the fleet where `domain` is none; not at all is since now.
    pub(super) fn since(&self, domain: Option<usize>, now: Timestamp) -> Timestamp {
        let since = match domain {
            None => self.fleet,
            Some(domain) => self.domains.get(&domain).copied(),
        };
        since.unwrap_or(now)
    }

    pub(super) fn begin(&mut self, domain: Option<usize>, now: Timestamp) {
        match domain {
            None => self.fleet.get_or_insert(now),
            Some(domain) => self.domains.entry(domain).or_insert(now),
        };
    }

    /// Domains that are waited for.
    pub(super) fn domains(&self) -> Vec<usize> {
        self.domains.keys().copied().collect()
    }

    pub(super) fn end(&mut self, domain: Option<usize>) {
        match domain {
            None => self.fleet = None,
            Some(domain) => {
                self.domains.remove(&domain);
            }
        }
    }
}
