//! The output of `gpufleet inventory` and `gpufleet hosts`, the same as that of `ansible-inventory`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::draft::{ALL, GroupId, HostId};
use super::model::Inventory;
use super::python::{json_text, str_of};
use crate::diagnostic::{Diagnostic, Diagnostics, did_you_mean};
use crate::vault::masked;
use crate::yaml::block_text;

/// Variables that do not belong to the inventory's own data.
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
    /// Returns the document of `ansible-inventory --list`, for the hosts of a limit.
    ///
    /// `export` keeps variables where they are defined: those of groups with their groups.
    pub fn list_json(&self, limit: Option<&str>, export: bool) -> Result<Value, Diagnostics> {
        let chosen = self.chosen(limit)?;
        let mut document = Map::new();
        self.list_group(ALL, &chosen, export, &mut HashSet::new(), &mut document);
        let mut host_vars = Map::new();
        for host in chosen.iter().filter_map(|id| self.hosts.get(*id)) {
            let vars = self.shown_vars(&host.name, export);
            if !vars.is_empty() {
                host_vars.insert(host.name.to_string(), Value::Object(vars));
            }
        }
        document.insert("_meta".to_owned(), json!({"hostvars": host_vars, "profile": "inventory_legacy"}));
        Ok(Value::Object(document))
    }

    /// Returns [`Inventory::list_json`] as text with sorted keys, indented by four spaces.
    pub fn list_text(&self, limit: Option<&str>, export: bool) -> Result<String, Diagnostics> {
        self.list_json(limit, export).map(|document| json_text(&document))
    }

    /// Returns the inventory as one YAML file, as `ansible-inventory --list --yaml` writes it.
    pub fn list_yaml(&self, limit: Option<&str>, export: bool) -> Result<String, Diagnostics> {
        let chosen = self.chosen(limit)?;
        let mut seen = (HashSet::new(), HashSet::new());
        let all = self.yaml_group(ALL, &chosen, export, &mut seen);
        let document: Map<String, Value> = all.map(|all| ("all".to_owned(), all)).into_iter().collect();
        Ok(block_text(&Value::Object(document)))
    }

    fn chosen(&self, limit: Option<&str>) -> Result<HashSet<HostId>, Diagnostics> {
        let hosts = self.select_some("all", None, limit)?;
        Ok(hosts.iter().filter_map(|name| self.host_index.get(name).copied()).collect())
    }

    /// Returns the variables of one host, as `ansible-inventory --host` gives them.
    pub fn host_json(&self, host: &str, export: bool) -> Result<Value, Diagnostics> {
        let hosts = self.select(host, None)?;
        let [host] = hosts.as_slice() else {
            return Err(Diagnostic::error(format!("`{host}` is not one host but {}", hosts.len())).into());
        };
        let mut vars = Value::Object(self.shown_vars(host, export));
        unwrap_unsafe(&mut vars);
        Ok(vars)
    }

    /// Returns [`Inventory::host_json`] as text.
    pub fn host_text(&self, host: &str, export: bool) -> Result<String, Diagnostics> {
        self.host_json(host, export).map(|document| json_text(&document))
    }

    /// Returns [`Inventory::host_json`] as YAML.
    pub fn host_yaml(&self, host: &str, export: bool) -> Result<String, Diagnostics> {
        self.host_json(host, export).map(|document| block_text(&document))
    }

    /// Returns the tree of `ansible-inventory --graph`, from `group` down.
    ///
    /// `vars` adds variables; with `export`, hosts have only their own.
    pub fn graph_text(&self, group: &str, vars: bool, export: bool) -> Result<String, Diagnostics> {
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
        let vars = vars.then_some(export);
        self.graph_group(id, 0, vars, &mut lines);
        Ok(lines.join("\n"))
    }

    /// Returns the hosts of a pattern in its order, one on each line.
    pub fn hosts_text(&self, pattern: &str, limit: Option<&str>) -> Result<String, Diagnostics> {
        Ok(self.select(pattern, limit)?.join("\n"))
    }

    /// Returns all variables of a host, or only its own.
    fn shown_vars(&self, host: &str, own: bool) -> Map<String, Value> {
        let known = self.host_vars(host);
        let mut vars = if own {
            known.map(|vars| vars.own().clone()).unwrap_or_default()
        } else {
            let mut vars = known.map(super::HostVars::merged).unwrap_or_default();
            vars.extend(self.extra_vars.iter().map(|(name, value)| (name.clone(), value.clone())));
            vars
        };
        vars.retain(|name, _| !INTERNAL.contains(&name.as_str()));
        vars.into_iter().map(|(name, value)| (name, masked(value))).collect()
    }

    fn list_group(
        &self,
        id: GroupId,
        chosen: &HashSet<HostId>,
        export: bool,
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
                self.list_group(child, chosen, export, seen, out);
            }
        }
        if !children.is_empty() {
            entry.insert("children".to_owned(), children.into());
        }
        if export {
            let vars = self.shown_group_vars(id);
            if !vars.is_empty() {
                entry.insert("vars".to_owned(), Value::Object(vars));
            }
        }
        if !entry.is_empty() {
            out.insert(group.name.clone(), Value::Object(entry));
        }
    }

    /// Returns a group as in a YAML inventory; hosts and groups have their contents where they occur first.
    fn yaml_group(
        &self,
        id: GroupId,
        chosen: &HashSet<HostId>,
        export: bool,
        seen: &mut (HashSet<GroupId>, HashSet<HostId>),
    ) -> Option<Value> {
        let group = self.groups.get(id)?;
        let mut entry = Map::new();
        let mut children = Map::new();
        for &child in &group.children {
            let Some(name) = self.groups.get(child).map(|group| group.name.clone()) else { continue };
            if seen.0.contains(&child) {
                children.insert(name, json!({}));
            } else if let Some(data) = self.yaml_group(child, chosen, export, seen) {
                children.insert(name, data);
            }
            seen.0.insert(child);
        }
        if !children.is_empty() {
            entry.insert("children".to_owned(), Value::Object(children));
        }
        let mut hosts = Map::new();
        for &host in group.hosts.iter().filter(|host| id != ALL && chosen.contains(*host)) {
            let Some(name) = self.name(host) else { continue };
            let vars = if seen.1.insert(host) { self.shown_vars(&name, export) } else { Map::new() };
            hosts.insert(name.to_string(), Value::Object(vars));
        }
        if !hosts.is_empty() {
            entry.insert("hosts".to_owned(), Value::Object(hosts));
        }
        let vars = if export { self.shown_group_vars(id) } else { Map::new() };
        if !vars.is_empty() {
            entry.insert("vars".to_owned(), Value::Object(vars));
        }
        (!entry.is_empty()).then_some(Value::Object(entry))
    }

    /// Adds the lines of a group. `vars` says whether hosts show only their own variables; `None` shows none.
    fn graph_group(&self, id: GroupId, depth: usize, vars: Option<bool>, lines: &mut Vec<String>) {
        let Some(group) = self.groups.get(id) else { return };
        lines.push(graph_line(&format!("@{}:", group.name), depth));
        for &child in &group.children {
            self.graph_group(child, depth + 1, vars, lines);
        }
        if id != ALL {
            for host in group.hosts.iter().filter_map(|host| self.name(*host)) {
                lines.push(graph_line(&host, depth + 1));
                if let Some(export) = vars {
                    graph_vars(self.shown_vars(&host, export), depth + 2, lines);
                }
            }
        }
        if vars.is_some() {
            graph_vars(self.shown_group_vars(id), depth + 1, lines);
        }
    }

    /// Returns the variables of a group itself: from the sources, then from the files beside them.
    fn shown_group_vars(&self, id: GroupId) -> Map<String, Value> {
        let Some(group) = self.groups.get(id) else { return Map::new() };
        let mut vars = group.vars.clone();
        vars.extend(group.file_vars.iter().map(|(name, value)| (name.clone(), value.clone())));
        if group.priority != 1 {
            vars.insert("ansible_group_priority".to_owned(), group.priority.into());
        }
        vars.retain(|name, _| !INTERNAL.contains(&name.as_str()));
        vars.into_iter().map(|(name, value)| (name, masked(value))).collect()
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

/// Replaces a string that is marked as not to be templated by the plain string.
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
