//! The GPUs of a node as they are at this moment: how busy they are, and who holds them.
//!
//! The answer to [`crate::NodeOp::GpuStatus`]. The helper reads, the controller judges. Invariant: what could not be read
//! is never left out silently.

use serde::{Deserialize, Serialize};

use crate::{
    nvml::Placement,
    signal::{Readings, Signal, SubjectReadings},
};

/// The signals of a GPU that the answer has, by their names in [`crate::signal::SIGNALS`].
pub static SHOWN: &[&str] = &[
    "name",
    "pci",
    "lost_code",
    "mig_current",
    "mig_pending",
    "mig_layout",
    "mig_orphans",
    "util_gpu",
    "util_mem",
    "mem_used_mib",
    "memory_total_mib",
    "temp_c",
    "mem_temp_c",
    "sm_mhz",
    "pstate",
    "power_limit_w",
    "power_draw_w",
    "reasons",
    "ecc_current",
    "ecc_unc_vol",
    "ecc_cor_vol",
    "remap_pending",
    "remap_failed",
    "recovery_action",
    "compute_mode",
    "persistence",
    "drain_state",
    "process_count",
];

/// One reading of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The signals of the node that NVML gives.
    pub node: Readings,
    /// Whether an MPS daemon shares the GPUs of the node.
    pub mps: bool,
    /// GPUs, in the order of their indexes, unreadable ones included.
    pub gpus: Vec<GpuNow>,
    /// Why some processes could not be looked into; holders may then be missing.
    #[serde(default)]
    pub unseen: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuNow {
    pub index: u32,
    /// The signals of [`SHOWN`].
    #[serde(flatten)]
    pub signals: SubjectReadings,
    /// How busy it was while what holds it now did; `None` where nothing does, and where the driver keeps no samples, as
    /// with MIG.
    #[serde(default)]
    pub recent: Option<Recent>,
    /// How long its youngest holder has run, in milliseconds; `None` where that is not known of all holders.
    #[serde(default)]
    pub held_ms: Option<u64>,
    /// Its MIG instances.
    #[serde(default)]
    pub instances: Vec<MigPart>,
    /// The MIG profiles that its driver lists; `None` where nobody asked, or they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<MigOffer>>,
    /// Processes that hold it, at most [`Self::MOST_HOLDERS`]; without services of the driver and gpufleet's own.
    #[serde(default)]
    pub holders: Vec<Holder>,
    /// How many more there are.
    #[serde(default)]
    pub more_holders: u32,
}

impl GpuNow {
    pub const MOST_HOLDERS: usize = 64;
    /// More used memory than a GPU without a process has, in MiB. Source: 0 on idle H100 and H200.
    const HELD_MIB: f64 = 256.0;

    /// Whether something holds it, also what its node cannot see, such as a process of another container.
    pub fn is_held(&self) -> bool {
        let known = |name: &str| self.signals.readings.get(name).and_then(Signal::known)?.as_f64();
        !self.holders.is_empty()
            || known("process_count").is_some_and(|count| count > 0.0)
            || known("mem_used_mib").is_some_and(|used| used > Self::HELD_MIB)
    }
}

/// How busy a GPU was, from the samples that the driver keeps: within the asked window, up to now, without a gap, and
/// within the life of what holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Mean, in tenths of a percent.
    pub permille: u32,
    /// The means of the older and of the newer half.
    #[serde(default)]
    pub halves: [u32; 2],
    /// The busiest sample, in percent.
    pub peak: u32,
    /// How much of the window there are samples of, in milliseconds. Driver 580 keeps 14 s on an H100.
    pub span_ms: u32,
}

/// A MIG GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigPart {
    pub id: u32,
    /// For example `1g.10gb`.
    pub profile: String,
    /// Whether it has a compute instance, without which nothing can run there.
    pub ready: bool,
    /// Whether that is one of its full size.
    #[serde(default)]
    pub whole: bool,
    #[serde(default)]
    pub placement: Option<Placement>,
}

/// A MIG profile, and where its instances may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MigOffer {
    /// The id for create calls.
    pub id: u32,
    /// For example `1g.10gb`.
    pub profile: String,
    /// Compute slices.
    pub slices: u32,
    pub max_count: u32,
    /// Memory slices of an instance.
    pub size: u32,
    /// Memory slices at which one may start; none where the driver does not tell.
    pub starts: Vec<u32>,
}

/// A process that holds a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Command line, shortened.
    pub command: String,
    pub user: String,
    /// Slurm job, pod or systemd unit, where its cgroup tells.
    #[serde(default)]
    pub unit: Option<String>,
    /// Memory of the GPU that it uses, in MiB; `None` where the driver does not tell.
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// The MIG instance that it works on.
    #[serde(default)]
    pub instance: Option<u32>,
    /// Whether it works through the MPS daemon.
    #[serde(default)]
    pub mps: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::{SIGNALS, Scope};

    #[test]
    fn what_is_shown_is_in_the_registry() {
        for name in SHOWN {
            let known =
                SIGNALS.iter().copied().flatten().any(|info| info.name == *name && info.scope == Scope::Gpu);
            assert!(known, "{name} is no signal of a GPU");
        }
    }
}
