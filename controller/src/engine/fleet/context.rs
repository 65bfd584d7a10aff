//! What the dispatcher of a play works with.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    engine::{
        fleet::{approval::Approval, neighbours::Neighbours, recorder::Recorder},
        node::{
            settings::{PlaySettings, RunSettings},
            turn::MakeCursor,
        },
    },
    interpreter::HostSnapshots,
    rollout::SoFar,
};

/// What earlier plays left when a play begins or is taken up.
pub(crate) struct EarlierPlays {
    pub(crate) so_far: SoFar,
    /// Nodes out of service that the play does not select.
    pub(crate) out_elsewhere: Vec<String>,
    /// An earlier play stopped the run: what is under way is finished to a safe point, and nothing else is done.
    pub(crate) stopped: bool,
    pub(crate) settings: Arc<RunSettings>,
}

/// What the dispatcher of one play works with.
pub(crate) struct PlayContext<'a> {
    pub(crate) settings: Arc<PlaySettings>,
    pub(crate) names: Vec<String>,
    pub(crate) neighbours: Neighbours,
    /// Nodes worked on at once.
    pub(crate) forks: usize,
    pub(crate) cursors: MakeCursor,
    pub(crate) approval: Approval,
    pub(crate) winds_up: bool,
    pub(crate) before: EarlierPlays,
    /// The variables that its hosts leave for each other.
    pub(crate) snapshots: Arc<HostSnapshots>,
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) interrupts: &'a mut mpsc::Receiver<()>,
}
