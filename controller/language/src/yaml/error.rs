//! Messages for text that is not valid YAML.

use std::sync::Arc;

use serde_saphyr::granit_parser::{ErrorKind, ScanError};

use super::node::{Node, Value};
use super::{Limits, clamp};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};

/// Refuses characters that no YAML text may hold, before the parser runs.
pub(super) fn refuse_control_characters(source: &Arc<SourceFile>) -> Result<(), Diagnostics> {
    let forbidden = |byte: u8| (byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r')) || byte == 0x7f;
    let Some(at) = source.text().bytes().position(forbidden) else { return Ok(()) };
    let before = source.text().get(..at).unwrap_or_default();
    let code = source.text().as_bytes().get(at).copied().unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Err(Diagnostic::error("a control character is not allowed in YAML")
        .at(&Span::new(source, clamp(line), clamp(column), 1))
        .label(format!("character 0x{code:02x}"))
        .help("remove it, or write it as an escape in double quotes")
        .into())
}

/// Returns the message for a collection as the key of a mapping; nearly always a template without quotes.
pub(super) fn unclear_key(node: &Node) -> Diagnostic {
    let line = node.span.source.line(node.span.line).unwrap_or_default();
    let from: String = line.chars().skip(node.span.column.saturating_sub(1) as usize).collect();
    let template = line.contains("{{") && (from.starts_with('{') || line.contains("{{"));
    if template && matches!(node.value, Value::Map(_)) {
        let column = line.find("{{").map_or(node.span.column, |at| clamp(line[..at].chars().count() + 1));
        let length = line.find("}}").map_or(2, |end| {
            clamp(line.get(..end + 2).unwrap_or_default().chars().count()).saturating_sub(column - 1)
        });
        return Diagnostic::error("a value that begins with `{{` must stand in quotes")
            .at(&Span { column, length, ..node.span.clone() })
            .label("YAML reads a brace as the start of a mapping")
            .help("write \"{{ … }}\"");
    }
    Diagnostic::error(format!("{} cannot be the key of a mapping", node.kind())).at(&node.span)
}

/// Adds the most frequent cause: the braces of a template without quotes, read as a mapping.
fn unquoted(error: Diagnostic, line: &str) -> Diagnostic {
    match line.contains("{{") {
        true => error.help("between braces and brackets, a value with `{{ … }}` in it must stand in quotes"),
        false => error,
    }
}

/// Whether a quoted text goes on at a column that the parser does not accept.
pub(super) fn is_outdented(error: &ScanError) -> bool {
    matches!(error.kind(), ErrorKind::InvalidQuotedScalarIndent)
}

/// Returns the message for an error of the parser.
pub(super) fn scan_error(source: &Arc<SourceFile>, limits: &Limits, error: &ScanError) -> Diagnostic {
    let line_number = error.marker().line().max(1);
    let line = source.line(clamp(line_number)).unwrap_or_default();
    // The parser reports the value that a line with a tab seems to continue, so the lines below are searched too.
    let reach = if is_tab(error.kind()) { 2 } else { 0 };
    let mut near = line_number..=line_number + reach;
    let tab = near.find_map(|number| Some((number, tab_in_indentation(source.line(clamp(number))?)?)));
    if let Some((number, tab)) = tab {
        return tab_error(&Span::new(source, clamp(number), clamp(tab + 1), 1));
    }
    let place = Span::new(source, clamp(line_number), clamp(error.marker().col() + 1), 1);
    let place = visible(place);
    let at = |message: &str| Diagnostic::error(message).at(&place);
    match error.kind() {
        kind if is_tab(kind) => tab_error(&place),
        ErrorKind::RecursionLimitExceeded => at(&format!("nested deeper than {} levels", limits.depth)),
        ErrorKind::UnknownAnchor => at("an alias names no value above it")
            .label("nothing is marked with this name")
            .help("quote the text if it is meant to begin with `*`"),
        ErrorKind::MappingValueNotAllowed => {
            let before: String = line.chars().take(error.marker().col()).collect();
            if before.contains(": ") {
                at("a `:` is not allowed here")
                    .label("this value already belongs to a key on this line")
                    .help("put a value that holds `: ` in quotes")
            } else {
                at("a key is not allowed here")
                    .label("the line above already has a value, and this one is indented below it")
                    .help("align it with the keys it belongs to, or add the `:` that the line above lacks")
            }
        }
        ErrorKind::MappingKeyNotAllowed => {
            at("a key is not allowed here").help("check the indentation of this line")
        }
        ErrorKind::InvalidIndentation | ErrorKind::ExpectedBlockMappingKey => {
            at("the indentation of this line fits nothing above it")
                .label("a key of the mapping above was expected")
                .help("align it with the line it belongs to")
        }
        ErrorKind::ExpectedBlockSequenceEntry => at("the indentation of this line fits nothing above it")
            .label("a `-` of the list above was expected")
            .help("align it with the line it belongs to"),
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
            at("a `key: value` line was expected").help("is a `:` missing, or a space behind it?")
        }
        ErrorKind::UnexpectedCharacter { character } => {
            at(&format!("a value cannot begin with `{character}`")).help("put the value in quotes")
        }
        ErrorKind::InvalidTrailingSingleQuotedScalar | ErrorKind::InvalidTrailingDoubleQuotedScalar => {
            at("text follows the closing quote")
                .help("put the whole value in quotes, or use the other kind of quotes around it")
        }
        ErrorKind::UnclosedQuotedScalar => at("a quote is opened and never closed"),
        ErrorKind::UnclosedFlowCollection { open } => at(&format!("`{open}` is opened and never closed")),
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => {
            at(&format!("`{close}` closes what `{open}` opened"))
        }
        ErrorKind::ExpectedFlowMappingSeparator => unquoted(at("`,` or `}` was expected"), line),
        ErrorKind::ExpectedFlowSequenceSeparator => unquoted(at("`,` or `]` was expected"), line),
        ErrorKind::InvalidColonPlacement => {
            at("a `:` is not allowed here").help("is a `[` or `{` above never closed?")
        }
        ErrorKind::InvalidQuotedScalarIndent => {
            at("a quoted text goes on here without being indented").help("is a quote above never closed?")
        }
        ErrorKind::UnexpectedEofFlowMapping | ErrorKind::UnexpectedEofImplicitFlowMapping => {
            at("the file ends inside `{…}`")
        }
        ErrorKind::UnexpectedEofFlowSequence => at("the file ends inside `[…]`"),
        ErrorKind::UnknownQuotedScalarEscape => {
            at("unknown escape in double quotes").help("write `\\\\` for a backslash, or use single quotes")
        }
        ErrorKind::CommentNotSeparated => at("a comment needs a space in front of its `#`"),
        ErrorKind::PlainScalarStartsWithDashFlowIndicator => {
            at("a `-` needs a space behind it").help("write `- item`, or quote the value")
        }
        kind => {
            let first = source
                .text()
                .lines()
                .map(str::trim)
                .find(|line| !line.is_empty() && !line.starts_with(['#', ';']));
            let section = first.is_some_and(|line| line.starts_with('[') && line.ends_with(']'));
            let error = at(&format!("not valid YAML: {kind}"));
            if section {
                error.help("is this an inventory of the INI form? give it with `-i`")
            } else {
                error
            }
        }
    }
}

fn is_tab(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TabInIndentation
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabNotAllowed
            | ErrorKind::TabAtBlockScalarStart
            | ErrorKind::TabInPlainScalar
    )
}

pub(super) fn tab_error(place: &Span) -> Diagnostic {
    Diagnostic::error("a tab cannot indent YAML").at(place).label("tab").help("indent with spaces")
}

/// Returns the position of the first tab in the indentation.
fn tab_in_indentation(line: &str) -> Option<usize> {
    line.chars().take_while(|c| c.is_whitespace()).position(|c| c == '\t')
}

/// Moves a place back to the last line with text: the parser often notices a mistake only at the end of the file.
fn visible(place: Span) -> Span {
    let text = place.source.text();
    let lines = text.split('\n').count();
    let empty = place.source.line(place.line).is_none_or(|line| line.trim().is_empty());
    if !empty || (place.line as usize) < lines {
        return place;
    }
    let Some(last) = text.split('\n').collect::<Vec<_>>().iter().rposition(|line| !line.trim().is_empty())
    else {
        return place;
    };
    let line = text.split('\n').nth(last).unwrap_or_default().trim_end();
    Span::new(&place.source, clamp(last + 1), clamp(line.chars().count().max(1)), 1)
}
