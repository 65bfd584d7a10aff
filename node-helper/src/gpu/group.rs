//! The GPUs of a session: predictions, runs of a group, facts, idleness.
//!
//! Owns what predictions have assumed, and the conversion of plans and results to outcomes, one for each member.

use super::wording::joined;
use std::{collections::BTreeMap, path::PathBuf};

use gpufleet_protocol::{
    Awaiting, Blocker, Change, Disruption, FailureKind, OpOutcome, OpStatus,
    facts::{GpuSystem, GpuSystemState},
    message::{IdleReport, IdleVerdict, Mode},
    nvml::{Code, GpuDevices, Health, Snapshot},
    op::{GpuGroup, GpuStatusRequest, GpuTask, Staying},
};

use super::{
    after::{Event, after, foreseen},
    apply::{Applied, Failure, Fence, Job, forget_lost_units, start_units, take_persistence},
    blockers, bus,
    clients::{self, PERSISTENCED, Scan},
    desired::{Desired, IMPOSSIBLE},
    facts,
    host::RealMachine,
    idle,
    machine::Machine,
    observe::{
        has_leftovers, locks, minors, observe, put_released, put_stopped_units, released, resets,
        stopped_units,
    },
    plan::{Forecast, Planned, forecast},
    reboot::Declared,
    state::{Holding, Host, Lock, State, Unit},
    worker::{NoHealth, NvmlError, Worker, WorkerFile},
};
use crate::{
    deadline::{Deadline, Stop},
    health::{FabricManager, Seen, Unread},
    state::Record,
    world::{BootView, Effect, Overlay, UnitView, World},
};

/// `nvidia-cuda-mps-control`, in the 15 characters that the kernel keeps.
const MPS_DAEMON: &str = "nvidia-cuda-mps";

/// What the signals of an audit are made of.
#[derive(Clone, Debug)]
pub struct Audited {
    /// The reading, or why there is none.
    pub health: Result<Health, NoHealth>,
    /// Number of NVIDIA GPUs on the PCI bus.
    pub on_bus: u32,
    /// Highest clock that gpufleet locked in this boot and load of the driver, in MHz, by UUID.
    pub locks: BTreeMap<String, u32>,
}

/// What the status of GPUs is made of.
#[derive(Clone, Debug)]
pub struct InUse {
    /// Without the locks of gpufleet.
    pub audited: Audited,
    pub scan: Scan,
    /// Whether an MPS daemon runs.
    pub mps: bool,
}

/// What containers are given of the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposed {
    /// Empty on a node without a GPU.
    pub gpus: Vec<GpuDevices>,
    /// Whether predictions so far change the MIG devices, whose names only the run knows.
    pub changes: bool,
}

/// What the GPU code needs of the session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder for the worker's file if it cannot run from memory.
    pub state_dir: PathBuf,
    pub record: Record,
    /// Whether units are told to start without waiting for them: in a unit that they are ordered after, waiting would
    /// last for ever.
    pub no_block: bool,
}

/// The GPUs of one session.
pub struct Gpus {
    pub(super) machine: Box<dyn Machine>,
    pub(super) record: Record,
    /// The state after the predictions so far.
    predicted: Option<State>,
    /// Predicted events before the first reading.
    assumed: Vec<Event>,
    /// Whether an earlier task of a prediction loads the driver, without which nothing can be read now.
    pub(super) driver_comes: bool,
    pub(super) declared: Declared,
}

impl std::fmt::Debug for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpus").field("predicted", &self.predicted.is_some()).finish_non_exhaustive()
    }
}

impl Gpus {
    /// Creates it with the worker that the running node file carries.
    pub fn new(settings: Settings) -> Self {
        Self::with_worker(settings, WorkerFile::Embedded)
    }

    /// Creates it with another worker; for tests and development.
    pub fn with_worker(settings: Settings, file: WorkerFile) -> Self {
        let worker = Worker::new(file, settings.state_dir);
        let machine = RealMachine::new(worker, settings.no_block);
        Self::with_machine(Box::new(machine), settings.record)
    }

    /// Creates it on any machine.
    pub fn with_machine(machine: Box<dyn Machine>, record: Record) -> Self {
        Self {
            machine,
            record,
            predicted: None,
            assumed: Vec::new(),
            driver_comes: false,
            declared: Declared::default(),
        }
    }

    /// Plans a group, and applies it if its class is allowed.
    ///
    /// In `Predict`, the plan starts from what earlier predictions assumed, and nothing is changed.
    pub fn run(
        &mut self,
        group: &GpuGroup,
        mode: Mode,
        allowed: Disruption,
        deadline: &Deadline,
        progress: &dyn Fn(String),
        fence: Fence<'_>,
    ) -> OpOutcome {
        let planned = match mode {
            Mode::Predict => self.predicted_state(deadline).map(|state| {
                let forecast = forecast(&state, group, group.defer_to_reboot);
                (state, forecast)
            }),
            Mode::Apply => self.planned(group, deadline),
        };
        let (state, forecast) = match planned {
            Ok(planned) => planned,
            Err(error) => return self.unreadable(group, mode, &error),
        };
        let blocked =
            blocked(group, &forecast.desired).or_else(|| hindered(mode, allowed, &state, &forecast));
        let outcome = match mode {
            _ if blocked.is_some() => planned_outcome(group, &forecast, blocked.as_ref(), None),
            Mode::Predict => {
                let outcome = planned_outcome(group, &forecast, None, None);
                self.predicted = Some(forecast.end);
                return outcome;
            }
            Mode::Apply if forecast.class > allowed => {
                planned_outcome(group, &forecast, None, Some(forecast.class))
            }
            Mode::Apply => {
                self.predicted = None;
                let leftovers = has_leftovers(&self.record, &self.machine.boot_mark());
                if forecast.changes.is_empty() && !leftovers {
                    planned_outcome(group, &forecast, None, None)
                } else {
                    let job = Job {
                        machine: self.machine.as_mut(),
                        record: &self.record,
                        group,
                        deadline,
                        progress,
                        fence,
                    };
                    let applied = job.apply(state, group.defer_to_reboot);
                    applied_outcome(group, &forecast, applied)
                }
            }
        };
        self.machine.release();
        outcome
    }

    /// Predicts a group, including effects of other predictions on its units, and adds its own effects on them.
    pub fn predict(
        &mut self,
        group: &GpuGroup,
        overlay: &Overlay,
        deadline: &Deadline,
        progress: &dyn Fn(String),
    ) -> OpOutcome {
        self.declared.members.extend(group.members.iter().cloned());
        let state = match self.predicted_state(deadline) {
            Ok(state) => state,
            Err(error) => return self.unreadable(group, Mode::Predict, &error),
        };
        let seen = state.holding.clone();
        let mut state = foreseen(state, &World::overlaid(overlay));
        state.kept = self.machine.kept(&World::overlaid(overlay));
        let before = units(&state.host);
        self.look_up_users(&mut state, group, &World::overlaid(overlay));
        self.predicted = Some(state);
        let outcome = self.run(group, Mode::Predict, Disruption::Live, deadline, progress, &|| Ok(()));
        self.declared.told |= outcome.changes.iter().any(|change| change.disruption == Disruption::Reboot);
        if let Some(state) = &mut self.predicted {
            // The holders as read: a later task may start again what this one found stopped.
            state.holding = seen;
            let after = units(&state.host);
            let gone = before.keys().filter(|name| !after.contains_key(*name));
            let gone = gone.map(|name| (name.clone(), Unit::default())).collect::<Vec<_>>();
            let effects = after.into_iter().chain(gone);
            let effects =
                effects.filter(|(name, unit)| before.get(name).copied().unwrap_or_default() != *unit);
            overlay.assume(effects.map(|(name, unit)| {
                let file_state = if unit.enabled { "enabled" } else { "disabled" }.to_owned();
                let view = UnitView { active: Some(unit.active), file_state, boot: BootView::default() };
                Effect::Unit { name, view }
            }));
        }
        outcome
    }

    /// Makes the next prediction start from the real node.
    pub fn forget_predictions(&mut self) {
        self.predicted = None;
        self.assumed.clear();
        self.driver_comes = false;
        self.declared = Declared::default();
    }

    /// Assumes a reboot in later predictions.
    ///
    /// A GPU reset changes nothing here: only this module resets GPUs, and its predictions include what that loses.
    pub fn assume_activation(&mut self, class: Disruption) {
        if let Some(event) = Event::of_activation(class) {
            self.assume_event(event);
        }
    }

    pub(super) fn assume_event(&mut self, event: Event) {
        match self.predicted.take() {
            Some(state) => self.predicted = Some(after(state, &event)),
            None => self.assumed.push(event),
        }
    }

    /// Returns how the GPUs, as they are or as they are predicted, differ from a group; nothing where that cannot be told.
    pub fn differences(&mut self, group: &GpuGroup, deadline: &Deadline) -> Vec<Change> {
        let predicts = self.predicted.is_some();
        let state = self.predicted_state(deadline);
        if !predicts {
            self.predicted = None;
        }
        let Ok(state) = state else { return Vec::new() };
        let forecast = forecast(&state, group, group.defer_to_reboot);
        forecast.changes.into_iter().map(|planned| planned.change).collect()
    }

    /// Reads the GPUs.
    pub fn facts(&mut self, deadline: &Deadline) -> GpuSystem {
        let (pci_count, module) = (self.machine.pci_count(), self.machine.module_version());
        let read = self.machine.snapshot(deadline);
        self.machine.release();
        match read {
            Ok(snapshot) => facts::system(&snapshot, pci_count, module),
            Err(error) => facts::unread(error.state(), pci_count, module),
        }
    }

    /// Reads what containers are given of the GPUs.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn exposed(&mut self, deadline: &Deadline) -> Result<Exposed, String> {
        let read = self.machine.devices(deadline);
        self.machine.release();
        let gpus = match read {
            Ok(gpus) => gpus,
            // A machine without an NVIDIA device needs no driver.
            Err(error) if error.is_no_driver() && self.machine.pci_count() == 0 => Vec::new(),
            Err(error) => return Err(error.to_string()),
        };
        let layout = |gpu: &GpuDevices| {
            let devices = gpu.devices.clone().unwrap_or_default();
            let mut pairs: Vec<_> =
                devices.iter().map(|one| (Some(one.gpu_instance), Some(one.compute_instance))).collect();
            pairs.sort_unstable();
            pairs
        };
        let assumed = |gpu: &super::state::Gpu| {
            let instances = gpu.instances.clone().unwrap_or_default();
            let mut pairs: Vec<_> = instances
                .iter()
                .flat_map(|instance| instance.computes.iter().map(move |one| (instance.id, one.id)))
                .collect();
            pairs.sort_unstable();
            pairs
        };
        let changes = match &self.predicted {
            Some(state) => state.gpus.iter().any(|gpu| {
                gpus.iter().any(|real| real.uuid == Ok(gpu.uuid.clone()) && layout(real) != assumed(gpu))
            }),
            None => !self.assumed.is_empty() && gpus.iter().any(|gpu| gpu.mig),
        };
        Ok(Exposed { gpus, changes })
    }

    /// Reads what the health checks need.
    pub fn health(&mut self, deadline: &Deadline) -> Seen {
        let read = self.machine.snapshot(deadline);
        self.machine.release();
        let switches = self.machine.nvswitches();
        let fabric_manager = match switches {
            0 => FabricManager::Absent,
            _ if self.machine.host(deadline).fabric_manager => FabricManager::Runs,
            _ => {
                // Processes too, because in a container it is no unit of this node.
                let scan = self.machine.scan(&Default::default(), None);
                let runs = scan.processes.iter().any(|process| process.comm == clients::FABRIC_MANAGER);
                match (runs, scan.processes.is_empty()) {
                    (true, _) => FabricManager::Runs,
                    (false, true) => FabricManager::Unknown,
                    (false, false) => FabricManager::Absent,
                }
            }
        };
        let snapshot = read.map_err(|error| Unread {
            why: error.to_string(),
            no_driver: matches!(error.state(), GpuSystemState::NoDriver { .. } | GpuSystemState::NoGpu),
        });
        let resets = resets(&self.record, &self.machine.boot_mark().boot_id);
        Seen { snapshot, on_bus: self.machine.pci_count(), switches, fabric_manager, resets }
    }

    /// Reads what an audit needs of the GPUs. The NVML worker keeps running: end it with [`Gpus::release`].
    pub fn audit(&mut self, deep: bool, deadline: &Deadline) -> Audited {
        let health = self.machine.health(deep, deadline);
        let mark = self.machine.boot_mark();
        let gpus = health.as_ref().map(|health| health.snapshot.gpus.as_slice()).unwrap_or_default();
        let locks = gpus
            .iter()
            .filter_map(|gpu| match locks(&self.record, gpu, &mark).graphics {
                Lock::Locked { high_mhz, .. } => Some((gpu.uuid.clone(), high_mhz)),
                Lock::Free | Lock::Unknown => None,
            })
            .collect();
        Audited { health, on_bus: self.machine.pci_count(), locks }
    }

    /// Reads how busy the GPUs are, and what holds them.
    pub fn in_use(&mut self, asked: GpuStatusRequest, deadline: &Deadline) -> InUse {
        // Before the scan, which leaves out the main processes of units.
        let host = self.machine.host(deadline);
        let mut health = self.machine.lately(deadline);
        if let (true, Ok(health)) = (asked.profiles, &mut health) {
            // The reading has none while MIG is off.
            let read = self.machine.snapshot(deadline).map(|read| read.gpus).unwrap_or_default();
            for gpu in &mut health.snapshot.gpus {
                match read.iter().find(|other| other.uuid == gpu.uuid) {
                    Some(found) => gpu.profiles.clone_from(&found.profiles),
                    None if gpu.profiles.as_ref().is_ok_and(Vec::is_empty) => {
                        gpu.profiles = Err(Code::UNKNOWN)
                    }
                    None => {}
                }
            }
        }
        self.machine.release();
        let scan = match &health {
            Ok(health) => self.machine.scan(&minors(&health.snapshot), Some(&health.snapshot)),
            Err(_) => self.machine.scan(&BTreeMap::new(), None),
        };
        let on_bus = self.machine.pci_count();
        // A daemon in a container answers on a pipe of its own.
        let mps = host.mps.daemons.values().any(|daemon| daemon.answers)
            || scan.processes.iter().any(|process| process.comm == MPS_DAEMON);
        InUse { audited: Audited { health, on_bus, locks: BTreeMap::new() }, scan, mps }
    }

    /// Ends the NVML worker, which holds every GPU while it lives.
    pub fn release(&mut self) {
        self.machine.release();
    }

    /// Returns the number of NVIDIA GPUs on the PCI bus.
    pub fn on_bus(&mut self) -> u32 {
        self.machine.pci_count()
    }

    /// Whether an earlier task of a prediction loads the driver, without which nothing can be read now.
    pub fn awaits_driver(&self) -> bool {
        self.driver_comes
    }

    /// Whether a dead run left services stopped or GPUs without persistence.
    pub fn has_leftovers(&mut self) -> bool {
        has_leftovers(&self.record, &self.machine.boot_mark())
    }

    /// Starts what a dead run had stopped; returns what failed, which stays recorded.
    pub fn put_back(&mut self, deadline: &Deadline) -> Vec<String> {
        let mark = self.machine.boot_mark();
        let mut uuids = released(&self.record, &mark);
        let mut problems = take_persistence(self.machine.as_mut(), &mut uuids, deadline);
        problems.extend(put_released(&self.record, &mark, &uuids).err());
        let mut units = stopped_units(&self.record);
        // Not a problem of its own: the run that reset the GPUs ended before it could tell, and nothing can start them.
        let _ = forget_lost_units(self.machine.as_mut(), &mut units, deadline);
        self.machine.release();
        problems.extend(start_units(self.machine.as_mut(), &mut units, deadline, &|_| {}));
        problems.extend(put_stopped_units(&self.record, &units).err());
        problems
    }

    /// Checks whether anything works on the node. An unknown state counts as busy.
    pub fn idle(&mut self, staying: &Staying, deadline: &Deadline) -> IdleReport {
        // The units too: their processes hold GPUs without working on them.
        let _ = self.machine.host(deadline);
        let read = self.machine.snapshot(deadline);
        self.machine.release();
        match read {
            Ok(snapshot) => {
                let scan = self.machine.scan(&minors(&snapshot), Some(&snapshot));
                idle::judge(&scan, staying, None)
            }
            Err(error) => {
                let scan = self.machine.scan(&Default::default(), None);
                // No problem, because no process can use a GPU without a driver.
                let problem = match &error {
                    NvmlError::VersionMismatch { .. } => None,
                    error if error.is_no_driver() => None,
                    other => Some(format!("what NVML lists is unknown: {other}")),
                };
                idle::judge(&scan, staying, problem)
            }
        }
    }

    pub(super) fn observed(&mut self, deadline: &Deadline) -> Result<(State, Snapshot), NvmlError> {
        let mut read = observe(self.machine.as_mut(), &self.record, deadline);
        match &mut read {
            Ok((state, _)) => state.kept = self.machine.kept(&World::real()),
            Err(_) => self.machine.release(),
        }
        read
    }

    pub(super) fn holding(&mut self, snapshot: &Snapshot) -> Holding {
        let scan = self.machine.scan(&minors(snapshot), Some(snapshot));
        let services = scan.holders.iter().filter(|holder| holder.service && holder.open && !holder.reader);
        Holding {
            services: services.map(|holder| holder.client.clone()).collect(),
            clients: scan.workloads().cloned().collect(),
            modules: self.machine.module_holders(),
            not_root: self.machine.not_root(),
            unknown: scan.unknown,
        }
    }

    /// Notes which users of MPS daemons the node does not have.
    pub(super) fn look_up_users(&mut self, state: &mut State, group: &GpuGroup, world: &World) {
        let users = group.members.iter().filter_map(|member| match &member.task {
            GpuTask::GpuMps(task) => task.user.as_deref(),
            _ => None,
        });
        state.host.mps.no_users =
            users.filter(|user| !self.machine.has_user(user, world)).map(str::to_owned).collect();
    }

    /// Returns the present state, and the forecast of a run.
    fn planned(&mut self, group: &GpuGroup, deadline: &Deadline) -> Result<(State, Forecast), NvmlError> {
        let (mut state, snapshot) = self.observed(deadline)?;
        self.look_up_users(&mut state, group, &World::real());
        let first = forecast(&state, group, group.defer_to_reboot);
        let warns = first.desired.members.iter().any(|member| !member.warnings.is_empty());
        // Not always, because it scans the open files of every process.
        if first.changes.is_empty() && !warns {
            return Ok((state, first));
        }
        state.holding = self.holding(&snapshot);
        let forecast = forecast(&state, group, group.defer_to_reboot);
        Ok((state, forecast))
    }

    pub(super) fn predicted_state(&mut self, deadline: &Deadline) -> Result<State, NvmlError> {
        if let Some(state) = &self.predicted {
            return Ok(state.clone());
        }
        let (mut state, snapshot) = self.observed(deadline)?;
        state.holding = self.holding(&snapshot);
        self.machine.release();
        for event in self.assumed.drain(..) {
            state = after(state, &event);
        }
        self.predicted = Some(state.clone());
        Ok(state)
    }

    /// Returns the outcome if NVML cannot be read: why, and the next step.
    fn unreadable(&mut self, group: &GpuGroup, mode: Mode, error: &NvmlError) -> OpOutcome {
        let status = match error.state() {
            _ if mode == Mode::Predict && self.driver_comes && self.machine.pci_count() > 0 => {
                OpStatus::Possible
            }
            GpuSystemState::NoDriver { .. } | GpuSystemState::NoGpu if self.machine.pci_count() == 0 => {
                let message = bus::NO_GPU.to_owned();
                OpStatus::Failed { kind: FailureKind::Invalid, message }
            }
            GpuSystemState::NoDriver { .. } if !error.kernels_own().is_empty() => {
                let names = error.kernels_own().iter();
                let keep: Vec<String> =
                    names.map(|name| format!("`kernel_blacklist: {{name: {name}}}`")).collect();
                let message = format!(
                    "{error}; next step: keep it away with {}, and reboot the node",
                    keep.join(" and ")
                );
                OpStatus::Failed { kind: FailureKind::Nvml, message }
            }
            // Unknown: the driver runs, so the GPUs have some state, which cannot be read.
            GpuSystemState::NoDriver { detail } if self.machine.module_version().is_some() => {
                OpStatus::Unknown {
                    reason: format!(
                        "the NVIDIA driver is loaded, and its library cannot be: {detail}; \
                     next step: install the driver's libraries (libnvidia-ml.so.1)"
                    ),
                }
            }
            GpuSystemState::NoDriver { detail } => {
                let message = format!(
                    "no NVIDIA driver: {detail}; next step: install the driver, or load it with `modprobe nvidia`"
                );
                OpStatus::Failed { kind: FailureKind::Nvml, message }
            }
            GpuSystemState::VersionMismatch { detail } => {
                let loaded =
                    self.machine.module_version().map(|v| format!(", {v} is loaded")).unwrap_or_default();
                let message = format!(
                    "the driver was upgraded under a running kernel module: {detail}{loaded}; \
                     next step: unload and load the nvidia modules, or reboot the node"
                );
                OpStatus::Failed { kind: FailureKind::Nvml, message }
            }
            _ => match error {
                NvmlError::Stopped(Stop::TimedOut) => {
                    OpStatus::Failed { kind: FailureKind::TimedOut, message: error.to_string() }
                }
                NvmlError::Stopped(Stop::Cancelled) => {
                    OpStatus::Failed { kind: FailureKind::Cancelled, message: error.to_string() }
                }
                other => OpStatus::Unknown { reason: other.to_string() },
            },
        };
        let unsure = (status == OpStatus::Possible).then(|| {
            "an earlier task loads the driver, without which the GPUs cannot be read; the run reads them then, and sets what differs"
                .to_owned()
        });
        let of_one = || OpOutcome { unsure: unsure.clone(), ..OpOutcome::new(status.clone()) };
        OpOutcome { members: group.members.iter().map(|_| of_one()).collect(), ..of_one() }
    }
}

/// Returns the units that a group may change.
fn units(host: &Host) -> BTreeMap<String, Unit> {
    let daemons = host.mps.daemons.iter().map(|(seat, daemon)| (seat.unit(), daemon.unit));
    daemons.chain([(PERSISTENCED.to_owned(), host.persistenced)]).collect()
}

/// Why a whole group is refused.
pub(super) struct Blocked {
    /// `None` if the node is the cause.
    member: Option<usize>,
    /// `None` if it is unknown.
    kind: Option<FailureKind>,
    reason: String,
}

/// Returns what keeps a group from being done, so that no part of it begins.
fn hindered(mode: Mode, allowed: Disruption, state: &State, forecast: &Forecast) -> Option<Blocked> {
    if forecast.changes.is_empty() {
        return None;
    }
    let blocked = |kind, blocker: Blocker| Blocked {
        member: None,
        kind: Some(kind),
        reason: format!("{}; next step: {}", blocker.what, blocker.next),
    };
    if let Some(rights) = blockers::rights(state) {
        return Some(blocked(FailureKind::Refused, rights));
    }
    let module = blockers::module(state, forecast.activation.as_ref());
    // Not before the permit: the module may be held by a job, and the node is drained for the permit.
    let is_meant = mode == Mode::Apply && forecast.class <= allowed;
    module.filter(|_| is_meant).map(|module| blocked(FailureKind::Busy, module))
}

pub(super) fn blocked(group: &GpuGroup, desired: &Desired) -> Option<Blocked> {
    let label = |member: usize| group.members.get(member).map_or("", |member| member.task.kind());
    let (found, kind) = match (desired.failure(), desired.unknown()) {
        (Some(found), _) => (found, Some(IMPOSSIBLE)),
        (None, Some(found)) => (found, None),
        (None, None) => return None,
    };
    let (member, reason) = found;
    let verb = if kind.is_some() { "cannot be" } else { "is unknown" };
    let reason =
        format!("not applied, because task {} of the group ({}) {verb}: {reason}", member + 1, label(member));
    Some(Blocked { member: Some(member), kind, reason })
}

fn own_status(desired: &Desired, member: usize) -> Option<OpStatus> {
    let verdict = desired.members.get(member)?;
    if !verdict.failures.is_empty() {
        return Some(OpStatus::Failed { kind: IMPOSSIBLE, message: joined(&verdict.failures) });
    }
    if !verdict.unknown.is_empty() {
        return Some(OpStatus::Unknown { reason: joined(&verdict.unknown) });
    }
    if verdict.returns {
        return Some(OpStatus::Possible);
    }
    if verdict.applies == 0 && !verdict.not_applicable.is_empty() {
        return Some(OpStatus::NotApplicable { reason: joined(&verdict.not_applicable) });
    }
    None
}

fn changes_of(all: &[Planned], member: usize) -> Vec<gpufleet_protocol::Change> {
    all.iter().filter(|planned| planned.member == member).map(|planned| planned.change.clone()).collect()
}

fn awaiting_of(all: &[(usize, String)], member: usize) -> Vec<Awaiting> {
    all.iter()
        .filter(|(of, _)| *of == member)
        .map(|(_, reason)| Awaiting { activation: Disruption::Reboot, reason: reason.clone() })
        .collect()
}

/// Returns what would wait for a reboot, from a forecast.
fn forecast_awaiting(forecast: &Forecast) -> Vec<(usize, String)> {
    match &forecast.activation {
        Some(activation) if activation.class == Disruption::Reboot => {
            activation.reasons.iter().chain(&forecast.deferred).cloned().collect()
        }
        _ => Vec::new(),
    }
}

fn warnings_of(forecast: &Forecast, member: usize) -> Vec<String> {
    let own =
        forecast.desired.members.get(member).map(|verdict| verdict.warnings.clone()).unwrap_or_default();
    let more = forecast.warnings.iter().filter(|(of, _)| *of == member).map(|(_, text)| text.clone());
    own.into_iter().chain(more).collect()
}

pub(super) fn planned_outcome(
    group: &GpuGroup,
    forecast: &Forecast,
    blocked: Option<&Blocked>,
    needs: Option<Disruption>,
) -> OpOutcome {
    let awaiting = forecast_awaiting(forecast);
    let members = (0..group.members.len())
        .map(|at| {
            let changes = changes_of(&forecast.changes, at);
            let status = match (own_status(&forecast.desired, at), blocked, needs) {
                (Some(status), _, _) => status,
                (None, Some(blocked), _) if !changes.is_empty() && blocked.member != Some(at) => {
                    match blocked.kind {
                        Some(kind) => OpStatus::Failed { kind, message: blocked.reason.clone() },
                        None => OpStatus::Unknown { reason: blocked.reason.clone() },
                    }
                }
                (None, _, Some(class)) if !changes.is_empty() => OpStatus::NeedsPermit { class },
                (None, _, _) if changes.is_empty() => OpStatus::Ok,
                (None, _, _) => OpStatus::Changed,
            };
            let mut outcome = OpOutcome::new(status);
            if blocked.is_none() {
                // Only for members that disturb clients; others need not wait for them.
                if changes.iter().any(|change| change.disruption >= Disruption::Clients) {
                    outcome.blockers.clone_from(&forecast.blockers);
                }
                outcome.changes = changes;
                outcome.awaiting = awaiting_of(&awaiting, at);
            }
            outcome.warnings = warnings_of(forecast, at);
            outcome
        })
        .collect();
    let reset =
        forecast.activation.as_ref().is_some_and(|activation| activation.class == Disruption::GpuReset);
    let activated = (reset && blocked.is_none() && needs.is_none()).then_some(Disruption::GpuReset);
    // The idle report tells the controller that the node is in use.
    let idle = blocked.filter(|blocked| blocked.kind == Some(FailureKind::Busy)).map(|blocked| IdleReport {
        verdict: IdleVerdict::Busy,
        clients: Vec::new(),
        reasons: vec![blocked.reason.clone()],
    });
    summed(members, activated, idle)
}

fn applied_outcome(group: &GpuGroup, forecast: &Forecast, applied: Applied) -> OpOutcome {
    let first = applied.failures.first().cloned();
    let members = (0..group.members.len())
        .map(|at| {
            let own: Vec<&Failure> = applied.failures.iter().filter(|failure| failure.member == at).collect();
            let changes = changes_of(&applied.made, at);
            let planned = changes_of(&forecast.changes, at);
            let status = match (own.first(), own_status(&forecast.desired, at), &first) {
                (Some(failure), _, _) => {
                    let messages: Vec<&str> = own.iter().map(|failure| failure.message.as_str()).collect();
                    OpStatus::Failed { kind: failure.kind, message: joined(&messages) }
                }
                (None, Some(status), _) => status,
                (None, None, Some(failure)) if changes.len() < planned.len() => {
                    let name = group.members.get(failure.member).map_or("", |member| member.task.kind());
                    let message = format!(
                        "not applied, because task {} of the group ({name}) failed: {}",
                        failure.member + 1,
                        failure.message
                    );
                    OpStatus::Failed { kind: failure.kind, message }
                }
                (None, None, _) if changes.is_empty() => OpStatus::Ok,
                (None, None, _) => OpStatus::Changed,
            };
            let mut outcome = OpOutcome::new(status);
            outcome.changes = changes;
            outcome.awaiting = awaiting_of(&applied.awaiting, at);
            outcome.idle = own.first().and_then(|failure| failure.idle.clone());
            outcome.warnings = warnings_of(forecast, at);
            outcome
        })
        .collect();
    let mut outcome = summed(members, applied.activated, first.and_then(|failure| failure.idle));
    // The plan told some of them.
    let more: Vec<String> =
        applied.warnings.into_iter().filter(|warning| !outcome.warnings.contains(warning)).collect();
    outcome.warnings.extend(more);
    outcome
}

/// Severity of a status; the worst member determines that of the group.
const fn rank(status: &OpStatus) -> u8 {
    match status {
        OpStatus::Failed { .. } => 7,
        OpStatus::Unknown { .. } => 6,
        OpStatus::NeedsPermit { .. } => 5,
        OpStatus::Possible => 4,
        OpStatus::Changed => 3,
        OpStatus::Ok => 2,
        OpStatus::NotApplicable { .. } => 1,
        OpStatus::Skipped { .. } => 0,
    }
}

fn summed(members: Vec<OpOutcome>, activated: Option<Disruption>, idle: Option<IdleReport>) -> OpOutcome {
    // The first of the worst: a task that stopped only because of another one comes after it or says so.
    let mut status = OpStatus::Ok;
    let mut worst: Option<u8> = None;
    for member in &members {
        if worst.is_none_or(|worst| rank(&member.status) > worst) {
            worst = Some(rank(&member.status));
            status = member.status.clone();
        }
    }
    let mut outcome = OpOutcome::new(status);
    outcome.changes = members.iter().flat_map(|member| member.changes.iter().cloned()).collect();
    outcome.awaiting = members.iter().flat_map(|member| member.awaiting.iter().cloned()).collect();
    for blocker in members.iter().flat_map(|member| &member.blockers) {
        if !outcome.blockers.contains(blocker) {
            outcome.blockers.push(blocker.clone());
        }
    }
    let mut warnings: Vec<String> =
        members.iter().flat_map(|member| member.warnings.iter().cloned()).collect();
    warnings.dedup();
    outcome.warnings = warnings;
    outcome.activated = activated;
    outcome.idle = idle;
    outcome.members = members;
    outcome
}
