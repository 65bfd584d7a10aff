//! How much of what is declared a reading could judge.
//!
//! A reading runs no command, and cannot say what hangs on one. What it did not judge is not as declared: nobody knows.

use std::collections::BTreeMap;

use gpufleet_protocol::tasks;

use super::{Phase, TaskReport, TaskStatus};

/// The tasks of one node that declare something and apply to it, and whether a reading judged each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// By name and place, with why it was not judged; items of a loop and members of a GPU group are one task.
    tasks: BTreeMap<(String, String), Option<String>>,
    /// The first that was not judged, with the reason.
    first: Option<String>,
    /// Whether something should have been read, and could not be.
    unread: bool,
}

impl Judged {
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a TaskReport>) -> Self {
        let mut all = Self::default();
        reports.into_iter().for_each(|report| all.take(report));
        all
    }

    /// Takes one more report in.
    pub fn take(&mut self, report: &TaskReport) {
        let counts = report.phase != Phase::Verify && report.status != TaskStatus::Skipped;
        if !counts || !tasks::find(&report.kind).is_some_and(|kind| kind.judged) {
            return;
        }
        let unread = matches!(report.status, TaskStatus::Unknown | TaskStatus::Unreachable);
        self.unread |= unread;
        let judged = !unread && report.status != TaskStatus::Possible;
        let why = (!judged).then(|| report.message.as_deref().unwrap_or("only a run can tell").to_owned());
        if let Some(why) = why.as_ref().filter(|_| self.first.is_none()) {
            self.first = Some(format!("`{}` ({}): {why}", report.task, report.position));
        }
        let key = (report.task.clone(), report.position.to_string());
        let known = self.tasks.entry(key).or_default();
        if known.is_none() {
            *known = why;
        }
    }

    /// Tasks that were judged.
    pub fn judged(&self) -> usize {
        self.tasks.values().filter(|why| why.is_none()).count()
    }

    /// Tasks that declare something and apply to the node.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Returns what was not judged: the task, its place, and why.
    pub fn not_judged(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.tasks
            .iter()
            .filter_map(|((task, position), why)| Some((task.as_str(), position.as_str(), why.as_deref()?)))
    }

    pub fn is_whole(&self) -> bool {
        self.first.is_none()
    }

    /// Whether something was judged, and the rest is what no reading judges, such as commands.
    pub fn is_whole_but_for_commands(&self) -> bool {
        !self.unread && self.judged() > 0
    }

    /// `3 of 4 tasks judged`.
    pub fn counts(&self) -> String {
        let tasks = if self.tasks() == 1 { "task" } else { "tasks" };
        format!("{} of {} {tasks} judged", self.judged(), self.tasks())
    }

    /// What was not judged and why; none where all was.
    pub fn gap(&self) -> Option<String> {
        Some(format!("{}; not {}", self.counts(), self.first.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::report;

    #[test]
    fn what_only_a_run_can_tell_is_not_judged() {
        let item = |line, status, item: &str| TaskReport {
            item: Some(item.to_owned()),
            ..report("command", line, status)
        };
        let reports = [
            report("setup", 1, TaskStatus::Ok),
            report("sysctl", 2, TaskStatus::Ok),
            report("gpu_power", 3, TaskStatus::Changed),
            report("debug", 4, TaskStatus::Possible),
            report("stat", 5, TaskStatus::Possible),
            report("shell", 6, TaskStatus::Skipped),
            item(7, TaskStatus::Ok, "a"),
            item(7, TaskStatus::Possible, "b"),
            TaskReport { phase: Phase::Verify, ..report("file", 8, TaskStatus::Possible) },
        ];
        let judged = Judged::of(&reports);
        assert_eq!((judged.judged(), judged.tasks(), judged.is_whole()), (2, 3, false));
        insta::assert_snapshot!(judged.gap().unwrap(), @"2 of 3 tasks judged; not `command` (playbooks/bringup.yaml:7): only a run can tell");
        let whole = Judged::of(&reports[..3]);
        assert_eq!((whole.counts().as_str(), whole.gap()), ("2 of 2 tasks judged", None));
        assert!(Judged::default().is_whole());
    }
}
