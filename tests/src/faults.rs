//! Faults of a node during a rolling MIG reconfiguration, and their expected results.
//!
//! In each case the first of three nodes is faulty. The other two must be done in any case.

use std::time::{Duration, Instant};

use crate::{Finished, Fleet, FleetOptions, Home};

/// One fault and its expected result.
#[derive(Clone, Copy, Debug)]
pub struct FaultCase {
    pub name: &'static str,
    /// The rule, without the node.
    rule: &'static str,
    /// The allowed final states of the faulty node.
    pub states: &'static [&'static str],
    /// What its message must contain, unless it is done.
    pub says: &'static str,
}

/// The result of a case.
#[derive(Debug)]
pub struct FaultResult {
    pub state: String,
    pub message: String,
    pub code: Option<i32>,
    /// States of the other nodes.
    pub others: Vec<String>,
    pub out_of_service: Vec<String>,
    pub reboots: u64,
    /// Number of processes that use the faulty node's GPUs at the end.
    pub jobs: u64,
    /// Services of the faulty node that were stopped and not started again.
    pub left_stopped: Vec<String>,
    pub took: Duration,
    pub said: String,
}

macro_rules! cases {
    ($($name:literal: $rule:literal => $states:expr, $says:literal;)*) => {
        /// All cases.
        pub const FAULTS: &[FaultCase] = &[$(FaultCase { name: $name, rule: $rule, states: &$states, says: $says }),*];
    };
}

cases! {
    "does not go down": "effect: reboot_ignored" => ["held"], "does not go down";
    "hangs while it goes down": "effect: shutdown_hangs" => ["unreachable", "held"], "reboot";
    "hangs while it boots": "effect: never_boot" => ["unreachable"], "did not come back within 20 s after its reboot";
    "hangs after it booted (SSH accepts, says nothing)": "effect: hang_after_boot" => ["unreachable"], "did not come back within 20 s after its reboot";
    "never finishes starting": "effect: starting_for_ever" => ["failed"], "systemd says starting; not done: slow-storage.service";
    "comes back with the old boot id": "effect: same_boot_id" => ["held"], "did not reboot: it went away and answered again";
    "comes back with a missing GPU": "effect: {gpu_missing: 1}" => ["failed"], "came back from its reboot without GPU 1";
    "comes back with MIG mode still pending": "effect: mig_stays_pending" => ["failed"], "its reboot did not make current what waited for it";
    "network cut for 5 s in mid-apply": "function: nvmlDeviceSetMigMode, nth: 1, effect: {cut: 5}" => ["done"], "";
    "helper killed in mid-apply": "function: nvmlDeviceSetMigMode, nth: 2, effect: kill_parent" => ["failed"], "the helper ended with exit code 137; the node itself goes on";
    "GPU process of the helper killed in mid-apply": "function: nvmlDeviceSetMigMode, nth: 2, effect: kill" => ["failed"], "killed by signal 9";
    "disk full in /var/lib/gpufleet": "effect: {full: /var/lib/gpufleet}" => ["failed"], "cannot write /var/lib/gpufleet/";
    "disk full in /etc": "effect: {full: /etc}" => ["failed"], "space";
    "job appears between permit and act": "function: nvmlDeviceSetMigMode, nth: 1, effect: {job: 0}" => ["held", "failed"], "holds";
    "unexpected reboot in mid-apply": "function: nvmlDeviceSetMigMode, nth: 2, effect: power_cut" => ["failed"], "rebooted unexpectedly";
}

const PLAY: &str = "
- name: Rolling MIG reconfiguration
  hosts: gpu
  become: true
  max_unavailable: 2
  tasks:
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}
    - sysctl: {name: vm.swappiness, value: 10}
    - reboot: {when: required, timeout: 20s}
";

impl FaultCase {
    /// Runs the case on its own fleet.
    pub fn run(&self) -> FaultResult {
        let fleet = Fleet::start(&FleetOptions {
            nodes: 3,
            gpus: "a100-80gb",
            faults: format!("- {{nodes: gpu001, {}}}\n- effect: no_reset\n", self.rule),
            states: "- machine: {passthrough: true}\n  enable: [nvidia-dcgm]\n".to_owned(),
            ..FleetOptions::default()
        });
        let home = Home::new();
        home.write("play.yaml", PLAY);
        let begin = Instant::now();
        let done = home
            .gpufleet(["run", "play.yaml", "--yes", "--format", "json", "-i", &fleet.inventory()])
            .within(Duration::from_secs(150))
            .run();
        judge(&fleet, &done, begin.elapsed())
    }
}

impl FaultResult {
    /// Returns what is not as expected, if anything.
    pub fn problem(&self, case: &FaultCase) -> Option<String> {
        if !case.states.contains(&self.state.as_str()) {
            return Some(format!("the node is {} instead of {}", self.state, case.states.join(" or ")));
        }
        if self.state != "done" && !self.message.contains(case.says) {
            return Some(format!("`{}` is not said: {}", case.says, self.message));
        }
        if self.others.iter().any(|state| state != "done") {
            return Some(format!("the others are {}", self.others.join(", ")));
        }
        // Two exceptions: a node that is busy, or that fails before anything was done, stays in service.
        let stays_in =
            self.state == "done" || case.rule.contains("job") || case.rule.contains("/var/lib/gpufleet");
        if !stays_in && self.out_of_service != ["gpu001"] {
            return Some(format!("out of service are {:?}", self.out_of_service));
        }
        if self.reboots > 1 {
            return Some(format!("the node was rebooted {} times", self.reboots));
        }
        let killed = case.rule.contains("job") && self.jobs == 0;
        killed.then(|| "the job was killed".to_owned())
    }
}

fn judge(fleet: &Fleet, done: &Finished, took: Duration) -> FaultResult {
    let document = done.document();
    let names = |list: &serde_json::Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let history = fleet.outages()["nodes"]["gpu001"].clone();
    let described = fleet.described();
    let jobs = described.lines().find_map(|line| line.strip_prefix("gpu001 gpu clients "));
    FaultResult {
        state: document.state("gpu001").to_owned(),
        message: document.message("gpu001").to_owned(),
        code: done.code,
        others: ["gpu002", "gpu003"].map(|name| document.state(name).to_owned()).to_vec(),
        out_of_service: names(&document.value()["out_of_service"]),
        reboots: history["reboots"].as_u64().unwrap_or_default(),
        left_stopped: names(&history["left_stopped"]),
        jobs: jobs.and_then(|text| text.trim().parse().ok()).unwrap_or_default(),
        took,
        said: done.to_string(),
    }
}
