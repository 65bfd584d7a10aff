//! The health gate: whether a node may be given back, and the state of its operating system.
//!
//! Each check is a file of its own and a line in [`of`]. `gpus` applies a check to each GPU. Nothing here changes the
//! node. Invariant: what cannot be read is unknown, never fine.

mod ecc;
mod fabric_manager;
mod gpu_count;
mod gpus;
mod mig_layout;
mod persistence;
mod system;
#[cfg(test)]
mod tests;
mod xid;

use gpufleet_protocol::{
    health::{CheckResult, HealthCheck, HealthReport, HealthRequest, Verdict},
    nvml::Snapshot,
};

pub use self::{gpus::lacks, system::read as system};
use crate::{deadline::Deadline, os::roots::Roots, signals::kernel_log::Resets};

/// What the checks read of GPUs and NVSwitches.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The reading, or why it failed.
    pub snapshot: Result<Snapshot, Unread>,
    /// Number of NVIDIA GPUs on the PCI bus.
    pub on_bus: u32,
    /// Number of NVSwitches on the PCI bus, or known to the driver.
    pub switches: u32,
    pub fabric_manager: FabricManager,
    pub resets: Resets,
}

/// Why there is no reading of the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    pub why: String,
    /// No driver is installed; then nothing is missing unless a GPU is on the bus.
    pub no_driver: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricManager {
    Runs,
    /// There is neither a unit nor a process of that name.
    Absent,
    /// The processes could not be listed.
    Unknown,
}

/// The verdict of a check, and its explanation.
type Found = (Verdict, String);

/// What a check reads.
enum Check {
    /// The operating system only.
    System(fn(&Roots, &Deadline) -> Found),
    /// A reading of the GPUs.
    Gpus(fn(&Seen) -> Found),
    /// A reading of the GPUs, and their number before.
    Count(fn(&Seen, Option<u32>) -> Found),
    /// A reading of the GPUs, and the kernel's log.
    Log(fn(&Seen, &Roots, &Deadline) -> Found),
}

/// The registry: returns the function of each check.
const fn of(check: HealthCheck) -> Check {
    match check {
        HealthCheck::GpuCount => Check::Count(gpu_count::check),
        HealthCheck::MigLayout => Check::Gpus(mig_layout::check),
        HealthCheck::Ecc => Check::Gpus(ecc::check),
        HealthCheck::Xid => Check::Log(xid::check),
        HealthCheck::Persistence => Check::Gpus(persistence::check),
        HealthCheck::FabricManager => Check::Gpus(fabric_manager::check),
        HealthCheck::System => Check::System(system::check),
    }
}

fn gpus_text(count: usize) -> String {
    format!("{count} GPU{}", if count == 1 { "" } else { "s" })
}

/// Whether any check reads the GPUs.
pub fn reads_gpus(wanted: &HealthRequest) -> bool {
    wanted.checks.iter().any(|check| !matches!(of(*check), Check::System(_)))
}

/// Returns one result for each check, in the order requested.
pub fn report(
    wanted: &HealthRequest,
    seen: Option<&Seen>,
    roots: &Roots,
    deadline: &Deadline,
) -> HealthReport {
    let boot_id = crate::tasks::reboot::boot_id(roots);
    let moved = match (&wanted.since_boot, &boot_id) {
        (Some(expected), Some(now)) if expected != now => {
            Some(format!("the node runs on boot {now}, and not on {expected}: it was rebooted meanwhile"))
        }
        (Some(_), None) => Some("the boot id cannot be read".to_owned()),
        _ => None,
    };
    let results = wanted
        .checks
        .iter()
        .map(|check| {
            let (verdict, why) = match &moved {
                Some(why) => (Verdict::Unknown, why.clone()),
                None => found(*check, wanted, seen, roots, deadline),
            };
            CheckResult { check: *check, verdict, why }
        })
        .collect();
    HealthReport { results }
}

fn found(
    check: HealthCheck,
    wanted: &HealthRequest,
    seen: Option<&Seen>,
    roots: &Roots,
    deadline: &Deadline,
) -> Found {
    match (of(check), seen) {
        (Check::System(judge), _) => judge(roots, deadline),
        (_, None) => (Verdict::Unknown, "the GPUs were not read".to_owned()),
        (Check::Gpus(judge), Some(seen)) => judge(seen),
        (Check::Count(judge), Some(seen)) => judge(seen, wanted.gpus),
        (Check::Log(judge), Some(seen)) => judge(seen, roots, deadline),
    }
}
