//! What is the same for all nodes of a run, and of a play.

use std::{collections::HashSet, sync::Arc};

use gpufleet_protocol::{RunEpoch, health::HealthCheck};

use crate::{
    engine::ports::scheduler::{EarlierRuns, Scheduler},
    engine::{
        node::{
            command_losses::CommandLosses,
            conversation::{delegates::Delegates, ways::Ways},
            hooks::Hooks,
            results_budget::ResultsBudget,
            throttle::Throttles,
        },
        ports::{
            confirm::Stepper,
            keep_signer::KeepSigner,
            link::{Connector, Purpose},
        },
    },
    event::Verb,
    index::PlayIndex,
};

/// What all nodes of a run share.
pub(crate) struct RunSettings {
    pub(crate) verb: Verb,
    pub(crate) holder: RunEpoch,
    /// An earlier process of this run has been here.
    pub(crate) resumed: bool,
    /// Seconds that a task may take which does not say.
    pub(crate) task_timeout_s: u64,
    pub(crate) overrules: Overrules,
    /// The boot of the machine that gpufleet itself runs on: a node in the same one is never disturbed.
    pub(crate) own_boot: Option<String>,
    /// Says whether a task runs (`--step`).
    pub(crate) stepper: Option<Arc<dyn Stepper>>,
    pub(crate) keeping: Keeping,
    pub(crate) connector: Arc<dyn Connector>,
    /// What tells a node's silence from that of the way to it.
    pub(crate) ways: Arc<Ways>,
    pub(crate) delegates: Arc<Delegates>,
    /// What hosts keep of results.
    pub(crate) results_budget: Arc<ResultsBudget>,
}

/// What the run does about the state that nodes keep.
pub(crate) struct Keeping {
    /// The last play that changes that.
    pub(crate) last: Option<PlayIndex>,
    /// Signs it.
    pub(crate) signer: Option<Arc<dyn KeepSigner>>,
}

/// What all nodes of a play share.
pub(crate) struct PlaySettings {
    pub(crate) run: Arc<RunSettings>,
    /// The play's index in the program.
    pub(crate) play: PlayIndex,
    pub(crate) purpose: Purpose,
    /// What must hold before a node is given back.
    pub(crate) gate: Vec<HealthCheck>,
    /// Commands of the play's policy around its nodes.
    pub(crate) hooks: Hooks,
    /// Who has to let go of a node before it is disturbed.
    pub(crate) scheduler: Option<Arc<Scheduler>>,
    /// Whether the hosts wait for each other at each task.
    pub(crate) linear: bool,
    /// Whether its text shows something that may disturb.
    pub(crate) disturbs: bool,
    /// In a reading, hosts that a later play selects too.
    pub(crate) later: HashSet<String>,
    pub(crate) throttles: Throttles,
    pub(crate) command_losses: CommandLosses,
    pub(crate) earlier: Arc<EarlierRuns>,
}

/// What a person said may go over a safety check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrules {
    /// `--force`: a node is disturbed even if it is busy, or if that is not known.
    pub force: bool,
    /// `--steal`: a lock of another run is taken over.
    pub steal: bool,
}
