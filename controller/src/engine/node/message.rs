//! The messages between the tasks of nodes and the dispatcher.

use std::sync::Arc;

use gpufleet_protocol::{Disruption, Permit};
use jiff::Timestamp;
use tokio::sync::oneshot;

use crate::{
    engine::ports::scheduler::DrainError,
    event::What,
    interpreter::Position,
    journal::{Entry, WriteError},
    rollout::Input,
};

/// From a node's task; `host` is the index in the play.
pub(crate) enum FromNode {
    Record(Entry),
    /// An event that must be on disk before its act.
    Durable(What, oneshot::Sender<Result<(), WriteError>>),
    WantsPermit {
        host: usize,
        class: Disruption,
        why: String,
    },
    /// What happened to a node, for the rollout.
    Tell(Input),
    /// The answer to a survey: the places of hosts that others have out, the play's first and its neighbours' behind them.
    Surveyed(Result<Vec<usize>, DrainError>),
    /// Waits for the others of its wave (strategy `linear`).
    Barrier {
        host: usize,
        task: Arc<str>,
        at: Position,
        is_out: bool,
    },
    /// Failed in a way that ends all hosts (`any_errors_fatal`).
    Raised {
        host: usize,
        /// If an earlier process of the run may have told the others: hosts that are not behind this place do not know.
        again: Option<Position>,
    },
    /// The first of a wave to ask runs a `run_once` task, the others get its result.
    Latch {
        host: usize,
        key: Arc<str>,
    },
    LatchResult {
        key: Arc<str>,
        result: Box<LatchValue>,
    },
}

/// What a `run_once` task gave its first host.
pub(crate) type LatchValue = crate::interpreter::Copied;

/// To a node's task.
pub(crate) enum ToNode {
    /// Take the node from its scheduler, by then at the latest.
    Drain {
        deadline: Timestamp,
    },
    /// Give it back: the run stops.
    StopDraining,
    ProveIdle,
    Grant(Permit),
    Deny(String),
    /// The same, because the run was told to stop: a resume asks again.
    Stop(String),
    /// All hosts are at the barrier.
    Go,
    /// A host ended the play or the batch for all hosts.
    End,
    /// Another host failed in a way that ends all hosts; the journal has it.
    Halt,
    /// This node runs the `run_once` task.
    LatchYours,
    LatchValue(Box<LatchValue>),
}

/// How far a run still goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    Going,
    /// Nodes that have not begun do not begin; the others go on.
    NoneNew,
    /// Nodes that are in service stop after their task.
    Stopping,
}
