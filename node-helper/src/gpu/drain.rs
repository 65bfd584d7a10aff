//! The drain states of a session's GPUs: read, changed and predicted, for `gpu_drain_state`.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    Subject,
    message::GpuClient,
    nvml::{Code, DrainedGpu, Reading, Setting},
    tasks::GpuSelectorItem,
};

use super::{
    after::Event,
    clients::PERSISTENCED,
    group::Gpus,
    idle,
    observe::forget_locks,
    state::Holding,
    worker::{NvmlError, SetError},
};
use crate::deadline::Deadline;

/// A GPU and whether it is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draining {
    pub gpu: DrainedGpu,
    pub drained: Reading<bool>,
    /// Never of a drained GPU, because the driver drains none with it.
    pub persistence: bool,
    /// Who holds it: processes that work on it, and services that keep it open.
    pub holders: Vec<GpuClient>,
}

impl Draining {
    /// What a change of it is about.
    pub fn subject(&self) -> Subject {
        Subject::Gpu { index: self.gpu.index, uuid: self.gpu.uuid.clone() }
    }

    /// Whether an entry of `gpus` means it.
    pub fn is_meant(&self, item: &GpuSelectorItem) -> bool {
        item.means(self.gpu.index, &self.gpu.uuid, &self.gpu.pci, &self.gpu.name)
    }

    /// `GPU 1 (0000:43:00.0)`, as messages name it.
    pub fn label(&self) -> String {
        format!("GPU {} ({})", self.gpu.index, self.gpu.pci)
    }
}

/// What was read of all GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    pub gpus: Vec<Draining>,
    /// GPUs that the driver lists and that cannot be read.
    pub unreadable: Vec<(u32, Code)>,
    /// What is not known of the holders, one sentence each.
    pub unknown: Vec<String>,
    /// The helper's user, if not root.
    pub not_root: Option<u32>,
}

impl Gpus {
    /// Reads the drain states, in a prediction with what earlier predictions assumed.
    ///
    /// # Errors
    /// If NVML cannot be asked.
    pub fn drains(&mut self, predicts: bool, deadline: &Deadline) -> Result<Drains, NvmlError> {
        let state = match predicts {
            true => self.predicted_state(deadline)?,
            false => {
                // A new process: one that runs sees what was drained meanwhile.
                self.machine.release();
                let (mut state, snapshot) = self.observed(deadline)?;
                state.holding = self.holding(&snapshot);
                state
            }
        };
        let pcis: Vec<String> = state.gpus.iter().map(|gpu| gpu.pci.clone()).collect();
        let states = self.machine.drain_states(&pcis, deadline);
        self.machine.release();
        let states: BTreeMap<&String, Reading<bool>> = pcis.iter().zip(states?).collect();
        let mut gpus: Vec<Draining> = (state.gpus.iter())
            .map(|gpu| Draining {
                gpu: DrainedGpu::from(gpu),
                drained: states.get(&gpu.pci).copied().unwrap_or(Err(Code::UNKNOWN)),
                persistence: gpu.persistence == Ok(true),
                holders: holders(&state.holding, gpu.index),
            })
            .collect();
        let hidden = state.drained.iter().map(|hidden| (&hidden.gpu, true));
        let returning = state.returning.iter().map(|gpu| (gpu, false));
        gpus.extend(hidden.chain(returning).map(|(gpu, drained)| Draining {
            gpu: gpu.clone(),
            drained: Ok(drained),
            persistence: false,
            holders: holders(&state.holding, gpu.index),
        }));
        gpus.sort_by_key(|one| one.gpu.index);
        let Holding { unknown, not_root, .. } = state.holding;
        Ok(Drains { gpus, unreadable: state.unreadable, unknown, not_root })
    }

    /// Drains a GPU, without its persistence, which the driver demands. On failure persistence is put back.
    ///
    /// # Errors
    /// If the driver refuses it, with who may be in the way.
    pub fn drain(&mut self, one: &Draining, deadline: &Deadline) -> Result<(), String> {
        let uuid = &one.gpu.uuid;
        if one.persistence {
            let call = self.machine.set(uuid, Setting::Persistence(false), deadline);
            call.map_err(|error| format!("{}: persistence cannot be switched off: {error}", one.label()))?;
            // Forgotten, because the driver forgets locks with its last client.
            let _ = forget_locks(&self.record, uuid);
        }
        let Err(error) = self.machine.drain(&one.gpu.pci, true, deadline) else { return Ok(()) };
        let mut message = format!("{}: {error}", one.label());
        if let SetError::Refused { code: Code::IN_USE, .. } = error {
            let by = match one.holders.as_slice() {
                [] => format!("is persistence on again? look at {PERSISTENCED}"),
                holders => idle::sentences(holders).join("; "),
            };
            message = format!("{message}; {by}");
        }
        if one.persistence
            && let Err(error) = self.machine.set(uuid, Setting::Persistence(true), deadline)
        {
            message = format!("{message}; and its persistence cannot be switched on again: {error}");
        }
        Err(message)
    }

    /// Gives a drained GPU back.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn undrain(&mut self, one: &Draining, deadline: &Deadline) -> Result<(), String> {
        let done = self.machine.drain(&one.gpu.pci, false, deadline);
        done.map_err(|error| format!("{}: {error}", one.label()))
    }

    /// Assumes in later predictions that a GPU is drained, or not any more.
    pub fn assume_drain(&mut self, pci: &str, on: bool) {
        self.assume_event(Event::Drain { pci: pci.to_owned(), on });
    }
}

fn holders(holding: &Holding, index: u32) -> Vec<GpuClient> {
    // The daemon lets go of a GPU when its persistence is switched off.
    let daemon = |client: &&GpuClient| {
        client.unit.as_deref() == Some(PERSISTENCED) || client.command.contains("nvidia-persistenced")
    };
    let services = holding.services.iter().filter(|client| !daemon(client));
    (holding.clients.iter().chain(services))
        .filter(|client| client.gpus.contains(&index))
        .map(|client| GpuClient { gpus: vec![index], ..client.clone() })
        .collect()
}
