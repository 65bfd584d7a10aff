//! What a rollout is allowed to do.

use gpufleet_protocol::Disruption;
use serde::{Deserialize, Serialize};

use super::Window;

/// The rules of one play. The default is a budget of one node and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Nodes that may be out of service at once, whoever took them out.
    pub budget: usize,
    /// The same for each rack, partition or NVLink domain.
    pub domains: Option<Domains>,
    pub thresholds: Thresholds,
    /// Seconds between the end of a wave and the check that lets the next one start; 0 is neither wait nor check.
    pub soak_s: u64,
    /// When nodes may be taken out of service.
    pub window: Option<Window>,
    pub needs: Needs,
    /// How much of that the drain is expected to take: a longer one has to leave time for the rest.
    #[serde(default)]
    pub drain_needs: Needs,
    /// Whether every claim is decided on fresh word of who else is out.
    pub surveys: bool,
    /// Seconds that a node waits for others' outages that only surveys report, before they refuse it.
    #[serde(default = "Policy::default_patience_s")]
    pub patience_s: u64,
    /// Whether a scheduler has to let go of a node before anything else.
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

/// Which failure domain each host is in, and how many of one may be out at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domains {
    /// Index into `names` for each host; a host without one is in no domain.
    pub of: Vec<usize>,
    pub names: Vec<String>,
    pub limit: usize,
}

/// Seconds that the worst case of each class takes, drain and verification included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    pub live: u64,
    pub clients: u64,
    pub gpu_reset: u64,
    pub reboot: u64,
}

impl Needs {
    /// Seconds that this class takes at worst.
    pub const fn of(&self, class: Disruption) -> u64 {
        match class {
            Disruption::Live => self.live,
            Disruption::Clients => self.clients,
            Disruption::GpuReset => self.gpu_reset,
            Disruption::Reboot => self.reboot,
        }
    }

    /// Seconds below which nothing at all fits.
    pub fn least(&self) -> u64 {
        self.live.min(self.clients).min(self.gpu_reset).min(self.reboot)
    }
}

/// When a play stops taking new nodes. The first bound reached stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Ansible's: the play stops when more than this share of a wave failed, in percent.
    pub max_fail_percentage: Option<f64>,
    /// The run stops when more nodes than this failed, unreachable ones included.
    pub max_failures: Option<usize>,
    /// The run stops when more nodes than this were unreachable.
    pub max_unreachable: Option<usize>,
    /// One failure stops the play.
    pub any_errors_fatal: bool,
}
