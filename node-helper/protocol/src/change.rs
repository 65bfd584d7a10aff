//! What a task would change on a node, and how much that hurts.

use serde::{Deserialize, Serialize};

/// How much a change disturbs what runs on the node, in increasing order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Disruption {
    /// Nobody who works on the node notices.
    #[default]
    Live,
    /// Processes that use the GPUs must be gone.
    Clients,
    /// A GPU is reset.
    GpuReset,
    /// The node reboots.
    Reboot,
}

impl Disruption {
    /// The name that people read and write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Clients => "clients",
            Self::GpuReset => "gpu-reset",
            Self::Reboot => "reboot",
        }
    }

    /// Whether the change needs the rollout's permit.
    pub const fn needs_permit(self) -> bool {
        !matches!(self, Self::Live)
    }
}

impl std::fmt::Display for Disruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a forecast change hangs on something that only the run itself will know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Certainty {
    #[default]
    Sure,
    Possible,
}

/// One difference between a node and what is declared for it.
///
/// The same task on the same node gives the same changes in a plan and in the run that follows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// What differs, for example `GPU 0 power limit` or `vm.swappiness`.
    pub what: String,
    /// The value found, with its unit; `None` where there was nothing.
    pub from: Option<String>,
    /// The value declared, with its unit.
    pub to: String,
    pub disruption: Disruption,
    #[serde(default)]
    pub certainty: Certainty,
    /// Why the change is needed or hurts as much as it does, for example `lost by the reboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Unified diff of text content, where the task has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

impl Change {
    /// A sure change without note or diff.
    pub fn new(
        what: impl Into<String>,
        from: Option<String>,
        to: impl Into<String>,
        disruption: Disruption,
    ) -> Self {
        let (what, to) = (what.into(), to.into());
        Self { what, from, to, disruption, certainty: Certainty::Sure, note: None, diff: None }
    }

    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// Something that stands in the way of a planned change, as the node is now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocker {
    /// For example `process 4711 (train.py, user ana) holds GPU 0`.
    pub what: String,
    /// What to do about it.
    pub next: String,
}

impl Blocker {
    pub fn new(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what: what.into(), next: next.into() }
    }
}

/// Something written that becomes current only by an activation that has not happened yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Awaiting {
    /// `GpuReset` or `Reboot`.
    pub activation: Disruption,
    /// What waits, for example `GPU 0 ECC enabled is pending`.
    pub reason: String,
}
