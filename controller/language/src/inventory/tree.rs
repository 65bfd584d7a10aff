//! YAML and JSON inventories.
//!
//! Owns the structure: groups with `hosts`, `children` and `vars`. Must not know YAML syntax. Invariant: input that
//! does not fit the structure is an error with its place, and is never skipped.

use super::draft::{Draft, GroupId};
use super::ini::{cycle, hosts_of, set_group_var};
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::yaml::{Node, Value};

const KEYS: [&str; 3] = ["hosts", "children", "vars"];

/// Reads a parsed file, whose root is a mapping of groups, into `draft`.
pub(super) fn read(draft: &mut Draft, root: &Node) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    let groups = root.expect_map("an inventory")?;
    if let Some((key, plugin)) = root.entry("plugin")
        && !matches!(plugin.value, Value::Null | Value::Map(_))
    {
        let name = plugin.scalar_text().unwrap_or_default();
        return Err(Diagnostic::error(format!("the inventory plugin `{name}` is not supported"))
            .at(&key.span)
            .label("this file configures a plugin, it lists no hosts")
            .help(match crate::diagnostic::suggest(&name, ["constructed", "ansible.builtin.constructed"]) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "use an executable script that prints the inventory as JSON (`--list`)".to_owned(),
            })
            .into());
    }
    for (name, data) in groups {
        group(draft, name, data, &mut errors);
    }
    errors.into_result(())
}

fn group(draft: &mut Draft, name: &Node, data: &Node, errors: &mut Diagnostics) -> Option<GroupId> {
    let Some(group_name) = name.as_str().filter(|name| !name.is_empty()) else {
        let mut error =
            Diagnostic::error(format!("the name of a group is a string, got {}", name.kind())).at(&name.span);
        if let Some(text) = name.scalar_text() {
            error = error.help(format!("write \"{text}\" in quotes"));
        }
        errors.push(error);
        return None;
    };
    let known = draft.group(group_name).is_some();
    let id = draft.add_group(group_name);
    let entries = match &data.value {
        Value::Null => return Some(id),
        Value::Map(entries) => entries,
        _ => {
            let mut error = data.wrong_type(&format!("the group `{group_name}`"), "a mapping");
            if let Some(key) = crate::diagnostic::suggest(group_name, KEYS).filter(|_| !known) {
                error = error.help(format!("did you mean `{key}`, inside of a group?"));
            } else {
                error = error.help("a group has the keys `hosts`, `children` and `vars`");
            }
            errors.push(error);
            return Some(id);
        }
    };
    for (key, value) in entries {
        match key.as_str() {
            Some("vars") => vars(draft, id, value, errors),
            Some("children") => {
                for (name, data) in section(value, "children", group_name, errors) {
                    if let Some(child) = group(draft, &name, &data, errors)
                        && draft.add_child(id, child).is_err()
                    {
                        errors.push(cycle(draft, id, child, &name.span));
                    }
                }
            }
            Some("hosts") => {
                for (name, data) in section(value, "hosts", group_name, errors) {
                    host(draft, id, &name, &data, errors);
                }
            }
            _ => errors.push(unknown_key(key, value, group_name)),
        }
    }
    Some(id)
}

fn unknown_key(key: &Node, value: &Node, group: &str) -> Diagnostic {
    let text = key.key_text();
    let error = Diagnostic::error(format!("unknown key `{text}` in the group `{group}`"))
        .at(&key.span)
        .label("a group has `hosts`, `children` and `vars`");
    match crate::diagnostic::did_you_mean(&text, KEYS) {
        Some(help) => error.help(help),
        None if value.as_map().is_some_and(|map| {
            map.iter().any(|(key, _)| KEYS.contains(&key.as_str().unwrap_or_default()))
        }) =>
        {
            error.help(format!("put the group `{text}` under `children:`"))
        }
        None => error.help("put variables under `vars:`, groups under `children:`"),
    }
}

/// Returns the entries under `hosts:` or `children:`; a single name is one entry.
fn section(value: &Node, what: &str, group: &str, errors: &mut Diagnostics) -> Vec<(Node, Node)> {
    match &value.value {
        Value::Null => Vec::new(),
        Value::Map(entries) => entries.clone(),
        Value::Str(_) => vec![(value.clone(), Node { value: Value::Null, span: value.span.clone() })],
        _ => {
            let mut error = value.wrong_type(&format!("`{what}` of the group `{group}`"), "a mapping");
            if value.as_seq().is_some() {
                error = error.help("write every name as a key: `name:`, without a `-`");
            }
            errors.push(error);
            Vec::new()
        }
    }
}

fn vars(draft: &mut Draft, group: GroupId, value: &Node, errors: &mut Diagnostics) {
    match &value.value {
        Value::Null => {}
        Value::Map(entries) => {
            for (key, value) in entries {
                if let Err(error) = set_group_var(draft, group, &key.key_text(), value.to_json(), &value.span)
                {
                    errors.push(*error);
                }
            }
        }
        _ => errors.push(value.wrong_type("`vars`", "a mapping")),
    }
}

fn host(draft: &mut Draft, group: GroupId, name: &Node, data: &Node, errors: &mut Diagnostics) {
    let Some(text) = name.as_str() else {
        let mut error =
            Diagnostic::error(format!("the name of a host is a string, got {}", name.kind())).at(&name.span);
        if let Some(text) = name.scalar_text() {
            error = error.help(format!("write \"{text}\" in quotes"));
        }
        errors.push(error);
        return;
    };
    let hosts = match hosts_of(text, &name.span) {
        Ok(hosts) => hosts,
        Err(error) => {
            errors.push(*error);
            return;
        }
    };
    let vars = match &data.value {
        Value::Map(entries) => entries,
        _ if data.is_falsy() => &[][..],
        _ => {
            let mut error = data.wrong_type(&format!("the host `{text}`"), "a mapping of variables");
            if let Some(address) = data.as_str().filter(|text| super::address::parse_address(text).is_some())
            {
                error = error.help(format!("for an address, write `ansible_host: {address}` below it"));
            }
            errors.push(error);
            return;
        }
    };
    let vars: Vec<(String, serde_json::Value, &Span)> =
        vars.iter().map(|(key, value)| (key.key_text(), value.to_json(), &value.span)).collect();
    let at = &name.span;
    for name in &hosts.names {
        let host = draft.add_host(name, group, hosts.port, at);
        if let Some(host) = draft.hosts.get_mut(host) {
            for (key, value, place) in &vars {
                host.vars.insert(key.clone(), value.clone());
                host.places.note(key, place);
            }
        }
    }
}
