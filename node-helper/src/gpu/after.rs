//! What an act, a reset or a reboot keeps and loses of a state.
//!
//! Pure. Sources: nvml.h, the NVIDIA MIG User Guide r580, nvidia-smi documentation. Where those are silent, the value
//! is assumed lost, so that a plan sets it again.

use gpufleet_protocol::{
    Disruption,
    message::GpuClient,
    nvml::{ModulePower, Staged},
};

use super::{
    clients::{CLIENT_UNITS, HOLDS_ALL, PERSISTENCED, is_client_unit, stop_order},
    mps::{self, Seat},
    persistenced::Repair,
    plan::{Act, DRAIN_AND_RESET, RESET},
    state::{Compute, Daemon, Gpu, Hidden, Holding, Instance, Lock, State, Unit},
};
use crate::{
    tasks::modprobe,
    world::{UnitView, World},
};

/// An event that changes a node's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Act(Act),
    /// The GPUs, by UUID, that are reset together; persistence was off during the reset and is on again after it.
    Reset(Vec<String>),
    Reboot,
    /// The driver's modules are unloaded and loaded; the units that hold it are stopped meanwhile.
    Reload,
    /// The GPU at a PCI address is drained, or not any more.
    Drain {
        pci: String,
        on: bool,
    },
    /// The NVML worker closes the driver; `stopped` is whether the units that hold GPUs are stopped meanwhile.
    LetGo {
        stopped: bool,
    },
}

impl Event {
    /// Returns the event of an activation outside of this module: a reboot only, because this module makes all resets
    /// itself and its predictions include them.
    pub const fn of_activation(class: Disruption) -> Option<Self> {
        match class {
            Disruption::Reboot => Some(Self::Reboot),
            Disruption::Live | Disruption::Clients | Disruption::GpuReset => None,
        }
    }
}

/// Returns the state after an event.
#[must_use]
pub fn after(mut state: State, event: &Event) -> State {
    match event {
        Event::Act(act) => acted(&mut state, act),
        Event::Reset(uuids) => {
            for gpu in state.gpus.iter_mut().filter(|gpu| uuids.contains(&gpu.uuid)) {
                reset(gpu);
            }
            end_lost_daemons(&mut state);
        }
        Event::LetGo { stopped } => {
            let holding = &state.holding;
            let sleeps = |gpu: &&mut Gpu| gpu.persistence == Ok(false) && !holding.holds(gpu.index, !stopped);
            state.gpus.iter_mut().filter(sleeps).for_each(forget);
        }
        Event::Drain { pci, on: true } => hide(&mut state, pci),
        Event::Drain { pci, on: false } => show(&mut state, |hidden| hidden.gpu.pci == *pci),
        Event::Reload => {
            show(&mut state, |_| true);
            for gpu in &mut state.gpus {
                reset(gpu);
                unloaded(gpu);
            }
            state.confidential_ready = state.confidential_ready.map(|_| false);
            let on = state.host.persistenced.active;
            start_or_stop_persistenced(&mut state, on);
        }
        Event::Reboot => {
            show(&mut state, |_| true);
            // The services stay, because a boot starts what holds the GPUs again.
            state.holding = Holding { clients: Vec::new(), unknown: Vec::new(), ..state.holding };
            for gpu in &mut state.gpus {
                reset(gpu);
                unloaded(gpu);
                gpu.recovery_action = gpu.recovery_action.map(|_| 0);
            }
            state.confidential_ready = state.confidential_ready.map(|_| false);
            state.host.persistenced.active = state.host.starts_persistenced();
            let on = state.host.persistenced.active;
            start_or_stop_persistenced(&mut state, on);
            for daemon in state.host.mps.daemons.values_mut() {
                let enabled = daemon.unit.enabled;
                run_or_not(daemon, enabled);
            }
        }
    }
    state
}

/// Returns the state after other tasks of a prediction: their units run or not, and hold GPUs or not.
#[must_use]
pub fn foreseen(mut state: State, world: &World) -> State {
    let daemons: Vec<String> = state.host.mps.daemons.keys().map(Seat::unit).collect();
    let daemons = daemons.iter().map(String::as_str);
    for name in [PERSISTENCED].into_iter().chain(CLIENT_UNITS.iter().copied()).chain(daemons) {
        if let Some(UnitView { active: Some(active), file_state, .. }) = world.unit(name) {
            state = with_unit(state, name, active, file_state == "enabled");
        }
    }
    let runs = |unit: &str| world.unit(unit).and_then(|view| view.active);
    let stays = |client: &GpuClient| client.unit.as_deref().and_then(runs) != Some(false);
    let before = state.holding.clone();
    let holding = &mut state.holding;
    holding.clients.retain(stays);
    holding.services.retain(stays);
    holding.modules.retain(|(name, _)| !modprobe::is_unloaded(world, name));
    for unit in HOLDS_ALL.iter().filter(|unit| runs(unit) == Some(true)) {
        if !holding.services.iter().any(|client| client.unit.as_deref() == Some(unit)) {
            holding.services.push(GpuClient {
                pid: 0,
                command: (*unit).to_owned(),
                user: "root".to_owned(),
                gpus: state.gpus.iter().map(|gpu| gpu.index).collect(),
                unit: Some((*unit).to_owned()),
            });
        }
    }
    // Only if a holder ended: a GPU without holders before is already asleep.
    if *holding == before { state } else { after(state, &Event::LetGo { stopped: false }) }
}

/// Returns the state with a unit as predicted; an unrelated unit changes nothing.
#[must_use]
pub fn with_unit(mut state: State, name: &str, active: bool, enabled: bool) -> State {
    let host = &mut state.host;
    if name == PERSISTENCED && host.persistenced.exists {
        let before = std::mem::replace(&mut host.persistenced, Unit { exists: true, active, enabled });
        if before.active != active {
            start_or_stop_persistenced(&mut state, active);
        }
    } else if let Some(seat) = Seat::of_unit(name)
        && let Some(daemon) = host.mps.daemons.get_mut(&seat).filter(|daemon| daemon.unit.exists)
    {
        let before = std::mem::replace(&mut daemon.unit, Unit { exists: true, active, enabled });
        if before.active != active {
            run_or_not(daemon, active);
        }
    }
    if is_client_unit(name) {
        let units = &mut state.host.client_units;
        units.retain(|unit| unit != name);
        if active {
            units.push(name.to_owned());
            units.sort_by(|a, b| stop_order(a).cmp(&stop_order(b)));
        }
    }
    state
}

/// Makes pending values current; instances, clock locks and what the driver keeps in memory are lost.
///
/// The power limit and the compute mode are lost too: a reset needs persistence off, and the driver forgets them with
/// its last client (nvml.h).
fn reset(gpu: &mut Gpu) {
    gpu.ecc = gpu.ecc.map(|mode| Staged::settled(mode.pending));
    gpu.mig = gpu.mig.map(|mode| Staged::settled(mode.pending));
    gpu.instances = gpu.instances.as_ref().map(|_| Vec::new()).map_err(|code| *code);
    if let Ok(RESET | DRAIN_AND_RESET) = gpu.recovery_action {
        gpu.recovery_action = Ok(0);
    }
    gpu.rows_pending = gpu.rows_pending.map(|_| false);
    (gpu.uncorrected, gpu.corrected) = (gpu.uncorrected.map(|_| 0), gpu.corrected.map(|_| 0));
    forget(gpu);
}

fn forget(gpu: &mut Gpu) {
    (gpu.graphics, gpu.memory) = (Lock::Unknown, Lock::Unknown);
    gpu.energy_mj = gpu.energy_mj.map(|_| 0);
    if let (Ok(limit), Ok(default)) = (&mut gpu.power_mw, gpu.power_default_mw) {
        *limit = default;
    }
    if let Ok(module) = &mut gpu.module_power {
        module.limit_mw = module.default_mw;
    }
    if let Ok(mode) = &mut gpu.compute_mode {
        *mode = 0;
    }
    gpu.accounting = gpu.accounting.map(|_| false);
}

/// Hopper and later keep the MIG mode only while the module is loaded; Ampere keeps it in the InfoROM.
fn unloaded(gpu: &mut Gpu) {
    if gpu.architecture.has_volatile_mig() {
        gpu.mig = gpu.mig.map(|_| Staged::settled(false));
    }
}

fn hide(state: &mut State, pci: &str) {
    let Some(at) = state.gpus.iter().position(|gpu| gpu.pci == pci) else {
        let (back, stay) = std::mem::take(&mut state.returning).into_iter().partition(|gpu| gpu.pci == pci);
        state.returning = stay;
        state.drained.extend(Vec::into_iter(back).map(|gpu| Hidden { gpu, known: None }));
        return;
    };
    let gpu = state.gpus.remove(at);
    state.drained.push(Hidden { gpu: (&gpu).into(), known: Some(Box::new(gpu)) });
}

/// Gives drained GPUs back. One that nobody held was asleep meanwhile.
fn show(state: &mut State, which: impl Fn(&Hidden) -> bool) {
    let (back, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut state.drained).into_iter().partition(which);
    state.drained = stay;
    for hidden in back {
        match hidden.known {
            Some(mut gpu) => {
                gpu.persistence = gpu.persistence.map(|_| false);
                (gpu.graphics, gpu.memory) = (Lock::Unknown, Lock::Unknown);
                if !state.holding.holds(gpu.index, true) {
                    forget(&mut gpu);
                }
                state.gpus.push(*gpu);
            }
            None => state.returning.push(hidden.gpu),
        }
    }
    state.gpus.sort_by_key(|gpu| gpu.index);
}

/// Sets persistence as the daemon does it when it starts or stops.
fn start_or_stop_persistenced(state: &mut State, starts: bool) {
    let on = starts && !state.host.persistenced_start.off;
    for gpu in &mut state.gpus {
        gpu.persistence = gpu.persistence.map(|_| on);
        // When it starts too: nobody knows what kept the GPU awake before.
        (gpu.graphics, gpu.memory) = (Lock::Unknown, Lock::Unknown);
    }
}

fn run_or_not(daemon: &mut Daemon, active: bool) {
    daemon.unit.active = active;
    (daemon.answers, daemon.stale, daemon.servers) = (active, false, 0);
    daemon.percentage = active.then(|| mps::percentage_of(daemon.unit_text.as_deref()));
}

/// Ends the daemons whose MIG instances are gone.
fn end_lost_daemons(state: &mut State) {
    let lost: Vec<Seat> = (state.host.mps.daemons.keys())
        .filter(|seat| matches!(seat, Seat::Device(uuid) if seat.is_mig() && state.device(uuid).is_none()))
        .cloned()
        .collect();
    for seat in lost {
        if let Some(daemon) = state.host.mps.daemons.get_mut(&seat) {
            run_or_not(daemon, false);
        }
    }
}

fn acted(state: &mut State, act: &Act) {
    match act {
        Act::RepairPersistenced(repair) => {
            state.host.persistenced_repairs.retain(|other| other != repair);
            let start = &mut state.host.persistenced_start;
            match repair {
                Repair::Start { command, .. } => {
                    (start.has_drop_in, start.off) = (true, start.off && command.is_none());
                }
                Repair::NoStart => start.has_drop_in = false,
                Repair::Folder { .. } | Repair::Leftover { .. } | Repair::Failures => {}
            }
        }
        Act::Persistenced { on } => {
            let before = state.host.persistenced;
            state.host.restarting.retain(|unit| *unit != PERSISTENCED);
            (state.host.persistenced.active, state.host.persistenced.enabled) = (*on, *on);
            if before.active != *on {
                start_or_stop_persistenced(state, *on);
            }
        }
        Act::StartMps { seat, text, .. } => {
            let daemon = state.host.mps.daemons.entry(seat.clone()).or_default();
            daemon.unit_text = Some(text.clone());
            daemon.unit = Unit { exists: true, active: true, enabled: !seat.is_mig() };
            run_or_not(daemon, true);
        }
        Act::LimitMps { seat, text, .. } => {
            if let Some(daemon) = state.host.mps.daemons.get_mut(seat) {
                daemon.percentage = Some(mps::percentage_of(Some(text)));
                daemon.unit_text = Some(text.clone());
            }
        }
        Act::StopMps { seat: Seat::Node } => {
            if let Some(daemon) = state.host.mps.daemons.get_mut(&Seat::Node) {
                daemon.unit.enabled = false;
                run_or_not(daemon, false);
            }
        }
        Act::StopMps { seat } => {
            state.host.mps.daemons.remove(seat);
        }
        Act::RefreshCdi => {}
        Act::ConfidentialReady { on, .. } => {
            state.confidential_ready = state.confidential_ready.map(|_| *on);
        }
        _ => {
            if let Some(gpu) = act.uuid().map(str::to_owned).and_then(|uuid| state.gpu_mut(&uuid)) {
                acted_on_gpu(gpu, act);
            }
        }
    }
}

fn acted_on_gpu(gpu: &mut Gpu, act: &Act) {
    match act {
        Act::DestroyInstance { placement, .. } => {
            if let Ok(instances) = &mut gpu.instances {
                instances.retain(|instance| instance.placement != *placement);
            }
        }
        Act::DestroyCompute { placement, inner, .. } => {
            if let Ok(instances) = &mut gpu.instances {
                for instance in instances.iter_mut().filter(|instance| instance.placement == *placement) {
                    instance.computes.retain(|compute| compute.inner != *inner);
                }
            }
        }
        Act::Ecc { on, .. } => gpu.ecc = gpu.ecc.map(|mode| Staged { pending: *on, ..mode }),
        Act::Mig { on, .. } => {
            let volatile = gpu.architecture.has_volatile_mig();
            gpu.mig = gpu.mig.map(|mode| match volatile {
                true => Staged::settled(*on),
                false => Staged { pending: *on, ..mode },
            });
            if gpu.mig_on() {
                gpu.accounting = gpu.accounting.map(|_| false);
            }
        }
        Act::Persistence { on, .. } => {
            gpu.persistence = gpu.persistence.map(|_| *on);
            if !on {
                (gpu.graphics, gpu.memory) = (Lock::Unknown, Lock::Unknown);
            }
        }
        Act::CreateInstance { profile_id, placement, .. } => {
            let instance =
                Instance { id: None, profile_id: *profile_id, placement: *placement, computes: Vec::new() };
            if let Ok(instances) = &mut gpu.instances {
                instances.push(instance);
                instances.sort_by_key(|instance| instance.placement);
            }
        }
        Act::CreateCompute { placement, inner, .. } => {
            if let Ok(instances) = &mut gpu.instances {
                for instance in instances.iter_mut().filter(|instance| instance.placement == *placement) {
                    instance.computes.push(Compute::predicted(&gpu.uuid, *placement, *inner));
                }
            }
        }
        Act::Power { milliwatts, .. } => gpu.power_mw = gpu.power_mw.map(|_| *milliwatts),
        Act::ModulePower { milliwatts, .. } => {
            gpu.module_power = gpu.module_power.map(|module| ModulePower { limit_mw: *milliwatts, ..module });
        }
        // Without persistence the lock ends with the driver's last client, so it cannot be relied on.
        Act::Graphics { want, .. } if gpu.persistence == Ok(true) => gpu.graphics = (*want).into(),
        Act::Memory { want, .. } if gpu.persistence == Ok(true) => gpu.memory = (*want).into(),
        Act::Accounting { on, .. } => gpu.accounting = gpu.accounting.map(|_| *on),
        Act::Compute { mode, .. } => gpu.compute_mode = gpu.compute_mode.map(|_| *mode),
        Act::Graphics { .. }
        | Act::Memory { .. }
        | Act::Persistenced { .. }
        | Act::RepairPersistenced(_)
        | Act::StartMps { .. }
        | Act::LimitMps { .. }
        | Act::StopMps { .. }
        | Act::ConfidentialReady { .. }
        | Act::RefreshCdi => {}
    }
}
