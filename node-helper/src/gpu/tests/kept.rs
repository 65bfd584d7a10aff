//! What a reboot takes where the node keeps a state for its boots.

use std::collections::BTreeSet;

use super::*;
use crate::gpu::Kept;

/// A GPU in use: with a limit, a mode and instances.
fn used() -> SimGpu {
    SimGpu {
        power_mw: 400_000,
        compute_mode: 3,
        resettable: false,
        persistence: true,
        ..SimGpu::new(0, true)
    }
}

fn kept(tasks: &[serde_json::Value]) -> Kept {
    let gpus = BTreeSet::from([SimGpu::new(0, true).uuid()]);
    Kept::Sets { gpus, members: group(tasks).members }
}

fn node(gpu: SimGpu, kept: Kept) -> Node {
    Node::new(Sim { kept, ..Sim::new(vec![gpu]) })
}

fn power(watts: u32) -> serde_json::Value {
    json!({"gpu_power": {"limit_watts": watts}})
}

const LOST: &str = "GPU 0 loses by the reboot what no task up to here declares: the power limit of 400 W; the compute mode \
                    exclusive_process; its persistence";

#[test]
fn what_the_node_sets_again_at_its_boot_is_not_lost() {
    let all = [
        power(400),
        json!({"gpu_compute_mode": {"mode": "exclusive_process"}}),
        json!({"gpu_persistence": {"mode": "daemon"}}),
    ];
    let again = "GPU 0 loses by the reboot what the kept state sets again at the boot: the power limit of 400 W; the compute \
                 mode exclusive_process; its persistence";
    assert_eq!(node(used(), Kept::Nothing).lost_by(Taker::Reboot), [LOST]);
    assert_eq!(node(used(), kept(&all)).lost_by(Taker::Reboot), [again]);
    // No boot follows a reload.
    let by_reload = node(used(), kept(&all)).lost_by(Taker::Reload);
    assert_eq!(by_reload, [LOST.replace("by the reboot", "by the reload of the driver")]);
    // What a task declares is set by the run.
    let mut node = node(used(), kept(&all[1..]));
    let declared = group(&[power(400)]);
    node.gpus.predict(&declared, &Default::default(), &Deadline::after(Duration::from_secs(5)), &|_| {});
    let told = node.gpus.lost_by(Taker::Reboot, &World::real(), &Deadline::after(Duration::from_secs(5)));
    assert_eq!(told, [again.replace("the power limit of 400 W; ", "")]);
}

#[test]
fn what_it_does_not_set_or_sets_otherwise_is_lost() {
    let other = node(used(), kept(&[power(300), json!({"gpu_compute_mode": {"mode": "exclusive_process"}})]));
    let lost = "GPU 0 loses by the reboot what no task up to here declares: the power limit of 400 W (the kept state sets 300 \
                W); its persistence; GPU 0 loses by the reboot what the kept state sets again at the boot: the compute mode \
                exclusive_process";
    assert_eq!({ other }.lost_by(Taker::Reboot), [lost]);
}

#[test]
fn a_kept_state_that_a_boot_would_not_set_brings_nothing_back() {
    let elsewhere = Kept::Sets { gpus: BTreeSet::from(["GPU-other".to_owned()]), members: Vec::new() };
    let more = Kept::Sets {
        gpus: BTreeSet::from([SimGpu::new(0, true).uuid(), "GPU-missing".to_owned()]),
        members: group(&[power(400)]).members,
    };
    let impossible = kept(&[power(400), json!({"gpu_power": {"limit_watts": 9000}})]);
    let refused = "what the node keeps for its boots does not bring that back: ";
    for (kept, says) in [
        (elsewhere, "it was signed for other GPUs than the node has"),
        (more, "it was signed for other GPUs than the node has"),
        (impossible, "9000"),
        (Kept::Refused("the kept state is stale".to_owned()), "the kept state is stale"),
    ] {
        let told = node(used(), kept).lost_by(Taker::Reboot).join("");
        let rest = told.strip_prefix(&format!("{LOST}; {refused}"));
        assert!(rest.is_some_and(|rest| rest.contains(says)), "{told}");
    }
    let unknown = Kept::Unknown("whether it keeps anything is not known".to_owned());
    let told = node(used(), unknown).lost_by(Taker::Reboot);
    assert_eq!(told, [format!("{LOST}; whether it keeps anything is not known")]);
    // Nothing to bring back.
    let calm = SimGpu { resettable: false, ..SimGpu::new(0, true) };
    assert_eq!(node(calm, Kept::Refused("stale".to_owned())).lost_by(Taker::Reboot), Vec::<String>::new());
}

#[test]
fn a_reboot_that_a_gpu_task_needs_tells_the_same() {
    let off = group(&[json!({"gpu_ecc": {"mode": "disabled"}})]);
    let told = |kept: Kept| node(used(), kept).predict(&off).warnings;
    let lost = "the reboot takes from GPU 0 what no task declares: the power limit of 400 W; the compute mode \
                exclusive_process; its persistence";
    assert_eq!(told(Kept::Nothing), [lost]);
    assert_eq!(
        told(kept(&[power(400)])),
        [
            "the reboot takes from GPU 0 what no task declares: the compute mode exclusive_process; its persistence",
            "the reboot takes from GPU 0 what the kept state sets again at the boot: the power limit of 400 W",
        ]
    );
    let stale = told(Kept::Refused("it is stale".to_owned()));
    assert_eq!(stale, [lost, "what the node keeps for its boots does not bring that back: it is stale"]);
}
