//! The result of driving a cursor through a play.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use gpufleet_protocol::Disruption;

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
        if report.status != TaskStatus::Changed {
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
