//! DELETE: preconditions, grace and finalizers, in the registry's order.

use serde_json::{Value, json};

use super::read::Filter;
use super::write::{dry_run, parse};
use super::{Reply, Request, Target};
use crate::cluster::{Actor, Cluster};
use crate::object::{self, int, set, terminating, text};
use crate::resources::{NAMESPACES, PODS, Resource};
use crate::schema;
use crate::status::{self, Outcome, bad_request};

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteOptions {
    /// Seconds; by default the object's own.
    pub grace_s: Option<i64>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Parses the options' JSON form.
    pub(crate) fn read(options: &Value) -> Outcome<Self> {
        let own = |pointer: &str| options.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let dry: Vec<&str> = object::list(options, "/dryRun").iter().filter_map(Value::as_str).collect();
        if dry.iter().any(|d| *d != "All") {
            let message = "DeleteOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: supported values: \"All\"";
            return Err(status::Failure::new(422, "Invalid", message));
        }
        Ok(Self {
            grace_s: int(options, "/gracePeriodSeconds"),
            uid: own("/preconditions/uid"),
            version: own("/preconditions/resourceVersion"),
            dry_run: !dry.is_empty(),
        })
    }
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// The object as it is, or was last.
    pub object: Value,
    /// Whether it is gone.
    pub gone: bool,
}

/// Checks that the object is the intended one.
pub(crate) fn preconditions(resource: &Resource, object: &Value, options: &DeleteOptions) -> Outcome<()> {
    let name = object::name(object);
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != object::uid(object)) {
        let record = object::uid(object);
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({record}). The object might have been deleted and then recreated"
        );
        return Err(status::precondition(resource, name, &why));
    }
    let record = text(object, "/metadata/resourceVersion");
    if let Some(version) = options.version.as_deref().filter(|v| *v != record) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({record}). The object might have been modified"
        );
        return Err(status::precondition(resource, name, &why));
    }
    Ok(())
}

impl Cluster {
    pub(crate) fn delete_request(
        &mut self,
        actor: &Actor,
        request: &Request,
        target: &Target<'_>,
    ) -> Outcome<Reply> {
        let mut unknown = Vec::new();
        let mut options = DeleteOptions::default();
        if !request.body.is_empty() {
            let mut body = parse(request)?;
            unknown = schema::check_delete_options(&mut body)?;
            options = DeleteOptions::read(&body)?;
        }
        if let Some(grace) = request.parameter("gracePeriodSeconds") {
            options.grace_s = Some(grace.parse().map_err(|_| {
                bad_request(format!("strconv.ParseInt: parsing \"{grace}\": invalid syntax"))
            })?);
        }
        options.dry_run |= dry_run(request)?;
        let before = self.guarded(target);
        let deleted = self.delete(actor, target.resource, target.namespace, target.name, options)?;
        self.note_violations(actor, before);
        let body = if deleted.gone && target.resource.plural != "pods" {
            let mut details = json!({"name": target.name});
            if !target.resource.group.is_empty() {
                details["group"] = json!(target.resource.group);
            }
            details["kind"] = json!(target.resource.plural);
            details["uid"] = json!(object::uid(&deleted.object));
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
        } else {
            deleted.object
        };
        Ok(Reply::json(200, body).warn(&unknown))
    }

    pub(crate) fn delete_all(
        &mut self,
        actor: &Actor,
        request: &Request,
        target: &Target<'_>,
    ) -> Outcome<Reply> {
        let filter = Filter::of(request, target)?;
        let listed = self.list(request, target)?;
        let names: Vec<(String, String)> = self
            .store
            .all(target.resource, target.namespace)
            .filter(|o| filter.matches(o))
            .map(|o| (object::namespace(o).to_owned(), object::name(o).to_owned()))
            .collect();
        let dry_run = dry_run(request)?;
        for (namespace, name) in names {
            self.delete(
                actor,
                target.resource,
                &namespace,
                &name,
                DeleteOptions { dry_run, ..DeleteOptions::default() },
            )?;
        }
        Ok(listed)
    }

    /// Deletes an object, for a client or for a controller.
    pub(crate) fn delete(
        &mut self,
        actor: &Actor,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
        options: DeleteOptions,
    ) -> Outcome<Deleted> {
        let old = self
            .store
            .get(resource, namespace, name)
            .cloned()
            .ok_or_else(|| status::not_found(resource, name))?;
        preconditions(resource, &old, &options)?;
        if *resource == NAMESPACES {
            let object = if options.dry_run { old } else { self.end_namespace(actor, &old) };
            return Ok(Deleted { object, gone: false });
        }
        let finalizers = !object::list(&old, "/metadata/finalizers").is_empty();
        if *resource != PODS {
            return Ok(self.end(actor, resource, old, finalizers, options.dry_run));
        }
        let asked = options.grace_s.map(|grace| if grace < 0 { 1 } else { grace });
        let mut new = old.clone();
        let grace = match int(&old, "/metadata/deletionGracePeriodSeconds").filter(|_| terminating(&old)) {
            Some(before) => {
                // Once the pod is terminating, only a shorter grace has an effect.
                let Some(grace) = asked.filter(|grace| *grace < before) else {
                    return Ok(Deleted { object: old, gone: false });
                };
                let end_ms =
                    object::read_time(text(&old, "/metadata/deletionTimestamp")).unwrap_or(self.now_ms);
                set(
                    &mut new,
                    &["metadata", "deletionTimestamp"],
                    json!(object::time(end_ms + (grace - before) * 1000)),
                );
                grace
            }
            None => {
                let idle = text(&old, "/spec/nodeName").is_empty()
                    || matches!(text(&old, "/status/phase"), "Succeeded" | "Failed");
                let own = int(&old, "/spec/terminationGracePeriodSeconds").unwrap_or_default();
                let grace = if idle { 0 } else { asked.unwrap_or(own).max(0) };
                set(
                    &mut new,
                    &["metadata", "deletionTimestamp"],
                    json!(object::time(self.now_ms + grace * 1000)),
                );
                let generation = int(&old, "/metadata/generation").unwrap_or_default() + 1;
                set(&mut new, &["metadata", "generation"], json!(generation));
                grace
            }
        };
        set(&mut new, &["metadata", "deletionGracePeriodSeconds"], json!(grace));
        if options.dry_run {
            return Ok(Deleted { object: new, gone: false });
        }
        if grace == 0 && !finalizers {
            self.erase(actor, resource, namespace, name);
            return Ok(Deleted { object: new, gone: true });
        }
        let object = self.commit(actor, resource, new);
        Ok(Deleted { object, gone: false })
    }

    fn end(
        &mut self,
        actor: &Actor,
        resource: &'static Resource,
        old: Value,
        finalizers: bool,
        dry_run: bool,
    ) -> Deleted {
        if !finalizers {
            if !dry_run {
                self.erase(actor, resource, object::namespace(&old), object::name(&old));
            }
            return Deleted { object: old, gone: true };
        }
        let mut new = old;
        if !terminating(&new) {
            set(&mut new, &["metadata", "deletionTimestamp"], json!(object::time(self.now_ms)));
            set(&mut new, &["metadata", "deletionGracePeriodSeconds"], json!(0));
        }
        Deleted { object: if dry_run { new } else { self.commit(actor, resource, new) }, gone: false }
    }

    /// Returns the budgets around a pod that a client is about to delete, with their healthy pods.
    pub(crate) fn guarded(&self, target: &Target<'_>) -> Vec<(Value, i64)> {
        if target.resource.plural != "pods" {
            return Vec::new();
        }
        let Some(pod) = self.store.get(&PODS, target.namespace, target.name) else { return Vec::new() };
        self.guards(pod)
            .into_iter()
            .filter_map(|budget| self.truth(&budget).map(|(healthy, _)| (budget, healthy)))
            .collect()
    }

    /// Logs which budgets a client has violated.
    pub(crate) fn note_violations(&mut self, actor: &Actor, before: Vec<(Value, i64)>) {
        for (budget, healthy_before) in before {
            let Some((healthy, needed)) = self.truth(&budget) else { continue };
            if healthy < healthy_before && healthy < needed {
                let mut entry = self.entry(
                    actor,
                    "budget-violated",
                    &crate::resources::BUDGETS,
                    object::namespace(&budget),
                    object::name(&budget),
                );
                entry.detail = json!({"healthy": healthy, "needed": needed});
                self.log.push(entry);
            }
        }
    }
}
