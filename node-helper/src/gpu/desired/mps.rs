//! Which MPS daemons are declared: one for the node, or one for each GPU or MIG compute instance.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    mig::Inner,
    nvml::Placement,
    tasks::{GpuMps, MpsScope, MpsState},
};

use super::{Merge, Want};
use crate::gpu::{
    mps::{MpsWant, PROGRAM},
    state::Gpu,
};

/// `nvmlComputeMode_t`: no process may use the GPU.
const PROHIBITED: u32 = 2;

/// What a declared daemon serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Node,
    /// By UUID.
    Gpu(String),
    /// A compute instance, by its place, because its UUID is known only once it exists.
    Mig {
        gpu: String,
        placement: Placement,
        inner: Inner,
    },
}

/// The declared daemons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MpsWants {
    pub daemons: BTreeMap<Target, Want<MpsWant>>,
    /// GPUs, by UUID, on which other daemons end; `None` where none is to run.
    pub covered: BTreeMap<String, Want<Option<MpsScope>>>,
}

/// A declaration for MIG, whose instances are known when all members are merged.
#[derive(Clone, Debug)]
pub(super) struct OfInstances {
    member: usize,
    want: MpsWant,
    gpus: Vec<String>,
}

impl Merge<'_> {
    pub(super) fn mps(&mut self, task: &GpuMps, chosen: &[usize]) {
        let state = self.state;
        let gpus: Vec<&Gpu> = chosen.iter().filter_map(|at| state.gpus.get(*at)).collect();
        let uuids: Vec<String> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let starts = task.state == MpsState::Started;
        if starts && state.host.mps.program.is_none() {
            return self.fail(format!("{PROGRAM} is not installed on this node"));
        }
        if let Some(user) =
            task.user.as_ref().filter(|user| starts && state.host.mps.no_users.contains(*user))
        {
            return self.fail(format!(
                "this node has no user `{user}` to run MPS daemons as; create it before (`user: {{name: {user}}}`)"
            ));
        }
        let all = chosen.len() == state.gpus.len();
        let (served, devices) = match task.scope {
            MpsScope::Node => ((!all).then(|| uuids.clone()), gpus.len()),
            MpsScope::Gpu | MpsScope::Mig => (None, 1),
        };
        let want = match MpsWant::of(task, served, devices) {
            Ok(want) => want,
            Err(text) => return self.fail(text),
        };
        let scope = starts.then_some(task.scope);
        for uuid in &uuids {
            self.cover(uuid, scope);
        }
        match (task.scope, starts) {
            (MpsScope::Node, _) => self.daemon(Target::Node, want),
            (_, false) => self.verdict().applies += 1,
            (MpsScope::Gpu, true) => {
                for uuid in uuids {
                    self.daemon(Target::Gpu(uuid), want.clone());
                }
            }
            (MpsScope::Mig, true) => {
                let member = self.member;
                self.of_instances.push(OfInstances { member, want, gpus: uuids });
            }
        }
    }

    fn cover(&mut self, uuid: &str, scope: Option<MpsScope>) {
        let member = self.member;
        match self.desired.mps.covered.get(uuid) {
            Some(other) if other.value != scope => self.mps_conflict(other.member),
            Some(_) => {}
            None => {
                self.desired.mps.covered.insert(uuid.to_owned(), Want { member, value: scope });
            }
        }
    }

    fn daemon(&mut self, target: Target, value: MpsWant) {
        let member = self.member;
        match self.desired.mps.daemons.get(&target) {
            Some(other) if other.value != value => self.mps_conflict(other.member),
            Some(_) => self.verdict().applies += 1,
            None => {
                self.desired.mps.daemons.insert(target, Want { member, value });
                self.verdict().applies += 1;
            }
        }
    }

    fn mps_conflict(&mut self, first: usize) {
        let member = self.member;
        let text = format!(
            "task {} and task {} of the group (gpu_mps) contradict each other",
            first + 1,
            member + 1
        );
        for at in [first, member] {
            self.member = at;
            if !self.verdict().failures.contains(&text) {
                self.fail(text.clone());
            }
        }
        self.member = member;
    }

    /// Finds the instances of declarations for MIG, and checks what other members declare of the GPUs.
    pub(super) fn mps_across_members(&mut self) {
        for declared in std::mem::take(&mut self.of_instances) {
            self.member = declared.member;
            for uuid in &declared.gpus {
                self.of_gpu(uuid, &declared.want);
            }
        }
        let node = self.desired.mps.daemons.get(&Target::Node).filter(|want| want.value != MpsWant::Stopped);
        let device = self.desired.mps.daemons.iter().find(|(target, _)| **target != Target::Node);
        if let (Some(node), Some((_, device))) = (node, device) {
            let (first, second) = (node.member, device.member);
            self.member = second;
            self.mps_conflict(first);
        }
        let state = self.state;
        let covered = self.desired.mps.covered.clone();
        for (gpu, want) in state.gpus.iter().filter_map(|gpu| Some((gpu, covered.get(&gpu.uuid)?))) {
            let Some(scope) = want.value else { continue };
            self.member = want.member;
            let wants = self.desired.gpus.get(&gpu.uuid);
            let mode = wants.and_then(|wants| wants.compute.as_ref()).map(|want| want.value);
            if mode.or(gpu.compute_mode.ok()) == Some(PROHIBITED) {
                self.fail(format!(
                    "the compute mode of {} is prohibited, where no process may use it, nor through MPS; declare \
                     `gpu_compute_mode: {{mode: exclusive_process}}`",
                    gpu.label()
                ));
            }
            if scope == MpsScope::Gpu && self.is_mig_wanted(gpu) {
                self.fail(format!(
                    "{} is in MIG mode, where each instance needs a daemon of its own; declare `scope: mig`",
                    gpu.label()
                ));
            }
        }
    }

    fn is_mig_wanted(&self, gpu: &Gpu) -> bool {
        let wants = self.desired.gpus.get(&gpu.uuid);
        wants.and_then(|wants| wants.mig.as_ref()).map_or_else(|| gpu.mig_on(), |want| want.value)
    }

    fn of_gpu(&mut self, uuid: &str, want: &MpsWant) {
        let Some(gpu) = self.state.gpu(uuid) else { return };
        if !self.is_mig_wanted(gpu) {
            return self.fail(format!(
                "{} is not in MIG mode, and has no instances; declare `gpu_mig` as well, or `scope: gpu`",
                gpu.label()
            ));
        }
        let wants = self.desired.gpus.get(uuid);
        let declared = wants.and_then(|wants| wants.layout.as_ref());
        let filled = declared.map_or_else(|| gpu.filled(), |layout| layout.value.filled.clone());
        let untold = gpu.present().iter().flat_map(|one| &one.computes).any(|one| one.uuid.is_none());
        if untold {
            let text = format!("the UUIDs of the MIG devices of {} cannot be read", gpu.label());
            return self.verdict().unknown.push(text);
        }
        let targets: Vec<Target> = filled
            .into_iter()
            .flat_map(|one| {
                let (gpu, placement) = (uuid.to_owned(), one.slot.placement);
                one.computes.into_iter().map(move |inner| Target::Mig { gpu: gpu.clone(), placement, inner })
            })
            .collect();
        if targets.is_empty() {
            let text = format!("{} has no MIG compute instance that a daemon could serve", gpu.label());
            self.verdict().not_applicable.push(text);
        }
        for target in targets {
            self.daemon(target, want.clone());
        }
    }
}
