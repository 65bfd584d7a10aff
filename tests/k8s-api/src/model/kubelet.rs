//! The kubelets: pods start and end, mirror pods return, and pods stay forever without a kubelet.
//!
//! Annotations of a pod (`k8s-api.test/…`) change its behaviour, also in a scenario's own objects.

use serde_json::{Value, json};

use super::timers::Due;
use crate::api::delete::DeleteOptions;
use crate::cluster::{Actor, Cluster};
use crate::object::{self, annotation, int, is_true, set, set_condition, terminating, text, unset};
use crate::resources::PODS;
use crate::settings::Span;
use crate::store::{Change, ChangeKind};

/// Time from binding to readiness.
pub const START: &str = "k8s-api.test/start";
/// Time from deletion to the end of the containers.
pub const STOP: &str = "k8s-api.test/stop";
/// How long the pod works until it succeeds.
pub const RUNS: &str = "k8s-api.test/runs";
/// The pod runs and is never ready.
pub const NEVER_READY: &str = "k8s-api.test/never-ready";
/// The kubelet never removes the pod (a volume that cannot be unmounted).
pub const NEVER_STOPS: &str = "k8s-api.test/never-stops";
/// Marks the mirror of a static pod in the API.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

fn span(pod: &Value, key: &str) -> Option<i64> {
    annotation(pod, key).and_then(Span::parse).map(|s| s.0)
}

impl Cluster {
    /// Schedules what a kubelet does after a change of one of its pods.
    pub(crate) fn kubelet_sees(&mut self, change: &Change) {
        let pod = &change.object;
        let node = text(pod, "/spec/nodeName").to_owned();
        if node.is_empty() || !self.machines.contains_key(&node) {
            return;
        }
        self.plugin_sees(&node, change);
        if change.kind == ChangeKind::Deleted {
            if annotation(pod, MIRROR).is_some() && self.kubelet_runs(&node) {
                self.timers
                    .at(self.now_ms + self.settings.controller_lag.0, Due::Mirror { pod: pod.clone() });
            }
            return;
        }
        let before = change.before.as_ref();
        let newly = |test: &dyn Fn(&Value) -> bool| test(pod) && !before.is_some_and(test);
        if newly(&|p| terminating(p))
            || before.is_some_and(|b| {
                int(b, "/metadata/deletionGracePeriodSeconds")
                    != int(pod, "/metadata/deletionGracePeriodSeconds")
            })
        {
            self.stop_later(pod);
        } else if newly(&|p| !text(p, "/spec/nodeName").is_empty()) && text(pod, "/status/phase") == "Pending"
        {
            self.start_later(pod);
        } else if newly(&|p| text(p, "/status/phase") == "Running")
            && let Some(runs_ms) = span(pod, RUNS)
        {
            let (namespace, name, uid) = identity(pod);
            self.timers.at(self.now_ms + runs_ms, Due::PodSucceeded { namespace, name, uid });
        }
    }

    fn start_later(&mut self, pod: &Value) {
        let (namespace, name, uid) = identity(pod);
        let at_ms = self.now_ms + span(pod, START).unwrap_or(self.settings.pod_start.0);
        self.timers.at(at_ms, Due::PodStarted { namespace, name, uid });
    }

    fn stop_later(&mut self, pod: &Value) {
        let (namespace, name, uid) = identity(pod);
        let grace_ms = int(pod, "/metadata/deletionGracePeriodSeconds").unwrap_or_default() * 1000;
        let end_ms = object::read_time(text(pod, "/metadata/deletionTimestamp")).unwrap_or(self.now_ms);
        let stop_ms = span(pod, STOP).unwrap_or(self.settings.pod_stop.0);
        let at_ms = (end_ms - grace_ms + stop_ms.min(grace_ms)).max(self.now_ms);
        self.timers.at(at_ms, Due::PodStopped { namespace, name, uid });
    }

    fn own(&self, namespace: &str, name: &str, uid: &str) -> Option<Value> {
        let pod = self.store.get(&PODS, namespace, name).filter(|p| object::uid(p) == uid)?;
        self.kubelet_runs(text(pod, "/spec/nodeName")).then(|| pod.clone())
    }

    pub(crate) fn pod_started(&mut self, namespace: &str, name: &str, uid: &str) {
        let Some(pod) = self.own(namespace, name, uid).filter(|p| !terminating(p)) else { return };
        if matches!(text(&pod, "/status/phase"), "Succeeded" | "Failed") {
            return;
        }
        let (node, now_ms) = (text(&pod, "/spec/nodeName").to_owned(), self.now_ms);
        let ready = if annotation(&pod, NEVER_READY).is_some() { "False" } else { "True" };
        let number = self.store.version() % 60_000;
        self.amend(&Actor::kubelet(&node), &PODS, &pod, "status", |pod| {
            set(pod, &["status", "phase"], json!("Running"));
            object::default(pod, &["status", "startTime"], json!(object::time(now_ms)));
            object::default(pod, &["status", "podIP"], json!(format!("10.42.{}.{}", number / 250, number % 250 + 1)));
            let statuses: Vec<Value> = object::list(pod, "/spec/containers")
                .iter()
                .map(|c| {
                    json!({
                        "name": text(c, "/name"), "ready": ready == "True", "started": true, "restartCount": 0,
                        "image": text(c, "/image"), "imageID": text(c, "/image"),
                        "state": {"running": {"startedAt": object::time(now_ms)}}, "lastState": {},
                    })
                })
                .collect();
            set(pod, &["status", "containerStatuses"], json!(statuses));
            for (kind, status) in [("Initialized", "True"), ("Ready", ready), ("ContainersReady", ready), ("PodScheduled", "True")] {
                set_condition(pod, now_ms, json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": null}));
            }
        });
    }

    pub(crate) fn pod_stopped(&mut self, namespace: &str, name: &str, uid: &str) {
        let Some(pod) = self.own(namespace, name, uid).filter(terminating) else { return };
        if annotation(&pod, NEVER_STOPS).is_some() {
            return;
        }
        let actor = Actor::kubelet(text(&pod, "/spec/nodeName"));
        let options =
            DeleteOptions { grace_s: Some(0), uid: Some(uid.to_owned()), ..DeleteOptions::default() };
        // The pod may be gone already, which is what the kubelet wants.
        let _ = self.delete(&actor, &PODS, namespace, name, options);
    }

    pub(crate) fn pod_succeeded(&mut self, namespace: &str, name: &str, uid: &str) {
        let Some(pod) = self.own(namespace, name, uid).filter(|p| !terminating(p)) else { return };
        let now_ms = self.now_ms;
        self.amend(&Actor::kubelet(text(&pod, "/spec/nodeName")), &PODS, &pod, "status", |pod| {
            set(pod, &["status", "phase"], json!("Succeeded"));
            for kind in ["Ready", "ContainersReady"] {
                let condition = json!({"type": kind, "status": "False", "lastProbeTime": null, "lastTransitionTime": null, "reason": "PodCompleted"});
                set_condition(pod, now_ms, condition);
            }
        });
    }

    /// Creates a mirror pod again that was deleted in the API; its containers are not affected.
    pub(crate) fn mirror_again(&mut self, mut pod: Value) {
        let node = text(&pod, "/spec/nodeName").to_owned();
        if !self.kubelet_runs(&node)
            || self.store.get(&PODS, object::namespace(&pod), object::name(&pod)).is_some()
        {
            return;
        }
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "finalizers"] {
            unset(&mut pod, &["metadata", key]);
        }
        if let Some(all) = pod.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
            all.retain(|c| text(c, "/type") != "DisruptionTarget");
        }
        self.stamp(&PODS, &mut pod);
        self.commit(&Actor::kubelet(&node), &PODS, pod);
    }

    /// Restarts pods when the kubelet is back: deleted ones end, all others start again.
    pub(crate) fn restart_pods(&mut self, node: &str) {
        let pods: Vec<Value> =
            self.store.all(&PODS, "").filter(|p| text(p, "/spec/nodeName") == node).cloned().collect();
        let now_ms = self.now_ms;
        for pod in pods {
            let (namespace, name, uid) = identity(&pod);
            if terminating(&pod) {
                self.timers
                    .at(now_ms + self.settings.controller_lag.0, Due::PodStopped { namespace, name, uid });
            } else if matches!(text(&pod, "/status/phase"), "Running" | "Pending") {
                if is_true(&pod, "Ready") {
                    self.amend(&Actor::kubelet(node), &PODS, &pod, "status", |pod| unready(pod, now_ms));
                }
                self.start_later(&pod);
            }
        }
    }
}

/// Marks a pod as not ready.
pub(crate) fn unready(pod: &mut Value, now_ms: i64) {
    if object::condition(pod, "Ready").is_some() {
        set_condition(
            pod,
            now_ms,
            json!({"type": "Ready", "status": "False", "lastProbeTime": null, "lastTransitionTime": null}),
        );
    }
}

fn identity(pod: &Value) -> (String, String, String) {
    (object::namespace(pod).to_owned(), object::name(pod).to_owned(), object::uid(pod).to_owned())
}
