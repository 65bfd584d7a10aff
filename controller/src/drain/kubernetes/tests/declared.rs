//! What differs of a node's labels, taints and offer, whose key it is, and the patch.

use gpufleet_protocol::tasks::{Kind as _, KubernetesNode, Params};
use serde_json::{Value, json};

use super::super::{
    GpuOffer,
    declared::{Plan, misses, plan},
    objects::Node,
};

fn wanted(value: Value) -> KubernetesNode {
    match KubernetesNode::INFO.parse(value) {
        Ok(Params::KubernetesNode(node)) => node,
        other => panic!("{other:?}"),
    }
}

fn node(labels: Value, more: Value) -> Node {
    let mut node = json!({
        "metadata": {"name": "n1", "resourceVersion": "7", "labels": labels},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    for (pointer, value) in more.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        node.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    serde_json::from_value(node).unwrap()
}

fn shown(plan: &Plan) -> Vec<String> {
    plan.changes.iter().map(ToString::to_string).collect()
}

#[test]
fn labels_are_set_and_removed_at_the_version_that_was_seen() {
    let found = node(json!({"pool": "inference", "old": "x", "kept": "y"}), json!({}));
    let declared =
        wanted(json!({"labels": {"pool": "training", "old": null, "new": "", "kept": "y", "gone": null}}));
    let made = plan(&found, &declared).unwrap();
    assert_eq!(
        shown(&made),
        ["label pool inference -> training", "label old x -> absent", "label new absent -> \"\""]
    );
    assert_eq!(
        made.patch,
        [
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}),
            json!({"op": "add", "path": "/metadata/labels/pool", "value": "training"}),
            json!({"op": "remove", "path": "/metadata/labels/old"}),
            json!({"op": "add", "path": "/metadata/labels/new", "value": ""}),
        ]
    );
    let notes: Vec<bool> = made.changes.iter().map(|change| change.note.is_some()).collect();
    assert_eq!(notes, [true, true, false], "what DaemonSets may have selected");
    let after = node(json!({"pool": "training", "kept": "y", "new": ""}), json!({}));
    assert_eq!(plan(&after, &declared).unwrap(), Plan::default());
}

#[test]
fn a_node_without_labels_or_taints_gets_the_lists_first() {
    let declared = wanted(json!({
        "labels": {"pool": "training"},
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
    }));
    let made = plan(&node(json!({}), json!({})), &declared).unwrap();
    assert_eq!(
        shown(&made),
        ["label pool absent -> training", "taint nvidia.com/gpu:NoSchedule absent -> present"]
    );
    let paths: Vec<&str> = made.patch.iter().filter_map(|operation| operation["path"].as_str()).collect();
    assert_eq!(
        paths,
        [
            "/metadata/resourceVersion",
            "/metadata/labels",
            "/metadata/labels/pool",
            "/spec/taints",
            "/spec/taints/-"
        ]
    );
}

#[test]
fn only_the_declared_taints_are_touched() {
    let taint = |key: &str, value: &str, effect: &str| json!({"key": key, "value": value, "effect": effect});
    let found = node(
        json!({}),
        json!({"/spec/taints": [
            taint("a", "", "NoSchedule"),
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-11-21T08:28:02Z"},
            taint("b", "old", "NoSchedule"),
            taint("b", "x", "NoExecute"),
            taint("c", "", "PreferNoSchedule"),
        ]}),
    );
    let declared = wanted(json!({"taints": [
        {"key": "a", "effect": "NoSchedule", "state": "absent"},
        {"key": "b", "value": "new", "effect": "NoSchedule"},
        {"key": "b", "effect": "NoExecute", "state": "absent"},
        {"key": "c", "effect": "PreferNoSchedule"},
        {"key": "d", "effect": "NoSchedule", "state": "absent"},
    ]}));
    let made = plan(&found, &declared).unwrap();
    assert_eq!(
        shown(&made),
        [
            "taint a:NoSchedule \"\" -> absent",
            "taint b:NoSchedule old -> new",
            "taint b:NoExecute x -> absent"
        ]
    );
    assert_eq!(
        made.patch[1..],
        [
            json!({"op": "add", "path": "/spec/taints/2/value", "value": "new"}),
            json!({"op": "remove", "path": "/spec/taints/3"}),
            json!({"op": "remove", "path": "/spec/taints/0"}),
        ]
    );
}

fn written_by(manager: &str, key: &str) -> Value {
    let mut labels = serde_json::Map::new();
    labels.insert(format!("f:{key}"), json!({}));
    json!({"/metadata/managedFields": [{"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": labels}}}]})
}

#[test]
fn a_label_that_another_program_writes_is_refused_with_its_name() {
    let key = "example.com/pool";
    let declared = wanted(json!({"labels": {key: "training"}}));
    let other = node(json!({key: "x"}), written_by("argocd-controller", key));
    let why = plan(&other, &declared).unwrap_err();
    assert!(why.starts_with("the label `example.com/pool` was written by argocd-controller,"), "{why}");
    for manager in ["gpufleet", "kubectl", "kubectl-label"] {
        assert!(plan(&node(json!({key: "x"}), written_by(manager, key)), &declared).is_ok(), "{manager}");
    }
    let equal = node(json!({key: "training"}), written_by("argocd-controller", key));
    assert_eq!(plan(&equal, &declared).unwrap(), Plan::default(), "nothing would be written");
}

/// Zone and region are whose a cloud controller manager is, if there is one.
#[test]
fn a_zone_is_written_where_no_cloud_does() {
    let key = "topology.kubernetes.io/zone";
    let declared = wanted(json!({"labels": {key: "row-3"}}));
    let made = plan(&node(json!({"a": "b"}), json!({})), &declared).unwrap();
    assert_eq!(shown(&made), ["label topology.kubernetes.io/zone absent -> row-3"]);
    for manager in ["gpufleet", "kubectl-label"] {
        assert!(plan(&node(json!({key: "x"}), written_by(manager, key)), &declared).is_ok(), "{manager}");
    }
    let cloud = node(json!({key: "eu-1a"}), written_by("cloud-controller-manager", key));
    let why = plan(&cloud, &declared).unwrap_err();
    assert!(why.contains("was written by cloud-controller-manager"), "{why}");
    let kubelet = node(json!({key: "eu-1a"}), written_by("kubelet", key));
    assert!(plan(&kubelet, &declared).unwrap_err().contains("was written by kubelet"));
    let untold = plan(&node(json!({key: "x"}), json!({})), &declared).unwrap_err();
    assert!(untold.contains("do not say who wrote it"), "{untold}");
    let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"});
    let coming = plan(&node(json!({}), json!({"/spec/taints": [taint]})), &declared).unwrap_err();
    assert!(coming.contains("has yet to tell where it is"), "{coming}");
}

#[test]
fn a_layout_is_left_to_a_mig_manager_that_runs() {
    let declared = wanted(json!({"labels": {"nvidia.com/mig.config": "all-1g.10gb"}}));
    let runs = node(json!({"nvidia.com/gpu.deploy.mig-manager": "true"}), json!({}));
    let why = plan(&runs, &declared).unwrap_err();
    assert!(why.contains("mig_manager: {label: CONFIG}"), "{why}");
    let made = plan(&node(json!({"a": "b"}), json!({})), &declared).unwrap();
    assert_eq!(shown(&made), ["label nvidia.com/mig.config absent -> all-1g.10gb"]);
}

fn offers(labels: Value, allocatable: Value, capacity: Value) -> Node {
    node(labels, json!({"/status/allocatable": allocatable, "/status/capacity": capacity}))
}

#[test]
fn quantities_are_compared_as_quantities() {
    let found = offers(json!({}), json!({"memory": "2161664Ki", "cpu": "7910m"}), json!({}));
    let declared = wanted(json!({"allocatable": {"memory": "2111Mi", "cpu": "7.91", "nvidia.com/gpu": 0}}));
    assert_eq!(misses(&found, &declared, None), Ok(None));
    let lies = offers(json!({}), json!({"memory": "much"}), json!({}));
    assert_eq!(
        misses(&lies, &wanted(json!({"allocatable": {"memory": 1}})), None),
        Err("the cluster tells memory=much, which is no quantity".to_owned())
    );
}

#[test]
fn both_numbers_are_told_with_the_likely_cause() {
    let declared = wanted(json!({"allocatable": {"nvidia.com/gpu": 8}}));
    let told = |labels, allocatable: Value, capacity: Value| {
        misses(&offers(labels, allocatable, capacity), &declared, None).unwrap().unwrap()
    };
    let gpus = |count: &str| json!({"nvidia.com/gpu": count});
    assert_eq!(
        told(json!({}), gpus("7"), gpus("8")),
        "it offers nvidia.com/gpu=7, declared 8 (the device plugin takes 1 of 8 for unhealthy, or did not register since the kubelet \
         started: see its log and XIDs)"
    );
    assert_eq!(
        told(json!({}), json!({}), json!({})),
        "it offers nvidia.com/gpu=0, declared 8 (the device plugin's pod there may not be ready)"
    );
    let off = json!({"nvidia.com/gpu.deploy.device-plugin": "false"});
    assert!(told(off, json!({}), json!({})).ends_with("device-plugin=false keeps the device plugin off)"));
    let mixed = json!({"nvidia.com/mig.strategy": "mixed"});
    assert!(told(mixed, json!({}), json!({})).contains("(nvidia.com/mig.strategy=mixed; "));
}

#[test]
fn what_works_is_what_the_node_reads() {
    let declared = wanted(json!({"allocatable": {"nvidia.com/gpu": "working"}}));
    let gpus = |count: u64| GpuOffer { whole: count, ..GpuOffer::default() };
    let found = offers(json!({}), json!({"nvidia.com/gpu": "8"}), json!({"nvidia.com/gpu": "8"}));
    assert_eq!(misses(&found, &declared, Some(&gpus(8))), Ok(None));
    let why = misses(&found, &declared, Some(&gpus(7))).unwrap().unwrap();
    assert!(why.starts_with("it advertises nvidia.com/gpu=8, and its GPUs are nvidia.com/gpu=7"), "{why}");
    assert!(misses(&found, &declared, None).is_err(), "what nobody could read is not equal");
}
