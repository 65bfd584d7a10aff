//! Whether systemd has read the unit files that there are.
//!
//! `NeedDaemonReload` does not tell of the first drop-in in a new folder: systemd looks for folders when it starts and
//! at `daemon-reload`, and not in between, so that a restart would use the old settings (measured with systemd 252).
//! The drop-ins on disk are therefore compared with those that it has read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use crate::{declare::Node, world::Entry};

/// What systemd is asked for.
pub const PROPERTIES: &str = "Id,Names,LoadState,NeedDaemonReload,DropInPaths,FragmentPath";

/// Where unit files lie, the first wins for files of one name (systemd.unit(5)).
const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Types of units that are asked for by name.
const KINDS: [&str; 9] =
    ["service", "socket", "timer", "target", "path", "mount", "automount", "swap", "slice"];

/// Names of the drop-ins on disk, by the folder's name without `.d`.
pub struct DropIns(BTreeMap<String, BTreeSet<String>>);

/// The names of folders that systemd looks into for a unit, without `.d`: its own, its template's, those of each
/// beginning with a dash, and its type's.
fn folders_of(unit: &str) -> Vec<String> {
    let Some((name, kind)) = unit.rsplit_once('.') else { return Vec::new() };
    let mut names = vec![unit.to_owned()];
    let base = match name.split_once('@') {
        Some((template, _)) => {
            names.push(format!("{template}@.{kind}"));
            template
        }
        None => name,
    };
    let dashes = base.match_indices('-').filter_map(|(at, _)| base.get(..=at));
    names.extend(dashes.map(|prefix| format!("{prefix}.{kind}")));
    names.push(kind.to_owned());
    names
}

/// All names of a unit: systemd looks for drop-ins of each of its aliases.
pub fn names_of(properties: &HashMap<String, String>) -> BTreeSet<String> {
    let of = |name: &str| properties.get(name).map_or("", String::as_str).split_whitespace();
    of("Id").chain(of("Names")).map(str::to_owned).collect()
}

impl DropIns {
    /// Lists those of a unit, given by all its names, or of all units; assumed ones included.
    ///
    /// What cannot be read is left out: one odd file must not end every task of the node, and of what systemd reads,
    /// `NeedDaemonReload` still tells.
    pub fn read(node: &Node<'_>, unit: Option<&BTreeSet<String>>) -> Self {
        let mut found: BTreeMap<String, BTreeMap<String, bool>> = BTreeMap::new();
        for folder in FOLDERS {
            let folder = node.roots.path(folder);
            let folders: BTreeSet<String> = match unit {
                Some(names) => names.iter().flat_map(|name| folders_of(name)).collect(),
                None => {
                    let names = node.world.names(&folder).unwrap_or_default();
                    names.iter().filter_map(|name| name.strip_suffix(".d")).map(str::to_owned).collect()
                }
            };
            for name in folders {
                let below = folder.join(format!("{name}.d"));
                for file in node.world.names(&below).unwrap_or_default() {
                    // Hidden ones are none to systemd (conf-files.c).
                    if !file.ends_with(".conf") || file.starts_with('.') {
                        continue;
                    }
                    // Why wherever it leads: it is only told of, and systemd reads it as well.
                    let Ok((_, entry)) = node.world.follow_anywhere(&below.join(&file)) else { continue };
                    let counts = matches!(entry, Entry::File { .. });
                    // A link to /dev/null masks the files of that name in the folders behind.
                    found.entry(name.clone()).or_default().entry(file).or_insert(counts);
                }
            }
        }
        let counting = |files: BTreeMap<String, bool>| {
            files.into_iter().filter_map(|(file, counts)| counts.then_some(file)).collect::<BTreeSet<_>>()
        };
        Self(found.into_iter().map(|(name, files)| (name, counting(files))).collect())
    }

    /// Units that have a folder of their own.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        let named = |name: &&String| {
            name.rsplit_once('.')
                .is_some_and(|(base, kind)| !base.ends_with(['-', '@']) && KINDS.contains(&kind))
        };
        self.0.keys().filter(named).map(String::as_str)
    }

    /// Whether systemd has read other files for a unit than there are. `properties` are those of [`PROPERTIES`], `unit`
    /// is what [`names_of`] makes of them.
    pub fn are_newer(
        &self,
        node: &Node<'_>,
        unit: &BTreeSet<String>,
        properties: &HashMap<String, String>,
    ) -> bool {
        let get = |name: &str| properties.get(name).map_or("", String::as_str);
        if !node.world.has_read_units() && get("NeedDaemonReload") == "yes" {
            return true;
        }
        // Of a unit without a file, or of a masked one, systemd reads no drop-ins.
        if get("LoadState") != "loaded" {
            return false;
        }
        let read: Vec<&str> = get("DropInPaths").split_whitespace().collect();
        let assumed = |path: &str| !path.is_empty() && node.world.is_unread(&node.roots.path(path));
        if read.iter().any(|path| assumed(path)) || assumed(get("FragmentPath")) {
            return true;
        }
        let names: BTreeSet<&str> =
            read.iter().filter_map(|path| Path::new(path).file_name()?.to_str()).collect();
        let missing = |file: &String, folder: &str| {
            let unread = || {
                FOLDERS.iter().any(|base| {
                    node.world.is_unread(&node.roots.path(base).join(format!("{folder}.d")).join(file))
                })
            };
            !names.contains(file.as_str()) && (!node.world.has_read_units() || unread())
        };
        unit.iter().flat_map(|name| folders_of(name)).any(|folder| {
            self.0.get(&folder).is_some_and(|files| files.iter().any(|file| missing(file, &folder)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_that_systemd_looks_into_is_known() {
        assert_eq!(folders_of("a.service"), ["a.service", "service"]);
        assert_eq!(
            folders_of("a-b-c@x.service"),
            ["a-b-c@x.service", "a-b-c@.service", "a-.service", "a-b-.service", "service"]
        );
    }
}
