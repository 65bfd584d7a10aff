//! Files of systemd-tmpfiles, as far as they write values into files of the kernel at boot (`w` lines).
//!
//! Order, from tmpfiles.d(5) and systemd's tmpfiles.c: of files with the same name the first folder's counts, files are
//! read by name, of two lines with the same path the first one counts, and lines with patterns are done after all others.

use std::path::{Path, PathBuf};

use gpufleet_protocol::glob::Glob;

use super::layered;
use crate::{
    declare::{Node, Trouble},
    os::{
        glob,
        lines::{self, Edit},
    },
};

/// Folders of such files; of files with the same name, the first folder's wins.
const FOLDERS: [&str; 4] =
    ["/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d"];

/// Returns the path and the value that a line writes: `w PATH MODE USER GROUP AGE VALUE`.
fn written(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let path = words.next().filter(|kind| kind.starts_with('w')).and_then(|_| words.next())?;
    Some((path, words.nth(4)?))
}

/// Returns the value that a text writes to a path; its first line wins.
pub fn value_in<'t>(text: &'t str, path: &str) -> Option<&'t str> {
    text.lines().filter_map(written).find(|(found, _)| *found == path).map(|(_, value)| value)
}

/// Returns the text with each of the paths written once, in this order; other lines stay as they are.
pub fn edited(text: &str, lines: &[(String, String)]) -> String {
    let paths: Vec<&str> = lines.iter().map(|(path, _)| path.as_str()).collect();
    let mut out = without(text, &paths);
    lines.iter().for_each(|(path, value)| lines::append(&mut out, &format!("w {path} - - - - {value}")));
    out
}

/// Returns the text without the lines that write these paths; other lines stay as they are.
pub fn without(text: &str, paths: &[&str]) -> String {
    let ours = |line: &str| written(line).is_some_and(|(path, _)| paths.contains(&path));
    lines::edited(text, |_, line| Edit::remove_if(ours(line)))
}

/// Returns the paths and patterns that a text writes.
pub fn paths(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(written).map(|(path, _)| path)
}

/// All files that mention a folder, in reading order.
#[derive(Clone, Debug, Default)]
pub struct BootFiles(Vec<(PathBuf, String)>);

impl BootFiles {
    /// # Errors
    /// If one cannot be read.
    pub fn read(node: &Node<'_>, mentions: &str) -> Result<Self, Trouble> {
        let mut files = Vec::new();
        for path in layered::files(node, &FOLDERS, ".conf")? {
            let path = node.roots.path(path);
            let bytes = node.world.read(&path)?.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if text.contains(mentions) {
                files.push((path, text));
            }
        }
        Ok(Self(files))
    }

    /// Returns the first line that names a path itself, and its file.
    pub fn first(&self, path: &str) -> Option<(&Path, &str)> {
        self.0.iter().find_map(|(file, text)| Some((file.as_path(), value_in(text, path)?)))
    }

    /// Returns the value that a path has after all lines are done, patterns included, and the file that sets it.
    pub fn last(&self, path: &str) -> Option<(&Path, &str)> {
        let mut seen = Vec::new();
        let mut found = self.first(path);
        for (file, text) in &self.0 {
            for (pattern, value) in text.lines().filter_map(written).filter(|(path, _)| Glob::is_glob(path)) {
                if seen.contains(&pattern) {
                    continue;
                }
                seen.push(pattern);
                if glob::path_matches(Path::new(pattern), Path::new(path), Glob::of_shell) {
                    found = Some((file, value));
                }
            }
        }
        found
    }

    /// Returns the same files with another text of one of them, or with that file.
    #[must_use]
    pub fn with(&self, path: &Path, text: &str) -> Self {
        let others = self.0.iter().filter(|(file, _)| file.file_name() != path.file_name()).cloned();
        let mut files: Vec<_> = others.chain([(path.to_owned(), text.to_owned())]).collect();
        files.sort_by(|(a, _), (b, _)| a.file_name().cmp(&b.file_name()));
        Self(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_done_last_and_the_first_of_two_equal_lines_counts() {
        let line = |path: &str, value: &str| format!("w {path} - - - - {value}\n");
        let files = BootFiles(vec![
            ("a.conf".into(), line("/sys/cpu[0-9]/g", "1") + &line("/sys/cpu1/g", "2")),
            ("b.conf".into(), line("/sys/cpu[0-9]/g", "3") + &line("/sys/cpu1/g", "4")),
        ]);
        assert_eq!(files.first("/sys/cpu1/g"), Some((Path::new("a.conf"), "2")));
        assert_eq!(files.last("/sys/cpu1/g"), Some((Path::new("a.conf"), "1")));
        let more = files.with(Path::new("/x/c.conf"), &line("/sys/cpu*/g", "5"));
        assert_eq!(more.last("/sys/cpu1/g"), Some((Path::new("/x/c.conf"), "5")));
        assert_eq!(more.last("/sys/cpu1/h"), None);
    }
}
