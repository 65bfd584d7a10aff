//! The verdict of a node, the next action, and the exit code of a run.
//!
//! Invariant: what could not be read is `unknown` and never `ok`.

use gpufleet_protocol::{Disruption, facts::GpuSystemState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NodeModel, RunModel};
use crate::event::{NodeState, TaskStatus, Verb};

/// How a node compares with what is declared for it, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing that is declared applies to it.
    Na,
    Ok,
    /// As declared, with something that a person should see.
    Warn,
    /// Differs from what is declared.
    Drift,
    /// Could not be read.
    Unknown,
    /// Cannot be as declared, or an act on it failed.
    Fail,
}

impl Verdict {
    /// All verdicts, from worst to best.
    pub const WORST_FIRST: [Self; 6] =
        [Self::Fail, Self::Unknown, Self::Drift, Self::Warn, Self::Ok, Self::Na];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Na => "na",
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Drift => "drift",
            Self::Unknown => "unknown",
            Self::Fail => "fail",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What brings a node nearer to what is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NextAction {
    None,
    /// A run that disturbs no running work.
    Apply,
    /// A run that resets GPUs or stops their clients.
    Reset,
    /// A run that reboots the node.
    Reboot,
    /// A person looks at the node.
    Investigate,
}

impl NextAction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Apply => "apply",
            Self::Reset => "reset",
            Self::Reboot => "reboot",
            Self::Investigate => "investigate",
        }
    }
}

impl std::fmt::Display for NextAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl NodeModel {
    /// Returns the worst verdict of what is known about the node.
    pub fn verdict(&self, verb: Verb) -> Verdict {
        let mut worst = match self.state {
            NodeState::Done | NodeState::Compliant => Verdict::Ok,
            NodeState::Drift | NodeState::Held => Verdict::Drift,
            NodeState::Failed => Verdict::Fail,
            // A node that was never begun, or left half-way, was not proven to be anything.
            _ => Verdict::Unknown,
        };
        let mut judge = |verdict: Verdict| worst = worst.max(verdict);
        if self.tasks_in(TaskStatus::Failed).next().is_some() {
            judge(Verdict::Fail);
        }
        if self.tasks_in(TaskStatus::Unknown).next().is_some() {
            judge(Verdict::Unknown);
        }
        if !self.awaiting().is_empty() || (!verb.writes() && self.changes().next().is_some()) {
            judge(Verdict::Drift);
        }
        if self.tasks.iter().any(|task| !task.warnings.is_empty()) {
            judge(Verdict::Warn);
        }
        // Below drift, because a run changes what is known to differ, whatever else is unknown.
        if worst < Verdict::Drift && !self.judged(verb).is_whole() {
            worst = Verdict::Unknown;
        }
        let mut judge = |verdict: Verdict| worst = worst.max(verdict);
        if let Some(facts) = &self.facts {
            match &facts.gpu.state {
                GpuSystemState::Hung { .. } | GpuSystemState::Crashed { .. } => judge(Verdict::Unknown),
                GpuSystemState::VersionMismatch { .. } => judge(Verdict::Fail),
                GpuSystemState::Ok if facts.gpu.gpus.len() < facts.gpu.pci_count as usize => {
                    judge(Verdict::Fail);
                }
                _ => {}
            }
        }
        let only_skipped = worst == Verdict::Ok
            && !self.tasks.is_empty()
            && self.tasks.iter().all(|task| task.status == TaskStatus::Skipped);
        if only_skipped { Verdict::Na } else { worst }
    }

    /// Returns what to do about the verdict.
    pub fn next_action(&self, verb: Verb) -> NextAction {
        match self.verdict(verb) {
            Verdict::Na | Verdict::Ok => NextAction::None,
            Verdict::Warn | Verdict::Unknown | Verdict::Fail => NextAction::Investigate,
            Verdict::Drift if self.state == NodeState::Held => NextAction::Investigate,
            Verdict::Drift => match self.disruption() {
                Some(Disruption::Reboot) => NextAction::Reboot,
                Some(Disruption::GpuReset | Disruption::Clients) => NextAction::Reset,
                Some(Disruption::Live) | None => NextAction::Apply,
            },
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    #[default]
    Completed,
    /// By a safety gate: a threshold, a window, a lock.
    Stopped,
    /// By Ctrl-C.
    Interrupted,
}

/// What the exit code depends on, beside the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitRules {
    pub ending: Ending,
    /// Whether changes that a plan found give exit code 3.
    pub fail_on_change: bool,
}

/// Exit code of a run that is not over, whose present state is no result.
pub const NOT_OVER: u8 = 6;

/// Returns the exit code that the run ended with, or [`NOT_OVER`].
pub fn exit_code(model: &RunModel) -> u8 {
    model.finish.as_ref().map_or(NOT_OVER, |finish| finish.exit_code)
}

/// Returns the exit code by the states of the nodes.
///
/// 0 done; 2 a node failed or could not be read; 3 not as declared or not known (`audit`), or changes found and
/// `fail_on_change`; 4 nodes were unreachable and nothing else is wrong; 5 stopped by a safety gate, or nodes held for
/// a decision; 130 interrupted. 1 is for invalid input, without a run, and 6 for a run that is not over.
pub fn computed_exit_code(model: &RunModel, rules: ExitRules) -> u8 {
    let verb = model.verb();
    let any = |state: NodeState| model.count(state) > 0;
    let verdicts = |wanted: &[Verdict]| {
        let judged = |node: &&NodeModel| !matches!(node.state, NodeState::Unreachable | NodeState::Held);
        model.nodes().iter().filter(judged).any(|node| wanted.contains(&node.verdict(verb)))
    };
    if rules.ending == Ending::Interrupted {
        return 130;
    }
    if rules.ending == Ending::Stopped {
        return 5;
    }
    if verb.info().judges {
        if verdicts(&[Verdict::Drift, Verdict::Unknown, Verdict::Fail]) || any(NodeState::Held) {
            return 3;
        }
    } else if any(NodeState::Failed) || any(NodeState::Unknown) {
        return 2;
    }
    if any(NodeState::Held) {
        return 5;
    }
    if any(NodeState::Unreachable) {
        return 4;
    }
    let found = || model.nodes().iter().any(|node| node.changes().next().is_some());
    if rules.fail_on_change && !verb.writes() && found() { 3 } else { 0 }
}
