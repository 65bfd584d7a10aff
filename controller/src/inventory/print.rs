//! What `gpufleet inventory` and `gpufleet hosts` print; the same as `ansible-inventory` prints.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::draft::{ALL, GroupId, HostId};
use super::model::Inventory;
use super::python::{json_text, str_of};
use crate::diagnostic::{Diagnostic, Diagnostics, did_you_mean};

/// Variables that are not part of the inventory's own data.
const INTERNAL: [&str; 32] = [
    "ansible_async_path",
    "ansible_collection_name",
    "ansible_config_file",
    "ansible_dependent_role_names",
    "ansible_diff_mode",
    "ansible_facts",
    "ansible_forks",
    "ansible_inventory_sources",
    "ansible_limit",
    "ansible_play_batch",
    "ansible_play_hosts",
    "ansible_play_hosts_all",
    "ansible_play_role_names",
    "ansible_playbook_python",
    "ansible_role_name",
    "ansible_role_names",
    "ansible_run_tags",
    "ansible_skip_tags",
    "ansible_verbosity",
    "ansible_version",
    "inventory_dir",
    "inventory_file",
    "inventory_hostname",
    "inventory_hostname_short",
    "groups",
    "group_names",
    "hostvars",
    "playbook_dir",
    "play_hosts",
    "role_name",
    "role_path",
    "role_uuid",
];

impl Inventory {
    /// The document of `ansible-inventory --list`; a limit leaves fewer hosts in it.
    pub fn list_json(&self, limit: Option<&str>) -> Result<Value, Diagnostics> {
        let chosen = self.select_some("all", None, limit)?;
        let chosen: HashSet<HostId> =
            chosen.iter().filter_map(|name| self.host_index.get(name).copied()).collect();
        let mut document = Map::new();
        self.list_group(ALL, &chosen, &mut HashSet::new(), &mut document);
        let mut host_vars = Map::new();
        for host in chosen.iter().filter_map(|id| self.hosts.get(*id)) {
            let vars = self.own_vars(&host.name);
            if !vars.is_empty() {
                host_vars.insert(host.name.to_string(), Value::Object(vars));
            }
        }
        document.insert("_meta".to_owned(), json!({"hostvars": host_vars, "profile": "inventory_legacy"}));
        Ok(Value::Object(document))
    }

    /// [`Inventory::list_json`] as text: sorted keys, four spaces.
    pub fn list_text(&self, limit: Option<&str>) -> Result<String, Diagnostics> {
        self.list_json(limit).map(|document| json_text(&document))
    }

    /// The variables of one host, as `ansible-inventory --host` gives them.
    pub fn host_json(&self, host: &str) -> Result<Value, Diagnostics> {
        let hosts = self.select(host, None)?;
        let [host] = hosts.as_slice() else {
            return Err(Diagnostic::error(format!("`{host}` is not one host but {}", hosts.len())).into());
        };
        let mut vars = Value::Object(self.own_vars(host));
        unwrap_unsafe(&mut vars);
        Ok(vars)
    }

    /// [`Inventory::host_json`] as text.
    pub fn host_text(&self, host: &str) -> Result<String, Diagnostics> {
        self.host_json(host).map(|document| json_text(&document))
    }

    /// The tree of `ansible-inventory --graph`, from `group` down.
    pub fn graph_text(&self, group: &str, vars: bool) -> Result<String, Diagnostics> {
        let Some(&id) = self.group_index.get(group) else {
            let error = Diagnostic::error(format!("there is no group `{group}`"));
            let names = self.groups.iter().map(|group| group.name.as_str());
            return Err(match did_you_mean(group, names) {
                Some(help) => error.help(help),
                None => error.help("the graph begins at a group, for example `all`"),
            }
            .into());
        };
        let mut lines = Vec::new();
        self.graph_group(id, 0, vars, &mut lines);
        Ok(lines.join("\n"))
    }

    /// One host a line, in the order of the pattern.
    pub fn hosts_text(&self, pattern: &str, limit: Option<&str>) -> Result<String, Diagnostics> {
        Ok(self.select(pattern, limit)?.join("\n"))
    }

    fn own_vars(&self, host: &str) -> Map<String, Value> {
        let mut vars = self.host_vars(host).map(super::HostVars::merged).unwrap_or_default();
        vars.retain(|name, _| !INTERNAL.contains(&name.as_str()));
        vars
    }

    fn list_group(
        &self,
        id: GroupId,
        chosen: &HashSet<HostId>,
        seen: &mut HashSet<GroupId>,
        out: &mut Map<String, Value>,
    ) {
        let Some(group) = self.groups.get(id) else { return };
        let mut entry = Map::new();
        if id != ALL {
            let hosts: Vec<Value> = group
                .hosts
                .iter()
                .filter(|host| chosen.contains(*host))
                .filter_map(|host| self.name(*host))
                .map(|name| Value::from(&*name))
                .collect();
            if !hosts.is_empty() {
                entry.insert("hosts".to_owned(), hosts.into());
            }
        }
        let mut children = Vec::new();
        for &child in &group.children {
            children.extend(self.groups.get(child).map(|group| Value::from(group.name.as_str())));
            if seen.insert(child) {
                self.list_group(child, chosen, seen, out);
            }
        }
        if !children.is_empty() {
            entry.insert("children".to_owned(), children.into());
        }
        if !entry.is_empty() {
            out.insert(group.name.clone(), Value::Object(entry));
        }
    }

    fn graph_group(&self, id: GroupId, depth: usize, vars: bool, lines: &mut Vec<String>) {
        let Some(group) = self.groups.get(id) else { return };
        lines.push(graph_line(&format!("@{}:", group.name), depth));
        for &child in &group.children {
            self.graph_group(child, depth + 1, vars, lines);
        }
        if id != ALL {
            for host in group.hosts.iter().filter_map(|host| self.name(*host)) {
                lines.push(graph_line(&host, depth + 1));
                if vars {
                    graph_vars(self.own_vars(&host), depth + 2, lines);
                }
            }
        }
        if vars {
            graph_vars(self.graph_group_vars(id), depth + 1, lines);
        }
    }

    /// The variables of a group itself: from the sources, then from the files beside them.
    fn graph_group_vars(&self, id: GroupId) -> Map<String, Value> {
        let Some(group) = self.groups.get(id) else { return Map::new() };
        let mut vars = group.vars.clone();
        vars.extend(group.file_vars.iter().map(|(name, value)| (name.clone(), value.clone())));
        if group.priority != 1 {
            vars.insert("ansible_group_priority".to_owned(), group.priority.into());
        }
        vars.retain(|name, _| !INTERNAL.contains(&name.as_str()));
        vars
    }
}

fn graph_line(text: &str, depth: usize) -> String {
    if depth == 0 { text.to_owned() } else { format!("{}--{text}", "  |".repeat(depth)) }
}

fn graph_vars(mut vars: Map<String, Value>, depth: usize, lines: &mut Vec<String>) {
    vars.values_mut().for_each(unwrap_unsafe);
    let mut entries: Vec<(String, Value)> = vars.into_iter().collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    lines.extend(
        entries.iter().map(|(name, value)| graph_line(&format!("{{{name} = {}}}", str_of(value)), depth)),
    );
}

/// Replaces what marks a string as not to be templated by the string.
fn unwrap_unsafe(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let (1, Some(text)) = (map.len(), map.get("__ansible_unsafe")) {
                *value = text.clone();
            } else {
                map.values_mut().for_each(unwrap_unsafe);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(unwrap_unsafe),
        _ => {}
    }
}
