//! The scheduler: binds pods to nodes that are ready, not cordoned, tolerated and have the devices.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster::{Actor, Cluster};
use crate::object::{self, flag, is_true, set, set_condition, terminating, text};
use crate::resources::{NODES, PODS};
use crate::selector::tolerates;

/// Returns a pod's requests for `nvidia.com/*`.
fn wants(pod: &Value) -> BTreeMap<String, i64> {
    let mut sum = BTreeMap::new();
    for container in object::list(pod, "/spec/containers") {
        for (name, count) in
            container.pointer("/resources/limits").and_then(Value::as_object).into_iter().flatten()
        {
            if name.starts_with("nvidia.com/") {
                *sum.entry(name.clone()).or_default() += number(count);
            }
        }
    }
    sum
}

fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default()
}

fn finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether a node's labels match a pod's `nodeSelector`.
pub(crate) fn selected(pod_spec: &Value, node: &Value) -> bool {
    let wanted = pod_spec.get("nodeSelector").and_then(Value::as_object);
    wanted.into_iter().flatten().all(|(key, value)| object::label(node, key) == value.as_str())
}

impl Cluster {
    pub(crate) fn schedule_pods(&mut self) {
        let waiting: Vec<Value> = self
            .store
            .all(&PODS, "")
            .filter(|p| text(p, "/spec/nodeName").is_empty() && !terminating(p) && !finished(p))
            .cloned()
            .collect();
        for pod in waiting {
            match self.place(&pod) {
                Some(node) => self.bind(&pod, &node),
                None => self.unschedulable(&pod),
            }
        }
    }

    /// Returns the node with the fewest pods among those that fit.
    fn place(&self, pod: &Value) -> Option<String> {
        let wanted = wants(pod);
        let mut best: Option<(usize, String)> = None;
        for node in self.store.all(&NODES, "") {
            let blocked = object::list(node, "/spec/taints")
                .iter()
                .any(|t| text(t, "/effect") != "PreferNoSchedule" && tolerates(pod, t).is_none());
            let cordoned = flag(node, "/spec/unschedulable")
                && tolerates(
                    pod,
                    &json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}),
                )
                .is_none();
            if blocked || cordoned || !is_true(node, "Ready") || !selected(&pod["spec"], node) {
                continue;
            }
            let name = object::name(node);
            let there: Vec<&Value> = self
                .store
                .all(&PODS, "")
                .filter(|p| text(p, "/spec/nodeName") == name && !finished(p))
                .collect();
            let fits = wanted.iter().all(|(device, count)| {
                let used: i64 = there.iter().map(|p| wants(p).get(device).copied().unwrap_or_default()).sum();
                let has = node
                    .pointer("/status/allocatable")
                    .and_then(|a| a.get(device))
                    .map(number)
                    .unwrap_or_default();
                used + count <= has
            });
            if fits && best.as_ref().is_none_or(|(count, _)| there.len() < *count) {
                best = Some((there.len(), name.to_owned()));
            }
        }
        best.map(|(_, name)| name)
    }

    /// Binds a pod to a node.
    pub(crate) fn bind(&mut self, pod: &Value, node: &str) {
        let now_ms = self.now_ms;
        // No field ownership: a binding is a subresource, whose writer the real server does not record either.
        let mut bound = pod.clone();
        set(&mut bound, &["spec", "nodeName"], json!(node));
        set_condition(
            &mut bound,
            now_ms,
            json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}),
        );
        self.commit(&Actor::new("system:kube-scheduler", "kube-scheduler"), &PODS, bound);
    }

    fn unschedulable(&mut self, pod: &Value) {
        let now_ms = self.now_ms;
        let nodes = self.store.all(&NODES, "").count();
        self.amend(&Actor::new("system:kube-scheduler", "kube-scheduler"), &PODS, pod, "status", |pod| {
            let condition = json!({
                "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": null,
                "reason": "Unschedulable", "message": format!("0/{nodes} nodes are available."),
            });
            set_condition(pod, now_ms, condition);
        });
    }
}
