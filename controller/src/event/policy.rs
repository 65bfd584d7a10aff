//! The rollout policy of a play, as plans and reports show it.

use gpufleet_protocol::Disruption;
use serde::{Deserialize, Serialize};

/// What bounds a play besides its waves and its budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyShape {
    /// The host variable that names the failure domains.
    pub failure_domain: Option<String>,
    /// How many of one domain may be out at once.
    pub max_per_domain: Option<usize>,
    /// The domains in the order of their first hosts; hosts without one are in none.
    pub domains: Vec<DomainShape>,
    pub soak_s: u64,
    /// As written.
    pub window: Option<String>,
    /// How long its longest opening is.
    pub window_longest_s: Option<u64>,
    /// `none`, `slurm`, `command`.
    pub drain: String,
    /// How long one drain may take, a notice's deadline included.
    pub drain_s: u64,
    /// The names of the checks before a node is given back.
    pub health_gate: Vec<String>,
    /// How long a node may be out at most, for each class that disturbs.
    pub worst_case: Vec<WorstCase>,
}

impl PolicyShape {
    /// How long a node with changes of this class may be out at most, in seconds; none for live changes.
    pub fn worst_case_s(&self, class: Disruption) -> Option<u64> {
        self.worst_case.iter().find(|case| case.class == class).map(|case| case.seconds)
    }
}

/// Hosts with the same value of the domain's variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainShape {
    pub name: String,
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstCase {
    pub class: Disruption,
    pub seconds: u64,
}
