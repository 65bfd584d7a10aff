//! A place in a source text.

use std::fmt;
use std::sync::Arc;

use super::secret::looks_secret;

/// A named text: the file as the user named it, and its content when it was read.
pub struct SourceFile {
    name: String,
    text: String,
    secret: bool,
    plain_key: bool,
}

impl SourceFile {
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into(), secret: false, plain_key: false })
    }

    /// Creates a text in which the value of a key named just `key` may be shown, because it is an expression.
    pub fn with_plain_key(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into(), secret: false, plain_key: true })
    }

    /// Creates a text of which nothing may be shown, such as a decrypted vault.
    pub fn secret(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into(), secret: true, plain_key: false })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// Whether the value of the key `name` is kept out of excerpts.
    pub(super) fn hides(&self, name: &str) -> bool {
        looks_secret(name) && !(self.plain_key && name == "key")
    }

    /// Returns a line (from 1) without its line break.
    pub fn line(&self, number: u32) -> Option<&str> {
        self.text.split('\n').nth(number.checked_sub(1)? as usize).map(|line| line.trim_end_matches('\r'))
    }
}

/// Compares names only: a file that is read twice is the same place, and comparing whole texts is slow.
impl PartialEq for SourceFile {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for SourceFile {}

/// Prints no text, as it may hold secrets that a debug print of a parsed tree must not show.
impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceFile({})", self.name)
    }
}

/// A range of characters in one line.
#[derive(Clone, PartialEq, Eq)]
pub struct Span {
    pub source: Arc<SourceFile>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// In characters. What goes beyond the end of the line is cut; 0 is drawn as one caret.
    pub length: u32,
}

impl Span {
    pub fn new(source: &Arc<SourceFile>, line: u32, column: u32, length: u32) -> Self {
        Self { source: Arc::clone(source), line, column, length }
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        self.source.name()
    }

    /// Returns the `length` characters that begin `offset` characters into this span.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Self {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Self { column: self.column.saturating_add(offset), length, ..self.clone() }
    }
}

/// Prints `file:line:column`, which editors understand.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file(), self.line, self.column)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}+{}", self.length)
    }
}
