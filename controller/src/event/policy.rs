//! The rollout policy of a play, as plans and reports show it.

use gpufleet_protocol::Disruption;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What bounds a play besides its waves and its budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
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

    /// How much of that the drain is expected to take.
    pub fn drain_part_s(&self, class: Disruption) -> u64 {
        let case = self.worst_case.iter().find(|case| case.class == class);
        let part = case.and_then(|case| case.parts.iter().find(|part| part.what == OutagePart::Drain));
        part.map_or(self.drain_s, |part| part.seconds)
    }
}

/// Hosts with the same value of the domain's variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct DomainShape {
    pub name: String,
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct WorstCase {
    pub class: Disruption,
    /// All parts together.
    pub seconds: u64,
    /// What they are, in the order in which they happen; none in records of versions before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<WorstPart>,
}

impl WorstCase {
    pub fn new(class: Disruption, parts: Vec<WorstPart>) -> Self {
        let seconds = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.seconds));
        Self { class, seconds, parts }
    }
}

/// One part of the time that a node may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct WorstPart {
    pub what: OutagePart,
    pub seconds: u64,
    pub from: DurationOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutagePart {
    /// From the cordon until nothing runs there, a notice's deadline included.
    Drain,
    /// From the order until the node is up in a new boot.
    Reboot,
    PowerCycle,
    /// Changes, resets, the health gate, giving back.
    Work,
}

impl std::fmt::Display for OutagePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Drain => "drain",
            Self::Reboot => "reboot",
            Self::PowerCycle => "power cycle",
            Self::Work => "work",
        })
    }
}

/// Where a duration comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "source")]
pub enum DurationOrigin {
    /// The playbook says it.
    Declared,
    /// Nothing says it.
    Default,
    /// Earlier journals of the same work show it.
    Learned {
        /// How many different nodes were measured.
        nodes: usize,
        runs: usize,
    },
}
