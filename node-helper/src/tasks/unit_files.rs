//! Whether systemd has loaded the unit files on disk.
//!
//! `NeedDaemonReload` misses the first drop-in in a new folder: systemd looks for folders only when it starts and at
//! `daemon-reload`, so that a restart would use the old settings (measured with systemd 252). So the drop-ins on disk
//! are compared with those that it has loaded.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use crate::{
    declare::{Node, Trouble},
    world::Entry,
};

/// The properties to read from systemd.
pub const PROPERTIES: &str = "Id,Names,LoadState,NeedDaemonReload,DropInPaths,FragmentPath";

/// Folders of unit files; of files with the same name, the first folder's wins (systemd.unit(5)).
const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Where systemd looks for drop-ins; of files with the same name, the first folder's wins. Source: systemd.unit(5), "Unit File
/// Load Path".
const LOAD_PATH: [&str; 12] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
    "/etc/systemd/system.attached",
];

/// Types of units that are queried by name.
const KINDS: [&str; 9] =
    ["service", "socket", "timer", "target", "path", "mount", "automount", "swap", "slice"];

/// Names of the drop-ins on disk, by folder name without `.d`.
pub struct DropIns(BTreeMap<String, BTreeSet<String>>);

/// Returns the folders, without `.d`, in which systemd looks for a unit's drop-ins: its own, its template's, one for
/// each prefix that ends with a dash, and its type's.
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

/// Returns all names of a unit: systemd looks for drop-ins of each alias.
pub fn names_of(properties: &HashMap<String, String>) -> BTreeSet<String> {
    let of = |name: &str| properties.get(name).map_or("", String::as_str).split_whitespace();
    of("Id").chain(of("Names")).map(str::to_owned).collect()
}

/// Returns the drop-ins of a unit, given by all its names, in the order in which systemd reads them: later ones win.
///
/// # Errors
/// If a folder cannot be read.
pub fn in_order(node: &Node<'_>, names: &BTreeSet<String>) -> Result<Vec<PathBuf>, Trouble> {
    let (mut own, mut of_type) = (Vec::new(), Vec::new());
    for name in names {
        let mut folders = folders_of(name);
        of_type.extend(folders.pop());
        // Longer prefixes are more special.
        folders.sort_by_key(|folder| (!folder.ends_with(name.as_str()), std::cmp::Reverse(folder.len())));
        own.extend(folders);
    }
    let mut found: BTreeMap<String, Option<PathBuf>> = BTreeMap::new();
    for folders in [own, of_type] {
        for (base, folder) in
            LOAD_PATH.iter().flat_map(|base| folders.iter().map(move |folder| (base, folder)))
        {
            let below = node.roots.path(base).join(format!("{folder}.d"));
            for file in node.world.names(&below)? {
                if !file.ends_with(".conf") || file.starts_with('.') {
                    continue;
                }
                let path = below.join(&file);
                // A link to /dev/null masks files of that name in later folders.
                let counts = matches!(node.world.follow_anywhere(&path)?.1, Entry::File { .. });
                found.entry(file).or_insert(counts.then_some(path));
            }
        }
    }
    Ok(found.into_values().flatten().collect())
}

impl DropIns {
    /// Lists the drop-ins of a unit, given by all its names, or of all units; assumed ones are included.
    ///
    /// What cannot be read is left out: one odd file must not fail every task of the node, and `NeedDaemonReload` still
    /// reports changes of files that systemd has read.
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
                    // systemd ignores hidden files (conf-files.c).
                    if !file.ends_with(".conf") || file.starts_with('.') {
                        continue;
                    }
                    // Follows any link, because the file is only reported, and systemd reads it as well.
                    let Ok((_, entry)) = node.world.follow_anywhere(&below.join(&file)) else { continue };
                    let counts = matches!(entry, Entry::File { .. });
                    // A link to /dev/null masks files of that name in later folders.
                    found.entry(name.clone()).or_default().entry(file).or_insert(counts);
                }
            }
        }
        let counting = |files: BTreeMap<String, bool>| {
            files.into_iter().filter_map(|(file, counts)| counts.then_some(file)).collect::<BTreeSet<_>>()
        };
        Self(found.into_iter().map(|(name, files)| (name, counting(files))).collect())
    }

    /// Returns units that have a folder of their own.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        let named = |name: &&String| {
            name.rsplit_once('.')
                .is_some_and(|(base, kind)| !base.ends_with(['-', '@']) && KINDS.contains(&kind))
        };
        self.0.keys().filter(named).map(String::as_str)
    }

    /// Whether the files on disk differ from those that systemd has loaded for a unit. `properties` are those of
    /// [`PROPERTIES`], `unit` the result of [`names_of`].
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
        // systemd reads no drop-ins for a unit without a file, or for a masked one.
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
