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

/// Returns warnings for what GPUs lose, counted memory errors included, for the member that needs the activation.
pub(super) fn of(state: &State, desired: &Desired, activation: Option<&Activation>) -> Vec<(usize, String)> {
    let Some(activation) = activation else { return Vec::new() };
    let reboot = activation.class == Disruption::Reboot;
    let member = activation.reasons.first().map_or(0, |(member, _)| *member);
    let event = if reboot { "reboot" } else { "reset" };
    let none = GpuWants::default();
    let mut told = Vec::new();
    if !reboot {
        told.extend(unknown_peers(state, activation).map(|text| (member, text)));
    }
    let losses =
        (state.gpus.iter()).filter(|gpu| reboot || activation.uuids.contains(&gpu.uuid)).filter_map(|gpu| {
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
        });
    told.extend(losses);
    // In the plan already: whoever is killed during the act cannot tell it any more.
    let cleared = state.gpus.iter().filter(|gpu| reboot || activation.uuids.contains(&gpu.uuid));
    told.extend(cleared.filter_map(|gpu| Some((member, gpu.counted(event)?))));
    told
}

/// Says of which GPUs it is unknown whether they have peers, so that they are reset with others.
fn unknown_peers(state: &State, activation: &Activation) -> impl Iterator<Item = String> {
    let many = activation.uuids.len() > 1;
    let in_it = move |gpu: &&Gpu| many && activation.uuids.contains(&gpu.uuid) && gpu.has_peers();
    state.gpus.iter().filter(in_it).filter_map(|gpu| {
        let code = gpu.nvlinks.err()?;
        Some(format!(
            "the NVLinks of {} cannot be read ({code}), so that it is reset with those that may be its peers",
            gpu.label()
        ))
    })
}

/// Returns a sentence for each GPU that loses something in what takes from all of them, such as a reboot that is asked for.
pub fn at_once(state: &State, desired: &Desired, by: &str) -> Vec<String> {
    let none = GpuWants::default();
    let of_gpu = |gpu: &Gpu| {
        let lost = lost(state, gpu, desired.gpus.get(&gpu.uuid).unwrap_or(&none), true);
        let text = || {
            let (label, lost) = (gpu.label(), joined(&lost));
            format!("{label} loses by the {by} what no task up to here declares: {lost}")
        };
        (!lost.is_empty()).then(text)
    };
    let cleared = state.gpus.iter().filter_map(|gpu| gpu.counted(by));
    state.gpus.iter().filter_map(of_gpu).chain(cleared).collect()
}

fn lost(state: &State, gpu: &Gpu, wants: &GpuWants, reboot: bool) -> Vec<String> {
    let mut lost = Vec::new();
    if let (Ok(limit), Ok(default), None) = (gpu.power_mw, gpu.power_default_mw, &wants.power_mw)
        && limit != default
    {
        lost.push(format!("the power limit of {}", power(limit)));
    }
    if let (Ok(module), None) = (gpu.module_power, &wants.module_mw)
        && module.limit_mw != module.default_mw
    {
        lost.push(format!("the power limit of its module of {}", power(module.limit_mw)));
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
    let stays = gpu.architecture.is_known() && !gpu.architecture.has_volatile_mig();
    if reboot && gpu.mig_on() && !stays && wants.mig.is_none() {
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
    let by_daemon = state.host.starts_persistenced() && !state.host.persistenced_start.off
        || wants.persistence.as_ref().is_some_and(|want| want.value == PersistenceMode::Daemon);
    if reboot && gpu.persistence == Ok(true) && wants.persistence.is_none() && !by_daemon {
        lost.push("its persistence".to_owned());
    }
    lost
}
