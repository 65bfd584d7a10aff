//! The health gate: whether a node may be given back, and how far its operating system is.
//!
//! Each check is a file of its own and a line in [`of`]; `gpus` asks one reading of the GPUs, `xid_table` knows the
//! error codes. Nothing here changes the node. Invariant: what cannot be read is unknown, never fine.

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
mod xid_table;

use std::collections::BTreeMap;

use gpufleet_protocol::{
    health::{CheckResult, HealthCheck, HealthReport, HealthRequest, Verdict},
    nvml::Snapshot,
};

pub use self::{system::read as system, xid::log_end};
use crate::{deadline::Deadline, os::roots::Roots};

/// What the GPU side saw for the checks.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The reading, or why there is none.
    pub snapshot: Result<Snapshot, Unread>,
    /// NVIDIA GPUs on the PCI bus.
    pub on_bus: u32,
    /// NVSwitches on the PCI bus, or known to the driver.
    pub switches: u32,
    pub fabric_manager: FabricManager,
    /// How far the kernel's log was when gpufleet had reset a GPU, by PCI address, in microseconds of this boot.
    pub resets: BTreeMap<String, u64>,
}

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    pub why: String,
    /// There is no driver, so without a GPU on the bus nothing is missing.
    pub no_driver: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricManager {
    Runs,
    /// Neither a unit nor a process of that name.
    Absent,
    /// The processes could not be listed.
    Unknown,
}

/// What a check found.
type Found = (Verdict, String);

/// How a check judges.
enum Check {
    /// From the operating system alone.
    System(fn(&Roots, &Deadline) -> Found),
    /// From a reading of the GPUs.
    Gpus(fn(&Seen) -> Found),
    /// From a reading of the GPUs, and how many of them were there before.
    Count(fn(&Seen, Option<u32>) -> Found),
    /// From a reading of the GPUs and the kernel's log.
    Log(fn(&Seen, &Roots, &Deadline) -> Found),
}

/// The registry: every check and what judges it.
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

/// Whether a check needs the GPUs to be read.
pub fn reads_gpus(wanted: &HealthRequest) -> bool {
    wanted.checks.iter().any(|check| !matches!(of(*check), Check::System(_)))
}

/// One result for each check, in the order asked for.
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
