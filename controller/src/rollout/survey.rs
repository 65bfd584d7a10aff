//! Surveys of nodes that are out for other reasons: their age, and since when they fill a limit.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// Age after which a survey decides nothing.
const FRESH: SignedDuration = SignedDuration::from_secs(1);
/// Time from an answer that delays a host to the next survey.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Surveys {
    asked: u64,
    in_flight: Option<Timestamp>,
    last: Option<Answer>,
    /// Hosts found to be others' since the survey was requested, which may lack them.
    refused: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Answer {
    number: u64,
    asked_at: Timestamp,
    answered_at: Timestamp,
}

impl Surveys {
    /// Returns the number of surveys requested so far.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Whether a new survey must be requested; false while one is pending.
    pub(super) fn ask(&mut self, now: Timestamp) -> bool {
        if self.in_flight.is_some() {
            return false;
        }
        self.asked += 1;
        self.in_flight = Some(now);
        self.refused.clear();
        true
    }

    /// Stores an answer and returns the hosts that are out by it.
    pub(super) fn answered(&mut self, out: Vec<usize>, now: Timestamp) -> BTreeSet<usize> {
        // An answer without a request is not recent, as its age is unknown.
        if let Some(asked_at) = self.in_flight.take() {
            self.last = Some(Answer { number: self.asked, asked_at, answered_at: now });
        }
        out.into_iter().chain(std::mem::take(&mut self.refused)).collect()
    }

    /// Drops a failed survey. Returns whether there was one.
    pub(super) fn failed(&mut self) -> bool {
        self.in_flight.take().is_some()
    }

    /// Drops a survey that will not be answered any more.
    pub(super) fn forget(&mut self) {
        self.in_flight = None;
    }

    pub(super) fn refused(&mut self, host: usize) {
        if self.in_flight.is_some() {
            self.refused.insert(host);
        }
    }

    /// Returns when to survey again, if the last answer delays a host.
    pub(super) fn again(&self) -> Timestamp {
        let again = self.last.and_then(|last| last.answered_at.checked_add(AGAIN).ok());
        again.unwrap_or(Timestamp::MIN)
    }

    /// Whether the pending survey was requested so soon after the last answer that both report the same outages.
    pub(super) fn goes_on(&self) -> bool {
        let soon =
            |(asked_at, last): (Timestamp, Answer)| asked_at.duration_since(last.answered_at) <= AGAIN * 3;
        self.in_flight.zip(self.last).is_none_or(soon)
    }

    /// Whether the last one is recent enough to decide.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        self.last.is_some_and(|last| now.duration_since(last.answered_at) <= FRESH)
    }

    /// Whether it may decide on a ticket taken after `asked_before` requests: it was requested after the ticket, or
    /// is at most a second old.
    pub(super) fn decides(&self, asked_before: u64, now: Timestamp) -> bool {
        self.is_fresh(now)
            && self
                .last
                .is_some_and(|last| last.number > asked_before || now.duration_since(last.asked_at) <= FRESH)
    }
}

/// Since when outages that only surveys report fill the fleet's budget or a domain's limit. They may be short, such
/// as when a scheduler loses all its nodes for a moment, so hosts wait for a while before they are denied.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Patience {
    fleet: Option<Timestamp>,
    domains: BTreeMap<usize, Timestamp>,
}

impl Patience {
    /// Returns since when, for the fleet if `domain` is `None`; `now` if they do not.
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

    /// Returns the domains that are waited for.
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
