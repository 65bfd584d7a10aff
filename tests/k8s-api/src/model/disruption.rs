//! The disruption controller: the status of every disruption budget, as in `pkg/controller/disruption`.
//!
//! Runs a little after each change, so that an eviction may find a budget that is not up to date, as in a real
//! cluster.

use serde_json::{Map, Value, json};

use super::timers::Due;
use crate::cluster::{Actor, Cluster};
use crate::object::{self, int, is_true, set, set_condition, terminating, text};
use crate::resources::{BUDGETS, DEPLOYMENTS, PODS, REPLICA_SETS, Resource, STATEFUL_SETS};
use crate::selector::Labels;

/// The number of pods that a budget requires.
struct Demand {
    expected: i64,
    desired: i64,
}

impl Cluster {
    /// Schedules an update of every budget of a namespace.
    pub(crate) fn budgets_of(&mut self, namespace: &str) {
        let names: Vec<(String, String)> = self
            .store
            .all(&BUDGETS, namespace)
            .map(|b| (object::namespace(b).to_owned(), object::name(b).to_owned()))
            .collect();
        for (namespace, name) in names {
            self.timers.once(self.now_ms + self.settings.disruption_lag.0, Due::Budget { namespace, name });
        }
    }

    /// Updates the status of one budget.
    pub(crate) fn sync_budget(&mut self, namespace: &str, name: &str) {
        if !self.settings.controllers.disruption {
            return;
        }
        let Some(budget) = self.store.get(&BUDGETS, namespace, name).cloned() else { return };
        let pods = self.pods_of(&budget);
        let demand = self.demand(&budget, &pods);
        let (waiting, recheck_ms) = self.disrupted(&budget, &pods);
        let healthy = i64::try_from(
            pods.iter().filter(|p| healthy(p) && !waiting.contains_key(object::name(p))).count(),
        )
        .unwrap_or_default();
        let now_ms = self.now_ms;
        let generation = int(&budget, "/metadata/generation").unwrap_or(1);
        self.amend(&Actor::controller_manager(), &BUDGETS, &budget, "status", |budget| match demand {
            Ok(Demand { expected, desired }) => {
                let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
                let conditions = budget.pointer("/status/conditions").cloned();
                let mut status = json!({"observedGeneration": generation});
                if !waiting.is_empty() {
                    status["disruptedPods"] = Value::Object(waiting);
                }
                status["disruptionsAllowed"] = json!(allowed);
                status["currentHealthy"] = json!(healthy);
                status["desiredHealthy"] = json!(desired);
                status["expectedPods"] = json!(expected);
                if let Some(conditions) = conditions {
                    status["conditions"] = conditions;
                }
                set(budget, &["status"], status);
                allowed_condition(budget, allowed, generation, now_ms);
            }
            Err(why) => {
                set(budget, &["status", "disruptionsAllowed"], json!(0));
                let observed = int(budget, "/status/observedGeneration").unwrap_or_default();
                let condition = json!({
                    "type": "DisruptionAllowed", "status": "False", "observedGeneration": observed,
                    "lastTransitionTime": null, "reason": "SyncFailed", "message": why,
                });
                set_condition(budget, now_ms, condition);
            }
        });
        if let Some(at_ms) = recheck_ms {
            self.timers.once(at_ms, Due::Budget { namespace: namespace.to_owned(), name: name.to_owned() });
        }
    }

    /// Returns the pods that a budget selects.
    pub(crate) fn pods_of(&self, budget: &Value) -> Vec<Value> {
        let Some(selector) = budget.pointer("/spec/selector").filter(|s| !s.is_null()) else {
            return Vec::new();
        };
        let selector = Labels::of(selector);
        self.store.all(&PODS, object::namespace(budget)).filter(|p| selector.matches(p)).cloned().collect()
    }

    fn demand(&self, budget: &Value, pods: &[Value]) -> Result<Demand, String> {
        if let Some(most) = budget.pointer("/spec/maxUnavailable") {
            let expected = self.expected_scale(pods)?;
            return Ok(Demand { expected, desired: (expected - scaled(most, expected)).max(0) });
        }
        match budget.pointer("/spec/minAvailable") {
            Some(least) if least.is_string() => {
                let expected = self.expected_scale(pods)?;
                Ok(Demand { expected, desired: scaled(least, expected) })
            }
            Some(least) => Ok(Demand {
                expected: i64::try_from(pods.len()).unwrap_or_default(),
                desired: least.as_i64().unwrap_or_default(),
            }),
            None => Ok(Demand { expected: 0, desired: 0 }),
        }
    }

    /// Returns the sum of what the pods' controllers want; pods without a controller do not count.
    fn expected_scale(&self, pods: &[Value]) -> Result<i64, String> {
        let mut scales = std::collections::BTreeMap::new();
        for pod in pods {
            let Some(owner) = object::controller(pod) else { continue };
            let found = |resource: &'static Resource, name: &str| {
                self.store.get(resource, object::namespace(pod), name)
            };
            let replicas = |owner: &Value| int(owner, "/spec/replicas").unwrap_or(1);
            let scale = match text(owner, "/kind") {
                "ReplicaSet" => found(&REPLICA_SETS, text(owner, "/name")).map(|set| {
                    let deployment =
                        object::controller(set).and_then(|d| found(&DEPLOYMENTS, text(d, "/name")));
                    replicas(deployment.unwrap_or(set))
                }),
                "StatefulSet" => found(&STATEFUL_SETS, text(owner, "/name")).map(replicas),
                "DaemonSet" => {
                    return Err("daemonsets.apps does not implement the scale subresource".to_owned());
                }
                "Job" => return Err("jobs.batch does not implement the scale subresource".to_owned()),
                _ => None,
            };
            let scale =
                scale.ok_or_else(|| format!("found no controllers for pod \"{}\"", object::name(pod)))?;
            scales.insert(text(owner, "/uid").to_owned(), scale);
        }
        Ok(scales.values().sum())
    }

    /// Returns the evicted pods that are not gone yet, and when to look again.
    fn disrupted(&self, budget: &Value, pods: &[Value]) -> (Map<String, Value>, Option<i64>) {
        let mut waiting = Map::new();
        let mut recheck: Option<i64> = None;
        let noted = budget.pointer("/status/disruptedPods").and_then(Value::as_object);
        for pod in pods.iter().filter(|p| !terminating(p)) {
            let Some(since) = noted.and_then(|all| all.get(object::name(pod))) else { continue };
            let until = since.as_str().and_then(object::read_time).unwrap_or_default()
                + self.settings.disrupted_pod_timeout.0;
            if until >= self.now_ms {
                waiting.insert(object::name(pod).to_owned(), since.clone());
                recheck = Some(recheck.map_or(until + 1, |r| r.min(until + 1)));
            }
        }
        (waiting, recheck)
    }

    /// Returns the budgets for a pod, as the eviction finds them.
    pub(crate) fn guards(&self, pod: &Value) -> Vec<Value> {
        self.store
            .all(&BUDGETS, object::namespace(pod))
            .filter(|budget| {
                let selector = budget.pointer("/spec/selector").map(Labels::of).unwrap_or_default();
                !selector.is_empty() && selector.matches(pod)
            })
            .cloned()
            .collect()
    }

    /// Returns a budget's current and required pods, whatever its status says, for the log's own check.
    pub(crate) fn truth(&self, budget: &Value) -> Option<(i64, i64)> {
        let pods = self.pods_of(budget);
        let demand = self.demand(budget, &pods).ok()?;
        let healthy = i64::try_from(pods.iter().filter(|p| healthy(p)).count()).unwrap_or_default();
        Some((healthy, demand.desired))
    }
}

/// Whether a pod is healthy.
fn healthy(pod: &Value) -> bool {
    !terminating(pod) && is_true(pod, "Ready")
}

/// Returns a number, or a percentage of a number, rounded up.
fn scaled(value: &Value, of: i64) -> i64 {
    match value {
        Value::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
            (of * percent + 99).div_euclid(100)
        }
        other => other.as_i64().unwrap_or_default(),
    }
}

/// Sets the condition for the number of allowed disruptions.
pub(crate) fn allowed_condition(budget: &mut Value, allowed: i64, generation: i64, now_ms: i64) {
    let (status, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let condition = json!({
        "type": "DisruptionAllowed", "status": status, "observedGeneration": generation,
        "lastTransitionTime": null, "reason": reason, "message": "",
    });
    set_condition(budget, now_ms, condition);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up() {
        assert_eq!(scaled(&json!("50%"), 3), 2);
        assert_eq!(scaled(&json!("0%"), 3), 0);
        assert_eq!(scaled(&json!("100%"), 3), 3);
        assert_eq!(scaled(&json!(2), 3), 2);
    }
}
