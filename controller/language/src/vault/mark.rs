//! Marks in JSON for values that are encrypted, and for values that were.
//!
//! Variables travel as JSON from the readers to the templates, so the marks keep them apart from plain text.

use serde_json::{Map, Value};

/// The key of an encrypted string, as in Ansible's own JSON.
pub const LOCKED: &str = "__ansible_vault";
/// The key of a value that was decrypted; neither a screen nor a file may show it.
pub const SECRET: &str = "__gpufleet_secret";

/// The text that is shown instead of a secret.
const MASK: &str = "********";

/// Returns the value of a mapping's only key, if that key is `name`.
fn only<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).filter(|_| map.len() == 1)
}

/// Returns the value inside a secret mark.
pub fn is_secret(map: &Map<String, Value>) -> Option<&Value> {
    only(map, SECRET)
}

pub(super) fn locked(value: &Value) -> Option<&str> {
    only(value.as_object()?, LOCKED)?.as_str()
}

/// Whether any part of a value is still encrypted.
pub fn holds_locked(value: &Value) -> bool {
    match value {
        Value::Object(_) if locked(value).is_some() => true,
        Value::Object(map) => map.values().any(holds_locked),
        Value::Array(items) => items.iter().any(holds_locked),
        _ => false,
    }
}

/// Marks every text and number as secret. Booleans stay plain: they steer plays and reveal nothing.
pub fn sealed(value: Value) -> Value {
    match value {
        Value::String(_) | Value::Number(_) => {
            Value::Object([(SECRET.to_owned(), value)].into_iter().collect())
        }
        Value::Array(items) => items.into_iter().map(sealed).collect(),
        Value::Object(map) if is_secret(&map).is_some() || only(&map, LOCKED).is_some() => Value::Object(map),
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(key, value)| (key, sealed(value))).collect())
        }
        other => other,
    }
}

/// Removes all marks.
pub fn unsealed(value: Value) -> Value {
    replace(value, &|inner| inner.clone())
}

/// Replaces marked values by asterisks.
pub fn masked(value: Value) -> Value {
    replace(value, &|_| Value::from(MASK))
}

fn replace(value: Value, put: &dyn Fn(&Value) -> Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(|item| replace(item, put)).collect(),
        Value::Object(map) => match is_secret(&map) {
            Some(inner) => put(inner),
            None => Value::Object(map.into_iter().map(|(key, value)| (key, replace(value, put))).collect()),
        },
        other => other,
    }
}
