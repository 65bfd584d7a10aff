//! The GPUs as they are at this moment: signals of NVML, joined with the processes that hold each of them.
//!
//! Reads only, and only what costs little, because it is asked for again and again.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    nvml::{GpuReading, HealthReading},
    status::{GpuNow, GpuStatus, Holder, MigPart, SHOWN},
};
use serde_json::json;

use super::{
    driver,
    gpu::{self, Place},
};
use crate::{
    deadline::Deadline,
    gpu::{Gpus, InUse},
    os::roots::Roots,
};

const MIB: u64 = 1024 * 1024;

/// Reads the GPUs; how busy they were is averaged over `window_s` seconds at most.
pub fn read(gpus: &mut Gpus, roots: &Roots, window_s: u32, deadline: &Deadline) -> GpuStatus {
    let mut status = status(&gpus.in_use(window_s, deadline), &Place::of(roots));
    status.node.insert("pci_count".to_owned(), driver::gpus_on_bus(roots));
    status
}

/// Returns the outcome of `gpu_status`.
pub fn outcome(status: &GpuStatus) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data.insert("gpu_status".to_owned(), json!(status));
    outcome
}

fn status(found: &InUse, place: &Place) -> GpuStatus {
    let signals = gpu::signals(&found.audited, &BTreeMap::new(), place);
    let read: BTreeMap<&str, (&GpuReading, &HealthReading)> = match &found.audited.health {
        Ok(health) => health.pairs().map(|pair| (pair.0.uuid.as_str(), pair)).collect(),
        Err(_) => BTreeMap::new(),
    };
    let gpus = signals.gpus.into_iter().map(|mut signals| {
        signals.readings.retain(|name, _| SHOWN.contains(&name.as_str()));
        let index = signals.label.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(u32::MAX);
        let mut now = GpuNow { index, signals, ..GpuNow::default() };
        if let Some((gpu, reading)) = read.get(now.signals.id.as_str()) {
            describe(&mut now, gpu, reading, found);
        }
        now
    });
    GpuStatus {
        gpus: gpus.collect(),
        node: signals.node,
        mps: found.mps,
        unseen: (!found.scan.unknown.is_empty()).then(|| found.scan.unknown.join("; ")),
    }
}

fn describe(now: &mut GpuNow, gpu: &GpuReading, reading: &HealthReading, found: &InUse) {
    if let Some(lately) = &reading.lately {
        now.recent = lately.busy.ok();
        now.signals.readings.insert("power_draw_w".to_owned(), gpu::power(lately.power_draw_mw));
    }
    let profiles = gpu.profiles.as_deref().unwrap_or_default();
    let profile =
        |id: u32| profiles.iter().find(|profile| profile.id == id).map(|profile| profile.name.clone());
    let instances = gpu.instances.as_deref().unwrap_or_default();
    now.instances = instances
        .iter()
        .map(|instance| MigPart {
            id: instance.id,
            profile: profile(instance.profile_id)
                .unwrap_or_else(|| format!("profile {}", instance.profile_id)),
            ready: !instance.compute_instances.is_empty(),
        })
        .collect();
    let listed = gpu.processes.as_deref().unwrap_or_default();
    let through_mps = reading.work.mps_pids.as_deref().unwrap_or_default();
    let clients = found
        .scan
        .workloads()
        .filter(|client| client.gpus.contains(&gpu.index) || through_mps.contains(&client.pid));
    let mut holders: Vec<Holder> = clients
        .map(|client| {
            let process = listed.iter().find(|process| process.pid == client.pid);
            Holder {
                pid: client.pid,
                command: client.command.clone(),
                user: client.user.clone(),
                unit: client.unit.clone(),
                memory_mib: process.and_then(|process| process.memory_bytes).map(|bytes| bytes / MIB),
                instance: process.and_then(|process| process.gpu_instance),
                mps: through_mps.contains(&client.pid),
            }
        })
        .collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.memory_mib), holder.pid));
    now.more_holders = u32::try_from(holders.len().saturating_sub(GpuNow::MOST_HOLDERS)).unwrap_or(u32::MAX);
    holders.truncate(GpuNow::MOST_HOLDERS);
    now.holders = holders;
}
