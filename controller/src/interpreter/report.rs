//! What became of a task on a host.

use std::sync::Arc;

use gpufleet_protocol::{Awaiting, Change};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::action::{OpId, Phase};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As declared.
    Ok,
    /// Changed, or would be.
    Changed,
    Skipped,
    Failed,
    Unreachable,
    /// Only the run will tell whether and what it changes.
    Possible,
    /// The state could not be read; never counts as declared.
    Unknown,
    /// Waits for a person's decision.
    Held,
}

/// The result of one task, or of one item of its loop, on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    pub op_id: OpId,
    /// Rendered name.
    pub task: String,
    pub kind: String,
    #[serde(with = "super::action::arc_text")]
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    pub phase: Phase,
    pub status: Status,
    /// Failed or unreachable, and the task says to go on.
    #[serde(default)]
    pub ignored: bool,
    /// Failed, and a `rescue` takes over.
    #[serde(default)]
    pub rescued: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaiting: Vec<Awaiting>,
    /// The loop's item; a report with one is followed by the report of the whole task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What `register` gets from the node, unless `no_log` hides it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Json>,
}

/// The recap of one host, counted as Ansible counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecapCounts {
    /// Changed and ignored ones included.
    pub ok: u32,
    pub changed: u32,
    pub unreachable: u32,
    pub failed: u32,
    /// Also what a prediction cannot tell and what could not be read.
    pub skipped: u32,
    pub rescued: u32,
    pub ignored: u32,
}

impl RecapCounts {
    /// Counts one report; items of a loop count with their task, what is asserted again or verified only when it fails.
    pub fn count(&mut self, report: &TaskReport) {
        if report.item.is_some() {
            return;
        }
        if report.phase != Phase::Declared && report.status != Status::Failed {
            return;
        }
        match report.status {
            Status::Ok => self.ok += 1,
            Status::Changed => {
                self.ok += 1;
                self.changed += 1;
            }
            Status::Failed if report.ignored => {
                self.ok += 1;
                self.ignored += 1;
            }
            Status::Failed if report.rescued => self.rescued += 1,
            Status::Failed | Status::Held => self.failed += 1,
            Status::Unreachable if report.ignored => {
                self.skipped += 1;
                self.ignored += 1;
            }
            Status::Unreachable => self.unreachable += 1,
            Status::Skipped | Status::Possible | Status::Unknown => self.skipped += 1,
        }
    }

    /// The recap of one host's reports.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a TaskReport>) -> Self {
        let mut counts = Self::default();
        for report in reports {
            counts.count(report);
        }
        counts
    }
}
