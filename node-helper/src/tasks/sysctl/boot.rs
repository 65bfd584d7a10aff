//! The files that systemd-sysctl reads at boot, their order, and which of them decides a kernel parameter.
//!
//! systemd's order counts, not that of `sysctl --system`: /etc/sysctl.conf is read only if a link in one of the folders
//! leads to it, at the place of that link's name (sysctl.d(5)).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use gpufleet_protocol::glob::Glob;

use super::{key_path, value::words};
use crate::{
    declare::{Node, Trouble},
    os::glob,
    world::Entry,
};

/// Folders with settings for boot; of files with the same name, the first folder's wins (sysctl.d(5)).
const FOLDERS: [&str; 5] =
    ["/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d"];

/// The meaning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Sets a path below `/proc/sys`, which may be a pattern, to a value.
    Sets(String, String),
    /// Excludes a path from patterns.
    Spares(String),
}

/// Parses one line; `None` if it sets nothing.
pub fn line(text: &str) -> Option<Line> {
    let text = text.trim();
    if text.is_empty() || text.starts_with(['#', ';']) {
        return None;
    }
    let Some((name, value)) = text.split_once('=') else {
        return text.strip_prefix('-').map(|name| Line::Spares(key_path(name.trim())));
    };
    let name = name.trim();
    Some(Line::Sets(key_path(name.strip_prefix('-').unwrap_or(name)), words(value)))
}

/// Returns the path and value that a line sets.
pub fn setting(text: &str) -> Option<(String, String)> {
    match line(text)? {
        Line::Sets(key, value) => Some((key, value)),
        Line::Spares(_) => None,
    }
}

/// Returns the value that a file sets: its last one.
pub fn value_in(text: &str, key: &str) -> Option<String> {
    text.lines().rev().filter_map(setting).find(|(name, _)| name == key).map(|(_, value)| value)
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// The file that the path leads to.
    target: PathBuf,
    lines: Vec<Line>,
}

/// All files in reading order.
#[derive(Debug)]
pub struct Boot {
    files: Vec<File>,
    /// Position of the declared file, or why it is not read.
    ours: Result<usize, String>,
}

/// Another file's setting that concerns a declared value at boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Later {
    pub path: PathBuf,
    /// The key as that file writes it.
    pub key: String,
    pub value: String,
}

impl Boot {
    /// Reads the files; `declared` counts even if it does not exist yet.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn read(node: &Node<'_>, declared: &Path) -> Result<Self, Trouble> {
        let mut by_name: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut instead = None;
        for folder in FOLDERS {
            let folder = node.roots.path(folder);
            let mut names = node.world.names(&folder)?;
            if declared.parent() == Some(&folder)
                && let Some(name) = declared.file_name().and_then(|name| name.to_str())
            {
                names.push(name.to_owned());
            }
            for name in names.into_iter().filter(|name| name.ends_with(".conf")) {
                let path = folder.join(&name);
                match by_name.get(&name) {
                    Some(first) if path == declared && *first != path => instead = Some(first.clone()),
                    Some(_) => {}
                    None => {
                        by_name.insert(name, path);
                    }
                }
            }
        }
        let mut files = Vec::new();
        for path in by_name.into_values() {
            let (target, entry) = node.world.follow(&path)?;
            // A link to /dev/null masks a file of the distribution.
            if matches!(entry, Entry::Other { .. }) || (entry == Entry::Absent && path != declared) {
                continue;
            }
            let bytes = node.world.read(&path)?.unwrap_or_default();
            let lines = String::from_utf8_lossy(&bytes).lines().filter_map(line).collect();
            files.push(File { path, target, lines });
        }
        let target = node.world.follow(declared)?.0;
        let ours = files.iter().position(|file| file.path == declared || file.target == target);
        let ours = ours.ok_or_else(|| match instead {
            Some(first) => format!("{} has the same name and takes its place", first.display()),
            None => "systemd reads files whose names end in .conf in /etc/sysctl.d, /run/sysctl.d, \
                     /usr/local/lib/sysctl.d and /usr/lib/sysctl.d"
                .to_owned(),
        });
        Ok(Self { files, ours })
    }

    /// Returns why the declared file is not read at boot, if so.
    pub fn unread(&self) -> Option<&str> {
        self.ours.as_ref().err().map(String::as_str)
    }

    fn lines(&self) -> impl DoubleEndedIterator<Item = (usize, &File, &Line)> {
        let of = |(place, file)| (place, file);
        self.files
            .iter()
            .enumerate()
            .map(of)
            .flat_map(|(place, file): (usize, &File)| file.lines.iter().map(move |line| (place, file, line)))
    }

    /// Returns the value at boot: a line with the parameter's own name beats every pattern, and of each kind the last
    /// wins.
    pub fn value(&self, key: &str) -> Option<String> {
        let named = self.lines().rev().find_map(|(_, _, line)| match line {
            Line::Sets(name, value) if name == key => Some(value.clone()),
            _ => None,
        });
        if named.is_some() || self.lines().any(|(_, _, line)| *line == Line::Spares(key.to_owned())) {
            return named;
        }
        self.lines().rev().find_map(|(_, _, line)| match line {
            Line::Sets(name, value) if matches(name, key) => Some(value.clone()),
            _ => None,
        })
    }

    /// Returns the last setting of another file that beats the declared file's line.
    pub fn overriding(&self, key: &str) -> Option<Later> {
        let ours = *self.ours.as_ref().ok()?;
        let beats = |place: usize, name: &str| match (name == key, Glob::is_glob(key)) {
            (true, _) => place > ours,
            // A parameter's own line beats a pattern at any place.
            (false, true) => place != ours && !Glob::is_glob(name) && matches(key, name),
            (false, false) => false,
        };
        self.lines().rev().find_map(|(place, file, line)| match line {
            Line::Sets(name, value) if beats(place, name) => {
                Some(Later { path: file.path.clone(), key: name.clone(), value: value.clone() })
            }
            _ => None,
        })
    }

    /// Returns a setting of another parameter in the declared file or a later one, and whether it is in that file.
    pub fn beside(&self, key: &str) -> Option<(Later, bool)> {
        let ours = *self.ours.as_ref().ok()?;
        let found = |wanted: &dyn Fn(usize) -> bool| {
            self.lines().rev().find_map(|(place, file, line)| match line {
                Line::Sets(name, value) if name == key && wanted(place) => {
                    Some(Later { path: file.path.clone(), key: name.clone(), value: value.clone() })
                }
                _ => None,
            })
        };
        let here = found(&|place| place == ours).map(|later| (later, true));
        here.or_else(|| found(&|place| place > ours).map(|later| (later, false)))
    }
}

/// Whether a pattern below `/proc/sys` matches a parameter.
fn matches(pattern: &str, key: &str) -> bool {
    Glob::is_glob(pattern) && glob::path_matches(Path::new(pattern), Path::new(key), Glob::of_shell)
}
