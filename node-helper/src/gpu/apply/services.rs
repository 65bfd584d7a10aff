//! What is suspended during a run and restored on every way out: units that hold GPUs, MPS, persistence.
//!
//! Invariant: nothing is stopped or switched off before it is recorded.

use gpufleet_protocol::{FailureKind, nvml::Setting};

use super::{Done, Failure, Running, WAY_BACK, nvml, odd};
use crate::{
    deadline::Deadline,
    gpu::{
        machine::{Machine, UnitAction},
        mps::{self, Seat, Serving},
        observe::{put_released, put_stopped_units},
        plan::Activation,
        state::{Device, Locks, State},
    },
};

/// The toolkit's unit that makes the CDI specification.
const CDI_REFRESH: &str = "nvidia-cdi-refresh.service";

impl Running<'_> {
    pub(super) fn unit(&mut self, unit: &str, action: UnitAction, member: usize) -> Done {
        self.job.machine.unit(unit, action, self.job.deadline).map_err(|message| Failure {
            member,
            kind: FailureKind::Io,
            message,
            idle: None,
        })
    }

    /// Returns the seat that a planned one became: that of a MIG device which this run made.
    fn real_seat(&mut self, seat: &Seat, member: usize) -> Result<Seat, Failure> {
        let planned = match seat {
            Seat::Device(uuid) => self.state.device(uuid).and_then(|(gpu, inside)| {
                let (instance, compute) = inside.filter(|(_, compute)| compute.id.is_none())?;
                Some((gpu.uuid.clone(), instance.placement, compute.inner))
            }),
            Seat::Node => None,
        };
        let Some((gpu, placement, inner)) = planned else { return Ok(seat.clone()) };
        let snapshot = self.job.machine.snapshot(self.job.deadline).map_err(|error| nvml(member, &error))?;
        let host = self.state.host.clone();
        let now = State::read(&snapshot, host, |_| Locks::UNKNOWN, |_| Device::default());
        let made = now
            .gpu(&gpu)
            .and_then(|gpu| gpu.present().iter().find(|instance| instance.placement == placement))
            .and_then(|instance| instance.computes.iter().find(|compute| compute.inner == inner));
        match made.and_then(|compute| compute.uuid.clone()) {
            Some(uuid) => Ok(Seat::Device(uuid)),
            None => Err(odd(member, "the driver does not tell the UUID of a MIG device that was just made")),
        }
    }

    /// Asked before anything is stopped, which would otherwise stay stopped.
    pub(super) fn may_reload(&mut self, member: usize) -> Done {
        let refused = |message| Failure { member, kind: FailureKind::Io, message, idle: None };
        self.job.machine.may_reload().map_err(refused)
    }

    pub(super) fn start_mps(&mut self, seat: &Seat, text: &str, serving: &Serving, member: usize) -> Done {
        self.may_reload(member)?;
        let real = self.real_seat(seat, member)?;
        let program = self.state.host.mps.program.clone();
        let text = match real == *seat {
            true => text.to_owned(),
            false => serving.unit_text(&real, program.as_deref().unwrap_or(mps::PROGRAM)),
        };
        let (seat, text) = (&real, text.as_str());
        self.paused_mps.remove(seat);
        let io = |message| Failure { member, kind: FailureKind::Io, message, idle: None };
        let daemon = self.state.host.mps.daemon(seat);
        if daemon.unit.active {
            self.unit(&seat.unit(), UnitAction::Stop, member)?;
        }
        if daemon.answers || daemon.stale {
            self.job.machine.quit_mps(seat, self.job.deadline).map_err(io)?;
        }
        self.job.machine.write_mps_unit(seat, Some(text), self.job.deadline).map_err(io)?;
        if !seat.is_mig() {
            self.unit(&seat.unit(), UnitAction::Enable, member)?;
        }
        self.unit(&seat.unit(), UnitAction::Start, member)
    }

    pub(super) fn limit_mps(&mut self, seat: &Seat, text: &str, serving: &Serving, member: usize) -> Done {
        let io = |message| Failure { member, kind: FailureKind::Io, message, idle: None };
        self.may_reload(member)?;
        // A paused one reads them when it starts again.
        if !self.paused_mps.contains_key(seat) {
            self.job.machine.tell_mps(seat, &serving.limits(), self.job.deadline).map_err(io)?;
        }
        // Last, because a later run takes the limits in the file for those in force.
        self.job.machine.write_mps_unit(seat, Some(text), self.job.deadline).map_err(io)?;
        if let Some(paused) = self.paused_mps.get_mut(seat) {
            paused.unit_text = Some(text.to_owned());
            paused.percentage = Some(mps::percentage_of(Some(text)));
        }
        Ok(())
    }

    pub(super) fn stop_mps(&mut self, seat: &Seat, member: usize) -> Done {
        let (daemon, unit) = (self.state.host.mps.daemon(seat), seat.unit());
        if daemon.unit.enabled || *seat != Seat::Node {
            self.may_reload(member)?;
        }
        self.paused_mps.remove(seat);
        let io = |message| Failure { member, kind: FailureKind::Io, message, idle: None };
        if daemon.unit.active {
            self.unit(&unit, UnitAction::Stop, member)?;
        }
        if daemon.unit.enabled {
            self.unit(&unit, UnitAction::Disable, member)?;
        }
        if daemon.answers || daemon.stale {
            self.job.machine.quit_mps(seat, self.job.deadline).map_err(io)?;
        }
        if *seat != Seat::Node {
            self.job.machine.write_mps_unit(seat, None, self.job.deadline).map_err(io)?;
        }
        self.stopped.retain(|other| *other != unit);
        self.remember_stopped();
        Ok(())
    }

    /// Returns the running units that hold GPUs. MPS keeps running unless clients may be disturbed.
    pub(super) fn units_to_stop(&self, disturbs: bool) -> Vec<String> {
        let meant = |unit: &&String| !self.stopped.contains(unit) && (disturbs || !mps::is_unit(unit));
        self.state.host.client_units.iter().filter(meant).cloned().collect()
    }

    pub(super) fn stop_units(&mut self, units: &[String], member: usize) -> Done {
        if units.is_empty() {
            return Ok(());
        }
        self.still_ours(member)?;
        let known = self.stopped.len();
        self.stopped.extend(units.iter().cloned());
        // Nothing is stopped without a record, because a killed helper would leave the units stopped for good.
        if let Err(why) = put_stopped_units(self.job.record, &self.stopped) {
            self.stopped.truncate(known);
            let message = format!("nothing was stopped, because it cannot be recorded: {why}");
            return Err(Failure { member, kind: FailureKind::Io, message, idle: None });
        }
        for unit in units {
            self.still_ours(member)?;
            (self.job.progress)(format!("stopping {unit}"));
            self.unit(unit, UnitAction::Stop, member)?;
            if let Some(seat) = Seat::of_unit(unit) {
                let daemon = self.state.host.mps.daemon(&seat);
                self.paused_mps.insert(seat, daemon);
            }
        }
        Ok(())
    }

    pub(super) fn remember_stopped(&mut self) {
        if let Err(why) = put_stopped_units(self.job.record, &self.stopped) {
            self.applied.warnings.push(format!("which units are stopped cannot be recorded: {why}"));
        }
    }

    pub(super) fn release_persistence(&mut self, activation: &Activation, member: usize) -> Done {
        self.still_ours(member)?;
        let held = |uuid: &&String| self.state.gpu(uuid).is_some_and(|gpu| gpu.persistence == Ok(true));
        let uuids: Vec<String> = activation.uuids.iter().filter(held).cloned().collect();
        self.released.extend(uuids.iter().cloned());
        self.remember_released();
        for uuid in uuids {
            self.set(&uuid, Setting::Persistence(false), member)?;
        }
        Ok(())
    }

    pub(super) fn remember_released(&mut self) {
        let mark = self.job.machine.boot_mark();
        if let Err(why) = put_released(self.job.record, &mark, &self.released) {
            self.applied
                .warnings
                .push(format!("which GPUs are without persistence cannot be recorded: {why}"));
        }
    }

    pub(super) fn take_persistence(&mut self, deadline: &Deadline) -> Vec<String> {
        if self.released.is_empty() {
            return Vec::new();
        }
        let problems = take_persistence(self.job.machine, &mut self.released, deadline);
        self.remember_released();
        problems
    }

    /// Has the CDI specification made anew, which names the MIG devices for containers.
    pub(super) fn refresh_cdi(&mut self, deadline: &Deadline) {
        self.cdi_stale = false;
        if let Err(why) = self.job.machine.unit(CDI_REFRESH, UnitAction::Start, deadline) {
            self.applied.warnings.push(format!("the CDI specification is stale: {why}"));
        }
    }

    /// Restores persistence and units, and ends the worker, whatever happened before.
    pub(super) fn way_back(&mut self) {
        let grace = Deadline::after(WAY_BACK);
        // Tried again after a failure, because the driver may have been busy with the reset.
        self.applied.warnings.retain(|warning| !warning.contains("could not be switched on again"));
        let problems = self.take_persistence(&grace);
        self.applied.warnings.extend(problems);
        self.applied.warnings.extend(forget_lost_units(self.job.machine, &mut self.stopped, &grace));
        self.job.machine.release();
        // After a failure: the specification may name instances that are gone. A newer controller makes its own.
        if self.cdi_stale && self.state.host.cdi_refresh && (self.job.fence)().is_ok() {
            (self.job.progress)("refreshing the CDI specification".to_owned());
            self.refresh_cdi(&grace);
        }
        let problems = start_units(self.job.machine, &mut self.stopped, &grace, self.job.progress);
        // A failure and not a warning: the node would return to work without its monitoring.
        self.applied.failures.extend(problems.into_iter().map(|message| Failure {
            member: 0,
            kind: FailureKind::Io,
            message,
            idle: None,
        }));
        self.remember_stopped();
    }
}

/// Takes the MPS daemons out of the list whose MIG instances are gone, because they cannot start again. Returns a sentence
/// for each of them.
pub fn forget_lost_units(
    machine: &mut dyn Machine,
    stopped: &mut Vec<String>,
    deadline: &Deadline,
) -> Vec<String> {
    let mig = |unit: &String| Seat::of_unit(unit).filter(Seat::is_mig);
    if !stopped.iter().any(|unit| mig(unit).is_some()) {
        return Vec::new();
    }
    let Ok(snapshot) = machine.snapshot(deadline) else { return Vec::new() };
    let instances = snapshot.gpus.iter().filter_map(|gpu| gpu.instances.as_ref().ok()).flatten();
    let computes = instances.flat_map(|instance| &instance.compute_instances);
    let there: Vec<&str> = computes.filter_map(|compute| compute.uuid.as_deref()).collect();
    let mut lost = Vec::new();
    stopped.retain(|unit| match mig(unit) {
        Some(Seat::Device(uuid)) if !there.contains(&uuid.as_str()) => {
            lost.push(format!(
                "{unit} was not started again, because its MIG instance is gone; declare `gpu_mps: {{state: started, scope: \
                 mig}}` for the present ones"
            ));
            false
        }
        _ => true,
    });
    lost
}

/// Starts units, the last stopped first; those that do not start stay in the list. Returns a sentence for each of them.
pub fn start_units(
    machine: &mut dyn Machine,
    stopped: &mut Vec<String>,
    deadline: &Deadline,
    progress: &dyn Fn(String),
) -> Vec<String> {
    let mut problems = Vec::new();
    for unit in stopped.clone().into_iter().rev() {
        progress(format!("starting {unit}"));
        match machine.unit(&unit, UnitAction::Start, deadline) {
            Ok(()) => stopped.retain(|other| *other != unit),
            Err(why) => problems.push(format!("{unit} could not be started again: {why}")),
        }
    }
    problems
}

/// Switches persistence on again; GPUs that refuse stay in the list. Returns a sentence for each of them.
pub fn take_persistence(
    machine: &mut dyn Machine,
    released: &mut Vec<String>,
    deadline: &Deadline,
) -> Vec<String> {
    let mut problems = Vec::new();
    released.retain(|uuid| match machine.set(uuid, Setting::Persistence(true), deadline) {
        Ok(_) => false,
        Err(error) => {
            problems.push(format!("{uuid}: persistence is off and could not be switched on again: {error}"));
            true
        }
    });
    problems
}
