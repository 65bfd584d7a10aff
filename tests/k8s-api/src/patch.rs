//! The three patches: JSON patch (RFC 6902), merge patch (RFC 7386) and Kubernetes' strategic merge.
//!
//! Pure functions from a document and a patch to a new document. Peculiarities are those of the API server's library:
//! a failed `test` and a missing path have the same error, and `test` for null passes on a missing key.

use serde_json::{Map, Value};

use crate::status::{Outcome, bad_request, patch_failed};

/// Applies a JSON patch.
pub fn json_patch(document: &Value, patch: &Value) -> Outcome<Value> {
    let Some(operations) = patch.as_array() else {
        return Err(bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
        ));
    };
    let mut result = document.clone();
    for operation in operations {
        let op = operation.get("op").and_then(Value::as_str).unwrap_or_default();
        let path = pointer(operation, "path")?;
        match op {
            "add" => add(&mut result, &path, value(operation)?)?,
            "remove" => {
                remove(&mut result, &path)?;
            }
            "replace" => {
                if find(&result, &path).is_none() {
                    return Err(patch_failed());
                }
                match find_mut(&mut result, &path) {
                    Some(place) => *place = value(operation)?,
                    None => return Err(patch_failed()),
                }
            }
            "test" => {
                let wanted = operation.get("value").cloned().unwrap_or(Value::Null);
                let (parent, _) = split(&path);
                let found = find(&result, &path);
                if find(&result, parent).is_none() || found.unwrap_or(&Value::Null) != &wanted {
                    return Err(patch_failed());
                }
            }
            "copy" | "move" => {
                let from = pointer(operation, "from")?;
                let moved = find(&result, &from).cloned().ok_or_else(patch_failed)?;
                if op == "move" {
                    remove(&mut result, &from)?;
                }
                add(&mut result, &path, moved)?;
            }
            _ => return Err(patch_failed()),
        }
    }
    Ok(result)
}

fn value(operation: &Value) -> Outcome<Value> {
    operation.get("value").cloned().ok_or_else(patch_failed)
}

fn pointer(operation: &Value, field: &str) -> Outcome<Vec<String>> {
    let text = operation.get(field).and_then(Value::as_str).ok_or_else(patch_failed)?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let inner = text.strip_prefix('/').ok_or_else(patch_failed)?;
    Ok(inner.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect())
}

fn split(path: &[String]) -> (&[String], &str) {
    path.split_last().map_or((path, ""), |(last, before)| (before, last.as_str()))
}

fn find<'a>(document: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(document, |at, key| match at {
        Value::Object(map) => map.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

fn find_mut<'a>(document: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(document, |at, key| match at {
        Value::Object(map) => map.get_mut(key),
        Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
        _ => None,
    })
}

fn add(document: &mut Value, path: &[String], new: Value) -> Outcome<()> {
    if path.is_empty() {
        *document = new;
        return Ok(());
    }
    let (parent, key) = split(path);
    match find_mut(document, parent) {
        Some(Value::Object(map)) => {
            map.insert(key.to_owned(), new);
            Ok(())
        }
        Some(Value::Array(items)) => {
            let at = if key == "-" { items.len() } else { key.parse().map_err(|_| patch_failed())? };
            if at > items.len() {
                return Err(patch_failed());
            }
            items.insert(at, new);
            Ok(())
        }
        _ => Err(patch_failed()),
    }
}

fn remove(document: &mut Value, path: &[String]) -> Outcome<Value> {
    let (parent, key) = split(path);
    let removed = match find_mut(document, parent) {
        Some(Value::Object(map)) => map.shift_remove(key),
        Some(Value::Array(items)) => {
            key.parse::<usize>().ok().filter(|at| *at < items.len()).map(|at| items.remove(at))
        }
        _ => None,
    };
    removed.ok_or_else(patch_failed)
}

/// Applies a merge patch: null removes, objects merge, everything else replaces.
pub fn merge(document: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut result = document.as_object().cloned().unwrap_or_default();
    for (key, change) in changes {
        if change.is_null() {
            result.shift_remove(key);
        } else {
            let old = result.get(key).cloned().unwrap_or(Value::Null);
            result.insert(key.clone(), merge(&old, change));
        }
    }
    Value::Object(result)
}

/// Returns the key that identifies the items of a list in a strategic merge; `None` if the list is replaced.
fn merge_key(field: &str) -> Option<&'static str> {
    Some(match field {
        "containers" | "initContainers" | "volumes" | "env" | "imagePullSecrets" => "name",
        "conditions" | "addresses" => "type",
        "ownerReferences" => "uid",
        "ports" => "containerPort",
        "volumeMounts" => "mountPath",
        _ => return None,
    })
}

/// Applies a strategic merge patch.
pub fn strategic(document: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    match changes.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let mut new = changes.clone();
            new.shift_remove("$patch");
            return Value::Object(new);
        }
        Some("delete") => return Value::Null,
        _ => {}
    }
    let mut result = document.as_object().cloned().unwrap_or_default();
    for (key, change) in changes {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(items)) = result.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
        } else if key.starts_with("$setElementOrder/") || key == "$retainKeys" || key == "$patch" {
            // Order only; nothing here depends on it.
        } else if change.is_null() {
            result.shift_remove(key);
        } else {
            let old = result.get(key).cloned().unwrap_or(Value::Null);
            let new = match (change, merge_key(key)) {
                (Value::Array(items), Some(by)) => merge_list(&old, items, by),
                (Value::Array(items), None) if key == "finalizers" => merge_set(&old, items),
                (Value::Object(_), _) => strategic(&old, change),
                _ => change.clone(),
            };
            result.insert(key.clone(), new);
        }
    }
    Value::Object(result)
}

fn merge_list(old: &Value, changes: &[Value], by: &str) -> Value {
    let mut items: Vec<Value> = old.as_array().cloned().unwrap_or_default();
    if changes.iter().any(|c| c.get("$patch").and_then(Value::as_str) == Some("replace")) {
        items.clear();
    }
    for change in changes {
        let place = items.iter().position(|item| item.get(by).is_some() && item.get(by) == change.get(by));
        let directive = change.get("$patch").and_then(Value::as_str);
        match (place, directive) {
            (Some(at), Some("delete")) => {
                items.remove(at);
            }
            (None, Some("delete")) | (_, Some("replace")) => {}
            (Some(at), _) => items[at] = strategic(&items[at], change),
            (None, _) => items.push(change.clone()),
        }
    }
    Value::Array(items)
}

fn merge_set(old: &Value, changes: &[Value]) -> Value {
    let mut items: Vec<Value> = old.as_array().cloned().unwrap_or_default();
    for change in changes {
        if !items.contains(change) {
            items.push(change.clone());
        }
    }
    Value::Array(items)
}

/// Removes empty maps and lists from the metadata, and zero values from the spec, like Go's `omitempty`.
pub fn normalise(object: &mut Value) {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    if let Some(Value::Object(meta)) = object.get_mut("metadata") {
        if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
            nulls_to_texts(annotations);
        }
        if let Some(Value::Object(labels)) = meta.get_mut("labels") {
            nulls_to_texts(labels);
        }
        meta.retain(|_, value| !empty(value));
    }
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        if kind == "Node" {
            spec.retain(|_, value| !empty(value) && *value != Value::Bool(false));
        }
        if kind == "Lease" {
            spec.retain(|_, value| !value.is_null());
        }
    }
}

/// Replaces null in a map of texts by an empty text, as the server reads it.
fn nulls_to_texts(map: &mut Map<String, Value>) {
    for value in map.values_mut() {
        if value.is_null() {
            *value = Value::String(String::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_test_that_fails_and_a_path_that_is_missing_are_one_refusal() {
        let node = json!({"metadata": {"annotations": {"a/b": "1"}}, "spec": {}});
        for patch in [
            json!([{"op": "test", "path": "/metadata/annotations/a~1b", "value": "2"}]),
            json!([{"op": "remove", "path": "/spec/unschedulable"}]),
            json!([{"op": "replace", "path": "/spec/unschedulable", "value": true}]),
            json!([{"op": "add", "path": "/status/phase/x", "value": 1}]),
            json!([{"op": "test", "path": "/nowhere/at/all", "value": null}]),
            json!([{"op": "swap", "path": "/spec"}]),
        ] {
            assert_eq!(json_patch(&node, &patch).expect_err("refused").code, 422, "{patch}");
        }
        let patch = json!([
            {"op": "test", "path": "/spec/unschedulable", "value": null},
            {"op": "test", "path": "/metadata/annotations/a~1b", "value": "1"},
            {"op": "add", "path": "/spec/unschedulable", "value": true},
            {"op": "remove", "path": "/metadata/annotations/a~1b"},
        ]);
        assert_eq!(
            json_patch(&node, &patch).expect("applies"),
            json!({"metadata": {"annotations": {}}, "spec": {"unschedulable": true}})
        );
    }

    #[test]
    fn a_strategic_merge_knows_conditions_by_type_and_replaces_taints() {
        let node = json!({"spec": {"taints": [{"key": "a"}]}, "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X"}]}});
        let patch = json!({"spec": {"taints": [{"key": "b"}]}, "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "$patch": "delete"}]}});
        assert_eq!(
            strategic(&node, &patch),
            json!({"spec": {"taints": [{"key": "b"}]}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}})
        );
    }

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..3)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// RFC 7386: applying a patch twice is the same as applying it once.
        #[test]
        fn a_merge_is_idempotent(document in anything(), patch in anything()) {
            let once = merge(&document, &patch);
            prop_assert_eq!(merge(&once, &patch), once);
        }

        #[test]
        fn a_failed_patch_says_422_or_400(document in anything(), patch in anything()) {
            if let Err(failure) = json_patch(&document, &patch) {
                prop_assert!(failure.code == 422 || failure.code == 400);
            }
        }
    }
}
