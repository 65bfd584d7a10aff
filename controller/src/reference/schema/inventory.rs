//! The schema of inventories in YAML.

use serde_json::{Value as Json, json};

use super::DIALECT;

/// Returns the schema of a YAML inventory: groups of hosts with variables.
pub fn inventory_schema() -> Json {
    let variable = |kind: Json, text: &str| {
        let mut schema = kind;
        schema["description"] = json!(text);
        schema
    };
    let text = || json!({"type": ["string", "number", "boolean"]});
    let number = || json!({"type": ["integer", "string"]});
    let host = json!({
        "description": "Variables of the host.",
        "type": ["object", "null"],
        "properties": {
            "ansible_host": variable(text(), "Name or address to connect to."),
            "ansible_port": variable(number(), "Port of its SSH server."),
            "ansible_user": variable(text(), "User to log in as."),
            "ansible_connection": variable(text(), "`ssh`, or `local` for this machine."),
            "ansible_become": variable(json!({"type": ["boolean", "string"]}), "Whether tasks act as root unless they say otherwise."),
            "ansible_become_user": variable(text(), "User to become."),
            "ansible_ssh_private_key_file": variable(text(), "Private key to log in with."),
            "ansible_ssh_common_args": variable(text(), "Options of OpenSSH, such as `-o ProxyJump=login1`."),
        },
    });
    json!({
        "$schema": DIALECT,
        "$id": "https://gpufleet.invalid/schema/inventory.schema.json",
        "title": "A gpufleet inventory",
        "type": ["object", "null"],
        "if": {"required": ["plugin"]},
        "then": {
            "properties": {
                "plugin": {"type": "string", "description": "`constructed`, or `ansible.builtin.constructed`."},
            },
        },
        "else": {"additionalProperties": {"$ref": "#/$defs/group"}},
        "$defs": {
            "host": host,
            "group": {
                "description": "A group: its hosts, the variables they share, and the groups below it.",
                "type": ["object", "null"],
                "properties": {
                    "hosts": {
                        "description": "Hosts of the group; `gpu[001:100]` stands for a hundred.",
                        "anyOf": [
                            {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/host"}},
                            {"type": "string"},
                        ],
                    },
                    "vars": {"description": "Variables of all its hosts.", "type": ["object", "null"]},
                    "children": {
                        "description": "Groups below it.",
                        "type": ["object", "null"],
                        "additionalProperties": {"$ref": "#/$defs/group"},
                    },
                },
                "additionalProperties": false,
            },
        },
    })
}
