//! The errors of the API, in the words of a kube-apiserver.
//!
//! Owns the `Status` body, and which HTTP code, reason and details belong together. Sources: recorded replies of 1.36
//! (`transcripts/`), and apimachinery's `api/errors` for errors that were not recorded.

use serde_json::{Value, json};

use crate::resources::Resource;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// Absent where the real server sends none.
    pub details: Option<Value>,
    /// Seconds, in `Retry-After` and in the details.
    pub retry_after_s: Option<u32>,
    /// Where an expired list can be continued inconsistently.
    pub list_continue: Option<String>,
}

pub type Outcome<T> = Result<T, Box<Failure>>;

impl Failure {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            code,
            reason,
            message: message.into(),
            details: None,
            retry_after_s: None,
            list_continue: None,
        })
    }

    fn with(mut self: Box<Self>, details: Value) -> Box<Self> {
        self.details = Some(details);
        self
    }

    /// Returns the body of the reply.
    pub fn body(&self) -> Value {
        let mut body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message});
        if !self.reason.is_empty() {
            body["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            body["details"] = details.clone();
        }
        if let Some(seconds) = self.retry_after_s {
            body["details"]["retryAfterSeconds"] = json!(seconds);
        }
        if let Some(token) = &self.list_continue {
            body["metadata"]["continue"] = json!(token);
        }
        body["code"] = json!(self.code);
        body
    }
}

/// Returns the body of a success without an object, such as of an eviction.
pub fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

fn named(resource: &Resource, name: &str) -> Value {
    let mut details = json!({"name": name});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    details["kind"] = json!(resource.plural);
    details
}

pub fn not_found(resource: &Resource, name: &str) -> Box<Failure> {
    Failure::new(404, "NotFound", format!("{} \"{name}\" not found", resource.dotted()))
        .with(named(resource, name))
}

/// The error for a path that the server does not serve.
pub fn no_such_resource() -> Box<Failure> {
    Failure::new(404, "NotFound", "the server could not find the requested resource").with(json!({}))
}

pub fn already_exists(resource: &Resource, name: &str) -> Box<Failure> {
    Failure::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", resource.dotted()))
        .with(named(resource, name))
}

/// The error for a write to a version that is not the newest.
pub fn modified(resource: &Resource, name: &str) -> Box<Failure> {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(resource, name, why)
}

fn conflict(resource: &Resource, name: &str, why: &str) -> Box<Failure> {
    let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.dotted());
    Failure::new(409, "Conflict", message).with(named(resource, name))
}

/// Returns the kind with its group, and details with the kind in place of the resource.
fn by_kind(resource: &Resource, name: &str) -> (String, Value) {
    if resource.group.is_empty() {
        return (resource.kind.to_owned(), json!({"name": name, "kind": resource.kind}));
    }
    let kind = format!("{}.{}", resource.kind, resource.group);
    (kind, json!({"name": name, "group": resource.group, "kind": resource.kind}))
}

/// The error for a precondition on the uid or version of a deletion; the kind is in place of the resource.
pub fn precondition(resource: &Resource, name: &str, why: &str) -> Box<Failure> {
    let (kind, details) = by_kind(resource, name);
    Failure::new(409, "Conflict", format!("Operation cannot be fulfilled on {kind} \"{name}\": {why}"))
        .with(details)
}

/// The error for an update of an object with another uid.
pub fn other_uid(resource: &Resource, name: &str, wanted: &str, found: &str) -> Box<Failure> {
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    conflict(resource, name, &why)
}

/// The error for a JSON patch that did not apply; the real server does not name the operation.
pub fn patch_failed() -> Box<Failure> {
    Failure::new(422, "Invalid", "the server rejected our request due to an error in our request")
        .with(json!({}))
}

pub fn bad_request(message: impl Into<String>) -> Box<Failure> {
    Failure::new(400, "BadRequest", message)
}

/// The error for a field that validation refuses.
pub fn invalid(resource: &Resource, name: &str, field: &str, reason: &str, why: &str) -> Box<Failure> {
    let (kind, mut details) = by_kind(resource, name);
    details["causes"] = json!([{"reason": reason, "message": why, "field": field}]);
    Failure::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {field}: {why}")).with(details)
}

pub fn unauthorized() -> Box<Failure> {
    Failure::new(401, "Unauthorized", "Unauthorized")
}

/// The authorizer's error.
pub fn forbidden(
    user: &str,
    verb: &str,
    resource: &Resource,
    sub: &str,
    namespace: &str,
    name: &str,
) -> Box<Failure> {
    let what = if sub.is_empty() { resource.plural.to_owned() } else { format!("{}/{sub}", resource.plural) };
    let object =
        if name.is_empty() { resource.dotted() } else { format!("{} \"{name}\"", resource.dotted()) };
    let place = if namespace.is_empty() {
        " at the cluster scope".to_owned()
    } else {
        format!(" in the namespace \"{namespace}\"")
    };
    let message = format!(
        "{object} is forbidden: User \"{user}\" cannot {verb} resource \"{what}\" in API group \"{}\"{place}",
        resource.group
    );
    let mut details = named(resource, name);
    if name.is_empty() {
        details.as_object_mut().map(|map| map.shift_remove("name"));
    }
    Failure::new(403, "Forbidden", message).with(details)
}

/// The error for a creation in a namespace that is terminating.
pub fn namespace_terminating(resource: &Resource, namespace: &str, name: &str) -> Box<Failure> {
    let mut details = named(resource, name);
    details["causes"] = json!([{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {namespace} is being terminated"),
        "field": "metadata.namespace",
    }]);
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    Failure::new(403, "Forbidden", format!("{} \"{name}\" is forbidden: {why}", resource.dotted()))
        .with(details)
}

/// The error for a disruption budget that allows no eviction. `wait_s` is set while the controller has not processed
/// the budget.
pub fn budget(cause: &str, wait_s: Option<u32>) -> Box<Failure> {
    let mut failure = Failure::new(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )
    .with(json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}));
    failure.retry_after_s = wait_s;
    failure
}

/// The error for a pod with two budgets. It has no reason and no details.
pub fn two_budgets() -> Box<Failure> {
    Failure::new(
        500,
        "",
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
    )
}

pub fn internal(message: &str) -> Box<Failure> {
    Failure::new(500, "InternalError", format!("Internal error occurred: {message}"))
        .with(json!({"causes": [{"message": message}]}))
}

pub fn method_not_allowed() -> Box<Failure> {
    Failure::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        .with(json!({}))
}

pub fn unsupported_media(accepted: &str) -> Box<Failure> {
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {accepted}"
    );
    Failure::new(415, "UnsupportedMediaType", message)
}

/// The error for a version that is no longer in the history.
pub fn expired(message: impl Into<String>) -> Box<Failure> {
    Failure::new(410, "Expired", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::by_plural;

    #[test]
    fn refused_users_read_what_kubernetes_tells_them() {
        let pods = by_plural("", "pods").expect("pods are served");
        let failure = forbidden("gpufleet", "create", pods, "eviction", "team", "a");
        assert_eq!(
            failure.message,
            "pods \"a\" is forbidden: User \"gpufleet\" cannot create resource \"pods/eviction\" in API group \"\" in the namespace \"team\""
        );
        let nodes = by_plural("", "nodes").expect("nodes are served");
        let failure = forbidden("gpufleet", "list", nodes, "", "", "");
        assert_eq!(
            failure.message,
            "nodes is forbidden: User \"gpufleet\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"
        );
        assert_eq!(failure.body()["details"], json!({"kind": "nodes"}));
    }
}
