//! `metadata.managedFields`: which client last wrote which field.
//!
//! Follows server-side apply's rules for plain writes (operation `Update`): a writer owns what it changed, others
//! lose it, and a removed field has no owner. Tables say which lists have keys and which objects are atomic.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::object::{self, text};
use crate::resources::Resource;

/// A path of `FieldsV1` keys: `f:name`, `k:{…}`, `v:…`.
type Path = Vec<String>;

/// Metadata that the server itself keeps.
const SERVER_KEPT: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// Returns the keys that identify the items of a list; empty if the list is one value.
fn keys_of(path: &[String]) -> &'static [&'static str] {
    match path.last().map(String::as_str) {
        Some(
            "f:containers"
            | "f:initContainers"
            | "f:ephemeralContainers"
            | "f:volumes"
            | "f:env"
            | "f:imagePullSecrets",
        ) => &["name"],
        Some("f:conditions" | "f:addresses") => &["type"],
        Some("f:ownerReferences") => &["uid"],
        Some("f:ports") => &["containerPort", "protocol"],
        Some("f:volumeMounts") => &["mountPath"],
        Some("f:podIPs") => &["ip"],
        _ => &[],
    }
}

/// Whether an object is atomic, so that no part of it has an owner.
fn whole(path: &[String]) -> bool {
    let last = path.last().map(String::as_str);
    matches!(last, Some("f:selector" | "f:nodeSelector" | "f:disruptedPods")) && path.len() > 1
        || path.iter().rev().nth(1).is_some_and(|before| before == "f:ownerReferences")
}

/// Adds every field of an object as a path, with the value of each leaf.
fn paths(value: &Value, at: &mut Path, out: &mut Vec<(Path, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() && !whole(at) => {
            if at.last().is_some_and(|l| l.starts_with("k:")) || is_map(at) {
                out.push((with(at, "."), Value::Null));
            }
            for (key, inner) in map {
                at.push(format!("f:{key}"));
                paths(inner, at, out);
                at.pop();
            }
        }
        Value::Array(items) if !items.is_empty() && at.last().is_some_and(|l| l == "f:finalizers") => {
            out.push((with(at, "."), Value::Null));
            for item in items {
                out.push((with(at, &format!("v:{item}")), item.clone()));
            }
        }
        Value::Array(items) if !items.is_empty() && !keys_of(at).is_empty() => {
            let keys = keys_of(at);
            // Containers and volumes of a pod are owned by item only, conditions also as a list.
            if at.last().is_some_and(|l| l != "f:containers" && l != "f:initContainers") {
                out.push((with(at, "."), Value::Null));
            }
            for item in items {
                let key: Map<String, Value> =
                    keys.iter().filter_map(|k| Some(((*k).to_owned(), item.get(*k)?.clone()))).collect();
                at.push(format!("k:{}", Value::Object(key)));
                paths(item, at, out);
                at.pop();
            }
        }
        _ => out.push((at.clone(), value.clone())),
    }
}

/// Whether a map has keys of the user's, which is owned as a whole and by key.
fn is_map(at: &[String]) -> bool {
    matches!(
        at.last().map(String::as_str),
        Some("f:labels" | "f:annotations" | "f:allocatable" | "f:capacity" | "f:limits" | "f:requests")
    )
}

fn with(at: &[String], last: &str) -> Path {
    let mut path = at.to_vec();
    path.push(last.to_owned());
    path
}

fn owned_fields(object: &Value, with_status: bool, only_status: bool) -> Vec<(Path, Value)> {
    let mut copy = object.clone();
    for key in ["kind", "apiVersion"] {
        object::unset(&mut copy, &[key]);
    }
    for key in SERVER_KEPT {
        object::unset(&mut copy, &["metadata", key]);
    }
    if !with_status {
        object::unset(&mut copy, &["status"]);
    }
    if only_status {
        for key in ["spec", "metadata"] {
            object::unset(&mut copy, &[key]);
        }
    }
    let mut out = Vec::new();
    for (key, value) in copy.as_object().into_iter().flatten() {
        if value.as_object().is_some_and(Map::is_empty) {
            continue;
        }
        let mut at = vec![format!("f:{key}")];
        paths(value, &mut at, &mut out);
    }
    out
}

fn tree(paths: &BTreeSet<Path>) -> Value {
    let mut root = json!({});
    for path in paths {
        let keys: Vec<&str> = path.iter().map(String::as_str).collect();
        object::default(&mut root, &keys, json!({}));
    }
    root
}

fn read(tree: &Value, at: &mut Path, out: &mut BTreeSet<Path>) {
    match tree.as_object() {
        Some(map) if !map.is_empty() => {
            for (key, inner) in map {
                at.push(key.clone());
                read(inner, at, out);
                at.pop();
            }
        }
        _ => {
            out.insert(at.clone());
        }
    }
}

/// The author of a write.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The first part of the user agent.
    pub manager: &'a str,
    /// `status`, or empty for the main resource.
    pub subresource: &'a str,
}

/// Updates the ownership of `new`'s fields; `before` is the object that it replaces.
pub fn track(resource: &Resource, writer: Writer<'_>, before: Option<&Value>, new: &mut Value, now_ms: i64) {
    let status = writer.subresource == "status";
    let with_status = status || !resource.status;
    let wanted = owned_fields(new, with_status, status);
    let old = before.map(|b| owned_fields(b, true, false)).unwrap_or_default();
    let changed: BTreeSet<Path> = wanted
        .iter()
        .filter(|(path, value)| !old.iter().any(|(p, v)| p == path && v == value))
        .map(|(p, _)| p.clone())
        .collect();
    let alive: BTreeSet<Path> = owned_fields(new, true, false).into_iter().map(|(p, _)| p).collect();

    let mut entries: Vec<(Value, BTreeSet<Path>)> = Vec::new();
    let mut found = false;
    for entry in before.map(|b| object::list(b, "/metadata/managedFields")).unwrap_or_default() {
        let mut fields = BTreeSet::new();
        read(entry.get("fieldsV1").unwrap_or(&Value::Null), &mut Vec::new(), &mut fields);
        let count = fields.len();
        let mine =
            text(entry, "/manager") == writer.manager && text(entry, "/subresource") == writer.subresource;
        fields.retain(|path| {
            alive.contains(path) && (mine || !changed.contains(path) || path.last().is_some_and(|l| l == "."))
        });
        let mut entry = entry.clone();
        if mine {
            found = true;
            fields.extend(changed.iter().cloned());
            if !changed.is_empty() || fields.len() != count {
                entry["time"] = json!(object::time(now_ms));
            }
        }
        if !fields.is_empty() {
            entries.push((entry, fields));
        }
    }
    if !found && !changed.is_empty() {
        let mut entry = json!({
            "manager": writer.manager,
            "operation": "Update",
            "apiVersion": resource.api_version(),
            "time": object::time(now_ms),
            "fieldsType": "FieldsV1",
            "fieldsV1": {},
        });
        if !writer.subresource.is_empty() {
            entry["subresource"] = json!(writer.subresource);
        }
        entries.push((entry, changed));
    }
    entries.sort_by(|(a, _), (b, _)| text(a, "/time").cmp(text(b, "/time")));
    let list: Vec<Value> = entries
        .into_iter()
        .map(|(mut entry, fields)| {
            entry["fieldsV1"] = tree(&fields);
            entry
        })
        .collect();
    object::set(new, &["metadata", "managedFields"], json!(list));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::NODES;

    fn fields(object: &Value, at: usize) -> &Value {
        &object["metadata"]["managedFields"][at]["fieldsV1"]
    }

    #[test]
    fn a_field_belongs_to_its_last_writer_and_a_removed_one_to_nobody() {
        let writer = |manager| Writer { manager, subresource: "" };
        let mut first = json!({"metadata": {"name": "n", "labels": {"pool": "gpu"}, "annotations": {"a": "1"}}, "spec": {"unschedulable": true}});
        track(&NODES, writer("curl"), None, &mut first, 0);
        let mut second = first.clone();
        second["metadata"]["annotations"]["a"] = json!("2");
        object::unset(&mut second, &["spec", "unschedulable"]);
        track(&NODES, writer("kubectl"), Some(&first), &mut second, 5000);
        assert_eq!(
            fields(&second, 0),
            &json!({"f:metadata": {"f:labels": {".": {}, "f:pool": {}}, "f:annotations": {".": {}}}})
        );
        assert_eq!(fields(&second, 1), &json!({"f:metadata": {"f:annotations": {"f:a": {}}}}));
        assert_eq!(second["metadata"]["managedFields"][1]["time"], json!("1970-01-01T00:00:05Z"));
    }
}
