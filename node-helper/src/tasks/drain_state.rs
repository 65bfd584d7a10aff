//! `gpu_drain_state`: takes single GPUs out of use, and gives them back.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property,
    change::Value,
    nvml::Code,
    tasks::{DrainStateName, GpuDrainState, GpuSelectorItem},
};
use serde_json::Map;

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::{Draining, Drains, Gpus, bus, idle_sentences},
    world::Effect,
};

const DRAIN_STATE: Property = Property::new("drain state");
/// What ends a drain without anybody's doing. Source: nvml.h; the state is the kernel module's.
const LASTS: &str = "until the next boot or load of the driver";

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Drain(Box<Draining>),
    Undrain(Box<Draining>),
}

/// A task with what it needs of the session.
pub struct DrainState<'a> {
    task: &'a GpuDrainState,
    gpus: Mutex<&'a mut Gpus>,
    fence: &'a (dyn Fn() -> Result<(), String> + Sync),
}

impl<'a> DrainState<'a> {
    pub fn new(
        task: &'a GpuDrainState,
        gpus: &'a mut Gpus,
        fence: &'a (dyn Fn() -> Result<(), String> + Sync),
    ) -> Self {
        Self { task, gpus: Mutex::new(gpus), fence }
    }

    fn gpus(&self) -> MutexGuard<'_, &'a mut Gpus> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drains(&self) -> bool {
        self.task.state == DrainStateName::Drained
    }

    fn chosen<'s>(&self, state: &'s Drains) -> Result<Vec<&'s Draining>, Trouble> {
        for item in &self.task.gpus {
            if state.gpus.iter().any(|one| one.is_meant(item)) {
                continue;
            }
            if let GpuSelectorItem::Index(index) = item
                && let Some((_, code)) = state.unreadable.iter().find(|(at, _)| at == index)
            {
                return Err(Trouble::io(format!("GPU {index} cannot be read: {code}")));
            }
            let text = match item {
                GpuSelectorItem::Index(index) => index.to_string(),
                GpuSelectorItem::Text(text) => text.clone(),
            };
            let has: Vec<String> = state.gpus.iter().map(Draining::label).collect();
            return Err(Trouble::invalid(format!(
                "`gpus: {text}` names no GPU of this node; it has {}",
                if has.is_empty() { "none that answers".to_owned() } else { has.join(", ") }
            )));
        }
        let meant = |one: &&Draining| {
            self.task.gpus.is_empty() || self.task.gpus.iter().any(|item| one.is_meant(item))
        };
        Ok(state.gpus.iter().filter(meant).collect())
    }
}

fn words(drained: bool) -> &'static str {
    if drained { "drained" } else { "active" }
}

impl NodeKind for DrainState<'_> {
    type State = Drains;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<Drains, Trouble> {
        let mut gpus = self.gpus();
        gpus.drains(node.world.predicts(), node.deadline).map_err(|error| match gpus.on_bus() {
            0 => Trouble::invalid(bus::NO_GPU),
            _ if node.world.predicts() && gpus.awaits_driver() => Trouble::Possible,
            _ => Trouble::io(error.to_string()),
        })
    }

    fn plan(&self, state: &Drains) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let chosen = self.chosen(state)?;
        let mut lacking = Vec::new();
        for one in &chosen {
            let drained = match one.drained {
                Ok(drained) => drained,
                Err(code @ (Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND)) => {
                    lacking.push(format!("{} cannot be drained: {code}", one.label()));
                    continue;
                }
                Err(code) => {
                    let why = format!("whether {} is drained cannot be read: {code}", one.label());
                    return Err(Trouble::io(why));
                }
            };
            if drained == self.drains() {
                continue;
            }
            let change =
                |from: &str, to: &str| Change::new(one.subject(), DRAIN_STATE, from, to, Disruption::Live);
            if !self.drains() {
                let change = change(words(true), words(false));
                plan.push(
                    Step::Undrain(Box::new((*one).clone())),
                    change.with_note("without persistence and limits, which later tasks set"),
                );
                continue;
            }
            if one.gpu.uuid.is_empty() || one.gpu.pci.is_empty() {
                return Err(Trouble::io(format!("{}: its address or UUID cannot be read", one.label())));
            }
            let mut note = LASTS.to_owned();
            if one.persistence {
                let off = Change::new(
                    one.subject(),
                    Property::PERSISTENCE,
                    Value::from(true),
                    false,
                    Disruption::Live,
                );
                plan.changes
                    .push(off.with_note("the driver drains no GPU with it; limits and clocks go with it"));
            } else {
                note.push_str("; limits and clocks go when its last client ends");
            }
            plan.push(
                Step::Drain(Box::new((*one).clone())),
                change(words(false), words(true)).with_note(note),
            );
            plan.warnings.extend(
                idle_sentences(&one.holders)
                    .into_iter()
                    .map(|who| format!("{who}, and keeps it: only what starts later does not see it")),
            );
        }
        match lacking.first() {
            Some(first) if self.drains() => return Err(Trouble::invalid(first.clone())),
            Some(first) if lacking.len() == chosen.len() => {
                return Err(Trouble::NotApplicable(first.clone()));
            }
            _ => {}
        }
        if let (Some(uid), false) = (state.not_root, plan.steps.is_empty()) {
            return Err(Trouble::failed(
                FailureKind::Refused,
                format!(
                    "only root may drain GPUs, and gpufleet works as uid {uid} on this node; next step: declare \
                     `become: true` for the task or the play"
                ),
            ));
        }
        if self.drains() && !plan.steps.is_empty() {
            plan.warnings.extend(
                state.unknown.iter().map(|why| format!("who holds the GPUs is not fully known: {why}")),
            );
            let stays = |one: &Draining| one.drained != Ok(true) && !chosen.contains(&one);
            if !state.gpus.iter().any(stays) {
                plan.warnings.push("no GPU of the node is left that programs see".to_owned());
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &Drains, plan: &Plan<Step>) -> Vec<Effect> {
        // What is assumed of GPUs is the session's, and not the world's.
        let mut gpus = self.gpus();
        let chosen = self.chosen(state).unwrap_or_default();
        gpus.declare_drains(chosen.iter().map(|one| one.gpu.pci.as_str()), self.drains());
        for step in &plan.steps {
            match step {
                Step::Drain(one) => gpus.assume_drain(&one.gpu.pci, true),
                Step::Undrain(one) => gpus.assume_drain(&one.gpu.pci, false),
            }
        }
        Vec::new()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        _: &Drains,
        plan: &Plan<Step>,
    ) -> Result<Map<String, serde_json::Value>, Trouble> {
        let mut gpus = self.gpus();
        let mut done = Ok(());
        for step in &plan.steps {
            done = node.check_time().and_then(|()| {
                (self.fence)().map_err(|why| Trouble::failed(FailureKind::Refused, why))?;
                let acted = match step {
                    Step::Drain(one) => {
                        (node.progress)(format!("draining {}", one.label()));
                        gpus.drain(one, node.deadline)
                    }
                    Step::Undrain(one) => {
                        (node.progress)(format!("giving {} back", one.label()));
                        gpus.undrain(one, node.deadline)
                    }
                };
                acted.map_err(|why| Trouble::failed(FailureKind::Io, why))
            });
            if done.is_err() {
                break;
            }
        }
        // Its worker is a process that saw the GPUs before.
        gpus.release();
        done.map(|()| Map::new())
    }
}
