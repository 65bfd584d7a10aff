//! What driving a cursor through a play gave.

use gpufleet_protocol::Disruption;

use super::slot::Prediction;
use crate::{
    event::{TaskReport, TaskStatus},
    interpreter::End,
};

/// What driving a cursor gave.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) reports: Vec<Vec<TaskReport>>,
    pub(super) prediction: Prediction,
    pub(super) reset: bool,
    pub(super) end: Option<End>,
}

impl Seen {
    pub(super) fn note(&mut self, report: &TaskReport) {
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
