//! Follows the lab's simulated machines: the nodes' machines here get their boot ids and GPUs.
//!
//! Only reads the lab's state file. A new boot in it starts a kubelet here; changed GPUs are hardware that a device
//! plugin finds when it starts again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvml_sim::state::{Gpu, Machine};
use nvml_sim::store::Store;

use crate::cluster::Cluster;

/// The current state of a simulated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub boot_id: String,
    /// Resource name to count, in the names of a device plugin with strategy `mixed`.
    pub devices: BTreeMap<String, i64>,
}

/// Reads a machine's state file; `None` if there is none.
pub fn read(state: &Path) -> Option<Seen> {
    let machine = Store::new(state).read().ok()?;
    Some(Seen { boot_id: machine.boot_id.clone(), devices: devices(&machine) })
}

fn devices(machine: &Machine) -> BTreeMap<String, i64> {
    let mut devices = BTreeMap::new();
    for gpu in machine.gpus.iter().filter(|g| !g.lost) {
        for name in names(gpu) {
            *devices.entry(name).or_default() += 1;
        }
    }
    devices
}

fn names(gpu: &Gpu) -> Vec<String> {
    if !gpu.mig.current {
        return vec!["nvidia.com/gpu".to_owned()];
    }
    let mut names = Vec::new();
    for instance in &gpu.instances {
        let Some(profile) = gpu.model.model().profile_by_id(instance.profile_id) else { continue };
        let name = profile.name.trim_start_matches("MIG ").replace("+me", ".me").replace('+', ".");
        for compute in &instance.compute_instances {
            // A compute instance that is only a part of its GPU instance is another kind of device.
            let part = if instance.compute_instances.len() > 1 {
                format!("{}c.", compute.size)
            } else {
                String::new()
            };
            names.push(format!("nvidia.com/mig-{part}{name}"));
        }
    }
    names
}

impl Cluster {
    /// Returns the state files that nodes follow.
    pub(crate) fn followed(&self) -> Vec<(String, PathBuf)> {
        self.machines
            .iter()
            .filter_map(|(node, machine)| Some((node.clone(), machine.lab.clone()?)))
            .collect()
    }

    /// Takes over the state of a simulated machine.
    pub(crate) fn follow(&mut self, node: &str, seen: Seen) {
        let Some(machine) = self.machines.get_mut(node) else { return };
        let booted = machine.boot_id != seen.boot_id;
        machine.devices = seen.devices;
        if booted {
            self.boot_as(node, seen.boot_id);
        }
    }
}
