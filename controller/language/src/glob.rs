//! Shell globs over names, with the rules of Python's `fnmatch`: `*`, `?`, `[abc]`, `[a-z]`, `[!abc]`.

/// A glob ready to match.
#[derive(Debug)]
pub struct Glob {
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq)]
enum Part {
    Char(char),
    Any,
    Many,
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl Glob {
    /// Reads a pattern; a `[` that is never closed stands for itself.
    pub fn new(pattern: &str) -> Self {
        let chars: Vec<char> = pattern.chars().collect();
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(&c) = chars.get(at) {
            at += 1;
            match c {
                '*' if parts.last() != Some(&Part::Many) => parts.push(Part::Many),
                '*' => {}
                '?' => parts.push(Part::Any),
                '[' => match class(&chars, at) {
                    Some((part, next)) => {
                        parts.push(part);
                        at = next;
                    }
                    None => parts.push(Part::Char('[')),
                },
                c => parts.push(Part::Char(c)),
            }
        }
        Self { parts }
    }

    /// Whether the whole of `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut part, mut at) = (0, 0);
        // Where to go on when a `*` has to take one character more.
        let mut back: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.parts.get(part) {
                Some(Part::Many) => {
                    back = Some((part, at));
                    part += 1;
                }
                Some(one) if name.get(at).is_some_and(|c| one.takes(*c)) => {
                    part += 1;
                    at += 1;
                }
                _ => {
                    let Some((many, taken)) = back else { return false };
                    back = Some((many, taken + 1));
                    part = many + 1;
                    at = taken + 1;
                }
            }
        }
        self.parts.iter().skip(part).all(|part| *part == Part::Many)
    }
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Part::Char(own) => *own == c,
            Part::Any => true,
            Part::Many => false,
            Part::Class { negated, ranges } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *negated
            }
        }
    }
}

/// Reads a class from behind its `[`; none if it is never closed.
fn class(chars: &[char], start: usize) -> Option<(Part, usize)> {
    let negated = chars.get(start) == Some(&'!');
    let first = start + usize::from(negated);
    // Why: a `]` right behind the opening is a member.
    let end = chars.iter().skip(first + 1).position(|c| *c == ']')? + first + 1;
    let members = chars.get(first..end)?;
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(&from) = members.get(at) {
        match (members.get(at + 1), members.get(at + 2)) {
            (Some('-'), Some(&to)) => {
                ranges.push((from, to));
                at += 3;
            }
            _ => {
                ranges.push((from, from));
                at += 1;
            }
        }
    }
    Some((Part::Class { negated, ranges }, end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_match_as_fnmatch_does() {
        for (glob, name, wanted) in [
            ("gpu*", "gpu001", true),
            ("*", "", true),
            ("g?u", "gpu", true),
            ("g?u", "gu", false),
            ("gpu[0-3]x", "gpu2x", true),
            ("gpu[!0-3]x", "gpu2x", false),
            ("[]a]", "]", true),
            ("[!]a]", "b", true),
            ("a[", "a[", true),
            ("a[b", "a[b", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xaxxbc", false),
            ("a.c", "abc", false),
            ("[z-a]", "m", false),
            ("[a-]", "-", true),
        ] {
            assert_eq!(Glob::new(glob).matches(name), wanted, "{glob} {name}");
        }
    }

    proptest! {
        #[test]
        fn stars_take_anything(a in "[a-z\\[\\]*?!-]{0,8}", b in "[a-z]{0,8}", c in "[a-z]{0,8}") {
            let (glob, name) = (format!("{b}*{c}"), format!("{b}{a}{c}"));
            prop_assert!(Glob::new(&glob).matches(&name));
            Glob::new(&a).matches(&b);
        }
    }
}
