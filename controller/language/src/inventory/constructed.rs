//! Groups and variables computed from others, by files with `plugin: constructed`.
//!
//! Owns what such a file may contain, and how its expressions become variables, groups and members. Must not know
//! where the hosts come from. Invariants: only hosts and variables of the sources before this one are used. An
//! expression that cannot be read is an error. One that fails on a host is skipped for that host, unless the file is
//! strict or the expression uses something that gpufleet never does.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::draft::{ALL, Draft, GroupId, HostId};
use super::ini::cycle;
use super::load::read_file;
use super::model::short_name;
use super::python::str_of;
use super::var_files::VarFiles;
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::template::{self, Dict, Scope, TemplateError, Truth, Value};
use crate::vault::Keyring;
use crate::yaml::{self, Node, Value as Yaml};

const KEYS: [&str; 9] = [
    "plugin",
    "strict",
    "compose",
    "groups",
    "keyed_groups",
    "leading_separator",
    "use_vars_plugins",
    "use_extra_vars",
    "facts",
];
/// Variables that Ansible sets for every host.
const MAGIC: [&str; 5] =
    ["inventory_hostname", "inventory_hostname_short", "group_names", "inventory_file", "inventory_dir"];
const KEYED: [&str; 6] =
    ["key", "prefix", "separator", "parent_group", "default_value", "trailing_separator"];

/// The context of such a file.
pub(super) struct Surroundings<'a> {
    /// The folder of the file.
    pub folder: &'a Path,
    /// Folders of the sources that were read before.
    pub before: &'a [PathBuf],
    pub extra_vars: &'a Map<String, Json>,
    pub keyring: &'a Keyring,
}

/// Whether this is the name of the one plugin that gpufleet has.
pub(super) fn is_constructed(name: &str) -> bool {
    matches!(name, "constructed" | "ansible.builtin.constructed" | "ansible.legacy.constructed")
}

/// Reads the file and applies it to every host known so far.
pub(super) fn read(
    draft: &mut Draft,
    root: &Node,
    surroundings: &Surroundings<'_>,
) -> Result<(), Diagnostics> {
    let config = Config::read(root, surroundings.folder)?;
    let files = if config.use_vars_plugins {
        surroundings.before.iter().map(|base| VarFiles::beside(base)).collect()
    } else {
        Vec::new()
    };
    let mut run = Run {
        config: &config,
        files,
        surroundings,
        depths: draft.depths(),
        errors: Diagnostics::new(),
        told: HashSet::new(),
    };
    for host in 0..draft.hosts.len() {
        run.host(draft, host);
    }
    run.errors.into_result(())
}

#[derive(Default)]
struct Config {
    strict: bool,
    use_vars_plugins: bool,
    use_extra_vars: bool,
    no_leading_separator: bool,
    compose: Vec<Composed>,
    groups: Vec<(String, Text)>,
    keyed: Vec<Keyed>,
    /// The output of `gpufleet facts --format json`, by host.
    facts: Map<String, Json>,
}

/// A computed variable.
struct Composed {
    name: String,
    text: Text,
    /// The variables that it reads, without magic ones.
    reads: Vec<String>,
}

/// An expression or template and its place.
#[derive(Clone)]
struct Text {
    text: String,
    span: Span,
}

struct Keyed {
    key: Text,
    prefix: String,
    separator: String,
    parent: Option<Text>,
    default: Option<String>,
    drop_empty_separator: bool,
}

impl Text {
    fn of(node: &Node, what: &str) -> Result<Self, Diagnostics> {
        let text = node.expect_str(what)?.to_owned();
        Ok(Self { text, span: node.span.clone() })
    }

    /// Reads a condition, which may be a plain `true` too.
    fn condition(node: &Node, what: &str) -> Result<Self, Diagnostics> {
        match node.value {
            Yaml::Bool(value) => Ok(Self { text: value.to_string(), span: node.span.clone() }),
            _ => Self::of(node, what),
        }
    }

    /// Returns the part of the text that an error is about.
    fn place(&self, error: &TemplateError) -> Span {
        let Some(range) = error.range() else { return self.span.clone() };
        let chars = |end: usize| self.text.get(..end).map_or(0, |text| text.chars().count());
        let (start, end) = (chars(range.start), chars(range.end));
        let quotes = (self.span.length as usize).saturating_sub(self.text.chars().count());
        match quotes {
            0 | 2 => self.span.part(start + quotes / 2, end.saturating_sub(start).max(1)),
            _ => self.span.clone(),
        }
    }

    fn error(&self, error: &TemplateError) -> Diagnostic {
        let diagnostic = Diagnostic::error(error.message()).at(&self.place(error));
        match error.suggestion() {
            Some(name) => diagnostic.help(format!("did you mean `{name}`?")),
            None => diagnostic,
        }
    }
}

impl Config {
    fn read(root: &Node, folder: &Path) -> Result<Self, Diagnostics> {
        let mut errors = root.refuse_unknown_keys("a file with `plugin: constructed`", &KEYS);
        let mut config = Self::default();
        let flag = |key: &str, errors: &mut Diagnostics| {
            let node = root.get(key).filter(|node| !node.is_null())?;
            if node.as_str() == Some("") { None } else { errors.absorb(boolean(node, key)) }
        };
        config.strict = flag("strict", &mut errors).unwrap_or(false);
        config.use_vars_plugins = flag("use_vars_plugins", &mut errors).unwrap_or(false);
        config.use_extra_vars = flag("use_extra_vars", &mut errors).unwrap_or(false);
        config.no_leading_separator = flag("leading_separator", &mut errors) == Some(false);
        config.compose = expressions(root, "compose", Text::of, &mut errors)
            .into_iter()
            .map(|(name, text)| {
                let mut reads = template::inspect_expression(&text.text).unwrap_or_default().names;
                reads.retain(|name| !MAGIC.contains(&name.as_str()));
                Composed { name, text, reads }
            })
            .collect();
        config.groups = expressions(root, "groups", Text::condition, &mut errors);
        if let Some(node) = root.get("keyed_groups").filter(|node| !node.is_null()) {
            for entry in errors.absorb(node.expect_seq("`keyed_groups`")).unwrap_or_default() {
                config.keyed.extend(Keyed::read(entry, &mut errors));
            }
        }
        if let Some(node) = root.get("facts") {
            let read = node.expect_str("`facts`").and_then(|name| read_facts(&folder.join(name), node));
            config.facts = errors.absorb(read).unwrap_or_default();
        }
        errors.into_result(config)
    }
}

fn boolean(node: &Node, key: &str) -> Result<bool, Diagnostics> {
    match node.as_str().map(str::to_ascii_lowercase).as_deref() {
        Some("yes" | "true" | "on" | "y" | "t" | "1") => Ok(true),
        Some("no" | "false" | "off" | "n" | "f" | "0") => Ok(false),
        _ => node.expect_bool(&format!("`{key}`")),
    }
}

/// Reads the entries of `compose` or `groups`, and checks all that can be checked without a host.
fn expressions(
    root: &Node,
    key: &str,
    read: fn(&Node, &str) -> Result<Text, Diagnostics>,
    errors: &mut Diagnostics,
) -> Vec<(String, Text)> {
    let Some(node) = root.get(key).filter(|node| !node.is_null()) else { return Vec::new() };
    let entries = errors.absorb(node.expect_map(&format!("`{key}`"))).unwrap_or_default();
    let mut found = Vec::new();
    for (name, value) in entries {
        let name = name.key_text();
        if let Some(text) = errors.absorb(read(value, &format!("the expression of `{name}`")))
            && check(&text, errors)
        {
            found.push((name, text));
        }
    }
    found
}

fn check(text: &Text, errors: &mut Diagnostics) -> bool {
    match template::inspect_expression(&text.text) {
        Ok(_) => true,
        Err(error) => {
            let mut error = text.error(&error);
            if text.text.contains("{{") {
                error = error.help("this is an expression already: write it without `{{ }}`");
            }
            errors.push(error);
            false
        }
    }
}

impl Keyed {
    fn read(node: &Node, errors: &mut Diagnostics) -> Option<Self> {
        errors.absorb(node.expect_map("an entry of `keyed_groups`"))?;
        let unknown = node.refuse_unknown_keys("an entry of `keyed_groups`", &KEYED);
        let known = !unknown.has_errors();
        errors.append(unknown);
        let Some(key) = node.get("key") else {
            errors.push(
                Diagnostic::error("an entry of `keyed_groups` needs a `key`")
                    .at(&node.span)
                    .help("an expression whose value names the group, for example `key: gpu_model`"),
            );
            return None;
        };
        let key = errors.absorb(Text::of(key, "`key`"))?;
        let text = |name: &str| node.get(name).map(|node| node.scalar_text().unwrap_or_default());
        let default = node.get("default_value").filter(|node| !node.is_null()).and_then(Node::scalar_text);
        let trailing = node.get("trailing_separator").filter(|node| !node.is_null());
        if let (Some(trailing), Some(_)) = (trailing, &default) {
            errors.push(
                Diagnostic::error("`default_value` and `trailing_separator` exclude each other")
                    .at(&trailing.span),
            );
        }
        let trailing = trailing.and_then(|node| errors.absorb(boolean(node, "trailing_separator")));
        let parent = node.get("parent_group").filter(|node| !node.is_null());
        let parent = parent.and_then(|node| errors.absorb(Text::of(node, "`parent_group`")));
        (check(&key, errors) && known).then(|| Self {
            key,
            prefix: text("prefix").unwrap_or_default(),
            separator: text("separator").unwrap_or_else(|| "_".to_owned()),
            parent,
            default,
            drop_empty_separator: trailing == Some(false),
        })
    }
}

fn read_facts(path: &Path, node: &Node) -> Result<Map<String, Json>, Diagnostics> {
    if !path.is_file() {
        return Err(Diagnostic::error(format!("there is no file `{}`", path.display()))
            .at(&node.span)
            .help("write it with `gpufleet facts all --format json`")
            .into());
    }
    let root = yaml::parse_source(&read_file(path)?)?;
    root.expect_map("a file of facts")?;
    match root.to_json() {
        Json::Object(map) => Ok(map),
        _ => Ok(Map::new()),
    }
}

/// Replaces characters that variables may not have in a group name, as Ansible does.
fn safe_name(name: &str) -> String {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let good = |(index, c): (usize, char)| word(c) && (index > 0 || !c.is_numeric());
    name.chars().enumerate().map(|(index, c)| if good((index, c)) { c } else { '_' }).collect()
}

/// Returns the strings in some variables that may be templates.
fn written_strings<'a>(names: &[String], layers: &[&'a Map<String, Json>]) -> HashSet<&'a str> {
    let found = |name: &String| layers.iter().find_map(|layer| layer.get(name));
    let mut open: Vec<&Json> = names.iter().filter_map(found).collect();
    let mut strings = HashSet::new();
    while let Some(value) = open.pop() {
        match value {
            Json::String(text) => {
                strings.insert(text.as_str());
            }
            Json::Array(items) => open.extend(items),
            Json::Object(map) if map.len() == 1 && map.contains_key("__ansible_unsafe") => {}
            Json::Object(map) if crate::vault::is_secret(map).is_some() => {}
            Json::Object(map) => open.extend(map.values()),
            _ => {}
        }
    }
    strings
}

/// Marks strings that an expression computed, and that no source contains, as not to be templated.
fn with_marks(value: Json, written: &HashSet<&str>) -> Json {
    match value {
        Json::String(text) if !written.contains(text.as_str()) => json!({ "__ansible_unsafe": text }),
        Json::Array(items) => items.into_iter().map(|item| with_marks(item, written)).collect(),
        Json::Object(map) if crate::vault::is_secret(&map).is_some() => Json::Object(map),
        Json::Object(map) => {
            Json::Object(map.into_iter().map(|(name, value)| (name, with_marks(value, written))).collect())
        }
        other => other,
    }
}

struct Run<'a> {
    config: &'a Config,
    files: Vec<VarFiles>,
    surroundings: &'a Surroundings<'a>,
    depths: Vec<usize>,
    errors: Diagnostics,
    /// Places of reported expressions: one that fails on thousands of hosts is reported for the first only.
    told: HashSet<String>,
}

impl Run<'_> {
    fn host(&mut self, draft: &mut Draft, host: HostId) {
        let config = self.config;
        let vars = self.variables(draft, host);
        let mut dict = self.dict(draft, host, &vars);
        if !config.compose.is_empty() {
            let scope = self.scope(Arc::clone(&dict));
            let mut layers = vec![&vars];
            if config.use_extra_vars {
                layers.insert(0, self.surroundings.extra_vars);
            }
            for Composed { name, text, reads } in &config.compose {
                let (value, secret) = template::watch(|| template::evaluate(&text.text, &scope));
                match value {
                    Ok(Value::Omit | Value::Unknown) => {}
                    Ok(value) => {
                        let value = if secret { value.sealed() } else { value };
                        let value = with_marks(value.to_marked_json(), &written_strings(reads, &layers));
                        if let Some(data) = draft.hosts.get_mut(host) {
                            data.vars.insert(name.clone(), value);
                            data.places.note(name, &text.span);
                        }
                    }
                    Err(error) => {
                        self.failed(draft, host, text, &error, &format!("the variable `{name}` is not set"))
                    }
                }
            }
            let vars = self.variables(draft, host);
            dict = self.dict(draft, host, &vars);
        }
        let scope = Scope::new(vec![Arc::clone(&dict)]);
        for (name, text) in &config.groups {
            match template::condition(&text.text, &scope) {
                Ok(Truth::True) => {
                    let group = self.group(draft, &safe_name(name));
                    draft.join(group, host);
                }
                Ok(_) => {}
                Err(error) => {
                    self.failed(
                        draft,
                        host,
                        text,
                        &error,
                        &format!("nobody knows whether it is in `{name}`"),
                    );
                }
            }
        }
        let scope = self.scope(dict);
        for keyed in &config.keyed {
            self.keyed(draft, host, keyed, &scope);
        }
    }

    fn group(&mut self, draft: &mut Draft, name: &str) -> GroupId {
        let id = draft.add_group(name);
        if self.depths.len() <= id {
            self.depths.resize(id + 1, 0);
        }
        id
    }

    fn scope(&self, dict: Arc<Dict>) -> Arc<Scope> {
        let mut layers = vec![dict];
        if self.config.use_extra_vars {
            layers.insert(0, Arc::new(Dict::trusted(self.surroundings.extra_vars)));
        }
        Scope::new(layers)
    }

    /// Returns the variables of a host at this point: those of its groups, its own, and some magic ones.
    fn variables(&self, draft: &Draft, host: HostId) -> Map<String, Json> {
        let Some(data) = draft.hosts.get(host) else { return Map::new() };
        let mut groups: Vec<GroupId> = data.groups.clone();
        for direct in &data.groups {
            groups.extend(draft.ancestors(*direct));
        }
        let key = |id: &GroupId| {
            let group = draft.groups.get(*id);
            (self.depths.get(*id).copied(), group.map(|group| (group.priority, group.name.as_str())))
        };
        groups.sort_by(|a, b| key(a).cmp(&key(b)));
        groups.dedup();
        let mut vars = Map::new();
        let mut add = |more: &Map<String, Json>| {
            vars.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        };
        let known = || groups.iter().filter_map(|id| draft.groups.get(*id));
        known().for_each(|group| add(&group.vars));
        let keyring = self.surroundings.keyring;
        for files in &self.files {
            for group in known() {
                // Errors are ignored here: the same files are read again for all groups, and reported then.
                add(&files.group(&group.name, keyring).unwrap_or_default());
            }
        }
        add(&data.vars);
        for files in &self.files {
            add(&files.host(&data.name, keyring).unwrap_or_default());
        }
        let mut names: Vec<&str> = groups
            .iter()
            .filter(|id| **id != ALL)
            .filter_map(|id| draft.groups.get(*id).map(|group| group.name.as_str()))
            .collect();
        names.sort_unstable();
        vars.insert("inventory_hostname".to_owned(), json!(&*data.name));
        vars.insert("inventory_hostname_short".to_owned(), json!(short_name(&data.name)));
        vars.insert("group_names".to_owned(), json!(names));
        vars.insert("inventory_file".to_owned(), json!(data.origin.file));
        vars.insert("inventory_dir".to_owned(), json!(data.origin.dir));
        vars
    }

    fn dict(&self, draft: &Draft, host: HostId, vars: &Map<String, Json>) -> Arc<Dict> {
        let mut dict = Dict::trusted(vars);
        let facts = draft.hosts.get(host).and_then(|data| self.config.facts.get(&*data.name));
        if let Some(facts) = facts {
            dict.insert("gpufleet_facts", Value::literal(facts));
        }
        Arc::new(dict)
    }

    fn failed(&mut self, draft: &Draft, host: HostId, text: &Text, error: &TemplateError, so: &str) {
        // A variable may be missing on some hosts on purpose; what gpufleet refuses fails on all of them.
        if self.config.strict || error.is_refusal() {
            self.refuse(draft, host, text.error(error).note(so), text);
        }
    }

    /// Reports an error once for each expression, with the first host on which it occurred.
    fn refuse(&mut self, draft: &Draft, host: HostId, error: Diagnostic, text: &Text) {
        if self.told.insert(format!("{}:{}:{}", text.span.file(), text.span.line, text.span.column)) {
            let name = draft.hosts.get(host).map_or("", |host| &host.name);
            self.errors.push(error.note(format!("for the host `{name}`")));
        }
    }

    fn keyed(&mut self, draft: &mut Draft, host: HostId, keyed: &Keyed, scope: &Arc<Scope>) {
        let value = match template::evaluate(&keyed.key.text, scope) {
            Ok(Value::Omit | Value::Unknown) => return,
            Ok(value) => value.to_json(),
            Err(error) => {
                return self.failed(draft, host, &keyed.key, &error, "no group follows from it");
            }
        };
        let parent = match &keyed.parent {
            None => None,
            Some(text) => match template::render(&text.text, scope) {
                Ok(value) => Some(value.to_text()),
                Err(error) => {
                    return self.failed(draft, host, text, &error, "no group follows from it");
                }
            },
        };
        let names = match keyed.names(&value) {
            Ok(names) => names,
            Err(message) => {
                let strict_only = matches!(message, NoNames::Empty);
                if !strict_only || self.config.strict {
                    let error = Diagnostic::error(message.to_string()).at(&keyed.key.span);
                    self.refuse(draft, host, error, &keyed.key);
                }
                return;
            }
        };
        let bare = keyed.prefix.is_empty() && self.config.no_leading_separator;
        let separator = if bare { "" } else { keyed.separator.as_str() };
        for name in names {
            let group = self.group(draft, &safe_name(&format!("{}{separator}{name}", keyed.prefix)));
            draft.join(group, host);
            let Some(parent) = parent.as_deref().filter(|parent| !parent.is_empty()) else { continue };
            let parent = self.group(draft, &safe_name(parent));
            if draft.add_child(parent, group).is_err() {
                let place = keyed.parent.as_ref().map_or(&keyed.key, |text| text);
                self.refuse(draft, host, cycle(draft, parent, group, &place.span), place);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NoNames {
    #[error("the key gives no name for a group")]
    Empty,
    #[error("the key of a group is text, a list or a mapping; use `| string`")]
    Kind,
}

impl Keyed {
    /// Returns the group names that follow from the value of the key, without prefix and separator.
    fn names(&self, value: &Json) -> Result<Vec<String>, NoNames> {
        let empty = |value: &Json| value.is_null() || value.as_str() == Some("");
        let defaulted = |value: &Json| match &self.default {
            Some(default) if empty(value) => default.clone(),
            _ => str_of(value),
        };
        match value {
            Json::Array(items) => Ok(items.iter().map(defaulted).collect()),
            Json::Object(map) => {
                let name = |(name, value): (&String, &Json)| {
                    if empty(value) && self.default.is_none() && self.drop_empty_separator {
                        return name.clone();
                    }
                    format!("{name}{}{}", self.separator, defaulted(value))
                };
                Ok(map.iter().map(name).collect())
            }
            value if empty(value) => match &self.default {
                Some(default) => Ok(vec![default.clone()]),
                None => Err(NoNames::Empty),
            },
            Json::String(text) => Ok(vec![text.clone()]),
            Json::Bool(false) => Err(NoNames::Empty),
            Json::Number(number) if number.as_f64() == Some(0.0) => Err(NoNames::Empty),
            _ => Err(NoNames::Kind),
        }
    }
}

#[cfg(test)]
mod tests;
