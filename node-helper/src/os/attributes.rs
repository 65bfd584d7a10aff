//! Owner, mode, size and type of a path, under the names that Ansible's results use.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use serde_json::{Map, Value, json};

use super::{mode, users::Users};
use crate::world::{Content, Entry, World};

/// Returns the attributes; an empty map if the path is missing or cannot be read.
pub fn of(path: &Path, world: &World, users: &Users) -> Map<String, Value> {
    let mut data = Map::new();
    let Ok(entry) = world.entry(path) else { return data };
    let Some(owned) = entry.owned() else { return data };
    let meta = fs::symlink_metadata(path).ok();
    data.insert("uid".to_owned(), json!(owned.uid));
    data.insert("gid".to_owned(), json!(owned.gid));
    data.insert("owner".to_owned(), json!(users.user_name(owned.uid).unwrap_or(owned.uid.to_string())));
    data.insert("group".to_owned(), json!(users.group_name(owned.gid).unwrap_or(owned.gid.to_string())));
    data.insert("mode".to_owned(), json!(mode::octal(owned.mode)));
    let size = match &entry {
        Entry::File { content: Content::Known(bytes), .. } => Some(bytes.len() as u64),
        Entry::File { content: Content::Digest { size, .. }, .. } => Some(*size),
        Entry::File { content: Content::On(place), .. } => fs::metadata(place).ok().map(|meta| meta.size()),
        _ => meta.as_ref().map(MetadataExt::size),
    };
    if let Some(size) = size {
        data.insert("size".to_owned(), json!(size));
    }
    let several = meta.is_some_and(|meta| meta.is_file() && meta.nlink() > 1);
    let state = match &entry {
        Entry::File { .. } if several => "hard",
        Entry::Directory { .. } => "directory",
        Entry::Link { .. } => "link",
        _ => "file",
    };
    data.insert("state".to_owned(), json!(state));
    data
}
