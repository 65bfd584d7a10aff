//! Globs over names: `*`, `?`, `[abc]`, `[a-z]`, `[!abc]`.
//!
//! The only parser of globs on both sides. Its two dialects differ in one set: `[^a]` is `^` or `a` in Python's
//! `fnmatch`, which Ansible uses for hosts, files and packages. It is anything but `a` in a shell and in glibc's
//! `glob`, which systemd uses for `sysctl.d`.

/// A parsed glob.
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
    /// Parses a pattern of Python's `fnmatch`; an unclosed `[` is a literal.
    pub fn new(pattern: &str) -> Self {
        Self::read(pattern, &['!'])
    }

    /// Parses a pattern of a shell: `[^a]` is `[!a]`.
    pub fn of_shell(pattern: &str) -> Self {
        Self::read(pattern, &['!', '^'])
    }

    /// Parses text in which only `*` is special.
    pub fn of_stars(text: &str) -> Self {
        let mut parts = Vec::new();
        for c in text.chars() {
            match c {
                '*' if parts.last() == Some(&Part::Many) => {}
                '*' => parts.push(Part::Many),
                c => parts.push(Part::Char(c)),
            }
        }
        Self { parts }
    }

    /// Whether a text contains characters of a glob.
    pub fn is_glob(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    fn read(pattern: &str, negations: &[char]) -> Self {
        let chars: Vec<char> = pattern.chars().collect();
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(&c) = chars.get(at) {
            at += 1;
            match c {
                '*' if parts.last() != Some(&Part::Many) => parts.push(Part::Many),
                '*' => {}
                '?' => parts.push(Part::Any),
                '[' => match class(&chars, at, negations) {
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
        // Where to continue if a `*` has to take one more character.
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

/// Parses a class after its `[`; `None` if it is not closed.
fn class(chars: &[char], start: usize, negations: &[char]) -> Option<(Part, usize)> {
    let negated = chars.get(start).is_some_and(|c| negations.contains(c));
    let first = start + usize::from(negated);
    // A `]` right after the opening is a member.
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
            ("[^a]", "a", true),
            ("[^a]", "^", true),
            ("[^a]", "b", false),
        ] {
            assert_eq!(Glob::new(glob).matches(name), wanted, "{glob} {name}");
        }
    }

    #[test]
    fn a_shell_negates_with_two_signs() {
        for (glob, name, wanted) in [
            ("[^a]", "a", false),
            ("[^a]", "b", true),
            ("[!a]", "a", false),
            ("[^]]", "]", false),
            ("[a^]", "^", true),
        ] {
            assert_eq!(Glob::of_shell(glob).matches(name), wanted, "{glob} {name}");
        }
    }

    #[test]
    fn stars_may_be_all_that_counts() {
        assert!(Glob::of_stars("a*b*[c]").matches("aXbYb[c]"));
        assert!(!Glob::of_stars("*.y?l").matches("a.yml"));
    }

    /// The plain recursive definition, as a model.
    fn model(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some(b'*'), _) => model(&pattern[1..], name) || (!name.is_empty() && model(pattern, &name[1..])),
            (Some(b'?'), Some(_)) => model(&pattern[1..], &name[1..]),
            (Some(p), Some(n)) if p == n => model(&pattern[1..], &name[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn stars_and_marks_agree_with_the_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(Glob::new(&pattern).matches(&name), model(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn any_pattern_is_read(pattern in "\\PC{0,12}", name in "\\PC{0,12}") {
            Glob::of_shell(&pattern).matches(&name);
        }

        #[test]
        fn stars_take_anything(a in "[a-z\\[\\]*?!-]{0,8}", b in "[a-z]{0,8}", c in "[a-z]{0,8}") {
            let (glob, name) = (format!("{b}*{c}"), format!("{b}{a}{c}"));
            prop_assert!(Glob::new(&glob).matches(&name));
            Glob::new(&a).matches(&b);
        }
    }
}
