//! What became of a task on a host.

use std::sync::Arc;

use gpufleet_protocol::{Awaiting, Blocker, Change};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::action::{OpId, Phase};
pub use crate::event::TaskStatus as Status;

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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// The host that did it, where `delegate_to` names another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated_to: Option<String>,
    /// The loop's item; a report with one is followed by the report of the whole task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What `register` gets from the node, unless `no_log` hides it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Json>,
}

impl TaskReport {
    /// A report that says which task it is of, where that stands, and how it ended.
    pub(super) fn blank(
        op_id: OpId,
        task: String,
        kind: &str,
        (file, line): (Arc<str>, u32),
        status: Status,
    ) -> Self {
        Self {
            phase: op_id.phase,
            op_id,
            task,
            kind: kind.to_owned(),
            file,
            line,
            status,
            ignored: false,
            rescued: false,
            message: None,
            changes: Vec::new(),
            awaiting: Vec::new(),
            blockers: Vec::new(),
            delegated_to: None,
            item: None,
            warnings: Vec::new(),
            data: Map::new(),
        }
    }
}
