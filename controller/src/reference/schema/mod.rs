//! JSON schemas of input files, for editors and for other programs.
//!
//! Derived from the registry of kinds and the parser's own lists of keys; a key without a description fails a test.

mod check;
mod config;
mod drain;
mod inventory;
mod kinds;
mod playbook;
mod words;

pub use check::check_schema;
pub use config::config_schema;
pub use inventory::inventory_schema;
pub use playbook::{playbook_schema, tasks_schema};

use serde_json::{Value as Json, json};

/// The version of JSON Schema that editors and schemars support.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the schema of a template in place of a value.
fn template() -> Json {
    json!({"type": "string", "pattern": "\\{\\{|\\{%"})
}

/// Returns the schema of a boolean. YAML 1.1, Ansible and gpufleet read these words as booleans, but an editor's YAML
/// 1.2 reads them as text.
fn boolean() -> Json {
    json!({"anyOf": [
        {"type": "boolean"},
        {"enum": ["yes", "no", "on", "off", "Yes", "No", "On", "Off", "YES", "NO", "true", "false", "True", "False"]},
        template(),
    ]})
}

fn text() -> Json {
    json!({"type": ["string", "number", "boolean"]})
}

/// Returns the schema of a duration: `90`, `90s`, `20m`, `2h`.
fn duration() -> Json {
    json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? *[a-zA-Z]*$"}, template()]})
}

/// Returns the schema of one item or a list of them.
fn one_or_many(item: Json) -> Json {
    json!({"anyOf": [item.clone(), {"type": "array", "items": item}]})
}

#[cfg(test)]
mod tests;
