//! Globs over paths, component by component. Only a dot matches a leading dot.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use gpufleet_protocol::glob::Glob;

/// Largest number of paths that a glob returns; no caller needs more than one.
const LIMIT: usize = 4096;

/// The syntax of a component: [`Glob::new`] for Ansible's Python, [`Glob::of_shell`] for systemd.
pub type Dialect = fn(&str) -> Glob;

/// One component of a pattern.
struct Part(Glob, bool);

impl Part {
    fn new(text: &str, dialect: Dialect) -> Self {
        Self(dialect(text), text.starts_with('.'))
    }

    fn matches(&self, name: &str) -> bool {
        let Self(glob, hidden) = self;
        (*hidden || !name.starts_with('.')) && glob.matches(name)
    }
}

/// Returns the existing paths that match an absolute pattern; unreadable folders match nothing.
pub fn expand(pattern: &Path, dialect: Dialect) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for component in pattern.components() {
        let Component::Normal(part) = component else { continue };
        let Some(text) = part.to_str().filter(|text| Glob::is_glob(text)) else {
            for path in &mut found {
                path.push(part);
            }
            continue;
        };
        let part = Part::new(text, dialect);
        let mut next = Vec::new();
        for folder in found {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                if entry.file_name().to_str().is_some_and(|name| part.matches(name)) && next.len() < LIMIT {
                    next.push(entry.path());
                }
            }
        }
        found = next;
    }
    found.retain(|path| fs::symlink_metadata(path).is_ok());
    found.sort();
    found
}

/// Whether a path matches a pattern, component by component.
pub fn path_matches(pattern: &Path, path: &Path, dialect: Dialect) -> bool {
    let (mut wanted, mut had) = (pattern.components(), path.components());
    loop {
        match (wanted.next(), had.next()) {
            (None, None) => return true,
            (Some(Component::Normal(pattern)), Some(Component::Normal(name))) => {
                let fits = match (pattern.to_str(), name.to_str()) {
                    (Some(pattern), Some(name)) if Glob::is_glob(pattern) => {
                        Part::new(pattern, dialect).matches(name)
                    }
                    _ => pattern == name,
                };
                if !fits {
                    return false;
                }
            }
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_is_matched_by_a_dot() {
        let matches = |pattern: &str, name: &str| Part::new(pattern, Glob::new).matches(name);
        assert!(!matches("*", ".hidden") && !matches("[.]x", ".x") && matches(".*", ".hidden"));
    }

    #[test]
    fn expansion_walks_folders() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/one.conf", "b/two.conf", "b/three.txt"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = expand(&dir.path().join("*/*.conf"), Glob::new);
        assert_eq!(found, [dir.path().join("a/one.conf"), dir.path().join("b/two.conf")]);
        assert!(expand(&dir.path().join("*/none*"), Glob::new).is_empty());
        assert!(path_matches(Path::new("/x/*/c"), Path::new("/x/b/c"), Glob::new));
        assert!(!path_matches(Path::new("/x/*"), Path::new("/x/b/c"), Glob::new));
    }
}
