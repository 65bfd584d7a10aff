//! Parameters of `kubernetes_node`: what a cluster's own object of a node says.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, unit_settings::Presence,
    words::words,
};
use crate::{
    Disruption,
    kubernetes::{is_key, is_value, label_owner, quantity, taint_owner},
};

words! { TaintEffect {
    NoSchedule: "NoSchedule",
    PreferNoSchedule: "PreferNoSchedule",
    NoExecute: "NoExecute",
} }

/// One taint of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NodeTaint {
    /// Such as `nvidia.com/gpu`.
    pub key: String,
    /// Left out, it is empty. It does not count with `absent`.
    #[serde(default)]
    pub value: Value,
    /// `NoSchedule`, `PreferNoSchedule`, or `NoExecute`, which only `absent` may name: it evicts pods.
    pub effect: TaintEffect,
    /// `absent` removes the taint of this key and effect.
    #[serde(default)]
    pub state: Presence,
}

impl NodeTaint {
    /// Its value as text; those that are none were refused.
    pub fn value(&self) -> String {
        text(&self.value).unwrap_or_default()
    }
}

/// Declares labels and taints of the node's object at Kubernetes, and compares what it offers to pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KubernetesNode {
    /// Labels by key; `null` removes one. Others stay.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
    /// Taints, each with `key`, `effect` (`NoSchedule` or `PreferNoSchedule`), `value` (empty if left out) and `state`:
    /// `absent` removes the one of this key and effect, `NoExecute` too. Others stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<NodeTaint>,
    /// What the node must offer to pods (`status.allocatable`) by resource: a quantity such as `8` or `1900Gi`. It is compared,
    /// and never written. `nvidia.com/gpu: working` stands for the GPUs and MIG instances that the node itself reads.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub allocatable: Map<String, Value>,
}

impl KubernetesNode {
    /// Most entries of each parameter.
    pub const MOST: usize = 64;
    /// Of `allocatable`: as many GPUs as the node reads itself.
    pub const WORKING: &str = "working";
    /// The one resource that may be [`Self::WORKING`].
    pub const GPU: &str = "nvidia.com/gpu";

    /// Labels by key; `None` for one that is removed.
    pub fn labels(&self) -> impl Iterator<Item = (&str, Option<String>)> {
        self.labels.iter().map(|(key, value)| (key.as_str(), text(value)))
    }

    /// Quantities by resource, as they are written.
    pub fn allocatable(&self) -> impl Iterator<Item = (&str, String)> {
        self.allocatable.iter().map(|(name, value)| (name.as_str(), text(value).unwrap_or_default()))
    }

    /// Whether what the node reads of its GPUs is needed.
    pub fn asks_for_gpus(&self) -> bool {
        self.allocatable().any(|(_, amount)| amount == Self::WORKING)
    }
}

/// A value as Kubernetes has it, which is always text; `None` for nothing, and for what is no text.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_u64() || number.is_i64() => Some(number.to_string()),
        _ => None,
    }
}

impl Kind for KubernetesNode {
    const INFO: KindInfo = KindInfo {
        name: "kubernetes_node",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::BY_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Declares labels and taints of the node at Kubernetes, and compares what it offers to pods.",
        example: "kubernetes_node: {labels: {pool: training}, taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}], allocatable: {nvidia.com/gpu: 8}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let counts = [
            ("labels", self.labels.len()),
            ("taints", self.taints.len()),
            ("allocatable", self.allocatable.len()),
        ];
        if counts.iter().all(|(_, count)| *count == 0) {
            return Err(ParamError::new("labels", "one of `labels`, `taints` and `allocatable` is needed"));
        }
        if let Some((name, count)) = counts.iter().find(|(_, count)| *count > Self::MOST) {
            let message = format!("`{name}` has {count} entries; {} are the most", Self::MOST);
            return Err(ParamError::new(*name, message));
        }
        for (key, value) in &self.labels {
            check_label(key, value).map_err(|message| at("labels", key, message))?;
        }
        for (index, taint) in self.taints.iter().enumerate() {
            let again = |other: &NodeTaint| (&other.key, other.effect) == (&taint.key, taint.effect);
            if self.taints.iter().take(index).any(again) {
                let message = format!("{}:{} is declared twice", taint.key, taint.effect);
                return Err(ParamError::new("taints", message));
            }
            check_taint(taint).map_err(|message| ParamError::new("taints", message))?;
        }
        for (name, value) in &self.allocatable {
            check_resource(name, value).map_err(|message| at("allocatable", name, message))?;
        }
        Ok(())
    }
}

fn at(parameter: &str, key: &str, message: String) -> ParamError {
    ParamError { place: vec![parameter.to_owned(), key.to_owned()], ..ParamError::new(parameter, message) }
}

fn check_label(key: &str, value: &Value) -> Result<(), String> {
    if !is_key(key) {
        return Err(format!("`{key}` is no key of a label, such as `pool` or `example.com/pool`"));
    }
    if let Some(owner) = label_owner(key) {
        return Err(format!("`{key}` belongs to {owner}"));
    }
    if value.is_null() {
        return Ok(());
    }
    check_value(key, value)
}

fn check_value(key: &str, value: &Value) -> Result<(), String> {
    let Some(text) = text(value) else {
        return Err(format!("the value of `{key}` is text: put quotes around {value}"));
    };
    if is_value(&text) {
        return Ok(());
    }
    Err(format!(
        "`{key}` cannot have the value `{text}`: up to 63 letters, digits and `-_.`, of which the first and last are a letter or digit"
    ))
}

fn check_taint(taint: &NodeTaint) -> Result<(), String> {
    let key = taint.key.as_str();
    if !is_key(key) {
        return Err(format!("`{key}` is no key of a taint, such as `nvidia.com/gpu`"));
    }
    if let Some(owner) = taint_owner(key) {
        return Err(format!("the taint `{key}` belongs to {owner}"));
    }
    if taint.effect == TaintEffect::NoExecute && taint.state == Presence::Present {
        return Err(format!(
            "the taint {key}:NoExecute evicts pods at once and past their budgets, which this kind never does; \
             use NoSchedule, and let a drain evict them"
        ));
    }
    if taint.value.is_null() { Ok(()) } else { check_value(key, &taint.value) }
}

fn check_resource(name: &str, value: &Value) -> Result<(), String> {
    if !is_key(name) {
        return Err(format!("`{name}` is no name of a resource, such as `nvidia.com/gpu`"));
    }
    let written = text(value).unwrap_or_else(|| value.to_string());
    if written == KubernetesNode::WORKING {
        return match name {
            KubernetesNode::GPU => Ok(()),
            _ => Err(format!("only `{}` can be `{}`", KubernetesNode::GPU, KubernetesNode::WORKING)),
        };
    }
    match text(value).as_deref().and_then(quantity) {
        Some(_) => Ok(()),
        None => Err(format!("`{name}: {written}` is no quantity, such as 8, 500m or \"1.5Gi\"")),
    }
}

impl GroundKind for KubernetesNode {
    const GROUND: Ground = Ground {
        reads: &["GET /api/v1/nodes/NAME"],
        writes: &["metadata.labels", "spec.taints"],
        takes_effect: "at once, for pods that are scheduled from then on; pods of DaemonSets leave a node whose label no longer \
                       fits their selector",
        survives: "everything but the deletion of the node's object: a node that registers anew has only what its kubelet and \
                   others set",
        owners: &[
            "kubelet: writes the labels of `--node-labels` and the taints of `--register-with-taints` when it registers the node",
            "Kubernetes, NFD, GPU feature discovery, the GPU operator, autoscalers: their keys are refused",
            "whoever `managedFields` names for a label: refused, unless it is kubectl or gpufleet",
            "a cloud controller manager: writes topology.kubernetes.io/zone and region; where one has, or is still to come, and \
             where nobody knows who has, they are refused",
        ],
        source: "Kubernetes API (Node v1); reference of well-known labels, annotations and taints",
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tasks::Params;

    fn parsed(value: Value) -> Result<KubernetesNode, String> {
        match KubernetesNode::INFO.parse(value) {
            Ok(Params::KubernetesNode(node)) => Ok(node),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn values_are_text_and_null_removes() {
        let node = parsed(json!({"labels": {"pool": "training", "rack": 12, "old": null}})).unwrap();
        let labels: Vec<_> = node.labels().collect();
        assert_eq!(labels, [("pool", Some("training".into())), ("rack", Some("12".into())), ("old", None)]);
        let taint = json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]});
        assert_eq!(parsed(taint).unwrap().taints[0].value(), "");
        assert!(parsed(json!({"allocatable": {"nvidia.com/gpu": "working"}})).unwrap().asks_for_gpus());
    }

    #[test]
    fn what_a_cluster_would_refuse_is_refused() {
        for (given, says) in [
            (json!({}), "one of `labels`, `taints` and `allocatable` is needed"),
            (json!({"labels": {"pool": true}}), "put quotes around true"),
            (json!({"labels": {"pool": 1.1}}), "put quotes around 1.1"),
            (json!({"labels": {"pool": "a b"}}), "cannot have the value `a b`"),
            (json!({"labels": {"a b": "x"}}), "`a b` is no key of a label"),
            (json!({"labels": {"kubernetes.io/os": "x"}}), "belongs to Kubernetes"),
            (json!({"labels": {"topology.kubernetes.io/x": "y"}}), "belongs to Kubernetes"),
            (json!({"labels": {"feature.node.kubernetes.io/x": null}}), "belongs to Node Feature Discovery"),
            (json!({"labels": {"nvidia.com/gpu.product": "x"}}), "belongs to NVIDIA's GPU feature discovery"),
            (json!({"labels": {"nvidia.com/gpu.deploy.dcgm": "x"}}), "NVIDIA's GPU operator"),
            (
                json!({"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "state": "absent"}]}),
                "the taint `node.kubernetes.io/unschedulable` belongs to Kubernetes",
            ),
            (json!({"taints": [{"key": "a", "effect": "NoExecute"}]}), "evicts pods at once"),
            (json!({"taints": [{"key": "a", "effect": "noschedule"}]}), "NoSchedule, PreferNoSchedule"),
            (
                json!({"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]}),
                "a:NoSchedule is declared twice",
            ),
            (json!({"allocatable": {"nvidia.com/gpu": "eight"}}), "is no quantity"),
            (json!({"allocatable": {"cpu": "working"}}), "only `nvidia.com/gpu` can be `working`"),
        ] {
            let error = parsed(given.clone()).unwrap_err();
            assert!(error.contains(says), "{given}: {error}");
        }
        let removed = json!({"taints": [{"key": "a", "effect": "NoExecute", "state": "absent"}]});
        assert!(parsed(removed).is_ok());
        let many: Map<String, Value> = (0..65).map(|at| (format!("k{at}"), json!("x"))).collect();
        assert_eq!(parsed(json!({"labels": many})).unwrap_err(), "`labels` has 65 entries; 64 are the most");
    }
}
