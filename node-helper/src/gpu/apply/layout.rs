//! Restores the MIG layout of a GPU that could not get the new one.

use std::collections::BTreeMap;

use gpufleet_protocol::{FailureKind, nvml::Setting};

use super::{Failure, Running, WAY_BACK, create_compute};
use crate::{
    deadline::Deadline,
    gpu::{
        plan::{Act, Stage, Step},
        state::{Compute, Device, Instance, Locks, State},
        worker::SetAnswer,
    },
};

impl Running<'_> {
    /// Gives a GPU whose layout or mode could not be changed its instances back.
    pub(super) fn with_layout_back(
        &mut self,
        stage: &Stage,
        step: &Step,
        mut failure: Failure,
        left: &mut BTreeMap<usize, usize>,
    ) -> Failure {
        let Some(uuid) = step.act.uuid() else { return failure };
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
        if nothing || failure.kind == FailureKind::Nvml {
            return failure;
        }
        // Restored instances do not count as changes.
        let instances = |act: &Act| {
            matches!(
                act,
                Act::DestroyInstance { .. }
                    | Act::DestroyCompute { .. }
                    | Act::CreateInstance { .. }
                    | Act::CreateCompute { .. }
            )
        };
        let undone =
            stage.steps.iter().filter(|other| other.act.uuid() == Some(uuid) && instances(&other.act));
        for at in undone.chain([step]).flat_map(|step| &step.changes) {
            left.insert(*at, usize::MAX);
        }
        let grace = Deadline::after(WAY_BACK);
        let mut problems = Vec::new();
        let present: Vec<Instance> =
            self.job.machine.snapshot(&grace).ok().map_or_else(Vec::new, |snapshot| {
                let host = self.state.host.clone();
                let state = State::read(&snapshot, host, |_| Locks::UNKNOWN, |_| Device::default());
                state.gpu(uuid).map(|gpu| gpu.present().to_vec()).unwrap_or_default()
            });
        let is_new = |id: u32| made.contains(&id);
        for instance in &present {
            let Some(gpu_instance) = instance.id else { continue };
            for compute_instance in instance.computes.iter().filter_map(|compute| compute.id) {
                if is_new(gpu_instance) || made_inside.contains(&(gpu_instance, compute_instance)) {
                    let setting = Setting::DestroyComputeInstance { gpu_instance, compute_instance };
                    problems.extend(self.job.machine.set(uuid, setting, &grace).err());
                }
            }
            if is_new(gpu_instance) {
                let setting = Setting::DestroyGpuInstance { gpu_instance };
                problems.extend(self.job.machine.set(uuid, setting, &grace).err());
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
                None => self.job.machine.set(uuid, setting, &grace),
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
                problems.extend(self.job.machine.set(uuid, setting, &grace).err());
            }
        }
        failure.message = match problems.first() {
            None if gone.is_empty() => format!("{}; the GPU is as it was before", failure.message),
            None => format!("{}; the previous MIG layout was restored", failure.message),
            Some(error) => {
                format!("{}; the previous MIG layout could not be restored: {error}", failure.message)
            }
        };
        failure
    }
}
