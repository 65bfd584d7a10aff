//! An upgrade of drivers over nodes of a real Slurm, with real apt, and a node whose new module does not load.

use std::time::Duration;

use gpufleet_systems_tests::SlurmFleet;
use gpufleet_tests::{Driver, Drivers};

const NODES: usize = 12;
/// The node whose module does not load, in the second wave.
const BROKEN: usize = 6;
const OLD: &str = "575.57.08";
const NEW: &str = "580.173.02";

fn host(node: usize) -> String {
    format!("gpu{node:03}")
}

fn loaded(lab: &SlurmFleet, node: usize) -> String {
    lab.fleet.read(&host(node), "nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0")
}

#[test]
fn a_module_that_does_not_load_ends_the_rollout_in_its_wave() {
    let lab = SlurmFleet::start(NODES, 0, false);
    let good = Drivers::new(&[Driver::new(OLD), Driver::new(NEW)]);
    let fault = Some("Key was rejected by service");
    let broken = Drivers::new(&[Driver::new(OLD), Driver { fault, ..Driver::new(NEW) }]);
    for node in 1..=NODES {
        let drivers = if node == BROKEN { &broken } else { &good };
        drivers.install(&lab.fleet, &host(node));
        let install = format!(
            "apt-get -y install nvidia-open-575 nvidia-kernel-open-dkms={OLD}-1 libnvidia-ml1={OLD}-1"
        );
        let load = "rmmod nvidia_uvm nvidia_modeset nvidia && modprobe nvidia_uvm";
        lab.fleet.read(&host(node), &format!("{install} && {load}"));
        assert_eq!(loaded(&lab, node), OLD);
    }
    lab.home.write(
        "play.yaml",
        "- name: Driver
  hosts: gpu
  become: true
  rollout:
    waves: [3, 4, 100%]
    max_unavailable: 2
    max_fail_percentage: 0
    drain:
      slurm: {timeout: 90s, node: \"gpu{{ inventory_hostname[3:] | int }}\"}
    health_gate: [gpu_count]
  tasks:
    - gpu_driver: {branch: 580, go_back: required}
    - reboot: {when: required, timeout: 60s}
",
    );
    // A job is waited for, and not killed.
    let file = lab.home.dir().join("end");
    let job = lab.cluster.run_job(2, &format!("while [ ! -e {} ]; do sleep 0.1; done", file.display()));
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(8));
        std::fs::write(file, "").unwrap();
    });
    let done = lab.run().run().expect(5);
    ends.join().unwrap();
    let document = done.document();

    let message = document.message(&host(BROKEN));
    assert!(message.contains("Key was rejected by service"), "{message}");
    assert!(message.contains(&format!("the node is back at {OLD}, which runs")), "{message}");
    assert_eq!(loaded(&lab, BROKEN), OLD);
    // It stays drained, with the reason, for a person.
    let shown = lab.cluster.show(BROKEN);
    assert!(shown.contains("DRAIN") && shown.contains("Reason=gpufleet"), "{shown}");
    for node in 1..=3 {
        assert_eq!((loaded(&lab, node).as_str(), document.state(&host(node))), (NEW, "done"), "{node}");
        assert_eq!(lab.traces(node), None);
    }
    // Nothing of the last wave was touched or drained.
    let drains = lab.cluster.drains();
    assert!((1..=2).contains(&drains.most), "{drains:?}");
    for node in 8..=NODES {
        assert_eq!(loaded(&lab, node), OLD, "{node}");
        assert_eq!(lab.traces(node), None);
        assert!(!drains.times.keys().any(|name| *name == format!("gpu{node}")), "{node}: {drains:?}");
    }
    for node in 1..=NODES {
        assert_eq!(lab.fleet.boots(&host(node)), 1, "no node had to reboot");
    }
    assert!(!lab.cluster.admin(&["scontrol", "show", "job", &job]).contains("JobState=FAILED"));
}
