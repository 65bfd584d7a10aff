//! Nodes of the lab that are nodes of a real Slurm cluster too: the lab's `gpu001` is Slurm's `gpu1`.
//!
//! Owns both, the home of gpufleet's user, and the thread that reports each boot of a machine through its slurmd.
//! Makes no assumption about gpufleet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use gpufleet_tests::{Command, Fleet, FleetOptions, Home};

use crate::{Cluster, ClusterOptions};

/// Maps a lab's name to Slurm's.
const NODE: &str = "gpu{{ inventory_hostname[3:] | int }}";

/// When each node's slurmd began to report a new boot.
type Starts = Mutex<Vec<(usize, SystemTime)>>;

/// The running cluster and its nodes.
pub struct SlurmFleet {
    pub cluster: Arc<Cluster>,
    pub fleet: Arc<Fleet>,
    pub home: Home,
    starts: Arc<Starts>,
    stop: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
}

impl SlurmFleet {
    /// Starts both. With `reboots` the GPUs cannot be reset, so that only a reboot makes the MIG mode current.
    pub fn start(nodes: usize, return_to_service: u8, reboots: bool) -> Self {
        let cluster = Arc::new(Cluster::start(ClusterOptions { nodes, return_to_service }));
        let (faults, states) = match reboots {
            true => ("- effect: no_reset\n", "- machine: {passthrough: true}\n"),
            false => ("", ""),
        };
        let fleet = Arc::new(Fleet::start(&FleetOptions {
            nodes,
            gpus: "a100-80gb",
            faults: faults.to_owned(),
            states: states.to_owned(),
            // Two, because Slurm records boots by the second.
            boot_seconds: 2.0,
            ..FleetOptions::default()
        }));
        let (stop, starts) = (Arc::new(AtomicBool::new(false)), Arc::new(Starts::default()));
        let follower = {
            let (cluster, fleet, stop) = (Arc::clone(&cluster), Arc::clone(&fleet), Arc::clone(&stop));
            let starts = Arc::clone(&starts);
            std::thread::spawn(move || follow(&cluster, &fleet, &stop, nodes, &starts))
        };
        Self { cluster, fleet, home: Home::new(), starts, stop, follower: Some(follower) }
    }

    /// Writes a rolling MIG reconfiguration with these further settings of `slurm`, in YAML's flow style.
    pub fn write_play(&self, budget: usize, more: &str) {
        self.write_rollout(budget, more, "health_gate: [gpu_count, mig_layout]");
    }

    /// Writes it with one more line of `rollout`, by default the health gate.
    pub fn write_rollout(&self, budget: usize, more: &str, line: &str) {
        let text = format!(
            "- name: Rolling MIG reconfiguration
  hosts: gpu
  become: true
  rollout:
    max_unavailable: {budget}
    drain:
      slurm: {{timeout: 90s, node: \"{NODE}\"{more}}}
    {line}
  tasks:
    - gpu_mig: {{mode: enabled, layout: {{3g.40gb: 2}}}}
    - reboot: {{when: required, timeout: 60s}}
"
        );
        self.home.write("play.yaml", &text);
    }

    /// Prepares gpufleet with this cluster's configuration.
    pub fn gpufleet(&self, arguments: &[&str]) -> Command<'_> {
        let command = self.home.gpufleet(arguments).env("SLURM_CONF", self.cluster.conf());
        command.within(Duration::from_secs(150))
    }

    /// Prepares the run of the play.
    pub fn run(&self) -> Command<'_> {
        self.gpufleet(&["run", "play.yaml", "--yes", "--format", "json", "-i", &self.fleet.inventory()])
    }

    /// Returns the number of calls that changed the GPUs of a node.
    pub fn changes(&self, node: usize) -> usize {
        self.fleet.setters(&host(node)).len()
    }

    /// Returns when the slurmd of a node began to report each boot after the first.
    pub fn boots_told(&self, node: usize) -> Vec<SystemTime> {
        let starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.iter().filter(|(of, _)| *of == node).map(|(_, at)| *at).collect()
    }

    /// Returns what Slurm's node shows only while it is held, for messages.
    pub fn traces(&self, node: usize) -> Option<String> {
        let line = self.cluster.show(node);
        let marks = ["DRAIN", "DOWN", "Reason=", "Extra=gpufleet", "Comment=gpufleet"];
        marks.iter().any(|mark| line.contains(mark)).then_some(line)
    }

    /// Returns the number of runs that hold the lock in Slurm.
    pub fn locks(&self) -> usize {
        self.cluster.admin(&["scontrol", "-a", "show", "reservation", "-o"]).matches("gpufleet_").count()
    }
}

/// Returns the lab's name of Slurm's node.
pub fn host(node: usize) -> String {
    format!("gpu{node:03}")
}

impl Drop for SlurmFleet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(follower) = self.follower.take() {
            let _ = follower.join();
        }
    }
}

/// After each boot of a machine, restarts the node's slurmd as one that has just booted; reboots the machine when its
/// slurmd was told to.
fn follow(cluster: &Cluster, fleet: &Fleet, stop: &AtomicBool, nodes: usize, starts: &Starts) {
    let mut seen = vec![1; nodes];
    while !stop.load(Ordering::Relaxed) {
        for (node, seen) in (1..=nodes).zip(&mut seen) {
            if cluster.takes_order(node) {
                let answer = fleet.ssh(&host(node), "systemctl reboot");
                assert!(matches!(answer.status.code(), Some(0 | 255)), "{answer:?}");
            }
            let boots = fleet.boots(&host(node));
            if boots > *seen {
                *seen = boots;
                cluster.stop_node(node);
                cluster.start_node(node, true);
                starts.lock().unwrap_or_else(PoisonError::into_inner).push((node, SystemTime::now()));
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
