//! What a task would change on a node, and how much that hurts.

mod display;
mod older;
mod subject;
#[cfg(test)]
mod tests;
mod value;

pub use subject::{CronTable, Layer, Property, Subject};
pub use value::{Amount, MigInstances, MigLayout, Value};

use serde::{Deserialize, Serialize};

/// How much a change disturbs what runs on the node, in increasing order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Disruption {
    /// Running work does not notice.
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

/// Whether a forecast change depends on something that is known only during the run.
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
/// The same task on the same node gives the same changes in a plan and in the run that follows it. The sentence that
/// people read is made of it by its `Display`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    pub subject: Subject,
    /// What of the subject differs, for example `power limit`.
    pub property: Property,
    /// Which of the node's layers holds the value; the live one where it is left out.
    #[serde(default, skip_serializing_if = "Layer::is_live")]
    pub layer: Layer,
    /// The value found.
    pub from: Value,
    /// The value declared.
    pub to: Value,
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
    /// A sure change of a live value, without note or diff.
    pub fn new(
        subject: Subject,
        property: Property,
        from: impl Into<Value>,
        to: impl Into<Value>,
        disruption: Disruption,
    ) -> Self {
        Self {
            subject,
            property,
            layer: Layer::Live,
            from: from.into(),
            to: to.into(),
            disruption,
            certainty: Certainty::Sure,
            note: None,
            diff: None,
        }
    }

    #[must_use]
    pub fn at(self, layer: Layer) -> Self {
        Self { layer, ..self }
    }

    /// As it is with a permit of this class.
    #[must_use]
    pub fn needing(self, disruption: Disruption) -> Self {
        Self { disruption, ..self }
    }

    /// Only the run can tell whether it is made.
    #[must_use]
    pub fn possible(self) -> Self {
        Self { certainty: Certainty::Possible, ..self }
    }

    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Takes out what `no_log` forbids: values, and what the subject tells of them.
    pub fn hide(&mut self) {
        if self.from_text().is_some() {
            self.from = Value::Hidden;
        }
        self.to = Value::Hidden;
        (self.note, self.diff) = (None, None);
        match &mut self.subject {
            Subject::KernelCommandLine { parameter: told } | Subject::Block { marker: told, .. } => {
                *told = Value::Hidden.to_string();
            }
            _ => {}
        }
    }

    /// The same change without its GPU, so that those of several GPUs and nodes compare equal.
    #[must_use]
    pub fn of_any_gpu(&self) -> Self {
        let mut change = self.clone();
        if let Subject::Gpu { index, uuid } = &mut change.subject {
            (*index, *uuid) = (0, String::new());
        }
        change
    }

    /// What tells it from the other changes of a task: two with the same are about the same value.
    pub fn about(&self) -> (&Subject, &Property, Layer) {
        (&self.subject, &self.property, self.layer)
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

impl Awaiting {
    /// Takes out what `no_log` forbids: the reason may quote a value.
    pub fn hide(&mut self) {
        self.reason = Value::Hidden.to_string();
    }
}
