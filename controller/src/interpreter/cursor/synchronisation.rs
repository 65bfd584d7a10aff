//! What ties a host to the other hosts of its play: barriers, failures that end all hosts, and variables of others.

use std::sync::Arc;

use super::HostVars;
use super::position::Position;
use crate::interpreter::snapshots::{DelegatedFacts, HostSnapshots, Taken};
use crate::template::Dict;

pub(super) struct Synchronisation {
    /// This host's name.
    host: Arc<str>,
    /// Where the hosts of the play leave their variables for each other.
    snapshots: Option<Arc<HostSnapshots>>,
    /// The barrier that was passed last, and its place.
    barrier: Option<Arc<str>>,
    place: Position,
    /// Which variables set by other hosts' tasks are among this host's.
    taken: Taken,
    /// A failure here that ends all hosts.
    news: FailureNews,
}

/// A failure of this host that ends all hosts, as long as they have not been told.
#[derive(Default)]
pub(super) struct FailureNews {
    /// It happened since this was asked last: up to where hosts may not have heard of it.
    raised: Option<Position>,
    /// The barrier at which the others hear of it.
    barrier: Option<(Arc<str>, Position)>,
}

impl Synchronisation {
    pub(super) fn new(host: Arc<str>) -> Self {
        Self {
            host,
            snapshots: None,
            barrier: None,
            place: Position::default(),
            taken: Taken::new(),
            news: FailureNews::default(),
        }
    }

    pub(super) fn set_snapshots(&mut self, snapshots: Option<Arc<HostSnapshots>>) {
        self.snapshots = snapshots;
    }

    /// Whether any barrier was passed.
    pub(super) const fn has_passed_any(&self) -> bool {
        self.barrier.is_some()
    }

    pub(super) fn has_passed(&self, barrier: &Arc<str>) -> bool {
        self.barrier.as_ref() == Some(barrier)
    }

    /// Whether this is the place of the barrier that was passed last.
    pub(super) fn is_at(&self, place: &Position) -> bool {
        self.place == *place
    }

    /// The host comes to a barrier.
    pub(super) fn pass(&mut self, barrier: &Arc<str>, place: &Position) {
        self.barrier = Some(Arc::clone(barrier));
        self.place.clone_from(place);
    }

    /// Leaves the host's variables for the others at the barrier that it came to; `None` where no other host can ask for
    /// them: a copy of them costs memory.
    pub(super) fn leave_snapshot(&self, vars: Option<&HostVars>) {
        if let Some(snapshots) = &self.snapshots {
            snapshots.tell(&self.host, &self.place, vars.map(|vars| (vars, &self.taken)));
        }
    }

    /// Leaves the host's variables at the end of the play.
    pub(super) fn leave_last_snapshot(&self, vars: &HostVars) {
        if let Some(snapshots) = &self.snapshots {
            snapshots.ended(&self.host, vars, &self.taken);
        }
    }

    /// What tasks of other hosts set for this one, and it does not have yet.
    pub(super) fn take_delegated(&mut self) -> Option<DelegatedFacts> {
        self.snapshots.as_ref()?.take(&self.host, &self.place, &mut self.taken)
    }

    /// What is known of the other hosts at the barrier that was passed last.
    pub(super) fn others(&self) -> Option<Dict> {
        Some(self.snapshots.as_ref()?.at(&self.place, &self.host))
    }

    /// Sets variables of another host (`delegate_facts`); `false` where this host is meant.
    pub(super) fn give(&self, to: Option<&str>, given: &DelegatedFacts) -> bool {
        match (to, &self.snapshots) {
            (Some(host), Some(snapshots)) => snapshots.give(&self.host, &self.place, host, given),
            (Some(_), None) => {}
            (None, _) => return false,
        }
        true
    }

    /// From here on the host is not among `ansible_play_hosts`.
    pub(super) fn leave_play(&self) {
        if let Some(snapshots) = &self.snapshots {
            snapshots.lose(&self.host);
        }
    }

    /// The host failed, and that ends all hosts. `until`: behind this place hosts have heard of it in any case. `at`: where
    /// the host is, in a linear play.
    pub(super) fn raise(&mut self, until: Position, at: Option<Position>) {
        self.news.raised = Some(until);
        // Why: the others hear of it when it comes to a barrier itself, and before it does anything else.
        let last = self.barrier.as_ref().zip(at);
        self.news.barrier = last.map(|(path, at)| (format!("{path}.failed").into(), at));
    }

    /// Whether the host failed, since this was asked last, in a way that ends all hosts.
    pub(super) const fn take_raised(&mut self) -> Option<Position> {
        self.news.raised.take()
    }

    /// The barrier at which the others hear of the failure, once.
    pub(super) const fn take_owed_barrier(&mut self) -> Option<(Arc<str>, Position)> {
        self.news.barrier.take()
    }

    pub(super) fn take_news(&mut self) -> FailureNews {
        std::mem::take(&mut self.news)
    }

    pub(super) fn restore_news(&mut self, news: FailureNews) {
        self.news = news;
    }
}
