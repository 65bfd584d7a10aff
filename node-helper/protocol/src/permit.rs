//! The right to disturb one node, given by the rollout and checked by the helper.

use serde::{Deserialize, Serialize};

use crate::Disruption;

/// The run that a permit belongs to: a higher epoch fences a lower one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunEpoch {
    pub run: String,
    pub epoch: u64,
}

/// The rollout's permission to disturb a node up to `class`.
///
/// The helper plans again when it applies: a plan above the class, another epoch or a passed deadline is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    pub class: Disruption,
    pub holder: RunEpoch,
    /// Seconds from receipt within which the action must begin. Relative, because clocks of nodes are not trusted.
    pub valid_for_s: u64,
}
