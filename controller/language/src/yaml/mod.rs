//! Reads YAML text into a tree that keeps the place of every key and value, and writes values as YAML.
//!
//! Owns the choice of the YAML crate (docs/design/0001-yaml.md) and the reading of scalars by Ansible's rules (YAML
//! 1.1). Must not know what the documents mean. Invariants: any text gives a tree or a diagnostic with a place, never
//! a panic; a mapping never holds a key twice; nesting and alias expansion are bounded.

mod build;
mod emit;
mod error;
mod node;
mod scalar;

pub use emit::{Flow, Layout, block_text, text_with};
pub(crate) use node::float_text;
pub use node::{Entries, Node, Str, Value};

use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};

/// What one reader accepts beyond plain YAML, and how much of it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Custom tags that are kept as [`Value::Tagged`]; any other is an error.
    pub tags: &'static [&'static str],
    /// Nesting of collections, after aliases are expanded.
    pub depth: usize,
    /// Nodes that the expansion of aliases may add.
    pub alias_nodes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tags: &["!vault", "!vault-encrypted", "!unsafe"], depth: 100, alias_nodes: 500_000 }
    }
}

/// Parses the one document of `text`; an empty text is [`Value::Null`]. `file` is the name for messages.
pub fn parse(file: &str, text: &str) -> Result<Node, Diagnostics> {
    parse_source(&SourceFile::new(file, text))
}

/// Parses the bytes of a file; if they are not UTF-8, the error points at the first wrong byte.
pub fn parse_bytes(file: &str, bytes: &[u8]) -> Result<Node, Diagnostics> {
    parse_source(&decode(file, bytes)?)
}

/// Parses a text that has a name.
pub fn parse_source(source: &Arc<SourceFile>) -> Result<Node, Diagnostics> {
    parse_with(source, &Limits::default())
}

/// Parses with given limits. If the text is valid JSON, numbers follow JSON (`1e3` is a number there).
pub fn parse_with(source: &Arc<SourceFile>, limits: &Limits) -> Result<Node, Diagnostics> {
    error::refuse_control_characters(source)?;
    let json = source.text().trim_start().starts_with(['{', '[']) && check_json(source.text()).is_ok();
    build::build(source, limits, json)
}

/// Checks that a text is JSON as Python reads it, with `NaN` and `Infinity` as numbers.
///
/// # Errors
/// If it is not, with the place.
pub(crate) fn check_json(text: &str) -> Result<(), serde_json::Error> {
    let check = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop);
    check(text).or_else(|error| match text.contains("NaN") || text.contains("Infinity") {
        true => check(&without_constants(text)),
        false => Err(error),
    })
}

/// Replaces each `NaN` and `Infinity` outside of strings by a 0, with no change of any position.
fn without_constants(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', 'N', 'I']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let constant = ["NaN", "Infinity"].into_iter().find(|name| from.starts_with(name));
        rest = if let Some(name) = constant {
            out.push_str(&format!("{:<width$}", 0, width = name.len()));
            from.get(name.len()..).unwrap_or_default()
        } else {
            let length = if from.starts_with('"') { string_length(from) } else { 1 };
            let (kept, behind) = from.split_at(length);
            out.push_str(kept);
            behind
        };
    }
    out.push_str(rest);
    out
}

/// Returns the length in bytes of the JSON string at the beginning of a text, with its quotes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Converts the bytes of a file to a named text: UTF-8, with or without a byte order mark.
pub fn decode(file: &str, bytes: &[u8]) -> Result<Arc<SourceFile>, Diagnostics> {
    let content = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match std::str::from_utf8(content) {
        Ok(text) => Ok(SourceFile::new(file, text)),
        Err(error) => {
            let good =
                String::from_utf8_lossy(content.get(..error.valid_up_to()).unwrap_or_default()).into_owned();
            let line = good.matches('\n').count() + 1;
            let column = good.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let byte = content.get(error.valid_up_to()).copied().unwrap_or_default();
            let source = SourceFile::new(file, String::from_utf8_lossy(content));
            let span = Span::new(&source, clamp(line), clamp(column), 1);
            Err(Diagnostic::error("the file is not UTF-8 text")
                .at(&span)
                .label(format!("byte 0x{byte:02x} is not valid here"))
                .help("save the file as UTF-8")
                .into())
        }
    }
}

fn clamp(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
