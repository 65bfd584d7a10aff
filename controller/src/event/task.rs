//! How one task ended on one node.

use std::sync::Arc;

use gpufleet_protocol::{Awaiting, Blocker, Change};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::OpId;

/// Place of a task in its playbook.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Position {
    #[serde(with = "shared_text")]
    #[schemars(with = "String")]
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1; always 1 in records of event version 1.
    pub column: u32,
}

/// Shared text, written as any other.
mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", crate::visible::visible(&self.file), self.line)
    }
}

/// Why a task's operation went to the node.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its turn in the play.
    #[default]
    Declared,
    /// A reset or reboot may have lost what it declared.
    Reassert,
    /// The proof at the end.
    Verify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    Ok,
    Changed,
    Skipped,
    Failed,
    Unreachable,
    /// Only the run itself can tell.
    Possible,
    /// The state could not be read.
    Unknown,
    /// Not done, for a person to decide.
    Held,
}

/// Why a task is skipped whose condition is false.
pub const UNMET: &str = "the condition does not hold";

/// One task's end on one node, or that of one item of its loop, or of one member of a GPU group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TaskReport {
    /// Identity in the run: play, section, task, loop key and host.
    pub op_id: OpId,
    /// Its name, or its kind where it has none.
    pub task: String,
    pub kind: String,
    pub position: Position,
    pub phase: Phase,
    pub status: TaskStatus,
    /// Failed or unreachable, and the playbook says to go on.
    pub ignored: bool,
    /// Failed, and a `rescue` took over.
    pub rescued: bool,
    /// Why, or what it said.
    pub message: Option<String>,
    /// Label of the loop's item; a report with one is followed by the report of the whole task.
    pub item: Option<String>,
    /// The host that did it, where `delegate_to` names another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated_to: Option<String>,
    pub changes: Vec<Change>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaiting: Vec<Awaiting>,
    /// What stands in the way of the changes now: a run would be refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What `register` gets; empty for `no_log`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
}

impl TaskReport {
    /// Returns a copy without what `register` gets, which can be large.
    #[must_use]
    pub fn without_data(&self) -> Self {
        let Self {
            op_id,
            task,
            kind,
            position,
            phase,
            status,
            ignored,
            rescued,
            message,
            item,
            delegated_to,
            changes,
            awaiting,
            blockers,
            warnings,
            data: _,
        } = self;
        Self {
            op_id: op_id.clone(),
            task: task.clone(),
            kind: kind.clone(),
            position: position.clone(),
            phase: *phase,
            status: *status,
            ignored: *ignored,
            rescued: *rescued,
            message: message.clone(),
            item: item.clone(),
            delegated_to: delegated_to.clone(),
            changes: changes.clone(),
            awaiting: awaiting.clone(),
            blockers: blockers.clone(),
            warnings: warnings.clone(),
            data: Map::new(),
        }
    }

    /// A report that says which task it is of, where that stands, and how it ended.
    pub fn new(
        op_id: OpId,
        task: impl Into<String>,
        kind: impl Into<String>,
        position: Position,
        status: TaskStatus,
    ) -> Self {
        Self {
            phase: op_id.phase,
            op_id,
            task: task.into(),
            kind: kind.into(),
            position,
            status,
            ignored: false,
            rescued: false,
            message: None,
            item: None,
            delegated_to: None,
            changes: Vec::new(),
            awaiting: Vec::new(),
            blockers: Vec::new(),
            warnings: Vec::new(),
            data: Map::new(),
        }
    }
}

/// The numbers of Ansible's recap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct RecapCounts {
    /// Tasks that ended well, changed ones and ignored failures included.
    pub ok: u32,
    pub changed: u32,
    pub unreachable: u32,
    pub failed: u32,
    pub skipped: u32,
    pub rescued: u32,
    pub ignored: u32,
}

impl RecapCounts {
    /// Counts one report as Ansible does, but for a task that changed a part and failed, which changed something too. Only
    /// a task's own turn counts as one more task; what a reset or reboot made the run do again counts only where it failed.
    pub fn count(&mut self, report: &TaskReport) {
        // Why: an item of a loop is followed by the report of its whole task.
        if report.item.is_some() {
            return;
        }
        let again = report.phase != Phase::Declared;
        let says_changed = report.data.get("changed") == Some(&Value::Bool(true));
        // Not where only `failed_when` calls it a failure, nor for a command, of which nobody knows: there as Ansible.
        let in_part =
            says_changed && !report.changes.is_empty() && !report.data.contains_key("failed_when_result");
        if in_part && report.status == TaskStatus::Failed && !report.ignored && !again {
            self.changed += 1;
        }
        match report.status {
            TaskStatus::Ok | TaskStatus::Possible if !again => self.ok += 1,
            TaskStatus::Changed if !again => {
                self.ok += 1;
                self.changed += 1;
            }
            TaskStatus::Skipped if !again => self.skipped += 1,
            TaskStatus::Failed | TaskStatus::Unknown | TaskStatus::Held if report.ignored => {
                self.ok += 1;
                self.ignored += 1;
                if says_changed {
                    self.changed += 1;
                }
            }
            TaskStatus::Failed | TaskStatus::Unknown | TaskStatus::Held if report.rescued => {
                self.rescued += 1
            }
            TaskStatus::Failed | TaskStatus::Unknown | TaskStatus::Held => self.failed += 1,
            TaskStatus::Unreachable if report.ignored => {
                self.ok += 1;
                self.ignored += 1;
            }
            TaskStatus::Unreachable => self.unreachable += 1,
            TaskStatus::Ok | TaskStatus::Changed | TaskStatus::Skipped | TaskStatus::Possible => {}
        }
    }
}
