//! The verdict of a node, the next action, and the exit code of a run.
//!
//! Invariant: what could not be read is `unknown` and never `ok`.

pub use gpufleet_compliance::{Action as NextAction, Verdict};
use gpufleet_protocol::facts::GpuSystemState;

use super::{NodeModel, RunModel, findings::action_of};
use crate::event::{NodeState, TaskStatus, UNMET, Verb};

impl NodeModel {
    /// Returns the worst verdict of what is known about the node.
    pub fn verdict(&self, verb: Verb) -> Verdict {
        let of_checks = match &self.health {
            Some(health) => health.verdict.verdict,
            None if self.awaits_health => Verdict::Unknown,
            None => Verdict::Na,
        };
        self.verdict_of_tasks(verb).max(of_checks)
    }

    /// Whether a task or a check applies to it.
    pub fn applies(&self, verb: Verb) -> bool {
        self.verdict(verb) != Verdict::Na
    }

    /// Whether it was asked for anything: not where no condition held. That its hardware has nothing of the kind is an answer.
    fn was_asked(&self, verb: Verb) -> bool {
        self.applies(verb) || self.tasks.iter().any(|task| task.message.as_deref() != Some(UNMET))
    }

    /// Whether something was asked of it and nothing that counts is wrong with it. A baseline may say that a warning counts.
    /// Not where only commands ran, or where a playbook ignores what it could not reach.
    pub fn is_compliant(&self, verb: Verb) -> bool {
        self.applies(verb)
            && self.checks_are_met()
            && self.verdict_of_tasks(verb) < Verdict::Drift
            && !self.is_done_unjudged(verb)
            && self.ignored_failures().next().is_none()
    }

    /// Whether it is not compliant for one reason alone: some tasks are commands, which no reading judges.
    pub fn lacks_only_commands(&self, verb: Verb) -> bool {
        let judged = self.judged(verb);
        !judged.is_whole()
            && judged.is_whole_but_for_commands()
            && self.checks_are_met()
            && self.verdict_of_known(verb) < Verdict::Drift
    }

    /// Whether it was found to be as declared, but for tasks that were not judged: its state is then unknown, and its
    /// message says of which.
    pub(super) fn is_as_declared_so_far(&self, verb: Verb) -> bool {
        self.state == NodeState::Unknown
            && self.message().is_some_and(|message| self.judged(verb).gap().as_deref() == Some(message))
    }

    fn checks_are_met(&self) -> bool {
        match &self.health {
            Some(health) => health.verdict.compliant,
            None => !self.awaits_health,
        }
    }

    /// Returns the worst verdict of its tasks and of its state.
    fn verdict_of_tasks(&self, verb: Verb) -> Verdict {
        let known = self.verdict_of_known(verb);
        // Below drift, because a run changes what is known to differ, whatever else is unknown.
        let whole = known >= Verdict::Drift || self.judged(verb).is_whole();
        if whole { known } else { Verdict::Unknown }
    }

    /// The same, whatever was not judged.
    fn verdict_of_known(&self, verb: Verb) -> Verdict {
        let mut worst = match self.state {
            NodeState::Done | NodeState::Compliant => Verdict::Ok,
            NodeState::Unknown if self.is_as_declared_so_far(verb) => Verdict::Ok,
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
        if let Some(facts) = &self.facts {
            match &facts.gpu.state {
                GpuSystemState::Hung { .. } | GpuSystemState::Crashed { .. } => judge(Verdict::Unknown),
                GpuSystemState::VersionMismatch { .. } => judge(Verdict::Fail),
                GpuSystemState::Ok if self.missing_gpus().is_some() => judge(Verdict::Fail),
                _ => {}
            }
        }
        let nothing_applied = worst == Verdict::Ok
            && self.state != NodeState::Done
            && self.tasks.iter().all(|task| task.status == TaskStatus::Skipped);
        if nothing_applied { Verdict::Na } else { worst }
    }

    /// Whether a task was not judged for this reason because the driver does not answer.
    pub(super) fn is_of_hung_driver(&self, why: &str) -> bool {
        let state = self.facts.as_ref().map(|facts| &facts.gpu.state);
        matches!(state, Some(GpuSystemState::Hung { .. })) && why.contains("NVML did not answer")
    }

    /// Whether a driver that does not answer is all that keeps the tasks from being judged.
    fn waits_for_hung_driver(&self, verb: Verb) -> bool {
        let state = self.facts.as_ref().map(|facts| &facts.gpu.state);
        let was_read = matches!(
            self.state,
            NodeState::Done | NodeState::Compliant | NodeState::Drift | NodeState::Unknown
        );
        was_read
            && matches!(state, Some(GpuSystemState::Hung { .. }))
            && self.judged(verb).not_judged().all(|(_, _, why)| self.is_of_hung_driver(why))
    }

    /// Returns what to do about the verdict: the strongest action of what it comes from.
    pub fn next_action(&self, verb: Verb) -> NextAction {
        let verdict = self.verdict(verb);
        let of_checks = match &self.health {
            Some(health) if health.verdict.verdict == verdict => health.verdict.action,
            // A board to be replaced is, whatever else is wrong.
            Some(health) if health.verdict.action == NextAction::Replace => NextAction::Replace,
            _ => NextAction::None,
        };
        let of_tasks = match verdict {
            Verdict::Na | Verdict::Ok => NextAction::None,
            _ if self.verdict_of_tasks(verb) < verdict => NextAction::None,
            Verdict::Unknown if self.waits_for_hung_driver(verb) => NextAction::Reboot,
            Verdict::Warn | Verdict::Unknown | Verdict::Fail => NextAction::Investigate,
            Verdict::Drift if self.state == NodeState::Held => NextAction::Investigate,
            Verdict::Drift => self.disruption().map_or(NextAction::Apply, action_of),
        };
        of_tasks.max(of_checks)
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
    /// Whether an audit gives exit code 3 for commands, which no reading judges, where all else is as declared.
    pub strict: bool,
}

/// Exit code of a run that is not over, whose present state is no result.
pub const NOT_OVER: u8 = 6;

/// Returns the exit code that the run ended with, or [`NOT_OVER`].
pub fn exit_code(model: &RunModel) -> u8 {
    model.finish.as_ref().map_or(NOT_OVER, |finish| finish.exit_code)
}

/// Returns the exit code by the states of the nodes.
///
/// 0 done; 2 a node failed or could not be read; 3 not as declared or not known (`audit`; commands only with `strict`), no
/// node was judged (`audit`), or changes found and `fail_on_change`; 4 nodes were unreachable and nothing else is wrong; 5 stopped by a safety gate, or nodes held for
/// a decision; 130 interrupted. 1 is for invalid input, without a run, and 6 for a run that is not over.
pub fn computed_exit_code(model: &RunModel, rules: ExitRules) -> u8 {
    let verb = model.verb();
    let any = |state: NodeState| model.count(state) > 0;
    let not_compliant = || {
        let judged = |node: &&NodeModel| !matches!(node.state, NodeState::Unreachable | NodeState::Held);
        let passes = |node: &NodeModel| {
            node.is_compliant(verb)
                || !node.applies(verb)
                || (!rules.strict && node.lacks_only_commands(verb))
        };
        model.nodes().iter().filter(judged).any(|node| !passes(node))
    };
    if rules.ending == Ending::Interrupted {
        return 130;
    }
    if rules.ending == Ending::Stopped {
        return 5;
    }
    if verb.info().judges {
        // Such as one without the tag that its playbook wants, or with a group's name misspelt in each `when`.
        let judged_nothing =
            !model.nodes().is_empty() && !model.nodes().iter().any(|node| node.was_asked(verb));
        if not_compliant() || any(NodeState::Held) || judged_nothing {
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
