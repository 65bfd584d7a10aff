//! Carries out a planned group: its stages, the reset between them, and the restoration afterwards.
//!
//! Owns the order of effects and the restoration. It does not plan: after every activation the state is read and
//! planned again. Invariants: a unit is recorded before it is stopped, and started again on every way out; a GPU whose
//! layout could not be changed gets its previous one back, with its MIG mode if that takes no reset, and GPUs whose layout was
//! not reached get that mode back; the NVML worker is ended before a reset; nothing that needs
//! a free GPU starts while a process holds it.

mod clocks;
mod layout;
mod reset;
mod services;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpufleet_protocol::{
    Disruption, FailureKind,
    change::Value,
    message::IdleReport,
    mig::Inner,
    nvml::{Code, Placement, Setting},
    op::GpuGroup,
    tasks::ResetWhen,
};

use super::{
    after::{Event, after},
    clients::PERSISTENCED,
    desired::{Desired, GpuWants, LockWant, merge},
    machine::{Machine, UnitAction},
    mps::{self, Seat},
    observe::{observe, put_locks, released, stopped_units},
    plan::{
        Act, Activation, Before, GPU_RESET, Planned, Stage, Step, as_seen_before, before, left_to_reboot,
        stage,
    },
    state::{Daemon, Gpu, Instance, Locks, State},
    worker::{NvmlError, SetAnswer, SetError},
};
use crate::{
    deadline::{Deadline, Stop},
    state::Record,
};

pub use services::{forget_lost_units, start_units, take_persistence};

/// Time for processes to release a GPU after their unit was stopped.
const LETTING_GO: Duration = Duration::from_secs(5);
/// Time for the NVML workers of read-only sessions to end before a reset.
const READERS: Duration = Duration::from_secs(10);
/// Time for the restoration, even after the operation's deadline.
const WAY_BACK: Duration = Duration::from_secs(120);

/// A failed act, and the member that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub member: usize,
    pub kind: FailureKind,
    pub message: String,
    pub idle: Option<IdleReport>,
}

/// The result of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// Changes made, compared with the state before the run.
    pub made: Vec<Planned>,
    /// The first failure, and then what did not converge.
    pub failures: Vec<Failure>,
    pub activated: Option<Disruption>,
    /// What needs a reboot, by member.
    pub awaiting: Vec<(usize, String)>,
    pub warnings: Vec<String>,
}

/// Returns why the node no longer belongs to this session; called before every act.
pub type Fence<'a> = &'a dyn Fn() -> Result<(), String>;

/// One run of a group.
pub struct Job<'a> {
    pub machine: &'a mut dyn Machine,
    pub record: &'a Record,
    pub group: &'a GpuGroup,
    pub deadline: &'a Deadline,
    pub progress: &'a dyn Fn(String),
    pub fence: Fence<'a>,
}

/// A run, and what it must restore.
struct Running<'a> {
    job: Job<'a>,
    state: State,
    /// What was there before it.
    start: State,
    applied: Applied,
    stopped: Vec<String>,
    released: Vec<String>,
    /// Instances that the current stage destroyed and created, by GPU.
    destroyed: Vec<(String, Instance)>,
    created: Vec<(String, u32)>,
    /// GPU, GPU instance and compute instance.
    created_computes: Vec<(String, u32, u32)>,
    /// The MPS daemons before they were stopped for the duration of the run.
    paused_mps: BTreeMap<Seat, Daemon>,
    /// Whether MIG instances or modes changed since the CDI specification was made.
    cdi_stale: bool,
    reboot: bool,
}

type Done = Result<(), Failure>;

impl<'a> Job<'a> {
    /// Applies the group to the state that was just observed, and ends the NVML worker.
    pub fn apply(self, state: State, reboot: bool) -> Applied {
        let stopped = stopped_units(self.record);
        let released = released(self.record, &self.machine.boot_mark());
        let mut running = Running {
            job: self,
            start: state.clone(),
            state,
            applied: Applied::default(),
            stopped,
            released,
            destroyed: Vec::new(),
            created: Vec::new(),
            created_computes: Vec::new(),
            paused_mps: BTreeMap::new(),
            cdi_stale: false,
            reboot,
        };
        // First, so that the plan includes GPUs that a dead run left without persistence.
        let done = running.take_leftovers().and_then(|()| running.stages());
        if let Err(failure) = done {
            running.applied.failures.insert(0, failure);
        }
        running.way_back();
        running.applied
    }
}

impl Running<'_> {
    fn take_leftovers(&mut self) -> Done {
        if self.released.is_empty() {
            return Ok(());
        }
        let problems = self.take_persistence(self.job.deadline);
        self.applied.warnings.extend(problems);
        self.refresh(0)
    }

    fn stages(&mut self) -> Done {
        let desired = merge(self.job.group, &self.state);
        let seen = before(&self.state, &desired);
        let first = stage(&self.state, &desired, self.reboot);
        let left = left_to_reboot(&self.state, &desired, &first);
        self.perform(&first, None)?;
        match first.activation.as_ref().map(|activation| activation.class) {
            None => self.verify(None),
            Some(Disruption::GpuReset) => {
                let Some(activation) = &first.activation else { return Ok(()) };
                let mut reset = activation.uuids.iter().filter_map(|uuid| self.state.gpu(uuid));
                let takes_instances = reset.any(|gpu| !gpu.present().is_empty());
                if !self.reset(activation)? {
                    self.reboot = true;
                    self.made_by_activation(&first);
                    self.applied.made.retain(|planned| planned.change.property != GPU_RESET);
                    let failed = self.not_reset(&desired);
                    self.await_reboot(activation, left);
                    // A reset for its own sake is no reason for a reboot.
                    self.applied.awaiting.retain(|(member, _)| !failed.contains(member));
                    return self.verify(Some(activation));
                }
                self.made_by_activation(&first);
                self.applied.activated = Some(Disruption::GpuReset);
                self.cdi_stale |= takes_instances;
                self.refresh(activation.reasons.first().map_or(0, |(member, _)| *member))?;
                let desired = self.desired();
                let second = stage(&self.state, &desired, self.reboot);
                if let Some(still) = &second.activation {
                    return Err(still_pending(still));
                }
                self.perform(&second, Some(&seen))?;
                self.verify(None)
            }
            Some(_) => {
                // Read again: on Ampere, the call that sets the MIG mode may have reset the GPU itself, and then
                // nothing is pending.
                self.refresh(0)?;
                let desired = merge(self.job.group, &self.state);
                let second = stage(&self.state, &desired, self.reboot);
                let Some(still) = &second.activation else {
                    // Never a higher class than allowed: another process may have changed the GPUs meanwhile.
                    if second.class() <= first.class() {
                        self.perform(&second, Some(&seen))?;
                    }
                    return self.verify(None);
                };
                self.await_reboot(still, left);
                self.verify(Some(still))
            }
        }
    }

    /// Fails members that asked for a reset that this machine cannot make; one that is needed waits for the reboot.
    fn not_reset(&mut self, desired: &Desired) -> BTreeSet<usize> {
        let asked = |wants: &GpuWants| {
            Some(wants.reset.as_ref().filter(|want| want.value == ResetWhen::Always)?.member)
        };
        let members: BTreeSet<usize> = desired.gpus.values().filter_map(asked).collect();
        for member in members.iter().copied() {
            let message = "the GPUs were not reset, because this machine cannot".to_owned();
            self.applied.failures.push(Failure {
                member,
                kind: FailureKind::Unconverged,
                message,
                idle: None,
            });
        }
        members
    }

    /// What is desired of the present state; a reset that was asked for is not asked for again once it was made.
    fn desired(&self) -> Desired {
        let desired = merge(self.job.group, &self.state);
        match self.applied.activated {
            Some(_) => desired.once_reset(),
            None => desired,
        }
    }

    fn await_reboot(&mut self, activation: &Activation, left: Vec<(usize, String)>) {
        self.applied.awaiting.extend(activation.reasons.iter().cloned());
        self.applied.awaiting.extend(left);
    }

    /// Counts changes that become current with a reset, after the reset.
    fn made_by_activation(&mut self, stage: &Stage) {
        let by_reset =
            stage.changes.iter().filter(|planned| planned.change.disruption == Disruption::GpuReset);
        self.applied.made.extend(by_reset.cloned());
    }

    fn perform(&mut self, stage: &Stage, seen: Option<&Before>) -> Done {
        let member = stage.steps.first().map_or(0, |step| step.member);
        self.destroyed.clear();
        self.created.clear();
        self.created_computes.clear();
        let disturbs = stage.class() >= Disruption::Clients;
        if stage.stops_units() {
            let units = self.units_to_stop(disturbs);
            // All GPUs: any MPS client loses its server, on whichever GPU it works.
            let all = units.iter().any(|unit| mps::is_unit(unit));
            if disturbs {
                self.wait_free(stage.must_be_free().filter(|_| !all), member)?;
            }
            self.stop_units(&units, member)?;
        }
        if disturbs {
            self.wait_free(stage.must_be_free(), member)?;
        }
        if let Some(activation) = stage.activation.as_ref().filter(|a| a.class == Disruption::GpuReset) {
            self.release_persistence(activation, member)?;
        }
        let mut left: BTreeMap<usize, usize> = BTreeMap::new();
        for at in stage.steps.iter().flat_map(|step| &step.changes) {
            *left.entry(*at).or_default() += 1;
        }
        let mut failure = None;
        for step in &stage.steps {
            if let Err(why) = self.step(step) {
                failure = Some(self.with_layout_back(stage, step, why, &mut left));
                break;
            }
            for at in &step.changes {
                if let Some(count) = left.get_mut(at) {
                    *count -= 1;
                }
            }
        }
        for (at, planned) in stage.changes.iter().enumerate() {
            let by_reset = stage.activation.is_some() && planned.change.disruption == Disruption::GpuReset;
            if left.get(&at) == Some(&0) && !by_reset {
                let planned = planned.clone();
                self.applied.made.push(match seen {
                    Some(seen) => as_seen_before(planned, seen),
                    None => planned,
                });
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn step(&mut self, step: &Step) -> Done {
        let member = step.member;
        if let Some(stop) = self.job.deadline.stop() {
            return Err(stopped(member, stop));
        }
        self.still_ours(member)?;
        (self.job.progress)(step.act.text(&self.state));
        // Before it is done, because a failed one may have done a part.
        self.cdi_stale |= matches!(step.act, Act::Mig { .. }) || layout::instances(&step.act);
        self.act(&step.act, member)?;
        match &step.act {
            // Read again: the daemon sets the persistence flags, and a mode may change what the GPU supports.
            Act::Persistenced { .. } => self.refresh(member),
            Act::Mig { uuid, .. }
                if self.state.gpu(uuid).is_some_and(|gpu| gpu.architecture.has_volatile_mig()) =>
            {
                self.refresh(member)
            }
            _ => Ok(()),
        }
    }

    /// Checks that no other controller has taken the node over.
    fn still_ours(&self, member: usize) -> Done {
        (self.job.fence)().map_err(|message| Failure {
            member,
            kind: FailureKind::Refused,
            message,
            idle: None,
        })
    }

    fn set(&mut self, uuid: &str, setting: Setting, member: usize) -> Result<SetAnswer, Failure> {
        let answer = self.job.machine.set(uuid, setting, self.job.deadline);
        answer.map_err(|error| self.refused(uuid, member, error))
    }

    fn refused(&mut self, uuid: &str, member: usize, error: SetError) -> Failure {
        let label = self.state.gpu(uuid).map_or_else(|| uuid.to_owned(), Gpu::label);
        match error {
            SetError::Refused { code: Code::IN_USE, call } => {
                let only = BTreeSet::from([uuid.to_owned()]);
                let holders = self.holders(Some(&only));
                busy(member, format!("{label}: {call}: {}", Code::IN_USE), holders)
            }
            SetError::Refused { call, code } => {
                let kind = match code {
                    Code::INVALID_ARGUMENT | Code::NOT_SUPPORTED => FailureKind::Invalid,
                    _ => FailureKind::Io,
                };
                Failure { member, kind, message: format!("{label}: {call}: {code}"), idle: None }
            }
            SetError::Nvml(error) => nvml(member, &error),
        }
    }

    fn act(&mut self, act: &Act, member: usize) -> Done {
        let state_after = after(self.state.clone(), &Event::Act(act.clone()));
        match act {
            Act::DestroyInstance { uuid, placement } => {
                let Some(instance) = self.instance(uuid, *placement) else { return Ok(()) };
                self.destroyed.push((uuid.clone(), instance.clone()));
                self.destroy(uuid, &instance, true, member)?;
            }
            Act::DestroyCompute { uuid, placement, inner } => {
                let Some(mut instance) = self.instance(uuid, *placement) else { return Ok(()) };
                instance.computes.retain(|compute| compute.inner == *inner);
                self.destroyed.push((uuid.clone(), instance.clone()));
                self.destroy(uuid, &instance, false, member)?;
            }
            Act::CreateInstance { uuid, profile_id, placement } => {
                let setting = Setting::CreateGpuInstance { profile_id: *profile_id, placement: *placement };
                let SetAnswer::Created { id } = self.set(uuid, setting, member)? else {
                    return Err(odd(member, "no id came back for a GPU instance"));
                };
                self.created.push((uuid.clone(), id));
                self.state = state_after;
                if let Some(Ok(instances)) = self.state.gpu_mut(uuid).map(|gpu| &mut gpu.instances)
                    && let Some(made) = instances.iter_mut().find(|instance| instance.placement == *placement)
                {
                    made.id = Some(id);
                }
                return Ok(());
            }
            Act::CreateCompute { uuid, placement, inner } => {
                let instance = self.instance(uuid, *placement);
                let Some((gpu_instance, profile)) = instance.and_then(|one| Some((one.id?, one.profile_id)))
                else {
                    return Err(odd(member, "a GPU instance that was just made is gone"));
                };
                let setting = create_compute(gpu_instance, self.state.gpu(uuid), profile, *inner);
                let SetAnswer::Created { id } = self.set(uuid, setting, member)? else {
                    return Err(odd(member, "no id came back for a compute instance"));
                };
                self.created_computes.push((uuid.clone(), gpu_instance, id));
            }
            Act::Ecc { uuid, on } => {
                self.set(uuid, Setting::Ecc(*on), member)?;
            }
            Act::Mig { uuid, on } => self.mig(uuid, *on, member)?,
            Act::RepairPersistenced(repair) => {
                let done = self.job.machine.repair_persistenced(repair, self.job.deadline);
                done.map_err(|why| odd(member, &format!("nvidia-persistenced cannot be repaired: {why}")))?;
            }
            Act::Persistenced { on } => {
                let actions = match (on, self.state.host.persistenced_start.is_static) {
                    (true, false) => [UnitAction::Enable, UnitAction::Start],
                    (true, true) => [UnitAction::Want, UnitAction::Start],
                    // It takes links away that others made, too.
                    (false, _) => [UnitAction::Stop, UnitAction::Disable],
                };
                self.may_reload(member)?;
                for action in actions {
                    self.unit(PERSISTENCED, action, member)?;
                }
            }
            Act::Persistence { uuid, on } => {
                if self.state.gpu(uuid).is_none_or(|gpu| gpu.persistence != Ok(*on)) {
                    self.set(uuid, Setting::Persistence(*on), member)?;
                    // Forgotten, because the driver forgets locks with its last client, and a later run that turns
                    // persistence on would trust the record.
                    if !on {
                        self.record_lock(uuid, |locks| *locks = Locks::UNKNOWN);
                    }
                }
            }
            Act::Power { uuid, milliwatts } => {
                self.set(uuid, Setting::PowerLimit { milliwatts: *milliwatts }, member)?;
            }
            Act::ModulePower { uuid, milliwatts } => {
                self.set(uuid, Setting::ModulePowerLimit { milliwatts: *milliwatts }, member)?;
            }
            Act::Graphics { uuid, want } => {
                let setting = match *want {
                    LockWant::Free => Setting::UnlockGraphics,
                    LockWant::Range { low_mhz, high_mhz } => Setting::LockGraphics { low_mhz, high_mhz },
                };
                self.set(uuid, setting, member)?;
                self.record_lock(uuid, |locks| locks.graphics = (*want).into());
            }
            Act::Memory { uuid, want } => {
                let setting = match *want {
                    LockWant::Free => Setting::UnlockMemory,
                    LockWant::Range { low_mhz, high_mhz } => Setting::LockMemory { low_mhz, high_mhz },
                };
                self.set(uuid, setting, member)?;
                self.record_lock(uuid, |locks| locks.memory = (*want).into());
            }
            Act::Compute { uuid, mode } => {
                self.set(uuid, Setting::ComputeMode(*mode), member)?;
            }
            Act::Accounting { uuid, on } => {
                self.set(uuid, Setting::Accounting(*on), member)?;
            }
            Act::ConfidentialReady { uuid, on } => {
                self.set(uuid, Setting::ConfidentialReady(*on), member)?;
            }
            Act::StartMps { seat, text, serving } => self.start_mps(seat, text, serving, member)?,
            Act::LimitMps { seat, text, serving } => self.limit_mps(seat, text, serving, member)?,
            Act::StopMps { seat } => self.stop_mps(seat, member)?,
            Act::RefreshCdi => self.refresh_cdi(self.job.deadline),
        }
        self.state = state_after;
        Ok(())
    }

    fn instance(&self, uuid: &str, placement: Placement) -> Option<Instance> {
        self.state.gpu(uuid)?.present().iter().find(|instance| instance.placement == placement).cloned()
    }

    fn destroy(&mut self, uuid: &str, instance: &Instance, whole: bool, member: usize) -> Done {
        let Some(gpu_instance) = instance.id else { return Ok(()) };
        for compute_instance in instance.computes.iter().filter_map(|compute| compute.id) {
            let setting = Setting::DestroyComputeInstance { gpu_instance, compute_instance };
            self.set(uuid, setting, member)?;
        }
        if whole {
            self.set(uuid, Setting::DestroyGpuInstance { gpu_instance }, member)?;
        }
        Ok(())
    }

    fn mig(&mut self, uuid: &str, on: bool, member: usize) -> Done {
        let answer = self.set(uuid, Setting::MigMode(on), member)?;
        let SetAnswer::MigMode { activation } = answer else {
            return Err(odd(member, "no activation status came back for the MIG mode"));
        };
        let at_once = self.state.gpu(uuid).is_some_and(|gpu| gpu.architecture.has_volatile_mig());
        match activation {
            Code::SUCCESS => Ok(()),
            // Not an error there: the value is pending, and the following activation makes it current.
            Code::IN_USE | Code::RESET_REQUIRED if !at_once => Ok(()),
            code => {
                let call = "nvmlDeviceSetMigMode (activation)".to_owned();
                Err(self.refused(uuid, member, SetError::Refused { call, code }))
            }
        }
    }

    fn record_lock(&mut self, uuid: &str, edit: impl FnOnce(&mut Locks)) {
        let Some(gpu) = self.state.gpu(uuid) else { return };
        if let Err(why) = put_locks(self.job.record, gpu, self.job.machine.boot_mark(), edit) {
            let text = format!("the locked clock cannot be recorded, so the next run locks it again: {why}");
            if !self.applied.warnings.contains(&text) {
                self.applied.warnings.push(text);
            }
        }
    }

    fn refresh(&mut self, member: usize) -> Done {
        match observe(self.job.machine, self.job.record, self.job.deadline) {
            Ok((mut state, _)) => {
                // A paused MPS daemon counts as running, because it is started again at the end of the run, unless its
                // MIG instance is gone.
                for (seat, daemon) in &self.paused_mps {
                    if !matches!(seat, Seat::Device(uuid) if state.device(uuid).is_none()) {
                        state.host.mps.daemons.insert(seat.clone(), daemon.clone());
                    }
                }
                self.state = state;
                Ok(())
            }
            Err(error) => Err(nvml(member, &error)),
        }
    }

    /// Reads everything once more; what still differs was not made.
    fn verify(&mut self, awaited: Option<&Activation>) -> Done {
        self.refresh(0)?;
        self.verify_clocks()?;
        let desired = self.desired();
        let rest = stage(&self.state, &desired, self.reboot);
        if let (Some(still), None) = (&rest.activation, awaited) {
            return Err(still_pending(still));
        }
        for Planned { member, change } in rest.changes {
            // Without persistence a lock cannot be verified, which the warning says.
            if change.property.is_clock() && change.from == Value::Unknown {
                continue;
            }
            let (what, to) = (change.what(), change.to_text());
            let reads = change.from_text().unwrap_or_else(|| "nothing".to_owned());
            let message = format!("{what} was set to {to} and reads {reads}");
            self.applied
                .made
                .retain(|made| !(made.member == member && made.change.about() == change.about()));
            self.applied.failures.push(Failure {
                member,
                kind: FailureKind::Unconverged,
                message,
                idle: None,
            });
        }
        Ok(())
    }
}

/// The setting that creates a compute instance in a GPU instance of a profile.
fn create_compute(gpu_instance: u32, gpu: Option<&Gpu>, profile: u32, inner: Inner) -> Setting {
    let whole = gpu.and_then(|gpu| gpu.slices(profile)).is_none_or(|slices| slices == inner.size);
    Setting::CreateComputeInstance { gpu_instance, part: (!whole).then_some(inner) }
}

fn busy(member: usize, message: String, report: IdleReport) -> Failure {
    let mut message = message;
    for reason in
        report.reasons.iter().take(3).filter(|reason| **reason != message).cloned().collect::<Vec<_>>()
    {
        message = format!("{message}; {reason}");
    }
    Failure { member, kind: FailureKind::Busy, message, idle: Some(report) }
}

fn odd(member: usize, message: &str) -> Failure {
    Failure { member, kind: FailureKind::Io, message: message.to_owned(), idle: None }
}

fn stopped(member: usize, stop: Stop) -> Failure {
    let (kind, message) = match stop {
        Stop::TimedOut => (FailureKind::TimedOut, "the time was up before everything was done"),
        Stop::Cancelled => (FailureKind::Cancelled, "cancelled before everything was done"),
    };
    Failure { member, kind, message: message.to_owned(), idle: None }
}

fn still_pending(activation: &Activation) -> Failure {
    let reasons: Vec<&str> = activation.reasons.iter().map(|(_, text)| text.as_str()).collect();
    let member = activation.reasons.first().map_or(0, |(member, _)| *member);
    let message =
        format!("the reset did not take effect: {}; a reboot or power cycle is needed", reasons.join(", "));
    Failure { member, kind: FailureKind::Unconverged, message, idle: None }
}

fn nvml(member: usize, error: &NvmlError) -> Failure {
    match error {
        NvmlError::Stopped(stop) => stopped(member, *stop),
        other => Failure { member, kind: FailureKind::Nvml, message: other.to_string(), idle: None },
    }
}
