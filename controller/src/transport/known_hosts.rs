//! The lines of `known_hosts` files, and which of them apply to a host.
//!
//! Parsing and matching are pure. Lines that OpenSSH skips are skipped. A file that exists and cannot be read is an
//! error, because keys that it revokes would be missed. Keys and hashes are parsed by `ssh-key`.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use ssh_key::{
    PublicKey,
    known_hosts::{HostPatterns, Marker},
};

/// One line that applies to a host.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Arc<PathBuf>,
    /// From 1, comments and blank lines included.
    pub(crate) line: usize,
    pub(crate) marker: Option<Marker>,
    pub(crate) key: PublicKey,
}

struct Line {
    number: usize,
    marker: Option<Marker>,
    hosts: HostPatterns,
    /// `type base64 comment`; parsed only if the host matches.
    key: String,
}

/// A parsed file. Looking up a plain name does not depend on the size of the file.
pub(crate) struct KnownHostsFile {
    path: Arc<PathBuf>,
    lines: Vec<Line>,
    exact: HashMap<String, Vec<usize>>,
    /// Lines with wildcards, negations or hashes.
    general: Vec<usize>,
}

impl KnownHostsFile {
    pub(crate) fn parse(path: &Path, text: &str) -> Self {
        let mut file = Self {
            path: Arc::new(path.to_owned()),
            lines: Vec::new(),
            exact: HashMap::new(),
            general: Vec::new(),
        };
        for (index, line) in text.lines().enumerate() {
            let Some(line) = parse_line(index + 1, line) else { continue };
            let at = file.lines.len();
            match &line.hosts {
                HostPatterns::Patterns(patterns) if !patterns.iter().any(|p| p.contains(['*', '?', '!'])) => {
                    for pattern in patterns {
                        file.exact.entry(pattern.to_ascii_lowercase()).or_default().push(at);
                    }
                }
                _ => file.general.push(at),
            }
            file.lines.push(line);
        }
        file
    }

    /// Returns every line about `host`, a name in lower case or `[name]:port`, in the order of the file.
    pub(crate) fn lookup(&self, host: &str) -> Vec<Entry> {
        let mut found: Vec<usize> = self.exact.get(host).cloned().unwrap_or_default();
        found.extend(
            self.general
                .iter()
                .copied()
                .filter(|at| self.lines.get(*at).is_some_and(|line| matches(&line.hosts, host))),
        );
        found.sort_unstable();
        found.dedup();
        let entry = |at: usize| {
            let line = self.lines.get(at)?;
            let key = PublicKey::from_openssh(&line.key).ok()?;
            Some(Entry { path: Arc::clone(&self.path), line: line.number, marker: line.marker, key })
        };
        found.into_iter().filter_map(entry).collect()
    }
}

fn parse_line(number: usize, line: &str) -> Option<Line> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (marker, line) = if line.starts_with('@') {
        let (marker, rest) = line.split_once([' ', '\t'])?;
        (Some(marker.parse().ok()?), rest.trim_start())
    } else {
        (None, line)
    };
    let (hosts, key) = line.split_once([' ', '\t'])?;
    let hosts = hosts.parse().ok()?;
    // The parser of ssh-key accepts single spaces only.
    let key = key.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(Line { number, marker, hosts, key })
}

fn matches(hosts: &HostPatterns, host: &str) -> bool {
    match hosts {
        HostPatterns::Patterns(patterns) => {
            let mut positive = false;
            for pattern in patterns {
                match pattern.strip_prefix('!') {
                    Some(negated) if wildcard(&negated.to_ascii_lowercase(), host) => return false,
                    None if wildcard(&pattern.to_ascii_lowercase(), host) => positive = true,
                    _ => {}
                }
            }
            positive
        }
        HostPatterns::HashedName { salt, hash } => match Hmac::<Sha1>::new_from_slice(salt) {
            Ok(mut mac) => {
                mac.update(host.as_bytes());
                mac.finalize().into_bytes().as_slice() == hash
            }
            Err(_) => false,
        },
    }
}

/// Matches `*` and `?` as OpenSSH does; brackets are literal.
pub(crate) fn wildcard(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(&byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some(&wanted) if wanted == b'?' || wanted == byte => {
                p += 1;
                t += 1;
                continue;
            }
            _ => {}
        }
        let Some((star_p, star_t)) = star else { return false };
        star = Some((star_p, star_t + 1));
        p = star_p + 1;
        t = star_t + 1;
    }
    pattern.get(p..).unwrap_or_default().iter().all(|&byte| byte == b'*')
}

/// Returns the line that makes `key` known for `host`.
///
/// # Errors
/// If the key cannot be written as text.
pub(crate) fn line_for(
    host: &str,
    key: &PublicKey,
    hashed_with: Option<&[u8]>,
) -> Result<String, ssh_key::Error> {
    let bare = PublicKey::new(key.key_data().clone(), "").to_openssh()?;
    let hosts = match hashed_with {
        None => host.to_owned(),
        Some(salt) => {
            let mut mac = Hmac::<Sha1>::new_from_slice(salt).map_err(|_| ssh_key::Error::FormatEncoding)?;
            mac.update(host.as_bytes());
            let mut hash = [0u8; 20];
            hash.copy_from_slice(mac.finalize().into_bytes().as_slice());
            HostPatterns::HashedName { salt: salt.to_vec(), hash }.to_string()
        }
    };
    Ok(format!("{hosts} {}\n", bare.trim()))
}

type Stamp = (Option<SystemTime>, u64);

/// Parsed files, read again when they change.
#[derive(Default)]
pub(crate) struct KnownHostsCache {
    files: Mutex<HashMap<PathBuf, (Stamp, Arc<KnownHostsFile>)>>,
}

impl KnownHostsCache {
    /// Returns a parsed file, from the cache if it did not change; `None` if there is no such file. Blocks.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub(crate) fn load(&self, path: &Path) -> io::Result<Option<Arc<KnownHostsFile>>> {
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if path == Path::new("/dev/null") {
            return Ok(None);
        }
        let stamp = (metadata.modified().ok(), metadata.len());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, file)) = files.get(path)
            && *known == stamp
        {
            return Ok(Some(Arc::clone(file)));
        }
        let bytes = std::fs::read(path)?;
        let file = Arc::new(KnownHostsFile::parse(path, &String::from_utf8_lossy(&bytes)));
        files.insert(path.to_owned(), (stamp, Arc::clone(&file)));
        Ok(Some(file))
    }

    pub(crate) fn forget(&self, path: &Path) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";

    fn lines(text: &str, host: &str) -> Vec<usize> {
        KnownHostsFile::parse(Path::new("known_hosts"), text).lookup(host).iter().map(|e| e.line).collect()
    }

    #[test]
    fn names_ports_globs_and_negations_match() {
        let text = format!(
            "# comment\n\nplain,10.0.0.1 {KEY}\n[plain]:2222 {KEY}\n*.gpu,!bad.gpu {KEY} comment # more\n\
             gpu?? \t{KEY}\n@revoked * {KEY}\n@cert-authority *.gpu {KEY}\n@strange plain {KEY}\nplain broken\n"
        );
        assert_eq!(lines(&text, "plain"), [3, 7]);
        assert_eq!(lines(&text, "10.0.0.1"), [3, 7]);
        assert_eq!(lines(&text, "[plain]:2222"), [4, 7]);
        assert_eq!(lines(&text, "a.gpu"), [5, 7, 8]);
        assert_eq!(lines(&text, "bad.gpu"), [7, 8]);
        assert_eq!(lines(&text, "gpu01"), [6, 7]);
        assert_eq!(lines(&text, "gpu001"), [7]);
    }

    #[test]
    fn markers_are_kept() {
        let text = format!("@revoked h {KEY}\n@cert-authority h {KEY}\n");
        let found = KnownHostsFile::parse(Path::new("f"), &text).lookup("h");
        assert_eq!(
            found.iter().map(|e| e.marker).collect::<Vec<_>>(),
            [Some(Marker::Revoked), Some(Marker::CertAuthority)]
        );
    }

    #[test]
    fn a_missing_file_is_empty_and_an_unreadable_one_is_an_error() {
        let cache = KnownHostsCache::default();
        let dir = tempfile::tempdir().unwrap();
        assert!(cache.load(&dir.path().join("none")).unwrap().is_none());
        assert!(cache.load(Path::new("/dev/null")).unwrap().is_none());
        assert!(cache.load(dir.path()).is_err());
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let cache = KnownHostsCache::default();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known_hosts");
        std::fs::write(&path, format!("a {KEY}\n")).unwrap();
        assert_eq!(cache.load(&path).unwrap().unwrap().lookup("a").len(), 1);
        std::fs::write(&path, format!("a {KEY}\na {KEY}\n")).unwrap();
        assert_eq!(cache.load(&path).unwrap().unwrap().lookup("a").len(), 2);
    }

    proptest! {
        #[test]
        fn hashed_lines_match_exactly_their_host(host in "[a-z0-9.]{1,20}", other in "[a-z0-9.]{1,20}", salt in proptest::array::uniform20(any::<u8>())) {
            let key = PublicKey::from_openssh(KEY).unwrap();
            let text = line_for(&host, &key, Some(&salt)).unwrap();
            prop_assert!(text.starts_with("|1|"));
            prop_assert_eq!(lines(&text, &host), vec![1]);
            prop_assert_eq!(lines(&text, &other).is_empty(), host != other);
        }

        #[test]
        fn wildcards_agree_with_a_regular_expression(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            let regex = format!("^{}$", pattern.replace('*', ".*").replace('?', "."));
            prop_assert_eq!(wildcard(&pattern, &text), regex::Regex::new(&regex).unwrap().is_match(&text));
        }

        #[test]
        fn any_text_parses(text in "[ -~\n\t]{0,200}") {
            let _ = KnownHostsFile::parse(Path::new("f"), &text).lookup("host");
        }
    }
}
