//! Errors in templates.

use std::ops::Range;

use minijinja::ErrorKind;

use super::scan;

/// An error in a template or an expression.
///
/// The message names variables and types, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    message: String,
    /// In bytes of the source.
    range: Option<Range<usize>>,
    undefined: Option<String>,
    /// A name that was probably meant, such as that of an existing filter.
    suggestion: Option<String>,
    /// Whether gpufleet never does what is asked, whatever the values of variables.
    refused: bool,
}

impl TemplateError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), range: None, undefined: None, suggestion: None, refused: false }
    }

    /// Creates an error for something that gpufleet never does, whatever the values of variables.
    pub(super) fn refusal(message: impl Into<String>) -> Self {
        Self { refused: true, ..Self::new(message) }
    }

    pub(super) fn undefined(path: String) -> Self {
        let message = if path.is_empty() {
            "a value is undefined".to_owned()
        } else {
            format!("`{path}` is undefined")
        };
        Self { undefined: Some(path), ..Self::new(message) }
    }

    /// Converts an error of the engine, without the parts that may show values.
    pub(super) fn from_engine(error: &minijinja::Error, source: &str) -> Self {
        let detail = error.detail().unwrap_or_default();
        let kind = error.kind();
        if kind == ErrorKind::UndefinedError {
            let path = detail.split('`').nth(1).unwrap_or_default().to_owned();
            let mut fresh = Self::undefined(path);
            fresh.range = error.range();
            return fresh;
        }
        let no_format = detail.starts_with("tried to use % operator") && detail.contains("types string");
        let message = match kind {
            ErrorKind::OutOfFuel => "it takes too many steps; is there an endless loop?".to_owned(),
            ErrorKind::SyntaxError if detail.is_empty() => "syntax error".to_owned(),
            ErrorKind::SyntaxError => {
                let at = error.range().map_or(source.len(), |range| range.start);
                let from = |at: usize| source.get(at..).unwrap_or_default();
                match (from(at).chars().next(), from(at.saturating_sub(1)).starts_with("||")) {
                    (Some('&'), _) => "syntax error: there is no `&`; write `and`".to_owned(),
                    (_, true) => "syntax error: there is no `||`; write `or`".to_owned(),
                    _ => format!("syntax error: {detail}"),
                }
            }
            _ if detail.is_empty() => kind.to_string(),
            _ if no_format => {
                "there is no `%` between a text and values; write `'…' | format(value)`".to_owned()
            }
            _ => detail.to_owned(),
        };
        let mut fresh = Self::new(message);
        let source_error = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Self>());
        fresh.refused = no_format || source_error.is_some_and(Self::is_refusal);
        fresh.range = error.range().filter(|range| range.start <= source.len() && range.end <= source.len());
        if matches!(kind, ErrorKind::UnknownFilter | ErrorKind::UnknownTest)
            && let Some(name) = fresh.range.clone().and_then(|range| source.get(range))
        {
            let name = name.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
            fresh.suggestion = super::filters::nearest(name, kind == ErrorKind::UnknownTest);
        }
        fresh
    }

    pub(super) fn with_range(mut self, range: Range<usize>) -> Self {
        self.range = Some(range);
        self
    }

    pub(super) fn with_suggestion(mut self, suggestion: Option<String>) -> Self {
        self.suggestion = suggestion;
        self
    }

    pub(super) fn into_engine(self) -> minijinja::Error {
        let kind =
            if self.undefined.is_some() { ErrorKind::UndefinedError } else { ErrorKind::InvalidOperation };
        let error = minijinja::Error::new(kind, self.message.clone());
        // The engine loses the flag, so the error travels as its source.
        if self.refused { error.with_source(self) } else { error }
    }

    /// Adds the variable in which it occurred, and drops the place, which is in another text.
    pub(super) fn within(mut self, variable: &str) -> Self {
        self.message = format!("{} (in the variable `{variable}`)", self.message);
        self.range = None;
        self
    }

    /// Adds the other file in which it occurred; `line` counts from 1.
    pub(super) fn inside(mut self, path: &str, line: Option<usize>) -> Self {
        let line = line.map_or_else(String::new, |line| format!(":{line}"));
        self.message = format!("{} (in {path}{line})", self.message);
        self.range = None;
        self
    }

    /// Returns the error with another place.
    pub(super) fn at(mut self, range: Option<Range<usize>>) -> Self {
        self.range = range;
        self
    }

    pub(super) fn shifted(mut self, by: usize) -> Self {
        self.range = self.range.map(|range| range.start + by..range.end + by);
        self
    }

    /// Returns the error with its place converted for another text.
    pub(super) fn moved(mut self, to: impl Fn(usize) -> usize) -> Self {
        self.range = self.range.map(|range| to(range.start)..to(range.end));
        self
    }

    /// Adds the place of an undefined variable.
    pub(super) fn located(mut self, source: &str) -> Self {
        if self.range.is_none()
            && let Some(path) = &self.undefined
        {
            // The path of a nested variable reads "inner` in `outer"; only the outer one is in this text.
            let outer = path.rsplit("` in `").next().unwrap_or(path);
            let root = outer.split('.').next().unwrap_or(outer);
            self.range = scan::find_variable(source, root).or_else(|| source.find(outer)).map(|start| {
                start..start + if source[start..].starts_with(outer) { outer.len() } else { root.len() }
            });
        }
        self
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the range of the source that is wrong, in bytes.
    pub fn range(&self) -> Option<Range<usize>> {
        self.range.clone()
    }

    /// Returns the undefined variable, if that is the error.
    pub fn undefined_name(&self) -> Option<&str> {
        self.undefined.as_deref()
    }

    /// Whether gpufleet never does what is asked, whatever the values of variables.
    pub fn is_refusal(&self) -> bool {
        self.refused
    }

    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }
}
