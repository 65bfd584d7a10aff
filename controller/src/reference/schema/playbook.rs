//! The schemas of playbooks and task files.

use gpufleet_protocol::tasks::KINDS;
use serde_json::{Map, Value as Json, json};

use super::words::word;
use super::{DIALECT, kinds, text};
use crate::playbook::VOCABULARY;

/// Statements that take the place of a kind.
const STATEMENTS: &[(&str, &str)] = &[
    ("import_tasks", "Puts the tasks of a file here when the playbook is read."),
    ("include_tasks", "Puts the tasks of a file here when the play gets here."),
    ("import_role", "Puts the tasks of a role here when the playbook is read."),
    ("include_role", "Puts the tasks of a role here when the play gets here."),
    ("include_vars", "Reads variables from files when the play gets here."),
];

/// Returns the schema of a playbook: a list of plays.
pub fn playbook_schema() -> Json {
    document(
        "https://gpufleet.invalid/schema/playbook.schema.json",
        "A gpufleet playbook",
        json!({"type": ["array", "null"], "items": {"$ref": "#/$defs/play"}}),
    )
}

/// Returns the schema of a task file, such as a role's or that of `import_tasks`.
pub fn tasks_schema() -> Json {
    document(
        "https://gpufleet.invalid/schema/tasks.schema.json",
        "Tasks of a gpufleet playbook",
        json!({"type": ["array", "null"], "items": {"$ref": "#/$defs/item"}}),
    )
}

fn document(id: &str, title: &str, root: Json) -> Json {
    let mut all = Map::from_iter([
        ("$schema".to_owned(), json!(DIALECT)),
        ("$id".to_owned(), json!(id)),
        ("title".to_owned(), json!(title)),
    ]);
    all.extend(root.as_object().cloned().unwrap_or_default());
    let mut definitions = kinds::definitions();
    definitions.insert("play".to_owned(), play());
    definitions.insert("item".to_owned(), item());
    definitions.insert("block".to_owned(), block());
    definitions.insert("task".to_owned(), task());
    all.insert("$defs".to_owned(), Json::Object(definitions));
    Json::Object(all)
}

fn properties<'a>(names: impl IntoIterator<Item = &'a &'static str>) -> Map<String, Json> {
    names.into_iter().map(|name| ((*name).to_owned(), word(name).unwrap_or_else(|| json!({})))).collect()
}

/// Returns a name with and without `ansible.builtin.`.
fn both(name: &str) -> [String; 2] {
    [name.to_owned(), format!("ansible.builtin.{name}")]
}

fn play() -> Json {
    let mut rollout = properties(VOCABULARY.rollout);
    let mut keys = properties(VOCABULARY.play);
    if let Some(entry) = keys.get_mut("rollout").and_then(Json::as_object_mut) {
        entry.insert("type".to_owned(), json!(["object", "null"]));
        entry.insert("properties".to_owned(), Json::Object(std::mem::take(&mut rollout)));
        entry.insert("additionalProperties".to_owned(), json!(false));
    }
    let import = both("import_playbook");
    let imports: Vec<Json> = import.iter().map(|name| json!({"required": [name]})).collect();
    let mut import_keys = properties(&["name", "when", "tags", "vars"]);
    for name in &import {
        import_keys.insert(
            name.clone(),
            json!({"type": ["string", "object"], "description": "Puts the plays of another playbook here."}),
        );
    }
    json!({
        "description": "A play: hosts, and what is done to them.",
        "type": "object",
        "if": {"anyOf": imports},
        "then": {"properties": import_keys, "additionalProperties": false},
        "else": {"properties": keys, "additionalProperties": false, "required": ["hosts"]},
    })
}

fn item() -> Json {
    let blocks: Vec<Json> = VOCABULARY.block.iter().map(|name| json!({"required": [name]})).collect();
    json!({
        "type": "object",
        "if": {"anyOf": blocks},
        "then": {"$ref": "#/$defs/block"},
        "else": {"$ref": "#/$defs/task"},
    })
}

fn block() -> Json {
    json!({
        "description": "Tasks that belong together, with their rescue.",
        "type": "object",
        "properties": properties(VOCABULARY.shared.iter().chain(VOCABULARY.block)),
        "required": ["block"],
        "additionalProperties": false,
    })
}

fn task() -> Json {
    let mut keys = properties(VOCABULARY.shared.iter().chain(VOCABULARY.task));
    let mut work: Vec<String> = Vec::new();
    for kind in KINDS {
        for name in kind.aliases.iter().copied().chain([kind.name]) {
            keys.insert(name.to_owned(), json!({"$ref": format!("#/$defs/{}", kind.name)}));
            work.push(name.to_owned());
        }
    }
    for (name, description) in STATEMENTS {
        for name in both(name) {
            if !keys.contains_key(&name) {
                let mut schema = text();
                schema["type"] = json!(["string", "object"]);
                schema["description"] = json!(description);
                keys.insert(name.clone(), schema);
                work.push(name);
            }
        }
    }
    for name in ["action", "local_action"] {
        if keys.contains_key(name) {
            work.push(name.to_owned());
        }
    }
    let forms: Vec<Json> = work.iter().map(|name| json!({"required": [name]})).collect();
    json!({
        "description": "A task: one kind with its parameters, and how it is done.",
        "type": "object",
        "properties": keys,
        "patternProperties": {"^with_[a-z_]+$": {"description": "The items of a loop."}},
        "additionalProperties": false,
        "anyOf": forms,
    })
}
