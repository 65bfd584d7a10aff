//! What a role is given, against its `argument_specs`.

use std::sync::Arc;

use gpufleet_protocol::tasks::ValidateArgumentSpec;
use serde_json::{Map, Value as Json};

use super::prepare::{Deed, Stop, fail, unknown};
use crate::template::{self, Scope, Value};

/// Checks every option, and names all that are wrong.
pub(super) fn check(spec: &ValidateArgumentSpec, scope: &Arc<Scope>) -> Result<Deed, Stop> {
    let mut given = Map::new();
    for name in spec.argument_spec.keys() {
        if let Some(value) = spec.provided_arguments.get(name) {
            given.insert(name.clone(), value.clone());
            continue;
        }
        let Some(value) = scope.get(name) else { continue };
        let value = template::resolve(value, scope).map_err(|error| fail(format!("`{name}`: {error}")))?;
        match value {
            Value::Omit => {}
            value if value.has_unknown() => return Err(unknown()),
            value => {
                given.insert(name.clone(), value.to_json());
            }
        }
    }
    let mut wrong = Vec::new();
    options(&spec.argument_spec, &given, "", &mut wrong);
    if wrong.is_empty() {
        let message = Some("The arg spec validation passed".to_owned());
        return Ok(Deed::Told { failed: false, message, data: Map::new() });
    }
    Err(fail(format!("Validation of arguments failed: {}", wrong.join("; "))))
}

fn options(spec: &Map<String, Json>, given: &Map<String, Json>, below: &str, wrong: &mut Vec<String>) {
    let within = |below: &str| if below.is_empty() { String::new() } else { format!(" found in {below}") };
    let yes = |option: &Json, key: &str| option.get(key).is_some_and(|value| *value == Json::Bool(true));
    let missing: Vec<&str> = spec
        .iter()
        .filter(|(name, option)| yes(option, "required") && given.get(*name).is_none_or(Json::is_null))
        .map(|(name, _)| name.as_str())
        .collect();
    if !missing.is_empty() {
        wrong.push(format!("missing required arguments: {}{}", missing.join(", "), within(below)));
    }
    for (name, value) in given {
        let Some(option) = spec.get(name) else {
            let known: Vec<&str> = spec.keys().map(String::as_str).collect();
            wrong.push(format!(
                "unsupported parameter: {name}{}; known are {}",
                within(below),
                known.join(", ")
            ));
            continue;
        };
        if value.is_null() {
            continue;
        }
        let path = if below.is_empty() { name.clone() } else { format!("{below} -> {name}") };
        one(option, value, &path, wrong);
    }
}

fn one(option: &Json, value: &Json, path: &str, wrong: &mut Vec<String>) {
    let wanted = option.get("type").and_then(Json::as_str).unwrap_or("str");
    if !fits(wanted, value) {
        wrong.push(format!("argument '{path}' is {} and cannot be taken as {wanted}", kind(value)));
        return;
    }
    if let Some(choices) = option.get("choices").and_then(Json::as_array) {
        let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let among = |value: &Json| choices.iter().any(|choice| text(choice) == text(value));
        let ok = value.as_array().map_or_else(|| among(value), |list| list.iter().all(among));
        if !ok {
            let shown: Vec<String> = choices.iter().map(text).collect();
            wrong.push(format!("value of {path} must be one of: {}, got: {}", shown.join(", "), text(value)));
        }
    }
    if let (Some(elements), Some(list)) = (option.get("elements").and_then(Json::as_str), value.as_array()) {
        for element in list.iter().filter(|element| !fits(elements, element)) {
            wrong.push(format!(
                "an element of '{path}' is {} and cannot be taken as {elements}",
                kind(element)
            ));
        }
    }
    let Some(below) = option.get("options").and_then(Json::as_object) else { return };
    match value {
        Json::Object(map) => options(below, map, path, wrong),
        Json::Array(list) => {
            for map in list.iter().filter_map(Json::as_object) {
                options(below, map, path, wrong);
            }
        }
        _ => {}
    }
}

/// Whether a value is of a type, or can be read as one, as Ansible's modules read their parameters.
fn fits(wanted: &str, value: &Json) -> bool {
    let text = value.as_str();
    match wanted {
        "int" => value.is_i64() || text.is_some_and(|text| text.trim().parse::<i64>().is_ok()),
        "float" => value.is_number() || text.is_some_and(|text| text.trim().parse::<f64>().is_ok()),
        "bool" => {
            value.is_boolean()
                || matches!(value.as_i64(), Some(0 | 1))
                || text.is_some_and(|text| {
                    matches!(
                        text.to_ascii_lowercase().as_str(),
                        "yes" | "no" | "true" | "false" | "on" | "off" | "y" | "n" | "t" | "f" | "1" | "0"
                    )
                })
        }
        "list" => value.is_array() || text.is_some() || value.is_number(),
        "dict" => {
            value.is_object()
                || text.is_some_and(|text| text.trim_start().starts_with('{') || text.contains('='))
        }
        "path" => !value.is_object() && !value.is_array(),
        _ => true,
    }
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "nothing",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "a mapping",
    }
}
