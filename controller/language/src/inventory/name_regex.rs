//! Regular expressions in host patterns, with the semantics of Python's `re.match`.
//!
//! Owns the features of Python's expressions that the `regex` crate lacks, as far as they can be had exactly:
//! look-aheads at the very beginning, and `\Z`. Must not know inventories. Invariant: an expression that would mean
//! something else here is refused.

use regex::Regex;

/// An expression that must match from the start of a name.
pub(super) struct NameRegex {
    /// Look-aheads at the beginning, each with whether it must match.
    ahead: Vec<(bool, Regex)>,
    rest: Regex,
}

impl NameRegex {
    /// Compiles `pattern`. The error is a reason in words.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let (flags, body) = split_flags(pattern);
        let mut ahead = Vec::new();
        let mut rest = body;
        while let Some((wanted, inside, behind)) = look_ahead(rest) {
            ahead.push((wanted, inside));
            rest = behind;
        }
        // A look-ahead applies to the first alternative only.
        if has_alternatives(rest) {
            ahead.clear();
            rest = body;
        }
        let compile = |text: &str| {
            Regex::new(&format!(r"{flags}\A(?:{})", with_end_sign(text))).map_err(|error| {
                let text = error.to_string();
                text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned()
            })
        };
        let ahead = ahead.into_iter().map(|(wanted, inside)| compile(inside).map(|regex| (wanted, regex)));
        Ok(Self { ahead: ahead.collect::<Result<_, _>>()?, rest: compile(rest)? })
    }

    pub(super) fn is_match(&self, name: &str) -> bool {
        self.ahead.iter().all(|(wanted, regex)| regex.is_match(name) == *wanted) && self.rest.is_match(name)
    }
}

/// Splits flags such as `(?i)` off the beginning.
fn split_flags(pattern: &str) -> (&str, &str) {
    let flags = pattern.strip_prefix("(?").and_then(|rest| rest.split_once(')'));
    match flags {
        Some((letters, rest)) if !letters.is_empty() && letters.bytes().all(|b| b.is_ascii_lowercase()) => {
            pattern.split_at(pattern.len() - rest.len())
        }
        _ => ("", pattern),
    }
}

/// Splits off a `(?=…)` or `(?!…)`, which a `^` may precede. Returns whether it must match, its expression, and the
/// rest.
fn look_ahead(text: &str) -> Option<(bool, &str, &str)> {
    let text = text.strip_prefix('^').filter(|rest| rest.starts_with("(?")).unwrap_or(text);
    let (wanted, inside) = match text.strip_prefix("(?=") {
        Some(inside) => (true, inside),
        None => (false, text.strip_prefix("(?!")?),
    };
    let end = outside_of_groups(inside).find(|(_, c)| *c == ')')?.0;
    Some((wanted, inside.get(..end)?, inside.get(end + 1..)?))
}

fn has_alternatives(text: &str) -> bool {
    outside_of_groups(text).any(|(_, c)| c == '|')
}

/// Returns the unescaped characters outside of groups and classes, including a surplus `)`.
fn outside_of_groups(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut depth, mut class, mut escaped) = (0usize, false, false);
    text.char_indices().filter(move |(_, c)| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match c {
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ => return depth == 0,
        }
        false
    })
}

/// Replaces Python's `\Z`, the end of the text, by `\z`.
fn with_end_sign(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '\\' {
            out.extend(chars.next().map(|c| if c == 'Z' { 'z' } else { c }));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expressions_match_as_pythons_do() {
        for (pattern, yes, no) in [
            ("gpu", "gpu1", "xgpu"),
            ("gpu|cpu", "cpu1", "xcpu"),
            ("(?i)GPU\\d$", "gpu1", "gpu12"),
            ("(?!gpu00)gpu", "gpu10", "gpu001"),
            ("^(?!.*[12]$).*", "gpu3", "gpu1"),
            ("(?=gpu)(?!gpu1)", "gpu2", "gpu1"),
            ("(?i)(?!A)[a-z]", "b", "a"),
            ("(?!(a|b)c)..", "ad", "bc"),
            ("gpu1\\Z", "gpu1", "gpu12"),
            ("[)|]x", "|x", "x"),
        ] {
            let regex = NameRegex::new(pattern).unwrap();
            assert!(regex.is_match(yes), "{pattern} {yes}");
            assert!(!regex.is_match(no), "{pattern} {no}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for pattern in ["a(?=b)", "(?<=a)b", "(?!a)b|c", "(a)\\1", "(a", "(?!a"] {
            assert!(NameRegex::new(pattern).is_err(), "{pattern}");
        }
        assert_eq!(NameRegex::new("gpu(1").err().as_deref(), Some("unclosed group"));
    }

    proptest! {
        #[test]
        fn any_text_compiles_or_is_refused(pattern in "[a-c()?!=|^$\\[\\]\\\\Zi*]{0,14}", name in "[a-c]{0,4}") {
            if let Ok(regex) = NameRegex::new(&pattern) {
                regex.is_match(&name);
            }
        }
    }
}
