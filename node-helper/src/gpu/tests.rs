//! Whole runs on the simulated node.

mod drains;
mod foreseen;
mod kept;
mod knobs;
mod mig;
mod mps;
mod pending;
mod persistence;
mod properties;
mod services;

use std::{collections::BTreeMap, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, OpOutcome, OpStatus,
    message::{IdleVerdict, Mode},
    nvml::{Placement, Staged},
    op::{GpuGroup, GpuMember, GpuTask},
};
use proptest::prelude::*;
use serde_json::json;

use super::{
    group::Gpus,
    reboot::Taker,
    sim::{Sim, SimGpu, SimMachine},
    worker::NvmlError,
};
use crate::{deadline::Deadline, state::Record, world::World};

/// A node and its session.
struct Node {
    machine: SimMachine,
    record: Record,
    _dir: tempfile::TempDir,
    gpus: Gpus,
    /// Number of acts after which a newer controller takes over.
    fence: std::cell::Cell<Option<usize>>,
    /// Number of effects when it first did.
    lost: std::cell::Cell<Option<usize>>,
}

impl Node {
    fn new(sim: Sim) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::of(Some(dir.path()));
        let machine = SimMachine::new(sim);
        let gpus = Gpus::with_machine(Box::new(machine.clone()), record.clone());
        Self { machine, record, _dir: dir, gpus, fence: Default::default(), lost: Default::default() }
    }

    fn run(&mut self, group: &GpuGroup, mode: Mode, allowed: Disruption) -> OpOutcome {
        let outcome =
            self.gpus.run(group, mode, allowed, &Deadline::after(Duration::from_secs(60)), &|_| {}, &|| {
                self.fence.get().map_or(Ok(()), |left| {
                    self.fence.set(left.checked_sub(1).or(Some(0)));
                    if left > 0 {
                        return Ok(());
                    }
                    let effects = self.machine.get().effects.len();
                    self.lost.set(self.lost.get().or(Some(effects)));
                    Err("a newer controller took this node over".to_owned())
                })
            });
        assert!(!self.machine.get().open, "the worker lives on after a run");
        outcome
    }

    fn predict(&mut self, group: &GpuGroup) -> OpOutcome {
        let before = self.machine.get().effects.len();
        let outcome = self.run(group, Mode::Predict, Disruption::Live);
        assert_eq!(self.machine.get().effects.len(), before, "a prediction changed something");
        outcome
    }

    fn apply(&mut self, group: &GpuGroup) -> OpOutcome {
        self.run(group, Mode::Apply, Disruption::Reboot)
    }

    fn lost_by(&mut self, taker: Taker) -> Vec<String> {
        self.gpus.forget_predictions();
        self.gpus.lost_by(taker, &World::real(), &Deadline::after(Duration::from_secs(5)))
    }

    fn effects(&self) -> Vec<String> {
        std::mem::take(&mut self.machine.get().effects)
    }

    /// Connects the controller again.
    fn new_session(&mut self) {
        self.gpus = Gpus::with_machine(Box::new(self.machine.clone()), self.record.clone());
    }
}

fn task(value: serde_json::Value) -> GpuTask {
    let (kind, with) = value.as_object().unwrap().iter().next().unwrap();
    serde_json::from_value(json!({"kind": kind, "with": with})).unwrap()
}

fn group(tasks: &[serde_json::Value]) -> GpuGroup {
    let members = tasks.iter().map(|value| GpuMember { task: task(value.clone()) }).collect();
    GpuGroup { members, defer_to_reboot: false }
}

fn lines(outcome: &OpOutcome) -> Vec<String> {
    let line = |change: &Change| {
        let note = change.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        format!(
            "{}: {} -> {} [{}]{note}",
            change.what(),
            change.from_text().as_deref().unwrap_or("?"),
            change.to_text(),
            change.disruption
        )
    };
    outcome.changes.iter().map(line).collect()
}

fn bringup() -> GpuGroup {
    group(&[
        json!({"gpu_power": {"limit_watts": 600}}),
        json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}}),
        json!({"gpu_ecc": {"mode": "enabled"}}),
        json!({"gpu_persistence": {"mode": "daemon"}}),
        json!({"gpu_clocks": {"graphics_mhz": [1200, 1980]}}),
        json!({"gpu_compute_mode": {"mode": "default"}}),
    ])
}

fn without_ecc(hopper: bool) -> SimGpu {
    SimGpu { ecc: Staged::settled(false), ..SimGpu::new(0, hopper) }
}

#[test]
fn a_fresh_hopper_node_is_brought_up_with_one_reset_in_whatever_order_tasks_are_written() {
    let mut node = Node::new(Sim::new(vec![without_ecc(true)]));
    let forecast = node.predict(&bringup());
    assert_eq!(
        lines(&forecast),
        [
            "GPU 0 power limit: 700 W -> 600 W [live]",
            "GPU 0 MIG mode: disabled -> enabled [clients]",
            "GPU 0 MIG layout: none -> 2x 3g.40gb [live]",
            "GPU 0 ECC: disabled -> enabled [gpu-reset]",
            "nvidia-persistenced: inactive, disabled -> active, enabled [live]",
            "GPU 0 persistence: disabled -> enabled [live]",
            "GPU 0 graphics clock: ? -> 1200-1980 MHz [live]",
        ]
    );
    assert_eq!(forecast.activated, Some(Disruption::GpuReset));
    let done = node.apply(&bringup());
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(lines(&done), lines(&forecast));
    let effects = node.effects();
    assert_eq!(effects.iter().filter(|effect| effect.starts_with("reset")).count(), 1);
    assert_eq!(effects.first().unwrap(), "stop nvidia-dcgm.service");
    assert_eq!(effects.last().unwrap(), "start nvidia-dcgm.service");
    assert_eq!(node.machine.get().gpus[0].layout(), ["3g.40gb@0", "3g.40gb@4"]);
    node.new_session();
    let again = node.apply(&bringup());
    assert_eq!((again.status, again.changes), (OpStatus::Ok, Vec::new()));
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn without_a_way_to_reset_the_rest_waits_for_the_reboot() {
    for hopper in [true, false] {
        let mut node = Node::new(Sim::new(vec![SimGpu { resettable: false, ..without_ecc(hopper) }]));
        let forecast = node.predict(&bringup());
        node.gpus.assume_activation(Disruption::Reboot);
        let after = node.predict(&bringup());
        let done = node.apply(&bringup());
        assert_eq!(lines(&done), lines(&forecast));
        let mut first = vec![
            "GPU 0 ECC: disabled -> enabled [reboot]",
            "nvidia-persistenced: inactive, disabled -> active, enabled [live]",
        ];
        if !hopper {
            first.insert(0, "GPU 0 MIG mode: disabled -> enabled [reboot]");
        }
        assert_eq!(lines(&done), first);
        assert!(done.awaiting.iter().any(|awaiting| awaiting.reason == "GPU 0 ECC enabled is pending"));
        assert!(
            done.awaiting
                .iter()
                .any(|awaiting| awaiting.reason == "GPU 0 power limit 600 W is set after the reboot")
        );
        node.machine.get().reboot();
        node.new_session();
        let second = node.apply(&bringup());
        assert_eq!(lines(&second), lines(&after));
        assert_eq!(second.status, OpStatus::Changed);
        assert_eq!(node.apply(&bringup()).status, OpStatus::Ok);
    }
}

#[test]
fn an_ampere_mode_that_is_current_inside_the_call_gets_its_layout_before_the_reboot() {
    let wish = json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}});
    let wish = GpuGroup { defer_to_reboot: true, ..group(&[wish]) };
    let mut sim = Sim::new(vec![SimGpu::new(0, false)]);
    sim.units.clear();
    let mut node = Node::new(sim);
    let done = node.apply(&wish);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(
        lines(&done),
        ["GPU 0 MIG mode: disabled -> enabled [reboot]", "GPU 0 MIG layout: none -> 2x 3g.40gb [live]"]
    );
    assert_eq!(done.awaiting, []);
    assert_eq!(node.machine.get().gpus[0].layout(), ["3g.40gb@0", "3g.40gb@4"]);
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(lines(&node.apply(&wish)), ["GPU 0 MIG layout: none -> 2x 3g.40gb [live]"]);
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
}

#[test]
fn of_ampere_gpus_whose_mode_became_current_only_those_that_wait_are_named() {
    let wish = json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}});
    let wish = GpuGroup { defer_to_reboot: true, ..group(&[wish]) };
    let busy = SimGpu { persistence: true, ..SimGpu::new(1, false) };
    let mut sim = Sim::new(vec![SimGpu::new(0, false), busy]);
    sim.units.clear();
    let mut node = Node::new(sim);
    let done = node.apply(&wish);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let awaiting: Vec<&str> = done.awaiting.iter().map(|awaiting| awaiting.reason.as_str()).collect();
    assert_eq!(
        awaiting,
        [
            "GPU 1 MIG mode enabled is pending",
            "GPU 0 MIG layout 2x 3g.40gb is set after the reboot",
            "GPU 1 MIG layout 2x 3g.40gb is set after the reboot",
        ]
    );
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
}

#[test]
fn what_needs_a_permit_is_left_alone_and_says_so() {
    let mut node = Node::new(Sim::new(vec![without_ecc(true)]));
    let refused = node.run(&bringup(), Mode::Apply, Disruption::Clients);
    assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::GpuReset });
    assert_eq!(refused.changes.len(), 7);
    assert_eq!(refused.members[5].status, OpStatus::Ok);
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn a_process_on_the_gpu_is_named_and_nothing_is_destroyed() {
    let full = SimGpu::new(0, true).with_instances(&[(0, 0, 8)]);
    let mut node = Node::new(Sim::new(vec![SimGpu { client: Some(41), persistence: true, ..full }]));
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}})]);
    let failed = node.apply(&wish);
    let OpStatus::Failed { kind: FailureKind::Busy, message } = &failed.status else { panic!("{failed:?}") };
    assert_eq!(message, "the GPUs are in use; process 41 (train, user ana) holds GPU 0");
    assert_eq!(failed.idle.unwrap().verdict, IdleVerdict::Busy);
    assert_eq!(node.machine.get().gpus[0].layout(), ["7g.80gb@0"]);
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn mps_is_left_running_where_nobody_is_to_be_disturbed_and_waited_for_where_somebody_is() {
    let sim = |wish: &str| {
        let mut sim = Sim::new(vec![
            SimGpu::new(0, true).with_instances(if wish == "create" { &[] } else { &[(0, 0, 8)] }),
            SimGpu { client: Some(41), ..SimGpu::new(1, true) },
        ]);
        sim.mps.unit = super::state::Unit { exists: true, active: true, enabled: true };
        sim.mps.running = Some(100);
        sim
    };
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}, "gpus": [0]}})]);
    let mut node = Node::new(sim("create"));
    assert_eq!(node.run(&wish, Mode::Apply, Disruption::Live).status, OpStatus::Changed);
    assert!(!node.effects().iter().any(|effect| effect == "stop gpufleet-mps.service"));
    let mut node = Node::new(sim("destroy"));
    let failed = node.apply(&wish);
    assert!(matches!(failed.status, OpStatus::Failed { kind: FailureKind::Busy, .. }), "{failed:?}");
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn a_client_of_another_gpu_is_no_obstacle() {
    let busy = SimGpu { client: Some(41), ..SimGpu::new(1, true) };
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true), busy]));
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"7g.80gb": 1}, "gpus": [0]}})]);
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
}

#[test]
fn the_display_module_holds_an_ampere_gpu() {
    let mut node = Node::new(Sim { drm: 2, ..Sim::new(vec![without_ecc(false)]) });
    let failed = node.apply(&group(&[json!({"gpu_ecc": {"mode": "enabled"}})]));
    let OpStatus::Failed { kind: FailureKind::Busy, message } = failed.status else { panic!() };
    assert!(
        message
            .starts_with("the kernel module nvidia_drm (use count 2) holds GPU 0; next step: end what shows"),
        "{message}"
    );
    assert_eq!(node.effects(), Vec::<String>::new(), "nothing is begun that cannot be ended");
    assert!(node.machine.get().units["nvidia-dcgm.service"]);
}

#[test]
fn a_reset_that_the_machine_refuses_becomes_a_reboot() {
    let mut node = Node::new(Sim { no_reset: true, ..Sim::new(vec![without_ecc(true)]) });
    let done = node.apply(&bringup());
    assert!(done.warnings.iter().any(|warning| warning.contains("a reboot is needed")), "{done:?}");
    assert_eq!(done.activated, None);
    assert!(
        done.awaiting.iter().all(|awaiting| awaiting.activation == Disruption::Reboot)
            && !done.awaiting.is_empty()
    );
    node.machine.get().reboot();
    node.machine.get().no_reset = false;
    assert_eq!(node.apply(&bringup()).status, OpStatus::Changed);
    assert_eq!(node.apply(&bringup()).status, OpStatus::Ok);
}

#[test]
fn what_a_setter_claims_is_not_believed() {
    let sim = Sim {
        lies: Some(|setting| format!("{setting:?}").starts_with("PowerLimit")),
        ..Sim::new(vec![SimGpu::new(0, true)])
    };
    let mut node = Node::new(sim);
    let failed = node.apply(&group(&[
        json!({"gpu_power": {"limit_watts": 500}}),
        json!({"gpu_ecc": {"mode": "enabled"}}),
    ]));
    let OpStatus::Failed { kind: FailureKind::Unconverged, message } = &failed.members[0].status else {
        panic!("{failed:?}")
    };
    assert_eq!(message, "GPU 0 power limit was set to 500 W and reads 700 W");
    assert_eq!(failed.members[1].status, OpStatus::Ok);
}

#[test]
fn instances_that_stay_are_not_touched() {
    let gpu = SimGpu::new(0, true).with_instances(&[(9, 4, 4), (14, 0, 2), (19, 2, 1)]);
    let mut node = Node::new(Sim::new(vec![gpu]));
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 1, "2g.20gb": 2}}})]);
    let done = node.apply(&wish);
    assert_eq!(
        lines(&done),
        ["GPU 0 MIG layout: 1x 3g.40gb + 1x 2g.20gb + 1x 1g.10gb -> 1x 3g.40gb + 2x 2g.20gb [clients]"]
    );
    let sets: Vec<String> = node.effects().into_iter().filter(|effect| effect.starts_with("GPU-")).collect();
    assert_eq!(sets.len(), 4, "{sets:?}");
    assert_eq!(node.machine.get().gpus[0].layout(), ["2g.20gb@0", "2g.20gb@2", "3g.40gb@4"]);
}

#[test]
fn an_instance_without_compute_instance_is_seen_and_completed() {
    let mut gpu = SimGpu::new(0, true).with_instances(&[(0, 0, 8)]);
    gpu.instances[0].compute_instances.clear();
    let mut node = Node::new(Sim::new(vec![gpu]));
    let done = node.apply(&group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"7g.80gb": 1}}})]));
    assert_eq!(
        lines(&done),
        ["GPU 0 MIG layout: 1x 7g.80gb (1 without compute instance) -> 1x 7g.80gb [live]"]
    );
    assert_eq!(node.machine.get().gpus[0].layout(), ["7g.80gb@0"]);
}

#[test]
fn contradictions_name_both_tasks_and_nothing_is_done() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    let wish = group(&[
        json!({"gpu_power": {"limit_watts": 600}}),
        json!({"gpu_compute_mode": {"mode": "prohibited"}}),
        json!({"gpu_power": {"limit_watts": 500, "gpus": "H100"}}),
    ]);
    let failed = node.apply(&wish);
    let text = "GPU 0 power limit shall be 600 W by task 1 of the group (gpu_power) and 500 W by task 3 of the group (gpu_power)";
    for at in [0, 2] {
        assert_eq!(
            failed.members[at].status,
            OpStatus::Failed { kind: FailureKind::Invalid, message: text.to_owned() }
        );
    }
    assert!(
        matches!(&failed.members[1].status, OpStatus::Failed { message, .. } if message.starts_with("not applied, because task 1"))
    );
    assert_eq!(node.effects(), Vec::<String>::new());
    assert_eq!(lines(&node.predict(&wish)), Vec::<String>::new());
}

#[test]
fn a_contradiction_about_several_gpus_is_said_once() {
    let mut node = Node::new(Sim::new((0..8).map(|index| SimGpu::new(index, true)).collect()));
    let wish = group(&[
        json!({"gpu_power": {"limit_watts": 600}}),
        json!({"gpu_power": {"limit_watts": 500, "gpus": [0, 1, 2, 3, 5]}}),
    ]);
    let failed = node.apply(&wish);
    let text = "GPU 0-3,5 power limit shall be 600 W by task 1 of the group (gpu_power) and 500 W by task 2 of the group (gpu_power)";
    for member in &failed.members {
        assert_eq!(member.status, OpStatus::Failed { kind: FailureKind::Invalid, message: text.to_owned() });
    }
}

#[test]
fn impossible_wishes_say_why() {
    let mut node = Node::new(Sim::new(vec![SimGpu { has_ecc: false, ..SimGpu::new(0, true) }]));
    for (wish, expected) in [
        (json!({"gpu_ecc": {"mode": "enabled"}}), "GPU 0 (NVIDIA H100 80GB HBM3) has no ECC mode"),
        (
            json!({"gpu_power": {"limit_watts": 900}}),
            "GPU 0 takes a power limit from 200 W to 700 W, not 900 W",
        ),
        (
            json!({"gpu_power": {"limit_watts": 600, "gpus": [5]}}),
            "`gpus: 5` names no GPU of this node; it has GPU 0 (NVIDIA H100 80GB HBM3)",
        ),
        (
            json!({"gpu_clocks": {"memory_mhz": 1593}}),
            "GPU 0 (Hopper) cannot lock its memory clock while the driver runs; leave `memory_mhz` out (`gpufleet doc gpu_clocks` says what \
             to do instead)",
        ),
        (
            json!({"gpu_mig": {"mode": "enabled", "layout": {"4g.40gb": 2}}}),
            "GPU 0: 2x 4g.40gb do not fit together; 1x 4g.40gb would",
        ),
        (
            json!({"gpu_mps": {"state": "started", "default_pinned_memory_limit": "lots"}}),
            "`lots` is no memory limit; write it as 8G or 512M",
        ),
    ] {
        let outcome = node.predict(&group(std::slice::from_ref(&wish)));
        assert_eq!(
            outcome.status,
            OpStatus::Failed { kind: FailureKind::Invalid, message: expected.to_owned() },
            "{wish}"
        );
    }
    let off = node.predict(&group(&[json!({"gpu_ecc": {"mode": "disabled"}})]));
    assert!(matches!(off.status, OpStatus::NotApplicable { .. }), "{off:?}");
}

#[test]
fn a_gpu_whose_architecture_cannot_be_read_is_not_taken_for_the_newest() {
    let unread = |index| SimGpu { architecture: Some(u32::MAX), nvlinks: Ok(18), ..SimGpu::new(index, true) };
    let mut node = Node::new(Sim::new(vec![unread(0), unread(1)]));
    for wish in [
        json!({"gpu_mig": {"mode": "enabled", "gpus": [0]}}),
        json!({"gpu_clocks": {"memory_mhz": 1593, "gpus": [0]}}),
        json!({"gpu_clocks": {"reset": true, "gpus": [0]}}),
    ] {
        let outcome = node.apply(&group(std::slice::from_ref(&wish)));
        let OpStatus::Unknown { reason } = &outcome.members[0].status else { panic!("{wish}: {outcome:?}") };
        assert!(reason.contains("the architecture of GPU 0 cannot be read"), "{reason}");
    }
    assert_eq!(node.effects(), Vec::<String>::new());
    // What does not depend on it is set.
    let power = node.predict(&group(&[json!({"gpu_power": {"limit_watts": 600, "gpus": [0]}})]));
    assert_eq!(power.status, OpStatus::Changed, "{power:?}");
    // A reset may take its peers along, so that they have to be free too.
    assert_eq!(
        node.apply(&group(&[json!({"gpu_ecc": {"mode": "disabled", "gpus": [0]}})])).status,
        OpStatus::Changed
    );
    let resets: Vec<String> =
        node.effects().into_iter().filter(|effect| effect.starts_with("reset")).collect();
    assert_eq!(resets, ["reset 0000:1b:00.0,0000:1c:00.0"]);
}

#[test]
fn compute_mode_and_mig_exclude_each_other_across_tasks() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    let wish = group(&[
        json!({"gpu_compute_mode": {"mode": "exclusive_process"}}),
        json!({"gpu_mig": {"mode": "enabled"}}),
    ]);
    let failed = node.predict(&wish);
    assert!(
        matches!(&failed.members[0].status, OpStatus::Failed { message, .. } if message.contains("MIG mode")),
        "{failed:?}"
    );
}

#[test]
fn clocks_are_snapped_with_a_warning_and_locked_only_once() {
    let mut node = Node::new(Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]));
    let wish = group(&[json!({"gpu_clocks": {"graphics_mhz": [1207, 9999]}})]);
    let done = node.apply(&wish);
    assert_eq!(lines(&done), ["GPU 0 graphics clock: ? -> 1200-1980 MHz [live]"]);
    assert_eq!(
        done.warnings,
        ["GPU 0: the graphics clock 1207-9999 MHz is not supported exactly; 1200-1980 MHz is used"]
    );
    assert_eq!(node.machine.get().gpus[0].graphics, Some((1200, 1980)));
    node.effects();
    node.new_session();
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
    assert_eq!(node.effects(), Vec::<String>::new());
    // A record of an earlier boot does not count.
    node.machine.get().boot += 1;
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
}

#[test]
fn a_locked_clock_is_known_only_as_long_as_persistence_keeps_it() {
    let clocks = group(&[json!({"gpu_clocks": {"graphics_mhz": 1200}})]);
    let persistence = |mode: &str| group(&[json!({"gpu_persistence": {"mode": mode}})]);
    let mut node = Node::new(Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]));
    assert_eq!(node.apply(&clocks).status, OpStatus::Changed);
    for mode in ["disabled", "legacy"] {
        assert_eq!(node.apply(&persistence(mode)).status, OpStatus::Changed, "{mode}");
    }
    assert_eq!(node.apply(&clocks).status, OpStatus::Changed, "the driver forgot it in between");
}

#[test]
fn values_without_persistence_come_with_a_warning() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    let done = node.apply(&group(&[json!({"gpu_power": {"limit_watts": 500}})]));
    assert_eq!(done.status, OpStatus::Changed);
    assert_eq!(
        done.warnings,
        [
            "GPU 0: persistence is off, so the driver forgets the power limit when its last client ends; declare `gpu_persistence: {mode: daemon}` as well"
        ]
    );
}

#[test]
fn legacy_persistence_replaces_the_daemon() {
    let sim = Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]);
    let mut node = Node::new(sim);
    node.machine.get().persistenced.active = true;
    node.machine.get().persistenced.enabled = true;
    let wish = group(&[json!({"gpu_persistence": {"mode": "legacy"}})]);
    let done = node.apply(&wish);
    assert_eq!(lines(&done), ["nvidia-persistenced: active, enabled -> inactive, disabled [live]"]);
    assert!(node.machine.get().gpus[0].persistence);
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
    let missing = Node::new(Sim { persistenced: Default::default(), ..Sim::new(vec![SimGpu::new(0, true)]) })
        .predict(&group(&[json!({"gpu_persistence": {"mode": "daemon"}})]));
    assert!(matches!(missing.status, OpStatus::Failed { kind: FailureKind::Invalid, .. }));
}

#[test]
fn mps_is_started_with_its_limits_mended_when_broken_and_stopped() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    let start = group(&[json!({"gpu_mps": {"state": "started", "default_active_thread_percentage": 50}})]);
    let done = node.apply(&start);
    assert_eq!(
        lines(&done),
        [
            "MPS control daemon: stopped -> started [live]",
            "MPS default active thread percentage: ? -> 50 % [live]",
        ]
    );
    assert_eq!(node.apply(&start).status, OpStatus::Ok);
    {
        let mut sim = node.machine.get();
        (sim.mps.running, sim.mps.unit.active, sim.mps.stale) = (None, false, true);
    }
    assert_eq!(lines(&node.apply(&start))[0], "MPS control daemon: broken (stale socket) -> started [live]");
    let stop = group(&[json!({"gpu_mps": {"state": "stopped"}})]);
    assert_eq!(lines(&node.apply(&stop)), ["MPS control daemon: started -> stopped [clients]"]);
    assert_eq!(node.apply(&stop).status, OpStatus::Ok);
}

#[test]
fn a_lost_gpu_makes_the_wish_unknown_and_the_node_is_left_alone() {
    let mut node =
        Node::new(Sim::new(vec![SimGpu::new(0, true), SimGpu { lost: true, ..SimGpu::new(1, true) }]));
    let all = node.apply(&group(&[json!({"gpu_power": {"limit_watts": 500}})]));
    assert!(
        matches!(&all.status, OpStatus::Unknown { reason } if reason.contains("GPU 1 cannot be read")),
        "{all:?}"
    );
    assert_eq!(node.effects(), Vec::<String>::new());
    let one = node.apply(&group(&[json!({"gpu_power": {"limit_watts": 500, "gpus": [0]}})]));
    assert_eq!(one.status, OpStatus::Changed);
}

#[test]
fn every_way_nvml_can_be_away_has_its_words() {
    let outcome = |error: NvmlError| {
        Node::new(Sim { broken: Some(error), ..Sim::new(vec![SimGpu::new(0, true)]) }).apply(&bringup())
    };
    let hung = outcome(NvmlError::Hung { detail: "NVML did not answer in 10 s (worker killed)".to_owned() });
    assert_eq!(
        hung.status,
        OpStatus::Unknown { reason: "NVML did not answer in 10 s (worker killed)".to_owned() }
    );
    assert_eq!(hung.members.len(), 6);
    // The simulated node has the module loaded: its GPUs have a state that cannot be read.
    let none = outcome(NvmlError::NoDriver { detail: "not found".to_owned() });
    assert!(
        matches!(none.status, OpStatus::Unknown { reason } if reason.starts_with("the NVIDIA driver is loaded, and its library"))
    );
    let own = outcome(NvmlError::KernelsOwn { names: vec!["nova_core"] });
    assert!(
        matches!(&own.status, OpStatus::Failed { message, .. } if message.contains("(nova_core) has the GPUs")
            && message.contains("`kernel_blacklist: {name: nova_core}`, and reboot")),
        "{own:?}"
    );
    let mixed = outcome(NvmlError::VersionMismatch { detail: "x".to_owned() });
    assert!(
        matches!(mixed.status, OpStatus::Failed { message, .. } if message.contains("580.159.04 is loaded") && message.contains("reboot"))
    );
}

#[test]
fn nvlink_peers_of_an_ampere_board_are_reset_together_without_the_fabric_manager() {
    let (alone, together) = ("reset 0000:1b:00.0", "reset 0000:1b:00.0,0000:1c:00.0");
    // Without switches the links are direct, and there is nothing to manage.
    for (fabric_manager, switches, expected) in
        [(true, 6, alone), (false, 6, together), (false, 0, alone), (true, 0, alone)]
    {
        let board = vec![
            SimGpu { nvlinks: Ok(12), ..without_ecc(false) },
            SimGpu { nvlinks: Ok(12), ..SimGpu::new(1, false) },
        ];
        let mut node = Node::new(Sim { fabric_manager, switches, ..Sim::new(board) });
        node.apply(&group(&[json!({"gpu_ecc": {"mode": "enabled", "gpus": [0]}})]));
        let effects = node.effects();
        assert!(effects.iter().any(|effect| effect == expected), "{fabric_manager} {switches}: {effects:?}");
    }
}

/// Returns a node whose run changes everything, to test the failure of each effect.
fn eventful(hopper: bool) -> Sim {
    let first = SimGpu { persistence: true, ..without_ecc(hopper) };
    let second = SimGpu {
        index: 1,
        persistence: true,
        ..SimGpu::new(1, hopper).with_instances(&[(19, 0, 1), (14, 2, 2), (9, 4, 4)])
    };
    Sim {
        persistenced: super::state::Unit { exists: true, active: true, enabled: true },
        ..Sim::new(vec![first, second])
    }
}

#[test]
fn whichever_effect_fails_services_run_again_and_layouts_are_whole() {
    let wish = group(&[
        json!({"gpu_ecc": {"mode": "enabled"}}),
        json!({"gpu_mig": {"mode": "enabled", "layout": {"4g.40gb": 1, "3g.40gb": 1}}}),
        json!({"gpu_power": {"limit_percent": 80}}),
        json!({"gpu_clocks": {"graphics_mhz": 1200}}),
        json!({"gpu_mps": {"state": "started"}}),
    ]);
    for hopper in [true, false] {
        let mut clean = Node::new(eventful(hopper));
        let done = clean.apply(&wish);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        let count = clean.effects().len();
        assert!(count > 20);
        for fuse in 0..count {
            let mut node = Node::new(Sim { fuse: Some(fuse), ..eventful(hopper) });
            let outcome = node.apply(&wish);
            let effects = node.effects();
            // Failures of units and CDI are warnings, and persistence is tried again at the end.
            let second =
                effects.iter().filter(|effect| effect.as_str() == "GPU-0 Persistence(true)").count() > 0;
            let told =
                matches!(outcome.status, OpStatus::Changed) && (second || !outcome.warnings.is_empty());
            assert!(told || matches!(outcome.status, OpStatus::Failed { .. }), "{fuse}: {outcome:?}");
            {
                let sim = node.machine.get();
                let dcgm = sim.units["nvidia-dcgm.service"];
                let warned = matches!(&outcome.status, OpStatus::Failed { message, .. } if message.contains("nvidia-dcgm.service could not be started"));
                assert!(dcgm || warned, "{fuse}: {effects:#?}");
                let kept = sim.gpus.iter().all(|gpu| gpu.persistence);
                let told =
                    outcome.warnings.iter().any(|warning| warning.contains("could not be switched on again"));
                assert!(kept || told, "{fuse}: {effects:#?}");
                let layout = sim.gpus[1].layout();
                let new = ["4g.40gb@0", "3g.40gb@4"];
                let old = ["1g.10gb@0", "2g.20gb@2", "3g.40gb@4"];
                assert!(
                    layout == new || layout == old || !hopper && layout.is_empty(),
                    "{fuse}: {layout:?} {effects:#?}"
                );
            }
            // The next run succeeds, wherever this one stopped.
            node.new_session();
            let again = node.apply(&wish);
            assert!(matches!(again.status, OpStatus::Changed | OpStatus::Ok), "{fuse}: {again:?}");
            assert!(node.machine.get().units["nvidia-dcgm.service"]);
            assert_eq!(node.apply(&wish).status, OpStatus::Ok);
        }
    }
}

#[test]
fn placements_are_part_of_the_wish() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true).with_instances(&[(14, 0, 2)])]));
    let done = node.apply(&group(&[
        json!({"gpu_mig": {"mode": "enabled", "layout": [{"profile": "2g.20gb", "start": 4}]}}),
    ]));
    assert_eq!(lines(&done), ["GPU 0 MIG layout: 2g.20gb at 0 -> 2g.20gb at 4 [clients]"]);
    assert_eq!(node.machine.get().gpus[0].instances[0].placement, Placement { start: 4, size: 2 });
}

#[test]
fn facts_and_idleness_come_from_one_reading() {
    let mut node = Node::new(Sim::new(vec![
        SimGpu::new(0, true).with_instances(&[(9, 4, 4)]),
        SimGpu { lost: true, ..SimGpu::new(1, true) },
    ]));
    let facts = node.gpus.facts(&Deadline::after(Duration::from_secs(5)));
    assert_eq!((facts.pci_count, facts.gpus.len(), facts.cuda_version.as_deref()), (2, 2, Some("13.0")));
    assert_eq!(facts.gpus[0].mig_layout[0].profile, "3g.40gb");
    assert_eq!(
        facts.gpus[1].errors,
        ["GPU 1 cannot be read: the GPU has fallen off the bus or is not accessible (NVML code 15)"]
    );
    let idle = node.gpus.idle(&Default::default(), &Deadline::after(Duration::from_secs(5)));
    assert_eq!(idle.verdict, IdleVerdict::Idle);
    node.machine.get().gpus[0].client = Some(9);
    assert_eq!(
        node.gpus.idle(&Default::default(), &Deadline::after(Duration::from_secs(5))).verdict,
        IdleVerdict::Busy
    );
}
