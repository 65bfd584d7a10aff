//! Globs over paths: `*`, `?` and `[…]`, as Python's `glob` reads them.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// How many paths a glob gives at most; more than one is never asked for here.
const LIMIT: usize = 4096;

pub fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether a name matches one component of a pattern. A leading dot is matched by a dot only.
pub fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut retry: Option<(usize, usize)> = None;
    while let Some(&have) = name.get(n) {
        let step = match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => match set(pattern.get(p..).unwrap_or_default(), have) {
                Some((length, true)) => Some(length),
                Some((_, false)) => None,
                None => (have == '[').then_some(1),
            },
            Some(&want) => (want == have).then_some(1),
            None => None,
        };
        match (step, &mut retry) {
            (Some(length), _) => {
                p += length;
                n += 1;
            }
            (None, Some((after_star, from))) => {
                *from += 1;
                (p, n) = (*after_star, *from);
            }
            (None, None) => return false,
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|rest| *rest == '*')
}

/// Length of the set at the beginning of `pattern`, and whether it holds `have`; `None` when it is never closed.
fn set(pattern: &[char], have: char) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = if negated { 2 } else { 1 };
    let close = pattern.iter().skip(first + 1).position(|c| *c == ']')? + first + 1;
    let members = pattern.get(first..close)?;
    let mut found = false;
    let mut at = 0;
    while let Some(&low) = members.get(at) {
        if let (Some('-'), Some(&high)) = (members.get(at + 1), members.get(at + 2)) {
            found |= (low..=high).contains(&have);
            at += 3;
        } else {
            found |= low == have;
            at += 1;
        }
    }
    Some((close + 1, found != negated))
}

/// The existing paths that match an absolute pattern; folders that cannot be read match nothing.
pub fn expand(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for component in pattern.components() {
        let Component::Normal(part) = component else { continue };
        let Some(text) = part.to_str().filter(|text| is_glob(text)) else {
            for path in &mut found {
                path.push(part);
            }
            continue;
        };
        let mut next = Vec::new();
        for folder in found {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                if entry.file_name().to_str().is_some_and(|name| matches(text, name)) && next.len() < LIMIT {
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
pub fn path_matches(pattern: &Path, path: &Path) -> bool {
    let (mut wanted, mut had) = (pattern.components(), path.components());
    loop {
        match (wanted.next(), had.next()) {
            (None, None) => return true,
            (Some(Component::Normal(pattern)), Some(Component::Normal(name))) => {
                let fits = match (pattern.to_str(), name.to_str()) {
                    (Some(pattern), Some(name)) if is_glob(pattern) => matches(pattern, name),
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
    use proptest::prelude::*;

    use super::*;

    /// The plain recursive definition.
    fn model(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some(b'*'), _) => model(&pattern[1..], name) || (!name.is_empty() && model(pattern, &name[1..])),
            (Some(b'?'), Some(_)) => model(&pattern[1..], &name[1..]),
            (Some(p), Some(n)) if p == n => model(&pattern[1..], &name[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn stars_and_marks_agree_with_the_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), model(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn nothing_panics(pattern in "\\PC{0,12}", name in "\\PC{0,12}") {
            let _ = matches(&pattern, &name);
        }
    }

    #[test]
    fn sets_and_dots() {
        assert!(matches("gpu[0-3]", "gpu2") && !matches("gpu[0-3]", "gpu4"));
        assert!(matches("gpu[!0-3]", "gpu4") && matches("a[]]b", "a]b"));
        assert!(matches("[x", "[x") && !matches("*", ".hidden") && matches(".*", ".hidden"));
    }

    #[test]
    fn expansion_walks_folders() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/one.conf", "b/two.conf", "b/three.txt"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = expand(&dir.path().join("*/*.conf"));
        assert_eq!(found, [dir.path().join("a/one.conf"), dir.path().join("b/two.conf")]);
        assert!(expand(&dir.path().join("*/none*")).is_empty());
        assert!(path_matches(Path::new("/x/*/c"), Path::new("/x/b/c")));
        assert!(!path_matches(Path::new("/x/*"), Path::new("/x/b/c")));
    }
}
