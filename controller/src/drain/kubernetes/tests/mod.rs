//! What answers mean, by the recorded ones, and in which order a cluster is asked, on a stage in memory.

#[cfg(feature = "kubernetes")]
mod client;
mod declared;
mod flow;
mod stage;

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::{
    objects::{List, Owner, Volume},
    standing::OWNER,
    *,
};

macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("../replies/", $name, ".json"))
    };
}

fn marker() -> Marker {
    Marker { run: "R1".into(), nonce: "n1".into() }
}

fn read(status: u16, body: &[u8]) -> Evicted {
    eviction::read(&Reply { status, retry_after: None, body: body.to_vec() })
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn recorded_answers_to_evictions() {
    assert_eq!(read(201, recorded!("01-evict-grace30")), Evicted::Asked);
    assert_eq!(read(404, recorded!("05-evict-gone")), Evicted::Gone);
    let budget = |says: &str| Evicted::Budget { says: says.into(), again: None };
    assert_eq!(
        read(429, recorded!("06-evict-pdb-429")),
        budget("PodDisruptionBudget p1 needs 2 healthy pods and has 2 currently")
    );
    assert_eq!(
        read(429, recorded!("09-evict-unhealthy-429")),
        budget("PodDisruptionBudget p1 needs 2 healthy pods and has 1 currently")
    );
    assert_eq!(
        read(500, recorded!("08-evict-two-pdbs-500")),
        Evicted::Never("more than one PodDisruptionBudget selects it, which evictions do not support".into())
    );
    assert_eq!(read(403, recorded!("21-evict-terminating-ns")), Evicted::NamespaceEnds);
    assert_eq!(read(409, b"{}"), Evicted::Changed);
}

#[test]
fn three_kinds_of_429_are_told_apart() {
    // Source: `checkAndDecrement` of Kubernetes' registry/core/pod/storage/eviction.go.
    let processing = json!({"reason": "TooManyRequests", "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget", "message": "The disruption budget p1 is still being processed by the server."}]}});
    assert_eq!(
        read(429, processing.to_string().as_bytes()),
        Evicted::Budget {
            says: "PodDisruptionBudget p1 is still being processed by the server".into(),
            again: Some(Duration::from_secs(10))
        }
    );
    let overload = Reply {
        status: 429,
        retry_after: Some(Duration::from_secs(1)),
        body: br#"{"reason":"TooManyRequests","message":"Too many requests, please try again later."}"#
            .to_vec(),
    };
    assert_eq!(eviction::read(&overload), Evicted::Overload { again: Some(Duration::from_secs(1)) });
    assert_eq!(read(429, b"slow down"), Evicted::Overload { again: None });
}

#[test]
fn refusals_that_may_pass_and_those_that_never_do() {
    let webhook =
        json!({"message": "admission webhook \"v.example.com\" denied the request: draining is off"});
    for status in [400, 403, 500] {
        assert!(matches!(read(status, webhook.to_string().as_bytes()), Evicted::NotNow(_)), "{status}");
    }
    for status in [401, 500, 502, 503, 504] {
        assert!(matches!(read(status, b""), Evicted::Unanswered(_)), "{status}");
    }
    let forbidden =
        json!({"message": "pods \"a\" is forbidden: User \"x\" cannot create resource \"pods/eviction\""});
    assert!(matches!(read(403, forbidden.to_string().as_bytes()), Evicted::Never(_)));
    assert!(matches!(read(400, b"{}"), Evicted::Never(_)));
}

#[test]
fn an_eviction_says_which_pod_is_meant() {
    let pod: Pod = serde_json::from_slice(recorded!("02-get-terminating")).unwrap();
    let request = eviction::eviction(&pod, None, false);
    assert_eq!(request.path, "/api/v1/namespaces/case17241/pods/a/eviction?fieldValidation=Strict");
    assert_eq!(
        request.body.unwrap(),
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "case17241"},
            "deleteOptions": {"preconditions": {"uid": "947ae5db-3cd2-4070-973f-d0886ac1f501"}}})
    );
    let request = eviction::eviction(&pod, Some(Duration::from_secs(60)), true);
    assert!(request.path.ends_with("?fieldValidation=Strict&dryRun=All"), "{}", request.path);
    let options = &request.body.unwrap()["deleteOptions"];
    assert_eq!((&options["gracePeriodSeconds"], &options["dryRun"]), (&json!(60), &json!(["All"])));
}

fn part_of(pod: &Pod, policy: &PodPolicy) -> Part {
    part(pod, policy, &Daemons::new(), &BTreeMap::new(), false, at("2026-11-21T08:28:10Z"))
}

#[test]
fn recorded_pods_and_what_becomes_of_them() {
    let list: List<Pod> = serde_json::from_slice(recorded!("20-pods-on-node")).unwrap();
    let part_of = |name: &str| {
        let pod = list.items.iter().find(|pod| pod.metadata.name == name).unwrap();
        part_of(pod, &PodPolicy::default())
    };
    assert_eq!(part_of("a"), Part::Ends("ends by 2026-11-21T08:28:23Z".into()));
    assert_eq!(part_of("m"), Part::Stays);
    let stuck: Pod = serde_json::from_slice(recorded!("11-get-finalizer-stuck")).unwrap();
    let Part::Ends(how) = super::tests::part_of(&stuck, &PodPolicy::default()) else { panic!("{stuck:?}") };
    assert!(
        how.contains("should have ended at 2026-11-21T08:28:02Z") && how.contains("finalizers hold it: "),
        "{how}"
    );
}

fn pod(name: &str, owner: Option<(&str, &str)>) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = name.into();
    pod.metadata.namespace = "ns".into();
    pod.status.phase = "Running".into();
    pod.metadata.owner_references = owner
        .map(|(kind, name)| Owner {
            api_version: "apps/v1".to_owned(),
            kind: kind.into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            controller: true,
        })
        .into_iter()
        .collect();
    pod
}

#[test]
fn what_a_drain_may_take() {
    let usual = PodPolicy::default();
    let web = pod("web", Some(("ReplicaSet", "web")));
    assert_eq!(part_of(&web, &usual), Part::Evict);
    // Its node was bound, but nothing runs yet: it goes like any other.
    let mut pending = web.clone();
    pending.status.phase = "Pending".into();
    assert_eq!(part_of(&pending, &usual), Part::Evict);
    for phase in ["Succeeded", "Failed"] {
        let mut over = pod("job", None);
        over.status.phase = phase.into();
        assert_eq!(part_of(&over, &usual), Part::Stays);
    }
    let skips = PodPolicy { skip_namespaces: ["ns".to_owned()].into(), ..PodPolicy::default() };
    assert_eq!(part_of(&web, &skips), Part::Stays);
    let alone = pod("alone", None);
    assert!(matches!(part_of(&alone, &usual), Part::Refused(why) if why.contains("`force: true`")));
    let force = PodPolicy { force: true, ..PodPolicy::default() };
    assert_eq!(part_of(&alone, &force), Part::Evict);
    let mut scratch = web.clone();
    scratch.spec.volumes = vec![Volume { name: "tmp".into(), empty_dir: Some(json!({})) }];
    assert!(matches!(part_of(&scratch, &force), Part::Refused(why) if why.contains("emptyDir")));
    let loses = PodPolicy { delete_emptydir_data: true, ..PodPolicy::default() };
    assert_eq!(part_of(&scratch, &loses), Part::Evict);
}

#[test]
fn pods_of_daemon_sets_stay_as_long_as_the_set_wants_them() {
    let now = Timestamp::UNIX_EPOCH;
    let exporter = pod("exporter-x", Some(("DaemonSet", "exporter")));
    let key = ("ns".to_owned(), "exporter".to_owned());
    let label = "nvidia.com/gpu.deploy.dcgm-exporter";
    let mut set = DaemonSet::default();
    set.metadata.uid = "uid-exporter".into();
    set.spec.template.spec.node_selector = [(label.to_owned(), "true".to_owned())].into();
    let judged = |set: Option<DaemonSet>, value: &str| {
        let labels = [(label.to_owned(), value.to_owned())].into();
        part(&exporter, &PodPolicy::default(), &[(key.clone(), set)].into(), &labels, false, now)
    };
    assert_eq!(judged(Some(set.clone()), "true"), Part::Stays);
    assert_eq!(judged(Some(set.clone()), "paused-for-mig-change"), Part::Leaves);
    assert_eq!(judged(None, "true"), Part::Evict);
    set.metadata.uid = "made anew under the same name".into();
    assert_eq!(judged(Some(set), "true"), Part::Evict);
}

#[test]
fn a_silent_kubelet_is_named() {
    let mut stuck = pod("stuck", Some(("ReplicaSet", "web")));
    stuck.metadata.deletion_timestamp = Some(at("2026-11-21T08:00:00Z"));
    let judged = part(
        &stuck,
        &PodPolicy::default(),
        &Daemons::new(),
        &BTreeMap::new(),
        true,
        at("2026-11-21T08:28:10Z"),
    );
    let Part::Ends(how) = judged else { panic!("{judged:?}") };
    assert_eq!(how, "should have ended at 2026-11-21T08:00:00Z, but the kubelet of its node does not answer");
}

fn node(text: serde_json::Value) -> Node {
    serde_json::from_value(text).unwrap()
}

#[test]
fn recorded_nodes_and_whose_they_are() {
    let foreign: Node = serde_json::from_slice(recorded!("14-cordon-cas")).unwrap();
    let Ownership::Theirs { by } = standing(&foreign, &marker()) else { panic!() };
    assert_eq!(by, "cordoned by curl at 2026-11-21T08:28:04Z");
    let free: Node = serde_json::from_slice(recorded!("17-uncordon-owner")).unwrap();
    assert!(matches!(standing(&free, &marker()), Ownership::NotDrained));
    assert_eq!(outage(&free), None);
}

#[test]
fn only_the_whole_marker_under_our_own_cordon_is_ours() {
    let ours = |owner: &str, manager: &str| {
        let node = node(json!({"metadata": {"annotations": {OWNER: owner}, "managedFields": [
            {"manager": manager, "time": "2026-11-21T08:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]},
            "spec": {"unschedulable": true}}));
        match standing(&node, &marker()) {
            Ownership::Ours => "ours".to_owned(),
            Ownership::NotDrained => "free".to_owned(),
            Ownership::Theirs { by } => by,
        }
    };
    assert_eq!(ours("gpufleet:R1:n1", "gpufleet"), "ours");
    assert_eq!(
        ours("gpufleet:R1:n1", "kubectl-cordon"),
        "cordoned anew by kubectl-cordon at 2026-11-21T08:00:00Z"
    );
    assert_eq!(ours("gpufleet:R2:n1", "gpufleet"), "cordoned by gpufleet run R2");
    for text in ["gpufleet:R1:n1 ", "gpufleet:R1:n2", " gpufleet:R1:n1", "alice"] {
        assert!(ours(text, "gpufleet").starts_with("cordoned by"), "{text}");
    }
}

#[test]
fn the_patches() {
    let free = node(json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {},
        "status": {"nodeInfo": {"bootID": "b1"}, "allocatable": {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}}}));
    let text = |patch: Vec<serde_json::Value>| {
        patch.iter().map(serde_json::Value::to_string).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(text(standing::cordon(&free, &marker(), "mig on h1")), @r#"
    {"op":"test","path":"/metadata/resourceVersion","value":"7"}
    {"op":"add","path":"/metadata/annotations","value":{}}
    {"op":"add","path":"/metadata/annotations/gpufleet.io~1owner","value":"gpufleet:R1:n1"}
    {"op":"add","path":"/metadata/annotations/gpufleet.io~1why","value":"mig on h1"}
    {"op":"add","path":"/metadata/annotations/gpufleet.io~1before","value":"{\"bootID\":\"b1\",\"gpus\":{\"nvidia.com/gpu\":8}}"}
    {"op":"add","path":"/spec/unschedulable","value":true}
    "#);
    let held = node(
        json!({"metadata": {"resourceVersion": "8", "annotations": {OWNER: "gpufleet:R1:n1", "x": "y"}},
        "spec": {"unschedulable": true}}),
    );
    insta::assert_snapshot!(text(standing::uncordon(&held, &marker())), @r#"
    {"op":"test","path":"/metadata/resourceVersion","value":"8"}
    {"op":"test","path":"/metadata/annotations/gpufleet.io~1owner","value":"gpufleet:R1:n1"}
    {"op":"remove","path":"/metadata/annotations/gpufleet.io~1owner"}
    {"op":"remove","path":"/spec/unschedulable"}
    "#);
}

#[test]
fn what_a_node_offers_is_compared() {
    let amounts =
        |list: &[(&str, u64)]| list.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    let (eight, seven) = (amounts(&[("nvidia.com/gpu", 8)]), amounts(&[("nvidia.com/gpu", 7)]));
    let none = amounts(&[]);
    assert_eq!(operands::missing(&eight, &eight), None);
    assert_eq!(
        operands::missing(&eight, &seven).unwrap(),
        "it advertises nvidia.com/gpu=7, before it was nvidia.com/gpu=8"
    );
    assert!(operands::missing(&eight, &none).is_some());
    for (before, now) in [(&none, &none), (&none, &eight)] {
        assert_eq!(operands::missing(before, now), None);
    }
}

#[test]
fn what_a_node_offers_is_its_layout() {
    let wrong = |offer: &GpuOffer, now: &[(&str, u64)], labels: &[(&str, &str)]| {
        let now = now.iter().map(|(name, amount)| (format!("nvidia.com/{name}"), *amount)).collect();
        let text = |(name, value): &(&str, &str)| (format!("nvidia.com/{name}"), (*value).to_owned());
        operands::wrong(offer, &now, &labels.iter().map(text).collect())
    };
    let instances = [("1g.10gb".to_owned(), 7), ("1g.10gb+me".to_owned(), 1)].into();
    let mixed = GpuOffer { whole: 6, divided: 2, instances, more: false };
    let right = [("gpu", 6), ("mig-1g.10gb", 7), ("mig-1g.10gb.me", 1)];
    assert_eq!(wrong(&mixed, &right, &[]), None);
    assert_eq!(wrong(&mixed, &right, &[("mig.strategy", "mixed")]), None);
    assert_eq!(
        wrong(&mixed, &[("gpu", 8)], &[("mig.strategy", "mixed")]).unwrap(),
        "it advertises nvidia.com/gpu=8, and its GPUs are nvidia.com/gpu=6, nvidia.com/mig-1g.10gb=7, nvidia.com/mig-1g.10gb.me=1 \
         by nvidia.com/mig.strategy=mixed; the device plugin sees a layout when it starts, so that its pod there may have to be restarted"
    );
    // A plugin that has not seen that the layout shrank.
    assert!(wrong(&mixed, &[("gpu", 6), ("mig-1g.10gb", 14), ("mig-1g.10gb.me", 2)], &[]).is_some());
    assert!(wrong(&mixed, &[], &[]).is_some());
    let sliced = [("gpu.shared", 24), ("mig-1g.10gb", 14), ("mig-1g.10gb.me", 1)];
    assert_eq!(wrong(&mixed, &sliced, &[("gpu.replicas", "4"), ("mig-1g.10gb.replicas", "2")]), None);

    let single =
        GpuOffer { divided: 8, instances: [("1g.10gb".to_owned(), 56)].into(), ..GpuOffer::default() };
    assert_eq!(wrong(&single, &[("gpu", 56)], &[("mig.strategy", "single")]), None);
    assert_eq!(wrong(&single, &[("gpu", 56)], &[]), None);
    let both = wrong(&single, &[("gpu", 8)], &[]).unwrap();
    assert!(both.contains("and its GPUs are nvidia.com/mig-1g.10gb=56 or nvidia.com/gpu=56; the"), "{both}");
    assert!(wrong(&single, &[("mig-1g.10gb", 56)], &[("mig.strategy", "single")]).is_some());
    assert_eq!(wrong(&single, &[("gpu", 8)], &[("mig.strategy", "none")]), None);
    let off = GpuOffer { whole: 8, ..GpuOffer::default() };
    for strategy in ["none", "single", "mixed"] {
        assert_eq!(wrong(&off, &[("gpu", 8)], &[("mig.strategy", strategy)]), None);
        assert!(wrong(&off, &[("mig-1g.10gb", 56)], &[("mig.strategy", strategy)]).is_some());
    }
}

#[test]
fn names_of_nodes() {
    for name in ["n", "ip-10-0-0-1.eu-west-1.compute.internal", "1"] {
        assert!(is_kubernetes_node_name(name), "{name}");
    }
    for name in ["", "N", "a b", "-a", "a.", "a/b", "a[1-2]", &"a".repeat(254)] {
        assert!(!is_kubernetes_node_name(name), "{name}");
    }
}

proptest! {
    #[test]
    fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_foreign_object(&bytes);
    }

    #[test]
    fn no_object_panics(
        key in "(metadata|spec|status|message|details)",
        inner in "(annotations|labels|unschedulable|conditions|causes|name|uid|managedFields)",
        value in "(null|1|true|\"\"|\\[\\]|\\{\\}|\"gpufleet:a:b\"|\\[\\{\\}\\]|\\{\"gpufleet.io/paused\":\"x\"\\})",
    ) {
        read_foreign_object(format!("{{\"{key}\":{{\"{inner}\":{value}}}}}").as_bytes());
    }

    /// What is stopped comes back as it was, whatever it said; what somebody changed since stays.
    #[test]
    fn labels_come_back(values in proptest::collection::vec("(true|false|paused-for-mig-change|)", 5)) {
        let names = ["device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm"];
        let labels: BTreeMap<String, String> = names.iter().zip(&values).filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (format!("nvidia.com/gpu.deploy.{name}"), value.clone())).collect();
        let mut node = Node::default();
        node.metadata.labels = labels.clone();
        let patch = operands::pause(&node, &operands::to_pause(&node, "me", Vec::new()));
        apply(&mut node, &patch);
        prop_assert!(operands::running(&node).is_empty());
        prop_assert!(operands::restore(&node, "another").is_empty());
        let patch = operands::restore(&node, "me");
        apply(&mut node, &patch);
        prop_assert_eq!(&node.metadata.labels, &labels);
        prop_assert!(operands::restore(&node, "me").is_empty());
    }
}

/// Carries out a patch of labels and annotations.
fn apply(node: &mut Node, patch: &[serde_json::Value]) {
    for operation in patch {
        let path = operation["path"].as_str().unwrap().replace("~1", "/");
        let value = operation["value"].as_str().unwrap().to_owned();
        if let Some(label) = path.strip_prefix("/metadata/labels/") {
            node.metadata.labels.insert(label.to_owned(), value);
        } else if let Some(annotation) = path.strip_prefix("/metadata/annotations/") {
            node.metadata.annotations.insert(annotation.to_owned(), value);
        }
    }
}

#[test]
fn what_is_shortened_ends_behind_a_whole_word() {
    assert_eq!(eviction::shortened(" a\n b ", 10), "a b");
    assert_eq!(eviction::shortened("abcdef ghij klmno", 11), "abcdef ghij …");
    assert_eq!(eviction::shortened("abcdefghij", 4), "abcd …");
}
