//! Barriers: where the hosts of a wave wait for each other in a play with the strategy `linear`.
//!
//! Owns who waits where, and which failures end all hosts. Must not know the rollout. Invariant: a host that never answered
//! delays a barrier for [`SILENCE`] at most, a host that is gone does not delay it at all. A host that waits for a place in
//! the budget does not delay the host that occupies the place.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::interpreter::Position;

/// How long a barrier waits at most for hosts that have not answered at all.
const SILENCE: Duration = Duration::from_secs(3);

/// How long hosts wait at a barrier before people are told for whom, and how long until they are told again.
const STRAGGLING: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));

/// What a host is told that waited at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierAnswer {
    Go,
    /// The play, or the batch, is over for all hosts.
    End,
    /// Another host failed, and that ends all hosts.
    Halt,
}

/// A host at a barrier.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) host: usize,
    /// The task behind the barrier.
    pub(crate) task: Arc<str>,
    pub(crate) at: Position,
    /// It is out of service: it has to reach a safe point, whatever happens to other hosts.
    pub(crate) is_out: bool,
}

#[derive(Default)]
pub(crate) struct Barriers {
    /// The play is over: hosts go no further than to their next barrier.
    ended: bool,
    /// Failures that end all hosts. With a place, hosts behind it have been told by an earlier process.
    halts: Vec<Option<Position>>,
    /// How many of the halts each host has been told of, or has caused.
    told: HashMap<usize, usize>,
    /// Hosts that are out of service. They are told of a halt as soon as they are back.
    deferred: HashSet<usize>,
    /// A host ended in a way that ends all hosts, and no host was told yet.
    halting: bool,
    /// Hosts that failed since the barrier opened last, in a way that ends all hosts; the place is as in `halts`.
    failed: HashMap<usize, Option<Position>>,
    /// Hosts that failed in such a way since the wave began.
    raised: HashSet<usize>,
    at_barrier: BTreeMap<usize, Waiter>,
    /// When those who wait go on without hosts that never answered.
    opens_at: Option<Instant>,
    /// When people are told for whom the others wait.
    tells_at: Option<Instant>,
}

impl Barriers {
    /// A host waits for the others; for hosts that never answered `silence` at most.
    pub(crate) fn wait(&mut self, waiter: Waiter, silence: Duration) {
        self.at_barrier.insert(waiter.host, waiter);
        self.opens_at.get_or_insert_with(|| Instant::now() + silence.min(SILENCE));
        self.tells_at.get_or_insert_with(|| Instant::now() + STRAGGLING.0);
    }

    /// The play ends at the next barrier.
    pub(crate) const fn end(&mut self) {
        self.ended = true;
    }

    /// A host failed in a way that ends all hosts. It goes on in its own rescue, if it has one.
    pub(crate) fn raise(&mut self, host: usize, again: Option<Position>) {
        self.failed.insert(host, again);
        self.raised.insert(host);
    }

    /// All hosts are told to halt at the next barrier.
    pub(crate) const fn halt(&mut self) {
        self.halting = true;
    }

    /// Whether hosts are told to halt at the next barrier.
    pub(crate) const fn is_halting(&self) -> bool {
        self.halting
    }

    /// A host ended. `before`: whether a halt was due before that. It causes no second halt if its failure was told when it
    /// happened.
    pub(crate) fn no_news(&mut self, of: usize, before: bool) {
        if self.raised.contains(&of) {
            self.halting = before;
        }
    }

    /// What a host is told that may go on. It is not told of its `own` failure.
    fn word(&mut self, waiter: &Waiter, own: bool) -> BarrierAnswer {
        let told = self.told.insert(waiter.host, self.halts.len()).unwrap_or_default();
        // Why by place: in a resumed run a host that is behind it was told by the earlier process.
        let news =
            self.halts.iter().skip(told).any(|until| until.as_ref().is_none_or(|until| waiter.at <= *until));
        let due = self.deferred.remove(&waiter.host) || news;
        if due && !own && waiter.is_out {
            self.deferred.insert(waiter.host);
        }
        if due && !own && !waiter.is_out {
            BarrierAnswer::Halt
        } else if self.ended {
            BarrierAnswer::End
        } else {
            BarrierAnswer::Go
        }
    }

    /// When hosts that never answered are waited for no longer.
    pub(crate) const fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }

    /// That moment has come. Hosts that are still missing have answered, and are waited for.
    pub(crate) fn waited(&mut self) {
        self.opens_at = None;
    }

    pub(crate) const fn tells_at(&self) -> Option<Instant> {
        self.tells_at
    }

    /// People were told.
    pub(crate) fn told_of_stragglers(&mut self) {
        self.tells_at = Some(Instant::now() + STRAGGLING.1);
    }

    /// Hosts that wait at a barrier.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.at_barrier.keys().copied()
    }

    /// The hosts that may go on, once all hosts at work are at the barrier. A host that has never answered is not waited
    /// for: it goes on alone when it does.
    ///
    /// `at_work` are hosts that may still come, each with whether it ever answered; `in_line` tells which of them wait for a
    /// place in the budget.
    pub(crate) fn open(
        &mut self,
        at_work: impl Iterator<Item = (usize, bool)> + Clone,
        in_line: impl Fn(usize) -> bool,
    ) -> Vec<(Waiter, BarrierAnswer)> {
        let patient = self.opens_at.is_some_and(|at| Instant::now() < at);
        let is_missing =
            |(host, answered): (usize, bool)| !self.at_barrier.contains_key(&host) && (answered || patient);
        if self.at_barrier.is_empty() {
            return Vec::new();
        }
        let mut missing = at_work.clone().filter(|host| is_missing(*host)).peekable();
        if missing.peek().is_some() {
            let full = missing.all(|(host, _)| in_line(host));
            return if full { self.make_place() } else { Vec::new() };
        }
        (self.opens_at, self.tells_at) = (None, None);
        // Why not all: in a resumed run a host may be at a barrier that another host has passed.
        let counted: HashSet<usize> =
            at_work.map(|(host, _)| host).filter(|host| self.at_barrier.contains_key(host)).collect();
        let first =
            counted.iter().filter_map(|host| self.at_barrier.get(host)).map(|waiter| waiter.at.clone()).min();
        let goes = |_: &usize, waiter: &mut Waiter| {
            first.as_ref().is_none_or(|first| waiter.at <= *first) || !counted.contains(&waiter.host)
        };
        let going: Vec<Waiter> = self.at_barrier.extract_if(.., goes).map(|(_, waiter)| waiter).collect();
        // Why all of them: the failure of a host that waits further on counts here too.
        let failed = std::mem::take(&mut self.failed);
        if !failed.is_empty() {
            // Why: if one of them was told to no host yet, all hosts are told.
            let known: Option<Vec<Position>> = failed.values().cloned().collect();
            self.halts.push(known.and_then(|known| known.into_iter().max()));
            self.told.extend(failed.keys().map(|host| (*host, self.halts.len())));
        }
        self.halts.extend(std::mem::take(&mut self.halting).then_some(None));
        let hear = |waiter: Waiter| {
            let word = self.word(&waiter, failed.contains_key(&waiter.host));
            (waiter, word)
        };
        going.into_iter().map(hear).collect()
    }

    /// Hosts that are out of service, when all others wait for one of them to be back: the first of them goes on alone.
    fn make_place(&mut self) -> Vec<(Waiter, BarrierAnswer)> {
        let out = self.at_barrier.values().filter(|waiter| waiter.is_out);
        let Some(first) = out.map(|waiter| waiter.at.clone()).min() else { return Vec::new() };
        let goes = |_: &usize, waiter: &mut Waiter| waiter.is_out && waiter.at <= first;
        let going: Vec<Waiter> = self.at_barrier.extract_if(.., goes).map(|(_, waiter)| waiter).collect();
        let hear = |waiter: Waiter| {
            let word = self.word(&waiter, false);
            (waiter, word)
        };
        going.into_iter().map(hear).collect()
    }

    /// Takes over which hosts failed in a way that ends all hosts, and the others know.
    pub(crate) fn restore_raised(&mut self, hosts: impl Iterator<Item = usize>) {
        self.raised.extend(hosts);
    }

    /// Takes over that all hosts are to halt; `told` know.
    pub(crate) fn restore_halt(&mut self, told: impl Iterator<Item = usize>) {
        self.halts.push(None);
        self.told.extend(told.map(|host| (host, self.halts.len())));
    }
}
