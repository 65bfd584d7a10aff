//! The steps, in order, from a state to the desired one.
//!
//! Pure. Order and classes follow the architecture: clients stop, instances that must go are destroyed, every pending
//! value is written, **one** activation makes them current, and then come persistence, MIG mode of Hopper and later,
//! instances, limits, clocks, compute mode and MPS. A stage is what can be done before the next activation; a forecast
//! chains stages through [`super::after`].
//!
//! Invariants: pending values, never current ones, are compared with what is desired; a stage that waits for a reboot
//! holds only what the reboot needs and what survives it; a plan of a forecast's end is empty.

mod layout;
pub mod losses;
mod mps;
mod persistence;

use persistence::{persistence_flag, persistence_unit};
use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::{
    Blocker, Change, Disruption, Layer, Property, Subject,
    change::Value,
    mig::Inner,
    nvml::Placement,
    op::GpuGroup,
    tasks::{PersistenceMode, ResetWhen},
};

use super::{
    after::{Event, after},
    blockers,
    desired::{Desired, GpuWants, LockWant, Want, merge},
    facts::compute_mode_name,
    mps::{Seat, Serving},
    persistenced::Repair,
    state::{Architecture, Gpu, Lock, State},
    values::{clock, power},
};

/// Why a value that the driver keeps only while it has a client (nvml.h) will be lost, and what to do.
pub const FORGETS: &str = "persistence is off, so the driver forgets it when its last client ends; \
                           declare `gpu_persistence: {mode: daemon}` as well";

/// One act on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Includes its compute instances.
    DestroyInstance {
        uuid: String,
        placement: Placement,
    },
    /// Only one of its compute instances.
    DestroyCompute {
        uuid: String,
        placement: Placement,
        inner: Inner,
    },
    Ecc {
        uuid: String,
        on: bool,
    },
    Mig {
        uuid: String,
        on: bool,
    },
    Persistenced {
        on: bool,
    },
    /// Before the daemon is started.
    RepairPersistenced(Repair),
    Persistence {
        uuid: String,
        on: bool,
    },
    CreateInstance {
        uuid: String,
        profile_id: u32,
        placement: Placement,
    },
    CreateCompute {
        uuid: String,
        placement: Placement,
        inner: Inner,
    },
    Power {
        uuid: String,
        milliwatts: u32,
    },
    ModulePower {
        uuid: String,
        milliwatts: u32,
    },
    Graphics {
        uuid: String,
        want: LockWant,
    },
    Memory {
        uuid: String,
        want: LockWant,
    },
    Compute {
        uuid: String,
        mode: u32,
    },
    Accounting {
        uuid: String,
        on: bool,
    },
    /// Of the whole node; `uuid` is any of its GPUs.
    ConfidentialReady {
        uuid: String,
        on: bool,
    },
    StartMps {
        seat: Seat,
        text: String,
        serving: Serving,
    },
    /// Tells a running daemon its limits.
    LimitMps {
        seat: Seat,
        text: String,
        serving: Serving,
    },
    /// Of a device, with its unit.
    StopMps {
        seat: Seat,
    },
    RefreshCdi,
}

impl Act {
    /// Returns the GPU that it changes.
    pub fn uuid(&self) -> Option<&str> {
        match self {
            Self::DestroyInstance { uuid, .. }
            | Self::DestroyCompute { uuid, .. }
            | Self::Ecc { uuid, .. }
            | Self::Mig { uuid, .. }
            | Self::Persistence { uuid, .. }
            | Self::CreateInstance { uuid, .. }
            | Self::CreateCompute { uuid, .. }
            | Self::Power { uuid, .. }
            | Self::ModulePower { uuid, .. }
            | Self::Graphics { uuid, .. }
            | Self::Memory { uuid, .. }
            | Self::Compute { uuid, .. }
            | Self::Accounting { uuid, .. } => Some(uuid),
            Self::ConfidentialReady { .. }
            | Self::Persistenced { .. }
            | Self::RepairPersistenced(_)
            | Self::StartMps { .. }
            | Self::LimitMps { .. }
            | Self::StopMps { .. }
            | Self::RefreshCdi => None,
        }
    }

    /// Returns the text shown while it runs.
    pub fn text(&self, state: &State) -> String {
        let gpu = self.uuid().and_then(|uuid| state.gpu(uuid)).map_or_else(|| "GPU".to_owned(), Gpu::label);
        match self {
            Self::DestroyInstance { .. } => format!("{gpu}: destroying a MIG instance"),
            Self::DestroyCompute { .. } => format!("{gpu}: destroying a compute instance"),
            Self::Ecc { on, .. } => format!("{gpu}: ECC {}", Value::from(*on)),
            Self::Mig { on, .. } => format!("{gpu}: MIG mode {}", Value::from(*on)),
            Self::Persistenced { on: true } => "starting nvidia-persistenced".to_owned(),
            Self::Persistenced { on: false } => "stopping nvidia-persistenced".to_owned(),
            Self::RepairPersistenced(Repair::NoStart) => {
                "removing what switches persistence on when nvidia-persistenced starts".to_owned()
            }
            Self::RepairPersistenced(_) => {
                "repairing what keeps nvidia-persistenced from starting".to_owned()
            }
            Self::Persistence { on, .. } => format!("{gpu}: persistence {}", Value::from(*on)),
            Self::CreateInstance { .. } => format!("{gpu}: creating a MIG instance"),
            Self::CreateCompute { .. } => format!("{gpu}: creating a compute instance"),
            Self::Power { milliwatts, .. } => format!("{gpu}: power limit {}", power(*milliwatts)),
            Self::ModulePower { milliwatts, .. } => {
                format!("{gpu}: module power limit {}", power(*milliwatts))
            }
            Self::Graphics { .. } => format!("{gpu}: graphics clock"),
            Self::Memory { .. } => format!("{gpu}: memory clock"),
            Self::Compute { mode, .. } => format!("{gpu}: compute mode {}", compute_mode_name(*mode)),
            Self::Accounting { on, .. } => format!("{gpu}: accounting {}", Value::from(*on)),
            Self::ConfidentialReady { on: true, .. } => "confidential GPUs accept work".to_owned(),
            Self::ConfidentialReady { on: false, .. } => "confidential GPUs refuse work".to_owned(),
            Self::StartMps { seat, .. } => format!("starting the {}", mps::label(state, seat)),
            Self::LimitMps { seat, .. } => format!("telling the {} its limits", mps::label(state, seat)),
            Self::StopMps { seat } => format!("stopping the {}", mps::label(state, seat)),
            Self::RefreshCdi => "refreshing the CDI specification".to_owned(),
        }
    }
}

/// A change with the member that declared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub member: usize,
    pub change: Change,
}

/// An act, and the positions in the stage of its changes, which are made once all of their acts are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub act: Act,
    pub member: usize,
    pub changes: Vec<usize>,
}

/// A reset or reboot that makes pending values current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    /// `GpuReset` or `Reboot`.
    pub class: Disruption,
    /// GPUs that are reset together, or that wait for a reboot.
    pub uuids: Vec<String>,
    /// The pending values, by member.
    pub reasons: Vec<(usize, String)>,
}

/// What can be done before the next activation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub changes: Vec<Planned>,
    pub steps: Vec<Step>,
    pub activation: Option<Activation>,
    /// The GPU of each device whose MPS daemon is started or stopped.
    pub served: BTreeMap<String, String>,
}

impl Stage {
    pub fn class(&self) -> Disruption {
        let activation = match &self.activation {
            Some(activation) if activation.class == Disruption::GpuReset => Disruption::GpuReset,
            _ => Disruption::Live,
        };
        self.changes.iter().map(|planned| planned.change.disruption).max().unwrap_or_default().max(activation)
    }

    /// Returns the GPUs that must be free; `None` stands for all.
    pub fn must_be_free(&self) -> Option<BTreeSet<String>> {
        let mut uuids = BTreeSet::new();
        for step in &self.steps {
            match &step.act {
                Act::DestroyInstance { uuid, .. } | Act::DestroyCompute { uuid, .. } => {
                    uuids.insert(uuid.clone());
                }
                Act::Mig { uuid, .. } if self.disturbs_clients(step) => {
                    uuids.insert(uuid.clone());
                }
                Act::StopMps { seat: Seat::Device(uuid) }
                | Act::StartMps { seat: Seat::Device(uuid), .. }
                    if self.disturbs_clients(step) =>
                {
                    match self.served.get(uuid) {
                        Some(gpu) => uuids.insert(gpu.clone()),
                        None => return None,
                    };
                }
                Act::StopMps { .. } | Act::StartMps { .. } | Act::ConfidentialReady { .. }
                    if self.disturbs_clients(step) =>
                {
                    return None;
                }
                _ => {}
            }
        }
        if let Some(activation) = self.activation.as_ref().filter(|a| a.class == Disruption::GpuReset) {
            uuids.extend(activation.uuids.iter().cloned());
        }
        Some(uuids)
    }

    fn disturbs_clients(&self, step: &Step) -> bool {
        let mut changes = step.changes.iter().filter_map(|at| self.changes.get(*at));
        changes.any(|planned| planned.change.disruption == Disruption::Clients)
    }

    /// Whether units that hold GPUs, such as DCGM, are stopped: for a reset, and when instances or the MIG mode change
    /// at once, because the units must see the new ones.
    pub fn stops_units(&self) -> bool {
        let reset = self.activation.as_ref().is_some_and(|a| a.class == Disruption::GpuReset);
        reset
            || self.steps.iter().any(|step| match step.act {
                Act::DestroyInstance { .. }
                | Act::DestroyCompute { .. }
                | Act::CreateInstance { .. }
                | Act::CreateCompute { .. } => true,
                Act::Mig { .. } => self.disturbs_clients(step),
                _ => false,
            })
    }

    fn change(&mut self, member: usize, change: Change) -> usize {
        self.changes.push(Planned { member, change });
        self.changes.len() - 1
    }

    fn step(&mut self, member: usize, act: Act, changes: &[usize]) {
        self.steps.push(Step { act, member, changes: changes.to_vec() });
    }
}

/// What a change is about that is the reset itself.
pub const GPU_RESET: Property = Property::new("reset");

/// Values of [`recovery`](gpufleet_protocol::nvml::recovery) that a reset answers.
pub const RESET: u32 = 1;
pub const DRAIN_AND_RESET: u32 = 4;

/// Why a GPU is to be reset for its own sake, if so.
fn reset_due(gpu: &Gpu, when: ResetWhen) -> Option<&'static str> {
    match (gpu.recovery_action, gpu.rows_pending, when) {
        (Ok(RESET | DRAIN_AND_RESET), _, _) => Some("needs a reset, as the driver says"),
        (_, Ok(true), _) => Some("needs a reset to replace memory rows"),
        (_, _, ResetWhen::Always) => Some("is to be reset"),
        (_, _, ResetWhen::Required) => None,
    }
}

/// Returns the GPUs that wait for an activation, and the reasons.
fn waiting(state: &State, desired: &Desired) -> (Vec<String>, Vec<(usize, String)>) {
    let (mut uuids, mut reasons) = (Vec::new(), Vec::new());
    for gpu in &state.gpus {
        let Some(wants) = desired.gpus.get(&gpu.uuid) else { continue };
        let before = reasons.len();
        if let (Some(want), Ok(ecc)) = (&wants.ecc, gpu.ecc)
            && ecc.current != want.value
        {
            reasons
                .push((want.member, format!("{} ECC {} is pending", gpu.label(), Value::from(want.value))));
        }
        if let (Some(want), Ok(mig)) = (&wants.mig, gpu.mig)
            && mig.current != want.value
            && !gpu.architecture.has_volatile_mig()
        {
            reasons.push((
                want.member,
                format!("{} MIG mode {} is pending", gpu.label(), Value::from(want.value)),
            ));
        }
        if let Some(want) = &wants.reset
            && let Some(why) = reset_due(gpu, want.value)
        {
            reasons.push((want.member, format!("{} {why}", gpu.label())));
        }
        if reasons.len() > before {
            uuids.push(gpu.uuid.clone());
        }
    }
    (uuids, reasons)
}

/// Returns the GPUs that a reset of these includes.
///
/// Source: nvidia-smi documentation: before Ampere, all NVLink peers are reset in one command; on Ampere only where
/// NVSwitches connect them and the fabric manager does not run; later GPUs are reset alone. Unknown switches count as there,
/// and unknown GPUs as those that are reset together.
pub fn reset_group(state: &State, uuids: &[String]) -> Vec<String> {
    let unmanaged = state.host.switches != Some(0) && !state.host.fabric_manager;
    let together = uuids.iter().filter_map(|uuid| state.gpu(uuid)).any(|gpu| {
        gpu.has_peers()
            && (!gpu.architecture.is_known()
                || gpu.architecture < Architecture::AMPERE
                || gpu.architecture == Architecture::AMPERE && unmanaged)
    });
    let with_peers = |gpu: &&Gpu| uuids.contains(&gpu.uuid) || together && gpu.has_peers();
    state.gpus.iter().filter(with_peers).map(|gpu| gpu.uuid.clone()).collect()
}

/// Returns the activation that a state needs, if any. With `reboot` it is never a reset.
pub fn activation(state: &State, desired: &Desired, reboot: bool) -> Option<Activation> {
    let (uuids, reasons) = waiting(state, desired);
    if uuids.is_empty() {
        return None;
    }
    let group = reset_group(state, &uuids);
    let can = !reboot && group.iter().all(|uuid| state.gpu(uuid).is_some_and(|gpu| gpu.resettable));
    Some(match can {
        true => Activation { class: Disruption::GpuReset, uuids: group, reasons },
        false => Activation { class: Disruption::Reboot, uuids, reasons },
    })
}

/// Returns what can be done now.
pub fn stage(state: &State, desired: &Desired, reboot: bool) -> Stage {
    let Some(activation) = activation(state, desired, reboot) else { return settled(state, desired) };
    let mut stage = Stage::default();
    mps::stop(&mut stage, state, &mps::cleared(state, desired), desired);
    for gpu in &state.gpus {
        let Some(wants) = desired.gpus.get(&gpu.uuid) else { continue };
        if !gpu.architecture.has_volatile_mig() && wants.mig.as_ref().is_some_and(|want| !want.value) {
            layout::clear(&mut stage, gpu, wants);
        }
    }
    if activation.class == Disruption::Reboot {
        persistence_unit(&mut stage, state, desired);
    }
    for gpu in &state.gpus {
        if let Some(wants) = desired.gpus.get(&gpu.uuid) {
            pending(&mut stage, gpu, wants, activation.class);
        }
    }
    if stage.steps.iter().any(|step| matches!(step.act, Act::DestroyInstance { .. })) {
        refresh_cdi(&mut stage, state);
    }
    stage.activation = Some(activation);
    stage
}

/// Writes values that an activation will make current.
fn pending(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants, class: Disruption) {
    if let Some(want) = &wants.reset
        && let Some(why) = reset_due(gpu, want.value)
        && class == Disruption::GpuReset
    {
        stage.change(want.member, Change::new(gpu.subject(), GPU_RESET, why, "done", class));
    }
    let staged = [
        (Property::ECC, wants.ecc.as_ref(), gpu.ecc.ok(), true),
        (Property::MIG_MODE, wants.mig.as_ref(), gpu.mig.ok(), !gpu.architecture.has_volatile_mig()),
    ];
    for (property, want, mode, applies) in staged {
        let (Some(want), Some(mode), true) = (want, mode, applies) else { continue };
        let act = match property == Property::ECC {
            true => Act::Ecc { uuid: gpu.uuid.clone(), on: want.value },
            false => Act::Mig { uuid: gpu.uuid.clone(), on: want.value },
        };
        if mode.current == want.value {
            withdraw(stage, gpu, property, want, mode.pending, act);
            continue;
        }
        let change = Change::new(gpu.subject(), property, mode.current, want.value, class);
        if mode.pending != want.value {
            let at = stage.change(want.member, change);
            stage.step(want.member, act, &[at]);
        } else if class == Disruption::GpuReset {
            // A change without a step: the value was pending before, and the reset makes it current.
            stage.change(want.member, change.with_note("was pending"));
        }
    }
}

/// Withdraws a pending value if the current one is the desired one.
fn withdraw(stage: &mut Stage, gpu: &Gpu, property: Property, want: &Want<bool>, pending: bool, act: Act) {
    if pending != want.value {
        let change = Change::new(gpu.subject(), property, pending, want.value, Disruption::Live);
        let at = stage.change(want.member, change.at(Layer::Pending));
        stage.step(want.member, act, &[at]);
    }
}

/// Plans everything, if nothing waits for an activation.
pub(super) fn settled(state: &State, desired: &Desired) -> Stage {
    let mut stage = Stage::default();
    let arranged = mps::arranged(state, desired);
    mps::stop(&mut stage, state, &arranged, desired);
    persistence_unit(&mut stage, state, desired);
    for gpu in &state.gpus {
        if let Some(wants) = desired.gpus.get(&gpu.uuid) {
            persistence_flag(&mut stage, gpu, wants);
        }
    }
    for gpu in &state.gpus {
        let Some(wants) = desired.gpus.get(&gpu.uuid) else { continue };
        withdrawn(&mut stage, gpu, wants);
        mig_mode(&mut stage, gpu, wants);
    }
    for gpu in &state.gpus {
        if let Some(wants) = desired.gpus.get(&gpu.uuid) {
            layout::arrange(&mut stage, gpu, wants);
        }
    }
    for gpu in &state.gpus {
        if let Some(wants) = desired.gpus.get(&gpu.uuid) {
            limits(&mut stage, gpu, wants);
        }
    }
    confidential_ready(&mut stage, state, desired);
    mps::start(&mut stage, &arranged, desired);
    let mig = |step: &Step| {
        matches!(
            step.act,
            Act::Mig { .. }
                | Act::DestroyInstance { .. }
                | Act::CreateInstance { .. }
                | Act::CreateCompute { .. }
                | Act::DestroyCompute { .. }
        )
    };
    if stage.steps.iter().any(mig) {
        refresh_cdi(&mut stage, state);
    }
    stage
}

fn refresh_cdi(stage: &mut Stage, state: &State) {
    if state.host.cdi_refresh {
        let member = stage.steps.first().map_or(0, |step| step.member);
        stage.step(member, Act::RefreshCdi, &[]);
    }
}

/// Withdraws pending values that differ from the desired ones while the current ones do not.
fn withdrawn(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    if let (Some(want), Ok(mode)) = (&wants.ecc, gpu.ecc)
        && mode.current == want.value
    {
        let act = Act::Ecc { uuid: gpu.uuid.clone(), on: want.value };
        withdraw(stage, gpu, Property::ECC, want, mode.pending, act);
    }
    if let (Some(want), Ok(mode)) = (&wants.mig, gpu.mig)
        && mode.current == want.value
    {
        let act = Act::Mig { uuid: gpu.uuid.clone(), on: want.value };
        withdraw(stage, gpu, Property::MIG_MODE, want, mode.pending, act);
    }
}

/// Sets the MIG mode of Hopper and later, which changes at once.
fn mig_mode(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    let (Some(want), Ok(mode)) = (&wants.mig, gpu.mig) else { return };
    if !gpu.architecture.has_volatile_mig() {
        return;
    }
    if !want.value {
        layout::clear(stage, gpu, wants);
    }
    if mode.current != want.value {
        let (now, wanted) = (mode.current, want.value);
        let change = Change::new(gpu.subject(), Property::MIG_MODE, now, wanted, Disruption::Clients);
        let at = stage.change(want.member, change);
        stage.step(want.member, Act::Mig { uuid: gpu.uuid.clone(), on: want.value }, &[at]);
    }
}

impl From<Lock> for Value {
    fn from(lock: Lock) -> Self {
        match lock {
            Lock::Unknown => Self::Unknown,
            Lock::Free => Self::Absent,
            Lock::Locked { low_mhz, high_mhz } => clock(low_mhz, high_mhz),
        }
    }
}

fn is_locked_so(lock: Lock, want: LockWant) -> bool {
    match (lock, want) {
        (Lock::Free, LockWant::Free) => true,
        (Lock::Locked { low_mhz, high_mhz }, LockWant::Range { low_mhz: low, high_mhz: high }) => {
            (low_mhz, high_mhz) == (low, high)
        }
        _ => false,
    }
}

/// Adds a note that a value will not last, if nothing keeps the driver loaded.
fn forgotten(gpu: &Gpu, wants: &GpuWants, change: Change) -> Change {
    let off = wants
        .persistence
        .as_ref()
        .map_or(gpu.persistence == Ok(false), |want| want.value == PersistenceMode::Off);
    if off { change.with_note(FORGETS) } else { change }
}

fn accounting(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    if let (Some(want), Ok(now)) = (&wants.accounting, gpu.accounting)
        && now != want.value
    {
        let change =
            Change::new(gpu.subject(), Property::new("accounting"), now, want.value, Disruption::Live);
        let change = match (want.value, gpu.accounting_buffer) {
            (true, Ok(most)) => change.with_note(format!("the driver remembers the last {most} processes")),
            _ => change,
        };
        let change = if want.value { forgotten(gpu, wants, change) } else { change };
        let at = stage.change(want.member, change);
        stage.step(want.member, Act::Accounting { uuid: gpu.uuid.clone(), on: want.value }, &[at]);
    }
}

fn limits(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    accounting(stage, gpu, wants);
    let module = gpu.module_power.map(|module| module.limit_mw);
    for (property, want, now) in [
        (Property::POWER_LIMIT, &wants.power_mw, gpu.power_mw),
        (Property::MODULE_POWER_LIMIT, &wants.module_mw, module),
    ] {
        let (Some(want), Ok(now)) = (want, now) else { continue };
        // Within one watt, because boards round.
        if now.abs_diff(want.value) < 1000 {
            continue;
        }
        let (uuid, milliwatts) = (gpu.uuid.clone(), want.value);
        let act = match property == Property::POWER_LIMIT {
            true => Act::Power { uuid, milliwatts },
            false => Act::ModulePower { uuid, milliwatts },
        };
        let change = Change::new(gpu.subject(), property, power(now), power(milliwatts), Disruption::Live);
        let at = stage.change(want.member, forgotten(gpu, wants, change));
        stage.step(want.member, act, &[at]);
    }
    let clocks = [
        (Property::GRAPHICS_CLOCK, &wants.graphics, gpu.graphics),
        (Property::MEMORY_CLOCK, &wants.memory, gpu.memory),
    ];
    for (property, want, lock) in clocks {
        let Some(want) = want.as_ref().filter(|want| !is_locked_so(lock, want.value)) else { continue };
        let (uuid, value) = (gpu.uuid.clone(), want.value);
        let act = match property == Property::GRAPHICS_CLOCK {
            true => Act::Graphics { uuid, want: value },
            false => Act::Memory { uuid, want: value },
        };
        let change = Change::new(gpu.subject(), property, lock, value, Disruption::Live);
        let at = stage.change(want.member, forgotten(gpu, wants, change));
        stage.step(want.member, act, &[at]);
    }
    if let (Some(want), Ok(now)) = (&wants.compute, gpu.compute_mode)
        && now != want.value
    {
        let (from, to) = (compute_mode_name(now), compute_mode_name(want.value));
        let change = Change::new(gpu.subject(), Property::COMPUTE_MODE, from, to, Disruption::Live);
        let at = stage.change(want.member, forgotten(gpu, wants, change));
        stage.step(want.member, Act::Compute { uuid: gpu.uuid.clone(), mode: want.value }, &[at]);
    }
}

/// Lets confidential GPUs accept work, or refuse it.
fn confidential_ready(stage: &mut Stage, state: &State, desired: &Desired) {
    let (Some(want), Ok(now)) = (&desired.ready, state.confidential_ready) else { return };
    let Some(gpu) = state.gpus.first().filter(|_| now != want.value) else { return };
    let words = |ready: bool| if ready { "accept work" } else { "refuse work" };
    let class = if want.value { Disruption::Live } else { Disruption::Clients };
    let property = Property::new("confidential GPUs");
    let change = Change::new(Subject::Node, property, words(now), words(want.value), class);
    let at = stage.change(want.member, change);
    stage.step(want.member, Act::ConfidentialReady { uuid: gpu.uuid.clone(), on: want.value }, &[at]);
}

/// Everything that a run of a group does, including activations.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    pub desired: Desired,
    pub changes: Vec<Planned>,
    /// Highest class of all changes, including resets.
    pub class: Disruption,
    pub activation: Option<Activation>,
    /// What is left until after a reboot, by member.
    pub deferred: Vec<(usize, String)>,
    /// What blocks the run now.
    pub blockers: Vec<Blocker>,
    /// What people should know before it, by member.
    pub warnings: Vec<(usize, String)>,
    /// The state after the run.
    pub end: State,
}

/// `from` of the differences in the first reading, so that the effects of a reset in between do not show.
pub type Before = BTreeMap<(usize, Subject, Property, Layer), Value>;

fn key(planned: &Planned) -> (usize, Subject, Property, Layer) {
    let (subject, property, layer) = planned.change.about();
    (planned.member, subject.clone(), property.clone(), layer)
}

/// Returns the values that differed before anything was done.
pub fn before(state: &State, desired: &Desired) -> Before {
    settled(state, desired).changes.into_iter().map(|planned| (key(&planned), planned.change.from)).collect()
}

/// Changes `from` of a change after a reset to the value before it.
pub fn as_seen_before(mut planned: Planned, before: &Before) -> Planned {
    match before.get(&key(&planned)) {
        Some(from) => planned.change.from = from.clone(),
        None => planned.change.note = Some("lost by the GPU reset".to_owned()),
    }
    planned
}

/// Plans a group to its end. With `reboot`, GPUs are never reset.
pub fn forecast(state: &State, group: &GpuGroup, reboot: bool) -> Forecast {
    let desired = merge(group, state);
    let first = stage(state, &desired, reboot);
    let mut stopped = first.stops_units();
    let mut second = Stage::default();
    let mut class = first.class();
    let mut end = run_through(state.clone(), &first);
    let mut changes = first.changes.clone();
    let mut deferred = Vec::new();
    match first.activation.as_ref().map(|activation| activation.class) {
        None => {}
        Some(Disruption::GpuReset) => {
            let uuids =
                first.activation.as_ref().map(|activation| activation.uuids.clone()).unwrap_or_default();
            end = after(end, &Event::Reset(uuids));
            // For all GPUs, not only those that are reset: a reset needs the driver without holders, and sleeping GPUs
            // forget.
            end = after(end, &Event::LetGo { stopped: true });
            let seen = before(state, &desired);
            second = stage(&end, &merge(group, &end).once_reset(), reboot);
            class = class.max(second.class());
            changes.extend(second.changes.iter().cloned().map(|planned| as_seen_before(planned, &seen)));
            end = run_through(end, &second);
        }
        Some(_) => deferred = left_to_reboot(state, &desired, &first),
    }
    stopped |= second.stops_units();
    end = after(end, &Event::LetGo { stopped });
    let blockers = blockers::of_stages(state, &[&first, &second]);
    let mut warnings = losses::of(state, &desired, first.activation.as_ref());
    warnings.extend(persistence::warnings(state, &desired));
    warnings.extend(mps::warnings(state, &[&first, &second]));
    Forecast { desired, changes, class, activation: first.activation, deferred, blockers, warnings, end }
}

/// Returns what a stage that ends in a reboot leaves until after it.
pub fn left_to_reboot(state: &State, desired: &Desired, first: &Stage) -> Vec<(usize, String)> {
    settled(state, desired)
        .changes
        .into_iter()
        .filter(|planned| {
            let same = |done: &Planned| {
                done.member == planned.member && done.change.about() == planned.change.about()
            };
            !first.changes.iter().any(same)
        })
        .map(|planned| {
            let (what, to) = (planned.change.what(), planned.change.to_text());
            let text = format!("{what} {to} is set after the reboot");
            (planned.member, text)
        })
        .collect()
}

/// Returns the state after all steps of a stage.
pub fn run_through(state: State, stage: &Stage) -> State {
    stage.steps.iter().fold(state, |state, step| after(state, &Event::Act(step.act.clone())))
}
