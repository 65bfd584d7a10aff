//! What is written another way before the engine reads it: `a['b']`, backslashes, names with `ansible.builtin.`.
//!
//! Invariant: but for doubled backslashes and a `+` behind `raw`, everything stays at its place.

use std::borrow::Cow;

use super::minus;
use crate::template::filters;
use crate::template::scan::{expression_end, is_subscript, is_word, last_word, string_end};

const RESERVED: &[&str] =
    &["in", "and", "or", "not", "is", "if", "else", "true", "false", "none", "True", "False", "None"];

/// Writes `a['b']` as `a.b`, padded so that offsets stay.
///
/// Why: the engine can tell a missing attribute that may be chained (`a.b.c | default(x)`, as in Ansible) from a
/// membership test only by the dot.
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

/// Keeps backslashes in strings of an expression, but for those before a quote.
///
/// Why: as in Ansible, `regex_replace('(a)', '\1')` in a playbook means what it says; the engine alone would read an
/// escape. Template files are left as they are.
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

/// Blanks out `ansible.builtin.` before the names of filters and tests; nothing else moves.
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

/// [`dotted`] for a template with statements.
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
            // Why: as in Ansible, the line break after `{% raw %}` stays; the engine wants to be told so.
            Some(code) => out.extend([code, "+"]),
            None => out.push_str(&minus::rewritten(&dotted(&unqualified(code)))),
        }
        copied = end;
        at = end + 2;
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    out
}

/// Whether what follows a statement's `{%` begins a stretch that is left as it is.
fn is_raw(code: &str) -> bool {
    code.trim_start_matches(['-', '+']).trim() == "raw"
}

/// The closing bracket of `['name']` at `at`, if that is what stands there.
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
