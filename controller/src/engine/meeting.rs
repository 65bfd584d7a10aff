//! Where the nodes of a wave meet: the barriers of the strategy `linear`, and the tasks that only the first of them runs.
//!
//! Owns who waits there and for what. Must not know the rollout. Invariant: a host that never answered holds nobody up at a
//! barrier for longer than [`SILENCE`], at a task that is its own to run until its connection is given up, and one that is
//! gone holds nobody up at all.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::message::{LatchValue, ToNode};

/// How long a barrier waits at most for hosts that have not answered at all.
const SILENCE: Duration = Duration::from_secs(3);

/// Latches that a host took, each with what its task gave if that is known.
pub(super) type Taken = Vec<(Arc<str>, Option<LatchValue>)>;

/// What a host did to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Over {
    /// It ended the play, or the batch.
    Ended,
    /// It failed where any failure ends the play.
    Failed,
}

#[derive(Default)]
pub(super) struct Meeting {
    /// The others go no further than to their next barrier.
    over: Option<Over>,
    /// Each with how many barriers it has come to.
    at_barrier: Vec<(usize, u32)>,
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
    Value(Box<LatchValue>),
}

impl Meeting {
    /// A host waits for the others; for those who never answered so long at most.
    pub(super) fn wait(&mut self, host: usize, nth: u32, silence: Duration) {
        self.at_barrier.push((host, nth));
        self.opens_at.get_or_insert_with(|| Instant::now() + silence.min(SILENCE));
    }

    /// From here on whoever comes to a barrier goes no further.
    pub(super) fn end(&mut self, over: Over) {
        self.over = self.over.max(Some(over));
    }

    /// What those are told who may go on.
    pub(super) const fn word(&self) -> ToNode {
        match self.over {
            None => ToNode::Go,
            Some(Over::Ended) => ToNode::End,
            Some(Over::Failed) => ToNode::Halt,
        }
    }

    /// When hosts that never answered are not waited for any more.
    pub(super) const fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }

    /// Once that moment is there: who is still missing has answered, and is waited for.
    pub(super) fn waited(&mut self) {
        self.opens_at = None;
    }

    /// Those who may go on, now that everybody at work is there. A host that has never answered is not waited for: it goes
    /// on alone when it does.
    ///
    /// `at_work` are those who may still come, each with whether it ever answered.
    pub(super) fn open(&mut self, at_work: &[(usize, bool)]) -> Vec<usize> {
        let patient = self.opens_at.is_some_and(|at| Instant::now() < at);
        let there = |host: usize| self.at_barrier.iter().any(|(waiting, _)| *waiting == host);
        if self.at_barrier.is_empty()
            || at_work.iter().any(|(host, answered)| !there(*host) && (*answered || patient))
        {
            return Vec::new();
        }
        self.opens_at = None;
        // Why not all: in a resumed run one may stand before a barrier that another one has behind it.
        let counts = |host: usize| at_work.iter().any(|(working, _)| *working == host);
        let counted = self.at_barrier.iter().filter(|(host, _)| counts(*host));
        let first = counted.map(|(_, nth)| *nth).min().unwrap_or(u32::MAX);
        let waiting = std::mem::take(&mut self.at_barrier);
        let (go, stay): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(host, nth)| *nth <= first || !counts(*host));
        self.at_barrier = stay;
        go.into_iter().map(|(host, _)| host).collect()
    }

    /// Asks for a task that one host runs for all; nothing while another one runs it. Where hosts wait for each other,
    /// `first` is the one that is to run it.
    pub(super) fn latch(&mut self, host: usize, key: Arc<str>, first: Option<usize>) -> Option<ToNode> {
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
            Some(Latch::Value(value)) => Some(ToNode::LatchValue(value.clone())),
        }
    }

    /// What its task gave, for those who wait for it.
    pub(super) fn result(&mut self, key: Arc<str>, result: Box<LatchValue>) -> Vec<usize> {
        match self.latches.insert(key, Latch::Value(result)) {
            Some(Latch::Running { waiting, .. }) => waiting,
            _ => Vec::new(),
        }
    }

    /// Latches whose first host waits elsewhere, and so does not come to them: the first of those who did takes each.
    pub(super) fn overdue(&mut self) -> Vec<usize> {
        let waits: Vec<usize> = self
            .latches
            .values()
            .flat_map(|latch| match latch {
                Latch::Expected { waiting, .. } | Latch::Running { waiting, .. } => waiting.clone(),
                Latch::Value(_) => Vec::new(),
            })
            .chain(self.at_barrier.iter().map(|(host, _)| *host))
            .collect();
        let mut heirs = Vec::new();
        for latch in self.latches.values_mut() {
            if let Latch::Expected { owner, waiting } = latch
                && waits.contains(owner)
                && let Some(heir) = first_of(waiting)
            {
                *latch = Latch::Running { owner: heir, waiting: std::mem::take(waiting) };
                heirs.push(heir);
            }
        }
        heirs
    }

    /// A latch whose owner is gone goes to the first of those who wait, or to whoever comes next.
    pub(super) fn pass_on(&mut self, gone: usize) -> Vec<usize> {
        let mut heirs = Vec::new();
        self.latches.retain(|_, latch| match latch {
            Latch::Expected { owner, waiting } | Latch::Running { owner, waiting } if *owner == gone => {
                let heir = first_of(waiting);
                if let Some(heir) = heir {
                    *latch = Latch::Running { owner: heir, waiting: std::mem::take(waiting) };
                    heirs.push(heir);
                }
                heir.is_some()
            }
            _ => true,
        });
        heirs
    }

    /// Takes up what an earlier process of the run knew.
    pub(super) fn restore(&mut self, owner: usize, taken: Taken) {
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
