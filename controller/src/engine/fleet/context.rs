//! What the dispatcher of a play works with.

use std::sync::Arc;

use gpufleet_protocol::{RunEpoch, health::HealthCheck};
use tokio::sync::mpsc;

use crate::{
    drain::Scheduler,
    engine::{
        fleet::{approval::Approval, neighbours::Neighbours, recorder::Recorder},
        node::{
            conversation::{delegates::Delegates, ways::Ways},
            hooks::Hooks,
            kept::Kept,
            settings::Overrules,
            throttle::Throttles,
            turn::MakeCursor,
        },
        ports::{
            confirm::Stepper,
            link::{Connector, Purpose},
        },
    },
    event::Verb,
    interpreter::Board,
    rollout::SoFar,
};

/// How a run stands where a play begins or is taken up.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub(crate) so_far: SoFar,
    /// Nodes out of service that the play does not select.
    pub(crate) out_elsewhere: Vec<String>,
    /// An earlier play stopped the run: what is under way is led to a safe point, and nothing else is done.
    pub(crate) stopped: bool,
    pub(crate) ways: Arc<Ways>,
}

/// What the dispatcher of one play works with.
pub(crate) struct PlayContext<'a> {
    pub(crate) play: usize,
    pub(crate) names: Vec<String>,
    pub(crate) neighbours: Neighbours,
    pub(crate) verb: Verb,
    pub(crate) forks: usize,
    pub(crate) task_timeout_s: u64,
    pub(crate) stepper: Option<Arc<dyn Stepper>>,
    pub(crate) purpose: Purpose,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) cursors: MakeCursor,
    pub(crate) approval: Approval,
    pub(crate) holder: RunEpoch,
    /// An earlier process of this run has been here.
    pub(crate) resumed: bool,
    /// What must hold before a node is given back.
    pub(crate) gate: Vec<HealthCheck>,
    pub(crate) scheduler: Option<Arc<Scheduler>>,
    pub(crate) winds_up: bool,
    pub(crate) before: Before,
    pub(crate) overrules: Overrules,
    pub(crate) own_boot: Option<String>,
    /// Whether its hosts wait for each other at each task.
    pub(crate) linear: bool,
    pub(crate) throttles: Arc<Throttles>,
    pub(crate) delegates: Arc<Delegates>,
    /// What its hosts keep of results.
    pub(crate) kept: Arc<Kept>,
    /// Commands of the play's policy around its nodes.
    pub(crate) hooks: Arc<Hooks>,
    /// Where its hosts tell each other what they have.
    pub(crate) board: Arc<Board>,
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) interrupts: &'a mut mpsc::Receiver<()>,
}
