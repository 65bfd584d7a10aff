//! The GPUs as they are at this moment: signals of NVML, joined with the processes that hold each of them.
//!
//! Reads only, and only what costs little, because it is asked for again and again.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    nvml::{GpuInstance, GpuReading, HealthReading, MigProfile},
    op::GpuStatusRequest,
    status::{GpuNow, GpuStatus, Holder, MigOffer, MigPart, SHOWN},
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

/// Reads the GPUs.
pub fn read(gpus: &mut Gpus, roots: &Roots, asked: GpuStatusRequest, deadline: &Deadline) -> GpuStatus {
    let mut status = status(&gpus.in_use(asked, deadline), asked.profiles, &Place::of(roots));
    status.node.insert("pci_count".to_owned(), driver::gpus_on_bus(roots));
    status
}

/// Returns the outcome of `gpu_status`.
pub fn outcome(status: &GpuStatus) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data.insert("gpu_status".to_owned(), json!(status));
    outcome
}

fn status(found: &InUse, profiles: bool, place: &Place) -> GpuStatus {
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
            now.profiles =
                gpu.profiles.as_ref().ok().filter(|_| profiles).map(|all| all.iter().map(offer).collect());
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

/// Whether its only compute instance has all of its slices.
fn is_whole(instance: &GpuInstance, profiles: &[MigProfile]) -> bool {
    let profile = profiles.iter().find(|profile| profile.id == instance.profile_id);
    match instance.compute_instances.as_slice() {
        [only] => profile.is_none_or(|profile| profile.slices == only.slices),
        _ => false,
    }
}

fn offer(profile: &MigProfile) -> MigOffer {
    let places = profile.placements.as_deref().unwrap_or_default();
    let size = places.first().map_or(0, |place| place.size);
    MigOffer {
        id: profile.id,
        profile: profile.name.clone(),
        slices: profile.slices,
        max_count: profile.max_count,
        size,
        starts: places.iter().filter(|place| place.size == size).map(|place| place.start).collect(),
    }
}

fn describe(now: &mut GpuNow, gpu: &GpuReading, reading: &HealthReading, found: &InUse) {
    if let Some(lately) = &reading.lately {
        now.recent = lately.busy.ok();
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
            whole: is_whole(instance, profiles),
            placement: Some(instance.placement),
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
