//! Literal lists and mappings that a template changes later: `set x = []`, `x.append(1)`.

use std::ops::Range;

use super::Rewritten;
use crate::template::scan;

/// Functions that the literals of such a template are passed to.
pub(in crate::template) const LIST: &str = "__list";
pub(in crate::template) const DICT: &str = "__dict";

/// Methods that change their list or mapping.
const METHODS: [&str; 11] = [
    ".append",
    ".clear",
    ".extend",
    ".insert",
    ".pop",
    ".popitem",
    ".remove",
    ".reverse",
    ".setdefault",
    ".sort",
    ".update",
];

/// Whether a template calls a method that changes a list or a mapping.
pub(in crate::template) fn changes_values(source: &str) -> bool {
    source.match_indices('.').any(|(at, _)| {
        let rest = source.get(at..).unwrap_or_default();
        METHODS
            .iter()
            .any(|method| rest.strip_prefix(method).is_some_and(|rest| rest.trim_start().starts_with('(')))
    })
}

/// Passes the literals in these ranges of code to the functions that make changeable lists and mappings of them.
fn given(source: &str, stretches: impl Iterator<Item = Range<usize>>) -> Rewritten {
    let mut inserts = Vec::new();
    for stretch in stretches {
        literals(source, stretch, &mut inserts);
    }
    Rewritten::of(source, inserts.into_iter().map(|(at, word)| (at, word.to_owned())).collect())
}

/// Rewrites the literals of a bare expression.
pub(in crate::template) fn expression(source: &str) -> Rewritten {
    given(source, std::iter::once(0..source.len()))
}

/// Rewrites the literals of a template with statements.
pub(in crate::template) fn template(source: &str) -> Rewritten {
    let mut raw = false;
    let stretches = scan::code(source).into_iter().filter(|stretch| {
        let code = source.get(stretch.clone()).unwrap_or_default();
        match code.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+')) {
            "raw" => raw = true,
            "endraw" => raw = false,
            _ => return !raw,
        }
        false
    });
    given(source, stretches)
}

fn literals(source: &str, stretch: Range<usize>, inserts: &mut Vec<(usize, &'static str)>) {
    let (mut at, end) = (stretch.start, stretch.end);
    let bytes = source.as_bytes().get(..end).unwrap_or_default();
    let mut open: Vec<bool> = Vec::new();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => match scan::string_end(bytes, at) {
                Some(end) => at = end,
                None => return,
            },
            b'(' => open.push(false),
            b'[' => {
                let literal = !scan::is_subscript(bytes, at);
                if literal {
                    inserts.push((at, "__list("));
                }
                open.push(literal);
            }
            b'{' => {
                inserts.push((at, "__dict("));
                open.push(true);
            }
            b')' | b']' | b'}' if open.pop() == Some(true) => inserts.push((at + 1, ")")),
            _ => {}
        }
        at += 1;
    }
}
