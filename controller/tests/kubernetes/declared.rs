//! Labels and taints of a node's object, against a real server.

use gpufleet::drain::WantedObject;
use gpufleet_k8s_api::faults::{Action, Fault};
use gpufleet_protocol::{
    FailureKind, OpOutcome, OpStatus,
    message::Mode,
    tasks::{Kind as _, KubernetesNode, Params},
};

use super::*;

const NODE: &str = "{pace: 0, nodes: [{name: n1, labels: {pool: inference}}]}";

fn wanted(site: &Site, mode: Mode, declared: Value) -> WantedObject {
    let Ok(Params::KubernetesNode(declared)) = KubernetesNode::INFO.parse(declared) else { panic!() };
    let boot_id = site.node()["status"]["nodeInfo"]["bootID"].as_str().map(str::to_owned);
    WantedObject { declared, mode, boot_id, offer: None }
}

fn changes(outcome: &OpOutcome) -> Vec<String> {
    outcome.changes.iter().map(ToString::to_string).collect()
}

fn training() -> Value {
    json!({
        "labels": {"pool": "training", "rack": 12},
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_declared_is_made_once_and_leaves_the_rest() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    let before = site.node();
    let plan = drainer.declare(&target(), &wanted(&site, Mode::Predict, training())).await.unwrap();
    assert_eq!(plan.status, OpStatus::Changed);
    assert_eq!(site.node(), before, "a plan changes nothing");

    let made = drainer.declare(&target(), &wanted(&site, Mode::Apply, training())).await.unwrap();
    assert_eq!((&made.status, changes(&made)), (&OpStatus::Changed, changes(&plan)));
    assert_eq!(
        changes(&made),
        [
            "label pool inference -> training",
            "label rack absent -> 12",
            "taint nvidia.com/gpu:NoSchedule absent -> present"
        ]
    );
    let node = site.node();
    assert_eq!(
        (&node["metadata"]["labels"]["pool"], &node["metadata"]["labels"]["rack"]),
        (&json!("training"), &json!("12"))
    );
    assert_eq!(
        node["metadata"]["labels"]["kubernetes.io/hostname"],
        before["metadata"]["labels"]["kubernetes.io/hostname"]
    );
    assert_eq!(
        node["spec"]["taints"],
        json!([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    );

    let again = drainer.declare(&target(), &wanted(&site, Mode::Apply, training())).await.unwrap();
    assert_eq!(again, OpOutcome::new(OpStatus::Ok));
    assert_eq!(site.entries("patch").len(), 1, "{:?}", site.entries("patch"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordon_keeps_its_taint() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    site.command(json!({"cordon": {"node": "n1", "user": "bob"}}));
    site.seconds(1);
    let cordoned = site.node()["spec"].clone();
    assert_eq!(cordoned["unschedulable"], true);
    let made = drainer.declare(&target(), &wanted(&site, Mode::Apply, training())).await.unwrap();
    assert_eq!(made.status, OpStatus::Changed);
    let node = site.node();
    assert_eq!(node["spec"]["unschedulable"], true);
    let taints = node["spec"]["taints"].as_array().unwrap();
    for taint in cordoned["taints"].as_array().into_iter().flatten() {
        assert!(taints.contains(taint), "{taints:?}");
    }
    let gone = json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "state": "absent"}], "labels": {"rack": null}});
    let removed = drainer.declare(&target(), &wanted(&site, Mode::Apply, gone)).await.unwrap();
    assert_eq!(
        changes(&removed),
        ["label rack 12 -> absent", "taint nvidia.com/gpu:NoSchedule present -> absent"]
    );
    assert_eq!(site.node()["spec"]["taints"], cordoned["taints"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_machines_node_is_not_written() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    for boot_id in [Some("another-boot".to_owned()), None] {
        let other = |mode| WantedObject { boot_id: boot_id.clone(), ..wanted(&site, mode, training()) };
        let made = drainer.declare(&target(), &other(Mode::Apply)).await.unwrap();
        let OpStatus::Failed { kind: FailureKind::Refused, message } = made.status else {
            panic!("{made:?}")
        };
        assert!(message.contains("boot"), "{message}");
        let read = drainer.declare(&target(), &other(Mode::Predict)).await.unwrap();
        assert!(matches!(read.status, OpStatus::Unknown { .. }), "{read:?}");
    }
    assert_eq!(site.entries("patch"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_is_named() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    site.command(json!({"deny": {"user": "gpufleet", "verb": "patch", "resource": "nodes"}}));
    let error = drainer.declare(&target(), &wanted(&site, Mode::Apply, training())).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("it needs the right to patch nodes; docs/guide/kubernetes.md"), "{said}");
    assert_eq!(site.node()["metadata"]["labels"]["pool"], "inference");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_gpus_are_told_and_not_written() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    let declared = json!({"allocatable": {"nvidia.com/gpu": 99, "cpu": "500000m"}});
    let made = drainer.declare(&target(), &wanted(&site, Mode::Apply, declared)).await.unwrap();
    let OpStatus::Failed { kind: FailureKind::Unconverged, message } = made.status else {
        panic!("{made:?}")
    };
    assert!(message.contains("declared 99") && message.contains("declared 500000m"), "{message}");
    assert_eq!(site.entries("patch"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_is_seen_before_anything_is_written() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    // Somebody else changes the node between the reading and the first patch.
    site.server.fault(Fault::new(Action::Conflict).verb("patch").times(2));
    let made = drainer.declare(&target(), &wanted(&site, Mode::Apply, training())).await.unwrap();
    assert_eq!(made.status, OpStatus::Changed);
    assert_eq!(site.entries("patch").iter().map(|entry| entry.code).collect::<Vec<_>>(), [409, 409, 200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_behind_the_change_is_read_again() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    site.server.fault(Fault::new(Action::CutAfter).verb("patch").times(1));
    let made = drainer.declare(&target(), &wanted(&site, Mode::Apply, training())).await.unwrap();
    assert_eq!((made.status, made.changes.len()), (OpStatus::Changed, 3));
    site.server.fault(Fault::new(Action::CutBefore).verb("patch").times(1));
    let gone = json!({"labels": {"rack": null}});
    let error = drainer.declare(&target(), &wanted(&site, Mode::Apply, gone)).await.unwrap_err();
    assert!(error.to_string().contains("PATCH /api/v1/nodes/n1"), "{error}");
    assert_eq!(site.node()["metadata"]["labels"]["rack"], "12");
}
