//! What driving a cursor through a play gave.

use gpufleet_protocol::Disruption;

use crate::{
    engine::host::Prediction,
    event::{TaskReport, TaskStatus},
    interpreter::End,
};

/// What driving a cursor gave.
#[derive(Default)]
pub(crate) struct DriveResult {
    pub(crate) reports: Vec<Vec<TaskReport>>,
    pub(crate) prediction: Prediction,
    pub(crate) reset: bool,
    pub(crate) end: Option<End>,
}

impl DriveResult {
    pub(crate) fn note(&mut self, report: &TaskReport) {
        if report.status != TaskStatus::Changed {
            return;
        }
        for change in &report.changes {
            // Why not its disruption where it waits for a reboot: writing such a value disturbs nobody; the reboot
            // task asks for the permit itself.
            if report.awaiting.is_empty() || change.disruption < Disruption::Reboot {
                self.prediction.class = self.prediction.class.max(change.disruption);
            }
        }
    }
}
