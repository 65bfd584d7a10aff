//! What a role is given, against its `argument_specs`.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

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
    let others = spec.provided_arguments.iter().filter(|(name, _)| !spec.argument_spec.contains_key(*name));
    given.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    let mut found = Found::default();
    options(&spec.argument_spec, &given, &[], &mut found);
    let wrong = found.all();
    let (failed, message, data) = match wrong.is_empty() {
        true => (false, "The arg spec validation passed".to_owned(), Map::new()),
        false => {
            let message = format!("Validation of arguments failed:\n{}", wrong.join("\n"));
            (true, message, Map::from_iter([("argument_errors".to_owned(), Json::from(wrong))]))
        }
    };
    Ok(Deed::Told { failed, message: Some(message), data })
}

/// What is wrong, in the words of ansible-core 2.19's `module_utils/common/parameters.py`.
#[derive(Default)]
struct Found {
    errors: Vec<String>,
    /// Options that the specification does not have, with the path to them.
    unsupported: BTreeSet<String>,
    /// Those that there are beside the last of them.
    supported: BTreeSet<String>,
}

impl Found {
    fn all(mut self) -> Vec<String> {
        if !self.unsupported.is_empty() {
            let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
            let (names, known) = (list(self.unsupported), list(self.supported));
            self.errors.push(format!("{names}. Supported parameters include: {known}."));
        }
        self.errors
    }

    fn error(&mut self, message: &str, within: &[&str]) {
        self.errors.push(match within {
            [] => message.to_owned(),
            within => format!("{message} found in {}", within.join(" -> ")),
        });
    }
}

fn options(spec: &Map<String, Json>, given: &Map<String, Json>, within: &[&str], found: &mut Found) {
    for name in given.keys().filter(|name| !spec.contains_key(*name)) {
        let path: Vec<&str> = within.iter().copied().chain([name.as_str()]).collect();
        found.unsupported.insert(path.join("."));
        found.supported = spec.keys().cloned().collect();
    }
    let yes = |option: &Json, key: &str| option.get(key).is_some_and(|value| *value == Json::Bool(true));
    let missing: BTreeSet<&str> = spec
        .iter()
        .filter(|(name, option)| yes(option, "required") && given.get(*name).is_none_or(Json::is_null))
        .map(|(name, _)| name.as_str())
        .collect();
    if !missing.is_empty() {
        let names = missing.into_iter().collect::<Vec<_>>().join(", ");
        found.error(&format!("missing required arguments: {names}"), within);
    }
    let given: Vec<(&str, &Json, Cow<'_, Json>)> = spec
        .iter()
        .filter_map(|(name, option)| Some((name, option, given.get(name).filter(|value| !value.is_null())?)))
        .map(|(name, option, value)| (name.as_str(), option, taken_as(wanted(option), value)))
        .collect();
    for (name, option, value) in &given {
        of_type(name, option, value, within, found);
    }
    for (name, option, value) in &given {
        among_choices(name, option, value, within, found);
    }
    for (name, option, value) in &given {
        let Some(below) = option.get("options").and_then(Json::as_object) else { continue };
        let within: Vec<&str> = within.iter().copied().chain([*name]).collect();
        let maps = value.as_array().map_or_else(|| std::slice::from_ref(&**value), Vec::as_slice);
        for map in maps {
            match map.as_object() {
                Some(map) => options(below, map, &within, found),
                None => {
                    found.errors.push(format!("value of '{name}' must be of type dict or list of dicts"));
                }
            }
        }
    }
}

fn wanted(option: &Json) -> &str {
    option.get("type").and_then(Json::as_str).unwrap_or("str")
}

/// A text as the list that it stands for, where one is wanted.
fn taken_as<'a>(wanted: &str, value: &'a Json) -> Cow<'a, Json> {
    match value {
        Json::String(text) if wanted == "list" => Cow::Owned(text.split(',').collect()),
        Json::Number(number) if wanted == "list" => Cow::Owned(Json::from_iter([number.to_string()])),
        value => Cow::Borrowed(value),
    }
}

fn of_type(name: &str, option: &Json, value: &Json, within: &[&str], found: &mut Found) {
    let place = |end: &str| match within {
        [] => String::new(),
        within => format!(" found in '{}'{end}", within.join(" -> ")),
    };
    let wanted = wanted(option);
    if !fits(wanted, value) {
        let place = place(".");
        let (kind, why) = (kind(value), why_not(wanted, value));
        found.errors.push(format!(
            "argument '{name}' is of type {kind}{place} and we were unable to convert to {wanted}: {why}"
        ));
        return;
    }
    let Some(wanted) = option.get("elements").and_then(Json::as_str) else { return };
    for element in value.as_array().into_iter().flatten().filter(|element| !fits(wanted, element)) {
        let place = place("");
        let (kind, why) = (kind(element), why_not(wanted, element));
        found.errors.push(format!(
            "Elements value for option '{name}'{place} is of type {kind} and we were unable to convert to {wanted}: {why}"
        ));
    }
}

fn among_choices(name: &str, option: &Json, value: &Json, within: &[&str], found: &mut Found) {
    let Some(choices) = option.get("choices").and_then(Json::as_array) else { return };
    let among = |value: &Json| choices.iter().any(|choice| text(choice) == text(value));
    let shown = choices.iter().map(text).collect::<Vec<_>>().join(", ");
    match value.as_array() {
        Some(list) => {
            let others: Vec<String> = list.iter().filter(|item| !among(item)).map(text).collect();
            if !others.is_empty() {
                let others = others.join(", ");
                let message =
                    format!("value of {name} must be one or more of: {shown}. Got no match for: {others}");
                found.error(&message, within);
            }
        }
        None if !among(value) => {
            let message = format!("value of {name} must be one of: {shown}, got: {}", text(value));
            found.error(&message, within);
        }
        None => {}
    }
}

fn text(value: &Json) -> String {
    Value::literal(value).to_text()
}

/// Why a value does not fit; where Ansible names a class of its own, Python's takes its place.
fn why_not(wanted: &str, value: &Json) -> String {
    let class = || format!("<class '{}'> cannot be converted to a {wanted}", kind(value));
    match (wanted, value) {
        ("int", value) => {
            format!("\"{}\" cannot be converted to an int", Value::literal(value).python_repr())
        }
        ("bool", Json::String(_) | Json::Number(_)) => format!(
            "The value '{}' is not a valid boolean. Valid booleans include: {}",
            text(value),
            BOOLEANS.map(|word| format!("'{word}'")).join(", ")
        ),
        ("dict", Json::String(text)) if text.starts_with('{') => {
            "unable to evaluate string as dictionary".to_owned()
        }
        ("dict", Json::String(_)) => "dictionary requested, could not parse JSON or key=value".to_owned(),
        _ => class(),
    }
}

const BOOLEANS: [&str; 12] = ["yes", "no", "true", "false", "on", "off", "y", "n", "t", "f", "1", "0"];

/// Whether a value is of a type, or can be read as one, as Ansible's modules read their parameters.
fn fits(wanted: &str, value: &Json) -> bool {
    let text = value.as_str();
    match wanted {
        "int" => value.is_i64() || text.is_some_and(|text| text.trim().parse::<i64>().is_ok()),
        "float" => value.is_number() || text.is_some_and(|text| text.trim().parse::<f64>().is_ok()),
        "bool" => {
            value.is_boolean()
                || matches!(value.as_i64(), Some(0 | 1))
                || text.is_some_and(|text| BOOLEANS.contains(&&*text.to_ascii_lowercase()))
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

/// The name of its type in Python.
fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "NoneType",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float",
        Json::Number(_) => "int",
        Json::String(_) => "str",
        Json::Array(_) => "list",
        Json::Object(_) => "dict",
    }
}
