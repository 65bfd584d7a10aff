//! States and outcomes of a node in a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RecapCounts;

/// Where a node stands; the names are those that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Its wave has not begun.
    Pending,
    /// Being connected to and read.
    Preflight,
    /// Applies changes that disturb no running work.
    Applying,
    /// Waiting for the budget, the window or a lock.
    Waiting,
    /// Being taken out of service.
    Draining,
    /// Out of service: a disruptive act is under way.
    Acting,
    Rebooting,
    Verifying,
    /// Being given back.
    Resuming,
    /// Brought to its declared state by this run.
    Done,
    /// Was as declared already; untouched.
    Compliant,
    /// A reading found differences (`plan`, `audit`).
    Drift,
    /// The state could not be read: never counts as declared.
    Unknown,
    Failed,
    /// Stopped for a person's decision.
    Held,
    Unreachable,
    /// Never begun.
    Skipped,
}

impl NodeState {
    /// Every state, in the order in which people read counts.
    pub const ALL: [Self; 17] = [
        Self::Done,
        Self::Compliant,
        Self::Drift,
        Self::Unknown,
        Self::Failed,
        Self::Held,
        Self::Unreachable,
        Self::Skipped,
        Self::Rebooting,
        Self::Acting,
        Self::Draining,
        Self::Waiting,
        Self::Verifying,
        Self::Resuming,
        Self::Applying,
        Self::Preflight,
        Self::Pending,
    ];

    /// Whether the node's part in the run is over.
    pub const fn is_final(self) -> bool {
        use NodeState::{Compliant, Done, Drift, Failed, Held, Skipped, Unknown, Unreachable};
        matches!(self, Done | Compliant | Drift | Unknown | Failed | Held | Unreachable | Skipped)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Preflight => "preflight",
            Self::Applying => "applying",
            Self::Waiting => "waiting",
            Self::Draining => "draining",
            Self::Acting => "acting",
            Self::Rebooting => "rebooting",
            Self::Verifying => "verifying",
            Self::Resuming => "resuming",
            Self::Done => "done",
            Self::Compliant => "compliant",
            Self::Drift => "drift",
            Self::Unknown => "unknown",
            Self::Failed => "failed",
            Self::Held => "held",
            Self::Unreachable => "unreachable",
            Self::Skipped => "skipped",
        }
    }
}

impl std::fmt::Display for NodeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a node ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NodeOutcome {
    /// A final state.
    pub state: NodeState,
    /// Why, where that is not plain; one sentence, with what to do next.
    pub message: Option<String>,
    pub counts: RecapCounts,
    /// Seconds from its first connection to its end.
    pub seconds: u64,
    /// Whether it was rebooted.
    pub rebooted: bool,
    /// Whether this run left it out of service.
    pub out_of_service: bool,
}
