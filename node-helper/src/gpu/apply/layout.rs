//! Restores the MIG layout of a GPU that could not get the new one.

use std::collections::BTreeMap;

use gpufleet_protocol::{FailureKind, mig::Filled, nvml::Setting};

use super::{Failure, Running, WAY_BACK, create_compute};
use crate::{
    deadline::Deadline,
    gpu::{
        plan::{Act, Stage, Step},
        state::{Compute, Device, Gpu, Instance, Locks, State},
        wording::joined,
        worker::SetAnswer,
    },
};

/// Whether it changes instances.
pub(super) const fn instances(act: &Act) -> bool {
    matches!(
        act,
        Act::DestroyInstance { .. }
            | Act::DestroyCompute { .. }
            | Act::CreateInstance { .. }
            | Act::CreateCompute { .. }
    )
}

impl Running<'_> {
    /// Gives a GPU whose layout or mode could not be changed its instances back, and GPUs that were switched to MIG mode for
    /// a layout that was not reached their mode: CUDA finds no device on a GPU in MIG mode without instances.
    pub(super) fn with_layout_back(
        &mut self,
        stage: &Stage,
        step: &Step,
        failure: Failure,
        left: &mut BTreeMap<usize, usize>,
    ) -> Failure {
        let mut failure = self.with_gpu_back(stage, step, failure, left);
        let told = self.modes_back(stage, step, failure.kind, left);
        if !told.is_empty() {
            failure.message = format!("{}; {}", failure.message, joined(&told));
        }
        failure
    }

    /// Switches MIG mode off again on the other GPUs that this stage switched on and whose layout was not reached. Returns a
    /// sentence for each GPU that has no instances now because of this run.
    fn modes_back(
        &mut self,
        stage: &Stage,
        failed: &Step,
        kind: FailureKind,
        left: &mut BTreeMap<usize, usize>,
    ) -> Vec<String> {
        let done = |step: &Step| step.changes.iter().all(|at| left.get(at) == Some(&0));
        let of = |gpu: &Gpu, step: &Step| step.act.uuid() == Some(&gpu.uuid);
        let unreached = |gpu: &&Gpu| {
            let mut steps = stage.steps.iter();
            !of(gpu, failed)
                && gpu.mig_on()
                && self.was_off(&gpu.uuid)
                && steps.any(|step| of(gpu, step) && instances(&step.act) && !done(step))
        };
        let gpus: Vec<Gpu> = self.state.gpus.iter().filter(unreached).cloned().collect();
        if gpus.is_empty() {
            return Vec::new();
        }
        let modes = |gpu: &Gpu| {
            let modes = stage.steps.iter().filter(|step| matches!(step.act, Act::Mig { on: true, .. }));
            modes.filter(|step| of(gpu, step)).flat_map(|step| step.changes.clone()).collect::<Vec<usize>>()
        };
        let grace = Deadline::after(WAY_BACK);
        let answers = kind != FailureKind::Nvml;
        // Only where it changes at once: elsewhere it would take another reset.
        let volatile = |gpu: &&Gpu| answers && gpu.architecture.has_volatile_mig() && !modes(gpu).is_empty();
        for gpu in gpus.iter().filter(volatile) {
            // A newer controller may be about to use the mode.
            if (self.job.fence)().is_err() {
                break;
            }
            // What it answers is not believed, but read below.
            let _ = self.job.machine.set(&gpu.uuid, Setting::MigMode(false), &grace);
        }
        let now = answers.then(|| self.read(&grace)).flatten();
        let mut told = Vec::new();
        for gpu in &gpus {
            let mode = now.as_ref().and_then(|now| now.gpu(&gpu.uuid)?.mig.ok());
            told.push(match mode {
                Some(mode) if !mode.current => {
                    left.extend(modes(gpu).into_iter().map(|at| (at, usize::MAX)));
                    format!(
                        "{}: MIG mode was switched off again, because the layout was not reached",
                        gpu.label()
                    )
                }
                Some(_) => format!(
                    "{}: MIG mode stays enabled, which it was not before the run, and the layout was not reached",
                    gpu.label()
                ),
                None => format!(
                    "{}: MIG mode was switched on, cannot be read now, and the layout was not reached",
                    gpu.label()
                ),
            });
        }
        told
    }

    /// Whether MIG mode was read at the start, and was off.
    fn was_off(&self, uuid: &str) -> bool {
        self.start.gpu(uuid).is_some_and(|gpu| gpu.mig.is_ok_and(|mode| !mode.current))
    }

    /// Gives the GPU of a failed step its instances and its mode back.
    fn with_gpu_back(
        &mut self,
        stage: &Stage,
        step: &Step,
        mut failure: Failure,
        left: &mut BTreeMap<usize, usize>,
    ) -> Failure {
        let of_layout = instances(&step.act) || matches!(step.act, Act::Mig { .. });
        let Some(uuid) = step.act.uuid().filter(|_| of_layout) else { return failure };
        let made: Vec<u32> = self.created.iter().filter(|(of, _)| of == uuid).map(|(_, id)| *id).collect();
        let made_inside: Vec<(u32, u32)> = self
            .created_computes
            .iter()
            .filter(|(of, _, _)| of == uuid)
            .map(|(_, instance, compute)| (*instance, *compute))
            .collect();
        let gone: Vec<Instance> = self
            .destroyed
            .iter()
            .filter(|(of, _)| of == uuid)
            .map(|(_, instance)| instance.clone())
            .collect();
        let nothing = made.is_empty() && made_inside.is_empty() && gone.is_empty();
        let switched_on = self.state.gpu(uuid).is_some_and(Gpu::mig_on) && self.was_off(uuid);
        if nothing && !switched_on || failure.kind == FailureKind::Nvml {
            return failure;
        }
        let undone =
            stage.steps.iter().filter(|other| other.act.uuid() == Some(uuid) && instances(&other.act));
        // Restored instances do not count as changes; those of a node that is another controller's now stay.
        if (self.job.fence)().is_ok() {
            for at in undone.chain([step]).flat_map(|step| &step.changes) {
                left.insert(*at, usize::MAX);
            }
        }
        let grace = Deadline::after(WAY_BACK);
        let mut problems = Vec::new();
        let present = self.read_gpu(uuid, &grace).map(|gpu| gpu.present().to_vec()).unwrap_or_default();
        let is_new = |id: u32| made.contains(&id);
        for instance in &present {
            let Some(gpu_instance) = instance.id else { continue };
            for compute_instance in instance.computes.iter().filter_map(|compute| compute.id) {
                if is_new(gpu_instance) || made_inside.contains(&(gpu_instance, compute_instance)) {
                    let setting = Setting::DestroyComputeInstance { gpu_instance, compute_instance };
                    problems.extend(self.set_back(uuid, setting, &grace).err());
                }
            }
            if is_new(gpu_instance) {
                let setting = Setting::DestroyGpuInstance { gpu_instance };
                problems.extend(self.set_back(uuid, setting, &grace).err());
            }
        }
        for instance in &gone {
            // Checked, because the failure may have come between the compute and the GPU instance.
            let there = present
                .iter()
                .find(|other| other.placement == instance.placement && !other.id.is_some_and(is_new));
            let setting =
                Setting::CreateGpuInstance { profile_id: instance.profile_id, placement: instance.placement };
            let id = match there.and_then(|other| other.id) {
                Some(id) => Ok(SetAnswer::Created { id }),
                None => self.set_back(uuid, setting, &grace),
            };
            let id = match id {
                Ok(SetAnswer::Created { id }) => id,
                Ok(_) => continue,
                Err(error) => {
                    problems.push(error);
                    continue;
                }
            };
            let still = |compute: &&Compute| {
                there.is_some_and(|there| {
                    there.computes.iter().any(|other| {
                        let new = other.id.is_some_and(|inside| made_inside.contains(&(id, inside)));
                        other.inner == compute.inner && !new
                    })
                })
            };
            for compute in instance.computes.iter().filter(|compute| !still(compute)) {
                let setting = create_compute(id, self.state.gpu(uuid), instance.profile_id, compute.inner);
                problems.extend(self.set_back(uuid, setting, &grace).err());
            }
        }
        // Only where it changes at once: elsewhere it would take another reset.
        let volatile = self.state.gpu(uuid).is_some_and(|gpu| gpu.architecture.has_volatile_mig());
        if switched_on && volatile && problems.is_empty() {
            // What it answers is not believed, but read below.
            problems.extend(self.set_back(uuid, Setting::MigMode(false), &grace).err());
        }
        let now = self.read_gpu(uuid, &grace);
        let is_off = now.as_ref().is_some_and(|gpu| !gpu.mig_on());
        if switched_on && is_off {
            let modes = |other: &&Step| matches!(&other.act, Act::Mig { uuid: of, .. } if of == uuid);
            for at in stage.steps.iter().filter(modes).flat_map(|step| &step.changes) {
                left.insert(*at, usize::MAX);
            }
        }
        let problem =
            problems.first().map(|error| format!("the previous MIG layout could not be restored: {error}"));
        let left = match (&now, self.start.gpu(uuid)) {
            (Some(now), Some(start)) => {
                let same = now.mig.ok() == start.mig.ok() && by_place(now) == by_place(start);
                match (same, gone.is_empty()) {
                    (true, true) => "the GPU is as it was before".to_owned(),
                    (true, false) => "the previous MIG layout was restored".to_owned(),
                    (false, _) => left_over(now, start),
                }
            }
            _ => "what is left of its MIG layout cannot be read".to_owned(),
        };
        let told = problem.map_or_else(|| left.clone(), |problem| format!("{problem}; {left}"));
        failure.message = format!("{}; {told}", failure.message);
        failure
    }

    /// Sets something of a layout that is restored.
    ///
    /// # Errors
    /// If it cannot be set, or the node is another controller's now, which may be about to use what is there.
    fn set_back(&mut self, uuid: &str, setting: Setting, grace: &Deadline) -> Result<SetAnswer, String> {
        (self.job.fence)()?;
        self.cdi_stale = true;
        self.job.machine.set(uuid, setting, grace).map_err(|error| error.to_string())
    }

    fn read_gpu(&mut self, uuid: &str, deadline: &Deadline) -> Option<Gpu> {
        self.read(deadline)?.gpu(uuid).cloned()
    }

    fn read(&mut self, deadline: &Deadline) -> Option<State> {
        let snapshot = self.job.machine.snapshot(deadline).ok()?;
        let host = self.state.host.clone();
        Some(State::read(&snapshot, host, |_| Locks::UNKNOWN, |_| Device::default()))
    }
}

/// Returns the instances in the order of their places: one that was made again comes last in a reading.
fn by_place(gpu: &Gpu) -> Vec<Filled> {
    let mut all = gpu.filled();
    all.sort_unstable();
    all
}

/// Says what a GPU has that is not as it was before the run.
fn left_over(now: &Gpu, start: &Gpu) -> String {
    let mode = match (now.mig_on(), start.mig_on()) {
        (true, false) => "MIG mode stays enabled, which it was not before the run, ",
        (false, true) => "MIG mode is disabled, which it was not before the run, ",
        _ => "its MIG mode is as before the run, ",
    };
    let count = |gpu: &Gpu| match gpu.present().len() {
        0 => "no instances".to_owned(),
        1 => "1 instance".to_owned(),
        more => format!("{more} instances"),
    };
    let (now, start) = (count(now), count(start));
    if now == start {
        format!("{mode}with {now}")
    } else {
        format!("{mode}with {now} where there were {start}")
    }
}
