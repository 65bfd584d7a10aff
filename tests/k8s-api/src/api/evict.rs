//! `POST …/pods/NAME/eviction`, as `pkg/registry/core/pod/storage/eviction.go` does it.
//!
//! The order matters and is the real one: namespace, pod, pods without a budget, budgets, and only then the
//! preconditions. So a wrong uid is 429 under an exhausted budget, and under one with room it is 409 and uses up the
//! room.

use serde_json::{Value, json};

use super::delete::{DeleteOptions, preconditions};
use super::write::{checked, dry_run, parse};
use super::{Reply, Request, Target};
use crate::cluster::{Actor, Cluster};
use crate::model::disruption::allowed_condition;
use crate::object::{self, int, is_true, set, set_condition, terminating, text};
use crate::resources::{BUDGETS, PODS};
use crate::status::{self, Outcome, bad_request};

/// How long the real server retries a conflict (20 times, half a second each) before it answers.
const CONFLICT_RETRIES_MS: i64 = 9_500;

impl Cluster {
    pub(crate) fn evict(&mut self, actor: &Actor, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        let mut body = parse(request)?;
        let unknown = checked(request, target, &mut body)?;
        let version = text(&body, "/apiVersion");
        if !matches!(version, "" | "policy/v1" | "policy/v1beta1")
            || !matches!(text(&body, "/kind"), "" | "Eviction")
        {
            return Err(bad_request(format!(
                "no kind \"{}\" is registered for version \"{version}\"",
                text(&body, "/kind")
            )));
        }
        let own = object::namespace(&body);
        if !own.is_empty() && own != target.namespace {
            return Err(bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        self.admits(&PODS, target.namespace, target.name)?;
        if object::name(&body) != target.name {
            return Err(bad_request("name in URL does not match name in Eviction object"));
        }
        let mut options = DeleteOptions::read(body.get("deleteOptions").unwrap_or(&Value::Null))?;
        options.dry_run |= dry_run(request)?;
        let before = self.guarded(target);
        let pod = self
            .store
            .get(&PODS, target.namespace, target.name)
            .cloned()
            .ok_or_else(|| status::not_found(&PODS, target.name))?;
        let reply = if unguarded(&pod) {
            match self.mark_and_delete(actor, &pod, &options) {
                Err(failure) if failure.code == 409 && options.version.is_none() => {
                    let mut reply = Reply::failure(&failure);
                    reply.after_ms = CONFLICT_RETRIES_MS;
                    return Ok(reply);
                }
                other => other?,
            }
            Reply::json(201, status::success())
        } else {
            self.check_budgets(actor, &pod, options.dry_run)?;
            self.mark_and_delete(actor, &pod, &options)?;
            Reply::json(201, status::success())
        };
        self.note_violations(actor, before);
        Ok(reply.warn(&unknown))
    }

    fn check_budgets(&mut self, actor: &Actor, pod: &Value, dry: bool) -> Outcome<()> {
        let budgets = self.guards(pod);
        let budget = match budgets.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => return Err(status::two_budgets()),
        };
        let (healthy, desired) = (count(budget, "currentHealthy"), count(budget, "desiredHealthy"));
        if !is_true(pod, "Ready") {
            let always = text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
            if always || (healthy >= desired && desired > 0) {
                return Ok(());
            }
        }
        let name = object::name(budget);
        if count(budget, "observedGeneration") < int(budget, "/metadata/generation").unwrap_or(1) {
            return Err(status::budget(
                &format!("The disruption budget {name} is still being processed by the server."),
                Some(10),
            ));
        }
        let allowed = count(budget, "disruptionsAllowed");
        if allowed <= 0 {
            let failed =
                object::condition(budget, "DisruptionAllowed").filter(|c| text(c, "/reason") == "SyncFailed");
            let cause = match failed {
                Some(condition) => {
                    let why = text(condition, "/message");
                    format!(
                        "The disruption budget {name} does not allow evicting pods currently because it failed sync: {why}"
                    )
                }
                None => format!(
                    "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
                ),
            };
            return Err(status::budget(&cause, None));
        }
        if dry {
            return Ok(());
        }
        let mut taken = budget.clone();
        set(&mut taken, &["status", "disruptionsAllowed"], json!(allowed - 1));
        if allowed == 1 {
            allowed_condition(&mut taken, 0, count(budget, "observedGeneration"), self.now_ms);
        }
        set(&mut taken, &["status", "disruptedPods", object::name(pod)], json!(object::time(self.now_ms)));
        self.commit(actor, &BUDGETS, taken);
        Ok(())
    }

    /// Sets the condition with the reason, and deletes.
    fn mark_and_delete(&mut self, actor: &Actor, pod: &Value, options: &DeleteOptions) -> Outcome<()> {
        preconditions(&PODS, pod, options)?;
        let (namespace, name) = (object::namespace(pod).to_owned(), object::name(pod).to_owned());
        let mut options = options.clone();
        if !options.dry_run {
            let mut marked = pod.clone();
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "lastProbeTime": null, "lastTransitionTime": null,
                "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
            });
            set_condition(&mut marked, self.now_ms, condition);
            self.commit(actor, &PODS, marked);
            // The condition itself has made a new version of the pod that the client named.
            options.version = None;
        }
        self.delete(actor, &PODS, &namespace, &name, options)?;
        Ok(())
    }
}

/// Whether budgets do not apply to a pod: not running yet, not running any more, or terminating.
fn unguarded(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Pending" | "Succeeded" | "Failed") || terminating(pod)
}

fn count(budget: &Value, field: &str) -> i64 {
    budget.get("status").and_then(|s| s.get(field)).and_then(Value::as_i64).unwrap_or_default()
}
