//! What a reboot that a task asks for, or a reload of the driver, takes from the GPUs, for its plan.

use std::{collections::BTreeSet, time::Duration};

use gpufleet_protocol::{
    message::IdleVerdict,
    op::{GpuGroup, GpuMember, Staying},
};

use super::{
    desired::merge, group::Gpus, observe::keep_counted, plan::losses, state::State, wording::joined,
};
use crate::{deadline::Deadline, world::World};

/// Time to read the counters before a reboot, which must not wait for a driver that hangs.
const COUNTING: Duration = Duration::from_secs(15);

/// What the tasks of a prediction declared so far: a run sets it again after a reboot.
#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    pub members: Vec<GpuMember>,
    /// PCI addresses of GPUs that are to be drained.
    pub drained: BTreeSet<String>,
    /// Whether the plan of a task that needs a reboot told what that takes.
    pub told: bool,
}

/// What takes from all GPUs what their driver keeps in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    Reboot,
    Reload,
}

impl Taker {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::Reload => "reload of the driver",
        }
    }
}

impl Gpus {
    /// Returns what a reboot or a reload takes that no task of this prediction declares, a sentence for each GPU. Nothing
    /// where the GPUs cannot be read: then nobody knows what they have.
    pub fn lost_by(&mut self, taker: Taker, world: &World, deadline: &Deadline) -> Vec<String> {
        let Ok(mut state) = self.predicted_state(deadline) else { return Vec::new() };
        state.kept = self.machine.kept(world);
        let group = GpuGroup { members: self.declared.members.clone(), defer_to_reboot: true };
        let by = taker.as_str();
        let mut lost = match self.declared.told && taker == Taker::Reboot {
            true => Vec::new(),
            false => losses::at_once(&state, &merge(&group, &state), taker),
        };
        let ends = state.drained.iter().map(|hidden| &hidden.gpu);
        let ends = ends.filter(|gpu| !self.declared.drained.contains(&gpu.pci));
        lost.extend(ends.map(|gpu| {
            format!("GPU {} is drained, which the {by} ends and no task up to here declares", gpu.index)
        }));
        match lost.is_empty() {
            true => lost,
            false => vec![joined(&lost)],
        }
    }

    /// Reads which memory errors the GPUs counted, right before a reload or a reboot clears the counters; keeps them on the
    /// node, and says them. Nothing where the GPUs cannot be read.
    pub fn counted_before(&mut self, taker: Taker, deadline: &Deadline) -> Vec<String> {
        let counting = self.counting(deadline);
        self.keep_counting(counting.as_ref(), taker)
    }

    /// Proves once more, right before a reboot, that nothing works on the node; an unknown state counts as busy. Returns what
    /// the GPUs counted, kept as by [`counted_before`](Self::counted_before), or why the node is not idle.
    pub fn proven_idle(
        &mut self,
        staying: &Staying,
        deadline: &Deadline,
    ) -> Result<Vec<String>, Vec<String>> {
        // Before the proof, which would be old after it: work may begin meanwhile.
        let counting = self.counting(deadline);
        let report = self.idle(staying, deadline);
        match report.verdict {
            IdleVerdict::Idle => Ok(self.keep_counting(counting.as_ref(), Taker::Reboot)),
            IdleVerdict::Busy | IdleVerdict::Unknown => Err(report.reasons),
        }
    }

    fn counting(&mut self, deadline: &Deadline) -> Option<State> {
        let read = self.observed(&deadline.within(COUNTING));
        self.release();
        read.ok().map(|(state, _)| state)
    }

    fn keep_counting(&mut self, counting: Option<&State>, taker: Taker) -> Vec<String> {
        let Some(state) = counting else { return Vec::new() };
        let boot_id = self.machine.boot_mark().boot_id;
        keep_counted(&self.record, &boot_id, state.gpus.iter(), taker.as_str())
    }

    /// Notes GPUs that a task drains, or gives back.
    pub fn declare_drains<'a>(&mut self, pcis: impl Iterator<Item = &'a str>, on: bool) {
        for pci in pcis {
            match on {
                true => self.declared.drained.insert(pci.to_owned()),
                false => self.declared.drained.remove(pci),
            };
        }
    }
}
