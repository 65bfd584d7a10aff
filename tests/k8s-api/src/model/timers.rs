//! Pending timers: one queue for all parts of the model, in the order of time.

use std::collections::BTreeMap;

/// An event that occurs by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// All controllers but the disruption controller check everything.
    Reconcile,
    /// The disruption controller checks one budget.
    Budget {
        namespace: String,
        name: String,
    },
    /// A pod's containers run.
    PodStarted {
        namespace: String,
        name: String,
        uid: String,
    },
    /// A pod's containers have ended.
    PodStopped {
        namespace: String,
        name: String,
        uid: String,
    },
    /// A pod's work has ended.
    PodSucceeded {
        namespace: String,
        name: String,
        uid: String,
    },
    /// A pod has been on a node long enough whose taint it does not tolerate forever.
    TaintEviction {
        namespace: String,
        name: String,
        uid: String,
    },
    /// The kubelet creates the mirror of a static pod again.
    Mirror {
        pod: serde_json::Value,
    },
    /// The machine that went down at this time is up again.
    Boot {
        node: String,
        since_ms: i64,
    },
    /// The kubelet that started at this time reports readiness.
    KubeletReady {
        node: String,
        since_ms: i64,
    },
    /// The node monitor misses a kubelet that was last seen at this time.
    NodeMissed {
        node: String,
        since_ms: i64,
    },
    Heartbeat {
        node: String,
    },
    /// A device plugin that started at this time has registered.
    PluginReady {
        node: String,
        since_ms: i64,
    },
    /// The mig-manager has applied a layout.
    MigApplied {
        node: String,
        layout: String,
    },
}

#[derive(Debug, Default)]
pub struct Timers {
    queue: BTreeMap<(i64, u64), Due>,
    count: u64,
}

impl Timers {
    pub fn at(&mut self, at_ms: i64, due: Due) {
        self.count += 1;
        self.queue.insert((at_ms, self.count), due);
    }

    /// Adds a timer unless it is pending already; an earlier one is enough.
    pub fn once(&mut self, at_ms: i64, due: Due) {
        if !self.queue.iter().any(|((at, _), waiting)| *at <= at_ms && *waiting == due) {
            self.at(at_ms, due);
        }
    }

    pub fn next_ms(&self) -> Option<i64> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first timer that is due at a time.
    pub fn take(&mut self, now_ms: i64) -> Option<(i64, Due)> {
        let entry = self.queue.first_entry().filter(|e| e.key().0 <= now_ms)?;
        let ((at, _), due) = entry.remove_entry();
        Some((at, due))
    }
}
