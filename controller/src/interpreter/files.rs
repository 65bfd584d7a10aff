//! Files of the controller that tasks refer to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::Digest as _;

use super::outside::{Answers, Machine};
use crate::playbook::Reader;
use crate::template::{Outside, normal_path};
use crate::vault::{Keyring, encrypted_text};

/// Where a task looks for its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// `copy` and `script`: `files/` beside the playbook, then beside it.
    File,
    /// `template`: `templates/` beside the playbook, then beside it.
    Template,
    /// `include_vars`: `vars/` beside the playbook, then beside it.
    Vars,
}

/// A file's content and its digest.
#[derive(Clone)]
pub struct FileContent {
    pub path: String,
    pub bytes: Arc<[u8]>,
    /// Lower-case hexadecimal SHA-256.
    pub sha256: Arc<str>,
    /// Whether it was encrypted where it was read.
    pub secret: bool,
    /// Permission bits, where they are known.
    pub mode: Option<u32>,
}

/// One path of a directory.
#[derive(Clone)]
pub struct TreeFile {
    /// Below the directory.
    pub path: String,
    /// `None` for a directory.
    pub content: Option<FileContent>,
    /// Target of a link that is kept as it is.
    pub link: Option<String>,
}

/// Gives the content of files that playbooks name, and answers the lookups of templates.
pub trait Files: Outside {
    /// Finds `name` in the first of these folders that has it.
    ///
    /// # Errors
    /// One sentence for people: where it was looked for and why there is nothing.
    fn read(&self, kind: FileKind, search: &[String], name: &str) -> Result<FileContent, String>;

    /// Notes that the file at a path from now on is one that a node sent.
    fn note_fetched(&self, path: &str);

    /// The files in a folder, sorted, by names that [`Files::read`] takes; the folder is looked for as a file would be.
    ///
    /// # Errors
    /// One sentence for people.
    fn list(
        &self,
        kind: FileKind,
        search: &[String],
        folder: &str,
        depth: u32,
    ) -> Result<Vec<String>, String>;

    /// Everything in a directory, each path after the one it is in; `None` where `name` is no directory.
    ///
    /// # Errors
    /// A file in it that cannot be read.
    fn tree(
        &self,
        kind: FileKind,
        search: &[String],
        name: &str,
        follow: bool,
    ) -> Result<Option<Vec<TreeFile>>, String>;

    /// A playbook's folder, or a file found from there, as a path from the root, where that is known.
    fn playbook_dir(&self, directory: &str) -> String;
}

/// A file that a task carries to a node is held as a whole, in bytes.
const MOST_BYTES: u64 = 1 << 30;
/// A file that a template looks into, in bytes.
pub(super) const MOST_LOOKED_UP: u64 = 16 << 20;

/// More paths than this below one directory are refused rather than held.
const MOST_PATHS: usize = 20_000;

type Cache = HashMap<(FileKind, String, String), Result<FileContent, String>>;

/// Searches as Ansible does, and reads every file once a run.
pub struct CachedFiles<R> {
    reader: R,
    keyring: Arc<Keyring>,
    cache: Mutex<Cache>,
    /// Where tasks of this run put what nodes sent, as paths from the root.
    fetched: Mutex<HashSet<String>>,
    /// The folder that relative paths count from.
    from: Option<String>,
    pub(super) machine: Option<Arc<dyn Machine>>,
    pub(super) answers: Answers,
}

impl<R: Reader> CachedFiles<R> {
    pub fn new(reader: R) -> Self {
        Self::with_keyring(reader, Arc::default())
    }

    /// The same, for files of which some are encrypted with these passwords.
    pub fn with_keyring(reader: R, keyring: Arc<Keyring>) -> Self {
        Self {
            reader,
            keyring,
            cache: Mutex::new(HashMap::new()),
            fetched: Mutex::default(),
            machine: None,
            answers: Answers::default(),
            from: None,
        }
    }

    /// The same, for playbooks that are named as seen from a folder.
    #[must_use]
    pub fn seen_from(mut self, folder: Option<String>) -> Self {
        self.from = folder;
        self
    }

    /// The same, where templates may look at the machine that gpufleet runs on.
    #[must_use]
    pub fn on(mut self, machine: Arc<dyn Machine>) -> Self {
        self.machine = Some(machine);
        self
    }

    /// A file's content under its very path; none when there is none.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn at(&self, path: &str) -> Result<Option<FileContent>, String> {
        self.at_most(path, MOST_BYTES)
    }

    /// [`CachedFiles::at`] with a bound, in bytes.
    pub(super) fn at_most(&self, path: &str, most: u64) -> Result<Option<FileContent>, String> {
        match self.reader.read_regular(path, most) {
            Ok(bytes) => {
                let mode = self.reader.mode(path);
                Ok(Some(FileContent { mode, ..self.opened(path, bytes)? }))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("cannot read {path}: {error}")),
        }
    }

    fn rooted(&self, directory: &str) -> String {
        let directory = directory.strip_prefix("./").unwrap_or(directory);
        match &self.from {
            Some(_) if directory.starts_with('/') => normal_path(directory),
            Some(from) if matches!(directory, "" | ".") => from.clone(),
            Some(from) => normal_path(&format!("{from}/{directory}")),
            None if directory.is_empty() => ".".to_owned(),
            None => directory.to_owned(),
        }
    }

    pub(super) fn was_fetched(&self, path: &str) -> bool {
        let fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        !fetched.is_empty() && fetched.contains(&self.rooted(path))
    }

    /// What an encrypted file holds; any other as it is.
    fn opened(&self, path: &str, bytes: Vec<u8>) -> Result<FileContent, String> {
        let Some(text) = encrypted_text(&bytes) else {
            return Ok(FileContent::new(path, bytes));
        };
        let plain = self.keyring.open_bytes(&text).map_err(|error| format!("{path}: {}", error.message))?;
        Ok(FileContent { secret: true, ..FileContent::new(path, plain.as_slice()) })
    }

    fn find(&self, kind: FileKind, search: &[String], name: &str) -> Result<FileContent, String> {
        let candidates = candidates(kind, search, name);
        for path in &candidates {
            if let Some(found) = self.answers.file(path, || self.at(path))? {
                return Ok(found);
            }
        }
        Err(format!("there is no file `{name}`; looked for {}", candidates.join(" and ")))
    }
}

/// Where a file of this name may lie, nearest first.
fn candidates(kind: FileKind, search: &[String], name: &str) -> Vec<String> {
    let folder = match kind {
        FileKind::File => "files",
        FileKind::Template => "templates",
        FileKind::Vars => "vars",
    };
    if name.starts_with('/') {
        return vec![name.to_owned()];
    }
    let below = |directory: &str, part: &str| {
        if directory.is_empty() { part.to_owned() } else { format!("{directory}/{part}") }
    };
    let mut found = Vec::new();
    for directory in search {
        for path in [below(directory, &format!("{folder}/{name}")), below(directory, name)] {
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

impl<R: Reader + Send + Sync> Files for CachedFiles<R> {
    fn playbook_dir(&self, directory: &str) -> String {
        self.rooted(directory)
    }

    fn note_fetched(&self, path: &str) {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner).insert(self.rooted(path));
    }

    fn list(
        &self,
        kind: FileKind,
        search: &[String],
        folder: &str,
        depth: u32,
    ) -> Result<Vec<String>, String> {
        let folder = folder.trim_end_matches('/');
        let found = candidates(kind, search, folder)
            .into_iter()
            .find_map(|path| self.reader.list(&path).ok().map(|names| (path, names)));
        let Some((root, names)) = found else { return Err(format!("there is no folder `{folder}`")) };
        // Why not the path that was found: it would be looked for below the same folders again.
        let mut open = vec![(root, folder.to_owned(), 1, names)];
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut count = 0;
        while let Some((path, name, level, names)) = open.pop() {
            let mut files = Vec::new();
            for entry in names {
                count += 1;
                if count > MOST_PATHS {
                    return Err(format!("more than {MOST_PATHS} paths are below {folder}"));
                }
                match entry.strip_suffix('/') {
                    None => files.push(entry),
                    Some(inner) if depth == 0 || level < depth => {
                        let inside = format!("{path}/{inner}");
                        let names = self.reader.list(&inside);
                        let names = names.map_err(|error| format!("cannot read {inside}: {error}"))?;
                        open.push((inside, format!("{name}/{inner}"), level + 1, names));
                    }
                    Some(_) => {}
                }
            }
            files.sort();
            found.insert(name, files);
        }
        let paths = |(folder, files): (String, Vec<String>)| {
            files.into_iter().map(move |file| format!("{folder}/{file}"))
        };
        Ok(found.into_iter().flat_map(paths).collect())
    }

    fn read(&self, kind: FileKind, search: &[String], name: &str) -> Result<FileContent, String> {
        let key = (kind, search.join("\n"), name.to_owned());
        let cached = self.cache.lock().ok().and_then(|cache| cache.get(&key).cloned());
        if let Some(found) = cached {
            return found;
        }
        let found = self.find(kind, search, name);
        if let Ok(mut cache) = self.cache.lock() {
            cache.insert(key, found.clone());
        }
        found
    }

    fn tree(
        &self,
        kind: FileKind,
        search: &[String],
        name: &str,
        follow: bool,
    ) -> Result<Option<Vec<TreeFile>>, String> {
        let is_folder = |path: &str, names: &[String]| {
            let empty = || {
                self.reader
                    .read_regular(path, MOST_BYTES)
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::IsADirectory)
            };
            !names.is_empty() || empty()
        };
        let name = name.trim_end_matches('/');
        let found = candidates(kind, search, name).into_iter().find_map(|path| {
            let names = self.reader.list(&path).ok().filter(|names| is_folder(&path, names))?;
            Some((path, names))
        });
        let Some((root, first)) = found else { return Ok(None) };
        let mut found = Vec::new();
        let mut folders = vec![(String::new(), first)];
        while let Some((folder, names)) = folders.pop() {
            for name in names {
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let (path, is_folder) =
                    path.strip_suffix('/').map_or((path.as_str(), false), |path| (path, true));
                if found.len() >= MOST_PATHS {
                    return Err(format!("more than {MOST_PATHS} paths are below {root}"));
                }
                let full = format!("{root}/{path}");
                let mut file = TreeFile { path: path.to_owned(), content: None, link: None };
                file.link = self.reader.link(&full).filter(|_| !follow);
                if file.link.is_none() && is_folder {
                    let below =
                        self.reader.list(&full).map_err(|error| format!("cannot read {full}: {error}"))?;
                    folders.push((path.to_owned(), below));
                } else if file.link.is_none() {
                    let bytes = self
                        .reader
                        .read_regular(&full, MOST_BYTES)
                        .map_err(|error| format!("cannot read {full}: {error}"))?;
                    let mode = self.reader.mode(&full);
                    file.content = Some(FileContent { mode, ..self.opened(&full, bytes)? });
                }
                found.push(file);
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Some(found))
    }
}

impl FileContent {
    pub fn new(path: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let digest = sha2::Sha256::digest(&bytes);
        let sha256 = digest.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Self { path: path.into(), bytes, sha256: sha256.into(), secret: false, mode: None }
    }
}
