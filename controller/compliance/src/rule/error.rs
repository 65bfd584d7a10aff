//! What is wrong with a rule, and where in it.

use std::fmt;

use gpufleet_language::diagnostic::did_you_mean;

/// A mistake in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// One sentence without a full stop.
    pub message: String,
    /// Where it begins, in characters from 0.
    pub at: usize,
    /// How many characters it takes; at least 1.
    pub length: usize,
    /// What to do next.
    pub help: Option<String>,
}

impl RuleError {
    pub(crate) fn new(message: impl Into<String>, at: usize, length: usize) -> Self {
        Self { message: message.into(), at, length: length.max(1), help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds a "did you mean" if one of the candidates is close to `word`.
    pub(crate) fn suggest<'a>(mut self, word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        self.help = did_you_mean(word, candidates).or(self.help);
        self
    }
}

/// Prints the column from 1, the message and the help.
impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.at + 1, self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RuleError {}
