//! What the cluster does around a drain, on a clock that the tests move.

use std::time::Duration;

use gpufleet_k8s_api::control::Command;
use gpufleet_k8s_api::log::{foreign_uncordons, most_out};
use gpufleet_k8s_api::object::{self, is_true};
use gpufleet_k8s_api::resources::{BUDGETS, NODES, PODS};
use gpufleet_k8s_api::scenario::Scenario;
use gpufleet_k8s_api::server::{Options, Server};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

pub fn start(yaml: &str) -> (Server, Client) {
    let scenario = Scenario::parse(yaml).expect("a scenario");
    let server = Server::start(Options { port: 0, scenario }).expect("a server");
    let client = Client::certified(&server, "drainer");
    (server, client)
}

fn seconds(server: &Server, n: u64) {
    server.advance(Duration::from_secs(n));
}

fn pods_on(server: &Server, node: &str) -> Vec<String> {
    server.with(|c| {
        c.store
            .all(&PODS, "")
            .filter(|p| object::text(p, "/spec/nodeName") == node)
            .map(|p| object::name(p).to_owned())
            .collect()
    })
}

pub fn evict(client: &Client, namespace: &str, name: &str) -> Answer {
    client.post(
        &format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction"),
        &json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}),
    )
}

pub fn cordon(client: &Client, node: &str, on: bool) {
    assert_eq!(
        client.patch("merge", &format!("/api/v1/nodes/{node}"), &json!({"spec": {"unschedulable": on}})).code,
        200
    );
}

fn node(server: &Server, name: &str) -> Value {
    server.object(&NODES, "", name).expect("the node is there")
}

#[test]
fn evicted_pods_come_up_elsewhere_and_the_budget_follows() {
    let (server, client) = start(
        "{pace: 0, nodes: [{name: 'n{}', count: 3}], deployments: [{name: web, replicas: 3, grace: 30}], budgets: [{name: web, max_unavailable: 1}]}",
    );
    cordon(&client, "n01", true);
    let victim = pods_on(&server, "n01").first().cloned().expect("one pod on each node");
    assert_eq!(evict(&client, "default", &victim).code, 201);
    // The pod is terminating and still exists; the budget is used up until the replacement is ready.
    assert!(object::terminating(&server.object(&PODS, "default", &victim).expect("201 is not gone")));
    let other = pods_on(&server, "n02").first().cloned().expect("a pod");
    assert_eq!(evict(&client, "default", &other).code, 429);
    seconds(&server, 10);
    assert!(server.object(&PODS, "default", &victim).is_none());
    assert_eq!(pods_on(&server, "n01"), Vec::<String>::new());
    let status = server.object(&BUDGETS, "default", "web").expect("the budget")["status"].clone();
    assert_eq!(
        (&status["expectedPods"], &status["currentHealthy"], &status["disruptionsAllowed"]),
        (&json!(3), &json!(3), &json!(1))
    );
    assert_eq!(status.get("disruptedPods"), None);
    assert_eq!(evict(&client, "default", &other).code, 201);
    let log = server.log(0);
    assert!(!log.iter().any(|e| e.verb == "budget-violated") && most_out(&log) >= 1);
}

#[test]
fn a_pod_deleted_past_its_budget_is_written_down() {
    let (server, client) = start(
        "{pace: 0, nodes: [{name: n1}], deployments: [{name: web, replicas: 2}], budgets: [{name: web, min_available: 2}]}",
    );
    let pod = pods_on(&server, "n1").first().cloned().expect("a pod");
    assert_eq!(evict(&client, "default", &pod).code, 429);
    assert_eq!(client.delete(&format!("/api/v1/namespaces/default/pods/{pod}")).code, 200);
    let violated =
        server.log(0).into_iter().find(|e| e.verb == "budget-violated").expect("it is written down");
    assert_eq!((violated.user.as_str(), violated.detail), ("drainer", json!({"healthy": 1, "needed": 2})));
}

#[test]
fn a_stateful_pod_comes_back_under_its_name_with_another_uid() {
    let (server, client) =
        start("{pace: 0, nodes: [{name: n1}, {name: n2}], stateful_sets: [{name: db, replicas: 2}]}");
    let before = server.object(&PODS, "default", "db-0").expect("it runs");
    cordon(&client, object::text(&before, "/spec/nodeName"), true);
    assert_eq!(evict(&client, "default", "db-0").code, 201);
    seconds(&server, 10);
    let after = server.object(&PODS, "default", "db-0").expect("it is back");
    assert_ne!(object::uid(&before), object::uid(&after));
    assert_ne!(before["spec"]["nodeName"], after["spec"]["nodeName"]);
}

#[test]
fn daemons_and_mirrors_come_back_to_a_cordoned_node() {
    let (server, client) = start(
        "{pace: 0, nodes: [{name: n1}], daemon_sets: [{name: agent, namespace: kube-system}], \
          pods: [{name: etcd-n1, namespace: kube-system, node: n1, mirror: true}]}",
    );
    cordon(&client, "n1", true);
    let before = pods_on(&server, "n1");
    let uids = |server: &Server| {
        server.with(|c| c.store.all(&PODS, "").map(|p| object::uid(p).to_owned()).collect::<Vec<_>>())
    };
    let old = uids(&server);
    for name in &before {
        assert_eq!(evict(&client, "kube-system", name).code, 201, "the API lets both go");
    }
    seconds(&server, 60);
    assert_eq!(pods_on(&server, "n1").len(), 2);
    assert!(uids(&server).iter().all(|uid| !old.contains(uid)));
}

#[test]
fn a_dead_kubelet_leaves_its_pods_terminating_for_ever() {
    let (server, client) = start(
        "{pace: 0, nodes: [{name: n1}, {name: n2}], deployments: [{name: web, replicas: 2}], budgets: [{name: web, min_available: 1}]}",
    );
    server
        .command(&Command::Kubelet { node: "n1".to_owned(), state: "dead".to_owned() })
        .expect("n1 has a machine");
    seconds(&server, 60);
    let gone = node(&server, "n1");
    assert_eq!(object::condition(&gone, "Ready").map(|c| object::text(c, "/status")), Some("Unknown"));
    assert!(object::list(&gone, "/spec/taints").iter().any(|t| t["key"] == "node.kubernetes.io/unreachable"));
    let pod = pods_on(&server, "n1").first().cloned().expect("its pod");
    assert!(!is_true(&server.object(&PODS, "default", &pod).expect("it is there"), "Ready"));
    assert_eq!(
        evict(&client, "default", &pod).code,
        201,
        "an unhealthy pod beside enough healthy ones may go"
    );
    seconds(&server, 3600);
    assert!(object::terminating(&server.object(&PODS, "default", &pod).expect("nobody takes it away")));
    server
        .command(&Command::Kubelet { node: "n1".to_owned(), state: "running".to_owned() })
        .expect("n1 has a machine");
    seconds(&server, 5);
    assert!(server.object(&PODS, "default", &pod).is_none());
    assert!(is_true(&node(&server, "n1"), "Ready"));
}

#[test]
fn finalizers_and_stuck_kubelets_hold_pods() {
    let (server, client) = start(
        "{pace: 0, nodes: [{name: n1}], pods: [{name: held, node: n1, finalizers: [example.com/keep]}, \
          {name: stuck, node: n1, annotations: {k8s-api.test/never-stops: 'yes'}}, {name: slow, node: n1, grace: 120, annotations: {k8s-api.test/stop: 90s}}]}",
    );
    for name in ["held", "stuck", "slow"] {
        assert_eq!(evict(&client, "default", name).code, 201);
    }
    seconds(&server, 80);
    assert_eq!(pods_on(&server, "n1"), ["held", "slow", "stuck"]);
    seconds(&server, 20);
    assert_eq!(pods_on(&server, "n1"), ["held", "stuck"]);
    let path = "/api/v1/namespaces/default/pods/held";
    let held = client.get(path);
    assert_eq!(held.body["metadata"]["deletionGracePeriodSeconds"], json!(0));
    assert_eq!(client.patch("merge", path, &json!({"metadata": {"finalizers": null}})).code, 200);
    assert_eq!(client.get(path).code, 404);
    // A shorter grace has an effect; zero deletes the pod without the kubelet.
    assert_eq!(client.delete("/api/v1/namespaces/default/pods/stuck?gracePeriodSeconds=0").code, 200);
    assert_eq!(client.get("/api/v1/namespaces/default/pods/stuck").code, 404);
}

#[test]
fn a_reboot_changes_the_boot_id_and_devices_come_back_last() {
    let (server, _) = start(
        "{pace: 0, nodes: [{name: n1, boot_id: first, devices: {nvidia.com/gpu: 8}}], pods: [{name: p, node: n1}]}",
    );
    let devices = |server: &Server| node(server, "n1")["status"]["allocatable"]["nvidia.com/gpu"].clone();
    assert_eq!(devices(&server), json!("8"));
    server
        .command(&Command::Reboot { node: "n1".to_owned(), down: "90s".parse_span() })
        .expect("n1 has a machine");
    seconds(&server, 30);
    assert!(is_true(&node(&server, "n1"), "Ready"), "nobody has noticed yet");
    seconds(&server, 30);
    assert!(!is_true(&node(&server, "n1"), "Ready"));
    assert_eq!(node(&server, "n1")["status"]["nodeInfo"]["bootID"], json!("first"));
    seconds(&server, 31);
    assert_ne!(node(&server, "n1")["status"]["nodeInfo"]["bootID"], json!("first"));
    assert_eq!((is_true(&node(&server, "n1"), "Ready"), devices(&server)), (false, json!("0")));
    seconds(&server, 10);
    assert_eq!((is_true(&node(&server, "n1"), "Ready"), devices(&server)), (true, json!("8")));
    assert_eq!(object::list(&node(&server, "n1"), "/spec/taints"), &[] as &[Value]);
    assert!(is_true(&server.object(&PODS, "default", "p").expect("a short reboot keeps pods"), "Ready"));
}

const OPERATOR: &str = "{pace: 0, nodes: [{name: n1, devices: {nvidia.com/gpu: 8}, plugin: app=device-plugin, \
      labels: {nvidia.com/gpu.deploy.device-plugin: 'true', nvidia.com/gpu.deploy.dcgm-exporter: 'true', nvidia.com/mig.config: all-disabled}, \
      mig: {layouts: {all-1g.10gb: {nvidia.com/mig-1g.10gb: 56}, all-disabled: {nvidia.com/gpu: 8}}}}], \
      daemon_sets: [{name: device-plugin, namespace: gpu-operator, node_selector: {nvidia.com/gpu.deploy.device-plugin: 'true'}}]}";

#[test]
fn a_paused_component_goes_away_and_its_return_shows_the_new_devices() {
    let (server, client) = start(OPERATOR);
    let allocatable = |server: &Server| node(server, "n1")["status"]["allocatable"].clone();
    assert_eq!(allocatable(&server)["nvidia.com/gpu"], json!("8"));
    let label = |value: &str| {
        let patch = json!({"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": value}}});
        assert_eq!(client.patch("merge", "/api/v1/nodes/n1", &patch).code, 200);
    };
    label("paused-for-mig-change");
    seconds(&server, 40);
    assert_eq!(
        (pods_on(&server, "n1").len(), allocatable(&server)["nvidia.com/gpu"].clone()),
        (0, json!("0"))
    );
    server
        .command(&Command::Devices {
            node: "n1".to_owned(),
            devices: [("nvidia.com/mig-3g.40gb".to_owned(), 16)].into(),
        })
        .expect("n1 has a machine");
    seconds(&server, 40);
    assert_eq!(allocatable(&server).get("nvidia.com/mig-3g.40gb"), None, "nobody has looked");
    label("true");
    seconds(&server, 40);
    assert_eq!(allocatable(&server)["nvidia.com/mig-3g.40gb"], json!("16"));
    assert_eq!(allocatable(&server)["nvidia.com/gpu"], json!("0"));
}

#[test]
fn the_mig_manager_follows_its_label_and_says_how_it_went() {
    let (server, client) = start(OPERATOR);
    let label = |server: &Server, key: &str| object::label(&node(server, "n1"), key).map(str::to_owned);
    let ask = |layout: &str| {
        let patch = json!({"metadata": {"labels": {"nvidia.com/mig.config": layout}}});
        assert_eq!(client.patch("strategic-merge", "/api/v1/nodes/n1", &patch).code, 200);
    };
    ask("all-1g.10gb");
    assert_eq!(label(&server, "nvidia.com/mig.config.state").as_deref(), Some("pending"));
    assert_eq!(
        label(&server, "nvidia.com/gpu.deploy.device-plugin").as_deref(),
        Some("paused-for-mig-change")
    );
    seconds(&server, 60);
    assert_eq!(label(&server, "nvidia.com/mig.config.state").as_deref(), Some("success"));
    assert_eq!(label(&server, "nvidia.com/gpu.deploy.dcgm-exporter").as_deref(), Some("true"));
    assert_eq!(node(&server, "n1")["status"]["allocatable"]["nvidia.com/mig-1g.10gb"], json!("56"));
    ask("all-9g.90gb");
    seconds(&server, 60);
    assert_eq!(label(&server, "nvidia.com/mig.config.state").as_deref(), Some("failed"));
}

#[test]
fn a_deleted_namespace_refuses_new_content_and_goes_when_it_is_empty() {
    let (server, client) = start(
        "{pace: 0, nodes: [{name: n1}], deployments: [{name: web, namespace: team, replicas: 1, grace: 30}]}",
    );
    let pod = pods_on(&server, "n1").first().cloned().expect("a pod");
    assert_eq!(client.delete("/api/v1/namespaces/team").body["status"]["phase"], json!("Terminating"));
    assert_eq!(evict(&client, "team", &pod).code, 403);
    seconds(&server, 60);
    assert_eq!(client.get("/api/v1/namespaces/team").code, 404);
    assert_eq!(evict(&client, "team", &pod).code, 404);
}

#[test]
fn without_its_controller_a_new_budget_refuses_for_ever() {
    let (server, client) = start(
        "{pace: 0, settings: {controllers: {disruption: false}}, nodes: [{name: n1}], deployments: [{name: web, replicas: 2}], budgets: [{name: web, min_available: 1}]}",
    );
    seconds(&server, 600);
    let pod = pods_on(&server, "n1").first().cloned().expect("a pod");
    assert_eq!(evict(&client, "default", &pod).header("retry-after"), Some("10"));
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    assert_eq!(
        client
            .patch("merge", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web/status", &status)
            .code,
        200
    );
    assert_eq!(evict(&client, "default", &pod).code, 201);
}

#[test]
fn a_share_of_what_has_no_scale_fails_its_sync() {
    let (server, client) =
        start("{pace: 0, nodes: [{name: n1}], budgets: [{name: train, max_unavailable: 0%}]}");
    let jobs = Scenario::parse("{jobs: [{name: train, replicas: 1}]}").expect("a scenario");
    server.command(&Command::Add { scenario: Box::new(jobs) }).expect("a job");
    seconds(&server, 10);
    let pod = pods_on(&server, "n1").first().cloned().expect("a pod");
    let refused = evict(&client, "default", &pod);
    assert_eq!(
        refused.body["details"]["causes"][0]["message"],
        json!(
            "The disruption budget train does not allow evicting pods currently because it failed sync: jobs.batch does not implement the scale subresource"
        )
    );
}

#[test]
fn the_log_tells_who_undid_whose_cordon() {
    let (server, client) = start("{pace: 0, nodes: [{name: n1}, {name: n2}]}");
    server
        .command(&Command::Cordon { node: "n1".to_owned(), user: "alice".to_owned() })
        .expect("n1 is there");
    cordon(&client, "n2", true);
    assert_eq!(server.command(&Command::Out), Ok(json!(2)));
    cordon(&client, "n2", false);
    assert_eq!(foreign_uncordons(&server.log(0)), []);
    cordon(&client, "n1", false);
    let found = foreign_uncordons(&server.log(0));
    assert_eq!(
        (found[0].node.as_str(), found[0].cordoned_by.as_str(), found[0].uncordoned_by.as_str()),
        ("n1", "alice", "drainer")
    );
    assert_eq!(most_out(&server.log(0)), 2);
}

#[test]
fn a_writer_is_who_it_says_it_is() {
    let (server, client) = start("{pace: 0, nodes: [{name: n1}]}");
    let body = json!({"spec": {"unschedulable": true}});
    assert_eq!(client.patch("merge", "/api/v1/nodes/n1?fieldManager=drainer", &body).code, 200);
    let node = node(&server, "n1");
    let wrote = |managed: &&Value| managed.pointer("/fieldsV1/f:spec/f:unschedulable").is_some();
    let managers = node["metadata"]["managedFields"].as_array().expect("writers");
    assert_eq!(managers.iter().find(wrote).expect("the writer of the cordon")["manager"], "drainer");
}

#[test]
fn leases_are_taken_by_version_only() {
    let (_server, client) = start("{pace: 0}");
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}});
    let made = client.post(path, &lease).body;
    let own = format!("{path}/l");
    assert_eq!(client.put(&own, &lease).code, 422, "an update wants a version");
    let mut mine = made.clone();
    mine["spec"]["holderIdentity"] = json!("b");
    let taken = client.put(&own, &mine);
    assert_eq!((taken.code, taken.body["spec"]["holderIdentity"].as_str()), (200, Some("b")));
    let late = client.put(&own, &mine);
    assert_eq!((late.code, late.body["reason"].as_str()), (409, Some("Conflict")));
    assert_eq!(client.delete(&own).body["status"], json!("Success"));
    let gone = client.put(&own, &taken.body);
    assert_eq!(gone.code, 409, "a lease of a uid that is gone is not made anew");
    assert_eq!(client.put(&own, &lease).code, 201, "one without is");
}

/// Parses a `Span`.
trait ParseSpan {
    fn parse_span(&self) -> gpufleet_k8s_api::settings::Span;
}

impl ParseSpan for str {
    fn parse_span(&self) -> gpufleet_k8s_api::settings::Span {
        gpufleet_k8s_api::settings::Span::parse(self).expect("a length of time")
    }
}
