//! POST, PUT and PATCH.
//!
//! All follow one path: the request is checked, merged into the stored object, and committed unless it is a dry run.

use serde_json::{Value, json};

use super::{Reply, Request, Target};
use crate::cluster::{Actor, Cluster};
use crate::managed::{self, Writer};
use crate::object::{self, set, terminating, text, unset};
use crate::resources::{NAMESPACES, PODS, Resource};
use crate::status::{self, Outcome, bad_request};
use crate::{defaults, patch, schema};

/// Metadata that a client cannot change.
const KEPT: [&str; 6] = [
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "managedFields",
];

/// Parses a body as JSON.
pub(crate) fn parse(request: &Request) -> Outcome<Value> {
    if request.content_type.contains("protobuf") || request.content_type.contains("cbor") {
        return Err(status::unsupported_media("application/json"));
    }
    serde_json::from_slice(&request.body)
        .map_err(|e| bad_request(format!("couldn't get version/kind; json parse error: {e}")))
}

/// Whether a request is a dry run.
pub(crate) fn dry_run(request: &Request) -> Outcome<bool> {
    match request.parameter("dryRun") {
        None | Some("") => Ok(false),
        Some("All") => Ok(true),
        Some(other) => {
            let message = format!(
                "PatchOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"{other}\"]: supported values: \"All\""
            );
            Err(status::Failure::new(422, "Invalid", message))
        }
    }
}

/// Removes unknown fields, or refuses them if the client requests that.
pub(crate) fn checked(request: &Request, target: &Target<'_>, body: &mut Value) -> Outcome<Vec<String>> {
    let unknown = schema::check(target.resource, target.sub, body)?;
    match request.parameter("fieldValidation") {
        Some("Strict") if !unknown.is_empty() => Err(schema::strict(target.resource, target.sub, &unknown)),
        Some("Ignore") => Ok(Vec::new()),
        _ => Ok(unknown),
    }
}

impl Cluster {
    /// Checks that an object may be created in a namespace.
    pub(crate) fn admits(&self, resource: &Resource, namespace: &str, name: &str) -> Outcome<()> {
        match self.store.get(&NAMESPACES, "", namespace) {
            None => Err(status::not_found(&NAMESPACES, namespace)),
            Some(found) if terminating(found) => {
                Err(status::namespace_terminating(resource, namespace, name))
            }
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn post(&mut self, actor: &Actor, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        let dry = dry_run(request)?;
        let mut body = parse(request)?;
        let unknown = checked(request, target, &mut body)?;
        let kind = text(&body, "/kind");
        if !kind.is_empty() && kind != target.resource.kind {
            let message = format!(
                "{} in version \"{}\" cannot be handled as a {}: no kind \"{kind}\" is registered",
                target.resource.kind, target.resource.version, target.resource.kind
            );
            return Err(bad_request(message));
        }
        let made = self.create(actor, target.resource, target.namespace, body, dry)?;
        Ok(Reply::json(201, made).warn(&unknown))
    }

    /// Creates an object, for a client or for a controller.
    pub(crate) fn create(
        &mut self,
        actor: &Actor,
        resource: &'static Resource,
        namespace: &str,
        mut object: Value,
        dry: bool,
    ) -> Outcome<Value> {
        if resource.namespaced {
            let own = object::namespace(&object);
            if namespace.is_empty() {
                return Err(status::method_not_allowed());
            }
            if !own.is_empty() && own != namespace {
                return Err(bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            set(&mut object, &["metadata", "namespace"], json!(namespace));
        }
        if object::name(&object).is_empty() {
            let prefix = text(&object, "/metadata/generateName").to_owned();
            if prefix.is_empty() {
                let why = "Required value: name or generateName is required";
                return Err(status::invalid(resource, "", "metadata.name", "FieldValueRequired", why));
            }
            let name = prefix + &self.suffix();
            set(&mut object, &["metadata", "name"], json!(name));
        }
        let name = object::name(&object).to_owned();
        if resource.namespaced {
            self.admits(resource, namespace, &name)?;
        }
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            return Err(status::Failure::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        for key in KEPT.into_iter().chain(["uid"]) {
            unset(&mut object, &["metadata", key]);
        }
        if resource.status && resource.plural != "nodes" {
            unset(&mut object, &["status"]);
        }
        defaults::fill(resource, &mut object);
        patch::normalise(&mut object);
        defaults::validate(resource, &object)?;
        if self.store.get(resource, namespace, &name).is_some() {
            return Err(status::already_exists(resource, &name));
        }
        managed::track(
            resource,
            Writer { manager: &actor.manager, subresource: "" },
            None,
            &mut object,
            self.now_ms,
        );
        defaults::admit(resource, &mut object);
        self.stamp(resource, &mut object);
        Ok(if dry { object } else { self.commit(actor, resource, object) })
    }

    pub(crate) fn put(&mut self, actor: &Actor, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        let dry = dry_run(request)?;
        let mut body = parse(request)?;
        let unknown = checked(request, target, &mut body)?;
        if object::name(&body) != target.name {
            return Err(bad_request("the name of the object does not match the name on the URL"));
        }
        let Some(old) = self.store.get(target.resource, target.namespace, target.name).cloned() else {
            let uid = object::uid(&body);
            if !target.resource.create_on_update || !target.sub.is_empty() {
                return Err(status::not_found(target.resource, target.name));
            }
            if !uid.is_empty() {
                return Err(status::other_uid(target.resource, target.name, uid, ""));
            }
            unset(&mut body, &["metadata", "resourceVersion"]);
            let made = self.create(actor, target.resource, target.namespace, body, dry)?;
            return Ok(Reply::json(201, made).warn(&unknown));
        };
        if text(&body, "/metadata/resourceVersion").is_empty() && !target.resource.unconditional {
            let why = "Invalid value: 0: must be specified for an update";
            return Err(status::invalid(
                target.resource,
                target.name,
                "metadata.resourceVersion",
                "FieldValueInvalid",
                why,
            ));
        }
        let new = self.update(actor, target, &old, body, dry)?;
        Ok(Reply::json(200, new).warn(&unknown))
    }

    pub(crate) fn patch(&mut self, actor: &Actor, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";
        let dry = dry_run(request)?;
        let kind = request.content_type.split(';').next().unwrap_or_default().trim();
        if !ACCEPTED.split(", ").any(|accepted| accepted == kind) {
            return Err(status::unsupported_media(ACCEPTED));
        }
        let change: Value = serde_json::from_slice(&request.body)
            .map_err(|e| bad_request(format!("error decoding patch: {e}")))?;
        let old = self
            .store
            .get(target.resource, target.namespace, target.name)
            .cloned()
            .ok_or_else(|| status::not_found(target.resource, target.name))?;
        let mut new = match kind {
            "application/json-patch+json" => patch::json_patch(&old, &change)?,
            "application/merge-patch+json" => patch::merge(&old, &change),
            _ => patch::strategic(&old, &change),
        };
        let unknown = checked(request, target, &mut new)?;
        if object::name(&new) != target.name {
            return Err(bad_request("the name of the object does not match the name on the URL"));
        }
        let new = self.update(actor, target, &old, new, dry)?;
        Ok(Reply::json(200, new).warn(&unknown))
    }

    /// Merges a client's version of an object into the stored one.
    fn update(
        &mut self,
        actor: &Actor,
        target: &Target<'_>,
        old: &Value,
        mut new: Value,
        dry: bool,
    ) -> Outcome<Value> {
        let resource = target.resource;
        let uid = object::uid(&new);
        if !uid.is_empty() && uid != object::uid(old) {
            return Err(status::other_uid(resource, target.name, uid, object::uid(old)));
        }
        let version = text(&new, "/metadata/resourceVersion");
        if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
            return Err(status::modified(resource, target.name));
        }
        set(&mut new, &["metadata", "uid"], json!(object::uid(old)));
        set(&mut new, &["metadata", "resourceVersion"], old["metadata"]["resourceVersion"].clone());
        if resource.namespaced {
            set(&mut new, &["metadata", "namespace"], json!(target.namespace));
        }
        for key in KEPT {
            match old.pointer(&format!("/metadata/{key}")) {
                Some(value) => set(&mut new, &["metadata", key], value.clone()),
                None => {
                    unset(&mut new, &["metadata", key]);
                }
            }
        }
        let other = if target.sub == "status" { "spec" } else { "status" };
        if target.sub == "status" || resource.status {
            match old.get(other) {
                Some(value) => set(&mut new, &[other], value.clone()),
                None => {
                    unset(&mut new, &[other]);
                }
            }
        }
        defaults::fill(resource, &mut new);
        if target.sub == "status" {
            pod_conditions(&mut new);
        }
        patch::normalise(&mut new);
        defaults::validate(resource, &new)?;
        immutable(resource, target.name, old, &new)?;
        if new.get("spec") != old.get("spec") && resource.generation {
            let generation = object::int(old, "/metadata/generation").unwrap_or(1) + 1;
            set(&mut new, &["metadata", "generation"], json!(generation));
        }
        managed::track(
            resource,
            Writer { manager: &actor.manager, subresource: target.sub },
            Some(old),
            &mut new,
            self.now_ms,
        );
        if dry {
            return Ok(new);
        }
        let done = object::list(&new, "/metadata/finalizers").is_empty()
            && matches!(object::int(&new, "/metadata/deletionGracePeriodSeconds"), None | Some(0));
        if terminating(&new) && done && *resource != NAMESPACES {
            self.erase(actor, resource, target.namespace, target.name);
            return Ok(new);
        }
        Ok(self.commit(actor, resource, new))
    }

    pub(crate) fn post_binding(&mut self, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        let dry = dry_run(request)?;
        let body = parse(request)?;
        self.admits(&PODS, target.namespace, target.name)?;
        let pod = self
            .store
            .get(&PODS, target.namespace, target.name)
            .cloned()
            .ok_or_else(|| status::not_found(&PODS, target.name))?;
        if !text(&pod, "/spec/nodeName").is_empty() {
            let why = format!(
                "pod {} is already assigned to node \"{}\"",
                target.name,
                text(&pod, "/spec/nodeName")
            );
            return Err(status::Failure::new(
                409,
                "Conflict",
                format!("Operation cannot be fulfilled on pods/binding \"{}\": {why}", target.name),
            ));
        }
        if !dry {
            self.bind(&pod, text(&body, "/target/name"));
        }
        Ok(Reply::json(201, status::success()))
    }
}

/// Adds the probe time to a pod's conditions: it has no `omitempty`, so it is null if not set.
fn pod_conditions(object: &mut Value) {
    if text(object, "/kind") != "Pod" {
        return;
    }
    for condition in
        object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        object::default(condition, &["lastProbeTime"], Value::Null);
        object::default(condition, &["lastTransitionTime"], Value::Null);
    }
}

/// Refuses changes of immutable fields.
fn immutable(resource: &Resource, name: &str, old: &Value, new: &Value) -> Outcome<()> {
    if terminating(old) {
        let before = object::list(old, "/metadata/finalizers");
        let added: Vec<&str> = object::list(new, "/metadata/finalizers")
            .iter()
            .filter(|f| !before.contains(f))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            let why = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{added:?}"
            );
            return Err(status::invalid(resource, name, "metadata.finalizers", "FieldValueForbidden", &why));
        }
    }
    if resource.plural != "pods" {
        return Ok(());
    }
    let rest = |object: &Value| {
        let mut spec = object.get("spec").cloned().unwrap_or_default();
        for key in ["activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations"] {
            unset(&mut spec, &[key]);
        }
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                unset(container, &["image"]);
            }
        }
        spec
    };
    if rest(old) != rest(new) {
        let why = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                   `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                   `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        return Err(status::invalid(resource, name, "spec", "FieldValueForbidden", why));
    }
    Ok(())
}
