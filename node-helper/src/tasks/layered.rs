//! Configuration in several folders, where of files with the same name the first folder's counts.

use std::collections::BTreeMap;

use crate::{
    declare::{Node, Trouble},
    world::Entry,
};

/// Returns the paths that count, as declared, in the order of their names. A link to /dev/null masks what comes after it.
///
/// # Errors
/// If a folder or a link cannot be read.
pub fn files(node: &Node<'_>, folders: &[&str], ending: &str) -> Result<Vec<String>, Trouble> {
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    for folder in folders {
        for name in node.world.names(&node.roots.path(folder))? {
            if name.ends_with(ending) {
                by_name.entry(name.clone()).or_insert_with(|| format!("{folder}/{name}"));
            }
        }
    }
    let mut found = Vec::new();
    for path in by_name.into_values() {
        if matches!(node.world.follow(&node.roots.path(&path))?.1, Entry::File { .. }) {
            found.push(path);
        }
    }
    Ok(found)
}
