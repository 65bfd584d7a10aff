//! gpu-operator's mig-manager: it follows the label `nvidia.com/mig.config`, pauses other components and reports the
//! result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::timers::Due;
use crate::cluster::{Actor, Cluster};
use crate::object::{self, label, set};
use crate::resources::NODES;
use crate::store::Change;

/// The label that requests a layout.
pub const CONFIG: &str = "nvidia.com/mig.config";
/// The label with the result: `pending`, `success`, `failed`.
pub const STATE: &str = "nvidia.com/mig.config.state";
const PAUSED: &str = "paused-for-mig-change";
const NEIGHBOURS: [&str; 4] = [
    "nvidia.com/gpu.deploy.device-plugin",
    "nvidia.com/gpu.deploy.gpu-feature-discovery",
    "nvidia.com/gpu.deploy.dcgm-exporter",
    "nvidia.com/gpu.deploy.dcgm",
];

/// The state of a node's mig-manager.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MigManager {
    /// The devices of each layout; any other layout fails.
    pub layouts: BTreeMap<String, BTreeMap<String, i64>>,
    /// Whether every change fails, as with a GPU that is in use.
    pub fails: bool,
    /// The last layout that it worked on.
    #[serde(skip)]
    pub seen: String,
}

fn actor() -> Actor {
    Actor::new("system:serviceaccount:gpu-operator:nvidia-mig-manager", "nvidia-mig-manager")
}

impl Cluster {
    /// Starts a change if the label requests another layout.
    pub(crate) fn mig_manager_sees(&mut self, change: &Change) {
        let node = object::name(&change.object).to_owned();
        let wanted = label(&change.object, CONFIG).unwrap_or_default().to_owned();
        // gpu-operator deploys the manager only where this label allows it.
        let deployed = label(&change.object, "nvidia.com/gpu.deploy.mig-manager").is_none_or(|v| v == "true");
        let Some(manager) = self.machines.get_mut(&node).and_then(|m| m.mig.as_mut()) else { return };
        if !deployed || wanted.is_empty() || manager.seen == wanted {
            return;
        }
        manager.seen.clone_from(&wanted);
        self.mig_labels(&node, |labels| {
            set(labels, &[STATE], json!("pending"));
            for key in NEIGHBOURS {
                if labels.get(key).and_then(Value::as_str) == Some("true") {
                    set(labels, &[key], json!(PAUSED));
                }
            }
        });
        let due = Due::MigApplied { node, layout: wanted };
        self.timers.at(self.now_ms + self.settings.mig_apply.0, due);
    }

    /// Ends a change: the devices are replaced, and the paused components start again.
    pub(crate) fn mig_applied(&mut self, node: &str, layout: &str) {
        let Some(manager) = self.machines.get(node).and_then(|m| m.mig.clone()) else { return };
        if manager.seen != layout {
            return;
        }
        if !self.kubelet_runs(node) {
            // Later: the manager is a pod of this node, and continues when it runs again.
            let due = Due::MigApplied { node: node.to_owned(), layout: layout.to_owned() };
            self.timers.at(self.now_ms + self.settings.mig_apply.0, due);
            return;
        }
        let devices = manager.layouts.get(layout).filter(|_| !manager.fails).cloned();
        let state = if devices.is_some() { "success" } else { "failed" };
        if let Some(devices) = devices {
            self.set_devices(node, devices);
        }
        self.mig_labels(node, |labels| {
            set(labels, &[STATE], json!(state));
            for key in NEIGHBOURS {
                if labels.get(key).and_then(Value::as_str) == Some(PAUSED) {
                    set(labels, &[key], json!("true"));
                }
            }
        });
        if self.machines.get(node).is_some_and(|m| m.plugin.is_none()) {
            self.plugin_starts(node);
        }
    }

    fn mig_labels(&mut self, node: &str, change: impl FnOnce(&mut Value)) {
        let Some(object) = self.store.get(&NODES, "", node).cloned() else { return };
        self.amend(&actor(), &NODES, &object, "", |n| {
            if n.pointer("/metadata/labels").is_none() {
                set(n, &["metadata", "labels"], json!({}));
            }
            if let Some(labels) = n.pointer_mut("/metadata/labels") {
                change(labels);
            }
        });
    }
}
