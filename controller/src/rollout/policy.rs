//! The rules of a rollout.

use gpufleet_protocol::Disruption;
use serde::{Deserialize, Serialize};

use super::Window;

/// The rules of one play. By default a budget of one node, and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// How many nodes may be out of service at once, for any reason.
    pub budget: usize,
    /// The same limit for each rack, partition or NVLink domain.
    pub domains: Option<Domains>,
    pub thresholds: Thresholds,
    /// Seconds between the end of a wave and the check before the next one; 0 means neither wait nor check.
    pub soak_s: u64,
    /// When nodes may be taken out of service.
    pub window: Option<Window>,
    pub needs: Needs,
    /// The expected time of the drain as part of `needs`; a longer drain must leave time for the rest.
    #[serde(default)]
    pub drain_needs: Needs,
    /// Whether every claim requires a recent survey of other nodes that are out.
    pub surveys: bool,
    /// Seconds that a node waits for outages that only surveys report, before it is denied.
    #[serde(default = "Policy::default_patience_s")]
    pub patience_s: u64,
    /// Whether a node must be drained before anything else.
    pub drains: bool,
}

impl Policy {
    const fn default_patience_s() -> u64 {
        120
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            budget: 1,
            domains: None,
            thresholds: Thresholds::default(),
            soak_s: 0,
            window: None,
            needs: Needs::default(),
            drain_needs: Needs::default(),
            surveys: false,
            patience_s: Self::default_patience_s(),
            drains: false,
        }
    }
}

/// The failure domain of each host, and how many of one domain may be out at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domains {
    /// Index into `names` for each host; hosts without a domain have an index past the end.
    pub of: Vec<usize>,
    pub names: Vec<String>,
    pub limit: usize,
}

/// Seconds that each class takes in the worst case, drain and verification included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    pub live: u64,
    pub clients: u64,
    pub gpu_reset: u64,
    pub reboot: u64,
}

impl Needs {
    /// Returns the seconds that this class takes in the worst case.
    pub const fn of(&self, class: Disruption) -> u64 {
        match class {
            Disruption::Live => self.live,
            Disruption::Clients => self.clients,
            Disruption::GpuReset => self.gpu_reset,
            Disruption::Reboot => self.reboot,
        }
    }

    /// Returns the smallest of these, below which nothing fits.
    pub fn least(&self) -> u64 {
        self.live.min(self.clients).min(self.gpu_reset).min(self.reboot)
    }
}

/// When a play stops starting nodes; the first threshold that is reached stops it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Ansible's: the play stops if more than this percentage of a wave failed.
    pub max_fail_percentage: Option<f64>,
    /// The run stops when more nodes than this failed, unreachable ones included.
    pub max_failures: Option<usize>,
    /// The run stops when more nodes than this were unreachable.
    pub max_unreachable: Option<usize>,
    /// One failure stops the play.
    pub any_errors_fatal: bool,
}
