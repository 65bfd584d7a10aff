//! `group_vars/` and `host_vars/`.
//!
//! Owns which files apply to a group or host, and how they are read. Must not know how variables of several groups
//! are merged. Invariant: a file that is not a mapping is an error; an empty one is ignored.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::load::read_file;
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span, looks_secret};
use crate::vault::{self, Keyring};
use crate::yaml;

/// Endings of variable files in the order tried; only the first that exists is read.
const ENDINGS: [&str; 4] = ["", ".yml", ".yaml", ".json"];

/// The variable files beside one source or playbook.
#[derive(Clone, Debug)]
pub(super) struct VarFiles {
    groups: Folder,
    hosts: Folder,
}

impl VarFiles {
    /// Lists the variable files in `base`, the directory of an inventory source or of the playbook.
    pub(super) fn beside(base: &Path) -> Self {
        Self { groups: Folder::open(base.join("group_vars")), hosts: Folder::open(base.join("host_vars")) }
    }

    pub(super) fn group(&self, name: &str, keyring: &Keyring) -> Result<Map<String, Value>, Diagnostics> {
        self.groups.vars(name, keyring)
    }

    pub(super) fn host(&self, name: &str, keyring: &Keyring) -> Result<Map<String, Value>, Diagnostics> {
        self.hosts.vars(name, keyring)
    }

    /// Returns the place where a file of the group sets a variable. The file is read again; `None` if it is not plain
    /// text.
    pub(super) fn group_place(&self, name: &str, key: &str) -> Option<Span> {
        self.groups.place(name, key)
    }

    pub(super) fn host_place(&self, name: &str, key: &str) -> Option<Span> {
        self.hosts.place(name, key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.names.is_empty() && self.hosts.names.is_empty()
    }
}

#[derive(Clone, Debug)]
struct Folder {
    path: PathBuf,
    /// One listing, instead of four look-ups for each of thousands of hosts.
    names: HashSet<String>,
}

impl Folder {
    fn open(path: PathBuf) -> Self {
        let names = std::fs::read_dir(&path)
            .map(|entries| {
                entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
            })
            .unwrap_or_default();
        Self { path, names }
    }

    fn vars(&self, name: &str, keyring: &Keyring) -> Result<Map<String, Value>, Diagnostics> {
        let mut vars = Map::new();
        let mut errors = Diagnostics::new();
        for file in self.files(name) {
            if let Some(more) = errors.absorb(read_vars(&file, keyring)) {
                vars.extend(more);
            }
        }
        errors.into_result(vars)
    }

    fn place(&self, name: &str, key: &str) -> Option<Span> {
        self.files(name).iter().rev().find_map(|file| {
            let root = yaml::parse_source(&read_file(file).ok()?).ok()?;
            root.get(key).map(|value| value.span.clone())
        })
    }

    fn files(&self, name: &str) -> Vec<PathBuf> {
        // A host name may look like a path (`/chroot`), which must not lead out of the folder.
        if self.names.is_empty() || name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Vec::new();
        }
        for ending in ENDINGS {
            let file = format!("{name}{ending}");
            let path = self.path.join(&file);
            // Names in the listing are checked too: a dangling link is not a file.
            if !(self.names.contains(&file) || file.contains('/')) || matches!(path.try_exists(), Ok(false)) {
                continue;
            }
            return if path.is_dir() { files_below(&path) } else { vec![path] };
        }
        Vec::new()
    }
}

/// Returns all variable files in a directory and its subdirectories, sorted by name.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    names.sort();
    let mut found = Vec::new();
    for name in names.iter().filter(|name| !name.starts_with('.') && !name.ends_with('~')) {
        let path = directory.join(name);
        let ending = name.rfind('.').filter(|at| *at > 0).and_then(|at| name.get(at..)).unwrap_or_default();
        if path.is_dir() {
            if ending.is_empty() {
                found.extend(files_below(&path));
            }
        } else if ENDINGS.contains(&ending) && !matches!(path.try_exists(), Ok(false)) {
            found.push(path);
        }
    }
    found
}

/// Reads a file of variables: a YAML or JSON mapping. If it is encrypted as a whole, its values are marked as secret.
pub fn read_vars(path: &Path, keyring: &Keyring) -> Result<Map<String, Value>, Diagnostics> {
    let mut source = read_file(path)?;
    let encrypted = vault::is_encrypted(source.text());
    if encrypted {
        source = keyring.open_file(&source)?;
    } else if path.file_stem().and_then(|stem| stem.to_str()).is_some_and(looks_secret) {
        source = SourceFile::secret(source.name(), source.text());
    }
    let vars = vars_of(&source, keyring)?;
    if !encrypted {
        return Ok(vars);
    }
    Ok(vars.into_iter().map(|(name, value)| (name, vault::sealed(value))).collect())
}

/// Reads variables of the command line, from a file or inline. Encrypted values are decrypted and marked as secret.
///
/// # Errors
/// If the text is no YAML or no mapping of names to values, or no password opens a value.
pub fn given_vars(source: &Arc<SourceFile>, keyring: &Keyring) -> Result<Map<String, Value>, Diagnostics> {
    let encrypted = vault::is_encrypted(source.text());
    let source = &if encrypted { keyring.open_file(source)? } else { Arc::clone(source) };
    let root = yaml::parse_source(source)?;
    keyring.note(&root);
    let mut value = root.to_json();
    keyring.reveal(&mut value)?;
    match value {
        Value::Object(map) if encrypted => {
            Ok(map.into_iter().map(|(name, value)| (name, vault::sealed(value))).collect())
        }
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(Diagnostic::error(format!("{} is not a mapping of names to values", source.name())).into()),
    }
}

fn vars_of(source: &Arc<SourceFile>, keyring: &Keyring) -> Result<Map<String, Value>, Diagnostics> {
    let root = yaml::parse_source(source)?;
    keyring.note(&root);
    match root.to_json() {
        Value::Object(map) if root.as_map().is_some() => Ok(map),
        _ if root.is_falsy() => Ok(Map::new()),
        _ => Err(Diagnostic::error(format!("a file of variables holds a mapping, got {}", root.kind()))
            .at(&root.span)
            .help("write `name: value` lines")
            .into()),
    }
}
