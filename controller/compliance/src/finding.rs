//! What a check found on one subject.

use std::borrow::Cow;
use std::sync::Arc;

use gpufleet_protocol::signal::{Signal, SubjectReadings};
use serde::{Serialize, Serializer};

use crate::catalogue::Check;
use crate::memory::{Standing, Watch};
use crate::texts;
use crate::verdict::{Action, Verdict};

/// The check of whether the driver answers.
pub(crate) const DRIVER: &str = "err.nvml_responsive";
/// What is said of a check that needs what the driver did not answer.
pub(crate) const SILENT: &str = "not judged: the driver does not answer";

/// What was judged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Subject {
    /// The node as a whole.
    Node,
    /// A GPU. `uuid` is the PCI address for one that no longer answers.
    Gpu {
        #[serde(serialize_with = "texts::one")]
        uuid: Arc<str>,
        #[serde(serialize_with = "texts::one")]
        label: Arc<str>,
    },
    /// A file system, by its mount point.
    Disk {
        #[serde(serialize_with = "texts::one")]
        id: Arc<str>,
        #[serde(serialize_with = "texts::one")]
        label: Arc<str>,
    },
    /// A port of an RDMA device: `mlx5_0/1`.
    Port {
        #[serde(serialize_with = "texts::one")]
        id: Arc<str>,
        #[serde(serialize_with = "texts::one")]
        label: Arc<str>,
    },
}

impl Subject {
    pub(crate) fn gpu(gpu: &SubjectReadings) -> Self {
        Self::Gpu { uuid: gpu.id.as_str().into(), label: gpu.label.as_str().into() }
    }

    pub(crate) fn disk(disk: &SubjectReadings) -> Self {
        Self::Disk { id: disk.id.as_str().into(), label: disk.label.as_str().into() }
    }

    pub(crate) fn port(port: &SubjectReadings) -> Self {
        Self::Port { id: port.id.as_str().into(), label: port.label.as_str().into() }
    }

    /// What stays the same over boots: `node`, the UUID of a GPU, a mount point, a port.
    pub fn id(&self) -> &str {
        match self {
            Self::Node => "node",
            Self::Gpu { uuid: id, .. } | Self::Disk { id, .. } | Self::Port { id, .. } => id,
        }
    }

    /// What a person calls it; empty for the node.
    pub fn label(&self) -> &str {
        match self {
            Self::Node => "",
            Self::Gpu { label, .. } | Self::Disk { label, .. } | Self::Port { label, .. } => label,
        }
    }

    /// Whether a fault of one can be the cause of a fault of the other: they are the same, or one is the node.
    pub fn concerns(&self, other: &Self) -> bool {
        self == other || matches!(self, Self::Node) || matches!(other, Self::Node)
    }
}

/// Why a check does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NaReason {
    /// The node, the GPU or the declaration lacks what is judged.
    NotApplicable,
    /// It compares with an earlier audit, and there is none. Counts as not judged.
    NotYet,
    /// It needs a reading that only some audits make. Counts as not judged.
    NotAsked,
}

/// A verdict and what it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// In documents: its id.
    #[serde(serialize_with = "id_of")]
    pub check: Arc<Check>,
    pub subject: Subject,
    pub verdict: Verdict,
    pub action: Action,
    /// Which rule decided, in words, or why nothing could be judged; empty for ok.
    #[serde(skip_serializing_if = "is_empty", serialize_with = "texts::one")]
    pub note: Arc<str>,
    /// What was declared, or the limits, as far as the deciding rule compares with them: `power_w 600`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "texts::maybe")]
    pub expected: Option<Arc<str>>,
    /// What was read, of what is neither ok nor na: of a healthy fleet it would be hundreds of readings a node, which the
    /// journal has anyway.
    #[serde(serialize_with = "readings")]
    pub evidence: Vec<(Arc<str>, Signal)>,
    /// Set where the verdict is na.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub na: Option<NaReason>,
    /// The waiver that covers it. Set by [`crate::Waivers::apply`].
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "texts::maybe")]
    pub waived: Option<Arc<str>>,
    /// The check whose finding is the cause of this one. Set by [`crate::fold()`].
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "texts::maybe")]
    pub explained_by: Option<Arc<str>>,
    /// What earlier audits make of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    /// What a later audit needs of it.
    #[serde(skip)]
    pub(crate) watch: Option<Box<Watch>>,
}

impl Finding {
    /// Whether it counts against the node: not ok, not na, not waived.
    pub const fn counts(&self) -> bool {
        self.verdict.is_not_ok() && self.waived.is_none()
    }

    /// Whether it is nothing but that the driver does not answer, and another finding of the node tells that.
    pub fn is_of_silent_driver(&self) -> bool {
        self.verdict == Verdict::Unknown
            && *self.note == *SILENT
            && self.explained_by.as_deref() == Some(DRIVER)
    }

    /// Whether it tells that the driver does not answer.
    pub fn tells_silent_driver(&self) -> bool {
        *self.check.id == *DRIVER && self.counts()
    }

    /// Returns the reading command of the check's remediation for this subject, to be pasted on the node.
    ///
    /// `None` where the check has none, or where the node calls the GPU something that is not safe in a shell.
    pub fn reads(&self) -> Option<String> {
        let command = self.check.remediation.reads.as_deref()?;
        match command.contains("{gpu}") {
            true => Some(command.replace("{gpu}", self.gpu()?)),
            false => Some(command.to_owned()),
        }
    }

    /// Returns the command for the controller that does what the finding asks for: it ends what runs there, so that
    /// [`DRAIN_FIRST`](crate::advice::DRAIN_FIRST) is shown with it. `None` as for [`Self::reads`], or where no task does it.
    pub fn destructive(&self, node: &str) -> Option<String> {
        match self.subject {
            Subject::Gpu { .. } => self.action.command(node, Some(self.gpu()?)),
            _ => self.action.command(node, None),
        }
    }

    /// What names the GPU, if it is plain enough for a shell.
    fn gpu(&self) -> Option<&str> {
        let Subject::Gpu { uuid, .. } = &self.subject else { return None };
        let plain = uuid.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.'));
        (plain && uuid.starts_with(|c: char| c.is_ascii_alphanumeric())).then_some(&**uuid)
    }

    /// Returns what it is called; see [`Check::headline`].
    pub fn headline(&self) -> Cow<'_, str> {
        self.check.headline(self.verdict, &self.note)
    }
}

fn id_of<S: Serializer>(check: &Arc<Check>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&check.id)
}

fn readings<S: Serializer>(evidence: &[(Arc<str>, Signal)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(evidence.iter().map(|(name, signal)| (&**name, signal)))
}

fn is_empty(text: &Arc<str>) -> bool {
    text.is_empty()
}
