//! A node that has a state: pending becomes current by a reset or reboot, volatile values are lost.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::disturbing::{class_of, kinds};
use gpufleet_protocol::op::GpuTask;
use gpufleet_protocol::tasks::{EccMode, MigMode, ServiceState};
use gpufleet_protocol::{
    Awaiting, Change, Disruption, NodeOp, OpOutcome, OpStatus, Property, Subject, Unit, change::Value,
};

use super::{Action, Fed, Mode, Work};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    pub sysctl: BTreeMap<String, String>,
    pub cmdline: Vec<String>,
    /// Words that the next boot has.
    pub next_cmdline: Vec<String>,
    pub ecc: bool,
    pub ecc_pending: bool,
    /// As on Hopper: live, and lost by a reboot.
    pub mig: bool,
    pub power_w: u32,
    pub files: BTreeMap<String, String>,
    /// Units that do not run; all others do.
    pub stopped: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FakeNode {
    pub real: State,
    /// What predictions assume.
    pub assumed: Option<State>,
    pub setters: u32,
    pub reboots: u32,
    /// A GPU reset follows an ECC change, unless the group defers to a reboot.
    pub resets: bool,
    /// This knob takes no value.
    pub stubborn: Option<&'static str>,
}

impl FakeNode {
    pub(crate) fn new() -> Self {
        Self { real: State { power_w: 700, ..State::default() }, ..Self::default() }
    }

    pub(crate) fn answer(&mut self, action: &Action) -> Fed {
        match &action.work {
            Work::Reboot { .. } => {
                if action.mode == Mode::Apply {
                    self.reboots += 1;
                    lose(&mut self.real, true);
                } else {
                    lose(self.assumed.get_or_insert_with(|| self.real.clone()), true);
                }
                Fed::Rebooted
            }
            Work::Node { op, .. } => {
                let mut state = match action.mode {
                    Mode::Apply => self.real.clone(),
                    Mode::Predict => self.assumed.clone().unwrap_or_else(|| self.real.clone()),
                };
                let outcome = self.operate(op, &mut state);
                match action.mode {
                    Mode::Apply => self.real = state,
                    Mode::Predict => self.assumed = Some(state),
                }
                Fed::Outcome(Box::new(outcome))
            }
            _ => Fed::Done,
        }
    }

    /// Loses what a reboot loses.
    pub(crate) fn reboot(&mut self) {
        self.reboots += 1;
        self.assumed = None;
        lose(&mut self.real, true);
    }

    pub(crate) fn operate(&mut self, op: &NodeOp, state: &mut State) -> OpOutcome {
        let mut outcome = OpOutcome::new(OpStatus::Ok);
        match op {
            NodeOp::Sysctl(sysctl) => {
                let old = state.sysctl.get(&sysctl.name).cloned();
                if old != sysctl.value {
                    let new = sysctl.value.clone().unwrap_or_default();
                    let setting = Subject::kernel_setting(&sysctl.name);
                    outcome.changes.push(Change::new(setting, Property::VALUE, old, &new, Disruption::Live));
                    if self.stubborn != Some("sysctl") {
                        state.sysctl.insert(sysctl.name.clone(), new);
                    }
                }
            }
            NodeOp::Service(task) if task.state == Some(ServiceState::Stopped) => {
                let stops = state.stopped.insert(task.name.clone());
                let (unit, class) = (Subject::unit(&task.name), class_of(kinds::of_op(op)));
                let change = Change::new(unit, Property::STATE, "started", "stopped", class);
                outcome.changes.extend(stops.then_some(change));
            }
            NodeOp::KernelCmdline(words) => {
                for word in &words.add {
                    if !state.next_cmdline.contains(word) {
                        outcome.changes.push(Change::new(
                            Subject::KernelCommandLine { parameter: word.clone() },
                            Property::VALUE,
                            Value::Unknown,
                            word,
                            Disruption::Reboot,
                        ));
                        state.next_cmdline.push(word.clone());
                    }
                }
                if state.next_cmdline != state.cmdline {
                    outcome.awaiting.push(Awaiting {
                        activation: Disruption::Reboot,
                        reason: "kernel command line is pending".to_owned(),
                    });
                }
            }
            NodeOp::PutFile(put) => {
                let new = put.preview.clone().unwrap_or_default();
                let old = state.files.get(&put.dest).cloned();
                if old.as_ref() != Some(&new) {
                    let file = Subject::file(&put.dest);
                    outcome.changes.push(Change::new(file, Property::CONTENT, old, &new, Disruption::Live));
                    state.files.insert(put.dest.clone(), new);
                }
            }
            NodeOp::GpuGroup(group) => {
                let mut reset = false;
                for member in &group.members {
                    let mut part = OpOutcome::new(OpStatus::Ok);
                    match &member.task {
                        GpuTask::GpuEcc(ecc) => {
                            let wanted = ecc.mode == EccMode::Enabled;
                            if state.ecc_pending != wanted {
                                part.changes.push(Change::new(
                                    gpu(),
                                    Property::ECC,
                                    state.ecc_pending,
                                    wanted,
                                    Disruption::Reboot,
                                ));
                                state.ecc_pending = wanted;
                            }
                            if state.ecc != state.ecc_pending {
                                if self.resets && !group.defer_to_reboot {
                                    reset = true;
                                } else {
                                    part.awaiting.push(Awaiting {
                                        activation: Disruption::Reboot,
                                        reason: "ECC is pending".to_owned(),
                                    });
                                }
                            }
                        }
                        GpuTask::GpuMig(mig) => {
                            let wanted = mig.mode == Some(MigMode::Enabled);
                            if state.mig != wanted {
                                part.changes.push(Change::new(
                                    gpu(),
                                    Property::new("MIG"),
                                    state.mig,
                                    wanted,
                                    Disruption::Clients,
                                ));
                                state.mig = wanted;
                            }
                        }
                        GpuTask::GpuPower(power) => {
                            let wanted = power.limit_watts.unwrap_or_default();
                            if state.power_w != wanted {
                                part.changes.push(Change::new(
                                    gpu(),
                                    Property::POWER_LIMIT,
                                    Value::quantity(state.power_w, Unit::Watts),
                                    Value::quantity(wanted, Unit::Watts),
                                    Disruption::Live,
                                ));
                                if self.stubborn != Some("power") {
                                    state.power_w = wanted;
                                }
                            }
                        }
                        _ => {}
                    }
                    if !part.changes.is_empty() {
                        part.status = OpStatus::Changed;
                        self.setters += 1;
                    }
                    outcome.members.push(part);
                }
                if reset {
                    lose(state, false);
                    outcome.activated = Some(Disruption::GpuReset);
                    // Why: the group itself ends as declared; only what others declared is lost.
                    for member in &group.members {
                        if let GpuTask::GpuPower(power) = &member.task {
                            state.power_w = power.limit_watts.unwrap_or_default();
                        }
                    }
                }
            }
            _ => {}
        }
        if !outcome.changes.is_empty() {
            outcome.status = OpStatus::Changed;
            self.setters += 1;
        }
        outcome
    }
}

fn gpu() -> Subject {
    Subject::Gpu { index: 0, uuid: "GPU-0".to_owned() }
}

/// What a reset or reboot does to the GPUs and the node.
fn lose(state: &mut State, reboot: bool) {
    state.ecc = state.ecc_pending;
    state.power_w = 700;
    if reboot {
        state.mig = false;
        state.cmdline.clone_from(&state.next_cmdline);
    }
}
