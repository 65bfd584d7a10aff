//! The health gate: whether a node may be given back, and how far its operating system is.
//!
//! `gpus` judges one reading of the GPUs, `xid` what the kernel logged, `system` what systemd says; `xid_table` knows
//! the error codes. Nothing here changes the node. Invariant: what cannot be read is unknown, never fine.

mod gpus;
mod system;
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

/// Whether a check needs the GPUs to be read. The kernel's log needs it to know whether there is a GPU at all.
pub fn reads_gpus(wanted: &HealthRequest) -> bool {
    wanted.checks.iter().any(|check| *check != HealthCheck::System)
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
    let Some(seen) = seen else {
        return match check {
            HealthCheck::System => system::check(&system::read(roots, deadline)),
            _ => (Verdict::Unknown, "the GPUs were not read".to_owned()),
        };
    };
    match check {
        HealthCheck::System => system::check(&system::read(roots, deadline)),
        HealthCheck::GpuCount => gpus::count(seen, wanted.gpus),
        HealthCheck::FabricManager => gpus::fabric_manager(seen),
        HealthCheck::Xid if gpus::none(seen) => (Verdict::NotApplicable, gpus::NO_GPU.to_owned()),
        HealthCheck::Xid => xid::check(seen, roots, deadline),
        HealthCheck::MigLayout => gpus::each(seen, gpus::mig),
        HealthCheck::Ecc => gpus::each(seen, gpus::ecc),
        HealthCheck::Persistence => gpus::each(seen, gpus::persistence),
    }
}
