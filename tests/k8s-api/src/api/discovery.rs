//! Requests before any object: health, version, groups and resources, the user's own rights.

use serde_json::{Value, json};

use super::{Reply, Request};
use crate::cluster::{Actor, Cluster};
use crate::object::text;
use crate::resources::{ALL, Resource};

/// Answers what everyone may read, even unauthenticated.
pub(crate) fn open(path: &str) -> Option<Reply> {
    match path.trim_end_matches('/') {
        "/healthz" | "/livez" | "/readyz" => Some(Reply::text(200, "ok")),
        "/version" => Some(Reply::json(200, version())),
        _ => None,
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "clean", "buildDate": "2026-06-17T00:00:00Z",
        "goVersion": "go1.26.0", "compiler": "gc", "platform": "linux/amd64",
    })
}

/// Answers groups, resources, and reviews of the user's own rights.
pub(crate) fn answer(cluster: &Cluster, actor: &Actor, request: &Request) -> Option<Reply> {
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["api"]) => Some(Reply::json(
            200,
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        )),
        ("GET", ["apis"]) => {
            Some(Reply::json(200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups()})))
        }
        ("GET", ["apis", name]) => {
            let mut group = groups().into_iter().find(|g| text(g, "/name") == *name)?;
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            Some(Reply::json(200, group))
        }
        ("GET", ["api", "v1"]) => Some(Reply::json(200, resources("", "v1"))),
        ("GET", ["apis", group, "v1"]) if groups().iter().any(|g| text(g, "/name") == *group) => {
            Some(Reply::json(200, resources(group, &format!("{group}/v1"))))
        }
        ("POST", ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"]) => {
            Some(review(cluster, actor, request))
        }
        ("POST", ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"]) => Some(Reply::json(
            201,
            json!({
                "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {"creationTimestamp": null},
                "status": {"userInfo": {"username": actor.user, "groups": ["system:authenticated"]}},
            }),
        )),
        _ => None,
    }
}

fn groups() -> Vec<Value> {
    let mut names: Vec<&str> = Vec::new();
    for name in ALL.iter().map(|r| r.group).chain(["authorization.k8s.io", "authentication.k8s.io"]) {
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
        .into_iter()
        .map(|name| {
            let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        })
        .collect()
}

fn resources(group: &str, version: &str) -> Value {
    let mut list = Vec::new();
    for resource in ALL.into_iter().filter(|r| r.group == group) {
        list.push(describe(resource));
        if resource.status {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
        if resource.plural == "pods" {
            list.push(json!({"name": "pods/binding", "singularName": "", "namespaced": true, "kind": "Binding", "verbs": ["create"]}));
            list.push(json!({
                "name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy", "version": "v1",
                "kind": "Eviction", "verbs": ["create"],
            }));
        }
    }
    if group == "authorization.k8s.io" {
        list.push(json!({"name": "selfsubjectaccessreviews", "singularName": "selfsubjectaccessreview", "namespaced": false, "kind": "SelfSubjectAccessReview", "verbs": ["create"]}));
    }
    if group == "authentication.k8s.io" {
        list.push(json!({"name": "selfsubjectreviews", "singularName": "selfsubjectreview", "namespaced": false, "kind": "SelfSubjectReview", "verbs": ["create"]}));
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list})
}

fn describe(resource: &Resource) -> Value {
    let mut described = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced, "kind": resource.kind,
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    });
    if !resource.short.is_empty() {
        described["shortNames"] = json!(resource.short);
    }
    described
}

fn review(cluster: &Cluster, actor: &Actor, request: &Request) -> Reply {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let attribute = |name: &str| text(&body, &format!("/spec/resourceAttributes/{name}")).to_owned();
    let mut resource = attribute("resource");
    if !attribute("subresource").is_empty() {
        resource = format!("{resource}/{}", attribute("subresource"));
    }
    let denied = cluster.access.denies(&actor.user, &attribute("verb"), &resource, &attribute("namespace"));
    Reply::json(
        201,
        json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {"creationTimestamp": null},
            "spec": body["spec"], "status": {"allowed": !denied},
        }),
    )
}
