//! `key=value` text as Ansible reads it.

/// Splits `text` into words, quotes kept together, and tells for each where it begins (in bytes).
///
/// Template braces hold a word together, as in `msg={{ a + b }}`; a quote after a backslash is none.
pub(super) fn split(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut start = None;
    let mut quote = None;
    let mut braces = 0_usize;
    let mut previous = '\0';
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open && previous != '\\' => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') if previous != '\\' => quote = Some(c),
            (None, '{') if previous == '{' => braces += 1,
            (None, '}') if previous == '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        if c.is_whitespace() && quote.is_none() && braces == 0 {
            if let Some(start) = start.take() {
                words.push((start, text.get(start..at).unwrap_or_default()));
            }
        } else if start.is_none() {
            start = Some(at);
        }
        previous = c;
    }
    if let Some(start) = start {
        words.push((start, text.get(start..).unwrap_or_default()));
    }
    words
}

/// Where a quote is opened that nothing closes (in bytes).
pub(super) fn open_quote(text: &str) -> Option<usize> {
    let mut open = None;
    let mut previous = '\0';
    for (at, c) in text.char_indices() {
        if matches!(c, '\'' | '"') && previous != '\\' {
            open = match open {
                Some((quote, _)) if quote == c => None,
                None => Some((c, at)),
                open => open,
            };
        }
        previous = c;
    }
    open.map(|(_, at)| at)
}

/// `key=value` as its parts, the quotes around the value taken away.
pub(super) fn pair(word: &str) -> Option<(&str, String)> {
    let (key, value) = word.split_once('=')?;
    let legal = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    legal.then(|| (key, unquote(value)))
}

fn unquote(value: &str) -> String {
    for quote in ['\'', '"'] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner.replace(&format!("\\{quote}"), &quote.to_string());
        }
    }
    value.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_quotes_and_templates() {
        let words: Vec<_> =
            split("chdir=/tmp  msg='a b' x={{ a + b }} rest").into_iter().map(|w| w.1).collect();
        assert_eq!(words, ["chdir=/tmp", "msg='a b'", "x={{ a + b }}", "rest"]);
        assert_eq!(pair("msg='a b'"), Some(("msg", "a b".to_owned())));
        assert_eq!(pair("--opt=1"), None);
        assert_eq!(split(r"it\'s two").len(), 2);
    }

    #[test]
    fn a_quote_that_is_not_closed_is_found() {
        assert_eq!(open_quote("msg=\"a 'b\" x='c'"), None);
        assert_eq!(open_quote(r"echo it\'s"), None);
        assert_eq!(open_quote("msg='a' \"b"), Some(8));
        assert_eq!(open_quote("it's \"b\""), Some(2));
    }
}
