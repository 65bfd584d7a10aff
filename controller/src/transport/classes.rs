//! Groups aliases that `ssh_config` treats alike, so that `ssh -G` runs once for a thousand nodes.
//!
//! Reads nothing but `Host` patterns and `Include`s. If it does not fully understand a file (`Match`, canonical
//! names, unusual includes), there are no groups, and `ssh -G` runs for every alias.

use std::path::{Path, PathBuf};

use super::known_hosts::wildcard;

/// The `Host` lines of all files, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostClasses {
    patterns: Vec<Vec<String>>,
}

impl HostClasses {
    /// Reads the files; `None` if aliases cannot be grouped.
    pub(crate) fn read(files: &[(PathBuf, PathBuf)]) -> Option<Self> {
        let mut classes = Self { patterns: Vec::new() };
        for (file, include_base) in files {
            classes.add(file, include_base, 0)?;
        }
        Some(classes)
    }

    /// Returns which `Host` lines match the alias: equal results mean equal settings.
    pub(crate) fn of(&self, alias: &str) -> Vec<bool> {
        let holds = |patterns: &Vec<String>| {
            let mut positive = false;
            for pattern in patterns {
                match pattern.strip_prefix('!') {
                    Some(negated) if wildcard(negated, alias) => return false,
                    None if wildcard(pattern, alias) => positive = true,
                    _ => {}
                }
            }
            positive
        };
        self.patterns.iter().map(holds).collect()
    }

    fn add(&mut self, file: &Path, include_base: &Path, depth: usize) -> Option<()> {
        if depth > 8 {
            return None;
        }
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(()),
            Err(_) => return None,
        };
        for line in text.lines() {
            let line = line.trim();
            let Some((keyword, rest)) = line.split_once(|c: char| c.is_whitespace() || c == '=') else {
                continue;
            };
            let rest = rest.trim().trim_start_matches('=').trim();
            match keyword.to_ascii_lowercase().as_str() {
                "host" => self
                    .patterns
                    .push(rest.split_whitespace().map(|p| p.trim_matches('"').to_owned()).collect()),
                "match" => return None,
                "canonicalizehostname" if !rest.eq_ignore_ascii_case("no") => return None,
                "include" => {
                    for pattern in rest.split_whitespace() {
                        for file in included(pattern, include_base)? {
                            self.add(&file, include_base, depth + 1)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

/// Returns the files of an `Include` pattern, in OpenSSH's order.
fn included(pattern: &str, base: &Path) -> Option<Vec<PathBuf>> {
    if pattern.contains(['~', '$', '%', '"', '[', '{']) {
        return None;
    }
    let path = base.join(pattern);
    let name = path.file_name()?.to_str()?.to_owned();
    let folder = path.parent()?;
    if folder.to_str()?.contains(['*', '?']) {
        return None;
    }
    if !name.contains(['*', '?']) {
        return Some(vec![path]);
    }
    let mut found: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(_) => return None,
    };
    found.retain(|path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|file| wildcard(&name, file) && (name.starts_with('.') || !file.starts_with('.')))
    });
    found.sort();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Option<HostClasses> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        HostClasses::read(&[(dir.path().join("config"), dir.path().to_owned())])
    }

    #[test]
    fn aliases_with_the_same_host_lines_are_alike() {
        let classes = read(&[
            ("config", "Include conf.d/*.conf\nHost gpu* !gpu9*\n User root\nHost=*\n"),
            ("conf.d/a.conf", "Host gpu001\n Port 2\n"),
            ("conf.d/ignored", "Match all\n"),
        ])
        .unwrap();
        assert_eq!(classes.of("gpu002"), classes.of("gpu003"));
        assert_ne!(classes.of("gpu001"), classes.of("gpu003"));
        assert_ne!(classes.of("gpu901"), classes.of("gpu003"));
        assert_ne!(classes.of("cpu"), classes.of("gpu003"));
    }

    #[test]
    fn what_is_not_understood_gives_up() {
        for text in ["Match host x\n", "CanonicalizeHostname yes\n", "Include ~/x\n", "Include */x\n"] {
            assert_eq!(read(&[("config", text)]), None, "{text}");
        }
        assert!(read(&[]).is_some());
    }
}
