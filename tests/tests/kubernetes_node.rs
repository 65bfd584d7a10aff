//! `kubernetes_node` with the real binary: an API server over TLS whose nodes are the lab's machines.
//!
//! What happened is read from the server's own objects and record, never from gpufleet's.

use std::{ops::Deref, time::Duration};

use gpufleet_k8s_api::log::Entry;
use gpufleet_tests::{Cluster, FleetOptions};
use serde_json::json;

struct Site {
    cluster: Cluster,
}

impl Deref for Site {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Site {
    /// A cluster of one machine with two GPUs, and a play with this task.
    fn new(task: &str) -> Self {
        let options = FleetOptions { nodes: 1, gpus_per_node: 2, ..FleetOptions::default() };
        let cluster = Cluster::start(&options, "pool: inference", "", Duration::from_secs(120));
        let site = Self { cluster };
        site.write_play("kubernetes", task);
        site
    }

    fn write_play(&self, drainer: &str, task: &str) {
        let drain = match drainer {
            "kubernetes" => "{kubernetes: {kubeconfig: kubeconfig}}",
            other => other,
        };
        let play = format!("- hosts: gpu\n  rollout:\n    drain: {drain}\n  tasks:\n    - {task}\n");
        self.home.write("play.yaml", &play);
    }

    fn patches(&self) -> usize {
        let ours = |entry: &&Entry| entry.verb == "patch" && entry.user == "gpufleet";
        self.server.log(0).iter().filter(ours).count()
    }
}

const DECLARED: &str = "kubernetes_node: {labels: {pool: training, rack: r12}, taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]}";

#[test]
fn what_is_planned_is_made_once_and_audited() {
    let site = Site::new(DECLARED);
    let sentences = [
        "label pool inference -> training",
        "label rack absent -> r12",
        "taint nvidia.com/gpu:NoSchedule absent -> present",
    ];
    let _ = site.command(&["plan", "play.yaml"]).run().expect(0).says(&sentences);
    assert_eq!(site.patches(), 0, "a plan writes nothing");

    let done = site.run().run().expect(0);
    assert_eq!(done.document().state("gpu001"), "done", "{done}");
    let node = site.node("gpu001");
    assert_eq!(node["metadata"]["labels"]["pool"], "training");
    assert_eq!(node["metadata"]["labels"]["rack"], "r12");
    assert_eq!(node["spec"].get("unschedulable"), None, "nothing is drained for it");
    let taint = json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"});
    assert!(node["spec"]["taints"].as_array().is_some_and(|taints| taints.contains(&taint)), "{node}");

    let written = site.patches();
    let again = site.run().run().expect(0);
    assert_eq!(again.document().state("gpu001"), "compliant", "{again}");
    assert_eq!(site.patches(), written, "a second run writes nothing");

    site.order(json!({"label": {"node": "gpu001", "labels": {"pool": "inference"}}}));
    let audit = site.command(&["audit", "play.yaml", "--format", "json"]).run().expect(3);
    assert_eq!(audit.document().state("gpu001"), "drift", "{audit}");
    assert_eq!(site.patches(), written, "an audit writes nothing");
}

#[test]
fn what_a_node_offers_is_compared_with_what_works() {
    let site = Site::new("kubernetes_node: {allocatable: {nvidia.com/gpu: working}}");
    let equal = site.run().run().expect(0);
    assert_eq!(equal.document().state("gpu001"), "compliant", "{equal}");
    site.write_play("kubernetes", "kubernetes_node: {allocatable: {nvidia.com/gpu: 8}}");
    let fewer = site.run().run().expect(2);
    assert!(fewer.document().message("gpu001").contains("it offers nvidia.com/gpu=2, declared 8"), "{fewer}");
    assert_eq!(site.patches(), 0);
}

/// The drain of the first tasks is over before `post_tasks` look at what the node offers.
#[test]
fn a_new_layout_is_offered_when_the_play_compares_it() {
    let site = Site::new(DECLARED);
    let play = "- hosts: gpu
  become: true
  rollout:
    health_gate: []
    drain: {kubernetes: {kubeconfig: kubeconfig, timeout: 5m}}
  tasks:
    - gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}
  post_tasks:
    - kubernetes_node: {labels: {layout: small}, allocatable: {nvidia.com/gpu: working, nvidia.com/mig-1g.10gb: 14}}
";
    site.home.write("play.yaml", play);
    let plan = site.command(&["plan", "play.yaml", "--diff"]).run().expect(0);
    let plan = plan.says(&[
        "label layout                      absent -> small",
        "as it is now, it offers nvidia.com/mig-1g.10gb=0, declared 14",
    ]);
    assert_eq!(site.patches(), 0, "{plan}");
    let done = site.run().run().expect(0);
    assert_eq!(done.document().state("gpu001"), "done", "{done}");
    assert_eq!(site.node("gpu001")["metadata"]["labels"]["layout"], "small");
    assert_eq!(site.node("gpu001")["status"]["allocatable"]["nvidia.com/mig-1g.10gb"], "14");
}

#[test]
fn a_cluster_that_cannot_be_asked_is_never_compliant() {
    let site = Site::new(DECLARED);
    site.order(json!({"deny": {"user": "gpufleet", "verb": "patch", "resource": "nodes"}}));
    let refused = site.run().run().expect(2);
    assert!(refused.document().message("gpu001").contains("it needs the right to patch nodes"), "{refused}");
    site.order(json!({"deny": {"user": "gpufleet", "verb": "get", "resource": "nodes"}}));
    let audit = site.command(&["audit", "play.yaml", "--format", "json"]).run().expect(3);
    assert_eq!(audit.document().state("gpu001"), "unknown", "{audit}");
    assert_eq!(site.node("gpu001")["metadata"]["labels"]["pool"], "inference");
}

#[test]
fn a_play_without_a_cluster_is_refused_before_anything_is_contacted() {
    let site = Site::new(DECLARED);
    site.write_play("none", DECLARED);
    let refused = site.command(&["run", "play.yaml", "--yes"]).run().expect(1);
    let text = refused.to_string();
    assert!(text.contains("`kubernetes_node` needs a play with `drain: kubernetes`"), "{text}");
    assert!(text.contains("play.yaml:5:7"), "{text}");
}
