//! Compute instances, configurations of mig-parted, and layouts for some of a node's GPUs.

use super::*;
use gpufleet_protocol::nvml::Setting;

fn mig(layout: serde_json::Value) -> GpuGroup {
    group(&[json!({"gpu_mig": {"mode": "enabled", "layout": layout}})])
}

fn empty() -> SimGpu {
    SimGpu::new(0, true).with_instances(&[])
}

fn setters(node: &Node) -> Vec<String> {
    node.effects().into_iter().filter(|effect| effect.starts_with("GPU-")).collect()
}

#[test]
fn compute_instances_are_made_kept_and_destroyed_one_by_one() {
    let mut node = Node::new(Sim::new(vec![empty()]));
    let first = mig(json!({"1c.3g.40gb": 3, "2c.4g.40gb": 1}));
    let planned = node.predict(&first);
    let done = node.apply(&first);
    assert_eq!(lines(&done), lines(&planned));
    assert_eq!(lines(&done), ["GPU 0 MIG layout: none -> 1x 2c.4g.40gb + 3x 1c.3g.40gb [live]"]);
    let layout = |node: &Node| node.machine.get().gpus[0].layout();
    assert_eq!(layout(&node), ["4g.40gb@0(2c@0)", "3g.40gb@4(1c@0,1c@1,1c@2)"]);
    node.new_session();
    node.effects();
    let again = node.apply(&first);
    assert_eq!((again.status, node.effects()), (OpStatus::Ok, Vec::new()));
    let second = mig(json!({"1c.3g.40gb": 1, "2c.3g.40gb": 1, "2c.4g.40gb": 2}));
    let planned = node.predict(&second);
    node.new_session();
    let done = node.apply(&second);
    assert_eq!(lines(&done), lines(&planned));
    assert_eq!(
        lines(&done),
        ["GPU 0 MIG layout: 1x 2c.4g.40gb + 3x 1c.3g.40gb -> 2x 2c.4g.40gb + 1x 2c.3g.40gb + 1x 1c.3g.40gb \
             [clients]"]
    );
    assert_eq!(layout(&node), ["4g.40gb@0(2c@0,2c@2)", "3g.40gb@4(2c@0,1c@2)"]);
    let sets = setters(&node);
    assert_eq!(sets.len(), 4, "the GPU instances and two compute instances stay: {sets:?}");
    let third = mig(json!([{"profile": "3g.40gb", "start": 0}, {"profile": "1c.3g.40gb", "start": 4}]));
    assert_eq!(node.apply(&third).status, OpStatus::Changed);
    assert_eq!(layout(&node), ["3g.40gb@0", "3g.40gb@4(1c@2)"]);
    assert_eq!(node.apply(&third).status, OpStatus::Ok);
}

#[test]
fn a_layout_of_parts_comes_back_when_the_new_one_fails() {
    let before = mig(json!({"1c.3g.40gb": 2, "2c.3g.40gb": 1}));
    let after = mig(json!({"1c.3g.40gb": 1, "2c.3g.40gb": 2, "1g.10gb": 0}));
    let acts = |fuse: Option<usize>| {
        let mut node = Node::new(Sim::new(vec![empty()]));
        assert_eq!(node.apply(&before).status, OpStatus::Changed);
        let had = node.machine.get().gpus[0].instances.clone();
        node.effects();
        node.machine.get().fuse = fuse;
        let done = node.apply(&after);
        (node, had, done)
    };
    let (node, _, done) = acts(None);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let count = setters(&node).len();
    assert!(count > 1, "{count}");
    let inside = |instances: &[gpufleet_protocol::nvml::GpuInstance]| {
        let mut all: Vec<_> = instances
            .iter()
            .flat_map(|one| {
                one.compute_instances.iter().map(|inner| (one.placement, inner.start, inner.slices))
            })
            .collect();
        all.sort_unstable();
        all
    };
    let mut restored = 0;
    for fuse in 0..count + 1 {
        let (node, had, done) = acts(Some(fuse));
        let sim = node.machine.get();
        if let OpStatus::Failed { message, .. } = &done.status {
            assert_eq!(inside(&sim.gpus[0].instances), inside(&had), "{fuse}: {message}");
            restored += 1;
        }
    }
    assert!(restored >= count, "{restored}");
}

#[test]
fn what_no_gpu_has_is_named_before_anything_is_done() {
    for (layout, says) in [
        (
            json!({"3c.4g.40gb": 1}),
            "there is no MIG profile `3c.4g.40gb`; the GPU has 1c.4g.40gb, 2c.4g.40gb, 4g.40gb",
        ),
        (json!({"1c.3g.40gb": 7}), "7x 1c.3g.40gb do not fit together; 6x 1c.3g.40gb would"),
        (json!({"1g.10gb+gfx": 1}), "there is no MIG profile `1g.10gb+gfx`"),
        (json!({"1g.10gb+me": 2}), "2x 1g.10gb+me do not fit together; 1x 1g.10gb+me would"),
    ] {
        let mut node = Node::new(Sim::new(vec![empty()]));
        let failed = node.apply(&mig(layout));
        let OpStatus::Failed { kind: FailureKind::Invalid, message } = &failed.status else {
            panic!("{failed:?}")
        };
        assert!(message.contains(says), "{message}");
        assert_eq!(node.effects(), Vec::<String>::new());
    }
}

#[test]
fn each_gpu_gets_the_layout_of_the_task_that_names_it() {
    let mut sim = Sim::new((0..4).map(|index| SimGpu::new(index, index != 3)).collect());
    sim.units.clear();
    let mut node = Node::new(sim);
    let of = |gpus: serde_json::Value, layout: serde_json::Value| json!({"gpu_mig": {"mode": "enabled", "layout": layout, "gpus": gpus}});
    let wish = group(&[
        of(json!([0]), json!({"7g.80gb": 1})),
        of(json!(["GPU-1"]), json!({"3g.40gb": 2})),
        of(json!(["1D:00.0"]), json!({"1c.7g.80gb": 7})),
        of(json!("a100"), json!({"1g.10gb+me": 1, "2g.20gb": 1})),
    ]);
    let done = node.apply(&wish);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let layouts: Vec<Vec<String>> = node.machine.get().gpus.iter().map(SimGpu::layout).collect();
    assert_eq!(
        layouts,
        [
            vec!["7g.80gb@0"],
            vec!["3g.40gb@0", "3g.40gb@4"],
            vec!["7g.80gb@0(1c@0,1c@1,1c@2,1c@3,1c@4,1c@5,1c@6)"],
            vec!["2g.20gb@0", "1g.10gb+me@2"],
        ]
    );
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
    let wrong = node.predict(&group(&[of(json!(["1e:00.1"]), json!({"7g.80gb": 1}))]));
    assert!(
        matches!(&wrong.status, OpStatus::Failed { message, .. } if message.contains("names no GPU of this node"))
    );
}

fn spec(
    devices: serde_json::Value,
    filters: &[(u16, Option<u16>)],
    instances: Option<serde_json::Value>,
) -> serde_json::Value {
    let id = |device: u16| json!({"device": device, "vendor": 0x10de});
    let filters: Vec<_> = filters
        .iter()
        .map(|(device, subsystem)| json!({"device": id(*device), "subsystem": subsystem.map(id)}))
        .collect();
    json!({
        "devices": devices,
        "filters": filters,
        "enabled": instances.is_some(),
        "instances": instances.unwrap_or_else(|| json!({})),
    })
}

fn config(specs: &[serde_json::Value]) -> GpuGroup {
    let file = json!({"path": "mig.yaml", "specs": specs});
    group(&[json!({"gpu_mig": {"config_file": file, "config": "site"}})])
}

#[test]
fn specs_for_gpus_that_the_node_lacks_are_told() {
    let node = || Node::new(Sim::new((0..2).map(|index| SimGpu::new(index, true)).collect()));
    let eight = config(&[
        spec(json!([0, 1, 2, 3]), &[], None),
        spec(json!([4, 7]), &[], Some(json!({"1g.10gb": 7}))),
    ]);
    let told = "the configuration has specs for GPU 2,3,4,7, which this node does not have (it has 2), so that they do nothing here";
    assert_eq!(node().predict(&eight).warnings, [told]);
    assert_eq!(node().apply(&eight).warnings, [told]);
    let both = config(&[spec(json!([0, 1]), &[], None)]);
    assert_eq!(node().predict(&both).warnings, Vec::<String>::new());
}

#[test]
fn the_last_spec_that_is_for_a_gpu_counts() {
    let mut sim = Sim::new((0..3).map(|index| SimGpu::new(index, index != 2)).collect());
    sim.units.clear();
    let mut node = Node::new(sim);
    let all = json!(null);
    let wish = config(&[
        spec(all.clone(), &[], Some(json!({"7g.80gb": 1}))),
        spec(json!([0, 1, 9]), &[(0x2330, None)], Some(json!({"1g.10gb": 7}))),
        spec(json!([1]), &[(0x2330, Some(0x1111)), (0x2330, Some(0x16c1))], Some(json!({"1c.3g.40gb": 6}))),
        spec(all.clone(), &[(0x2330, Some(0x1111))], None),
    ]);
    let planned = node.predict(&wish);
    let done = node.apply(&wish);
    assert_eq!((done.status.clone(), lines(&done)), (OpStatus::Changed, lines(&planned)), "{done:?}");
    let layouts: Vec<Vec<String>> = node.machine.get().gpus.iter().map(SimGpu::layout).collect();
    assert_eq!(layouts[0].len(), 7);
    assert_eq!(
        layouts[1..],
        [
            vec!["3g.40gb@0(1c@0,1c@1,1c@2)".to_owned(), "3g.40gb@4(1c@0,1c@1,1c@2)".to_owned()],
            vec!["7g.80gb@0".to_owned()],
        ]
    );
    assert_eq!(node.apply(&wish).status, OpStatus::Ok);
    let off = config(&[spec(all, &[], None)]);
    assert_eq!(node.apply(&off).status, OpStatus::Changed);
    assert!(node.machine.get().gpus.iter().all(|gpu| !gpu.mig.current && gpu.instances.is_empty()));
}

#[test]
fn a_configuration_for_other_boards_says_so_and_leaves_the_node_alone() {
    let mut node = Node::new(Sim::new(vec![empty()]));
    let other = config(&[spec(json!(null), &[(0x2335, None)], Some(json!({"1g.18gb": 7})))]);
    let done = node.apply(&other);
    let OpStatus::NotApplicable { reason } = &done.status else { panic!("{done:?}") };
    assert_eq!(reason, "the configuration `site` has no spec for GPU 0 (NVIDIA H100 80GB HBM3, 0x233010DE)");
    assert_eq!(node.effects(), Vec::<String>::new());
    node.machine.get().gpus[0].board = None;
    let done = node.apply(&other);
    let OpStatus::Unknown { reason } = &done.status else { panic!("{done:?}") };
    assert!(reason.starts_with("the PCI ids of GPU 0 (0000:1b:00.0) cannot be read"), "{reason}");
}

#[test]
fn gpus_without_mig_are_passed_over_where_a_spec_is_for_all_and_refused_where_it_names_them() {
    let plain = SimGpu { profiles: Vec::new(), ..SimGpu::new(1, true) };
    let mut node = Node::new(Sim::new(vec![empty(), plain]));
    let of = |devices| config(&[spec(devices, &[], Some(json!({"7g.80gb": 1})))]);
    assert_eq!(node.apply(&of(json!(null))).status, OpStatus::Changed);
    let failed = node.apply(&of(json!([0, 1])));
    assert!(
        matches!(&failed.status, OpStatus::Failed { message, .. } if message.contains("has no MIG profiles"))
    );
    // A path never reaches a node.
    let unread = node.apply(&group(&[json!({"gpu_mig": {"config_file": "mig.yaml"}})]));
    assert!(matches!(unread.status, OpStatus::Failed { .. }), "{unread:?}");
}

/// Runs a layout on a GPU without MIG, in which the creation of this GPU instance fails.
fn failing_layout(hopper: bool, at: usize) -> (Node, String) {
    let wish = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}})]);
    let mut clean = Node::new(Sim::new(vec![SimGpu::new(0, hopper)]));
    clean.apply(&wish);
    let effects = clean.effects();
    let mut creations = (0..effects.len()).filter(|at| effects[*at].contains("CreateGpuInstance"));
    let fuse = Some(creations.nth(at).unwrap());
    let mut node = Node::new(Sim { fuse, ..Sim::new(vec![SimGpu::new(0, hopper)]) });
    let failed = node.apply(&wish);
    let OpStatus::Failed { message, .. } = failed.status.clone() else { panic!("{failed:?}") };
    assert!(!lines(&failed).iter().any(|line| line.contains("MIG layout")), "{failed:?}");
    assert_eq!(lines(&failed).iter().any(|line| line.contains("MIG mode")), !hopper, "{failed:?}");
    assert_eq!(node.machine.get().gpus[0].layout(), Vec::<String>::new());
    (node, message)
}

#[test]
fn mig_mode_is_switched_off_again_where_the_layout_fails_for_which_it_was_switched_on() {
    for at in [0, 1] {
        let (mut node, message) = failing_layout(true, at);
        assert!(message.ends_with("; the GPU is as it was before"), "{at}: {message}");
        assert_eq!(node.machine.get().gpus[0].mig, Staged::settled(false));
        let again = group(&[json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}})]);
        assert_eq!(node.apply(&again).status, OpStatus::Changed);
    }
}

#[test]
fn a_layout_that_came_back_is_known_although_the_driver_lists_it_in_another_order() {
    let gpu = || SimGpu::new(0, true).with_instances(&[(14, 0, 2), (9, 4, 4)]);
    let wish = mig(json!({"3g.40gb": 1, "1g.10gb": 2}));
    let mut clean = Node::new(Sim::new(vec![gpu()]));
    clean.apply(&wish);
    let at = clean.effects().iter().rposition(|effect| effect.contains("CreateGpuInstance"));
    let mut node = Node::new(Sim { fuse: at, ..Sim::new(vec![gpu()]) });
    let OpStatus::Failed { message, .. } = node.apply(&wish).status else { panic!("it did not fail") };
    assert!(message.ends_with("; the previous MIG layout was restored"), "{message}");
    assert_eq!(node.machine.get().gpus[0].layout(), ["2g.20gb@0", "3g.40gb@4"]);
}

#[test]
fn mig_mode_that_took_a_reset_stays_and_is_told() {
    for at in [0, 1] {
        let (node, message) = failing_layout(false, at);
        let told = "; MIG mode stays enabled, which it was not before the run, with no instances";
        assert!(message.ends_with(told), "{at}: {message}");
        assert_eq!(node.machine.get().gpus[0].mig, Staged::settled(true));
    }
}

#[test]
fn a_layout_stays_where_something_else_fails_after_it() {
    let wish = group(&[
        json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}}}),
        json!({"gpu_power": {"limit_watts": 600}}),
    ]);
    let mut clean = Node::new(Sim::new(vec![SimGpu::new(0, true)]));
    clean.apply(&wish);
    let at = clean.effects().iter().position(|effect| effect.contains("PowerLimit")).unwrap();
    let mut node = Node::new(Sim { fuse: Some(at), ..Sim::new(vec![SimGpu::new(0, true)]) });
    let failed = node.apply(&wish);
    assert_eq!(failed.members[0].status, OpStatus::Changed, "{failed:?}");
    assert!(matches!(failed.members[1].status, OpStatus::Failed { .. }), "{failed:?}");
    assert_eq!(node.machine.get().gpus[0].layout(), ["3g.40gb@0", "3g.40gb@4"]);
}

/// Runs a layout on three GPUs without MIG, in which the first effect with this text fails.
fn failing_on_one_of_three(hopper: bool, effect: &str, lies: bool) -> (Node, OpOutcome, String) {
    let wish = mig(json!({"3g.40gb": 2}));
    let sim = || Sim::new((0..3).map(|index| SimGpu::new(index, hopper)).collect());
    let mut clean = Node::new(sim());
    assert_eq!(clean.apply(&wish).status, OpStatus::Changed);
    let fuse = clean.effects().iter().position(|other| other.contains(effect));
    assert!(fuse.is_some(), "{effect}");
    let lies = lies.then_some((|setting| *setting == Setting::MigMode(false)) as fn(&Setting) -> bool);
    let mut node = Node::new(Sim { fuse, lies, ..sim() });
    let failed = node.apply(&wish);
    let OpStatus::Failed { message, .. } = failed.status.clone() else { panic!("{failed:?}") };
    (node, failed, message)
}

#[test]
fn gpus_whose_layout_was_not_reached_are_not_left_in_mig_mode() {
    let back = |gpus: &str| {
        format!("GPU {gpus}: MIG mode was switched off again, because the layout was not reached")
    };
    for (effect, on, told) in [
        (
            "GPU-0 CreateGpuInstance",
            [false, false, false],
            format!("; the GPU is as it was before; {}", back("1-2")),
        ),
        (
            "GPU-1 CreateGpuInstance",
            [true, false, false],
            format!("; the GPU is as it was before; {}", back("2")),
        ),
        ("GPU-2 MigMode", [false, false, false], format!("; {}", back("0-1"))),
        ("GPU-2 CreateGpuInstance", [true, true, false], "; the GPU is as it was before".to_owned()),
    ] {
        let (mut node, failed, message) = failing_on_one_of_three(true, effect, false);
        let modes: Vec<bool> = node.machine.get().gpus.iter().map(|gpu| gpu.mig.current).collect();
        assert_eq!(modes, on, "{effect}: {message}");
        assert!(message.ends_with(&told), "{effect}: {message}");
        let counted = lines(&failed).iter().filter(|line| line.contains("MIG mode")).count();
        assert_eq!(counted, on.iter().filter(|on| **on).count(), "{effect}: {failed:?}");
        assert_eq!(node.apply(&mig(json!({"3g.40gb": 2}))).status, OpStatus::Changed);
        let layouts: Vec<usize> = node.machine.get().gpus.iter().map(|gpu| gpu.layout().len()).collect();
        assert_eq!(layouts, [2, 2, 2], "{effect}");
    }
}

#[test]
fn gpus_that_stay_in_mig_mode_without_their_layout_are_named() {
    let stays =
        "; GPU 1-2: MIG mode stays enabled, which it was not before the run, and the layout was not reached";
    // On Ampere it took a reset; on Hopper the driver says that it switched it off, and it reads otherwise.
    for hopper in [false, true] {
        let (node, failed, message) = failing_on_one_of_three(hopper, "GPU-0 CreateGpuInstance", hopper);
        assert!(message.ends_with(stays), "{hopper}: {message}");
        assert!(node.machine.get().gpus.iter().all(|gpu| gpu.mig.current));
        assert_eq!(lines(&failed).iter().filter(|line| line.contains("MIG mode")).count(), 3, "{failed:?}");
    }
}

#[test]
fn mig_mode_that_was_wanted_without_a_layout_stays_where_another_layout_fails() {
    let wish = group(&[
        json!({"gpu_mig": {"mode": "enabled", "layout": {"3g.40gb": 2}, "gpus": [0]}}),
        json!({"gpu_mig": {"mode": "enabled", "gpus": [1]}}),
    ]);
    let sim = || Sim::new(vec![SimGpu::new(0, true), SimGpu::new(1, true)]);
    let mut clean = Node::new(sim());
    clean.apply(&wish);
    let fuse = clean.effects().iter().position(|effect| effect.contains("CreateGpuInstance"));
    let mut node = Node::new(Sim { fuse, ..sim() });
    let failed = node.apply(&wish);
    assert_eq!(failed.members[1].status, OpStatus::Changed, "{failed:?}");
    let modes: Vec<bool> = node.machine.get().gpus.iter().map(|gpu| gpu.mig.current).collect();
    assert_eq!(modes, [false, true]);
}

#[test]
fn gpus_of_a_node_that_another_controller_took_over_are_named_and_left_alone() {
    let wish = mig(json!({"3g.40gb": 2}));
    let mut left = 0;
    for acts in 0..30 {
        let mut node = Node::new(Sim::new((0..3).map(|index| SimGpu::new(index, true)).collect()));
        node.fence.set(Some(acts));
        let OpStatus::Failed { message, .. } = node.apply(&wish).status else { continue };
        let effects = node.effects();
        assert!(
            !effects.iter().any(|effect| effect.contains("MigMode(false)")),
            "{acts}: {message}: {effects:?}"
        );
        for gpu in &node.machine.get().gpus {
            if gpu.mig.current && gpu.instances.is_empty() {
                left += 1;
                assert!(message.contains("MIG mode stays enabled"), "{acts}: {message}");
            }
        }
    }
    assert!(left > 3, "{left}");
}

#[test]
fn a_layout_that_failed_leaves_no_cdi_specification_with_instances_that_are_gone() {
    let refreshed = |effects: &[String]| {
        let last =
            |what: &[&str]| effects.iter().rposition(|effect| what.iter().any(|word| effect.contains(word)));
        (last(&["nvidia-cdi-refresh"]), last(&["GpuInstance", "ComputeInstance", "MigMode"]))
    };
    let sim = || Sim::new(vec![SimGpu::new(0, true).with_instances(&[(9, 0, 4), (9, 4, 4)])]);
    let wish = mig(json!({"1g.10gb": 7}));
    let mut clean = Node::new(sim());
    assert_eq!(clean.apply(&wish).status, OpStatus::Changed);
    let count = clean.effects().len();
    let mut failures = 0;
    for fuse in 0..count {
        let mut node = Node::new(Sim { fuse: Some(fuse), ..sim() });
        if !matches!(node.apply(&wish).status, OpStatus::Failed { .. }) {
            continue;
        }
        let effects = node.effects();
        let (refresh, changed) = refreshed(&effects);
        if let Some(changed) = changed {
            failures += 1;
            assert!(refresh > Some(changed), "{fuse}: {effects:?}");
        }
    }
    assert!(failures > 3, "{failures}");
}

#[test]
fn a_gpu_is_not_given_back_on_a_node_that_another_controller_took_over() {
    let sim = || Sim::new(vec![SimGpu::new(0, true).with_instances(&[(9, 0, 4)])]);
    let wish = mig(json!({"1g.10gb": 7}));
    let mut told = 0;
    for acts in 0..30 {
        let mut node = Node::new(sim());
        node.fence.set(Some(acts));
        let OpStatus::Failed { message, .. } = node.apply(&wish).status else { continue };
        let effects = node.effects();
        let lost = node.lost.get().unwrap();
        let of_instance =
            |effect: &String| effect.contains("GpuInstance") || effect.contains("ComputeInstance");
        assert!(!effects[lost..].iter().any(of_instance), "{acts}: {:?}", &effects[lost..]);
        assert!(!message.contains("was restored"), "{acts}: {message}");
        told +=
            usize::from(message.contains("could not be restored: a newer controller took this node over"));
        assert!(!effects.iter().any(|effect| effect.contains("nvidia-cdi-refresh")), "{acts}: {effects:?}");
    }
    assert!(told > 0, "{told}");
}
