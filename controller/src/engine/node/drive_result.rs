//! The result of driving a cursor through a play.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use gpufleet_protocol::{
    Disruption,
    tasks::{self, Class, KindInfo, Reboot},
};

use crate::{
    engine::host::Prediction,
    event::{TaskReport, TaskStatus},
    interpreter::End,
};

/// The result of driving a cursor.
#[derive(Default)]
pub(crate) struct DriveResult {
    pub(crate) reports: Vec<Vec<TaskReport>>,
    pub(crate) prediction: Prediction,
    pub(crate) reset: bool,
    /// A reboot hangs on what only the run can tell.
    pub(crate) may_reboot: bool,
    pub(crate) end: Option<End>,
    /// Where the tasks stand that have something to do, or may.
    work: BTreeSet<(Arc<str>, u32)>,
}

impl DriveResult {
    pub(crate) fn note(&mut self, report: &TaskReport) {
        if matches!(report.status, TaskStatus::Changed | TaskStatus::Possible) {
            self.work.insert((report.position.file.clone(), report.position.line));
            let mut hasher = DefaultHasher::new();
            self.work.hash(&mut hasher);
            self.prediction.work = Some(hasher.finish());
        }
        // Why also a command that was not run: a person has to agree to what its text shows.
        let command = report.status == TaskStatus::Possible
            && tasks::find(&report.kind).is_some_and(|kind| kind.class == Class::Command);
        // Why also one whose condition is open: it may reboot the node that gpufleet runs on.
        self.may_reboot |= report.status == TaskStatus::Possible
            && tasks::find(&report.kind).is_some_and(KindInfo::is::<Reboot>);
        if report.status != TaskStatus::Changed && !command {
            return;
        }
        for change in &report.changes {
            // Why not its disruption where it waits for a reboot: writing such a value disturbs nothing; the reboot
            // task asks for the permit itself.
            if report.awaiting.is_empty() || change.disruption < Disruption::Reboot {
                self.prediction.class = self.prediction.class.max(change.disruption);
            }
        }
    }
}
