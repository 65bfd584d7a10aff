//! What templates may ask of the world around them.
//!
//! Owns the questions only: this module reads nothing itself. Whoever answers gives the same answer to the same question
//! for a whole run, so that all tasks of a run see the same.

use std::sync::Arc;

/// What a path of the controller leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    File,
    Folder,
}

/// What a file of the controller holds.
#[derive(Clone)]
pub struct Content {
    pub bytes: Arc<[u8]>,
    /// Whether it was encrypted where it was read.
    pub secret: bool,
}

/// Answers lookups: files, variables and programs of the controller, and its inventory.
///
/// Paths are as playbooks mean them: absolute, or relative to the folder that the command was started in.
pub trait Outside: Send + Sync {
    /// The content of a file, decrypted; none when there is no such file.
    ///
    /// # Errors
    /// One sentence: why it cannot be read.
    fn content(&self, path: &str) -> Result<Option<Content>, String>;

    /// What is there; none when nothing is.
    fn kind(&self, path: &str) -> Option<PathKind>;

    /// The names of the files (not folders) of a folder, sorted; empty when there is no such folder.
    ///
    /// # Errors
    /// One sentence: why it cannot be listed.
    fn files_of(&self, folder: &str) -> Result<Vec<String>, String>;

    /// The path from `/` on.
    fn absolute(&self, path: &str) -> String;

    /// A variable of the environment that the command was started in.
    ///
    /// # Errors
    /// One sentence: why it cannot be told.
    fn variable(&self, name: &str) -> Result<Option<String>, String>;

    /// What a shell's line prints when it is run in a folder of the controller.
    ///
    /// # Errors
    /// One sentence: it failed, or ran too long.
    fn output(&self, line: &str, folder: &str) -> Result<Arc<str>, String>;

    /// The hosts of the inventory that patterns name, in the inventory's order.
    ///
    /// # Errors
    /// One sentence: a pattern that is wrong or matches nothing.
    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String>;
}
