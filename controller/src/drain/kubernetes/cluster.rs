//! Requests to the API server with an answer that has a type.
//!
//! Owns paths, pages and what a refusal is called. Must not know drains' rules. Invariant: a list is read from the store, not
//! from a cache that may be old, because who is out and what runs is decided by it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::{DrainError, Effect};
use super::{
    api::{Api, Method, Reply, Request, escaped},
    eviction::said,
    objects::{DaemonSet, Lease, List, Meta, Node, Pod, Status},
    standing::MANAGER,
};

/// Entries of one page of a list.
const PAGE: usize = 500;
/// A list that goes on after so many pages has no end.
const PAGES: usize = 1000;

/// An answer that means something.
pub(super) enum Got<T> {
    Here(T),
    Missing,
    /// The object is not as it was judged (409, 422): nothing was changed.
    Raced,
}

pub(super) struct Cluster {
    api: Arc<dyn Api>,
}

impl Cluster {
    pub(super) fn new(api: Arc<dyn Api>) -> Self {
        Self { api }
    }

    pub(super) fn place(&self) -> String {
        self.api.place()
    }

    pub(super) async fn send(&self, request: Request) -> Result<Reply, DrainError> {
        let shown = format!("{} {}", request.method, bare(&request.path));
        let effect = if request.method == Method::Get { Effect::None } else { Effect::Unknown };
        let reply = self.api.send(request).await;
        reply.map_err(|error| DrainError::Request {
            request: shown,
            place: self.place(),
            why: error.to_string(),
            effect,
            next: Some("check that the API server answers (`kubectl get --raw /readyz`)".to_owned()),
        })
    }

    pub(super) async fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<Got<T>, DrainError> {
        let shown = format!("{} {}", request.method, bare(&request.path));
        let right = right(&request);
        let reply = self.send(request).await?;
        let wrong = |why: String, next: Option<String>| DrainError::Request {
            request: shown,
            place: self.place(),
            why,
            effect: Effect::None,
            next,
        };
        match reply.status {
            200..=299 => serde_json::from_slice(&reply.body)
                .map(Got::Here)
                .map_err(|error| wrong(format!("the answer cannot be read: {error}"), None)),
            404 => Ok(Got::Missing),
            409 => Ok(Got::Raced),
            422 if is_a_failed_test(&reply.body) => Ok(Got::Raced),
            status => {
                let told: Status = serde_json::from_slice(&reply.body).unwrap_or_default();
                let next = match status {
                    401 => Some("check the credentials of the kubeconfig".to_owned()),
                    403 => Some(format!(
                        "it needs the right to {right}; docs/guide/kubernetes.md lists the rights that gpufleet needs"
                    )),
                    _ => None,
                };
                Err(wrong(said(status, &told, &reply.body), next))
            }
        }
    }

    pub(super) async fn node(&self, name: &str) -> Result<Got<Node>, DrainError> {
        self.ask(Request::get(node_path(name))).await
    }

    pub(super) async fn patch_node(&self, name: &str, patch: Vec<Value>) -> Result<Got<Node>, DrainError> {
        let path = format!("{}?fieldManager={MANAGER}", node_path(name));
        self.ask(Request::patch(path, patch)).await
    }

    pub(super) async fn patch_pod(&self, pod: &Meta, patch: Vec<Value>) -> Result<Got<Pod>, DrainError> {
        let (namespace, name) = (escaped(&pod.namespace), escaped(&pod.name));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}?fieldManager={MANAGER}");
        self.ask(Request::patch(path, patch)).await
    }

    pub(super) async fn nodes(&self) -> Result<Vec<Node>, DrainError> {
        self.list("/api/v1/nodes", Some(PAGE)).await
    }

    pub(super) async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, DrainError> {
        let path = format!("/api/v1/pods?fieldSelector={}", escaped(&format!("spec.nodeName={node}")));
        // Why not in pages: a list with a limit is not served from the server's cache, and goes through the pods of all nodes.
        let pods: Vec<Pod> = self.list(&path, None).await?;
        // Why again: a server that does not know the selector must not give us other nodes' pods.
        Ok(pods.into_iter().filter(|pod| pod.spec.node_name == node).collect())
    }

    async fn list<T: DeserializeOwned>(&self, path: &str, page: Option<usize>) -> Result<Vec<T>, DrainError> {
        let (mut all, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let limit = page.map(|page| format!("limit={page}"));
            let from = Some(format!("continue={}", escaped(&next))).filter(|_| !next.is_empty());
            let words: Vec<String> = limit.into_iter().chain(from).collect();
            let mark = if words.is_empty() {
                ""
            } else if path.contains('?') {
                "&"
            } else {
                "?"
            };
            let asked = Request::get(format!("{path}{mark}{}", words.join("&")));
            let Got::Here(page) = self.ask::<List<T>>(asked).await? else {
                break;
            };
            all.extend(page.items);
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(all);
            }
        }
        Err(DrainError::Request {
            request: format!("GET {}", bare(path)),
            place: self.place(),
            why: "the list has no end".to_owned(),
            effect: Effect::None,
            next: None,
        })
    }

    pub(super) async fn daemon(&self, namespace: &str, name: &str) -> Result<Option<DaemonSet>, DrainError> {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", escaped(namespace), escaped(name));
        Ok(match self.ask(Request::get(path)).await? {
            Got::Here(daemon) => Some(daemon),
            Got::Missing | Got::Raced => None,
        })
    }

    /// What makes pods from a template of its own; `kind` is its plural in the group `apps`.
    pub(super) async fn owner(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<DaemonSet>, DrainError> {
        let path = format!("/apis/apps/v1/namespaces/{}/{kind}/{}", escaped(namespace), escaped(name));
        Ok(match self.ask(Request::get(path)).await? {
            Got::Here(owner) => Some(owner),
            Got::Missing | Got::Raced => None,
        })
    }

    pub(super) async fn lease(&self, lock: &super::Lock) -> Result<Got<Lease>, DrainError> {
        self.ask(Request::get(format!("{}/{}", leases(lock), escaped(&lock.name)))).await
    }

    /// Writes who holds the lock: a new Lease, or the one that was read, unless it changed since.
    pub(super) async fn hold(
        &self,
        lock: &super::Lock,
        old: Option<&Lease>,
        holder: Option<&str>,
        now: jiff::Timestamp,
    ) -> Result<Got<Lease>, DrainError> {
        let acquired = holder.map(|_| format!("{now:.6}"));
        let mut body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": lock.name, "namespace": lock.namespace},
            "spec": {"holderIdentity": holder, "acquireTime": acquired},
        });
        let request = match old {
            None => Request::post(format!("{}?fieldManager={MANAGER}", leases(lock)), body),
            Some(old) => {
                if let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                    meta.insert(
                        "resourceVersion".to_owned(),
                        Value::from(old.metadata.resource_version.clone()),
                    );
                }
                let path = format!("{}/{}?fieldManager={MANAGER}", leases(lock), escaped(&lock.name));
                Request::put(path, body)
            }
        };
        self.ask(request).await
    }
}

/// Whether a patch was refused because something that it tests is another thing now; policies of a cluster refuse with 422, too.
fn is_a_failed_test(body: &[u8]) -> bool {
    let told: Status = serde_json::from_slice(body).unwrap_or_default();
    let says = |words: &str| told.message.starts_with(words);
    told.message.is_empty()
        || says("the server rejected our request due to an error in our request")
        || says("The request is invalid")
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{}", escaped(name))
}

fn leases(lock: &super::Lock) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", escaped(&lock.namespace))
}

/// The verb and the resource that RBAC has to allow for a request: `patch nodes`.
fn right(request: &Request) -> String {
    let path = bare(&request.path).trim_matches('/');
    // Why from the version on: the core group has no name in a path.
    let words: Vec<&str> = path.split('/').skip_while(|word| *word != "v1").skip(1).collect();
    let words = match words.as_slice() {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    let verb = match (request.method, words.len()) {
        (Method::Get, 1) => "list",
        (Method::Get, _) => "get",
        (Method::Post, _) => "create",
        (Method::Put, _) => "update",
        (Method::Patch, _) => "patch",
    };
    match words {
        [resource, _, part] => format!("{verb} {resource}/{part}"),
        [resource, ..] => format!("{verb} {resource}"),
        [] => format!("{verb} {path}"),
    }
}

/// A path without its query.
fn bare(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}
