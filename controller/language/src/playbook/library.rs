//! Files that tasks include during a run.
//!
//! Owns the texts that were read before the run, and what was parsed from them. Must not know hosts. Invariants:
//! during a run, texts come from those read before or from a reader that gives a resumed run the same content; the
//! same place, name and turn give the same tasks on every host.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::parse::{Inherited, Reader, RoleCall, include_again};
use super::program::{Item, Items, Task};
use super::role::Role;
use crate::diagnostic::{SourceFile, Span};
use crate::template::Dict;
use crate::vault::Keyring;

/// The texts of a program, and what was included from them.
#[derive(Default)]
pub struct Library {
    texts: Mutex<BTreeMap<String, Arc<SourceFile>>>,
    pub(super) keyring: Arc<Keyring>,
    /// Folders of roles, in addition to `roles/` beside the playbook.
    pub(super) roles_path: Vec<String>,
    /// Variables of the command line.
    pub(super) extra: Arc<Dict>,
    included: Mutex<HashMap<(String, String), Result<Included, String>>>,
    late: OnceLock<Arc<dyn Reader + Send + Sync>>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

/// What one `include_tasks` or `include_role` includes.
#[derive(Clone, Debug)]
pub struct Included {
    /// The name of the file or the role, for messages.
    pub name: String,
    pub items: Items,
    pub handlers: Vec<Arc<Task>>,
    /// The role, if all later tasks of the play see it.
    pub role: Option<Arc<Role>>,
}

/// The place of an `include_tasks` or `include_role`.
#[derive(Debug)]
pub struct Site {
    /// What its tasks inherit from the blocks around it.
    pub(super) inherited: Inherited,
    /// The folder of the playbook.
    pub(super) directory: String,
    pub(super) path: Arc<str>,
    pub(super) span: Span,
    /// What it can include, as far as known before the run.
    pub(super) known: Vec<Included>,
    /// Whether `known` is complete.
    pub(super) complete: bool,
}

/// What is to be included, with templates rendered.
#[derive(Clone, Debug)]
pub enum Wanted {
    Tasks { file: String },
    Role(Box<RoleCall>),
}

impl Site {
    /// Returns what it can include, as far as known before the run.
    pub fn known(&self) -> impl Iterator<Item = &Items> {
        self.known.iter().map(|included| &included.items)
    }

    /// Returns what it includes, if nothing but that can come of it.
    pub fn only(&self) -> Option<&Items> {
        match self.known.as_slice() {
            [included] if self.complete => Some(&included.items),
            _ => None,
        }
    }

    /// Whether a failure in an included task may end the play for all hosts.
    pub(super) fn may_be_fatal(&self) -> bool {
        !self.complete || self.known().any(|items| items.iter().any(Item::may_be_fatal))
    }

    /// Returns what it includes now; `turn` is the index of its loop's item.
    ///
    /// # Errors
    /// One sentence: the file does not exist, or its first mistake.
    pub fn open(&self, library: &Arc<Library>, wanted: &Wanted, turn: usize) -> Result<Included, String> {
        let key = (format!("{}#{turn}", self.path), format!("{wanted:?}"));
        let known = |library: &Library| {
            library.included.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
        };
        if let Some(found) = known(library) {
            return found;
        }
        let opened = include_again(library, self, wanted, turn);
        let mut included = library.included.lock().unwrap_or_else(PoisonError::into_inner);
        // Not replaced, so that hosts that ask at the same time get the same tasks.
        included.entry(key).or_insert(opened).clone()
    }
}

impl Library {
    pub(super) fn new(keyring: Arc<Keyring>, roles_path: Vec<String>, extra: Arc<Dict>) -> Self {
        Self { keyring, roles_path, extra, ..Self::default() }
    }

    /// Sets the reader for files whose names are not known before the run. It must give a resumed run the same
    /// content.
    ///
    /// Only the first call has an effect.
    pub fn read_late_from(&self, reader: Arc<dyn Reader + Send + Sync>) {
        _ = self.late.set(reader);
    }

    pub(super) fn late(&self) -> Option<&Arc<dyn Reader + Send + Sync>> {
        self.late.get()
    }

    pub(super) fn text(&self, path: &str) -> Option<Arc<SourceFile>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// Returns the file that was read under a path for which `is_meant` holds.
    pub fn file_where(&self, is_meant: impl Fn(&str) -> bool) -> Option<String> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.keys().find(|path| is_meant(path)).cloned()
    }

    pub(super) fn keep(&self, path: &str, source: &Arc<SourceFile>) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.insert(path.to_owned(), Arc::clone(source));
    }

    /// Returns the names in a folder from which a text was read; folders end with `/`.
    pub(super) fn list(&self, folder: &str) -> Vec<String> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        names_below(texts.keys().map(String::as_str), folder)
    }
}

/// Returns the names directly in `folder` among paths; folders end with `/`.
pub(super) fn names_below<'a>(paths: impl Iterator<Item = &'a str>, folder: &str) -> Vec<String> {
    let folder = folder.trim_end_matches('/');
    let prefix = if folder.is_empty() || folder == "." { String::new() } else { format!("{folder}/") };
    let mut names: Vec<String> = paths
        .filter_map(|path| {
            let rest = path.strip_prefix(&prefix)?;
            Some(match rest.split_once('/') {
                Some((first, _)) => format!("{first}/"),
                None => rest.to_owned(),
            })
        })
        .collect();
    names.sort();
    names.dedup();
    names
}
