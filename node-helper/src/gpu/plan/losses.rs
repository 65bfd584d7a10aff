//! What an activation takes away that no task declares, so that a plan says it before it is gone.
//!
//! Sources: as [`crate::gpu::after`].

use gpufleet_protocol::{Disruption, tasks::PersistenceMode};

use super::Activation;
use crate::gpu::{
    desired::{Desired, GpuWants},
    facts::compute_mode_name,
    state::{Gpu, Lock, State},
    values::{clock, power},
    wording::joined,
};

/// Returns a warning for each GPU that loses something, for the member that needs the activation.
pub(super) fn of(state: &State, desired: &Desired, activation: Option<&Activation>) -> Vec<(usize, String)> {
    let Some(activation) = activation else { return Vec::new() };
    let reboot = activation.class == Disruption::Reboot;
    let member = activation.reasons.first().map_or(0, |(member, _)| *member);
    let event = if reboot { "reboot" } else { "reset" };
    let none = GpuWants::default();
    (state.gpus.iter())
        .filter(|gpu| reboot || activation.uuids.contains(&gpu.uuid))
        .filter_map(|gpu| {
            let wants = desired.gpus.get(&gpu.uuid).unwrap_or(&none);
            let lost = lost(state, gpu, wants, reboot);
            (!lost.is_empty()).then(|| {
                let text = format!(
                    "the {event} takes from {} what no task declares: {}",
                    gpu.label(),
                    joined(&lost)
                );
                (member, text)
            })
        })
        .collect()
}

fn lost(state: &State, gpu: &Gpu, wants: &GpuWants, reboot: bool) -> Vec<String> {
    let mut lost = Vec::new();
    if let (Ok(limit), Ok(default), None) = (gpu.power_mw, gpu.power_default_mw, &wants.power_mw)
        && limit != default
    {
        lost.push(format!("the power limit of {}", power(limit)));
    }
    for (what, lock, declared) in
        [("graphics", gpu.graphics, wants.graphics.is_some()), ("memory", gpu.memory, wants.memory.is_some())]
    {
        if let (Lock::Locked { low_mhz, high_mhz }, false) = (lock, declared) {
            lost.push(format!("the lock of its {what} clock at {}", clock(low_mhz, high_mhz)));
        }
    }
    let stays_off = wants.mig.as_ref().is_some_and(|want| !want.value);
    if wants.layout.is_none() && !stays_off && !gpu.present().is_empty() {
        let names = gpu.present().iter().map(|instance| {
            gpu.profile(instance.profile_id).map_or_else(|| "one".to_owned(), |profile| profile.name.clone())
        });
        lost.push(format!("its MIG instances ({})", names.collect::<Vec<_>>().join(", ")));
    }
    if reboot && gpu.mig_on() && gpu.architecture.has_volatile_mig() && wants.mig.is_none() {
        lost.push("its MIG mode".to_owned());
    }
    if let (Ok(mode), None) = (gpu.compute_mode, &wants.compute)
        && mode != 0
    {
        lost.push(format!("the compute mode {}", compute_mode_name(mode)));
    }
    if gpu.accounting == Ok(true) && wants.accounting.is_none() {
        lost.push("its accounting".to_owned());
    }
    // A reset switches persistence on again itself.
    let by_daemon = state.host.persistenced.enabled
        || wants.persistence.as_ref().is_some_and(|want| want.value == PersistenceMode::Daemon);
    if reboot && gpu.persistence == Ok(true) && wants.persistence.is_none() && !by_daemon {
        lost.push("its persistence".to_owned());
    }
    lost
}
