//! What NVIDIA's operator runs on a node for its GPUs, stopped for a change and brought back.
//!
//! Owns the labels by which that is done, and what a node advertises. Nothing here asks a server. Invariants:
//! * what a label said before is on the node, in an annotation, before and as long as the label says "paused";
//! * a label that someone changed since is left as it is.
//!
//! Source: `nvidia.com/gpu.deploy.*` and the value `paused-for-mig-change`: mig-parted's reconfigure-mig.sh.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::GpuOffer;
use super::objects::Node;
use super::standing::{PAUSED, annotate, pointer};

/// Offers GPUs to pods.
pub(super) const PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";
/// Those that hold GPUs open or count them; each is a DaemonSet with this label in its node selector.
const LABELS: [&str; 5] = [
    PLUGIN,
    "nvidia.com/gpu.deploy.gpu-feature-discovery",
    "nvidia.com/gpu.deploy.dcgm-exporter",
    "nvidia.com/gpu.deploy.dcgm",
    "nvidia.com/gpu.deploy.nvsm",
];
/// The operator's own word, so that mig-manager and people read it right.
pub(super) const STOPPED: &str = "paused-for-mig-change";
const RUNS: &str = "true";
const MIG_MANAGER: &str = "nvidia.com/gpu.deploy.mig-manager";
pub(super) const MIG_CONFIG: &str = "nvidia.com/mig.config";
const MIG_STATE: &str = "nvidia.com/mig.config.state";
/// How the device plugin names what is under MIG: `none`, `single` or `mixed`.
pub(super) const STRATEGY: &str = "nvidia.com/mig.strategy";
const GPU: &str = "nvidia.com/gpu";

/// What is stopped on a node, and by whom; kept in the node's annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Paused {
    /// The marker of the drain.
    pub(super) by: String,
    /// What each label said.
    pub(super) labels: BTreeMap<String, String>,
    /// DaemonSets that had a pod there, as `namespace/name`.
    pub(super) daemons: Vec<String>,
}

/// What is stopped there, as the annotation says.
pub(super) fn paused(node: &Node) -> Option<Paused> {
    serde_json::from_str(node.annotation(PAUSED)?).ok()
}

/// Labels of what runs there and can be stopped; none where there is no such operator.
pub(super) fn running(node: &Node) -> Vec<&'static str> {
    LABELS.into_iter().filter(|label| node.label(label) == Some(RUNS)).collect()
}

/// Whether a DaemonSet with this node selector runs because of one of the labels.
pub(super) fn selects(selector: &BTreeMap<String, String>) -> bool {
    selector.keys().any(|key| LABELS.contains(&key.as_str()))
}

/// What an earlier drain stopped and did not bring back becomes this one's to bring back; `None` where there is nothing.
pub(super) fn inherit(node: &Node, by: &str) -> Option<Value> {
    let record = Paused { by: by.to_owned(), ..paused(node).filter(|record| record.by != by)? };
    Some(annotate(PAUSED, &serde_json::to_string(&record).unwrap_or_default()))
}

/// What of that record is stopped there now.
pub(super) fn stopped(node: &Node) -> Paused {
    let mut record = paused(node).unwrap_or_default();
    record.labels.retain(|label, _| node.label(label) == Some(STOPPED));
    record
}

/// Whether an earlier drain stopped what offers the node's GPUs, and they may not be offered again yet.
pub(super) fn hides_gpus(node: &Node) -> bool {
    // Why the label: where nothing of the operator's offers them, nothing of this brings them back.
    paused(node).is_some() && matches!(node.label(PLUGIN), Some(RUNS | STOPPED))
}

/// The record of a node on which what runs is stopped, with these DaemonSets besides.
pub(super) fn to_pause(node: &Node, by: &str, daemons: Vec<String>) -> Paused {
    let mut record = paused(node).unwrap_or_default();
    by.clone_into(&mut record.by);
    record.daemons.extend(daemons);
    record.daemons.sort();
    record.daemons.dedup();
    record.labels.extend(running(node).iter().map(|label| ((*label).to_owned(), RUNS.to_owned())));
    record
}

/// Stops what runs there.
pub(super) fn pause(node: &Node, record: &Paused) -> Vec<Value> {
    let text = serde_json::to_string(record).unwrap_or_default();
    let mut patch = vec![annotate(PAUSED, &text)];
    patch.extend(running(node).iter().map(|label| label_is(label, STOPPED)));
    patch
}

/// Brings back what this drain stopped; nothing where it stopped nothing.
pub(super) fn restore(node: &Node, by: &str) -> Vec<Value> {
    let mut patch = labels_back(node, by);
    let Some(record) = paused(node).filter(|_| !patch.is_empty()) else { return Vec::new() };
    // Why the record stays with no labels: what it names has to be seen running again before the node is given back.
    let left = Paused { labels: BTreeMap::new(), ..record };
    patch.push(annotate(PAUSED, &serde_json::to_string(&left).unwrap_or_default()));
    patch
}

/// How a person brings back what is stopped by this record; `None` where nothing is.
pub(super) fn how_to_restore(node: &str, record: &Paused) -> Option<String> {
    let labels: Vec<String> =
        record.labels.iter().map(|(label, before)| format!("{label}={before}")).collect();
    (!labels.is_empty()).then(|| {
        format!(
            "labels of node {node} are still {STOPPED}: `kubectl label node {node} --overwrite {}` brings back what they stopped",
            labels.join(" ")
        )
    })
}

/// The same for a node that was not read.
pub(super) fn how_to_look(node: &str) -> String {
    format!(
        "labels of node {node} may still be {STOPPED} (`kubectl get node {node} --show-labels`): `kubectl label node {node} --overwrite \
         LABEL={RUNS}` brings back what each stopped"
    )
}

/// The labels alone, as they were; those that someone changed since are left.
pub(super) fn labels_back(node: &Node, by: &str) -> Vec<Value> {
    let Some(record) = paused(node).filter(|record| record.by == by) else { return Vec::new() };
    let stopped = record.labels.iter().filter(|(label, _)| node.label(label) == Some(STOPPED));
    stopped.map(|(label, before)| label_is(label, before)).collect()
}

fn label_is(label: &str, value: &str) -> Value {
    json!({"op": "add", "path": pointer("labels", label), "value": value})
}

/// Who lays out MIG on a node, unless it is only us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MigManager {
    Absent,
    /// It holds the node to this configuration.
    Owns(String),
    /// It changes the layout right now; the state that it shows.
    Works(String),
}

pub(super) fn mig_manager(node: &Node) -> MigManager {
    if let Some(state) = node.label(MIG_STATE).filter(|state| matches!(*state, "pending" | "rebooting")) {
        return MigManager::Works(state.to_owned());
    }
    match (node.label(MIG_MANAGER), node.label(MIG_CONFIG)) {
        (Some(RUNS | STOPPED), Some(config)) => MigManager::Owns(config.to_owned()),
        _ => MigManager::Absent,
    }
}

/// Whether mig-manager runs there, so that it lays out MIG as soon as its label changes.
pub(super) fn follows_mig_config(node: &Node) -> bool {
    matches!(node.label(MIG_MANAGER), Some(RUNS | STOPPED))
}

/// How far mig-manager is with a configuration that it is to lay out.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// It does not run there.
    None,
    /// The changes that tell it.
    ToGive(Vec<Value>),
    /// The state that it shows.
    UnderWay(String),
    Done,
    Failed,
}

pub(super) fn order(node: &Node, config: &str) -> Order {
    if node.label(MIG_MANAGER) != Some(RUNS) {
        return Order::None;
    }
    if node.label(MIG_CONFIG) != Some(config) {
        let mut changes = vec![label_is(MIG_CONFIG, config)];
        // Why: what it says until it has seen the order is about the layout before.
        if node.label(MIG_STATE).is_some() {
            changes.push(json!({"op": "remove", "path": pointer("labels", MIG_STATE)}));
        }
        return Order::ToGive(changes);
    }
    match node.label(MIG_STATE) {
        Some("success") => Order::Done,
        Some("failed") => Order::Failed,
        state => Order::UnderWay(state.unwrap_or("not seen yet").to_owned()),
    }
}

/// Takes the layout from mig-manager for good: it would lay the node out anew at its next start.
pub(super) fn dismiss_mig_manager() -> Value {
    label_is(MIG_MANAGER, "false")
}

/// What a node offers to pods, by resource; none that is zero.
pub(super) fn advertised(node: &Node) -> BTreeMap<String, u64> {
    let gpu = |name: &str| name.starts_with("nvidia.com/gpu") || name.starts_with("nvidia.com/mig-");
    let amounts = node.status.allocatable.iter().filter(|(name, _)| gpu(name));
    amounts
        .filter_map(|(name, amount)| Some((name.clone(), amount.parse().ok()?)))
        .filter(|(_, amount)| *amount > 0)
        .collect()
}

/// What is missing of what a node offered before.
pub(super) fn missing(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Option<String> {
    let enough = before.iter().all(|(name, amount)| now.get(name).is_some_and(|now| now >= amount));
    (!enough).then(|| format!("it advertises {}, before it was {}", shown(now), shown(before)))
}

/// What differs between what a node advertises and what its GPUs are. `labels` are the node's.
pub(super) fn wrong(
    offer: &GpuOffer,
    now: &BTreeMap<String, u64>,
    labels: &BTreeMap<String, String>,
) -> Option<String> {
    let strategy = labels.get(STRATEGY).map(String::as_str);
    let strategies = match &strategy {
        Some(one) => std::slice::from_ref(one),
        // Why not `none`: whole GPUs under MIG, as a plugin goes on to offer that did not start anew, run nothing.
        None => &["mixed", "single"],
    };
    let seen = devices(now, labels);
    let wanted: Vec<_> = strategies.iter().map(|strategy| wanted(offer, strategy)).collect();
    let same = |wanted: &BTreeMap<String, u64>| match offer.more {
        false => *wanted == seen,
        true => !seen.is_empty(),
    };
    if wanted.iter().any(same) {
        return None;
    }
    let mut texts: Vec<String> = wanted.iter().map(shown).collect();
    texts.dedup();
    let by = strategy.map(|strategy| format!(" by {STRATEGY}={strategy}")).unwrap_or_default();
    Some(format!(
        "it advertises {}, and its GPUs are {}{by}; the device plugin sees a layout when it starts, so that its pod there may \
         have to be restarted",
        shown(now),
        texts.join(" or ")
    ))
}

/// What a device plugin makes of these GPUs; none that is zero.
///
/// Source: `getMigStrategy` and the naming of MIG resources in NVIDIA's k8s-device-plugin (internal/rm, internal/lm).
fn wanted(offer: &GpuOffer, strategy: &str) -> BTreeMap<String, u64> {
    let instances: u64 = offer.instances.values().sum();
    let mut wanted = BTreeMap::new();
    match strategy {
        "none" => _ = wanted.insert(GPU.to_owned(), offer.whole + offer.divided),
        "single" => _ = wanted.insert(GPU.to_owned(), offer.whole + instances),
        _ => {
            wanted.insert(GPU.to_owned(), offer.whole);
            for (profile, count) in &offer.instances {
                wanted.insert(format!("nvidia.com/mig-{}", profile.replace('+', ".")), *count);
            }
        }
    }
    wanted.retain(|_, count| *count > 0);
    wanted
}

/// What a node advertises as devices: without what time-slicing makes of each.
fn devices(now: &BTreeMap<String, u64>, labels: &BTreeMap<String, String>) -> BTreeMap<String, u64> {
    let mut devices = BTreeMap::new();
    for (name, amount) in now {
        let name = name.strip_suffix(".shared").unwrap_or(name);
        let replicas = labels.get(&format!("{name}.replicas")).and_then(|text| text.parse().ok());
        *devices.entry(name.to_owned()).or_default() += amount / replicas.unwrap_or(1).max(1);
    }
    devices
}

fn shown(amounts: &BTreeMap<String, u64>) -> String {
    let all: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    if all.is_empty() { "no GPUs".to_owned() } else { all.join(", ") }
}
