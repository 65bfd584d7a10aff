//! Nodes: their machines, kubelets' heartbeats, reboots, device plugins, and the node controller's reactions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use uuid::Uuid;

use super::mig::MigManager;
use super::timers::Due;
use crate::api::delete::DeleteOptions;
use crate::cluster::{Actor, Cluster};
use crate::object::{self, flag, is_true, set, set_condition, terminating, text};
use crate::resources::{NODES, PODS};
use crate::selector::tolerates;
use crate::store::{Change, ChangeKind};

/// The state of a machine's kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    Running,
    /// Sends heartbeats with `Ready=False`; pods no longer start or end.
    Sick,
    /// Sends nothing: down, cut off or hung.
    Dead,
}

/// The machine behind a node.
#[derive(Clone, Debug)]
pub struct Machine {
    pub kubelet: Kubelet,
    /// When the kubelet entered its state.
    pub since_ms: i64,
    pub boot_id: String,
    /// The GPUs in the hardware: resource name to count. A device plugin reads them only when it starts.
    pub devices: BTreeMap<String, i64>,
    /// The label (`key=value`) of the device plugin's pods; without one it starts with the kubelet.
    pub plugin: Option<(String, String)>,
    pub plugin_since_ms: i64,
    pub mig: Option<MigManager>,
    /// The state file of the simulated machine that this one follows.
    pub lab: Option<PathBuf>,
}

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

impl Cluster {
    pub(crate) fn kubelet_runs(&self, node: &str) -> bool {
        self.machines.get(node).is_some_and(|m| m.kubelet == Kubelet::Running)
    }

    /// Adds a machine to an existing node, ready and with its devices advertised.
    pub fn add_machine(&mut self, node: &str, machine: Machine) {
        let Some(object) = self.store.get(&NODES, "", node).cloned() else { return };
        let (now_ms, boot_id, devices) = (self.now_ms, machine.boot_id.clone(), machine.devices.clone());
        let own_plugin = machine.plugin.is_none();
        self.machines.insert(node.to_owned(), machine);
        self.amend(&Actor::kubelet(node), &NODES, &object, "status", |node| {
            let info = json!({
                "machineID": Uuid::new_v4().simple().to_string(), "systemUUID": Uuid::new_v4().to_string(), "bootID": boot_id,
                "kernelVersion": "6.8.0-60-generic", "osImage": "Ubuntu 24.04.2 LTS", "containerRuntimeVersion": "containerd://2.1.1",
                "kubeletVersion": "v1.36.2", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
            });
            set(node, &["status", "nodeInfo"], info);
            for place in ["capacity", "allocatable"] {
                set(node, &["status", place], json!({"cpu": "64", "memory": "1056Gi", "pods": "110"}));
                if own_plugin {
                    for (name, count) in &devices {
                        set(node, &["status", place, name], json!(count.to_string()));
                    }
                }
            }
            ready(node, now_ms, "True", "KubeletReady", "kubelet is posting ready status");
        });
        self.timers.at(self.now_ms + self.settings.heartbeat.0, Due::Heartbeat { node: node.to_owned() });
    }

    fn enter(&mut self, node: &str, kubelet: Kubelet) -> bool {
        let now_ms = self.now_ms;
        match self.machines.get_mut(node) {
            Some(machine) => {
                machine.kubelet = kubelet;
                machine.since_ms = now_ms;
                true
            }
            None => false,
        }
    }

    fn node_status(&mut self, actor: &Actor, node: &str, change: impl FnOnce(&mut Value)) {
        if let Some(object) = self.store.get(&NODES, "", node).cloned() {
            self.amend(actor, &NODES, &object, "status", change);
        }
    }

    /// Stops the kubelet, so that it is silent.
    pub fn kubelet_dies(&mut self, node: &str) {
        if self.enter(node, Kubelet::Dead) {
            let due = Due::NodeMissed { node: node.to_owned(), since_ms: self.now_ms };
            self.timers.at(self.now_ms + self.settings.node_monitor_grace.0, due);
        }
    }

    /// Breaks the kubelet's runtime, while the kubelet itself runs.
    pub fn kubelet_sick(&mut self, node: &str) {
        if self.enter(node, Kubelet::Sick) {
            let now_ms = self.now_ms;
            self.node_status(&Actor::kubelet(node), node, |n| {
                ready(n, now_ms, "False", "KubeletNotReady", "container runtime is down");
            });
            self.pods_unready(node);
        }
    }

    /// Starts the kubelet: it reports the machine's current state, and is ready a little later.
    pub fn kubelet_starts(&mut self, node: &str) {
        if !self.enter(node, Kubelet::Running) {
            return;
        }
        let now_ms = self.now_ms;
        let boot_id = self.machines.get(node).map(|m| m.boot_id.clone()).unwrap_or_default();
        self.node_status(&Actor::kubelet(node), node, |n| {
            set(n, &["status", "nodeInfo", "bootID"], json!(boot_id));
            no_devices(n);
            ready(
                n,
                now_ms,
                "False",
                "KubeletNotReady",
                "[container runtime status check may not have completed yet]",
            );
        });
        let due = Due::KubeletReady { node: node.to_owned(), since_ms: now_ms };
        self.timers.at(now_ms + self.settings.kubelet_ready.0, due);
        self.restart_pods(node);
    }

    pub(crate) fn kubelet_ready(&mut self, node: &str, since_ms: i64) {
        if !self.machines.get(node).is_some_and(|m| m.kubelet == Kubelet::Running && m.since_ms == since_ms) {
            return;
        }
        let now_ms = self.now_ms;
        self.node_status(&Actor::kubelet(node), node, |n| {
            ready(n, now_ms, "True", "KubeletReady", "kubelet is posting ready status")
        });
        if self.machines.get(node).is_some_and(|m| m.plugin.is_none()) {
            self.plugin_starts(node);
        }
    }

    /// Shuts the machine down, and boots it with a new boot id after a while.
    pub fn reboot(&mut self, node: &str, down_ms: i64) {
        self.kubelet_dies(node);
        self.timers.at(self.now_ms + down_ms, Due::Boot { node: node.to_owned(), since_ms: self.now_ms });
    }

    pub(crate) fn booted(&mut self, node: &str, since_ms: i64) {
        if !self.machines.get(node).is_some_and(|m| m.kubelet == Kubelet::Dead && m.since_ms == since_ms) {
            return;
        }
        self.boot_as(node, Uuid::new_v4().to_string());
    }

    /// Boots the machine with a given boot id.
    pub fn boot_as(&mut self, node: &str, boot_id: String) {
        if let Some(machine) = self.machines.get_mut(node) {
            machine.boot_id = boot_id;
            self.kubelet_starts(node);
        }
    }

    pub(crate) fn node_missed(&mut self, node: &str, since_ms: i64) {
        if !self.settings.controllers.nodes
            || !self.machines.get(node).is_some_and(|m| m.kubelet == Kubelet::Dead && m.since_ms == since_ms)
        {
            return;
        }
        let now_ms = self.now_ms;
        self.node_status(&Actor::controller_manager(), node, |n| {
            ready(n, now_ms, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.");
        });
        self.pods_unready(node);
    }

    fn pods_unready(&mut self, node: &str) {
        let pods: Vec<Value> = self
            .store
            .all(&PODS, "")
            .filter(|p| text(p, "/spec/nodeName") == node && is_true(p, "Ready"))
            .cloned()
            .collect();
        let now_ms = self.now_ms;
        for pod in pods {
            self.amend(&Actor::controller_manager(), &PODS, &pod, "status", |p| {
                super::kubelet::unready(p, now_ms)
            });
        }
    }

    pub(crate) fn heartbeat(&mut self, node: &str) {
        if !self.machines.contains_key(node) || self.store.get(&NODES, "", node).is_none() {
            return;
        }
        self.timers.at(self.now_ms + self.settings.heartbeat.0, Due::Heartbeat { node: node.to_owned() });
        if self.kubelet_runs(node) {
            let now_ms = self.now_ms;
            self.node_status(&Actor::kubelet(node), node, |n| {
                if is_true(n, "Ready") {
                    ready(n, now_ms, "True", "KubeletReady", "kubelet is posting ready status");
                }
            });
        }
    }

    /// Changes the hardware. The node shows it only after its device plugin has started again.
    pub fn set_devices(&mut self, node: &str, devices: BTreeMap<String, i64>) {
        if let Some(machine) = self.machines.get_mut(node) {
            machine.devices = devices;
        }
    }

    /// Follows the pods of device plugins.
    pub(crate) fn plugin_sees(&mut self, node: &str, change: &Change) {
        let Some((key, value)) = self.machines.get(node).and_then(|m| m.plugin.clone()) else { return };
        if object::label(&change.object, &key) != Some(value.as_str()) {
            return;
        }
        let was = change.before.as_ref().is_some_and(|b| is_true(b, "Ready") && !terminating(b));
        let is = change.kind != ChangeKind::Deleted
            && is_true(&change.object, "Ready")
            && !terminating(&change.object);
        if is && !was {
            self.plugin_starts(node);
        } else if was && !is {
            if let Some(machine) = self.machines.get_mut(node) {
                machine.plugin_since_ms = 0;
            }
            self.node_status(&Actor::kubelet(node), node, no_devices);
        }
    }

    /// Starts the device plugin, which registers the devices a little later.
    pub fn plugin_starts(&mut self, node: &str) {
        let now_ms = self.now_ms;
        if let Some(machine) = self.machines.get_mut(node) {
            machine.plugin_since_ms = now_ms;
            let due = Due::PluginReady { node: node.to_owned(), since_ms: now_ms };
            self.timers.at(now_ms + self.settings.plugin_register.0, due);
        }
    }

    pub(crate) fn plugin_ready(&mut self, node: &str, since_ms: i64) {
        let Some(devices) =
            self.machines.get(node).filter(|m| m.plugin_since_ms == since_ms).map(|m| m.devices.clone())
        else {
            return;
        };
        if !self.kubelet_runs(node) {
            return;
        }
        self.node_status(&Actor::kubelet(node), node, |n| {
            no_devices(n);
            for place in ["capacity", "allocatable"] {
                for stale in gpu_names(n, place) {
                    set(n, &["status", place, &stale], json!("0"));
                }
                for (name, count) in &devices {
                    set(n, &["status", place, name], json!(count.to_string()));
                }
            }
        });
    }

    /// Updates the taints that follow from cordons and readiness.
    pub(crate) fn keep_taints(&mut self) {
        let nodes: Vec<Value> = self.store.all(&NODES, "").cloned().collect();
        for node in nodes {
            let status = object::condition(&node, "Ready").map_or("Unknown", |c| text(c, "/status"));
            let mut wanted = Vec::new();
            if flag(&node, "/spec/unschedulable") {
                wanted.push((UNSCHEDULABLE, "NoSchedule"));
            }
            match status {
                "True" => {}
                "False" => wanted.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
                _ => wanted.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
            }
            let mut taints: Vec<Value> = object::list(&node, "/spec/taints")
                .iter()
                .filter(|t| {
                    let ours = [UNSCHEDULABLE, NOT_READY, UNREACHABLE].contains(&text(t, "/key"));
                    !ours || wanted.contains(&(text(t, "/key"), text(t, "/effect")))
                })
                .cloned()
                .collect();
            let mut chased = Vec::new();
            for (key, effect) in wanted {
                if !taints.iter().any(|t| text(t, "/key") == key && text(t, "/effect") == effect) {
                    let taint = json!({"key": key, "effect": effect, "timeAdded": object::time(self.now_ms)});
                    if effect == "NoExecute" {
                        chased.push(taint.clone());
                    }
                    taints.push(taint);
                }
            }
            self.amend(&Actor::controller_manager(), &NODES, &node, "", |n| {
                set(n, &["spec", "taints"], json!(taints));
            });
            for taint in chased {
                self.chase(object::name(&node), &taint);
            }
        }
    }

    /// Schedules the deletion of pods that do not tolerate a taint forever.
    fn chase(&mut self, node: &str, taint: &Value) {
        let pods: Vec<Value> =
            self.store.all(&PODS, "").filter(|p| text(p, "/spec/nodeName") == node).cloned().collect();
        for pod in pods {
            let after_ms = match tolerates(&pod, taint) {
                Some(None) => continue,
                Some(Some(seconds)) => seconds * 1000,
                None => 0,
            };
            let (namespace, name, uid) = (
                object::namespace(&pod).to_owned(),
                object::name(&pod).to_owned(),
                object::uid(&pod).to_owned(),
            );
            self.timers.at(self.now_ms + after_ms, Due::TaintEviction { namespace, name, uid });
        }
    }

    pub(crate) fn taint_eviction(&mut self, namespace: &str, name: &str, uid: &str) {
        let Some(pod) = self
            .store
            .get(&PODS, namespace, name)
            .filter(|p| object::uid(p) == uid && !terminating(p))
            .cloned()
        else {
            return;
        };
        let still = self.store.get(&NODES, "", text(&pod, "/spec/nodeName")).is_some_and(|node| {
            object::list(node, "/spec/taints")
                .iter()
                .any(|t| text(t, "/effect") == "NoExecute" && tolerates(&pod, t) != Some(None))
        });
        if !still {
            return;
        }
        let (actor, now_ms) = (Actor::controller_manager(), self.now_ms);
        self.amend(&actor, &PODS, &pod, "status", |p| {
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "lastProbeTime": null, "lastTransitionTime": null,
                "reason": "DeletionByTaintManager", "message": "Taint manager: deleting due to NoExecute taint",
            });
            set_condition(p, now_ms, condition);
        });
        // A pod that is gone by now needs no deletion.
        let _ = self.delete(&actor, &PODS, namespace, name, DeleteOptions::default());
    }
}

fn ready(node: &mut Value, now_ms: i64, status: &str, reason: &str, message: &str) {
    let heartbeat = if status == "Unknown" {
        object::condition(node, "Ready").map(|c| c["lastHeartbeatTime"].clone()).unwrap_or_default()
    } else {
        json!(object::time(now_ms))
    };
    let condition = json!({
        "type": "Ready", "status": status, "lastHeartbeatTime": heartbeat, "lastTransitionTime": null, "reason": reason, "message": message,
    });
    set_condition(node, now_ms, condition);
}

fn gpu_names(node: &Value, place: &str) -> Vec<String> {
    let all = node.pointer(&format!("/status/{place}")).and_then(Value::as_object);
    all.into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .filter(|name| name.starts_with("nvidia.com/"))
        .collect()
}

/// Sets the allocatable devices to 0. Capacity stays: the kubelet keeps a resource whose plugin is gone.
fn no_devices(node: &mut Value) {
    for name in gpu_names(node, "allocatable") {
        set(node, &["status", "allocatable", &name], json!("0"));
    }
}
