//! MPS daemons of the node, of GPUs and of MIG instances.

use super::*;
use crate::gpu::sim::SimMps;

fn mps(fields: serde_json::Value) -> serde_json::Value {
    let mut all = json!({"state": "started"});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"gpu_mps": all})
}

fn daemons(node: &Node) -> Vec<String> {
    let sim = node.machine.get();
    let told = |uuid: &String, daemon: &SimMps| {
        format!("{uuid} {:?}{}", daemon.running, if daemon.unit.enabled { " enabled" } else { "" })
    };
    sim.device_mps.iter().map(|(uuid, daemon)| told(uuid, daemon)).collect()
}

/// A node of which each GPU has persistence.
fn node(gpus: Vec<SimGpu>) -> Node {
    let gpus = gpus.into_iter().map(|gpu| SimGpu { persistence: true, ..gpu }).collect();
    Node::new(Sim::new(gpus))
}

#[track_caller]
fn converges(node: &mut Node, wish: &GpuGroup) -> OpOutcome {
    let planned = node.predict(wish);
    let done = node.apply(wish);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!((lines(&done), &done.warnings), (lines(&planned), &planned.warnings));
    node.effects();
    node.new_session();
    assert_eq!((node.apply(wish).status, node.effects()), (OpStatus::Ok, Vec::new()));
    done
}

const TRUST: &str = "every user of the node may be a client of MPS";

#[test]
fn each_gpu_gets_a_daemon_and_the_nodes_one_ends() {
    let mut node = node(vec![SimGpu::new(0, true), SimGpu::new(1, true)]);
    node.machine.get().mps = SimMps::started(true);
    let wish = group(&[mps(json!({"scope": "gpu", "user": "triton", "active_thread_percentage": 25}))]);
    let done = converges(&mut node, &wish);
    assert_eq!(
        lines(&done),
        [
            "MPS control daemon: started -> stopped [clients]",
            "GPU 0 MPS daemon: stopped -> started [live]",
            "GPU 0 MPS default active thread percentage: ? -> 25 % [live]",
            "GPU 1 MPS daemon: stopped -> started [live]",
            "GPU 1 MPS default active thread percentage: ? -> 25 % [live]",
        ]
    );
    assert_eq!(done.warnings, Vec::<String>::new(), "one user trusts itself");
    assert_eq!(daemons(&node), ["GPU-0 Some(25) enabled", "GPU-1 Some(25) enabled"]);
    assert!(node.machine.get().mps.running.is_none());
    assert!(node.machine.get().device_mps["GPU-0"].text.as_ref().unwrap().contains("User=triton\n"));
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(daemons(&node), ["GPU-0 Some(25) enabled", "GPU-1 Some(25) enabled"]);

    let one = group(&[json!({"gpu_mps": {"state": "stopped", "scope": "gpu", "gpus": [1]}})]);
    assert_eq!(lines(&converges(&mut node, &one)), ["GPU 1 MPS daemon: started -> stopped [clients]"]);
    assert_eq!(daemons(&node), ["GPU-0 Some(25) enabled"], "its unit is gone");
    let whole = converges(&mut node, &group(&[mps(json!({}))]));
    assert_eq!(
        lines(&whole),
        ["GPU 0 MPS daemon: started -> stopped [clients]", "MPS control daemon: stopped -> started [live]",]
    );
    assert!(whole.warnings.iter().any(|warning| warning.starts_with(TRUST)), "{whole:?}");
    assert_eq!(daemons(&node), Vec::<String>::new());
}

#[test]
fn each_instance_gets_a_daemon_which_goes_with_it() {
    let mut node = node(vec![SimGpu::new(0, true).with_instances(&[(9, 4, 4)])]);
    node.machine.get().device_mps.insert("MIG-0-1-0-old".to_owned(), SimMps::started(false));
    let wish = |layout: serde_json::Value| {
        group(&[json!({"gpu_mig": {"mode": "enabled", "layout": layout}}), mps(json!({"scope": "mig"}))])
    };
    let done = converges(&mut node, &wish(json!({"3g.40gb": 1, "1c.4g.40gb": 2})));
    assert_eq!(
        lines(&done),
        [
            "GPU 0 MIG layout: 1x 3g.40gb -> 2x 1c.4g.40gb + 1x 3g.40gb [live]",
            "GPU 0 MPS daemon of 4g.40gb@0 part 0: stopped -> started [live]",
            "GPU 0 MPS daemon of 4g.40gb@0 part 1: stopped -> started [live]",
            "GPU 0 MPS unit file of 3g.40gb@4: ? -> as declared [clients]",
        ]
    );
    assert_eq!(daemons(&node).len(), 3);
    let kept = node.machine.get().device_mps["MIG-0-1-0-old"].clone();
    assert!(kept.running.is_some() && !kept.unit.enabled, "a boot has no such instance");

    // Another layout takes the daemons of the instances that go, whoever declares it.
    let alone = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 1}}})]);
    let done = converges(&mut node, &alone);
    assert_eq!(lines(&done).len(), 3, "{done:?}");
    assert_eq!(daemons(&node), ["MIG-0-1-0-old Some(100)"]);

    // A boot loses the instances; what they had is removed once they are there again.
    node.machine.get().reboot();
    node.new_session();
    assert_eq!(daemons(&node), ["MIG-0-1-0-old None"]);
    let done = converges(&mut node, &wish(json!({"3g.40gb": 1})));
    assert_eq!(
        lines(&done),
        [
            "GPU 0 MIG mode: disabled -> enabled [clients]",
            "GPU 0 MIG layout: none -> 1x 3g.40gb [live]",
            "gpufleet-mps@MIG-0-1-0-old: stopped -> removed, because its device is gone [live]",
            "GPU 0 MPS daemon of 3g.40gb@0: stopped -> started [live]",
        ]
    );
}

#[test]
fn daemons_are_stopped_for_a_reset_and_those_of_lost_instances_not_started() {
    let lost = SimGpu { ecc: Staged::settled(false), ..SimGpu::new(0, true).with_instances(&[(9, 0, 4)]) };
    let mut node = node(vec![lost, SimGpu::new(1, true)]);
    for (uuid, enabled) in [("MIG-0-1-0-old", false), ("GPU-1", true)] {
        node.machine.get().device_mps.insert(uuid.to_owned(), SimMps::started(enabled));
    }
    let ecc = group(&[json!({"gpu_ecc": {"mode": "enabled"}})]);
    let planned = node.predict(&ecc);
    assert_eq!(
        planned.warnings,
        ["the reset takes from GPU 0 what no task declares: its MIG instances (3g.40gb)"]
    );
    let done = node.apply(&ecc);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let effects = node.effects();
    let at = |what: &str| effects.iter().position(|effect| effect.starts_with(what)).unwrap();
    assert!(at("stop gpufleet-mps@GPU-1.service") < at("reset"), "{effects:?}");
    assert!(at("start gpufleet-mps@GPU-1.service") > at("reset"), "{effects:?}");
    assert!(!effects.iter().any(|effect| effect == "start gpufleet-mps@MIG-0-1-0-old.service"));
    assert!(done.warnings.iter().any(|warning| warning.contains("its MIG instance is gone")), "{done:?}");
    assert!(!node.gpus.has_leftovers());
}

#[test]
fn new_limits_are_told_and_reach_the_next_server() {
    let mut node = node(vec![SimGpu::new(0, true)]);
    let wish = |share: u32| {
        group(&[mps(json!({"scope": "gpu", "user": "triton", "active_thread_percentage": share}))])
    };
    converges(&mut node, &wish(50));
    node.machine.get().device_mps.get_mut("GPU-0").unwrap().servers = 1;
    let planned = node.predict(&wish(20));
    assert_eq!(lines(&planned), ["GPU 0 MPS default active thread percentage: 50 % -> 20 % [live]"]);
    assert!(
        planned.warnings[0].starts_with("the server that the MPS daemon of GPU 0 has keeps its limits"),
        "{planned:?}"
    );
    let done = node.run(&wish(20), Mode::Apply, Disruption::Live);
    assert_eq!((done.status.clone(), &done.warnings), (OpStatus::Changed, &planned.warnings));
    let effects = node.effects();
    assert!(
        effects
            .iter()
            .any(|effect| effect.starts_with("tell gpufleet-mps@GPU-0.service: set_default_active"))
    );
    assert!(!effects.iter().any(|effect| effect.starts_with("stop gpufleet-mps")), "{effects:?}");
    let again = node.apply(&wish(20));
    assert_eq!((again.status, again.warnings), (OpStatus::Ok, Vec::new()));
    // A limit that is not declared any more can only be taken away by a restart.
    let free = group(&[mps(json!({"scope": "gpu", "user": "triton"}))]);
    assert_eq!(
        lines(&converges(&mut node, &free)),
        ["GPU 0 MPS unit file: outdated -> as declared [clients]"]
    );
    let other = group(&[mps(json!({"scope": "gpu"}))]);
    assert_eq!(lines(&converges(&mut node, &other)), ["GPU 0 MPS user: triton -> every user [clients]"]);
}

#[test]
fn nothing_is_written_or_stopped_where_systemd_may_not_reload() {
    let mut node = node(vec![SimGpu::new(0, true)]);
    let wish = |fields| group(&[mps(fields)]);
    let share =
        |share: u32| wish(json!({"scope": "gpu", "user": "triton", "active_thread_percentage": share}));
    converges(&mut node, &share(50));
    // Another limit, another user, and none at all.
    let changes = [
        share(20),
        wish(json!({"scope": "gpu"})),
        group(&[json!({"gpu_mps": {"state": "stopped", "scope": "gpu"}})]),
    ];
    for change in &changes {
        node.machine.get().no_reload = true;
        for _ in 0..2 {
            let refused = node.apply(change);
            assert!(matches!(refused.status, OpStatus::Failed { kind: FailureKind::Io, .. }), "{refused:?}");
            assert_eq!(node.effects(), Vec::<String>::new());
            node.new_session();
        }
        assert_eq!(daemons(&node), ["GPU-0 Some(50) enabled"]);
    }
    node.machine.get().no_reload = false;
    converges(&mut node, &share(20));
    assert_eq!(daemons(&node), ["GPU-0 Some(20) enabled"]);
}

#[test]
fn limits_that_a_run_could_not_tell_are_told_by_the_next() {
    let mut node = node(vec![SimGpu::new(0, true)]);
    let wish = |limit: &str| {
        group(&[mps(json!({"scope": "gpu", "user": "triton", "default_pinned_memory_limit": limit}))])
    };
    converges(&mut node, &wish("8G"));
    for fuse in [0, 1] {
        node.machine.get().fuse = Some(fuse);
        let failed = node.apply(&wish("4G"));
        assert!(matches!(failed.status, OpStatus::Failed { .. }), "{failed:?}");
        node.effects();
        node.new_session();
    }
    assert_eq!(node.apply(&wish("4G")).status, OpStatus::Changed);
    let told = "tell gpufleet-mps@GPU-0.service: set_default_device_pinned_mem_limit 0 4G";
    assert!(node.effects().iter().any(|effect| effect == told));
    assert_eq!(node.apply(&wish("4G")).status, OpStatus::Ok);
}

#[test]
fn what_a_crash_left_is_cleaned_and_a_dead_unit_started() {
    let mut node = node(vec![SimGpu::new(0, true)]);
    let wish = group(&[mps(json!({"scope": "gpu"}))]);
    converges(&mut node, &wish);
    {
        let mut sim = node.machine.get();
        let daemon = sim.device_mps.get_mut("GPU-0").unwrap();
        (daemon.running, daemon.unit.active, daemon.stale) = (None, false, true);
    }
    let done = converges(&mut node, &wish);
    assert_eq!(lines(&done), ["GPU 0 MPS daemon: broken (stale socket) -> started [live]"]);
}

#[test]
fn only_the_clients_of_its_gpu_are_in_the_way_of_a_daemon() {
    let busy = SimGpu { client: Some(41), ..SimGpu::new(1, true) };
    let mut node = node(vec![SimGpu::new(0, true), busy]);
    converges(&mut node, &group(&[mps(json!({"scope": "gpu", "gpus": [0]}))]));
    let stop = |gpu: u32| group(&[json!({"gpu_mps": {"state": "stopped", "scope": "gpu", "gpus": [gpu]}})]);
    assert_eq!(node.apply(&stop(0)).status, OpStatus::Changed);
    node.apply(&group(&[mps(json!({"scope": "gpu", "gpus": [1]}))]));
    node.effects();
    let failed = node.apply(&stop(1));
    assert!(matches!(failed.status, OpStatus::Failed { kind: FailureKind::Busy, .. }), "{failed:?}");
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn impossible_declarations_of_daemons_are_named() {
    let fails = |gpu: SimGpu, tasks: &[serde_json::Value], text: &str| {
        let mut node = node(vec![gpu]);
        let failed = node.apply(&group(tasks));
        assert!(
            matches!(&failed.status, OpStatus::Failed { message, .. } if message.contains(text)),
            "{failed:?}"
        );
        assert_eq!(node.effects(), Vec::<String>::new());
    };
    let gpu = || SimGpu::new(0, true);
    let parted = || SimGpu::new(0, true).with_instances(&[(9, 0, 4)]);
    fails(parted(), &[mps(json!({"scope": "gpu"}))], "declare `scope: mig`");
    fails(gpu(), &[mps(json!({"scope": "mig"}))], "GPU 0 is not in MIG mode");
    fails(gpu(), &[mps(json!({"scope": "gpu", "user": "nobody-here"}))], "has no user `nobody-here`");
    fails(gpu(), &[mps(json!({})), mps(json!({"scope": "gpu"}))], "contradict each other");
    fails(
        gpu(),
        &[mps(json!({"scope": "gpu"})), json!({"gpu_compute_mode": {"mode": "prohibited"}})],
        "the compute mode of GPU 0 is prohibited",
    );
    let mut none = node(vec![SimGpu { mig: Staged::settled(true), ..SimGpu::new(0, true) }]);
    let outcome = none.apply(&group(&[mps(json!({"scope": "mig"}))]));
    assert!(
        matches!(&outcome.status, OpStatus::NotApplicable { reason } if reason.contains("no MIG compute instance"))
    );
}

#[test]
fn a_daemon_whose_instance_goes_with_the_driver_is_told_of_and_not_started() {
    let mut node = node(vec![SimGpu::new(0, true).with_instances(&[(9, 4, 4)])]);
    for seat in ["GPU-0", "MIG-0-1-0-old"] {
        node.machine.get().device_mps.insert(seat.to_owned(), SimMps::started(false));
    }
    let (deadline, machine) = (Deadline::after(Duration::from_secs(5)), node.machine.clone());
    let reload = |_: &mut Gpus| machine.get().gpus[0].instances.clear();
    let ((), left) = node.gpus.suspended(&deadline, &|_| {}, &|| Ok(()), reload).unwrap();
    assert_eq!(left.problems, Vec::<String>::new());
    let [told] = left.warnings.as_slice() else { panic!("{left:?}") };
    assert!(told.contains("gpufleet-mps@MIG-0-1-0-old.service was not started again"), "{told}");
    let effects = node.effects();
    assert_eq!(effects.last().unwrap(), "start gpufleet-mps@GPU-0.service", "{effects:?}");
}
