//! The fields of objects: unknown ones are dropped with a warning, wrong types are refused.
//!
//! The tables cover what a drain writes; below that, everything is accepted. Only what clients send is checked.

use serde_json::Value;

use crate::resources::Resource;
use crate::status::{Outcome, bad_request};

/// The type of a field.
enum Shape {
    Any,
    Text,
    Flag,
    Number,
    Texts,
    /// A map of texts with keys of the user's.
    TextMap,
    Object(&'static [(&'static str, Shape)]),
    Objects(&'static [(&'static str, Shape)]),
}

use Shape::{Any, Flag, Number, Object, Objects, Text, TextMap, Texts};

type Table = &'static [(&'static str, Shape)];

static META: Table = &[
    ("name", Text),
    ("generateName", Text),
    ("namespace", Text),
    ("selfLink", Text),
    ("uid", Text),
    ("resourceVersion", Text),
    ("generation", Number),
    ("creationTimestamp", Any),
    ("deletionTimestamp", Any),
    ("deletionGracePeriodSeconds", Number),
    ("labels", TextMap),
    ("annotations", TextMap),
    ("ownerReferences", Objects(OWNER)),
    ("finalizers", Texts),
    ("managedFields", Any),
];
static OWNER: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("name", Text),
    ("uid", Text),
    ("controller", Flag),
    ("blockOwnerDeletion", Flag),
];
static TAINT: Table = &[("key", Text), ("value", Text), ("effect", Text), ("timeAdded", Any)];
static PRECONDITIONS: Table = &[("uid", Text), ("resourceVersion", Text)];
static DELETE_OPTIONS: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("gracePeriodSeconds", Number),
    ("preconditions", Object(PRECONDITIONS)),
    ("orphanDependents", Flag),
    ("propagationPolicy", Text),
    ("dryRun", Texts),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", Flag),
];
static EVICTION: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Object(META)),
    ("deleteOptions", Object(DELETE_OPTIONS)),
];
static NODE: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Object(META)),
    (
        "spec",
        Object(&[
            ("podCIDR", Text),
            ("podCIDRs", Texts),
            ("providerID", Text),
            ("unschedulable", Flag),
            ("taints", Objects(TAINT)),
            ("configSource", Any),
            ("externalID", Text),
        ]),
    ),
    ("status", Any),
];
static LEASE: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Object(META)),
    (
        "spec",
        Object(&[
            ("holderIdentity", Text),
            ("leaseDurationSeconds", Number),
            ("acquireTime", Any),
            ("renewTime", Any),
            ("leaseTransitions", Number),
            ("strategy", Text),
            ("preferredHolder", Text),
        ]),
    ),
];
static BUDGET: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Object(META)),
    (
        "spec",
        Object(&[
            ("minAvailable", Any),
            ("selector", Any),
            ("maxUnavailable", Any),
            ("unhealthyPodEvictionPolicy", Text),
        ]),
    ),
    ("status", Any),
];
static POD: Table = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Object(META)),
    (
        "spec",
        Object(&[
            ("volumes", Any),
            ("initContainers", Any),
            ("containers", Any),
            ("ephemeralContainers", Any),
            ("restartPolicy", Text),
            ("terminationGracePeriodSeconds", Number),
            ("activeDeadlineSeconds", Number),
            ("dnsPolicy", Text),
            ("nodeSelector", TextMap),
            ("serviceAccountName", Text),
            ("serviceAccount", Text),
            ("automountServiceAccountToken", Flag),
            ("nodeName", Text),
            ("hostNetwork", Flag),
            ("hostPID", Flag),
            ("hostIPC", Flag),
            ("shareProcessNamespace", Flag),
            ("securityContext", Any),
            ("imagePullSecrets", Any),
            ("hostname", Text),
            ("subdomain", Text),
            ("affinity", Any),
            ("schedulerName", Text),
            ("tolerations", Any),
            ("hostAliases", Any),
            ("priorityClassName", Text),
            ("priority", Number),
            ("dnsConfig", Any),
            ("readinessGates", Any),
            ("runtimeClassName", Text),
            ("enableServiceLinks", Flag),
            ("preemptionPolicy", Text),
            ("overhead", Any),
            ("topologySpreadConstraints", Any),
            ("setHostnameAsFQDN", Flag),
            ("os", Any),
            ("hostUsers", Flag),
            ("schedulingGates", Any),
            ("resourceClaims", Any),
            ("resources", Any),
            ("hostnameOverride", Text),
            ("workloadRef", Any),
        ]),
    ),
    ("status", Any),
];
static OTHER: Table =
    &[("apiVersion", Text), ("kind", Text), ("metadata", Object(META)), ("spec", Any), ("status", Any)];

/// Removes unknown fields from what a client sent, and returns their names as in the `Warning` header.
pub fn check(resource: &Resource, sub: &str, object: &mut Value) -> Outcome<Vec<String>> {
    let table = match (resource.plural, sub) {
        ("pods", "eviction") => EVICTION,
        ("nodes", _) => NODE,
        ("leases", _) => LEASE,
        ("poddisruptionbudgets", _) => BUDGET,
        ("pods", _) => POD,
        ("events" | "configmaps", _) => return Ok(Vec::new()),
        _ => OTHER,
    };
    let (kind, version) =
        if sub == "eviction" { ("Eviction", "v1") } else { (resource.kind, resource.version) };
    let mut unknown = Vec::new();
    walk(table, object, "", &mut unknown).map_err(|why| {
        bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
    })?;
    Ok(unknown)
}

/// Removes unknown fields from the body of a DELETE.
pub fn check_delete_options(options: &mut Value) -> Outcome<Vec<String>> {
    let mut unknown = Vec::new();
    walk(DELETE_OPTIONS, options, "", &mut unknown).map_err(|why| {
        bad_request(format!("DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {why}"))
    })?;
    Ok(unknown)
}

/// Returns the error of strict validation in place of a warning.
pub fn strict(resource: &Resource, sub: &str, unknown: &[String]) -> Box<crate::status::Failure> {
    let (kind, version) =
        if sub == "eviction" { ("Eviction", "v1") } else { (resource.kind, resource.version) };
    let all: Vec<_> = unknown.iter().map(|field| format!("unknown field \"{field}\"")).collect();
    bad_request(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {}",
        all.join(", ")
    ))
}

fn walk(table: Table, object: &mut Value, at: &str, unknown: &mut Vec<String>) -> Result<(), String> {
    let Value::Object(map) = object else {
        return if object.is_null() { Ok(()) } else { Err(mismatch(object, at, "object")) };
    };
    let strange: Vec<String> =
        map.keys().filter(|key| !table.iter().any(|(name, _)| name == key)).cloned().collect();
    for key in strange {
        map.shift_remove(&key);
        unknown.push(path(at, &key));
    }
    for (name, shape) in table {
        let Some(value) = map.get_mut(*name) else { continue };
        let here = path(at, name);
        if value.is_null() {
            continue;
        }
        match shape {
            Any => {}
            Text if value.is_string() => {}
            Flag if value.is_boolean() => {}
            Number if value.is_i64() => {}
            Texts if value.as_array().is_some_and(|all| all.iter().all(Value::is_string)) => {}
            TextMap => {
                let Some(inner) = value.as_object() else {
                    return Err(mismatch(value, &here, "map[string]string"));
                };
                if let Some(wrong) = inner.values().find(|v| !v.is_string() && !v.is_null()) {
                    return Err(mismatch(wrong, &here, "string"));
                }
            }
            Object(inner) => walk(inner, value, &here, unknown)?,
            Objects(inner) => {
                let Some(all) = value.as_array_mut() else { return Err(mismatch(value, &here, "list")) };
                for (index, item) in all.iter_mut().enumerate() {
                    walk(inner, item, &format!("{here}[{index}]"), unknown)?;
                }
            }
            Text => return Err(mismatch(value, &here, "string")),
            Flag => return Err(mismatch(value, &here, "bool")),
            Number => return Err(mismatch(value, &here, "int64")),
            Texts => return Err(mismatch(value, &here, "[]string")),
        }
    }
    Ok(())
}

fn path(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

fn mismatch(value: &Value, at: &str, wanted: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go struct field {at} of type {wanted}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::{NODES, PODS};

    #[test]
    fn the_misspelt_options_of_an_eviction_are_dropped_and_named() {
        let mut body = json!({"metadata": {"name": "a"}, "delete_options": {"preconditions": {"uid": "x"}}});
        assert_eq!(check(&PODS, "eviction", &mut body).expect("only a warning"), ["delete_options"]);
        assert_eq!(body, json!({"metadata": {"name": "a"}}));
    }

    #[test]
    fn a_wrong_type_is_refused() {
        let mut body = json!({"spec": {"unschedulable": "yes"}});
        let refused = check(&NODES, "", &mut body).expect_err("a text is no bool");
        assert_eq!(
            refused.message,
            "Node in version \"v1\" cannot be handled as a Node: json: cannot unmarshal string into Go struct field spec.unschedulable of type bool"
        );
    }
}
