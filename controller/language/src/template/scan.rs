//! Finds expressions in template text without parsing them.

use std::ops::Range;

/// Whether a text has the marks of a template.
pub fn is_template(text: &str) -> bool {
    text.as_bytes().windows(2).any(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

/// A piece of a template without statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Range<usize>),
    /// The text between the braces.
    Expression(Range<usize>),
}

/// Splits a template that has expressions only; `None` if it has statements, comments or whitespace control.
pub(super) fn pieces(source: &str) -> Option<Vec<Piece>> {
    let bytes = source.as_bytes();
    let mut pieces = Vec::new();
    let mut text_start = 0;
    let mut at = 0;
    while at + 1 < bytes.len() {
        match (bytes.get(at)?, bytes.get(at + 1)?) {
            (b'{', b'%' | b'#') => return None,
            (b'{', b'{') => {
                let end = expression_end(bytes, at + 2, b"}}")?;
                let inner = at + 2..end;
                let first = bytes.get(inner.start).copied();
                let last = bytes.get(end.checked_sub(1)?).copied();
                if matches!(first, Some(b'-' | b'+')) || matches!(last, Some(b'-' | b'+')) {
                    return None;
                }
                if text_start < at {
                    pieces.push(Piece::Text(text_start..at));
                }
                pieces.push(Piece::Expression(inner));
                at = end + 2;
                text_start = at;
            }
            _ => at += 1,
        }
    }
    if text_start < bytes.len() {
        pieces.push(Piece::Text(text_start..bytes.len()));
    }
    Some(pieces)
}

/// Returns where `close` is, outside of strings and brackets.
pub(super) fn expression_end(bytes: &[u8], start: usize, close: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = start;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => at = string_end(bytes, at)?,
            _ if depth == 0 && bytes.get(at..).is_some_and(|rest| rest.starts_with(close)) => {
                return Some(at);
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the closing quote of the string that begins at `start`.
pub(super) fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = *bytes.get(start)?;
    let mut at = start + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at),
            _ => at += 1,
        }
    }
}

/// Returns the bracket that closes the one before `start`.
pub(super) fn bracket_end(expression: &str, start: usize) -> Option<usize> {
    expression_end(expression.as_bytes(), start, b")")
}

/// Counts the round brackets that an expression opens and does not close.
pub(super) fn open_brackets(expression: &str) -> usize {
    let bytes = expression.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => match string_end(bytes, at) {
                Some(end) => at = end,
                None => return depth,
            },
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    depth
}

/// Returns the arguments between the brackets of a call, without the blanks around them.
pub(super) fn arguments(expression: &str, inside: Range<usize>) -> Vec<Range<usize>> {
    let bytes = expression.as_bytes().get(..inside.end).unwrap_or_default();
    let mut found = Vec::new();
    let mut start = inside.start;
    while start < inside.end {
        let end = expression_end(bytes, start, b",").unwrap_or(inside.end);
        let text = expression.get(start..end).unwrap_or_default();
        let from = start + text.len() - text.trim_start().len();
        let to = from + text.trim().len();
        if from < to {
            found.push(from..to);
        }
        start = end + 1;
    }
    found
}

/// Returns the ranges of a template that are code: between `{{` and `}}`, or `{%` and `%}`.
pub(super) fn code(source: &str) -> Vec<Range<usize>> {
    let bytes = source.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at + 1 < bytes.len() {
        let close: &[u8] = match (bytes.get(at), bytes.get(at + 1)) {
            (Some(b'{'), Some(b'{')) => b"}}",
            (Some(b'{'), Some(b'%')) => b"%}",
            (Some(b'{'), Some(b'#')) => match source.get(at..).and_then(|rest| rest.find("#}")) {
                Some(end) => {
                    at += end + 2;
                    continue;
                }
                None => break,
            },
            _ => {
                at += 1;
                continue;
            }
        };
        let Some(end) = expression_end(bytes, at + 2, close) else { break };
        found.push(at + 2..end);
        at = end + 2;
    }
    found
}

/// Returns the names of the macros that a template defines.
pub(super) fn macros(source: &str) -> Vec<String> {
    if !source.contains("macro") {
        return Vec::new();
    }
    let name = |range: Range<usize>| {
        let code =
            source.get(range)?.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        let rest = code.strip_prefix("macro")?;
        let name = rest.trim_start().split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
        (rest.starts_with(char::is_whitespace) && !name.is_empty()).then(|| name.to_owned())
    };
    code(source).into_iter().filter_map(name).collect()
}

/// Words after which `[` begins a list and not a subscript.
const OPERATORS: &[&str] = &[
    "in",
    "and",
    "or",
    "not",
    "is",
    "if",
    "elif",
    "else",
    "for",
    "set",
    "with",
    "do",
    "recursive",
    "from",
    "import",
    "call",
];

/// Whether the `[` at `at` follows a value.
pub(super) fn is_subscript(bytes: &[u8], at: usize) -> bool {
    let before = bytes.get(..at).unwrap_or_default().trim_ascii_end();
    match before.last() {
        Some(b')' | b']' | b'}' | b'\'' | b'"') => true,
        Some(byte) if is_word(*byte) => {
            let (rest, word) = last_word(before);
            let (_, previous) = last_word(rest.trim_ascii_end());
            !OPERATORS.contains(&word) && !matches!(previous, "is" | "not")
        }
        _ => false,
    }
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

pub(super) fn last_word(bytes: &[u8]) -> (&[u8], &str) {
    let length = bytes.iter().rev().take_while(|byte| is_word(**byte)).count();
    let (rest, word) = bytes.split_at(bytes.len() - length);
    (rest, std::str::from_utf8(word).unwrap_or_default())
}

/// Returns where the variable `name` is in an expression, outside of strings and not as an attribute.
pub(super) fn find_name(expression: &str, name: &str) -> Option<usize> {
    let bytes = expression.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if matches!(byte, b'\'' | b'"') {
            at = string_end(bytes, at)? + 1;
            continue;
        }
        if is_word(byte) {
            let length = bytes.get(at..)?.iter().take_while(|byte| is_word(**byte)).count();
            let attribute = bytes.get(..at)?.trim_ascii_end().last() == Some(&b'.');
            if expression.get(at..at + length) == Some(name) && !attribute {
                return Some(at);
            }
            at += length;
            continue;
        }
        at += 1;
    }
    None
}

/// Returns where the variable `name` is in an expression or in the code of a template, but not in its text.
pub(super) fn find_variable(source: &str, name: &str) -> Option<usize> {
    if !is_template(source) {
        return find_name(source, name);
    }
    code(source)
        .into_iter()
        .find_map(|range| find_name(source.get(range.clone())?, name).map(|at| range.start + at))
}

/// Returns the root names that an expression tests with `is defined` or gives a `default`, so that they may be
/// missing.
pub(super) fn guarded(expression: &str, roots: impl Iterator<Item = String>) -> Vec<String> {
    let plain: String = expression.split_whitespace().collect::<Vec<_>>().join(" ");
    roots
        .filter(|root| {
            let mut from = 0;
            while let Some(found) = plain.get(from..).and_then(|rest| find_name(rest, root)) {
                let start = from + found;
                let mut end = start + root.len();
                let rest = plain.as_bytes();
                // Attributes and subscripts behind the name belong to the tested value.
                while let Some(&byte) = rest.get(end) {
                    match byte {
                        b'.' => end += 1,
                        b'[' => match expression_end(rest, end + 1, b"]") {
                            Some(close) => end = close + 1,
                            None => break,
                        },
                        byte if is_word(byte) => end += 1,
                        _ => break,
                    }
                }
                let after = plain.get(end..).unwrap_or_default().trim_start();
                let after = after.strip_prefix(')').unwrap_or(after).trim_start();
                if ["is defined", "is not defined", "is undefined", "is not undefined"]
                    .iter()
                    .any(|test| after.starts_with(test))
                {
                    return true;
                }
                if let Some(filter) = after.strip_prefix('|') {
                    let filter = filter.trim_start();
                    if filter.starts_with("default") || filter.starts_with("d(") {
                        return true;
                    }
                }
                from = end;
            }
            false
        })
        .collect()
}

/// A filter or test in an expression.
pub(super) struct Called<'a> {
    pub name: &'a str,
    pub start: usize,
    pub test: bool,
}

/// Returns the filters (`| name`) and tests (`is name`) of an expression.
pub(super) fn calls(expression: &str) -> Vec<Called<'_>> {
    let bytes = expression.as_bytes();
    let mut found = Vec::new();
    let mut expected = None;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => {
                expected = None;
                match string_end(bytes, at) {
                    Some(end) => at = end,
                    None => return found,
                }
            }
            b'|' => expected = Some(false),
            byte if is_word(byte) => {
                let length = bytes.iter().skip(at).take_while(|byte| is_word(**byte)).count();
                let word = expression.get(at..at + length).unwrap_or_default();
                let attribute = bytes.get(..at).unwrap_or_default().trim_ascii_end().last() == Some(&b'.');
                expected = match (word, expected) {
                    ("is", None) if !attribute => Some(true),
                    ("not", Some(true)) => Some(true),
                    (name, Some(test)) => {
                        found.push(Called { name, start: at, test });
                        None
                    }
                    _ => None,
                };
                at += length - 1;
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => expected = None,
        }
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_know_strings_and_braces() {
        assert_eq!(pieces("{{ {'a': {'b': '}}'}} }}").map(|p| p.len()), Some(1));
        assert_eq!(pieces("a {{ b }} c").map(|p| p.len()), Some(3));
        assert_eq!(pieces("{% if a %}b{% endif %}"), None);
        assert_eq!(pieces("{{ open"), None);
    }

    #[test]
    fn guards_are_seen() {
        let roots = || ["a", "b", "c", "d"].iter().map(|s| (*s).to_owned());
        assert_eq!(
            guarded("a.x['y'] is defined and (b|default(1)) == c and d is  not  defined", roots()),
            ["a", "b", "d"]
        );
    }
}
