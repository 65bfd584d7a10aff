//! Finds the calls of lookups in an expression without evaluating it.

use std::ops::Range;

use super::FUNCTIONS;
use crate::template::scan;

/// A call of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::template) struct Called<'a> {
    /// The lookup's name and its place; `None` if an expression gives it.
    pub name: Option<(&'a str, Range<usize>)>,
    /// The terms that are string literals, and their places.
    pub texts: Vec<(&'a str, Range<usize>)>,
    /// Whether the option `default` replaces what is missing.
    pub has_default: bool,
}

/// Returns the calls of `lookup`, `query` and `q` in an expression, in order.
pub(in crate::template) fn calls(expression: &str) -> Vec<Called<'_>> {
    let mut found = Vec::new();
    for function in FUNCTIONS {
        let mut from = 0;
        while let Some(at) =
            expression.get(from..).and_then(|rest| scan::find_name(rest, function)).map(|at| from + at)
        {
            from = at + function.len();
            let rest = expression.get(from..).unwrap_or_default();
            let blank = rest.len() - rest.trim_start().len();
            if rest.trim_start().starts_with('(')
                && let Some(end) = scan::bracket_end(expression, from + blank + 1)
            {
                found.push((at, read(expression, from + blank + 1..end)));
            }
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, call)| call).collect()
}

fn read(expression: &str, inside: Range<usize>) -> Called<'_> {
    let mut call = Called { name: None, texts: Vec::new(), has_default: false };
    for (index, range) in scan::arguments(expression, inside).into_iter().enumerate() {
        let argument = expression.get(range.clone()).unwrap_or_default();
        match literal(argument) {
            Some(text) => {
                let place = range.start + 1..range.start + 1 + text.len();
                if index == 0 {
                    call.name = Some((text, place));
                } else {
                    call.texts.push((text, place));
                }
            }
            None => {
                let option = argument.split_once('=').filter(|(_, value)| !value.starts_with('='));
                call.has_default |= option.is_some_and(|(name, _)| name.trim() == "default");
            }
        }
    }
    call
}

/// Returns the text of an argument that is only a string.
fn literal(argument: &str) -> Option<&str> {
    let quote = argument.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = argument.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inner.contains(quote) && !inner.contains('\\')).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_and_strings_are_not_calls() {
        let found = calls("x ~ lookup( 'file', 'a,b', c) ~ q(name, d) ~ 'lookup(1)' ~ y.lookup('z')");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, Some(("file", 13..17)));
        assert_eq!(found[0].texts, [("a,b", 21..24)]);
        assert_eq!(found[1].name, None);
        let found =
            calls("lookup('vars', 'a', default='') + lookup('vars', lookup('env', \"B\"), errors='x')");
        assert!(found[0].has_default && !found[1].has_default);
        assert_eq!(found[2].texts.first().map(|(text, _)| *text), Some("B"));
        assert_eq!(calls("lookup('open'"), []);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[lokupq('\",)\\[\\]{} .=\u{e4}x]{0,40}") {
            let _ = calls(&text);
        }
    }
}
