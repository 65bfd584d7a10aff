//! Accounting, resets for their own sake, and confidential computing.

use gpufleet_protocol::nvml::{Code, RemappedRows};

use super::*;
use crate::gpu::{persistenced::Repair, state::Unit};

fn accounting(mode: &str) -> serde_json::Value {
    json!({"gpu_accounting": {"mode": mode}})
}

#[test]
fn accounting_is_set_kept_and_set_again_after_what_loses_it() {
    let mut node = Node::new(Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]));
    let on = group(&[accounting("enabled")]);
    let planned = node.predict(&on);
    assert_eq!(
        lines(&planned),
        ["GPU 0 accounting: disabled -> enabled [live] (the driver remembers the last 4000 processes)"]
    );
    let done = node.apply(&on);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
    node.effects();
    assert_eq!((node.apply(&on).status, node.effects()), (OpStatus::Ok, Vec::new()));
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(node.apply(&on).status, OpStatus::Changed);
    assert_eq!(node.apply(&group(&[accounting("off")])).status, OpStatus::Changed);
    assert!(!node.machine.get().gpus[0].accounting);
}

#[test]
fn accounting_and_mig_exclude_each_other() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    let both = group(&[accounting("enabled"), json!({"gpu_mig": {"mode": "enabled"}})]);
    let failed = node.apply(&both);
    let OpStatus::Failed { message, .. } = &failed.members[0].status else { panic!("{failed:?}") };
    assert_eq!(message, "GPU 0 is in MIG mode, where the driver forces accounting off");
    assert_eq!(node.effects(), Vec::<String>::new());
    let off = group(&[accounting("disabled"), json!({"gpu_mig": {"mode": "enabled"}})]);
    assert_eq!(node.apply(&off).status, OpStatus::Changed);
}

#[test]
fn accounting_without_persistence_warns() {
    let mut sim = Sim::new(vec![SimGpu::new(0, true)]);
    sim.units.clear();
    let planned = Node::new(sim).predict(&group(&[accounting("enabled")]));
    assert!(
        planned.warnings.iter().any(|warning| warning.contains("forgets the accounting mode")),
        "{planned:?}"
    );
}

#[test]
fn a_daemon_that_cannot_start_is_named_before_anything_is_done() {
    let fault =
        "the unit nvidia-persistenced.service starts /usr/bin/nvidia-persistenced, which is not there";
    let sim = || Sim { persistenced_fault: Some(fault.to_owned()), ..Sim::new(vec![SimGpu::new(0, true)]) };
    let wish =
        group(&[json!({"gpu_power": {"limit_watts": 600}}), json!({"gpu_persistence": {"mode": "daemon"}})]);
    let mut node = Node::new(sim());
    for outcome in [node.predict(&wish), node.apply(&wish)] {
        assert!(matches!(&outcome.members[1].status, OpStatus::Failed { message, .. } if message == fault));
        assert!(matches!(outcome.members[0].status, OpStatus::Failed { .. }), "{outcome:?}");
    }
    assert_eq!(node.effects(), Vec::<String>::new());
    let legacy = group(&[json!({"gpu_persistence": {"mode": "legacy"}})]);
    assert_eq!(Node::new(sim()).apply(&legacy).status, OpStatus::Changed);
}

#[test]
fn what_keeps_the_daemon_from_starting_is_repaired_as_planned() {
    let sim = Sim {
        persistenced_repairs: vec![
            Repair::Folder { user: "nvidia-persistenced".to_owned() },
            Repair::Leftover { path: "/run/nvidia-persistenced/socket".to_owned() },
            Repair::Failures,
        ],
        ..Sim::new(vec![SimGpu::new(0, true)])
    };
    let mut node = Node::new(sim);
    let wish = group(&[json!({"gpu_persistence": {"mode": "daemon"}})]);
    let planned = node.predict(&wish);
    assert_eq!(
        lines(&planned),
        [
            "/etc/systemd/system/nvidia-persistenced.service.d/50-gpufleet.conf: ? -> \
             RuntimeDirectory=nvidia-persistenced [live] (nvidia-persistenced cannot write /run/nvidia-persistenced)",
            "/run/nvidia-persistenced/socket: file -> absent [live] (left by a daemon that does not run any more)",
            "nvidia-persistenced: inactive, disabled -> active, enabled [live] (it failed before, which systemd is \
             told to forget)",
            "GPU 0 persistence: disabled -> enabled [live]",
        ]
    );
    node.gpus.forget_predictions();
    let done = node.apply(&wish);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
    assert_eq!(node.effects().len(), 5, "three repairs, enable, start");
    assert_eq!((node.apply(&wish).status, node.effects()), (OpStatus::Ok, Vec::new()));
    assert!(node.machine.get().gpus[0].persistence);
}

#[test]
fn errors_that_a_reset_clears_from_the_counters_are_kept_in_its_result() {
    let gpu = SimGpu { uncorrected: 3, corrected: 17, recovery_action: Ok(1), ..SimGpu::new(0, true) };
    let mut node = Node::new(Sim::new(vec![gpu]));
    let done = node.apply(&reset("required"));
    assert_eq!(
        done.warnings,
        [
            "GPU 0 counted 3 uncorrected and 17 corrected memory errors since the driver was loaded, which the reset \
             clears from its counters"
        ]
    );
    assert_eq!(node.machine.get().gpus[0].uncorrected, 0);
}

#[test]
fn errors_that_a_reset_or_a_reboot_clears_are_told_before_the_act_and_once() {
    let gpu = || SimGpu { uncorrected: 3, corrected: 17, ..SimGpu::new(0, true) };
    let told = |by: &str| {
        format!(
            "GPU 0 counted 3 uncorrected and 17 corrected memory errors since the driver was loaded, which the {by} clears from its \
             counters"
        )
    };
    let off = group(&[json!({"gpu_ecc": {"mode": "disabled"}})]);
    let mut node = Node::new(Sim::new(vec![gpu()]));
    assert_eq!(node.predict(&off).warnings, [told("reset")]);
    node.gpus.forget_predictions();
    let asked = node.run(&off, Mode::Apply, Disruption::Live);
    let needs = OpStatus::NeedsPermit { class: Disruption::GpuReset };
    assert_eq!((asked.status, asked.warnings), (needs, vec![told("reset")]), "the permit has it");
    assert_eq!(node.record.get("gpu/counted-before").unwrap(), None, "nothing was cleared yet");
    assert_eq!(node.apply(&off).warnings, [told("reset")]);
    let kept = |node: &Node| node.record.get("gpu/counted-before").unwrap().unwrap();
    let entry = &kept(&node)[0];
    assert_eq!(
        (&entry["before"], &entry["gpu"], &entry["uncorrected"], &entry["corrected"]),
        (&json!("reset"), &json!(0), &json!(3), &json!(17))
    );
    assert_eq!(
        node.predict(&group(&[json!({"gpu_ecc": {"mode": "enabled"}})])).warnings,
        Vec::<String>::new()
    );
    let mut node = Node::new(Sim::new(vec![SimGpu { resettable: false, ..gpu() }]));
    assert_eq!(node.predict(&off).warnings, [told("reboot")]);
    let mut node = Node::new(Sim::new(vec![gpu()]));
    for (taker, by) in [(Taker::Reload, "reload of the driver"), (Taker::Reboot, "reboot")] {
        assert_eq!(node.lost_by(taker), [told(by)]);
        assert_eq!(node.gpus.counted_before(taker, &Deadline::after(Duration::from_secs(5))), [told(by)]);
        assert_eq!(kept(&node).as_array().unwrap().last().unwrap()["before"], json!(by));
    }
}

#[test]
fn a_node_keeps_the_latest_counts_only() {
    let gpus = (0..8).map(|index| SimGpu { uncorrected: 3, ..SimGpu::new(index, true) }).collect();
    let mut node = Node::new(Sim::new(gpus));
    for _ in 0..20 {
        let told = node.gpus.counted_before(Taker::Reboot, &Deadline::after(Duration::from_secs(5)));
        assert_eq!(told.len(), 8);
    }
    let kept = node.record.get("gpu/counted-before").unwrap().unwrap();
    assert_eq!(kept.as_array().unwrap().len(), 128);
}

#[test]
fn counters_that_cannot_be_read_before_a_reset_are_told_and_missing_ones_are_not() {
    let told = "GPU 0: the memory errors that it counted since the driver was loaded cannot be read (unknown error (NVML code \
                999)), and the reset clears its counters";
    for (code, expected) in [(Code::UNKNOWN, vec![told.to_owned()]), (Code::NOT_SUPPORTED, Vec::new())] {
        let gpu = SimGpu { counters_fail: Some(code), recovery_action: Ok(1), ..SimGpu::new(0, true) };
        let mut node = Node::new(Sim::new(vec![gpu]));
        assert_eq!(node.apply(&reset("required")).warnings, expected);
    }
}

#[test]
fn a_clock_is_not_passed_on_silently_where_the_supported_ones_cannot_be_read() {
    let gpu = SimGpu { clocks_fail: Some(Code::UNKNOWN), persistence: true, ..SimGpu::new(0, true) };
    let mut node = Node::new(Sim::new(vec![gpu]));
    let wish = group(&[json!({"gpu_clocks": {"graphics_mhz": [1207, 1980]}})]);
    let told = "GPU 0: which graphics clocks it supports cannot be read (unknown error (NVML code 999)), so that 1207-1980 MHz \
                is set as declared, and the GPU may run at another";
    assert_eq!(node.predict(&wish).warnings, [told]);
    node.gpus.forget_predictions();
    let done = node.apply(&wish);
    assert_eq!((done.status, done.warnings), (OpStatus::Changed, vec![told.to_owned()]));
    assert_eq!(node.machine.get().gpus[0].graphics, Some((1207, 1980)));
}

fn reset(when: &str) -> GpuGroup {
    group(&[json!({"gpu_reset": {"when": when}})])
}

fn resets(node: &Node) -> usize {
    node.effects().iter().filter(|effect| effect.starts_with("reset")).count()
}

#[test]
fn only_gpus_that_need_it_are_reset() {
    let rows = Ok(RemappedRows { pending: true, ..RemappedRows::default() });
    let mut node = Node::new(Sim::new(vec![
        SimGpu { recovery_action: Ok(1), persistence: true, ..SimGpu::new(0, true) },
        SimGpu { rows, ..SimGpu::new(1, true) },
        SimGpu::new(2, true),
    ]));
    let planned = node.predict(&reset("required"));
    assert_eq!(
        lines(&planned),
        [
            "GPU 0 reset: needs a reset, as the driver says -> done [gpu-reset]",
            "GPU 1 reset: needs a reset to replace memory rows -> done [gpu-reset]",
        ]
    );
    let refused = node.run(&reset("required"), Mode::Apply, Disruption::Clients);
    assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::GpuReset });
    assert_eq!(resets(&node), 0);
    let done = node.apply(&reset("required"));
    assert_eq!((lines(&done), done.activated), (lines(&planned), Some(Disruption::GpuReset)), "{done:?}");
    assert_eq!(resets(&node), 1, "both at once");
    assert!(node.machine.get().gpus[0].persistence, "what was switched off for it is on again");
    assert_eq!((node.apply(&reset("required")).status, resets(&node)), (OpStatus::Ok, 0));
}

#[test]
fn a_reset_for_its_own_sake_is_made_once_in_a_run() {
    let mut node = Node::new(Sim::new(vec![SimGpu::new(0, true), SimGpu::new(1, true)]));
    let wish = group(&[
        json!({"gpu_reset": {"when": "always", "gpus": [1]}}),
        json!({"gpu_power": {"limit_watts": 600}}),
        json!({"gpu_persistence": {"mode": "daemon"}}),
    ]);
    let planned = node.predict(&wish);
    node.new_session();
    let done = node.apply(&wish);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)), "{done:?}");
    assert!(lines(&done).contains(&"GPU 1 reset: is to be reset -> done [gpu-reset]".to_owned()), "{done:?}");
    assert_eq!(resets(&node), 1);
    assert_eq!((node.apply(&wish).status, resets(&node)), (OpStatus::Changed, 1), "once in every run");
}

#[test]
fn what_a_reset_does_not_help_is_said() {
    let sim = |gpu: SimGpu| Node::new(Sim::new(vec![gpu]));
    let mut node = sim(SimGpu { recovery_action: Ok(2), ..SimGpu::new(0, true) });
    let done = node.apply(&reset("required"));
    let asks =
        |message: &str| message.contains("asks for a reboot of the node, which a reset of the GPU is not");
    assert!(matches!(&done.status, OpStatus::Failed { message, .. } if asks(message)), "{done:?}");
    assert_eq!(resets(&node), 0);

    let mut node = sim(SimGpu { recovery_action: Err(Code::UNKNOWN), ..SimGpu::new(0, true) });
    assert!(matches!(node.apply(&reset("required")).status, OpStatus::Unknown { .. }));
    let absent = SimGpu {
        recovery_action: Err(Code::FUNCTION_NOT_FOUND),
        rows: Err(Code::NOT_SUPPORTED),
        ..SimGpu::new(0, true)
    };
    assert!(matches!(sim(absent).apply(&reset("required")).status, OpStatus::NotApplicable { .. }));

    let mut node = sim(SimGpu { resettable: false, recovery_action: Ok(1), ..SimGpu::new(0, true) });
    let done = node.apply(&reset("required"));
    assert_eq!(done.awaiting[0].reason, "GPU 0 needs a reset, as the driver says", "{done:?}");
    let failed = node.apply(&reset("always"));
    assert!(
        matches!(&failed.status, OpStatus::Failed { message, .. } if message.contains("cannot be reset on this machine"))
    );

    let mut node = Node::new(Sim { no_reset: true, ..Sim::new(vec![SimGpu::new(0, true)]) });
    let failed = node.apply(&reset("always"));
    assert!(
        matches!(&failed.status, OpStatus::Failed { message, .. } if message.contains("this machine cannot")),
        "{failed:?}"
    );
    assert_eq!((&failed.changes, &failed.awaiting), (&Vec::new(), &Vec::new()), "no reason for a reboot");

    let mut node = sim(SimGpu { client: Some(41), recovery_action: Ok(4), ..SimGpu::new(0, true) });
    let failed = node.apply(&reset("required"));
    let OpStatus::Failed { kind: FailureKind::Busy, message } = &failed.status else { panic!("{failed:?}") };
    assert!(message.contains("process 41 (train, user ana) holds GPU 0"), "{message}");
}

#[test]
fn peers_on_nvlink_are_reset_together() {
    let gpu = |index| SimGpu { nvlinks: Ok(4), architecture: Some(5), ..SimGpu::new(index, false) };
    let mut sim = Sim::new(vec![SimGpu { recovery_action: Ok(1), ..gpu(0) }, gpu(1)]);
    sim.units.clear();
    let mut node = Node::new(sim);
    assert_eq!(node.apply(&reset("required")).status, OpStatus::Changed);
    let effects = node.effects();
    assert!(effects.iter().any(|effect| effect == "reset 0000:1b:00.0,0000:1c:00.0"), "{effects:?}");
}

#[test]
fn a_gpu_whose_nvlinks_cannot_be_read_is_reset_with_those_that_may_be_its_peers_and_that_is_told() {
    let told = "the NVLinks of GPU 1 cannot be read (unknown error (NVML code 999)), so that it is reset with those that may \
                be its peers";
    for (nvlinks, together) in [(Err(Code::UNKNOWN), true), (Err(Code::NOT_SUPPORTED), false), (Ok(0), false)]
    {
        let gpu = |index| SimGpu { nvlinks: Ok(4), architecture: Some(5), ..SimGpu::new(index, false) };
        let mut sim =
            Sim::new(vec![SimGpu { recovery_action: Ok(1), ..gpu(0) }, SimGpu { nvlinks, ..gpu(1) }]);
        sim.units.clear();
        let mut node = Node::new(sim);
        let planned = node.predict(&reset("required"));
        assert_eq!(planned.warnings, if together { vec![told.to_owned()] } else { Vec::new() });
        node.gpus.forget_predictions();
        assert_eq!(node.apply(&reset("required")).status, OpStatus::Changed);
        let expected = if together { "reset 0000:1b:00.0,0000:1c:00.0" } else { "reset 0000:1b:00.0" };
        let effects = node.effects();
        assert!(effects.iter().any(|effect| effect == expected), "{nvlinks:?}: {effects:?}");
    }
}

fn confidential(task: serde_json::Value) -> GpuGroup {
    group(&[json!({"gpu_confidential_compute": task})])
}

#[test]
fn confidential_gpus_are_made_ready_again_after_every_boot() {
    let mut node =
        Node::new(Sim { confidential: Some((true, false)), ..Sim::new(vec![SimGpu::new(0, true)]) });
    let wish = confidential(json!({"mode": "enabled", "ready": true}));
    let planned = node.predict(&wish);
    assert_eq!(lines(&planned), ["confidential GPUs: refuse work -> accept work [live]"]);
    let done = node.apply(&wish);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(node.apply(&wish).status, OpStatus::Changed);
    let closed = node.run(&confidential(json!({"ready": false})), Mode::Apply, Disruption::Live);
    assert_eq!(closed.status, OpStatus::NeedsPermit { class: Disruption::Clients });
}

#[test]
fn what_confidential_computing_a_node_has_is_told_apart() {
    let ready = confidential(json!({"ready": true}));
    let on = confidential(json!({"mode": "enabled"}));
    let mut none = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    assert!(matches!(none.apply(&ready).status, OpStatus::NotApplicable { .. }));
    assert!(matches!(none.apply(&on).status, OpStatus::Failed { .. }));
    let mut off =
        Node::new(Sim { confidential: Some((false, false)), ..Sim::new(vec![SimGpu::new(0, true)]) });
    let outcome = off.apply(&ready);
    assert!(
        matches!(&outcome.status, OpStatus::NotApplicable { reason } if reason.contains("is disabled on this node"))
    );
    let failed = off.apply(&on);
    let OpStatus::Failed { message, .. } = &failed.status else { panic!("{failed:?}") };
    assert!(
        message.starts_with("confidential computing is disabled and not enabled, which no running driver"),
        "{message}"
    );
    assert_eq!(off.apply(&confidential(json!({"mode": "disabled"}))).status, OpStatus::Ok);
    assert_eq!(off.effects(), Vec::<String>::new());
}

#[test]
fn a_module_has_a_power_limit_of_its_own() {
    let gpu = |index, module_mw| SimGpu { module_mw, persistence: true, ..SimGpu::new(index, true) };
    let mut node = Node::new(Sim::new(vec![gpu(0, Some(1_000_000)), gpu(1, None)]));
    let wish = group(&[
        json!({"gpu_power": {"limit_watts": 600}}),
        json!({"gpu_power": {"limit_percent": 80, "scope": "module"}}),
    ]);
    let planned = node.predict(&wish);
    assert_eq!(
        lines(&planned),
        [
            "GPU 0 power limit: 700 W -> 600 W [live]",
            "GPU 1 power limit: 700 W -> 600 W [live]",
            "GPU 0 module power limit: 1000 W -> 800 W [live]",
        ]
    );
    node.gpus.forget_predictions();
    let done = node.apply(&wish);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
    assert_eq!(node.machine.get().gpus[0].module_mw, Some(800_000));
    node.effects();
    assert_eq!((node.apply(&wish).status, node.effects()), (OpStatus::Ok, Vec::new()));
    // A reset takes it, and the plan says so.
    let named = node.predict(&reset("always"));
    assert!(
        named.warnings.iter().any(|text| text.contains("the power limit of its module of 800 W")),
        "{named:?}"
    );
    let only = group(&[json!({"gpu_power": {"limit_watts": 500, "scope": "module", "gpus": 1}})]);
    assert_eq!(
        node.apply(&only).members[0].status,
        OpStatus::NotApplicable {
            reason: "GPU 1 (NVIDIA H100 80GB HBM3) has no power limit of a module".to_owned()
        }
    );
    let high =
        node.apply(&group(&[json!({"gpu_power": {"limit_watts": 1200, "scope": "module", "gpus": 0}})]));
    let OpStatus::Failed { message, .. } = &high.members[0].status else { panic!("{high:?}") };
    assert_eq!(message, "the module of GPU 0 takes a power limit from 400 W to 1000 W, not 1200 W");
}

fn clocks(low: u32, high: u32) -> GpuGroup {
    group(&[json!({"gpu_clocks": {"graphics_mhz": [low, high]}})])
}

#[test]
fn a_clock_that_no_gpu_has_is_planned_as_the_one_that_it_will_run() {
    let mut node = Node::new(Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]));
    let wish = clocks(400, 1234);
    let planned = node.predict(&wish);
    assert_eq!(lines(&planned), ["GPU 0 graphics clock: ? -> 405-1230 MHz [live]"]);
    assert_eq!(
        planned.warnings,
        ["GPU 0: the graphics clock 400-1234 MHz is not supported exactly; 405-1230 MHz is used"]
    );
    node.gpus.forget_predictions();
    let done = node.apply(&wish);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)));
    assert_eq!(node.machine.get().gpus[0].graphics, Some((405, 1230)));
    node.effects();
    // The same clock, however it is said, is no other clock.
    for again in [wish, clocks(405, 1230), clocks(398, 1236)] {
        assert_eq!((node.apply(&again).status, node.effects()), (OpStatus::Ok, Vec::new()));
    }
}

#[test]
fn a_clock_that_does_not_obey_its_lock_is_told_and_locked_again() {
    let mut sim = Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]);
    sim.lies = Some(|setting| format!("{setting:?}").starts_with("LockGraphics"));
    let mut node = Node::new(sim);
    let failed = node.apply(&clocks(405, 1230));
    let OpStatus::Failed { message, .. } = &failed.status else { panic!("{failed:?}") };
    assert!(message.contains("locked at 1230 MHz at most and reads 1410 MHz"), "{message}");
    assert_eq!(failed.changes, []);
    node.machine.get().lies = None;
    assert_eq!(node.apply(&clocks(405, 1230)).status, OpStatus::Changed);
}

/// A recorded lock counts only while nothing can have taken it: what broke the chain makes it unknown, and a run locks again.
#[test]
fn a_recorded_lock_is_worth_nothing_once_its_chain_is_broken() {
    type Break = fn(&mut Sim);
    let broken: [(&str, Break); 5] = [
        ("the daemon restarted", |sim| sim.daemon_starts += 1),
        ("persistence was off for a moment", |sim| {
            sim.gpus[0].forget();
            sim.gpus[0].energy_mj = 500;
        }),
        ("somebody reset the GPU", |sim| sim.gpus[0].reset()),
        ("persistence is off", |sim| sim.gpus[0].persistence = false),
        ("the daemon is gone", |sim| sim.persistenced.active = false),
    ];
    for (what, break_it) in broken {
        let mut sim = Sim::new(vec![SimGpu { persistence: true, ..SimGpu::new(0, true) }]);
        sim.persistenced = Unit { exists: true, active: true, enabled: true };
        let mut node = Node::new(sim);
        assert_eq!(node.apply(&clocks(405, 1230)).status, OpStatus::Changed);
        node.machine.get().gpus[0].energy_mj += 7;
        assert_eq!(node.apply(&clocks(405, 1230)).status, OpStatus::Ok, "{what}");
        break_it(&mut node.machine.get());
        node.new_session();
        let seen = node.predict(&clocks(405, 1230));
        assert!(lines(&seen)[0].starts_with("GPU 0 graphics clock: ? -> 405-1230 MHz"), "{what}: {seen:?}");
    }
}

/// Without persistence the driver has forgotten a lock when the run looks again, whatever turns persistence on afterwards.
#[test]
fn a_lock_without_persistence_is_not_recorded() {
    let mut sim = Sim::new(vec![SimGpu { persistence: false, ..SimGpu::new(0, true) }]);
    sim.persistenced = Unit { exists: true, active: false, enabled: false };
    let mut node = Node::new(sim);
    let done = node.apply(&clocks(405, 1230));
    assert!(
        done.changes[0].note.as_ref().is_some_and(|note| note.contains("persistence is off")),
        "{done:?}"
    );
    node.new_session();
    node.apply(&group(&[json!({"gpu_persistence": {"mode": "daemon"}})]));
    let seen = node.predict(&clocks(405, 1230));
    assert_eq!(lines(&seen), ["GPU 0 graphics clock: ? -> 405-1230 MHz [live]"]);
}
