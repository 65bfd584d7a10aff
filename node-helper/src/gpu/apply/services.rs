//! What is suspended during a run and restored on every way out: units that hold GPUs, MPS, persistence.
//!
//! Invariant: nothing is stopped or switched off before it is recorded.

use gpufleet_protocol::{FailureKind, nvml::Setting};

use super::{Done, Failure, Running, WAY_BACK};
use crate::{
    deadline::Deadline,
    gpu::{
        clients::MPS_UNITS,
        machine::{Machine, UnitAction},
        mps,
        observe::{put_released, put_stopped_units},
        plan::Activation,
    },
};

impl Running<'_> {
    pub(super) fn unit(&mut self, unit: &str, action: UnitAction, member: usize) -> Done {
        self.job.machine.unit(unit, action, self.job.deadline).map_err(|message| Failure {
            member,
            kind: FailureKind::Io,
            message,
            idle: None,
        })
    }

    pub(super) fn start_mps(&mut self, text: &str, member: usize) -> Done {
        self.paused_mps = None;
        let io = |message| Failure { member, kind: FailureKind::Io, message, idle: None };
        if self.state.host.mps.unit.active {
            self.unit(mps::UNIT, UnitAction::Stop, member)?;
        }
        if self.state.host.mps.answers || self.state.host.mps.stale {
            self.job.machine.quit_mps(self.job.deadline).map_err(io)?;
        }
        self.job.machine.write_mps_unit(Some(text), self.job.deadline).map_err(io)?;
        self.unit(mps::UNIT, UnitAction::Enable, member)?;
        self.unit(mps::UNIT, UnitAction::Start, member)
    }

    pub(super) fn stop_mps(&mut self, member: usize) -> Done {
        self.paused_mps = None;
        let io = |message| Failure { member, kind: FailureKind::Io, message, idle: None };
        let mps = self.state.host.mps.clone();
        if mps.unit.active {
            self.unit(mps::UNIT, UnitAction::Stop, member)?;
        }
        if mps.unit.enabled {
            self.unit(mps::UNIT, UnitAction::Disable, member)?;
        }
        if mps.answers || mps.stale {
            self.job.machine.quit_mps(self.job.deadline).map_err(io)?;
        }
        self.stopped.retain(|unit| unit != mps::UNIT);
        self.remember_stopped();
        Ok(())
    }

    /// Returns the running units that hold GPUs. MPS keeps running unless clients may be disturbed.
    pub(super) fn units_to_stop(&self, disturbs: bool) -> Vec<String> {
        let meant = |unit: &&String| {
            !self.stopped.contains(unit) && (disturbs || !MPS_UNITS.contains(&unit.as_str()))
        };
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
            if unit == mps::UNIT {
                self.paused_mps = Some(self.state.host.mps.clone());
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

    /// Restores persistence and units, and ends the worker, whatever happened before.
    pub(super) fn way_back(&mut self) {
        let grace = Deadline::after(WAY_BACK);
        // Tried again after a failure, because the driver may have been busy with the reset.
        self.applied.warnings.retain(|warning| !warning.contains("could not be switched on again"));
        let problems = self.take_persistence(&grace);
        self.applied.warnings.extend(problems);
        self.job.machine.release();
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
