//! Hosts that are much slower to connect to or to read than the others: the play begins without them, and they join later.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// What a host may take to connect, beyond a multiple of what the slowest of the others took.
const CONNECT_GRACE: Duration = Duration::from_millis(300);
/// What it may take to be read, beyond such a multiple.
const READ_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Latecomers {
    begun: Instant,
    /// The longest that a host took to connect.
    slowest_connect: Duration,
    /// The longest that a host took to be connected to and read.
    slowest_read: Duration,
    /// Hosts that the play does not wait for.
    late: BTreeSet<usize>,
    /// Those of them whose turn has come.
    due: BTreeSet<usize>,
}

impl Latecomers {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            slowest_connect: Duration::ZERO,
            slowest_read: Duration::ZERO,
            late: BTreeSet::new(),
            due: BTreeSet::new(),
        }
    }

    /// A host took so long to connect.
    pub(crate) fn note_connect(&mut self, took: Duration) {
        self.slowest_connect = self.slowest_connect.max(took);
    }

    /// A host has just been read.
    pub(crate) fn note_read(&mut self) {
        self.slowest_read = self.slowest_read.max(self.begun.elapsed());
    }

    /// Until when the hosts that are still missing are waited for: `silent` if one of them is not connected yet, `reading`
    /// if one is being read.
    pub(crate) fn patience(&self, silent: bool, reading: bool) -> Instant {
        // Why not longer: all other hosts would wait for a host that can as well join later.
        let silence = if silent { self.slowest_connect * 5 / 4 + CONNECT_GRACE } else { Duration::ZERO };
        let slowness = if reading { self.slowest_read * 2 + READ_GRACE } else { Duration::ZERO };
        self.begun + silence.max(slowness)
    }

    /// How long a barrier waits for hosts that have not answered at all.
    pub(crate) fn barrier_patience(&self) -> Duration {
        match self.slowest_connect {
            // Why without a bound: until a host has connected, nothing is known of how long that takes.
            Duration::ZERO => Duration::MAX,
            slowest => slowest * 3 + CONNECT_GRACE,
        }
    }

    /// The play goes on without these.
    pub(crate) fn set_late(&mut self, hosts: impl Iterator<Item = usize>) -> Vec<usize> {
        self.late = hosts.collect();
        self.late.iter().copied().collect()
    }

    pub(crate) fn is_late(&self, host: usize) -> bool {
        self.late.contains(&host)
    }

    /// The turn of a late host has come.
    pub(crate) fn set_due(&mut self, host: usize) {
        self.due.insert(host);
    }

    /// A host has answered, or will not. Whether the play did not wait for it.
    pub(crate) fn arrives(&mut self, host: usize) -> bool {
        self.late.remove(&host)
    }

    /// Whether the turn of a host that arrived has come.
    pub(crate) fn take_due(&mut self, host: usize) -> bool {
        self.due.remove(&host)
    }
}
