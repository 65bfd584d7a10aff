//! What earlier runs left at schedulers, as far as journals of this machine say.

use std::collections::HashMap;

use jiff::Timestamp;

use super::Marker;
use crate::event::HELD_BY_A_RUN;

/// A node that an earlier run took from its scheduler and did not give back, as far as its journal says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    pub host: String,
    /// The scheduler's name, and the node's there.
    pub scheduler: String,
    pub node: String,
    /// That of an older run where this one had adopted the node.
    pub marker: Marker,
    /// The run whose journal says so.
    pub run: String,
    /// Whether that run is over and had the same work: then nobody else goes on with the node.
    pub is_taken_over: bool,
    /// What to do about it, ready to show: `gpufleet resume RUN` goes on with it.
    pub next: String,
}

/// A reboot of an earlier run that did not make current what it was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VainReboot {
    pub why: Vec<String>,
    /// The boot that it led to: any other one may have helped.
    pub boot_id: String,
    pub at: Timestamp,
    pub run: String,
}

/// What this run knows of earlier ones.
#[derive(Clone, Debug)]
pub struct EarlierRuns {
    /// Nodes that a run whose journal is lost left drained, with its markers. This run finishes them and gives them back.
    pub adopted: HashMap<String, Marker>,
    /// What journals of this machine tell, newest run first.
    pub left: Vec<LeftBehind>,
    /// By host.
    pub vain: HashMap<String, VainReboot>,
    /// The command that takes over what a run left drained whose journal is lost; behind it stands the run.
    pub adopt: String,
}

impl Default for EarlierRuns {
    fn default() -> Self {
        let adopt = "gpufleet adopt PLAYBOOK --run".to_owned();
        Self { adopted: HashMap::new(), left: Vec::new(), vain: HashMap::new(), adopt }
    }
}

impl EarlierRuns {
    /// What a marker means that stands at the scheduler in the way of this run, ready to show.
    pub(crate) fn meaning(&self, marker: &Marker) -> String {
        let (run, next) = self.next(marker);
        format!("run {run}{HELD_BY_A_RUN}{next}")
    }

    /// The run that has to go on with a node which has this marker, and what leads on, ready to show.
    pub(crate) fn next<'a>(&'a self, marker: &'a Marker) -> (&'a str, String) {
        match self.left.iter().find(|left| left.marker == *marker) {
            Some(left) => (&left.run, left.next.clone()),
            None => {
                let next = format!(
                    "no journal of this machine tells of it; `gpufleet resume {0}` goes on with it where it was started, and \
                     `{1} {0}` takes over what it left if its journal is lost",
                    marker.run, self.adopt
                );
                (&marker.run, next)
            }
        }
    }
}
