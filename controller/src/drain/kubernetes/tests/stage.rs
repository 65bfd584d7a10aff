//! A cluster in memory that answers the few requests of a drain, for tests of what is asked and when.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use futures::future::{BoxFuture, FutureExt as _, ready};
use serde_json::{Value, json};

use super::super::{Api, Method, Reply, Request, Unanswered};

#[derive(Default)]
pub(super) struct State {
    /// By name.
    pub(super) nodes: BTreeMap<String, Value>,
    /// By `namespace/name`.
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) daemons: BTreeMap<String, Value>,
    /// By `namespace/name`.
    pub(super) replica_sets: BTreeMap<String, Value>,
    pub(super) lease: Option<Value>,
    /// Answers to evictions, by `namespace/name`; others succeed and take the pod away.
    pub(super) evictions: HashMap<String, (u16, String)>,
    /// Evictions leave pods there, with a time to end.
    pub(super) lingers: bool,
    pub(super) version: u64,
    /// Every request that could change something, as `METHOD PATH`.
    pub(super) asked: Vec<String>,
    /// Evictions that were tried out.
    pub(super) tried: usize,
    /// Answers nothing.
    pub(super) gone: bool,
    /// Is called before the next patch is looked at.
    pub(super) meddle: Option<fn(&mut State)>,
}

#[derive(Clone, Default)]
pub(super) struct Stage(Arc<Mutex<State>>);

impl Stage {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn node(&self, name: &str) -> Value {
        self.state().nodes[name].clone()
    }
}

impl State {
    /// A node that is ready.
    pub(super) fn add_node(&mut self, name: &str) -> &mut Value {
        let node = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1", "labels": {}},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "nodeInfo": {"bootID": "boot-1"},
                "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"},
            },
        });
        self.nodes.entry(name.to_owned()).or_insert(node)
    }

    /// A pod of a ReplicaSet.
    pub(super) fn add_pod(&mut self, node: &str, namespace: &str, name: &str) -> &mut Value {
        let pod = json!({
            "metadata": {
                "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "resourceVersion": "1",
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}],
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.pods.entry(format!("{namespace}/{name}")).or_insert(pod)
    }

    /// A DaemonSet with one pod that is ready.
    pub(super) fn add_daemon(&mut self, node: &str, namespace: &str, name: &str, selector: Value) {
        let set = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}")},
            "spec": {"template": {"spec": {"nodeSelector": selector}}},
        });
        self.daemons.insert(format!("{namespace}/{name}"), set);
        let pod = self.add_pod(node, namespace, &format!("{name}-x"));
        pod["metadata"]["ownerReferences"] =
            json!([{"kind": "DaemonSet", "name": name, "uid": format!("uid-{name}"), "controller": true}]);
    }

    fn answer(&mut self, request: &Request) -> Reply {
        let path = request.path.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let dry = request.path.contains("dryRun=All");
        self.tried += usize::from(dry);
        if request.method != Method::Get && !dry {
            self.asked.push(format!("{} {path}", request.method));
        }
        match (request.method, parts.as_slice()) {
            (Method::Get, ["api", "v1", "nodes"]) => items(self.nodes.values()),
            (Method::Get, ["api", "v1", "nodes", name]) => found(self.nodes.get(*name)),
            (Method::Get, ["api", "v1", "pods"]) => items(self.pods.values()),
            (Method::Get, ["apis", "apps", "v1", "namespaces", namespace, "daemonsets", name]) => {
                found(self.daemons.get(&format!("{namespace}/{name}")))
            }
            (Method::Get, ["apis", "apps", "v1", "namespaces", namespace, "replicasets", name]) => {
                found(self.replica_sets.get(&format!("{namespace}/{name}")))
            }
            (Method::Patch, ["api", "v1", "nodes", name]) => {
                if let Some(meddle) = self.meddle.take() {
                    meddle(self);
                }
                let Some(mut node) = self.nodes.get(*name).cloned() else { return status(404, "no node") };
                for operation in request.body.as_ref().unwrap().as_array().unwrap() {
                    if !patched(&mut node, operation) {
                        return reply(
                            422,
                            include_bytes!("../replies/16-uncordon-notowner-422.json").to_vec(),
                        );
                    }
                }
                let now = node["spec"].get("unschedulable") == Some(&json!(true));
                let fields = match now {
                    true => json!([{"manager": "gpufleet", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]),
                    false => json!([]),
                };
                if node["spec"]["unschedulable"] != self.nodes[*name]["spec"]["unschedulable"] {
                    node["metadata"]["managedFields"] = fields;
                }
                self.version += 1;
                node["metadata"]["resourceVersion"] = json!(format!("v{}", self.version));
                self.nodes.insert((*name).to_owned(), node.clone());
                found(Some(&node))
            }
            (Method::Patch, ["api", "v1", "namespaces", namespace, "pods", name]) => {
                let key = format!("{namespace}/{name}");
                let Some(mut pod) = self.pods.get(&key).cloned() else { return status(404, "no pod") };
                let body = request.body.as_ref().unwrap();
                if !body.as_array().unwrap().iter().all(|operation| patched(&mut pod, operation)) {
                    return reply(422, include_bytes!("../replies/16-uncordon-notowner-422.json").to_vec());
                }
                self.version += 1;
                pod["metadata"]["resourceVersion"] = json!(format!("v{}", self.version));
                self.pods.insert(key, pod.clone());
                found(Some(&pod))
            }
            (Method::Post, ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]) => {
                self.evict(&format!("{namespace}/{name}"), request.body.as_ref().unwrap())
            }
            (Method::Get, [.., "leases", _]) => found(self.lease.as_ref()),
            (Method::Post, [.., "leases"]) if self.lease.is_some() => {
                reply(409, include_bytes!("../replies/19-lease-create-again-409.json").to_vec())
            }
            (Method::Post, [.., "leases"]) => self.hold(request.body.clone().unwrap()),
            (Method::Put, [.., "leases", _]) => {
                let new = request.body.clone().unwrap();
                let old = self.lease.clone().unwrap();
                match new["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"] {
                    true => self.hold(new),
                    false => status(409, "the object has been modified"),
                }
            }
            _ => status(400, "not on this stage"),
        }
    }

    fn hold(&mut self, mut lease: Value) -> Reply {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(format!("v{}", self.version));
        self.lease = Some(lease.clone());
        found(Some(&lease))
    }

    fn evict(&mut self, key: &str, body: &Value) -> Reply {
        let Some(pod) = self.pods.get_mut(key) else { return status(404, "no pod") };
        if let Some((code, text)) = self.evictions.get(key) {
            return reply(*code, text.clone().into_bytes());
        }
        let options = &body["deleteOptions"];
        if options["preconditions"]["uid"] != pod["metadata"]["uid"] {
            return status(409, "the UID in the precondition does not match");
        }
        if options["dryRun"] != json!(["All"]) {
            if self.lingers {
                pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T08:28:23Z");
            } else {
                self.pods.remove(key);
            }
        }
        reply(201, include_bytes!("../replies/01-evict-grace30.json").to_vec())
    }
}

impl Api for Stage {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Unanswered>> {
        let mut state = self.state();
        let answer = match state.gone {
            true => Err(Unanswered("connection refused".to_owned())),
            false => Ok(state.answer(&request)),
        };
        ready(answer).boxed()
    }

    fn place(&self) -> String {
        " at https://stage".to_owned()
    }
}

fn reply(status: u16, body: Vec<u8>) -> Reply {
    Reply { status, retry_after: None, body }
}

fn status(code: u16, message: &str) -> Reply {
    reply(code, json!({"kind": "Status", "message": message}).to_string().into_bytes())
}

fn found(object: Option<&Value>) -> Reply {
    object.map_or_else(|| status(404, "not found"), |object| reply(200, object.to_string().into_bytes()))
}

fn items<'a>(objects: impl Iterator<Item = &'a Value>) -> Reply {
    let items: Vec<&Value> = objects.collect();
    reply(200, json!({"metadata": {}, "items": items}).to_string().into_bytes())
}

/// Carries out one operation of a JSON patch; whether it could be.
fn patched(object: &mut Value, operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/").replace("~0", "~");
    let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) else { return false };
    match operation["op"].as_str().unwrap() {
        "test" => parent.get(&key) == operation.get("value"),
        "add" => {
            parent.insert(key, operation["value"].clone());
            true
        }
        "remove" => parent.remove(&key).is_some(),
        _ => false,
    }
}
