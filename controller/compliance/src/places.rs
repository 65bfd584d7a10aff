//! Reads words and rules of users' files, with the places of mistakes in them.

use gpufleet_language::diagnostic::{Diagnostic, Diagnostics};
use gpufleet_language::yaml::{Node, Value};

use crate::rule::RuleError;

/// Returns the text below a key that must be there.
pub(crate) fn text(node: &Node, key: &str, what: &str, errors: &mut Diagnostics) -> Option<String> {
    let Some(value) = node.get(key) else {
        errors.push(Diagnostic::error(format!("{what} needs `{key}`")).at(&node.span));
        return None;
    };
    let text = errors.absorb(value.expect_str(&format!("`{key}`")))?;
    if text.trim().is_empty() {
        errors.push(Diagnostic::error(format!("`{key}` is empty")).at(&value.span));
        return None;
    }
    Some(text.to_owned())
}

/// Returns the word below a key, if there is one.
pub(crate) fn word<T: Copy>(
    node: &Node,
    key: &str,
    all: &[T],
    word_of: fn(T) -> &'static str,
    errors: &mut Diagnostics,
) -> Option<T> {
    let value = node.get(key)?;
    let text = errors.absorb(value.expect_str(&format!("`{key}`")))?;
    let found = all.iter().copied().find(|it| word_of(*it) == text);
    if found.is_none() {
        let words: Vec<&str> = all.iter().map(|it| word_of(*it)).collect();
        errors.push(
            Diagnostic::error(format!("`{text}` is no word for `{key}`"))
                .at(&value.span)
                .help(format!("words are {}", words.join(", ")))
                .suggest(text, words),
        );
    }
    found
}

/// Returns the message about a mistake in a rule, at its place in the file.
pub(crate) fn in_rule(node: &Node, error: &RuleError) -> Diagnostic {
    let one_line = node.as_str().is_some_and(|text| !text.contains('\n'));
    let plain = matches!(&node.value, Value::Str(text) if text.plain);
    let span = match one_line {
        // A text in quotes begins behind its quote.
        true => node.span.part(error.at + usize::from(!plain), error.length),
        false => node.span.clone(),
    };
    let diagnostic = Diagnostic::error(error.message.clone()).at(&span);
    match &error.help {
        Some(help) => diagnostic.help(help.clone()),
        None => diagnostic,
    }
}
