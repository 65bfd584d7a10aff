//! What is reported about wrong input: a message, its place, the reason, and what to do next.
//!
//! Owns the error model of everything that reads text (inventory, playbooks, patterns) and its rendering. Must not
//! know any of those languages. Invariants: a [`Span`] always carries the text it points into, so an excerpt can be
//! shown wherever the error is reported; values of keys that look secret never reach an excerpt.

mod render;
mod secret;
mod span;
mod suggest;

pub use render::render;
pub use secret::looks_secret;
pub use span::{SourceFile, Span};
pub use suggest::{did_you_mean, suggest};

/// How serious a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing may run.
    Error,
    /// Something a person should know; the run goes on.
    Warning,
    /// A matter of taste.
    Note,
}

/// One report about one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// One sentence without a full stop: what is wrong.
    pub message: String,
    /// Where it is wrong; `None` for input without a place in a file (a command line, a missing file).
    pub span: Option<Span>,
    /// A few words under the carets that say why.
    pub label: Option<Box<str>>,
    /// Further facts, one line each.
    pub notes: Vec<String>,
    /// What to do next, one line each.
    pub help: Vec<String>,
    /// Whether the source line may be shown.
    pub excerpt: bool,
}

impl Diagnostic {
    /// Starts an error without a place.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(Severity::Error, message.into())
    }

    /// Starts a warning without a place.
    pub fn warning(message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, message.into())
    }

    /// Starts a note without a place.
    pub fn remark(message: impl Into<String>) -> Self {
        Self::new(Severity::Note, message.into())
    }

    fn new(severity: Severity, message: String) -> Self {
        Self {
            severity,
            message,
            span: None,
            label: None,
            notes: Vec::new(),
            help: Vec::new(),
            excerpt: true,
        }
    }

    /// Sets the place.
    #[must_use]
    pub fn at(mut self, span: &Span) -> Self {
        self.span = Some(span.clone());
        self
    }

    /// Sets the reason, shown under the carets.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into().into_boxed_str());
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a next step.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Adds a "did you mean" when one of the candidates is close to `word`.
    #[must_use]
    pub fn suggest<'a>(self, word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        match did_you_mean(word, candidates) {
            Some(text) => self.help(text),
            None => self,
        }
    }

    /// Keeps the source line out of the rendering, for places that may hold a secret.
    #[must_use]
    pub fn without_excerpt(mut self) -> Self {
        self.excerpt = false;
        self
    }

    /// The machine-readable form: severity, message, file, line, column, label, notes, help.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "severity": match self.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Note => "note",
            },
            "message": self.message,
            "file": self.span.as_ref().map(Span::file),
            "line": self.span.as_ref().map(|span| span.line),
            "column": self.span.as_ref().map(|span| span.column),
            "label": self.label,
            "notes": self.notes,
            "help": self.help,
        })
    }
}

/// Everything that is wrong with some input, in the order found. The error type of all parsers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes repeated diagnostics: a file that several plays read reports its mistakes once for each of them.
    #[must_use]
    pub fn once(self) -> Self {
        let mut told: Vec<Diagnostic> = Vec::with_capacity(self.0.len());
        for diagnostic in self.0 {
            // The search is linear, so it is done for the first 2,000 only.
            if told.len() > 2_000 || !told.contains(&diagnostic) {
                told.push(diagnostic);
            }
        }
        Self(told)
    }

    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    pub fn append(&mut self, mut other: Diagnostics) {
        self.0.append(&mut other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is an error, so that nothing may run.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// Returns `Err(self)` if there is an error, otherwise `Ok(value)`.
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.has_errors() { Err(self.once()) } else { Ok(value) }
    }

    /// Moves the errors of `result` into `self` and returns its value, so that parsing can go on and report
    /// several mistakes at once.
    pub fn absorb<T>(&mut self, result: Result<T, Diagnostics>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(errors) => {
                self.append(errors);
                None
            }
        }
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The plain rendering, without colour and without a final line break.
impl std::fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(render(self, false).trim_end_matches('\n'))
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests;
