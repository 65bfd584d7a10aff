//! The few fields of Kubernetes' objects that a drain decides by.
//!
//! Owns their shapes alone. Why not the types of k8s-openapi: these read what `kubectl get -o json` prints as well, hold a
//! tenth of the memory for ten thousand nodes, and leave the judgement free of the client. Invariant: a field that is
//! missing is read as absent, never as an error, because servers leave out what is empty.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) finalizers: Vec<String>,
    pub(super) owner_references: Vec<Owner>,
    pub(super) deletion_timestamp: Option<Timestamp>,
    pub(super) managed_fields: Vec<Managed>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) controller: bool,
}

/// Who last wrote which fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Managed {
    pub(super) manager: String,
    pub(super) time: Option<Timestamp>,
    #[serde(rename = "fieldsV1")]
    pub(super) fields: serde_json::Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) metadata: Meta,
    pub(super) spec: NodeSpec,
    pub(super) status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub(super) unschedulable: bool,
    pub(super) taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) effect: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeStatus {
    /// What is there, and what of it pods may have.
    pub(super) capacity: BTreeMap<String, String>,
    pub(super) allocatable: BTreeMap<String, String>,
    pub(super) conditions: Vec<Condition>,
    pub(super) node_info: NodeInfo,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NodeInfo {
    #[serde(rename = "bootID")]
    pub(super) boot_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) last_heartbeat_time: Option<Timestamp>,
    pub(super) last_transition_time: Option<Timestamp>,
}

impl Node {
    pub(super) fn ready(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(String::as_str)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: String,
    pub(super) volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) empty_dir: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub(super) phase: String,
    pub(super) conditions: Vec<Condition>,
}

impl Pod {
    pub(super) fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// What brings it back elsewhere.
    pub(super) fn controller(&self) -> Option<&Owner> {
        self.metadata.owner_references.iter().find(|owner| owner.controller)
    }
}

/// One page of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct List<T> {
    pub(super) metadata: ListMeta,
    pub(super) items: Vec<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { metadata: ListMeta::default(), items: Vec::new() }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListMeta {
    /// Where the next page begins; empty on the last.
    #[serde(rename = "continue")]
    pub(super) next: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct DaemonSet {
    pub(super) metadata: Meta,
    pub(super) spec: DaemonSetSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct DaemonSetSpec {
    pub(super) template: Template,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Template {
    pub(super) spec: TemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TemplateSpec {
    pub(super) node_name: String,
    pub(super) node_selector: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) metadata: Meta,
    pub(super) spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaseSpec {
    pub(super) holder_identity: Option<String>,
}

/// What a server says about a request that it did not carry out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) message: String,
    pub(super) reason: String,
    pub(super) details: StatusDetails,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatusDetails {
    pub(super) causes: Vec<Cause>,
    pub(super) retry_after_seconds: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Cause {
    pub(super) reason: String,
    pub(super) message: String,
}
