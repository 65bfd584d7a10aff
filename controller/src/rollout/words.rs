//! What the rollout is told and what it answers. Every input can be journalled and replayed.

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
    /// The node's next act needs a permit of this class.
    WantsPermit {
        host: usize,
        class: Disruption,
    },
    /// The scheduler has let go of the node, as [`Action::Drain`] asked.
    Drained {
        host: usize,
    },
    /// Somebody else holds the node out of service: it is theirs.
    DrainRefused {
        host: usize,
        by: String,
    },
    /// The scheduler did not let go in time, or [`Action::StopDraining`] was obeyed.
    DrainFailed {
        host: usize,
        why: String,
        /// The node could not be given back, or nobody knows: it keeps its place.
        still_out: bool,
    },
    /// The answer to [`Action::Survey`]: who is out through somebody else, in the play and elsewhere.
    Surveyed {
        out: Vec<usize>,
        /// Nodes elsewhere that take up the budget.
        elsewhere: usize,
        /// Nodes elsewhere that are in these failure domains of the play.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        domains: BTreeMap<usize, usize>,
    },
    /// The survey gave no answer: who waits for it is denied.
    SurveyFailed {
        why: String,
    },
    /// The proof asked for by [`Action::ProveIdle`]: nothing works on the node.
    Idle {
        host: usize,
    },
    /// The same, with another answer; not knowing is being busy.
    Busy {
        host: usize,
        reason: String,
    },
    /// The node is back in service: its disruptive section is over and verified, or its drain was undone.
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
    /// The node was drained by a run whose records are lost, and is ours now; told before [`Input::Begin`].
    Adopted {
        host: usize,
    },
    /// The node has not answered yet: it counts as out until [`Input::OthersOut`] says more; told before
    /// [`Input::Begin`].
    Late {
        host: usize,
    },
    /// Something that is not ours took the node out of service, or it came back.
    OthersOut {
        host: usize,
        out: bool,
    },
    /// A failed task says that one failure stops the play.
    Fatal,
    /// A task ends the play for everybody (`meta: end_play`): no further wave starts, and that is no fault.
    EndPlay,
    /// A person or a signal asks the run to stop.
    Interrupt,
    /// Time passed, as [`Action::WakeAt`] asked.
    Tick,
    /// A new controller goes on after a crash: nothing that was asked for will be answered. It starts anew the tasks
    /// of [`super::Rollout::in_flight`], asked before this input: the input itself may start further ones.
    Resume,
    /// A node that ended held, unreachable or stopped takes part again; told before [`Input::Resume`].
    Reopen {
        host: usize,
    },
    /// A node that an earlier play had lost is there again, and takes part in the last wave; told before
    /// [`Input::Resume`].
    Returned {
        host: usize,
    },
    /// What other plays of the run have left behind by now, where that is not what it was; told before
    /// [`Input::Resume`], and after the two above.
    Beside {
        so_far: SoFar,
        /// Nodes of this play that other plays have out of service, or that do not answer.
        out: Vec<usize>,
    },
}

/// How a node's part ended.
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
    /// Find out who else is out of service; [`Input::Surveyed`] answers.
    Survey,
    /// Take the node from its scheduler; [`Input::Drained`], [`Input::DrainRefused`] or [`Input::DrainFailed`]
    /// answers.
    Drain {
        host: usize,
        /// When waiting for it ends.
        deadline: Timestamp,
    },
    /// Give the node back to its scheduler; [`Input::DrainFailed`] answers.
    StopDraining {
        host: usize,
    },
    /// Find out, now, whether anything works on the node.
    ProveIdle {
        host: usize,
    },
    Grant {
        host: usize,
        class: Disruption,
        /// When the window closes; none without a window, and for a node that is out past the end of it.
        deadline: Option<Timestamp>,
    },
    /// With drains, a node that was drained keeps its place until [`Input::Released`] says that it was given back.
    Deny {
        host: usize,
        why: Denial,
    },
    /// The node waits for these to come back (16 of them at most). Said once for each wish.
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
    /// Ask the health gates of these; [`Input::SoakChecked`] answers for each.
    CheckSoak {
        wave: usize,
        hosts: Vec<usize>,
    },
    /// Say [`Input::Tick`] then; replaces every earlier one.
    WakeAt {
        at: Timestamp,
    },
    /// Nothing new starts from here on.
    Stop {
        reason: StopReason,
    },
    /// The play is over; these were never started.
    Finish {
        never_started: Vec<usize>,
    },
}

/// Why a permit is refused. The node is held, untouched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    Busy {
        reason: String,
    },
    /// So many nodes are out for good that none may follow; names 16 of them at most.
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
    /// Its scheduler did not let go of it.
    NotDrained {
        why: String,
    },
    /// Nobody could say who else is out.
    NotSurveyed {
        why: String,
    },
    /// What it needs takes longer than the window stays open.
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
        /// Nodes of the wave; of the play, in a wave of nodes that were led aside.
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
    /// No canary failed, but these are not done: they prove nothing.
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
    /// The canaries that stopped the run, and whether they failed; nobody where it was something else.
    pub fn canaries(&self) -> (&[usize], bool) {
        match self {
            Self::Canary { failed } => (failed, true),
            Self::CanaryHeld { held } => (held, false),
            _ => (&[], false),
        }
    }

    /// Whether a bound was reached: who resumes the run takes back a stop by a person or a window, and no other.
    pub const fn is_lasting(&self) -> bool {
        !matches!(self, Self::Interrupted | Self::WindowClosed { .. })
    }
}

/// An event that cannot be in the state the node is in: a fault of the caller, never a panic.
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
                write!(f, "{failed} nodes failed, more than the {allowed} that `max_failures` allows")
            }
            Self::Unreachable { unreachable, allowed } => {
                write!(
                    f,
                    "{unreachable} nodes do not answer, more than the {allowed} that `max_unreachable` allows"
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
