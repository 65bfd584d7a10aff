//! The schemas of kinds' parameters, as people may write them.

use gpufleet_protocol::tasks::{KINDS, KindInfo};
use serde_json::{Map, Value as Json, json};

use super::{boolean, template};

/// Returns `$defs` for all kinds: each kind's value under its own name, the types of its parameters under `KIND.TYPE`.
pub(super) fn definitions() -> Map<String, Json> {
    let mut all = Map::new();
    for kind in KINDS {
        let mut schema = kind.schema();
        let inner = schema.get("$defs").cloned().unwrap_or_default();
        if let Some(map) = schema.as_object_mut() {
            map.remove("$defs");
            map.remove("$schema");
        }
        for (name, definition) in inner.as_object().into_iter().flatten() {
            all.insert(format!("{}.{name}", kind.name), loosened(definition, kind.name));
        }
        all.insert(kind.name.to_owned(), of_kind(kind, &schema));
    }
    all
}

fn of_kind(kind: &KindInfo, schema: &Json) -> Json {
    let description = format!("{}\n\nExample: {}", kind.summary, kind.example);
    if kind.open_keys {
        return json!({"description": description, "type": "object"});
    }
    let mut properties = Map::new();
    for (name, property) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
        properties.insert(name.clone(), or_template(loosened(property, kind.name)));
    }
    let mut aliased = false;
    for name in kind.parameters() {
        if !properties.contains_key(*name) {
            aliased = true;
            properties.insert((*name).to_owned(), json!({"description": "Another name of a parameter."}));
        }
    }
    let mut parameters = json!({"type": "object", "properties": properties, "additionalProperties": false});
    // Not if there are other names, a free form or `args`, where a required parameter may be given instead.
    if let Some(required) = schema.get("required").filter(|_| !aliased && kind.free_form.is_none()) {
        parameters["required"] = required.clone();
    }
    let mut forms =
        vec![parameters, json!({"type": "string", "description": "`name=value` words, or the free form."})];
    if kind.free_form.is_some() {
        forms.push(json!({"type": ["number", "boolean"]}));
    }
    forms.push(json!({"type": "null"}));
    json!({"description": description, "anyOf": forms})
}

fn or_template(mut schema: Json) -> Json {
    let description = schema.as_object_mut().and_then(|map| map.remove("description"));
    let default = schema.as_object_mut().and_then(|map| map.remove("default"));
    let mut wrapped = json!({"anyOf": [schema, template()]});
    if let Some(map) = wrapped.as_object_mut() {
        for (name, value) in [("description", description), ("default", default)] {
            let said = value.filter(|value| !value.is_null());
            map.extend(said.map(|value| (name.to_owned(), value)));
        }
    }
    wrapped
}

/// Returns a type as the lenient readers accept it: words for booleans, digits for numbers, one item for a list of one.
fn loosened(schema: &Json, kind: &str) -> Json {
    let Some(map) = schema.as_object() else { return schema.clone() };
    let mut out = Map::new();
    for (name, value) in map {
        let value = match (name.as_str(), value) {
            ("$ref", Json::String(target)) => {
                let target = target.rsplit('/').next().unwrap_or_default();
                json!(format!("#/$defs/{kind}.{target}"))
            }
            ("anyOf" | "oneOf" | "allOf", Json::Array(items)) => {
                items.iter().map(|item| loosened(item, kind)).collect()
            }
            ("items" | "additionalProperties", inner @ Json::Object(_)) => loosened(inner, kind),
            ("properties", Json::Object(inner)) => {
                inner.iter().map(|(name, value)| (name.clone(), or_template(loosened(value, kind)))).collect()
            }
            ("format", _) => continue,
            (_, other) => other.clone(),
        };
        // Two forms of one value may match the same text.
        let name = if name == "oneOf" { "anyOf" } else { name.as_str() };
        out.insert(name.to_owned(), value);
    }
    let is = |wanted: &str| match out.get("type") {
        Some(Json::String(kind)) => kind == wanted,
        Some(Json::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
        _ => false,
    };
    let nothing = is("null");
    let mut forms: Vec<Json> = Vec::new();
    if is("boolean") {
        forms.push(boolean());
    } else if is("integer") || is("number") {
        let mut number = json!({"type": "number"});
        for name in ["minimum", "maximum", "x-unit"] {
            if let (Some(value), Some(map)) = (out.get(name), number.as_object_mut()) {
                map.insert(name.to_owned(), value.clone());
            }
        }
        forms.push(number);
        forms.push(json!({"type": "string", "pattern": "^[0-9]+([.][0-9]+)?[a-zA-Z%]*$"}));
        forms.push(template());
    } else if is("string") && !out.contains_key("enum") && !out.contains_key("const") {
        forms.push(json!({"type": ["string", "number", "boolean"]}));
    } else if is("array") {
        let items = out.get("items").cloned().unwrap_or_else(|| json!({}));
        forms.push(items);
        forms.push(Json::Object(out.clone()));
        forms.push(template());
    } else {
        // Only the words themselves, which editors offer; other spellings (`on`, `1`) are for the parser alone.
        return Json::Object(out);
    }
    if nothing {
        forms.push(json!({"type": "null"}));
    }
    let mut wrapped = json!({"anyOf": forms});
    for name in ["description", "default"] {
        if let (Some(value), Some(map)) = (out.get(name), wrapped.as_object_mut()) {
            map.insert(name.to_owned(), value.clone());
        }
    }
    wrapped
}
