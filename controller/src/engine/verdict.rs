//! From what tasks reported to where a node stands.

use gpufleet_protocol::{
    FailureKind, OpOutcome, OpStatus,
    tasks::{self, AsyncStatus, Class},
};

use crate::event::{NodeState, TaskReport, TaskStatus, Verb};

/// How bad a state is for the node as a whole; the worst one stands.
pub(crate) const fn badness(state: NodeState) -> u8 {
    match state {
        NodeState::Pending | NodeState::Skipped => 0,
        NodeState::Compliant => 1,
        NodeState::Done => 2,
        NodeState::Drift => 3,
        NodeState::Unknown => 4,
        NodeState::Held => 5,
        NodeState::Failed => 6,
        NodeState::Unreachable => 7,
        _ => 0,
    }
}

/// What an outcome says of a node that is out of service.
pub(crate) enum UnderPermit {
    Untouched,
    Acted,
    /// Something went wrong, and the node was not proven to be well since.
    Damaged(String),
}

pub(crate) fn under_permit(outcome: &OpOutcome) -> UnderPermit {
    match &outcome.status {
        // Why: the helper refused before it touched anything.
        OpStatus::Failed {
            kind: FailureKind::Busy | FailureKind::Refused | FailureKind::Invalid, ..
        }
        | OpStatus::NeedsPermit { .. }
        | OpStatus::Skipped { .. } => UnderPermit::Untouched,
        OpStatus::Failed { message: why, .. } | OpStatus::Unknown { reason: why } => {
            UnderPermit::Damaged(why.clone())
        }
        _ => UnderPermit::Acted,
    }
}

/// The state that one report alone would give its node, with the reason where it is a bad one.
pub(crate) fn of_report(verb: Verb, report: &TaskReport) -> (NodeState, Option<String>) {
    let because = || Some(report.message.clone().unwrap_or_else(|| format!("task `{}`", report.task)));
    let forgiven = report.ignored || report.rescued;
    match report.status {
        // Why also a command in a check: its failure is no reading that failed. An audit runs no commands.
        // Why not what is rescued: only a run tells what the rescue comes to. Both list what is ignored (`NodeResult`).
        TaskStatus::Failed
            if report.ignored && !verb.info().judges
                || forgiven
                    && (verb.writes() || verb.info().may_run_commands && is_command(&report.kind)) =>
        {
            (NodeState::Compliant, None)
        }
        // Why: what an audit could not read is unknown, even if the playbook ignores the failure.
        TaskStatus::Failed if forgiven => (NodeState::Unknown, because()),
        TaskStatus::Failed => (NodeState::Failed, because()),
        TaskStatus::Unreachable if report.ignored && verb.writes() => (NodeState::Compliant, None),
        TaskStatus::Unreachable if report.ignored => (NodeState::Unknown, because()),
        TaskStatus::Unreachable => (NodeState::Unreachable, because()),
        TaskStatus::Held => (NodeState::Held, because()),
        TaskStatus::Unknown => (NodeState::Unknown, because()),
        TaskStatus::Changed if verb.writes() => (NodeState::Done, None),
        TaskStatus::Changed => (NodeState::Drift, None),
        // Why only declared state: what a command does cannot be known beforehand, and it declares nothing.
        TaskStatus::Possible if !verb.writes() && is_declared(&report.kind) => (
            NodeState::Unknown,
            Some({
                let why = report.message.as_ref().map_or(String::new(), |why| format!(": {why}"));
                format!("task `{}` depends on what only the run itself can tell{why}", report.task)
            }),
        ),
        TaskStatus::Ok | TaskStatus::Skipped | TaskStatus::Possible => (NodeState::Compliant, None),
    }
}

pub(crate) fn is_command(kind: &str) -> bool {
    tasks::find(kind).is_some_and(|kind| kind.class == Class::Command)
}

fn is_declared(kind: &str) -> bool {
    // Why not `async_status`: it declares nothing, it asks what became of a job.
    tasks::find(kind).is_some_and(|kind| kind.class == Class::Node && !kind.is::<AsyncStatus>())
}
