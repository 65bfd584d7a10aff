//! What templates may ask of their surroundings.
//!
//! Owns the questions only: this module reads nothing itself. An implementation must give the same answer to the same
//! question for a whole run, so that all tasks of a run see the same.

use std::sync::Arc;

/// What is at a path on the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    File,
    Folder,
}

/// The content of a file on the controller.
#[derive(Clone)]
pub struct Content {
    pub bytes: Arc<[u8]>,
    /// Whether the file is encrypted.
    pub secret: bool,
}

/// Answers lookups: files, variables and programs of the controller, and its inventory.
///
/// Paths are absolute, or relative to the folder that the command was started in.
pub trait Outside: Send + Sync {
    /// Returns the content of a file, decrypted; `None` if there is no such file.
    ///
    /// # Errors
    /// One sentence: why it cannot be read.
    fn content(&self, path: &str) -> Result<Option<Content>, String>;

    /// Whether a node sent the file at a path: a task of this run fetched it.
    fn is_fetched(&self, _: &str) -> bool {
        false
    }

    /// Returns what is at a path; `None` if nothing is.
    fn kind(&self, path: &str) -> Option<PathKind>;

    /// Returns the sorted names of the files (not folders) in a folder; empty if there is no such folder.
    ///
    /// # Errors
    /// One sentence: why it cannot be listed.
    fn files_of(&self, folder: &str) -> Result<Vec<String>, String>;

    /// Returns the absolute path.
    fn absolute(&self, path: &str) -> String;

    /// Returns a variable of the environment that the command was started in.
    ///
    /// # Errors
    /// One sentence: why it cannot be read.
    fn variable(&self, name: &str) -> Result<Option<String>, String>;

    /// Returns the output of a shell line that runs in a folder of the controller.
    ///
    /// # Errors
    /// One sentence: it failed, or ran too long.
    fn output(&self, line: &str, folder: &str) -> Result<Arc<str>, String>;

    /// Returns the hosts of the inventory that patterns select, in the inventory's order.
    ///
    /// # Errors
    /// One sentence: a pattern is invalid or matches nothing.
    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String>;
}
