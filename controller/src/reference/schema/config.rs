//! The schema of `gpufleet.toml`, from the list of settings.

use serde_json::{Map, Value as Json, json};

use super::{DIALECT, one_or_many};
use crate::settings::{KEYS, Kind};

/// Returns the schema of `gpufleet.toml`.
pub fn config_schema() -> Json {
    let properties: Map<String, Json> = KEYS
        .iter()
        .map(|key| {
            let mut schema = value(key.kind);
            if let Some(schema) = schema.as_object_mut() {
                schema.insert(
                    "description".to_owned(),
                    format!("{}; unless set: {}; also `{}`", key.about, key.default, key.variable()).into(),
                );
            }
            (key.name.to_owned(), schema)
        })
        .collect();
    json!({
        "$schema": DIALECT,
        "title": "gpufleet.toml",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn value(kind: Kind) -> Json {
    match kind {
        Kind::Text | Kind::Path | Kind::Store => json!({"type": "string"}),
        Kind::Paths => one_or_many(json!({"type": "string"})),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Count => json!({"type": "integer", "minimum": 1}),
        Kind::Duration => json!({"anyOf": [
            {"type": "string", "pattern": "^[0-9. ]+ *[a-zA-Z]*"},
            {"type": "integer", "minimum": 1},
        ]}),
        Kind::Choice(words) => json!({"enum": words}),
    }
}
