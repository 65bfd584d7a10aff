//! What an activation takes away that no task declares, so that a plan says it before it is gone.
//!
//! What the node's kept state sets again at the boot is told as such. Sources: as [`crate::gpu::after`].

use gpufleet_protocol::{Disruption, Property, change::Value, nvml::Staged, tasks::PersistenceMode};

use super::Activation;
use crate::gpu::{
    desired::{Desired, GpuWants},
    facts::compute_mode_name,
    kept::NextBoot,
    reboot::Taker,
    state::{Gpu, Lock, State},
    values::{clock, power},
    wording::joined,
};

const SET_AGAIN: &str = "what the kept state sets again at the boot";

/// Returns warnings for what GPUs lose, counted memory errors included, for the member that needs the activation.
pub(super) fn of(state: &State, desired: &Desired, activation: Option<&Activation>) -> Vec<(usize, String)> {
    let Some(activation) = activation else { return Vec::new() };
    let reboot = activation.class == Disruption::Reboot;
    let member = activation.reasons.first().map_or(0, |(member, _)| *member);
    let event = if reboot { "reboot" } else { "reset" };
    let meant = |gpu: &&Gpu| reboot || activation.uuids.contains(&gpu.uuid);
    let mut told: Vec<String> = Vec::new();
    if !reboot {
        told.extend(unknown_peers(state, activation));
    }
    let boot = if reboot { NextBoot::of(state) } else { NextBoot::default() };
    let said = |gpu: &Gpu, why, what: &[String]| {
        format!("the {event} takes from {} {why}: {}", gpu.label(), joined(what))
    };
    let mut lost = false;
    for gpu in state.gpus.iter().filter(meant) {
        let losses = Losses::of(state, gpu, desired, reboot, &boot);
        lost |= !losses.for_good.is_empty();
        told.extend(losses.told("what no task declares", |why, what| said(gpu, why, what)));
    }
    told.extend(boot.trouble.clone().filter(|_| lost));
    let staged = state.gpus.iter().filter(meant);
    let staged: Vec<String> =
        staged.flat_map(|gpu| made_current(gpu, desired, &boot, reboot, event, "no task declares")).collect();
    if !staged.is_empty() {
        told.push(joined(&staged));
    }
    // In the plan already: whoever is killed during the act cannot tell it any more.
    told.extend(state.gpus.iter().filter(meant).filter_map(|gpu| gpu.counted(event)));
    told.into_iter().map(|text| (member, text)).collect()
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
pub fn at_once(state: &State, desired: &Desired, taker: Taker) -> Vec<String> {
    let by = taker.as_str();
    // No boot follows a reload.
    let boot = if taker == Taker::Reboot { NextBoot::of(state) } else { NextBoot::default() };
    let mut told: Vec<String> = Vec::new();
    let mut lost = false;
    for gpu in &state.gpus {
        let losses = Losses::of(state, gpu, desired, true, &boot);
        lost |= !losses.for_good.is_empty();
        let said =
            |why: &str, what: &[String]| format!("{} loses by the {by} {why}: {}", gpu.label(), joined(what));
        told.extend(losses.told("what no task up to here declares", said));
    }
    told.extend(boot.trouble.clone().filter(|_| lost));
    let staged = state.gpus.iter();
    told.extend(
        staged.flat_map(|gpu| made_current(gpu, desired, &boot, true, by, "no task up to here declares")),
    );
    told.extend(state.gpus.iter().filter_map(|gpu| gpu.counted(by)));
    told
}

/// Returns a sentence for each pending mode of a GPU that no task declares and that the act makes current. Somebody else
/// requested it, perhaps months ago, and waits for a reset of his own.
fn made_current(
    gpu: &Gpu,
    desired: &Desired,
    boot: &NextBoot,
    unloads: bool,
    by: &str,
    undeclared: &str,
) -> Vec<String> {
    let wants = desired.gpus.get(&gpu.uuid);
    let mut told = Vec::new();
    let mut tell = |what: &str, kind: &str, mode: Staged, effect: &str| {
        let (pending, current) = (Value::from(mode.pending), Value::from(mode.current));
        told.push(format!(
            "{}: the {by} also makes the pending {what} mode current, which {undeclared}: {current} -> \
             {pending}{effect}; to keep it {current}, declare `{kind}: {{mode: {current}}}`",
            gpu.label()
        ));
    };
    if let (Ok(mode), None) = (gpu.ecc, wants.and_then(|wants| wants.ecc.as_ref()))
        && mode.pending != mode.current
    {
        tell("ECC", "gpu_ecc", mode, "");
    }
    // What the driver keeps in memory is lost where it is unloaded, pending or not.
    let keeps = !unloads || !gpu.architecture.has_volatile_mig();
    if let (Ok(mode), None, true) = (gpu.mig, wants.and_then(|wants| wants.mig.as_ref()), keeps)
        && mode.pending != mode.current
    {
        let arranged = boot.desired.gpus.get(&gpu.uuid).is_some_and(|wants| wants.layout.is_some());
        let effect = if mode.pending && !arranged {
            ", without instances, so that no work can use the GPU"
        } else {
            ""
        };
        tell("MIG", "gpu_mig", mode, effect);
    }
    told
}

/// What one GPU loses that no task declares.
#[derive(Default)]
struct Losses {
    for_good: Vec<String>,
    /// The next boot sets it again.
    set_again: Vec<String>,
}

impl Losses {
    fn of(state: &State, gpu: &Gpu, desired: &Desired, reboot: bool, boot: &NextBoot) -> Self {
        let lost_of = |desired: &Desired| {
            let none = GpuWants::default();
            lost(state, gpu, desired.gpus.get(&gpu.uuid).unwrap_or(&none), reboot)
        };
        let unkept = lost_of(&boot.desired);
        let mut losses = Self::default();
        for (property, what) in lost_of(desired) {
            match boot.other(gpu, &property) {
                _ if unkept.iter().any(|(known, _)| *known == property) => losses.for_good.push(what),
                Some(other) => losses.for_good.push(format!("{what} (the kept state sets {other})")),
                // The boot changes MIG only while nothing that uses GPUs runs: a container runtime may be earlier.
                None if [Property::MIG_MODE, Property::MIG_LAYOUT].contains(&property) => {
                    losses.set_again.push(format!("{what}, unless something that uses GPUs runs before it"));
                }
                None => losses.set_again.push(what),
            }
        }
        losses
    }

    fn told(
        &self,
        undeclared: &'static str,
        said: impl Fn(&'static str, &[String]) -> String,
    ) -> Vec<String> {
        let both = [(undeclared, &self.for_good), (SET_AGAIN, &self.set_again)];
        both.into_iter().filter(|(_, what)| !what.is_empty()).map(|(why, what)| said(why, what)).collect()
    }
}

/// Returns what a GPU has that is gone then, without what is wanted of it.
fn lost(state: &State, gpu: &Gpu, wants: &GpuWants, reboot: bool) -> Vec<(Property, String)> {
    let mut lost = Vec::new();
    if let (Ok(limit), Ok(default), None) = (gpu.power_mw, gpu.power_default_mw, &wants.power_mw)
        && limit != default
    {
        lost.push((Property::POWER_LIMIT, format!("the power limit of {}", power(limit))));
    }
    if let (Ok(module), None) = (gpu.module_power, &wants.module_mw)
        && module.limit_mw != module.default_mw
    {
        let what = format!("the power limit of its module of {}", power(module.limit_mw));
        lost.push((Property::MODULE_POWER_LIMIT, what));
    }
    for (property, what, lock, declared) in [
        (Property::GRAPHICS_CLOCK, "graphics", gpu.graphics, wants.graphics.is_some()),
        (Property::MEMORY_CLOCK, "memory", gpu.memory, wants.memory.is_some()),
    ] {
        if let (Lock::Locked { low_mhz, high_mhz }, false) = (lock, declared) {
            let what = format!("the lock of its {what} clock at {}", clock(low_mhz, high_mhz));
            lost.push((property, what));
        }
    }
    let stays_off = wants.mig.as_ref().is_some_and(|want| !want.value);
    if wants.layout.is_none() && !stays_off && !gpu.present().is_empty() {
        let names = gpu.present().iter().map(|instance| {
            gpu.profile(instance.profile_id).map_or_else(|| "one".to_owned(), |profile| profile.name.clone())
        });
        let what = format!("its MIG instances ({})", names.collect::<Vec<_>>().join(", "));
        lost.push((Property::MIG_LAYOUT, what));
    }
    let stays = gpu.architecture.is_known() && !gpu.architecture.has_volatile_mig();
    if reboot && gpu.mig_on() && !stays && wants.mig.is_none() {
        lost.push((Property::MIG_MODE, "its MIG mode".to_owned()));
    }
    if let (Ok(mode), None) = (gpu.compute_mode, &wants.compute)
        && mode != 0
    {
        lost.push((Property::COMPUTE_MODE, format!("the compute mode {}", compute_mode_name(mode))));
    }
    if gpu.accounting == Ok(true) && wants.accounting.is_none() {
        lost.push((Property::new("accounting"), "its accounting".to_owned()));
    }
    // A reset switches persistence on again itself.
    let by_daemon = state.host.starts_persistenced() && !state.host.persistenced_start.off
        || wants.persistence.as_ref().is_some_and(|want| want.value == PersistenceMode::Daemon);
    if reboot && gpu.persistence == Ok(true) && wants.persistence.is_none() && !by_daemon {
        lost.push((Property::PERSISTENCE, "its persistence".to_owned()));
    }
    lost
}
