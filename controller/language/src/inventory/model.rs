//! The loaded inventory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::address::is_ip;
use super::draft::{ALL, Draft, Group, GroupId, Host, HostId, Origin, Places};
use super::load::{LoadOptions, load};
use super::var_files::VarFiles;
use crate::diagnostic::{Diagnostics, Span};
use crate::vault::{self, Keyring};

/// The name of a host, cheap to clone.
pub type HostName = Arc<str>;

/// Names of the controller itself, unless a source defines them.
pub(super) const LOCALHOST: [&str; 3] = ["127.0.0.1", "localhost", "::1"];

type Vars = Map<String, Value>;

/// The inventory variables of one host: those of its groups (shared by all hosts of the same groups), and its own.
///
/// Values are as written: strings with `{{ }}` are not rendered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostVars {
    shared: Arc<Vars>,
    own: Vars,
}

impl HostVars {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.own.get(name).or_else(|| self.shared.get(name))
    }

    /// Returns all names and values, each name once.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        let shared = self.shared.iter().filter(|(name, _)| !self.own.contains_key(*name));
        shared.chain(&self.own).map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the variables of the host's groups; hosts of the same groups share the same map.
    pub fn shared(&self) -> &Arc<Map<String, Value>> {
        &self.shared
    }

    /// Returns the variables of the host itself, which win over those of its groups.
    pub fn own(&self) -> &Map<String, Value> {
        &self.own
    }

    /// Returns all variables in one map.
    pub fn merged(&self) -> Map<String, Value> {
        let mut all = (*self.shared).clone();
        all.extend(self.own.iter().map(|(name, value)| (name.clone(), value.clone())));
        all
    }
}

/// Returns the part before the first dot; an address stays whole.
pub(super) fn short_name(host: &str) -> &str {
    if is_ip(host) { host } else { host.split('.').next().unwrap_or(host) }
}

/// Hosts, groups and variables, complete and immutable.
#[derive(Debug)]
pub struct Inventory {
    pub(super) groups: Vec<Group>,
    pub(super) group_index: HashMap<String, GroupId>,
    pub(super) hosts: Vec<Host>,
    pub(super) host_index: HashMap<HostName, HostId>,
    pub(super) allow_empty: bool,
    /// Variables of the command line, which `--list` and `--host` show too.
    pub(super) extra_vars: Map<String, Value>,
    keyring: Arc<Keyring>,
    beside_sources: Vec<VarFiles>,
    /// The folder of the playbook whose variable files were read.
    playbook_dir: Option<PathBuf>,
    pub(super) vars: Vec<HostVars>,
    implicit: Vec<(Host, HostVars)>,
    groups_json: Arc<Value>,
}

impl Inventory {
    /// Loads all sources.
    ///
    /// # Errors
    /// Every mistake found, with file, line and column if it has one.
    pub fn load(options: &LoadOptions) -> Result<Self, Diagnostics> {
        load(options)
    }

    /// Returns the inventory as a playbook in another folder sees it: with that folder's `group_vars/` and
    /// `host_vars/` instead of those read now. `None` if neither folder has any. No source is read again.
    ///
    /// # Errors
    /// If a variable file cannot be read.
    pub fn seen_from(&self, playbook_dir: &Path) -> Result<Option<Self>, Diagnostics> {
        let there = VarFiles::beside(playbook_dir);
        let here = self.playbook_dir.as_deref().map(VarFiles::beside);
        let is_here = self.playbook_dir.as_deref() == Some(playbook_dir);
        if is_here || there.is_empty() && here.is_none_or(|here| here.is_empty()) {
            return Ok(None);
        }
        let options = LoadOptions {
            playbook_dir: Some(playbook_dir.to_owned()),
            allow_empty: self.allow_empty,
            extra_vars: self.extra_vars.clone(),
            keyring: Arc::clone(&self.keyring),
            ..LoadOptions::default()
        };
        let draft = Draft::again(
            (self.groups.clone(), self.group_index.clone()),
            (self.hosts.clone(), self.host_index.clone()),
        );
        Self::build(draft, self.beside_sources.clone(), Some(there), &options).map(Some)
    }

    /// Merges the variables; the loader calls it once.
    pub(super) fn build(
        draft: Draft,
        beside_sources: Vec<VarFiles>,
        beside_playbook: Option<VarFiles>,
        options: &LoadOptions,
    ) -> Result<Self, Diagnostics> {
        let mut errors = Diagnostics::new();
        let keyring = &*options.keyring;
        let group_files = |files: &VarFiles, errors: &mut Diagnostics| -> Vec<Vars> {
            let vars = draft.groups.iter().map(|group| errors.absorb(files.group(&group.name, keyring)));
            vars.map(Option::unwrap_or_default).collect()
        };
        let from_sources: Vec<Vec<Vars>> =
            beside_sources.iter().map(|files| group_files(files, &mut errors)).collect();
        let from_playbook = beside_playbook.as_ref().map(|files| group_files(files, &mut errors));

        let merge = |groups: &[GroupId]| -> Arc<Vars> {
            let mut vars = Vars::new();
            let mut add =
                |more: &Vars| vars.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
            let below_all = || groups.iter().copied().filter(|id| *id != ALL);
            draft.groups.first().into_iter().for_each(|all| add(&all.vars));
            below_all().filter_map(|id| draft.groups.get(id)).for_each(|group| add(&group.vars));
            from_sources.iter().filter_map(|files| files.get(ALL)).for_each(&mut add);
            from_playbook.iter().filter_map(|files| files.get(ALL)).for_each(&mut add);
            for files in from_sources.iter().chain(&from_playbook) {
                below_all().filter_map(|id| files.get(id)).for_each(&mut add);
            }
            Arc::new(vars)
        };
        let mut host_files: Vec<&VarFiles> = beside_sources.iter().chain(&beside_playbook).collect();
        host_files.retain(|files| !files.is_empty());
        let own = |host: &Host, errors: &mut Diagnostics| -> Vars {
            let mut vars = host.vars.clone();
            for files in &host_files {
                if let Some(more) = errors.absorb(files.host(&host.name, keyring)) {
                    vars.extend(more);
                }
            }
            vars
        };
        let mut known: HashMap<&[GroupId], Arc<Vars>> = HashMap::new();
        let mut vars = Vec::with_capacity(draft.hosts.len());
        for host in &draft.hosts {
            let shared = Arc::clone(known.entry(&host.groups).or_insert_with(|| merge(&host.groups)));
            vars.push(HostVars { shared, own: own(host, &mut errors) });
        }
        let mut implicit = Vec::new();
        if !LOCALHOST.iter().any(|name| draft.host_index.contains_key(*name)) {
            for name in LOCALHOST {
                let host = Host {
                    name: Arc::from(name),
                    vars: [("ansible_connection".to_owned(), json!("local"))].into_iter().collect(),
                    groups: Vec::new(),
                    origin: Arc::new(Origin { file: String::new(), dir: None }),
                    places: Places::default(),
                };
                let vars = HostVars { shared: merge(&[ALL]), own: own(&host, &mut errors) };
                implicit.push((host, vars));
            }
        }
        let groups_json = draft.groups.iter().map(|group| {
            let members = group.members.iter().filter_map(|host| draft.hosts.get(*host));
            (group.name.clone(), members.map(|host| Value::from(&*host.name)).collect())
        });
        let groups_json = Arc::new(Value::Object(groups_json.collect()));
        drop(known);
        // A file is read for every set of groups and through several sources; each mistake is reported once.
        let mut seen = HashSet::new();
        errors.0.retain(|error| seen.insert(format!("{:?} {}", error.span, error.message)));
        let mut groups = draft.groups;
        for (id, group) in groups.iter_mut().enumerate() {
            group.file_vars = from_sources
                .iter()
                .chain(from_playbook.iter().filter(|_| !options.playbook_dir_implied))
                .filter_map(|files| files.get(id))
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
        }
        errors.into_result(Self {
            groups,
            group_index: draft.group_index,
            hosts: draft.hosts,
            host_index: draft.host_index,
            allow_empty: options.allow_empty,
            extra_vars: options.extra_vars.clone(),
            keyring: Arc::clone(&options.keyring),
            beside_sources,
            playbook_dir: options.playbook_dir.clone(),
            vars,
            implicit,
            groups_json,
        })
    }

    /// Returns all hosts, in inventory order (the order of `all`).
    pub fn hosts(&self) -> Vec<HostName> {
        self.members(ALL)
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Whether a source defines this host.
    pub fn contains(&self, host: &str) -> bool {
        self.host_index.contains_key(host)
    }

    /// Returns every group with all hosts in it and below it, in inventory order, `all` and `ungrouped` first.
    pub fn groups(&self) -> impl Iterator<Item = (&str, Vec<HostName>)> {
        self.groups.iter().enumerate().map(|(id, group)| (group.name.as_str(), self.members(id)))
    }

    /// Returns the hosts of a group and of the groups below it.
    pub fn group(&self, name: &str) -> Option<Vec<HostName>> {
        self.group_index.get(name).map(|id| self.members(*id))
    }

    /// Returns the magic variable `groups`, which is the same value for all hosts.
    pub fn groups_json(&self) -> &Arc<Value> {
        &self.groups_json
    }

    /// Returns the magic variable `group_names`: the groups of a host, sorted, without `all`.
    pub fn groups_of(&self, host: &str) -> Vec<&str> {
        let groups = self.host(host).map(|(host, _)| host.groups.as_slice()).unwrap_or_default();
        let mut names: Vec<&str> = groups
            .iter()
            .filter(|id| **id != ALL)
            .filter_map(|id| self.groups.get(*id).map(|group| group.name.as_str()))
            .collect();
        names.sort_unstable();
        names
    }

    /// Returns the variables that sources and variable files give to a host; `None` for an unknown host.
    ///
    /// `localhost`, `127.0.0.1` and `::1` exist without being defined, with `ansible_connection: local`.
    pub fn host_vars(&self, host: &str) -> Option<&HostVars> {
        self.host(host).map(|(_, vars)| vars)
    }

    /// Returns the place of the effective value of a host's `ansible_…` variable, if known.
    pub fn place_of(&self, host: &str, name: &str) -> Option<Span> {
        let (data, _) = self.host(host)?;
        let there = self.playbook_dir.as_deref().map(VarFiles::beside);
        let files = || there.iter().chain(self.beside_sources.iter().rev());
        let below_all =
            || data.groups.iter().rev().filter(|id| **id != ALL).filter_map(|id| self.groups.get(*id));
        let all = || self.groups.get(ALL);
        // The order of `merge` reversed: files about `all` rank below files about other groups.
        files()
            .find_map(|files| files.host_place(host, name))
            .or_else(|| data.places.get(name).cloned())
            .or_else(|| {
                files().find_map(|files| below_all().find_map(|group| files.group_place(&group.name, name)))
            })
            .or_else(|| files().find_map(|files| files.group_place(&all()?.name, name)))
            .or_else(|| below_all().chain(all()).find_map(|group| group.places.get(name).cloned()))
    }

    /// Decrypts the `!vault` strings among the variables of these hosts, and of no others.
    ///
    /// # Errors
    /// For each string that no password opens, once and with its place.
    pub fn unlock(&mut self, hosts: &[String]) -> Result<(), Diagnostics> {
        let mut errors = Diagnostics::new();
        // The old maps are kept alive, because maps are told apart by their addresses.
        let mut known: Vec<(Arc<Vars>, Arc<Vars>)> = Vec::new();
        let mut places: HashMap<*const Vars, usize> = HashMap::new();
        for host in hosts {
            let vars = match self.host_index.get(host.as_str()) {
                Some(&id) => self.vars.get_mut(id),
                None => self.implicit.iter_mut().find(|(other, _)| *other.name == **host).map(|(_, v)| v),
            };
            let Some(vars) = vars else { continue };
            for value in vars.own.values_mut().filter(|value| vault::holds_locked(value)) {
                errors.absorb(self.keyring.reveal(value));
            }
            let place = *places.entry(Arc::as_ptr(&vars.shared)).or_insert_with(|| {
                let mut open = Arc::clone(&vars.shared);
                if open.values().any(vault::holds_locked) {
                    for value in Arc::make_mut(&mut open).values_mut() {
                        errors.absorb(self.keyring.reveal(value));
                    }
                }
                known.push((Arc::clone(&vars.shared), open));
                known.len() - 1
            });
            if let Some((_, open)) = known.get(place) {
                vars.shared = Arc::clone(open);
            }
        }
        let mut seen = HashSet::new();
        errors.0.retain(|error| seen.insert(format!("{:?} {}", error.span, error.message)));
        errors.into_result(())
    }

    /// Returns all variables of a host, decrypted; values that no password opens are left out.
    pub fn opened_vars(&self, host: &str) -> Map<String, Value> {
        let mut vars = self.host_vars(host).map(HostVars::merged).unwrap_or_default();
        vars.retain(|_, value| !vault::holds_locked(value) || self.keyring.reveal(value).is_ok());
        vars
    }

    /// Decrypts one value.
    ///
    /// # Errors
    /// If no password opens a string in it.
    pub fn reveal(&self, value: &mut Value) -> Result<(), Diagnostics> {
        self.keyring.reveal(value)
    }

    /// Returns the magic variables of a host: `inventory_hostname`, `inventory_hostname_short`, `group_names`,
    /// `inventory_file`, `inventory_dir`. `groups` is the same for all hosts: [`Inventory::groups_json`].
    pub fn magic_vars(&self, host: &str) -> Map<String, Value> {
        let mut vars = Map::new();
        let Some((data, _)) = self.host(host) else { return vars };
        vars.insert("inventory_hostname".to_owned(), host.into());
        vars.insert("inventory_hostname_short".to_owned(), short_name(host).into());
        vars.insert("group_names".to_owned(), self.groups_of(host).into());
        if !data.origin.file.is_empty() {
            vars.insert("inventory_file".to_owned(), data.origin.file.clone().into());
            vars.insert("inventory_dir".to_owned(), data.origin.dir.clone().into());
        }
        vars
    }

    /// Returns the variables of a group from the sources, without variable files and without its parents' variables.
    pub fn group_vars(&self, group: &str) -> Option<&Map<String, Value>> {
        self.group_index.get(group).and_then(|id| self.groups.get(*id)).map(|group| &group.vars)
    }

    pub(super) fn members(&self, group: GroupId) -> Vec<HostName> {
        let members = self.groups.get(group).map(|group| group.members.as_slice()).unwrap_or_default();
        members.iter().filter_map(|id| self.name(*id)).collect()
    }

    pub(super) fn name(&self, host: HostId) -> Option<HostName> {
        self.hosts.get(host).map(|host| Arc::clone(&host.name))
    }

    fn host(&self, name: &str) -> Option<(&Host, &HostVars)> {
        if let Some(&id) = self.host_index.get(name) {
            return Some((self.hosts.get(id)?, self.vars.get(id)?));
        }
        self.implicit.iter().find(|(host, _)| &*host.name == name).map(|(host, vars)| (host, vars))
    }

    /// Names of the controller, unless a source defines them.
    pub const NAMES_OF_THIS_MACHINE: [&str; 3] = LOCALHOST;

    /// Whether a name is one of the controller, unless a source defines it.
    pub fn is_this_machine(name: &str) -> bool {
        LOCALHOST.contains(&name)
    }

    /// Returns the host that a name of the controller stands for: itself, or the one of these names that a source
    /// defines.
    pub(super) fn localhost(&self, name: &str) -> Option<HostName> {
        if !LOCALHOST.contains(&name) {
            return None;
        }
        let defined = self.hosts.iter().find(|host| LOCALHOST.contains(&&*host.name));
        let implicit = || self.implicit.iter().map(|(host, _)| host).find(|host| &*host.name == name);
        defined.or_else(implicit).map(|host| Arc::clone(&host.name))
    }

    /// Returns the number of hosts of each group, for messages.
    pub fn group_sizes(&self) -> BTreeMap<&str, usize> {
        self.groups.iter().map(|group| (group.name.as_str(), group.members.len())).collect()
    }
}
