//! What node tasks and the dispatcher say to each other.

use std::sync::Arc;

use gpufleet_protocol::{Disruption, Permit};
use jiff::Timestamp;
use tokio::sync::oneshot;

use crate::{
    engine::ports::scheduler::DrainError, event::What, interpreter::Position, journal::WriteError,
    rollout::Input,
};

/// From a node's task; `host` is the index in the play.
pub(crate) enum FromNode {
    Event(What),
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
    /// Failed where any failure is everybody's.
    Raised {
        host: usize,
        /// Where an earlier process of the run may have told the others: those who are not behind it do not know.
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
    /// Everybody is at the barrier.
    Go,
    /// Somebody ended the play or the batch for everybody.
    End,
    /// Somebody failed where any failure is everybody's; the journal has it.
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
    /// Nodes that disturb nobody stop after their task.
    Stopping,
}
