//! What happens between a node and its scheduler.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One step of taking a node from its scheduler and giving it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum DrainStep {
    /// Written and synced before the scheduler is asked: from here on the node may be drained for us.
    Begun {
        scheduler: String,
        /// The node's name there.
        node: String,
        run: String,
        nonce: String,
    },
    /// Work was notified that it will be ended.
    Told {
        /// Whose work it is, ready to show.
        who: Vec<String>,
    },
    /// No new work starts there.
    Cordoned {
        /// What the scheduler shows.
        evidence: String,
    },
    /// Nothing runs there any more.
    Drained,
    /// It was not taken: somebody else holds it out, and nothing of theirs was changed.
    Refused { by: String },
    /// It takes work again.
    GivenBack,
    /// Somebody else holds it now; it was left to them.
    LeftTo { by: String },
    /// It may still be drained for us: the scheduler could not be asked to give it back.
    Stuck { why: String },
}

impl DrainStep {
    /// Whether the node may be drained for us after this step.
    pub const fn holds(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::GivenBack | Self::LeftTo { .. })
    }
}

impl std::fmt::Display for DrainStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begun { scheduler, node, .. } => write!(f, "is being drained at {scheduler} as {node}"),
            Self::Told { who } => write!(f, "tells its work: {}", who.join("; ")),
            Self::Cordoned { evidence } => write!(f, "takes no new work: {evidence}"),
            Self::Drained => f.write_str("is drained"),
            Self::Refused { by } => write!(f, "is not drained: {by}"),
            Self::GivenBack => f.write_str("takes work again"),
            Self::LeftTo { by } => write!(f, "stays out: somebody else took it over ({by})"),
            Self::Stuck { why } => write!(f, "may still be drained: {why}"),
        }
    }
}
