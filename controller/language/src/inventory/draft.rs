//! Hosts, groups and their relations while sources are being read.
//!
//! Owns the rules of Ansible's inventory data: the order of hosts, the members of `all` and `ungrouped`, the depth of
//! a group. Must not know files or syntax. Invariants: the group graph has no cycle; a group lists a host once.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::HostName;
use super::address::parse_address;
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::visible::{is_hidden, visible};

pub(super) type GroupId = usize;
pub(super) type HostId = usize;

pub(super) const ALL: GroupId = 0;
pub(super) const UNGROUPED: GroupId = 1;

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub name: String,
    /// Hosts listed in this group itself, in order.
    pub hosts: Vec<HostId>,
    pub children: Vec<GroupId>,
    pub parents: Vec<GroupId>,
    pub vars: Map<String, Value>,
    /// Variables from the files beside the sources and the playbook, filled in when these are read.
    pub file_vars: Map<String, Value>,
    pub places: Places,
    /// `ansible_group_priority`: among groups of the same depth, the higher one wins.
    pub priority: i64,
    /// The longest path from `all` to this group.
    pub depth: usize,
    /// Hosts of this group and of all groups below it, in order.
    pub members: Vec<HostId>,
}

/// The first source that defines a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub file: String,
    pub dir: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Host {
    pub name: HostName,
    pub vars: Map<String, Value>,
    /// Groups that list this host; after [`Draft::finish`] also all groups above them.
    pub groups: Vec<GroupId>,
    pub origin: Arc<Origin>,
    pub places: Places,
}

/// The places of variables that say how a host is reached, for messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(HashMap<String, Span>);

impl Places {
    /// Records where a variable was set last.
    ///
    /// Only for variables that messages point at, because inventories are large.
    pub(super) fn note(&mut self, key: &str, place: &Span) {
        if key.starts_with("ansible_") {
            self.0.insert(key.to_owned(), place.clone());
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Span> {
        self.0.get(key)
    }
}

#[derive(Debug)]
pub(super) struct Draft {
    pub groups: Vec<Group>,
    pub group_index: HashMap<String, GroupId>,
    pub hosts: Vec<Host>,
    pub host_index: HashMap<HostName, HostId>,
    membership: HashSet<(GroupId, HostId)>,
    pub origin: Arc<Origin>,
    /// Folders of the files read so far.
    pub bases: Vec<PathBuf>,
    /// Names that hosts cannot have.
    misnamed: Diagnostics,
}

/// The error for a `child` that is above `parent` already, or is the same group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cycle;

impl Draft {
    pub(super) fn new() -> Self {
        let mut draft = Self {
            groups: Vec::new(),
            group_index: HashMap::new(),
            hosts: Vec::new(),
            host_index: HashMap::new(),
            membership: HashSet::new(),
            origin: Arc::new(Origin { file: String::new(), dir: None }),
            bases: Vec::new(),
            misnamed: Diagnostics::new(),
        };
        let all = draft.add_group("all");
        let ungrouped = draft.add_group("ungrouped");
        let _ = draft.add_child(all, ungrouped);
        draft
    }

    /// Creates a draft from groups and hosts that are complete.
    pub(super) fn again(
        (groups, group_index): (Vec<Group>, HashMap<String, GroupId>),
        (hosts, host_index): (Vec<Host>, HashMap<HostName, HostId>),
    ) -> Self {
        Self { groups, group_index, hosts, host_index, ..Self::new() }
    }

    pub(super) fn group(&self, name: &str) -> Option<GroupId> {
        self.group_index.get(name).copied()
    }

    pub(super) fn add_group(&mut self, name: &str) -> GroupId {
        if let Some(&id) = self.group_index.get(name) {
            return id;
        }
        let id = self.groups.len();
        self.groups.push(Group {
            name: name.to_owned(),
            hosts: Vec::new(),
            children: Vec::new(),
            parents: Vec::new(),
            vars: Map::new(),
            file_vars: Map::new(),
            places: Places::default(),
            priority: 1,
            depth: 0,
            members: Vec::new(),
        });
        self.group_index.insert(name.to_owned(), id);
        id
    }

    /// Adds a host to a group. Port and place are used only where the host is named for the first time.
    pub(super) fn add_host(&mut self, name: &str, group: GroupId, port: Option<u32>, place: &Span) -> HostId {
        let id = match self.host_index.get(name) {
            Some(&id) => id,
            None => {
                self.misnamed.0.extend(misnamed(name, place));
                let id = self.hosts.len();
                let shared: HostName = Arc::from(name);
                let mut vars = Map::new();
                // Ansible takes port 0 for no port.
                if let Some(port) = port.filter(|port| *port > 0) {
                    vars.insert("ansible_port".to_owned(), port.into());
                }
                let origin = Arc::clone(&self.origin);
                self.hosts.push(Host {
                    name: Arc::clone(&shared),
                    vars,
                    groups: Vec::new(),
                    origin,
                    places: Places::default(),
                });
                self.host_index.insert(shared, id);
                id
            }
        };
        self.join(group, id);
        id
    }

    pub(super) fn join(&mut self, group: GroupId, host: HostId) {
        if self.membership.insert((group, host))
            && let (Some(group_data), Some(host_data)) =
                (self.groups.get_mut(group), self.hosts.get_mut(host))
        {
            group_data.hosts.push(host);
            host_data.groups.push(group);
        }
    }

    pub(super) fn add_child(&mut self, parent: GroupId, child: GroupId) -> Result<(), Cycle> {
        // Every group is below `all`, so nothing can be above it.
        if child == ALL || parent == child || self.ancestors(parent).contains(&child) {
            return Err(Cycle);
        }
        if self.groups.get(parent).is_some_and(|group| group.children.contains(&child)) {
            return Ok(());
        }
        if let Some(group) = self.groups.get_mut(parent) {
            group.children.push(child);
        }
        if let Some(group) = self.groups.get_mut(child) {
            group.parents.push(parent);
        }
        Ok(())
    }

    /// Returns an error for each host that no pattern could select, or whose name is ambiguous where it is shown.
    pub(super) fn names_without_a_pattern(&mut self) -> Diagnostics {
        std::mem::take(&mut self.misnamed)
    }

    /// Returns all groups above `group`.
    pub(super) fn ancestors(&self, group: GroupId) -> HashSet<GroupId> {
        let mut found = HashSet::new();
        let mut open = vec![group];
        while let Some(next) = open.pop() {
            for &parent in self.groups.get(next).map(|group| group.parents.as_slice()).unwrap_or_default() {
                if found.insert(parent) {
                    open.push(parent);
                }
            }
        }
        found
    }

    /// Applies the rules that need all sources.
    pub(super) fn finish(&mut self) {
        for id in 0..self.groups.len() {
            if id != ALL && self.groups.get(id).is_some_and(|group| group.parents.is_empty()) {
                let _ = self.add_child(ALL, id);
            }
        }
        let mut leave = HashSet::new();
        let mut join = Vec::new();
        for (id, host) in self.hosts.iter().enumerate() {
            let placed = host.groups.iter().any(|group| *group != ALL && *group != UNGROUPED);
            let ungrouped = host.groups.contains(&UNGROUPED);
            if ungrouped && placed {
                leave.insert(id);
            } else if !ungrouped && !placed {
                join.push(id);
            }
        }
        if let Some(group) = self.groups.get_mut(UNGROUPED) {
            group.hosts.retain(|host| !leave.contains(host));
        }
        for id in leave {
            if let Some(host) = self.hosts.get_mut(id) {
                host.groups.retain(|group| *group != UNGROUPED);
            }
        }
        for id in join {
            self.join(UNGROUPED, id);
        }
        self.set_depths();
        self.set_members();
        self.add_ancestors();
    }

    fn set_depths(&mut self) {
        for (group, depth) in self.depths().into_iter().enumerate() {
            if let Some(group) = self.groups.get_mut(group) {
                group.depth = depth;
            }
        }
    }

    /// Returns for each group the longest path to it from a group without parents.
    pub(super) fn depths(&self) -> Vec<usize> {
        let mut depths = vec![0usize; self.groups.len()];
        let mut waiting: Vec<usize> = self.groups.iter().map(|group| group.parents.len()).collect();
        let mut ready: Vec<GroupId> =
            (0..self.groups.len()).filter(|id| waiting.get(*id).is_some_and(|count| *count == 0)).collect();
        while let Some(id) = ready.pop() {
            let Some(group) = self.groups.get(id) else { continue };
            let below = depths.get(id).map_or(1, |depth| depth + 1);
            for &child in &group.children {
                if let Some(depth) = depths.get_mut(child) {
                    *depth = below.max(*depth);
                }
                if let Some(count) = waiting.get_mut(child) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        ready.push(child);
                    }
                }
            }
        }
        depths
    }

    fn set_members(&mut self) {
        let mut stamp_host = vec![usize::MAX; self.hosts.len()];
        let mut stamp_group = vec![usize::MAX; self.groups.len()];
        for id in 0..self.groups.len() {
            let mut members = Vec::new();
            let mut level = vec![id];
            while !level.is_empty() {
                let mut next = Vec::new();
                for &group in &level {
                    let Some(group) = self.groups.get(group) else { continue };
                    for &host in &group.hosts {
                        if let Some(stamp) = stamp_host.get_mut(host)
                            && *stamp != id
                        {
                            *stamp = id;
                            members.push(host);
                        }
                    }
                    for &child in &group.children {
                        if let Some(stamp) = stamp_group.get_mut(child)
                            && *stamp != id
                        {
                            *stamp = id;
                            next.push(child);
                        }
                    }
                }
                level = next;
            }
            if let Some(group) = self.groups.get_mut(id) {
                group.members = members;
            }
        }
    }

    fn add_ancestors(&mut self) {
        let above: Vec<HashSet<GroupId>> = (0..self.groups.len()).map(|id| self.ancestors(id)).collect();
        let groups = &self.groups;
        let key =
            |id: &GroupId| groups.get(*id).map(|group| (group.depth, group.priority, group.name.as_str()));
        // Thousands of hosts share a few lists of groups.
        let mut known: HashMap<Vec<GroupId>, Vec<GroupId>> = HashMap::new();
        for host in &mut self.hosts {
            let direct = std::mem::take(&mut host.groups);
            host.groups = match known.get(&direct) {
                Some(groups) => groups.clone(),
                None => {
                    let mut all: HashSet<GroupId> = direct.iter().copied().collect();
                    all.extend(direct.iter().flat_map(|group| above.get(*group).into_iter().flatten()));
                    let mut sorted: Vec<GroupId> = all.into_iter().collect();
                    sorted.sort_by(|a, b| key(a).cmp(&key(b)));
                    known.insert(direct, sorted.clone());
                    sorted
                }
            };
        }
    }
}

/// Returns the error for a host name that is not allowed.
fn misnamed(name: &str, place: &Span) -> Option<Diagnostic> {
    let why = why_no_name(name)?;
    let error = Diagnostic::error(format!("`{}` is no name for a host: {why}", visible(name))).at(place);
    Some(error.help("give it another name, and what it connects to as `ansible_host`"))
}

/// Says why a pattern, a command line or a screen cannot hold a host name.
fn why_no_name(name: &str) -> Option<&'static str> {
    if name.chars().any(is_hidden) {
        return Some("it has characters that are not seen, or that change how others are");
    }
    if name.contains(char::is_whitespace) {
        return Some("it has a blank");
    }
    if name.contains([',', '[', ']']) {
        return Some("to a pattern, commas and brackets separate and number names");
    }
    if name.contains(':') && parse_address(name).is_none() {
        return Some("to a pattern, `:` separates names");
    }
    name.starts_with(['!', '&', '~', '@', '-'])
        .then_some("to a pattern or a command line, its first character means something")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::SourceFile;

    #[test]
    fn depth_is_the_longest_way_from_all() {
        let mut draft = Draft::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| draft.add_group(name));
        draft.add_child(a, b).unwrap();
        draft.add_child(a, c).unwrap();
        draft.add_child(b, c).unwrap();
        draft.finish();
        assert_eq!([ALL, UNGROUPED, a, b, c].map(|id| draft.groups[id].depth), [0, 1, 1, 2, 3]);
    }

    #[test]
    fn cycles_are_refused() {
        let mut draft = Draft::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| draft.add_group(name));
        draft.add_child(a, b).unwrap();
        draft.add_child(b, c).unwrap();
        assert_eq!(draft.add_child(c, a), Err(Cycle));
        assert_eq!(draft.add_child(a, a), Err(Cycle));
        assert_eq!(draft.add_child(a, ALL), Err(Cycle));
    }

    #[test]
    fn hosts_without_a_group_are_ungrouped() {
        let mut draft = Draft::new();
        let a = draft.add_group("a");
        let place = Span::new(&SourceFile::new("hosts", "x y"), 1, 1, 1);
        draft.add_host("x", ALL, None, &place);
        draft.add_host("y", UNGROUPED, Some(22), &place);
        draft.add_host("y", a, Some(33), &place);
        draft.finish();
        assert_eq!(draft.groups[UNGROUPED].hosts, [0]);
        assert_eq!(draft.groups[ALL].members, [0, 1]);
        assert_eq!(draft.hosts[1].vars["ansible_port"], 22);
        assert_eq!(draft.hosts[1].groups, [ALL, a]);
    }
}
