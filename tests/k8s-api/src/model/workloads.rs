//! The workload controllers: replica sets, stateful sets, daemon sets and jobs replace their pods.
//!
//! A deployment is only the owner of its replica set here, because a drain only handles pods.

use serde_json::{Value, json};

use super::scheduler::selected;
use crate::api::delete::DeleteOptions;
use crate::cluster::{Actor, Cluster};
use crate::object::{self, int, is_true, set, terminating, text};
use crate::resources::{DAEMON_SETS, JOBS, NAMESPACES, NODES, PODS, REPLICA_SETS, Resource, STATEFUL_SETS};
use crate::selector::tolerates;

fn finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

impl Cluster {
    pub(crate) fn keep_workloads(&mut self) {
        for resource in [&REPLICA_SETS, &STATEFUL_SETS, &DAEMON_SETS, &JOBS] {
            let owners: Vec<Value> =
                self.store.all(resource, "").filter(|o| !terminating(o)).cloned().collect();
            for owner in owners {
                let pods = self.pods_owned(&owner);
                match resource.plural {
                    "replicasets" => self.keep_replicas(&owner, &pods),
                    "statefulsets" => self.keep_ordinals(&owner, &pods),
                    "daemonsets" => self.keep_daemons(&owner, &pods),
                    _ => self.keep_job(&owner, &pods),
                }
                self.count_pods(resource, &owner);
            }
        }
    }

    fn pods_owned(&self, owner: &Value) -> Vec<Value> {
        let uid = object::uid(owner);
        let mine = |pod: &&Value| object::controller(pod).is_some_and(|o| text(o, "/uid") == uid);
        self.store.all(&PODS, object::namespace(owner)).filter(mine).cloned().collect()
    }

    fn keep_replicas(&mut self, owner: &Value, pods: &[Value]) {
        let wanted = usize::try_from(int(owner, "/spec/replicas").unwrap_or(1)).unwrap_or_default();
        let mut active: Vec<&Value> = pods.iter().filter(|p| !terminating(p) && !finished(p)).collect();
        for _ in active.len()..wanted {
            let name = format!("{}-{}", object::name(owner), self.suffix());
            self.make_pod(&REPLICA_SETS, owner, &name, |_| {});
        }
        // Ready ones last: a controller with too many pods removes unready ones first.
        active.sort_by_key(|p| is_true(p, "Ready"));
        for pod in active.iter().take(active.len().saturating_sub(wanted)) {
            self.give_up(pod);
        }
    }

    /// Keeps one pod for each number, always under the same name; the next one starts only when all before it are
    /// ready.
    fn keep_ordinals(&mut self, owner: &Value, pods: &[Value]) {
        let parallel = text(owner, "/spec/podManagementPolicy") == "Parallel";
        let wanted = int(owner, "/spec/replicas").unwrap_or(1);
        for ordinal in 0..wanted {
            let name = format!("{}-{ordinal}", object::name(owner));
            match pods.iter().find(|p| object::name(p) == name) {
                Some(pod) if finished(pod) && !terminating(pod) => self.give_up(pod),
                Some(pod) if is_true(pod, "Ready") && !terminating(pod) => {}
                Some(_) if parallel => {}
                Some(_) => return,
                None => {
                    let (set_name, pod_name) = (object::name(owner).to_owned(), name.clone());
                    self.make_pod(&STATEFUL_SETS, owner, &name, |pod| {
                        set(
                            pod,
                            &["metadata", "labels", "statefulset.kubernetes.io/pod-name"],
                            json!(pod_name),
                        );
                        set(
                            pod,
                            &["metadata", "labels", "apps.kubernetes.io/pod-index"],
                            json!(ordinal.to_string()),
                        );
                        set(pod, &["spec", "hostname"], json!(pod_name));
                        set(pod, &["spec", "subdomain"], json!(set_name));
                    });
                    if !parallel {
                        return;
                    }
                }
            }
        }
    }

    /// Keeps one pod on every node that is selected and tolerated, cordoned or not.
    fn keep_daemons(&mut self, owner: &Value, pods: &[Value]) {
        let nodes: Vec<Value> = self.store.all(&NODES, "").cloned().collect();
        for node in &nodes {
            let name = object::name(node);
            let spec = owner.pointer("/spec/template/spec").cloned().unwrap_or_default();
            let mut probe = json!({"spec": spec});
            daemon_tolerations(&mut probe);
            let tolerated = |effects: &[&str]| {
                let mut taints = object::list(node, "/spec/taints")
                    .iter()
                    .filter(|t| effects.contains(&text(t, "/effect")));
                taints.all(|t| tolerates(&probe, t).is_some())
            };
            let here = selected(&probe["spec"], node);
            // Two answers: a running pod stays under a taint that only keeps new ones away.
            let (starts, stays) =
                (here && tolerated(&["NoSchedule", "NoExecute"]), here && tolerated(&["NoExecute"]));
            let there: Vec<&Value> = pods.iter().filter(|p| text(p, "/spec/nodeName") == name).collect();
            if !stays {
                for pod in there.iter().filter(|p| !terminating(p)) {
                    self.give_up(pod);
                }
            } else if there.is_empty() && starts {
                let pod_name = format!("{}-{}", object::name(owner), self.suffix());
                self.make_pod(&DAEMON_SETS, owner, &pod_name, |pod| {
                    daemon_tolerations(pod);
                    set(pod, &["spec", "nodeName"], json!(name));
                });
            } else {
                for pod in there.iter().filter(|p| finished(p) && !terminating(p)) {
                    self.give_up(pod);
                }
            }
        }
        for pod in pods.iter().filter(|p| {
            !terminating(p) && !nodes.iter().any(|n| object::name(n) == text(p, "/spec/nodeName"))
        }) {
            self.give_up(pod);
        }
    }

    fn keep_job(&mut self, owner: &Value, pods: &[Value]) {
        let completions = int(owner, "/spec/completions").unwrap_or(1);
        let parallel = int(owner, "/spec/parallelism").unwrap_or(1);
        let done = i64::try_from(pods.iter().filter(|p| text(p, "/status/phase") == "Succeeded").count())
            .unwrap_or_default();
        // Terminating ones count: a job replaces a pod only when it is gone.
        let active = i64::try_from(pods.iter().filter(|p| !finished(p)).count()).unwrap_or_default();
        for _ in active..parallel.min(completions - done) {
            let name = format!("{}-{}", object::name(owner), self.suffix());
            self.make_pod(&JOBS, owner, &name, |_| {});
        }
    }

    fn give_up(&mut self, pod: &Value) {
        let options = DeleteOptions { uid: Some(object::uid(pod).to_owned()), ..DeleteOptions::default() };
        // A pod that changed in between is checked again.
        let _ = self.delete(
            &Actor::controller_manager(),
            &PODS,
            object::namespace(pod),
            object::name(pod),
            options,
        );
    }

    fn make_pod(
        &mut self,
        resource: &'static Resource,
        owner: &Value,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let namespace = object::namespace(owner);
        if self.store.get(&NAMESPACES, "", namespace).is_none_or(terminating) {
            return;
        }
        let mut pod = owner.pointer("/spec/template").cloned().unwrap_or(json!({}));
        set(&mut pod, &["kind"], json!("Pod"));
        set(&mut pod, &["apiVersion"], json!("v1"));
        set(&mut pod, &["metadata", "name"], json!(name));
        set(&mut pod, &["metadata", "namespace"], json!(namespace));
        let reference = json!([{
            "apiVersion": resource.api_version(), "kind": resource.kind, "name": object::name(owner), "uid": object::uid(owner),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        set(&mut pod, &["metadata", "ownerReferences"], reference);
        change(&mut pod);
        // What admission refuses now is tried again at the next change.
        let _ = self.create(&Actor::controller_manager(), &PODS, namespace, pod, false);
    }

    fn count_pods(&mut self, resource: &'static Resource, owner: &Value) {
        let pods = self.pods_owned(owner);
        let count = |test: &dyn Fn(&&Value) -> bool| pods.iter().filter(test).count();
        let active = count(&|p| !terminating(p) && !finished(p));
        let ready = count(&|p| !terminating(p) && is_true(p, "Ready"));
        let done = count(&|p| text(p, "/status/phase") == "Succeeded");
        let completions = int(owner, "/spec/completions").unwrap_or(1);
        let now_ms = self.now_ms;
        self.amend(&Actor::controller_manager(), resource, owner, "status", |owner| match resource.plural {
            "daemonsets" => {
                for (key, value) in [
                    ("currentNumberScheduled", active),
                    ("desiredNumberScheduled", active),
                    ("numberReady", ready),
                ] {
                    set(owner, &["status", key], json!(value));
                }
            }
            "jobs" => {
                set(owner, &["status", "active"], json!(active));
                set(owner, &["status", "ready"], json!(ready));
                set(owner, &["status", "succeeded"], json!(done));
                if i64::try_from(done).is_ok_and(|done| done >= completions) {
                    object::set_condition(
                        owner,
                        now_ms,
                        json!({"type": "Complete", "status": "True", "lastTransitionTime": null}),
                    );
                }
            }
            _ => {
                set(owner, &["status", "replicas"], json!(active));
                set(owner, &["status", "readyReplicas"], json!(ready));
                set(owner, &["status", "availableReplicas"], json!(ready));
            }
        });
    }
}

/// Adds the tolerations that the daemon set controller gives its pods.
fn daemon_tolerations(pod: &mut Value) {
    let mut all: Vec<Value> = object::list(pod, "/spec/tolerations").to_vec();
    for (key, effect) in [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ] {
        all.push(json!({"key": key, "operator": "Exists", "effect": effect}));
    }
    set(pod, &["spec", "tolerations"], json!(all));
}
