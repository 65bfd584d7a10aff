//! Subtraction of dates: the engine subtracts numbers only, so `a - b` becomes a filter where dates are possible.

use std::borrow::Cow;

use crate::template::scan;

/// The filter that subtracts; its name cannot clash with a template's.
pub(in crate::template) const MINUS: &str = "__minus";

/// Words that end an operand.
const WORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "elif"];
/// Signs of dates and durations; without one, a subtraction is one of numbers.
const SIGNS: [&str; 4] = ["to_datetime", ".total_seconds", ".days", ".seconds"];

/// Deepest brackets that are rewritten; the engine refuses deeper ones.
const DEEPEST: usize = 100;

/// Returns the expression with a filter in place of each subtraction that may be one of dates.
pub(in crate::template) fn rewritten(expression: &str) -> Cow<'_, str> {
    if !expression.contains('-') || !SIGNS.iter().any(|sign| expression.contains(sign)) {
        return Cow::Borrowed(expression);
    }
    rewrite(expression, 0).map_or(Cow::Borrowed(expression), Cow::Owned)
}

/// Rewrites an expression; `None` if brackets or quotes are open or too deep, or an operand is missing.
fn rewrite(text: &str, depth: usize) -> Option<String> {
    if depth > DEEPEST {
        return None;
    }
    let bytes = text.as_bytes();
    let mut out = String::new();
    // The sum so far, and its last operator.
    let mut sum: Option<(String, u8)> = None;
    let mut operand = String::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        match byte {
            b'\'' | b'"' => {
                at = scan::string_end(bytes, at)? + 1;
                operand.push_str(text.get(start..at)?);
                continue;
            }
            b'(' | b'[' | b'{' => {
                let end = closing(bytes, at)?;
                operand.push(char::from(byte));
                operand.push_str(&rewrite(text.get(at + 1..end)?, depth + 1)?);
                operand.push_str(text.get(end..=end)?);
                at = end + 1;
                continue;
            }
            b'+' | b'-' if ends_operand(&operand) => {
                sum = Some((joined(sum, &operand)?, byte));
                operand.clear();
            }
            b',' | b':' | b'=' | b'<' | b'>' | b'!' => {
                out.push_str(&joined(sum.take(), &operand)?);
                operand.clear();
                out.push(char::from(byte));
            }
            b'0'..=b'9' => {
                at = number_end(bytes, at);
                operand.push_str(text.get(start..at)?);
                continue;
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                while bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
                    at += 1;
                }
                let word = text.get(start..at)?;
                let attribute = operand.trim_end().ends_with(['.', '|']);
                if WORDS.contains(&word) && !attribute {
                    out.push_str(&joined(sum.take(), &operand)?);
                    operand.clear();
                    out.push_str(word);
                } else {
                    operand.push_str(word);
                }
                continue;
            }
            _ => {
                let c = text.get(at..)?.chars().next()?;
                operand.push(c);
                at += c.len_utf8();
                continue;
            }
        }
        at += 1;
    }
    out.push_str(&joined(sum, &operand)?);
    Some(out)
}

/// Returns the sum with one more operand.
fn joined(sum: Option<(String, u8)>, operand: &str) -> Option<String> {
    match sum {
        None => Some(operand.to_owned()),
        Some(_) if operand.trim().is_empty() => None,
        Some((left, b'-')) => {
            let blanks = operand.len() - operand.trim_end().len();
            let (operand, after) = operand.split_at(operand.len() - blanks);
            let before = left.len() - left.trim_start().len();
            let (before, left) = left.split_at(before);
            Some(format!("{before}({left})|{MINUS}({operand}){after}"))
        }
        Some((left, _)) => Some(format!("{left}+{operand}")),
    }
}

/// Whether a `-` behind this text stands between two operands.
fn ends_operand(operand: &str) -> bool {
    operand
        .trim_end()
        .ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '}' | '\'' | '"'))
}

/// Returns where the number at `start` ends; the sign of an exponent belongs to it.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = start;
    while digit(at) || bytes.get(at) == Some(&b'_') || bytes.get(at) == Some(&b'.') && digit(at + 1) {
        at += 1;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        if digit(at + 1 + sign) {
            at += 1 + sign;
            while digit(at) {
                at += 1;
            }
        }
    }
    at
}

/// Returns the offset of the closing bracket.
fn closing(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = start;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => at = scan::string_end(bytes, at)?,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subtractions_become_calls_where_dates_may_be_meant() {
        for (written, wanted) in [
            ("a - b", "a - b"),
            ("a-b.days", "(a)|__minus(b.days)"),
            ("(a|to_datetime - b|to_datetime).days", "((a|to_datetime )|__minus( b|to_datetime)).days"),
            ("a.days*2 - -b + c - d", "((a.days*2 )|__minus( -b) + c )|__minus( d)"),
            ("x.days is defined and a-1 > 2", "x.days is defined and(a)|__minus(1) > 2"),
            ("f(a-b, 'c-d', [e-f]).days", "f((a)|__minus(b), 'c-d', [(e)|__minus(f)]).days"),
            ("-x.days", "-x.days"),
            ("a.if - b.days", "(a.if )|__minus( b.days)"),
            ("a.days > 1e-5 - 2.5E+3", "a.days > (1e-5 )|__minus( 2.5E+3)"),
            ("a.days -", "a.days -"),
            ("(a.days - b", "(a.days - b"),
        ] {
            let got = rewritten(written);
            assert_eq!(got.replace("and (", "and("), wanted, "{written}");
        }
    }

    #[test]
    fn brackets_may_be_as_deep_as_anybody_likes() {
        let deep = format!("{}a.days - 1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert_eq!(rewritten(&deep), deep);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(to_datetime)?[a-c0-9 .,:()\\[\\]{}'\"|<>=!+*-]{0,40}(\\.days)?.{0,5}") {
            let _ = rewritten(&text);
        }
    }
}
