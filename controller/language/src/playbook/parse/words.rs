//! Splits `key=value` text as Ansible does.

/// Splits `text` into words with quotes kept, and returns where each begins, in bytes.
///
/// Template braces hold a word together, as in `msg={{ a + b }}`. A quote after a backslash does not count.
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

/// Returns where a quote is opened that is never closed, in bytes.
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

/// Parses text of `key=value` words; `None` if it holds anything else, or an open quote.
pub fn key_values(text: &str) -> Option<Vec<(&str, String)>> {
    let pairs = split(text).into_iter().map(|(_, word)| pair(word));
    if open_quote(text).is_some() { None } else { pairs.collect() }
}

/// Splits `key=value`, without the quotes around the value.
pub(super) fn pair(word: &str) -> Option<(&str, String)> {
    let (key, value) = word.split_once('=')?;
    let legal = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    legal.then(|| (key, unquote(&unescaped(value))))
}

fn unquote(value: &str) -> String {
    let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    let inner = inner('\'').or_else(|| inner('"')).filter(|inner| !inner.ends_with('\\'));
    inner.unwrap_or(value).to_owned()
}

/// Decodes the escapes of Python's strings; any other backslash stays.
///
/// Source: `_decode_escapes` of ansible-core 2.19's `parsing/splitter.py`.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match escape(after) {
            Some((c, length)) => {
                out.push(c);
                rest = after.get(length..).unwrap_or_default();
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Returns the character that an escape means, and its length in bytes without the backslash.
fn escape(text: &str) -> Option<(char, usize)> {
    let hex = |length: usize| {
        let digits =
            text.get(1..=length).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, length + 1))
    };
    match text.chars().next()? {
        c @ ('\\' | '\'' | '"') => Some((c, 1)),
        'a' => Some(('\u{7}', 1)),
        'b' => Some(('\u{8}', 1)),
        'f' => Some(('\u{c}', 1)),
        'n' => Some(('\n', 1)),
        'r' => Some(('\r', 1)),
        't' => Some(('\t', 1)),
        'v' => Some(('\u{b}', 1)),
        'x' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        _ => None,
    }
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
    fn escapes_are_those_of_python() {
        for (word, value) in [
            (r#"msg="a\nb\tc""#, "a\nb\tc"),
            (r#"msg='say \"hi\"'"#, "say \"hi\""),
            (r"msg='\\d+ \d \x41\1\u00e9 \q'", r"\d+ \d A\1é \q"),
            (r"msg=a\", r"a\"),
            (r"msg='\x4'", r"\x4"),
        ] {
            assert_eq!(pair(word), Some(("msg", value.to_owned())), "{word}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_found() {
        assert_eq!(open_quote("msg=\"a 'b\" x='c'"), None);
        assert_eq!(open_quote(r"echo it\'s"), None);
        assert_eq!(open_quote("msg='a' \"b"), Some(8));
        assert_eq!(open_quote("it's \"b\""), Some(2));
    }
}
