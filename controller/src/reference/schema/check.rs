//! The schema of the document of `gpufleet check --format json`.

use serde_json::{Value as Json, json};

use super::DIALECT;

/// Returns the schema of `gpufleet check --format json`.
pub fn check_schema() -> Json {
    let count = json!({"type": "integer", "minimum": 0});
    let maybe = |kind: &str| json!({"type": [kind, "null"]});
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let closed = |properties: Json| {
        let keys: Vec<String> =
            properties.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        json!({
            "type": "object", "required": keys, "properties": properties, "additionalProperties": false,
        })
    };
    let finding = closed(json!({
        "rule": {"description": "`gpufleet check --list-rules` tells of each.", "type": "string"},
        "severity": {"enum": ["error", "warning", "note"]},
        "message": {"type": "string"},
        "file": maybe("string"),
        "line": {"description": "From 1.", "type": ["integer", "null"], "minimum": 1},
        "column": {"description": "From 1, in characters.", "type": ["integer", "null"], "minimum": 1},
        "label": maybe("string"),
        "notes": texts,
        "help": texts,
    }));
    let mut schema = closed(json!({
        "format": {"description": "Version of this shape.", "const": 1},
        "files": texts,
        "variables_checked": {
            "description": "Whether it was checked that every variable is defined: that needs an inventory.",
            "type": "boolean",
        },
        "errors": count,
        "warnings": count,
        "notes": count,
        "findings": {"type": "array", "items": finding},
    }));
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$schema".to_owned(), json!(DIALECT));
        schema.insert("$id".to_owned(), json!("https://gpufleet.invalid/schema/check.schema.json"));
        schema.insert("title".to_owned(), json!("gpufleet check"));
    }
    schema
}
