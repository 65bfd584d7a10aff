//! The inputs and actions of a rollout. Every input can be journalled and replayed.

use std::collections::BTreeMap;

use gpufleet_protocol::Disruption;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::SoFar;

/// What happened to a node (an index into the play's hosts) or to the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The play begins.
    Begin,
    /// The node's next operation needs a permit of this class.
    WantsPermit {
        host: usize,
        class: Disruption,
    },
    /// The node is drained, as [`Action::Drain`] requested.
    Drained {
        host: usize,
    },
    /// The drain was refused, because somebody else holds the node out of service.
    DrainRefused {
        host: usize,
        by: String,
    },
    /// The drain did not end in time, or was stopped by [`Action::StopDraining`].
    DrainFailed {
        host: usize,
        why: String,
        /// Whether the node is, or may be, still drained, so that it keeps its place.
        still_out: bool,
    },
    /// The answer to [`Action::Survey`]: nodes that others have out of service, in the play and elsewhere.
    Surveyed {
        out: Vec<usize>,
        /// Number of nodes elsewhere that fill the budget.
        elsewhere: usize,
        /// Number of nodes elsewhere in each failure domain of the play.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        domains: BTreeMap<usize, usize>,
    },
    /// The survey failed; hosts that wait for it are denied.
    SurveyFailed {
        why: String,
    },
    /// The answer to [`Action::ProveIdle`]: nothing runs on the node.
    Idle {
        host: usize,
    },
    /// The other answer to [`Action::ProveIdle`]: something runs there, or it is not known.
    Busy {
        host: usize,
        reason: String,
    },
    /// The node is back in service: its disruptive section is verified and over, or its drain was undone.
    Released {
        host: usize,
    },
    Ended {
        host: usize,
        end: End,
    },
    /// The answer to [`Action::CheckSoak`] for one node.
    SoakChecked {
        host: usize,
        ok: bool,
        why: String,
    },
    /// The node was drained by a run whose records are lost, and this run takes it over; comes before
    /// [`Input::Begin`].
    Adopted {
        host: usize,
    },
    /// The node has not answered yet: it counts as out until [`Input::OthersOut`] says otherwise; comes before
    /// [`Input::Begin`].
    Late {
        host: usize,
    },
    /// Something outside of this play took the node out of service, or it came back.
    OthersOut {
        host: usize,
        out: bool,
    },
    /// A task failed whose failure stops the play.
    Fatal,
    /// A task ends the play for all hosts (`meta: end_play`): no further wave starts, which is no failure.
    EndPlay,
    /// A person or a signal stops the run.
    Interrupt,
    /// Time has passed, as [`Action::WakeAt`] requested.
    Tick,
    /// A new controller continues after a crash: no pending request will be answered. It restarts the tasks of
    /// [`super::Rollout::in_flight`], read before this input, as the input itself may start further ones.
    Resume,
    /// A node that ended held, unreachable or stopped takes part again; comes before [`Input::Resume`].
    Reopen {
        host: usize,
    },
    /// A node that an earlier play had lost is back, and takes part in the last wave; comes before [`Input::Resume`].
    Returned {
        host: usize,
    },
    /// What other plays of the run changed since; comes before [`Input::Resume`], and after [`Input::Reopen`] and
    /// [`Input::Returned`].
    Beside {
        so_far: SoFar,
        /// Nodes of this play that other plays have out of service, or that do not answer.
        out: Vec<usize>,
    },
}

/// How a node ended the play.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Done,
    Failed,
    Held,
    Unreachable,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    StartWave {
        wave: usize,
    },
    Start {
        host: usize,
    },
    /// Find out which other nodes are out of service; answered by [`Input::Surveyed`].
    Survey,
    /// Drain the node; answered by [`Input::Drained`], [`Input::DrainRefused`] or [`Input::DrainFailed`].
    Drain {
        host: usize,
        /// When to stop waiting for it.
        deadline: Timestamp,
    },
    /// Undo the drain; answered by [`Input::DrainFailed`].
    StopDraining {
        host: usize,
    },
    /// Find out now whether anything runs on the node.
    ProveIdle {
        host: usize,
    },
    Grant {
        host: usize,
        class: Disruption,
        /// When the window closes; `None` without a window, and for a node that is out past its end.
        deadline: Option<Timestamp>,
    },
    /// With drains, a drained node keeps its place until [`Input::Released`] says that it was given back.
    Deny {
        host: usize,
        why: Denial,
    },
    /// The node waits for these to come back (at most 16 are named). Sent once for each request.
    Waits {
        host: usize,
        out: Vec<usize>,
    },
    /// Nothing starts before the window opens.
    WaitsForWindow {
        opens: Timestamp,
    },
    FinishWave {
        wave: usize,
    },
    /// The next wave waits until then.
    Soak {
        wave: usize,
        until: Timestamp,
    },
    /// Check the health gates of these; answered by [`Input::SoakChecked`] for each.
    CheckSoak {
        wave: usize,
        hosts: Vec<usize>,
    },
    /// Send [`Input::Tick`] at this time; replaces every earlier alarm.
    WakeAt {
        at: Timestamp,
    },
    /// No further node starts.
    Stop {
        reason: StopReason,
    },
    /// The play is over; these nodes were never started.
    Finish {
        never_started: Vec<usize>,
    },
}

/// Why a permit is denied. The node is held, unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    Busy {
        reason: String,
    },
    /// So many nodes are out for good that no other may follow; names at most 16 of them.
    BudgetSpent {
        out: Vec<usize>,
        budget: usize,
    },
    /// The same for the node's failure domain.
    DomainSpent {
        domain: String,
        out: Vec<usize>,
        limit: usize,
    },
    /// Somebody else holds it out of service.
    HeldByOthers {
        by: String,
    },
    /// The node was not drained.
    NotDrained {
        why: String,
    },
    /// The survey failed.
    NotSurveyed {
        why: String,
    },
    /// The operation takes longer than the window stays open.
    WindowTooShort {
        needs_s: u64,
        closes: Timestamp,
    },
    Stopped {
        reason: StopReason,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    FailPercentage {
        wave: usize,
        failed: usize,
        /// Number of nodes in the wave; of the whole play, for a wave of nodes of unknown class.
        of: usize,
    },
    Failures {
        failed: usize,
        allowed: usize,
    },
    Unreachable {
        unreachable: usize,
        allowed: usize,
    },
    /// These canaries failed.
    Canary {
        failed: Vec<usize>,
    },
    /// No canary failed, but these did not finish, so they prove nothing.
    CanaryHeld {
        held: Vec<usize>,
    },
    AnyError,
    WholeWave {
        wave: usize,
    },
    WindowClosed {
        closes: Timestamp,
    },
    Interrupted,
}

impl StopReason {
    /// Returns the canaries that stopped the run, and whether they failed; empty if something else did.
    pub fn canaries(&self) -> (&[usize], bool) {
        match self {
            Self::Canary { failed } => (failed, true),
            Self::CanaryHeld { held } => (held, false),
            _ => (&[], false),
        }
    }

    /// Whether a threshold was reached. A resume lifts a stop by a person or a window, and no other.
    pub const fn is_lasting(&self) -> bool {
        !matches!(self, Self::Interrupted | Self::WindowClosed { .. })
    }
}

/// An input that is impossible in the node's state: a fault of the caller, never a panic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    #[error("no host {host} in this play")]
    NoSuchHost { host: usize },
    #[error("host {host} is {state}, where {input} makes no sense")]
    Impossible { host: usize, state: &'static str, input: &'static str },
    #[error("nobody asked for a survey that failed")]
    NoSurvey,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FailPercentage { failed, of, .. } => {
                write!(f, "{failed} of {of} nodes failed, more than `max_fail_percentage` allows")
            }
            Self::Failures { failed, allowed } => {
                let nodes = if *failed == 1 { "node" } else { "nodes" };
                write!(f, "{failed} {nodes} failed, more than the {allowed} that `max_failures` allows")
            }
            Self::Unreachable { unreachable, allowed } => {
                let nodes = if *unreachable == 1 { "node does" } else { "nodes do" };
                write!(
                    f,
                    "{unreachable} {nodes} not answer, more than the {allowed} that `max_unreachable` allows"
                )
            }
            Self::Canary { failed } => match failed.len() {
                1 => f.write_str("a canary failed"),
                failed => write!(f, "{failed} canaries failed"),
            },
            Self::CanaryHeld { held } => match held.len() {
                1 => f.write_str("a canary was held: it proves nothing"),
                held => write!(f, "{held} canaries were held: they prove nothing"),
            },
            Self::AnyError => f.write_str("a node failed, and `any_errors_fatal` is set"),
            Self::WholeWave { .. } => f.write_str("every node of the wave failed"),
            Self::WindowClosed { closes } => write!(f, "the window closed at {closes}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}
