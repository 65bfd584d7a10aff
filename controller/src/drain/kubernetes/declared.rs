//! What a play declares of a node's own object: its labels and taints, and what it must offer to pods.
//!
//! Owns the comparison, the patch, and whose key it is; nothing here asks a server. Invariants: every patch tests the version
//! of the object that was compared, so that nothing is written over a change that was not seen; a key that somebody else
//! writes is refused before anything is changed.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    Change, Disruption, Property, Subject, change,
    kubernetes::{PLACES, quantity},
    tasks::{KubernetesNode, Presence},
};
use serde_json::{Value, json};

use super::{
    super::GpuOffer,
    eviction::shortened,
    objects::{Managed, Node},
    operands,
    standing::{MANAGER, pointer, same, silence},
};

/// How much of a value of the server's is shown, in characters.
const SHOWN: usize = 120;

/// What differs of labels and taints, and the patch that makes it as declared.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    pub(super) patch: Vec<Value>,
}

/// Compares labels and taints.
///
/// # Errors
/// Whose key it is that would change.
pub(super) fn plan(node: &Node, declared: &KubernetesNode) -> Result<Plan, String> {
    let mut plan = Plan::default();
    labels(node, declared, &mut plan)?;
    taints(node, declared, &mut plan);
    if !plan.patch.is_empty() {
        plan.patch.insert(0, same(node));
    }
    Ok(plan)
}

fn labels(node: &Node, declared: &KubernetesNode, plan: &mut Plan) -> Result<(), String> {
    for (key, wanted) in declared.labels() {
        let found = node.label(key);
        if found == wanted.as_deref() {
            continue;
        }
        may_be_written(node, key)?;
        let mut change = Change::new(
            Subject::KubernetesLabel { key: key.to_owned() },
            Property::VALUE,
            found.map(shown),
            wanted.as_deref().map(shown),
            Disruption::Live,
        );
        if found.is_some() {
            change = change.with_note("pods of DaemonSets that select it as it was leave the node");
        }
        plan.changes.push(change);
        if node.metadata.labels.is_empty() && plan.patch.is_empty() {
            plan.patch.push(json!({"op": "add", "path": "/metadata/labels", "value": {}}));
        }
        let path = pointer("labels", key);
        plan.patch.push(match wanted {
            Some(value) => json!({"op": "add", "path": path, "value": value}),
            None => json!({"op": "remove", "path": path}),
        });
    }
    Ok(())
}

/// Whether a label is ours to write on this node.
fn may_be_written(node: &Node, key: &str) -> Result<(), String> {
    if key == operands::MIG_CONFIG && operands::follows_mig_config(node) {
        return Err(format!(
            "mig-manager runs on the node, and lays out its MIG anew as soon as `{key}` changes; \
             `drain: {{kubernetes: {{mig_manager: {{label: CONFIG}}}}}}` has it do that on a drained node"
        ));
    }
    if PLACES.contains(&key) {
        place_is_free(node, key)?;
    }
    let Some(owner) = owner(node, key) else { return Ok(()) };
    let name = &node.metadata.name;
    Err(format!(
        "the label `{key}` was written by {owner}, as the node's managedFields say, which may write it again; declare it there, or take \
         it over by hand (`kubectl label node {name} {key}=VALUE --overwrite`)"
    ))
}

/// Whether no cloud writes where the node is, or is about to.
fn place_is_free(node: &Node, key: &str) -> Result<(), String> {
    if node.spec.taints.iter().any(|taint| taint.key == UNINITIALIZED) {
        return Err(format!(
            "the node has the taint {UNINITIALIZED}: a cloud controller manager has yet to tell where it is, and writes `{key}`"
        ));
    }
    let is_there = node.label(key).is_some();
    if is_there && !node.metadata.managed_fields.iter().any(|managed| wrote(managed, key)) {
        return Err(format!(
            "the node has `{key}`, and its managedFields do not say who wrote it: a cloud controller manager may write it again"
        ));
    }
    Ok(())
}

/// Until a cloud controller manager has told where a node is, it has this taint. Source: Kubernetes' well-known taints.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

fn wrote(managed: &Managed, key: &str) -> bool {
    let escaped = key.replace('~', "~0").replace('/', "~1");
    managed.fields.pointer(&format!("/f:metadata/f:labels/f:{escaped}")).is_some()
}

/// Who wrote a label, unless it was a person with kubectl, or gpufleet; `None` also where a server does not tell.
fn owner(node: &Node, key: &str) -> Option<String> {
    let ours = |manager: &str| manager == MANAGER || manager == "kubectl" || manager.starts_with("kubectl-");
    let mut writers = node.metadata.managed_fields.iter().filter(|managed| wrote(managed, key));
    writers.find(|managed| !ours(&managed.manager)).map(|managed| shown(&managed.manager))
}

fn taints(node: &Node, declared: &KubernetesNode, plan: &mut Plan) {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for taint in &declared.taints {
        let effect = taint.effect.as_str();
        let found =
            node.spec.taints.iter().position(|known| known.key == taint.key && known.effect == effect);
        let before = found.and_then(|at| node.spec.taints.get(at)).map(|known| known.value.as_str());
        let wanted = (taint.state == Presence::Present).then(|| taint.value());
        if before == wanted.as_deref() {
            continue;
        }
        plan.changes.push(Change::new(
            Subject::KubernetesTaint { key: taint.key.clone(), effect: effect.to_owned() },
            Property::VALUE,
            before.map(shown),
            wanted.as_deref().map(shown),
            Disruption::Live,
        ));
        match (found, wanted) {
            (Some(at), Some(value)) => {
                // Why the place: it is that of the version that the patch tests.
                plan.patch
                    .push(json!({"op": "add", "path": format!("/spec/taints/{at}/value"), "value": value}));
            }
            (Some(at), None) => removed.push(at),
            (None, Some(value)) => {
                added.push(json!({"key": taint.key, "value": value, "effect": effect}));
            }
            (None, None) => {}
        }
    }
    // Why from the last: each removal moves those behind it.
    removed.sort_unstable();
    let places = removed.into_iter().rev();
    plan.patch.extend(places.map(|at| json!({"op": "remove", "path": format!("/spec/taints/{at}")})));
    if !added.is_empty() && node.spec.taints.is_empty() {
        plan.patch.push(json!({"op": "add", "path": "/spec/taints", "value": []}));
    }
    plan.patch.extend(
        added.into_iter().map(|taint| json!({"op": "add", "path": "/spec/taints/-", "value": taint})),
    );
}

/// A value as a change shows it; one that is empty has to be seen.
fn shown(value: &str) -> String {
    if value.is_empty() { "\"\"".to_owned() } else { shortened(value, SHOWN) }
}

/// What of the node's offer to pods is not as declared, ready to show.
///
/// # Errors
/// Why that cannot be told.
pub(super) fn misses(
    node: &Node,
    declared: &KubernetesNode,
    offer: Option<&GpuOffer>,
) -> Result<Option<String>, String> {
    let mut wrong = Vec::new();
    for (name, amount) in declared.allocatable() {
        if amount == KubernetesNode::WORKING {
            let Some(offer) = offer else {
                return Err(
                    "the node could not tell all of its GPUs, so that nobody knows how many work".to_owned()
                );
            };
            if let Some(why) = operands::wrong(offer, &operands::advertised(node), &node.metadata.labels) {
                wrong.push(format!("{why}{}", cause(node, name)));
            }
            continue;
        }
        let found = node.status.allocatable.get(name).map_or("0", String::as_str);
        let told = shown(found);
        match (quantity(found), quantity(&amount)) {
            (Some(found), Some(wanted)) if found == wanted => {}
            (Some(_), Some(_)) => {
                wrong.push(format!("it offers {name}={told}, declared {amount}{}", cause(node, name)));
            }
            _ => return Err(format!("the cluster tells {name}={told}, which is no quantity")),
        }
    }
    Ok((!wrong.is_empty()).then(|| wrong.join("; ")))
}

/// What may be the reason, as the end of a sentence; empty where nothing tells.
fn cause(node: &Node, resource: &str) -> String {
    let told = |why: &str| format!(" ({why})");
    if let Some(silence) = silence(node) {
        return told(&format!("the node is {}", shown(&silence)));
    }
    if !resource.starts_with("nvidia.com/") {
        return String::new();
    }
    if !operands::stopped(node).labels.is_empty() {
        return told("a drain of gpufleet has the device plugin stopped");
    }
    let amount = |of: &BTreeMap<String, String>| of.get(resource).and_then(|amount| quantity(amount));
    let (has, offers) =
        (amount(&node.status.capacity).unwrap_or(0), amount(&node.status.allocatable).unwrap_or(0));
    if has > offers {
        return told(&format!(
            "the device plugin takes {} of {} for unhealthy, or did not register since the kubelet started: see its log and XIDs",
            (has - offers) / 1000,
            has / 1000
        ));
    }
    if let operands::MigManager::Works(state) = operands::mig_manager(node) {
        return told(&format!("mig-manager lays out its MIG now ({})", shown(&state)));
    }
    match node.label(operands::PLUGIN) {
        Some("true") | None => {}
        Some(other) => {
            return told(&format!("{}={} keeps the device plugin off", operands::PLUGIN, shown(other)));
        }
    }
    match node.label(operands::STRATEGY) {
        Some(strategy) => told(&format!(
            "{}={}; else the device plugin's pod may not be ready",
            operands::STRATEGY,
            shown(strategy)
        )),
        None => told("the device plugin's pod there may not be ready"),
    }
}

/// What a node has again after a patch that was carried out, ready to show.
pub(super) fn came_back(changes: &[Change], node: &str) -> String {
    let all: Vec<String> = changes
        .iter()
        .map(|change| {
            let found = change.from_text().unwrap_or_else(|| change::Value::Absent.to_string());
            format!("{} is {found} again, right after it was set to {}", change.what(), change.to_text())
        })
        .collect();
    format!("{}; see who writes it (`kubectl get node {node} -o yaml --show-managed-fields`)", all.join("; "))
}
