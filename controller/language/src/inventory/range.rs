//! Host names with ranges: `gpu[001:128]`, `rack[a:f]`, `n[0:10:2]-[1:2]`.
//!
//! Owns the expansion. Invariant: names come in counting order, the first range outermost.

/// Largest number of hosts from one line; more are a mistake or an attack.
const MAX_HOSTS: usize = if cfg!(feature = "fuzzing") { 10_000 } else { 1_000_000 };

/// Why a range is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RangeError {
    #[error("a range needs its closing `]`")]
    Unclosed,
    #[error("a range is written `[begin:end]` or `[begin:end:step]`")]
    Shape,
    #[error("a range needs its end")]
    NoEnd,
    #[error("with leading zeros, begin and end of a range need the same number of digits")]
    Width,
    #[error("the bounds of a range are two numbers or two letters")]
    Bounds,
    #[error("a range counts upwards, and its begin is above its end")]
    Backwards,
    #[error("the step of a range is a number above 0")]
    Step,
    #[error("a range of more than {MAX_HOSTS} hosts")]
    TooMany,
}

/// A range error and the offset and length of the text that it is about, in characters.
pub(super) type Wrong = (RangeError, usize, usize);

/// Returns all names that `text` expands to; the text itself if it holds no range.
pub(super) fn expand(text: &str) -> Result<Vec<String>, Wrong> {
    let mut names = vec![String::new()];
    let mut rest = text;
    while let Some((head, behind)) = rest.split_once('[') {
        let at = text.len() - behind.len() - 1;
        let place = |error| {
            let length = behind.find(']').map_or(behind.len() + 1, |end| end + 2);
            (error, text[..at].chars().count(), text[at..].get(..length).unwrap_or_default().chars().count())
        };
        let (range, tail) = behind.split_once(']').ok_or_else(|| place(RangeError::Unclosed))?;
        let items = items(range).map_err(place)?;
        if names.len().saturating_mul(items.len()) > MAX_HOSTS {
            return Err(place(RangeError::TooMany));
        }
        names = names
            .iter()
            .flat_map(|name| items.iter().map(move |item| format!("{name}{head}{item}")))
            .collect();
        rest = tail;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// Expands the text inside one pair of brackets.
fn items(range: &str) -> Result<Vec<String>, RangeError> {
    let parts: Vec<&str> = range.split(':').collect();
    let (begin, end, step) = match parts[..] {
        [begin, end] => (begin, end, "1"),
        [begin, end, step] => (begin, end, step),
        _ => return Err(RangeError::Shape),
    };
    let begin = if begin.is_empty() { "0" } else { begin };
    if end.is_empty() {
        return Err(RangeError::NoEnd);
    }
    let step = step.parse::<usize>().ok().filter(|step| *step > 0).ok_or(RangeError::Step)?;
    let width = if begin.starts_with('0') && begin.len() > 1 { begin.len() } else { 0 };
    if width > 0 && width != end.len() {
        return Err(RangeError::Width);
    }
    if let (Some(begin), Some(end)) = (letter(begin), letter(end)) {
        if begin > end {
            return Err(RangeError::Backwards);
        }
        return Ok(letters().skip(begin).take(end - begin + 1).step_by(step).map(String::from).collect());
    }
    let (Some(begin), Some(end)) = (number(begin), number(end)) else { return Err(RangeError::Bounds) };
    if begin > end {
        return Err(RangeError::Backwards);
    }
    if (end - begin) / step as u64 >= MAX_HOSTS as u64 {
        return Err(RangeError::TooMany);
    }
    Ok((begin..=end).step_by(step).map(|number| format!("{number:0width$}")).collect())
}

fn letters() -> impl Iterator<Item = char> {
    ('a'..='z').chain('A'..='Z')
}

fn letter(text: &str) -> Option<usize> {
    let mut chars = text.chars();
    let (Some(only), None) = (chars.next(), chars.next()) else { return None };
    letters().position(|letter| letter == only)
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_expand_as_in_ansible() {
        assert_eq!(expand("gpu[008:011]").unwrap(), ["gpu008", "gpu009", "gpu010", "gpu011"]);
        assert_eq!(expand("n[0:10:5]x").unwrap(), ["n0x", "n5x", "n10x"]);
        assert_eq!(expand("r[a:c]").unwrap(), ["ra", "rb", "rc"]);
        assert_eq!(expand("r[y:B]").unwrap(), ["ry", "rz", "rA", "rB"]);
        assert_eq!(expand("a[1:2]-[x:y]").unwrap(), ["a1-x", "a1-y", "a2-x", "a2-y"]);
        assert_eq!(expand("a[:2]").unwrap(), ["a0", "a1", "a2"]);
        assert_eq!(expand("plain").unwrap(), ["plain"]);
        assert_eq!(expand("a[9:10]").unwrap(), ["a9", "a10"]);
    }

    #[test]
    fn wrong_ranges_are_told_with_their_place() {
        for (text, error, offset, length) in [
            ("gpu[1-4]", RangeError::Shape, 3, 5),
            ("gpu[1:", RangeError::Unclosed, 3, 3),
            ("gpu[1:]", RangeError::NoEnd, 3, 4),
            ("gpu[01:100]", RangeError::Width, 3, 8),
            ("gpu[a:9]", RangeError::Bounds, 3, 5),
            ("gpu[9:1]", RangeError::Backwards, 3, 5),
            ("gpu[1:9:0]", RangeError::Step, 3, 7),
            ("a[1:2]b[1:9999999]", RangeError::TooMany, 7, 11),
            ("ä[1:1000][1:1001]", RangeError::TooMany, 9, 8),
        ] {
            assert_eq!(expand(text).unwrap_err(), (error, offset, length), "{text}");
        }
    }

    proptest! {
        #[test]
        fn numeric_ranges_count(begin in 0u64..500, more in 0u64..300, step in 1usize..9, width in 0usize..6) {
            let end = begin + more;
            let width = if width > 0 { width.max(end.to_string().len()) } else { 0 };
            let names = expand(&format!("h[{begin:0width$}:{end:0width$}:{step}].x")).unwrap();
            // Without leading zeros in `begin` there is no width to keep.
            let width = if format!("{begin:0width$}").starts_with('0') { width } else { 0 };
            let wanted: Vec<String> = (begin..=end).step_by(step).map(|n| format!("h{n:0width$}.x")).collect();
            prop_assert_eq!(names, wanted);
        }

        #[test]
        fn two_ranges_multiply(a in 0u64..20, b in 0u64..20) {
            let names = expand(&format!("x[0:{a}]y[0:{b}]")).unwrap();
            prop_assert_eq!(names.len() as u64, (a + 1) * (b + 1));
            let distinct: std::collections::HashSet<_> = names.iter().collect();
            prop_assert_eq!(distinct.len(), names.len());
        }

        #[test]
        fn any_text_expands_or_is_refused(text in "[a-z0-9:\\[\\]ä]{0,20}") {
            let _ = expand(&text);
        }
    }
}
