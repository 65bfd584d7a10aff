//! Objects as JSON: reading and writing fields by pointer, metadata, times.
//!
//! Owns no rule of Kubernetes. An object is a [`Value`]; a missing field reads as empty.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Returns the text at a JSON pointer, or an empty one.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number at a JSON pointer.
pub fn int(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

/// Whether a field is `true`.
pub fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// Returns the list at a JSON pointer, or an empty one.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// Returns the value of a label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// Returns the value of an annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

/// Whether the deletion was requested already.
pub fn terminating(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Returns the fields of an object, and creates it if needed.
pub fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("just made an object"),
    }
}

/// Sets a field; `path` holds the keys from the root, and missing objects are created.
pub fn set(value: &mut Value, path: &[&str], new: Value) {
    let mut at = value;
    for key in path {
        at = fields(at).entry((*key).to_owned()).or_insert(Value::Null);
    }
    *at = new;
}

/// Removes a field and returns its value.
pub fn unset(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, before) = path.split_last()?;
    let mut at = value;
    for key in before {
        at = at.get_mut(*key)?;
    }
    at.as_object_mut()?.shift_remove(*last)
}

/// Sets a field unless it exists.
pub fn default(value: &mut Value, path: &[&str], new: Value) {
    let mut at = &*value;
    for key in path {
        match at.get(*key) {
            Some(inner) => at = inner,
            None => return set(value, path, new),
        }
    }
}

/// Returns a condition of a status.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|c| text(c, "/type") == kind)
}

/// Whether a condition is `True`.
pub fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| text(c, "/status") == "True")
}

/// Sets a condition of its type; `lastTransitionTime` changes only with the status, as in Kubernetes.
pub fn set_condition(object: &mut Value, now_ms: i64, mut new: Value) {
    let kind = text(&new, "/type").to_owned();
    let same = condition(object, &kind)
        .filter(|old| text(old, "/status") == text(&new, "/status"))
        .map(|old| text(old, "/lastTransitionTime").to_owned());
    set(&mut new, &["lastTransitionTime"], json!(same.unwrap_or_else(|| time(now_ms))));
    let status = fields(object).entry("status").or_insert(json!({}));
    let all = fields(status).entry("conditions").or_insert(json!([]));
    if !all.is_array() {
        *all = json!([]);
    }
    if let Some(all) = all.as_array_mut() {
        match all.iter_mut().find(|c| text(c, "/type") == kind) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
}

/// Returns the owner that controls an object.
pub fn controller(object: &Value) -> Option<&Value> {
    list(object, "/metadata/ownerReferences").iter().find(|o| flag(o, "/controller"))
}

/// Formats a time as most of the API does, in whole seconds.
pub fn time(ms: i64) -> String {
    let at = Timestamp::from_second(ms.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH);
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a time with milliseconds, for the server's own log.
pub fn fine_time(ms: i64) -> String {
    let at = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Parses a time of the API, into milliseconds since the epoch.
pub fn read_time(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().map(|t| t.as_millisecond())
}
