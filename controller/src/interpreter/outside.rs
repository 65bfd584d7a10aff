//! What templates look up outside of their variables.
//!
//! Owns that every question is put to the machine once a run: all tasks and hosts see the same answer, and of a thousand
//! hosts that wait for one program it runs once. Must not know what a lookup does with an answer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock};

use super::files::{CachedFiles, FileContent, MOST_LOOKED_UP};
use crate::playbook::{Reader, too_large};
use crate::template::{Content, Outside, PathKind};

/// The machine that gpufleet runs on, and the inventory.
pub trait Machine: Send + Sync {
    /// What is at a path; none when nothing is.
    fn kind(&self, path: &str) -> Option<PathKind>;

    /// The names of a folder's files, in any order; empty when there is no such folder.
    ///
    /// # Errors
    /// One sentence: why it cannot be listed.
    fn files_of(&self, folder: &str) -> Result<Vec<String>, String>;

    /// The path from `/` on.
    fn absolute(&self, path: &str) -> String;

    /// A variable of the environment.
    ///
    /// # Errors
    /// It is not UTF-8 text.
    fn variable(&self, name: &str) -> Result<Option<String>, String>;

    /// What a line of shell prints; an empty folder is the one that the command was started in.
    ///
    /// # Errors
    /// One sentence without what the program printed: it failed, or ran too long.
    fn output(&self, line: &str, folder: &str) -> Result<String, String>;

    /// The hosts that patterns name.
    ///
    /// # Errors
    /// A pattern is wrong or matches nothing.
    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String>;

    /// Does something that may take long, without holding up those who do not wait for it.
    fn waiting(&self, act: &mut dyn FnMut()) {
        act();
    }
}

/// Asks once for each key; a second caller waits for the answer.
struct Once<K, V>(Mutex<HashMap<K, Arc<OnceLock<V>>>>);

impl<K, V> Default for Once<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq, V: Clone> Once<K, V> {
    fn get(&self, key: K, ask: impl FnOnce() -> V) -> V {
        let Ok(mut known) = self.0.lock() else { return ask() };
        let cell = Arc::clone(known.entry(key).or_default());
        drop(known);
        cell.get_or_init(ask).clone()
    }
}

/// What was answered in this run.
#[derive(Default)]
pub(super) struct Answers {
    files: Once<String, Result<Option<FileContent>, String>>,
    kinds: Once<String, Option<PathKind>>,
    folders: Once<String, Result<Vec<String>, String>>,
    variables: Once<String, Result<Option<String>, String>>,
    outputs: Once<(String, String), Result<Arc<str>, String>>,
    hosts: Once<Vec<String>, Result<Vec<String>, String>>,
}

impl Answers {
    pub(super) fn file(
        &self,
        path: &str,
        ask: impl FnOnce() -> Result<Option<FileContent>, String>,
    ) -> Result<Option<FileContent>, String> {
        self.files.get(path.to_owned(), ask)
    }
}

impl<R: Reader> CachedFiles<R> {
    fn machine(&self) -> Result<&Arc<dyn Machine>, String> {
        self.machine.as_ref().ok_or_else(|| "nothing can be looked up on this machine here".to_owned())
    }
}

impl<R: Reader + Send + Sync> Outside for CachedFiles<R> {
    fn content(&self, path: &str) -> Result<Option<Content>, String> {
        // Why twice: a task may have carried the same file to a node, whatever its size.
        let found = self.answers.file(path, || self.at_most(path, MOST_LOOKED_UP))?;
        if found.as_ref().is_some_and(|file| file.bytes.len() as u64 > MOST_LOOKED_UP) {
            return Err(format!("cannot read {path}: {}", too_large(MOST_LOOKED_UP)));
        }
        Ok(found.map(|file| Content { bytes: file.bytes, secret: file.secret }))
    }

    fn is_fetched(&self, path: &str) -> bool {
        self.was_fetched(path)
    }

    fn kind(&self, path: &str) -> Option<PathKind> {
        match &self.machine {
            Some(machine) => self.answers.kinds.get(path.to_owned(), || machine.kind(path)),
            None => self.content(path).ok().flatten().map(|_| PathKind::File),
        }
    }

    fn files_of(&self, folder: &str) -> Result<Vec<String>, String> {
        let machine = self.machine()?;
        self.answers.folders.get(folder.to_owned(), || machine.files_of(folder))
    }

    fn absolute(&self, path: &str) -> String {
        self.machine.as_ref().map_or_else(|| path.to_owned(), |machine| machine.absolute(path))
    }

    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        let machine = self.machine()?;
        self.answers.variables.get(name.to_owned(), || machine.variable(name))
    }

    fn output(&self, line: &str, folder: &str) -> Result<Arc<str>, String> {
        let machine = self.machine()?;
        let key = (line.to_owned(), folder.to_owned());
        let mut answer = None;
        machine.waiting(&mut || {
            answer =
                Some(self.answers.outputs.get(key.clone(), || machine.output(line, folder).map(Arc::from)));
        });
        answer.unwrap_or_else(|| Err("the command was not run".to_owned()))
    }

    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String> {
        let machine = self.machine()?;
        self.answers.hosts.get(patterns.to_vec(), || machine.hosts(patterns))
    }
}
