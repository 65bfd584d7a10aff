//! Rollouts over a real Slurm in which nodes reboot, or are not healthy afterwards.
//!
//! A node of the lab really shuts down and boots, and its slurmd reports the boot to slurmctld. What happened is read
//! from Slurm and from the lab, never from gpufleet.

use std::time::{Duration, Instant};

use gpufleet_systems_tests::SlurmFleet;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use rustix::process::Signal;

const NODES: usize = 3;
const REASON: &str = "bad DIMM = A1 | B2";
const VIA_SLURM: &str = "reboot: {timeout: 60s, via: slurm}";

fn host(node: usize) -> String {
    format!("gpu{node:03}")
}

/// Checks that the node was drained, rebooted and given back once each, in this order, and that Slurm has no trace of
/// it.
#[track_caller]
fn rebooted_once(lab: &SlurmFleet, node: usize) {
    assert_eq!(lab.traces(node), None);
    assert_eq!(lab.fleet.boots(&host(node)), 2, "gpu{node} reboots once");
    let drains = lab.cluster.drains();
    assert_eq!(drains.times.get(&format!("gpu{node}")), Some(&1), "{drains:?}");
    let resumes = lab.cluster.resumes(node);
    let told: Vec<Timestamp> =
        lab.boots_told(node).into_iter().map(|at| Timestamp::try_from(at).unwrap()).collect();
    let ([resume], [told]) = (resumes.as_slice(), told.as_slice()) else {
        panic!("gpu{node} was given back at {resumes:?}, and its slurmd told of boots at {told:?}")
    };
    let resume: DateTime = resume.parse().unwrap();
    let resume = resume.to_zoned(TimeZone::system()).unwrap().timestamp();
    assert!(
        resume > *told,
        "gpu{node} was given back at {resume}, and Slurm knew of the boot from {told} on"
    );
}

fn whole_rollout(return_to_service: u8, line: &str) {
    let lab = SlurmFleet::start(NODES, return_to_service, true);
    lab.write_rollout(2, "", line);
    let done = lab.run().run().expect(0);
    for node in 1..=NODES {
        assert_eq!(done.document().state(&host(node)), "done", "{done}");
        assert!(lab.changes(node) > 0, "{node} was not changed");
        rebooted_once(&lab, node);
        lab.cluster.wait("an idle node", || lab.cluster.state(node) == "IDLE");
    }
    let drains = lab.cluster.drains();
    assert!((1..=2).contains(&drains.most) && drains.left.is_empty(), "{drains:?}");
    assert_eq!(lab.locks(), 0, "the lock is left");
    // All nodes accept work again, and a second run leaves them alone.
    for node in 1..=NODES {
        lab.cluster.run_job(node, "sleep 300");
    }
    let again = lab.run().run().expect(0).document();
    assert!(again.states().values().all(|state| state == "compliant"), "{:?}", again.states());
    assert!(lab.fleet.names().iter().all(|name| lab.fleet.boots(name) == 2));
}

#[test]
fn nodes_reboot_with_return_to_service_0() {
    whole_rollout(0, "health_gate: [gpu_count, mig_layout]");
}

#[test]
fn nodes_reboot_with_return_to_service_1() {
    whole_rollout(1, "health_gate: [gpu_count, mig_layout]");
}

#[test]
fn nodes_reboot_with_return_to_service_2() {
    whole_rollout(2, "health_gate: [gpu_count, mig_layout]");
}

#[test]
fn slurm_reboots_the_nodes_with_return_to_service_0() {
    whole_rollout(0, VIA_SLURM);
}

#[test]
fn slurm_reboots_the_nodes_with_return_to_service_2() {
    whole_rollout(2, VIA_SLURM);
}

/// A person drains a node during its reboot.
fn taken_over_in_mid_reboot(return_to_service: u8, line: &str, states: &[&str]) {
    let lab = SlurmFleet::start(NODES, return_to_service, true);
    lab.write_rollout(2, "", line);
    let running = lab.run().start();
    let deadline = Instant::now() + Duration::from_secs(90);
    while lab.fleet.boots(&host(2)) < 2 {
        assert!(Instant::now() < deadline, "it never reboots:\n{:?}", running.journal());
        std::thread::sleep(Duration::from_millis(20));
    }
    let reason = format!("reason={REASON}");
    lab.cluster.admin(&["scontrol", "update", "nodename=gpu2", "state=drain", &reason]);
    let done = running.wait();
    // Either: the node is done if no disruptive step was left.
    let state = done.document().state("gpu002").to_owned();
    match done.code {
        Some(0) => assert_eq!(state, "done", "{done}"),
        _ => assert!(
            done.code == Some(5) && state == "held" && done.document().message("gpu002").contains(REASON),
            "{done}"
        ),
    }
    let line = lab.cluster.show(2);
    assert!(line.contains(&format!("Reason={REASON}")), "{line}");
    assert!(states.contains(&lab.cluster.state(2).as_str()), "{line}");
    assert_eq!(lab.fleet.boots(&host(2)), 2, "{done}");
    assert_eq!(lab.cluster.resumes(2), Vec::<String>::new(), "what is theirs was given back");
    for node in [1, 3] {
        assert_eq!(done.document().state(&host(node)), "done", "{done}");
        rebooted_once(&lab, node);
    }
    assert_eq!(lab.locks(), 0);
}

#[test]
fn a_person_who_drains_a_node_in_mid_reboot_has_the_last_word_with_return_to_service_0() {
    taken_over_in_mid_reboot(0, "soak: 0s", &["IDLE+DRAIN", "DOWN+DRAIN"]);
}

#[test]
fn a_person_who_drains_a_node_in_mid_reboot_has_the_last_word_with_return_to_service_2() {
    taken_over_in_mid_reboot(2, "soak: 0s", &["IDLE+DRAIN"]);
}

/// The controller is killed once a node was told to reboot, and resumed when all such nodes are back.
fn killed_in_mid_reboot(return_to_service: u8, line: &str) {
    let lab = SlurmFleet::start(NODES, return_to_service, true);
    lab.write_rollout(1, "", line);
    let mut running = lab.run().start();
    running.until("a reboot", |events| events.has("reboot_issued"));
    let told = running.journal().hosts("reboot_issued").remove(0);
    running.until("it is down", |events| {
        events.of_host("node_state", &told).any(|with| with["detail"] == "down")
    });
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    lab.fleet.await_answer(&told);
    let node = (1..=NODES).find(|node| host(*node) == told).unwrap();
    // Long enough for Slurm to act on a node that comes back; it must not give it work.
    std::thread::sleep(Duration::from_secs(8));
    lab.cluster.wait("a node that is out", || {
        let state = lab.cluster.state(node);
        state.contains("DRAIN") || state.contains("DOWN")
    });
    assert_eq!(lab.cluster.resumes(node), Vec::<String>::new());
    let done = lab.gpufleet(&["resume", "--yes", "--format", "json"]).run().expect(0);
    for node in 1..=NODES {
        assert_eq!(done.document().state(&host(node)), "done", "{done}");
        rebooted_once(&lab, node);
    }
    let drains = lab.cluster.drains();
    assert!(drains.most == 1 && drains.left.is_empty(), "{drains:?}");
    assert_eq!(lab.locks(), 0);
}

#[test]
fn a_controller_that_was_killed_in_mid_reboot_is_resumed_with_return_to_service_0() {
    killed_in_mid_reboot(0, "soak: 0s");
}

#[test]
fn a_controller_that_was_killed_in_mid_reboot_is_resumed_with_return_to_service_2() {
    killed_in_mid_reboot(2, "soak: 0s");
}

#[test]
fn a_controller_that_was_killed_while_slurm_rebooted_a_node_is_resumed() {
    killed_in_mid_reboot(0, VIA_SLURM);
}

#[test]
fn slurm_reboots_the_nodes_with_return_to_service_1() {
    whole_rollout(1, VIA_SLURM);
}

#[test]
fn a_node_that_is_not_well_stays_drained_and_says_why() {
    let lab = SlurmFleet::start(NODES, 0, false);
    let gate = "test ! -e /etc/sick || { echo too hot >&2; exit 1; }";
    lab.write_rollout(2, "", &format!("health_gate: [gpu_count, {{command: '{gate}'}}]"));
    lab.fleet.read("gpu002", "touch /etc/sick");
    let done = lab.run().run();
    let held = |done: &gpufleet_tests::Finished| {
        assert_eq!(done.code, Some(5), "{done}");
        assert_eq!(done.document().state("gpu002"), "held", "{done}");
        assert!(done.document().message("gpu002").contains("too hot"), "{done}");
        assert_eq!(lab.cluster.state(2), "IDLE+DRAIN", "{done}");
        let line = lab.cluster.show(2);
        let reason = line.split_once("Reason=gpufleet:").map_or("", |(_, reason)| reason);
        for word in ["too hot", "health gate", "`gpufleet resume`"] {
            assert!(reason.contains(word), "{word} is not in {line}");
        }
    };
    held(&done);
    let changes = lab.changes(2);
    for node in [1, 3] {
        assert_eq!(done.document().state(&host(node)), "done", "{done}");
        assert_eq!(lab.traces(node), None);
    }
    // Nothing was repaired, so nothing changes.
    let resume = ["resume", "--yes", "--format", "json"];
    held(&lab.gpufleet(&resume).run());
    lab.fleet.read("gpu002", "rm /etc/sick");
    let done = lab.gpufleet(&resume).run().expect(0);
    for node in 1..=NODES {
        assert_eq!(done.document().state(&host(node)), "done", "{done}");
        assert_eq!(lab.traces(node), None);
    }
    let drains = lab.cluster.drains();
    assert!(drains.left.is_empty() && drains.times.values().all(|times| *times == 1), "{drains:?}");
    assert_eq!(lab.changes(2), changes, "what was done is not done again");
    assert_eq!(lab.locks(), 0);
}
