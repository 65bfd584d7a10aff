//! Where the nodes of a wave meet: the barriers of the strategy `linear`, and the tasks that only the first of them runs.
//!
//! Owns who waits there and for what. Must not know the rollout. Invariant: a host that never answered holds nobody up at a
//! barrier for longer than [`SILENCE`], at a task that is its own to run until its connection is given up, and one that is
//! gone holds nobody up at all. One that is in line for the budget holds nobody up whose place it waits for.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::node::message::{LatchValue, ToNode},
    interpreter::Position,
};

/// How long a barrier waits at most for hosts that have not answered at all.
const SILENCE: Duration = Duration::from_secs(3);

/// Latches that a host took, each with what its task gave if that is known.
pub(crate) type TakenLatches = Vec<(Arc<str>, Option<LatchValue>)>;

/// What those hear who waited at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierAnswer {
    Go,
    /// The play, or the batch, is over for everybody.
    End,
    /// A failure elsewhere is everybody's.
    Halt,
}

/// A host at a barrier.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) host: usize,
    /// The task behind the barrier.
    pub(crate) task: Arc<str>,
    pub(crate) at: Position,
    /// It is out of service: it has to get to a safe point, whatever happens elsewhere.
    pub(crate) is_out: bool,
}

#[derive(Default)]
pub(crate) struct Barriers {
    /// The others go no further than to their next barrier.
    ended: bool,
    /// The failures that are everybody's: each with the last place of those who have not heard of it, or to be heard of at any.
    halts: Vec<Option<Position>>,
    /// How many of them each host has been told of, or has to hear nothing of.
    told: HashMap<usize, usize>,
    /// Those who hear of one as soon as they are in service again.
    deferred: HashSet<usize>,
    /// Somebody's end is everybody's, and nobody has heard of it yet.
    halting: bool,
    /// Those whose failure is everybody's: since the barrier opened last, each with the last place of those who have not
    /// heard of it where others may have in an earlier process, and since the wave began.
    failed: HashMap<usize, Option<Position>>,
    raised: HashSet<usize>,
    at_barrier: BTreeMap<usize, Waiter>,
    /// When those who wait go on without hosts that never answered.
    opens_at: Option<Instant>,
    latches: HashMap<Arc<str>, Latch>,
}

enum Latch {
    /// Its host, the first of all, has not come yet.
    Expected {
        owner: usize,
        waiting: Vec<usize>,
    },
    Running {
        owner: usize,
        waiting: Vec<usize>,
    },
    /// Its host is held, for this reason: whether it did it is for a person to find out.
    Held(String),
    Value(Box<LatchValue>),
}

impl Barriers {
    /// A host waits for the others; for those who never answered so long at most.
    pub(crate) fn wait(&mut self, waiter: Waiter, silence: Duration) {
        self.at_barrier.insert(waiter.host, waiter);
        self.opens_at.get_or_insert_with(|| Instant::now() + silence.min(SILENCE));
    }

    /// From here on whoever comes to a barrier goes no further.
    pub(crate) const fn end(&mut self) {
        self.ended = true;
    }

    /// A host failed where any failure is everybody's, and goes on in its own rescue, if it has one.
    pub(crate) fn raise(&mut self, host: usize, again: Option<Position>) {
        self.failed.insert(host, again);
        self.raised.insert(host);
    }

    /// Whoever is at the next barrier hears that a failure is everybody's.
    pub(crate) const fn halt(&mut self) {
        self.halting = true;
    }

    /// Whether the others hear of a failure at the next barrier.
    pub(crate) const fn is_halting(&self) -> bool {
        self.halting
    }

    /// The end of a host whose failure the others have heard of is no news.
    pub(crate) fn no_news(&mut self, of: usize, before: bool) {
        if self.raised.contains(&of) {
            self.halting = before;
        }
    }

    /// What a host is told that may go on; not of its `own` failure.
    fn word(&mut self, waiter: &Waiter, own: bool) -> BarrierAnswer {
        let told = self.told.insert(waiter.host, self.halts.len()).unwrap_or_default();
        // Why by place: in a resumed run one that is behind it has heard.
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

    /// When hosts that never answered are not waited for any more.
    pub(crate) const fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }

    /// Once that moment is there: who is still missing has answered, and is waited for.
    pub(crate) fn waited(&mut self) {
        self.opens_at = None;
    }

    /// Those who may go on, now that everybody at work is there. A host that has never answered is not waited for: it goes
    /// on alone when it does.
    ///
    /// `at_work` are those who may still come, each with whether it ever answered; `in_line` tells who of them waits for a
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
        self.opens_at = None;
        // Why not all: in a resumed run one may stand before a barrier that another one has behind it.
        let counted: HashSet<usize> =
            at_work.map(|(host, _)| host).filter(|host| self.at_barrier.contains_key(host)).collect();
        let first =
            counted.iter().filter_map(|host| self.at_barrier.get(host)).map(|waiter| waiter.at.clone()).min();
        let goes = |_: &usize, waiter: &mut Waiter| {
            first.as_ref().is_none_or(|first| waiter.at <= *first) || !counted.contains(&waiter.host)
        };
        let going: Vec<Waiter> = self.at_barrier.extract_if(.., goes).map(|(_, waiter)| waiter).collect();
        // Why all of them: one that waits further on is heard here too.
        let failed = std::mem::take(&mut self.failed);
        if !failed.is_empty() {
            // Why: where one of them is new to all, all hear of it.
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

    /// Those who are out, when the others cannot come before one of them is back: the first of them goes on alone.
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

    /// Asks for a task that one host runs for all; nothing while another one runs it. Where hosts wait for each other,
    /// `first` is the one that is to run it.
    pub(crate) fn latch(&mut self, host: usize, key: Arc<str>, first: Option<usize>) -> Option<ToNode> {
        match self.latches.get_mut(&key) {
            None if first.is_some_and(|first| first < host) => {
                let owner = first.unwrap_or(host);
                self.latches.insert(key, Latch::Expected { owner, waiting: vec![host] });
                None
            }
            Some(Latch::Expected { owner, waiting }) => {
                if *owner != host {
                    waiting.push(host);
                    return None;
                }
                let waiting = std::mem::take(waiting);
                self.latches.insert(key, Latch::Running { owner: host, waiting });
                Some(ToNode::LatchYours)
            }
            None => {
                self.latches.insert(key, Latch::Running { owner: host, waiting: Vec::new() });
                Some(ToNode::LatchYours)
            }
            Some(Latch::Running { waiting, .. }) => {
                waiting.push(host);
                None
            }
            Some(Latch::Held(why)) => Some(ToNode::Deny(why.clone())),
            Some(Latch::Value(value)) => Some(ToNode::LatchValue(value.clone())),
        }
    }

    /// What its task gave, for those who wait for it.
    pub(crate) fn result(&mut self, key: Arc<str>, result: Box<LatchValue>) -> Vec<usize> {
        match self.latches.insert(key, Latch::Value(result)) {
            Some(Latch::Running { waiting, .. }) => waiting,
            _ => Vec::new(),
        }
    }

    /// Latches whose first host waits elsewhere, or in line for the budget, and so does not come to them: the first of those
    /// who did takes each.
    pub(crate) fn overdue(&mut self, in_line: impl Fn(usize) -> bool) -> Vec<usize> {
        let waits: Vec<usize> = self
            .latches
            .values()
            .flat_map(|latch| match latch {
                Latch::Expected { waiting, .. } | Latch::Running { waiting, .. } => waiting.clone(),
                Latch::Held(_) | Latch::Value(_) => Vec::new(),
            })
            .chain(self.at_barrier.keys().copied())
            .collect();
        let mut heirs = Vec::new();
        for latch in self.latches.values_mut() {
            if let Latch::Expected { owner, waiting } = latch
                && (waits.contains(owner) || in_line(*owner))
                && let Some(heir) = first_of(waiting)
            {
                *latch = Latch::Running { owner: heir, waiting: std::mem::take(waiting) };
                heirs.push(heir);
            }
        }
        heirs
    }

    /// A latch whose owner is gone goes to the first of those who wait, or to whoever comes next; to nobody where the owner
    /// is held, which is then said of it: what it began may go on.
    pub(crate) fn pass_on(&mut self, gone: usize, held: Option<&str>) -> Vec<(usize, ToNode)> {
        let mut answers = Vec::new();
        for latch in self.latches.values_mut() {
            if let Latch::Running { owner, waiting } = latch
                && *owner == gone
                && let Some(why) = held
            {
                answers.extend(waiting.drain(..).map(|host| (host, ToNode::Deny(why.to_owned()))));
                *latch = Latch::Held(why.to_owned());
            }
        }
        self.latches.retain(|_, latch| match latch {
            Latch::Expected { owner, waiting } | Latch::Running { owner, waiting } if *owner == gone => {
                let heir = first_of(waiting);
                if let Some(heir) = heir {
                    *latch = Latch::Running { owner: heir, waiting: std::mem::take(waiting) };
                    answers.push((heir, ToNode::LatchYours));
                }
                heir.is_some()
            }
            _ => true,
        });
        answers
    }

    /// Takes up whose failures others have heard of.
    pub(crate) fn restore_raised(&mut self, hosts: impl Iterator<Item = usize>) {
        self.raised.extend(hosts);
    }

    /// Takes up that a failure is everybody's: these have heard of it.
    pub(crate) fn restore_halt(&mut self, told: impl Iterator<Item = usize>) {
        self.halts.push(None);
        self.told.extend(told.map(|host| (host, self.halts.len())));
    }

    /// Takes up what an earlier process of the run knew.
    pub(crate) fn restore(&mut self, owner: usize, taken: TakenLatches) {
        for (key, value) in taken {
            match value {
                Some(value) => _ = self.latches.insert(key, Latch::Value(Box::new(value))),
                None => {
                    let running = Latch::Running { owner, waiting: Vec::new() };
                    self.latches.entry(key).or_insert(running);
                }
            }
        }
    }
}

/// Takes the first of the play's hosts from those who wait.
fn first_of(waiting: &mut Vec<usize>) -> Option<usize> {
    let at = waiting.iter().enumerate().min_by_key(|(_, host)| **host)?.0;
    Some(waiting.swap_remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answers: &[(usize, ToNode)]) -> Vec<(usize, &str)> {
        let word = |answer: &ToNode| match answer {
            ToNode::LatchYours => "yours",
            ToNode::Deny(_) => "held",
            _ => "something else",
        };
        let mut told: Vec<_> = answers.iter().map(|(host, answer)| (*host, word(answer))).collect();
        told.sort_unstable();
        told
    }

    #[test]
    fn a_task_for_all_goes_to_another_host_but_where_its_own_is_held() {
        let key = || Arc::from("tasks.1");
        let mut barriers = Barriers::default();
        assert!(matches!(barriers.latch(0, key(), Some(0)), Some(ToNode::LatchYours)));
        assert!(barriers.latch(1, key(), Some(0)).is_none());
        assert!(barriers.latch(2, key(), Some(0)).is_none());
        assert_eq!(told(&barriers.pass_on(0, None)), [(1, "yours")], "it is gone and has done nothing");
        assert_eq!(told(&barriers.pass_on(1, Some("it is held"))), [(2, "held")], "what it began may go on");
        assert!(matches!(barriers.latch(3, key(), Some(3)), Some(ToNode::Deny(_))), "who comes later, too");
    }
}
