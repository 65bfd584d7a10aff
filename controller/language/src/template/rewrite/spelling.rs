//! Other spellings for the engine: `a['b']`, backslashes, names with `ansible.builtin.`.
//!
//! Invariant: except for doubled backslashes and a `+` behind `raw`, every offset stays the same.

use std::borrow::Cow;

use super::minus;
use crate::template::filters;
use crate::template::scan::{expression_end, is_subscript, is_word, last_word, string_end};

const RESERVED: &[&str] =
    &["in", "and", "or", "not", "is", "if", "else", "true", "false", "none", "True", "False", "None"];

/// Rewrites `a['b']` as `a.b`, padded so that offsets stay.
///
/// Only by the dot can the engine tell a missing attribute that may be chained (`a.b.c | default(x)`, as in Ansible)
/// from a membership test.
pub(in crate::template) fn dotted(expression: &str) -> Cow<'_, str> {
    if !expression.contains("['") && !expression.contains("[\"") {
        return Cow::Borrowed(expression);
    }
    let bytes = expression.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => match string_end(bytes, at) {
                Some(end) => at = end,
                None => return Cow::Borrowed(expression),
            },
            b'[' if is_subscript(bytes, at) => {
                if let Some(end) = name_subscript(bytes, at) {
                    let name = bytes.get(at + 2..end - 1).unwrap_or_default();
                    let mut fresh = vec![b'.'];
                    fresh.extend_from_slice(name);
                    fresh.resize(end + 1 - at, b' ');
                    if let Some(place) = out.get_mut(at..=end) {
                        place.copy_from_slice(&fresh);
                    }
                    at = end;
                }
            }
            _ => {}
        }
        at += 1;
    }
    String::from_utf8(out).map_or(Cow::Borrowed(expression), Cow::Owned)
}

/// Doubles the backslashes in strings of an expression, except before a quote.
///
/// As in Ansible, `regex_replace('(a)', '\1')` in a playbook is literal; the engine would read an escape. Template
/// files are left as they are.
pub(in crate::template) fn doubled_backslashes(expression: &str) -> Cow<'_, str> {
    if !expression.contains('\\') {
        return Cow::Borrowed(expression);
    }
    let mut out = String::with_capacity(expression.len() + 8);
    let mut quote = None;
    let mut chars = expression.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (Some(_), '\\') => match chars.next_if(|next| matches!(next, '\'' | '"')) {
                Some(escaped) => out.push(escaped),
                None => out.push('\\'),
            },
            _ => {}
        }
    }
    Cow::Owned(out)
}

/// Blanks out `ansible.builtin.` before the names of filters and tests, so that offsets stay.
pub(in crate::template) fn unqualified(expression: &str) -> Cow<'_, str> {
    let prefixes = filters::PREFIXES;
    if !prefixes.iter().any(|prefix| expression.contains(prefix)) {
        return Cow::Borrowed(expression);
    }
    let bytes = expression.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\'' || byte == b'"' {
            match string_end(bytes, at) {
                Some(end) => at = end,
                None => return Cow::Borrowed(expression),
            }
        } else if let Some(prefix) = prefixes
            .iter()
            .find(|prefix| bytes.get(at..).is_some_and(|rest| rest.starts_with(prefix.as_bytes())))
        {
            let before = bytes.get(..at).unwrap_or_default().trim_ascii_end();
            if before.last() == Some(&b'|') || matches!(last_word(before).1, "is" | "not") {
                out.splice(at..at + prefix.len(), std::iter::repeat_n(b' ', prefix.len()));
            }
            at += prefix.len() - 1;
        }
        at += 1;
    }
    String::from_utf8(out).map_or(Cow::Borrowed(expression), Cow::Owned)
}

/// Applies [`dotted`] to a template with statements.
pub(in crate::template) fn dotted_template(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    let mut copied = 0;
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
        out.push_str(source.get(copied..at + 2).unwrap_or_default());
        let code = source.get(at + 2..end).unwrap_or_default();
        match code.strip_suffix(' ').filter(|code| is_raw(code)) {
            // As in Ansible, the line break after `{% raw %}` stays; `+` tells the engine to keep it.
            Some(code) => out.extend([code, "+"]),
            None => out.push_str(&minus::rewritten(&dotted(&unqualified(code)))),
        }
        copied = end;
        at = end + 2;
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    out
}

/// Whether a statement begins raw text, which is not rewritten.
fn is_raw(code: &str) -> bool {
    code.trim_start_matches(['-', '+']).trim() == "raw"
}

/// Returns the closing bracket of a `['name']` at `at`, if there is one.
fn name_subscript(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = *bytes.get(at + 1)?;
    if !matches!(quote, b'\'' | b'"') {
        return None;
    }
    let length = bytes.get(at + 2..)?.iter().position(|byte| *byte == quote)?;
    let name = bytes.get(at + 2..at + 2 + length)?;
    let end = at + 2 + length + 1;
    let legal = name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
        && name.iter().all(|byte| is_word(*byte))
        && !std::str::from_utf8(name).is_ok_and(|name| RESERVED.contains(&name));
    (legal && bytes.get(end) == Some(&b']')).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscripts_become_dots_and_lists_stay() {
        assert_eq!(dotted("a['b'] == 1"), "a.b    == 1");
        assert_eq!(dotted("a['b']['c']|default(1)"), "a.b   .c   |default(1)");
        assert_eq!(dotted("x in ['a']"), "x in ['a']");
        assert_eq!(dotted("x is subset ['a']"), "x is subset ['a']");
        assert_eq!(dotted("d['a-b']"), "d['a-b']");
        assert_eq!(dotted("'[\\'x\\']' ~ d['y']"), "'[\\'x\\']' ~ d.y   ");
        assert_eq!(dotted("['a', 'b']['a']"), "['a', 'b'].a   ");
    }
}
