//! The replies of a real kube-apiserver 1.36.2, compared with this server's field by field.
//!
//! The requests are those of the recording, in its order. Only generated names, uids, times and versions may differ;
//! times are compared with each other where they matter.

use std::time::Duration;

use crate::client::{Answer, Client};
use gpufleet_k8s_api::server::Server;
use gpufleet_k8s_api::settings::{Controllers, Settings};
use serde_json::{Value, json};

const SPACE: &str = "case17241";

fn recorded(name: &str) -> (u16, Value) {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/transcripts/");
    let head = std::fs::read_to_string(format!("{dir}{name}.http")).expect("a head");
    let body = std::fs::read_to_string(format!("{dir}{name}.json")).expect("a body");
    (
        head.trim().trim_start_matches("HTTP ").parse().expect("a code"),
        serde_json::from_str(&body).expect("JSON"),
    )
}

/// Replaces everything that differs between two runs by a fixed word.
fn blur(value: &mut Value, path: &str) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                let here = format!("{path}/{key}");
                match key.as_str() {
                    "uid" if path.ends_with("metadata") => *inner = json!("UID"),
                    "resourceVersion" => *inner = json!("VERSION"),
                    "creationTimestamp" | "deletionTimestamp" | "time" => *inner = json!("TIME"),
                    // Only these: the other conditions have the recording's own times, as sent by the client.
                    "lastTransitionTime" if inner != "2026-11-21T08:00:00Z" => *inner = json!("TIME"),
                    _ => blur(inner, &here),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blur(item, path)),
        _ => {}
    }
}

#[track_caller]
fn same(name: &str, answer: &Answer) {
    let (code, mut wanted) = recorded(name);
    let mut found = answer.body.clone();
    blur(&mut wanted, "");
    blur(&mut found, "");
    assert_eq!(answer.code, code, "{name}: {}", answer.text);
    assert_eq!(answer.header("content-type"), Some("application/json"), "{name}");
    assert!(found == wanted, "{name} differs\nrecorded: {wanted:#}\nfound: {found:#}");
    let seconds = wanted.pointer("/details/retryAfterSeconds").map(ToString::to_string);
    assert_eq!(answer.header("retry-after").map(str::to_owned), seconds, "{name}");
}

struct Case {
    server: Server,
    client: Client,
}

impl Case {
    fn new() -> Self {
        let settings = Settings { controllers: Controllers::recorded(), ..Settings::default() };
        let server = Server::standing(settings).expect("a server");
        let client = Client::certified(&server, "admin");
        let case = Self { server, client };
        assert_eq!(case.client.post("/api/v1/namespaces", &json!({"metadata": {"name": SPACE}})).code, 201);
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "cn1", "labels": {"pool": "gpu"}}});
        assert_eq!(case.client.post("/api/v1/nodes", &node).code, 201);
        let status = json!({"status": {
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "lastHeartbeatTime": "2026-11-21T08:00:00Z", "lastTransitionTime": "2026-11-21T08:00:00Z",
            }],
            "nodeInfo": {"bootID": "11111111-0000-0000-0000-000000000001", "operatingSystem": "linux", "architecture": "amd64"},
        }});
        assert_eq!(case.client.patch("merge", "/api/v1/nodes/cn1/status", &status).code, 200);
        case
    }

    fn pod(&self, name: &str, app: &str, grace: i64, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"nodeName": "cn1", "terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "x"}]},
        });
        change(&mut pod);
        let made = self.client.post(&format!("/api/v1/namespaces/{SPACE}/pods"), &pod);
        assert_eq!(made.code, 201, "{}", made.text);
        self.phase(name, "Running", true);
    }

    fn phase(&self, name: &str, phase: &str, ready: bool) {
        let status = json!({"status": {"phase": phase, "conditions": [{
            "type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": "2026-11-21T08:00:00Z",
        }]}});
        let done =
            self.client.patch("merge", &format!("/api/v1/namespaces/{SPACE}/pods/{name}/status"), &status);
        assert_eq!(done.code, 200, "{}", done.text);
    }

    fn budget(&self, name: &str, app: &str, least: i64, change: impl FnOnce(&mut Value)) {
        let mut budget = json!({"kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "metadata": {"name": name},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}});
        change(&mut budget);
        let made =
            self.client.post(&format!("/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"), &budget);
        assert_eq!(made.code, 201, "{}", made.text);
    }

    fn settle(&self) {
        self.server.advance(Duration::from_secs(1));
    }

    fn evict_with(&self, name: &str, options: Option<Value>, query: &str) -> Answer {
        let mut body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": SPACE}});
        if let Some(options) = options {
            body["deleteOptions"] = options;
        }
        self.client.post(&format!("/api/v1/namespaces/{SPACE}/pods/{name}/eviction{query}"), &body)
    }

    fn evict(&self, name: &str) -> Answer {
        self.evict_with(name, None, "")
    }

    fn get(&self, name: &str) -> Answer {
        self.client.get(&format!("/api/v1/namespaces/{SPACE}/pods/{name}"))
    }
}

#[test]
fn every_recorded_reply_is_given_again() {
    let case = Case::new();
    case.pod("a", "a", 30, |_| {});
    case.pod("w1", "w", 0, |_| {});
    case.pod("w2", "w", 0, |_| {});
    case.budget("p1", "w", 2, |_| {});
    case.settle();

    same("01-evict-grace30", &case.evict("a"));
    same("02-get-terminating", &case.get("a"));
    same("03-evict-again", &case.evict("a"));
    case.pod("b", "b", 0, |_| {});
    same("04-evict-grace0", &case.evict("b"));
    same("05-evict-gone", &case.evict("b"));
    same("06-evict-pdb-429", &case.evict("w1"));
    let budget = format!("/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets");
    same("07-get-pdb", &case.client.get(&format!("{budget}/p1")));

    case.budget("p2", "w", 1, |_| {});
    case.settle();
    same("08-evict-two-pdbs-500", &case.evict("w1"));
    assert_eq!(case.client.delete(&format!("{budget}/p2")).code, 200);
    case.phase("w1", "Running", false);
    case.settle();
    same("09-evict-unhealthy-429", &case.evict("w1"));

    case.pod("f", "f", 0, |pod| pod["metadata"]["finalizers"] = json!(["example.com/keep"]));
    same("10-evict-finalizer", &case.evict("f"));
    same("11-get-finalizer-stuck", &case.get("f"));
    case.pod("m", "m", 0, |pod| {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "abc"})
    });
    same("12-get-mirror", &case.get("m"));
    same("13-evict-uid-409", &case.evict_with("w1", Some(json!({"preconditions": {"uid": "another"}})), ""));

    let cordon = json!([
        {"op": "test", "path": "/spec/unschedulable", "value": null},
        {"op": "add", "path": "/metadata/annotations", "value": {"gpufleet.io/owner": "01JX"}},
        {"op": "add", "path": "/spec/unschedulable", "value": true},
    ]);
    same("14-cordon-cas", &case.client.patch("json", "/api/v1/nodes/cn1", &cordon));
    same("15-cordon-cas-again-422", &case.client.patch("json", "/api/v1/nodes/cn1", &cordon));
    let uncordon = |owner: &str| {
        json!([
            {"op": "test", "path": "/metadata/annotations/gpufleet.io~1owner", "value": owner},
            {"op": "remove", "path": "/metadata/annotations/gpufleet.io~1owner"},
            {"op": "remove", "path": "/spec/unschedulable"},
        ])
    };
    same("16-uncordon-notowner-422", &case.client.patch("json", "/api/v1/nodes/cn1", &uncordon("other")));
    same("17-uncordon-owner", &case.client.patch("json", "/api/v1/nodes/cn1", &uncordon("01JX")));

    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "gpufleet-case17241"},
        "spec": {"holderIdentity": "ctl-a", "leaseDurationSeconds": 30}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    same("18-lease-create", &case.client.post(leases, &lease));
    same("19-lease-create-again-409", &case.client.post(leases, &lease));

    // At this point of the recording, w2 had been deleted.
    assert_eq!(case.client.delete(&format!("/api/v1/namespaces/{SPACE}/pods/w2")).code, 200);
    same("20-pods-on-node", &case.client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dcn1"));

    case.pod("w2", "w", 0, |_| {});
    assert_eq!(case.client.delete(&format!("/api/v1/namespaces/{SPACE}")).code, 200);
    same("21-evict-terminating-ns", &case.evict("w2"));
    let late = json!({"metadata": {"name": "z"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    same(
        "22-create-in-terminating-ns-403",
        &case.client.post(&format!("/api/v1/namespaces/{SPACE}/pods"), &late),
    );
}

/// Measured cases that have no transcript of their own.
#[test]
fn what_was_measured_without_a_transcript() {
    let case = Case::new();
    // A budget that its controller has not processed: 429 with a time to wait.
    case.pod("w1", "w", 0, |_| {});
    case.settle();
    case.budget("p1", "w", 1, |_| {});
    let early = case.evict("w1");
    assert_eq!((early.code, early.header("retry-after")), (429, Some("10")));
    assert_eq!(early.body["details"]["retryAfterSeconds"], json!(10));
    assert_eq!(
        early.body["details"]["causes"][0]["message"],
        json!("The disruption budget p1 is still being processed by the server.")
    );
    case.settle();
    // A dry run under an exhausted budget is refused like the real request, by query and by options.
    for answer in [
        case.evict_with("w1", None, "?dryRun=All"),
        case.evict_with("w1", Some(json!({"dryRun": ["All"]})), ""),
    ] {
        assert_eq!(answer.code, 429);
    }
    // Budgets do not apply to pods that do not run.
    case.pod("w2", "w", 0, |_| {});
    case.phase("w2", "Pending", false);
    case.pod("w3", "w", 0, |_| {});
    case.phase("w3", "Succeeded", false);
    case.settle();
    for name in ["w2", "w3"] {
        assert_eq!(case.evict(name).code, 201, "{name}");
        assert_eq!(case.get(name).code, 404, "{name}");
    }
    // A pod that is not healthy may be evicted if the budget allows it.
    case.pod("u1", "u", 0, |_| {});
    case.phase("u1", "Running", false);
    case.budget("p2", "u", 1, |b| b["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow"));
    case.settle();
    assert_eq!(case.evict("u1").code, 201);
    // The uid is checked for a pod without any budget too.
    case.pod("c", "c", 0, |_| {});
    let wrong = case.evict_with("c", Some(json!({"preconditions": {"uid": "another"}})), "");
    let uid = case.get("c").body["metadata"]["uid"].as_str().expect("a uid").to_owned();
    assert_eq!(wrong.code, 409);
    assert_eq!(
        wrong.body["message"],
        json!(format!(
            "Operation cannot be fulfilled on Pod \"c\": the UID in the precondition (another) does not match the UID in record ({uid}). \
             The object might have been deleted and then recreated"
        ))
    );
    // A dry run without a budget is accepted and does nothing.
    assert_eq!(case.evict_with("c", None, "?dryRun=All").code, 201);
    assert_eq!(case.get("c").body["metadata"].get("deletionTimestamp"), None);
    // Misspelt options are dropped with a warning, and the pod is evicted.
    let body = json!({"metadata": {"name": "c"}, "delete_options": {"preconditions": {"uid": "another"}, "dryRun": ["All"]}});
    let path = format!("/api/v1/namespaces/{SPACE}/pods/c/eviction");
    let strict = case.client.post(&format!("{path}?fieldValidation=Strict"), &body);
    assert_eq!((strict.code, strict.body["reason"].as_str()), (400, Some("BadRequest")));
    let warned = case.client.post(&path, &body);
    assert_eq!(
        (warned.code, warned.header("warning")),
        (201, Some("299 - \"unknown field \\\"delete_options\\\"\""))
    );
    assert_eq!(case.get("c").code, 404);
    // A cordon does not prevent a pod that names the node.
    assert_eq!(
        case.client.patch("merge", "/api/v1/nodes/cn1", &json!({"spec": {"unschedulable": true}})).code,
        200
    );
    case.pod("late", "late", 0, |_| {});
    assert_eq!(case.get("late").body["spec"]["nodeName"], json!("cn1"));
    // Two writers: a merge patch overwrites; a version or a test refuses.
    let stale = json!({"metadata": {"resourceVersion": "101"}, "spec": {"unschedulable": null}});
    let refused = case.client.patch("merge", "/api/v1/nodes/cn1", &stale);
    assert_eq!((refused.code, refused.body["reason"].as_str()), (409, Some("Conflict")));
    assert_eq!(
        refused.body["message"],
        json!(
            "Operation cannot be fulfilled on nodes \"cn1\": the object has been modified; please apply your changes to the latest version and try again"
        )
    );
    assert_eq!(
        case.client.patch("merge", "/api/v1/nodes/cn1", &json!({"spec": {"unschedulable": null}})).code,
        200
    );
}

/// A wrong uid under a budget with room uses up the room, as in the real code: the precondition comes after the
/// budget.
#[test]
fn a_wrong_uid_costs_the_budget_a_disruption_until_its_controller_gives_up() {
    let case = Case::new();
    case.pod("w1", "w", 0, |_| {});
    case.pod("w2", "w", 0, |_| {});
    case.budget("p1", "w", 1, |_| {});
    case.settle();
    let wrong = case.evict_with("w1", Some(json!({"preconditions": {"uid": "another"}})), "");
    assert_eq!(wrong.code, 409);
    assert_eq!(case.evict("w2").code, 429);
    case.server.advance(Duration::from_secs(130));
    assert_eq!(case.evict("w2").code, 201);
}
