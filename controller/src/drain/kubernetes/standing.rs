//! What a node's object says: whose cordon it is, whether it is out, and the patches that take and give it.
//!
//! Owns the judgement and the annotations; nothing here asks a server. Invariants: what is not surely ours is somebody
//! else's; every patch tests the version of the object that was judged, so that nothing is written to another one.
//!
//! A cordon is ours when the node is unschedulable, our marker stands in its annotation byte for byte, and nobody else has
//! written `spec.unschedulable` since, as the object's `managedFields` tell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Marker, Ownership, Target,
    objects::{Managed, Node},
    operands,
};

/// Whose cordon it is: the marker, alone.
pub(super) const OWNER: &str = "gpufleet.io/owner";
/// Why, for people.
pub(super) const WHY: &str = "gpufleet.io/why";
/// What the node was before: see [`Before`].
pub(super) const BEFORE: &str = "gpufleet.io/before";
/// What is stopped there: see [`operands::Paused`].
pub(super) const PAUSED: &str = "gpufleet.io/paused";
/// Our name in `managedFields`.
pub(super) const MANAGER: &str = "gpufleet";

/// What a node was when it was cordoned; kept in its annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Before {
    #[serde(rename = "bootID")]
    pub(super) boot_id: String,
    pub(super) gpus: BTreeMap<String, u64>,
    /// What offers GPUs there was stopped by a drain that was lost, so that `gpus` may be none of those that it has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) stopped: bool,
}

pub(super) fn standing(node: &Node, marker: &Marker) -> Ownership {
    if !node.spec.unschedulable {
        return Ownership::NotDrained;
    }
    let own = marker.to_string();
    if node.annotation(OWNER) != Some(own.as_str()) {
        return Ownership::Theirs { by: shown(node) };
    }
    match cordoners(node).find(|managed| managed.manager != MANAGER) {
        Some(other) => Ownership::Theirs { by: format!("cordoned anew by {}", who(other)) },
        None => Ownership::Ours,
    }
}

/// The marker of the drain that a node is under, if it is one of ours.
pub(super) fn held_by(node: &Node) -> Option<Marker> {
    if !node.spec.unschedulable {
        return None;
    }
    let text = node.annotation(OWNER)?;
    Marker::parse(text).filter(|marker| marker.to_string() == text)
}

/// Who wrote that no new work may start there.
fn cordoners(node: &Node) -> impl Iterator<Item = &Managed> {
    let wrote = |managed: &&Managed| managed.fields.pointer("/f:spec/f:unschedulable").is_some();
    node.metadata.managed_fields.iter().filter(wrote)
}

fn who(managed: &Managed) -> String {
    match managed.time {
        Some(time) => format!("{} at {time}", managed.manager),
        None => managed.manager.clone(),
    }
}

/// Who cordoned it.
fn shown(node: &Node) -> String {
    if let Some(marker) = held_by(node) {
        let why = node.annotation(WHY).map(|why| format!(": {why}")).unwrap_or_default();
        return format!("cordoned by gpufleet run {}{why}", marker.run);
    }
    match cordoners(node).last() {
        Some(managed) => format!("cordoned by {}", who(managed)),
        None => "cordoned by somebody else".to_owned(),
    }
}

/// Why a node takes no work, whatever caused it; `None` when it does.
pub(super) fn outage(node: &Node) -> Option<String> {
    let cordoned = node.spec.unschedulable.then(|| shown(node));
    match (cordoned, silence(node)) {
        (Some(cordoned), Some(silence)) => Some(format!("{cordoned}; {silence}")),
        (cordoned, silence) => cordoned.or(silence),
    }
}

/// How its kubelet fails, where it does.
pub(super) fn silence(node: &Node) -> Option<String> {
    match node.ready() {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => {
            let since = ready.last_transition_time.map(|time| format!(" since {time}")).unwrap_or_default();
            Some(format!("not ready{since} ({})", ready.reason))
        }
        None => Some("not ready, it never was".to_owned()),
    }
}

/// Why the cluster's node is not proven to be the host that is in this boot; `None` where it is.
pub(super) fn stranger(target: &Target, node: &Node, boot: &str) -> Option<String> {
    let Target { host, node: name } = target;
    match node.status.node_info.boot_id.as_str() {
        now if now == boot => None,
        "" => Some(format!(
            "the cluster does not tell the boot of its node {name} (status.nodeInfo.bootID), so that nothing proves that it is {host}; \
             see why its kubelet cannot read /proc/sys/kernel/random/boot_id"
        )),
        now => Some(format!(
            "the cluster's node {name} is in boot {now}, and {host} in boot {boot}: `node` names another machine, or its kubelet has \
             not told of its last boot; compare `kubectl get node {name} -o jsonpath={{.status.nodeInfo.bootID}}` with \
             /proc/sys/kernel/random/boot_id of {host}"
        )),
    }
}

pub(super) fn evidence(node: &Node) -> String {
    let mut text = format!(
        "{OWNER}={} resourceVersion={}",
        node.annotation(OWNER).unwrap_or("-"),
        node.metadata.resource_version
    );
    if !node.status.node_info.boot_id.is_empty() {
        text.push_str(&format!(" bootID={}", node.status.node_info.boot_id));
    }
    text
}

/// What the node was before our cordon, as it tells itself.
pub(super) fn before(node: &Node) -> Before {
    node.annotation(BEFORE).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Cordons a node that no one holds.
pub(super) fn cordon(node: &Node, marker: &Marker, why: &str) -> Vec<Value> {
    let before = Before {
        boot_id: node.status.node_info.boot_id.clone(),
        gpus: operands::advertised(node),
        stopped: operands::hides_gpus(node),
    };
    let mut patch = vec![same(node)];
    if node.metadata.annotations.is_empty() {
        patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    patch.push(annotate(OWNER, &marker.to_string()));
    patch.push(annotate(WHY, why));
    patch.push(annotate(BEFORE, &serde_json::to_string(&before).unwrap_or_default()));
    patch.extend(operands::inherit(node, &marker.to_string()));
    patch.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
    patch
}

/// Takes the cordon and all our marks off a node that is ours.
pub(super) fn uncordon(node: &Node, marker: &Marker) -> Vec<Value> {
    let mut patch = vec![same(node), owned(marker)];
    for key in [OWNER, WHY, BEFORE, PAUSED] {
        if node.annotation(key).is_some() {
            patch.push(json!({"op": "remove", "path": pointer("annotations", key)}));
        }
    }
    if node.spec.unschedulable {
        patch.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
    }
    patch
}

/// Takes all our marks off a node that is not ours, with what this drain stopped brought back; empty where there is
/// nothing of it. The cordon is not touched.
pub(super) fn abandon(node: &Node, marker: &Marker) -> Vec<Value> {
    let own = marker.to_string();
    let mut changes: Vec<Value> = operands::labels_back(node, &own);
    let marked = node.annotation(OWNER) == Some(own.as_str());
    let paused = operands::paused(node).is_some_and(|record| record.by == own);
    for (key, ours) in [(OWNER, marked), (WHY, marked), (BEFORE, marked), (PAUSED, paused)] {
        if ours && node.annotation(key).is_some() {
            changes.push(json!({"op": "remove", "path": pointer("annotations", key)}));
        }
    }
    if !changes.is_empty() {
        changes.insert(0, same(node));
    }
    changes
}

/// The object is the one that was judged.
pub(super) fn same(node: &Node) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version})
}

/// The cordon is ours byte for byte.
pub(super) fn owned(marker: &Marker) -> Value {
    json!({"op": "test", "path": pointer("annotations", OWNER), "value": marker.to_string()})
}

pub(super) fn annotate(key: &str, value: &str) -> Value {
    json!({"op": "add", "path": pointer("annotations", key), "value": value})
}

/// The place of an annotation or a label, as JSON pointers are written.
pub(super) fn pointer(what: &str, key: &str) -> String {
    format!("/metadata/{what}/{}", key.replace('~', "~0").replace('/', "~1"))
}
