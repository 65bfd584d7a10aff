//! A place in a text that somebody wrote.

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

    /// A text in which the name `key` alone stands for an expression, which may be shown.
    pub fn with_plain_key(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into(), secret: false, plain_key: true })
    }

    /// A text of which nothing may be shown, such as a decrypted vault.
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

    /// Whether the value of this name is kept out of excerpts.
    pub(super) fn hides(&self, name: &str) -> bool {
        looks_secret(name) && !(self.plain_key && name == "key")
    }

    /// The line of this number (from 1) without its line break.
    pub fn line(&self, number: u32) -> Option<&str> {
        self.text.split('\n').nth(number.checked_sub(1)? as usize).map(|line| line.trim_end_matches('\r'))
    }
}

/// Why: two readings of one file are the same place, and comparing whole texts would be dear.
impl PartialEq for SourceFile {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for SourceFile {}

/// Why: texts hold secrets; a debug print of any parsed tree must not carry them.
impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceFile({})", self.name)
    }
}

/// A stretch of one line.
#[derive(Clone, PartialEq, Eq)]
pub struct Span {
    pub source: Arc<SourceFile>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// In characters; what goes over the end of the line is cut, and 0 is drawn as one caret.
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

    /// The stretch of `length` characters that begins `offset` characters into this one.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Self {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Self { column: self.column.saturating_add(offset), length, ..self.clone() }
    }
}

/// `file:line:column`, as editors understand it.
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
