//! Regular expressions in tasks, over bytes as in Ansible's modules.
//!
//! Both sides compile them here, so that an invalid expression is a mistake in the playbook and not on a node. Expressions
//! that look around or refer back are matched by backtracking, which ends after a number of steps; all others in linear time.

use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};

use crate::tasks::ParamError;

/// Largest number of backtracking steps of one match.
const MAX_STEPS: usize = 1_000_000;

/// The meaning of line breaks to an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineBreaks {
    /// As Python without flags: `^` and `$` are the ends of the text, and `.` is no line break.
    Plain,
    /// `^` and `$` are the ends of every line (`re.MULTILINE`).
    Anchors,
    /// `.` is a line break too (`re.DOTALL`).
    Dots,
}

#[derive(Debug)]
enum Engine {
    Linear(Regex),
    Backtracking(Box<fancy_regex::Regex>),
}

/// A compiled expression.
#[derive(Debug)]
pub struct Pattern {
    engine: Engine,
    text: String,
}

/// A match and its groups.
#[derive(Debug)]
pub struct Captures<'p, 't> {
    text: &'t [u8],
    ranges: Vec<Option<Range<usize>>>,
    names: Vec<Option<&'p str>>,
}

impl<'p, 't> Captures<'p, 't> {
    /// Returns the place of the whole match.
    pub fn range(&self) -> Range<usize> {
        self.ranges.first().cloned().flatten().unwrap_or_default()
    }

    /// Returns the text of a group by its number; 0 is the whole match.
    pub fn get(&self, number: usize) -> Option<&'t [u8]> {
        self.text.get(self.ranges.get(number)?.clone()?)
    }

    pub fn name(&self, name: &str) -> Option<&'t [u8]> {
        self.get(self.names.iter().position(|own| *own == Some(name))?)
    }

    /// Returns the text of each group, without the whole match.
    pub fn groups(&self) -> impl Iterator<Item = Option<&'t [u8]>> {
        (1..self.ranges.len()).map(|number| self.get(number))
    }

    /// Returns the names of the groups that have one.
    pub fn names(&self) -> impl Iterator<Item = &'p str> {
        self.names.iter().flatten().copied()
    }
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If it cannot be compiled: the reason.
    fn read(pattern: &str, breaks: LineBreaks) -> Result<Self, String> {
        let (anchors, dots) = (breaks == LineBreaks::Anchors, breaks == LineBreaks::Dots);
        // Bytes without Unicode tables: Ansible matches bytes too, and the tables would be larger than everything else.
        let linear =
            RegexBuilder::new(pattern).unicode(false).multi_line(anchors).dot_matches_new_line(dots).build();
        let engine = match linear {
            Ok(regex) => Engine::Linear(regex),
            Err(error) => {
                let backtracking = fancy_regex::RegexBuilder::new(pattern)
                    .bytes_mode(fancy_regex::BytesMode::Ascii)
                    .multi_line(anchors)
                    .dot_matches_new_line(dots)
                    .backtrack_limit(MAX_STEPS)
                    .build();
                Engine::Backtracking(Box::new(backtracking.map_err(|other| {
                    let (reason, other) = (error.to_string(), other.to_string());
                    let last = reason.lines().rev().find_map(|line| line.strip_prefix("error: "));
                    // What linear time cannot do is no mistake; the other engine tells what is.
                    let other =
                        other.split_once(": ").map_or(other.as_str(), |(_, what)| what).to_lowercase();
                    let why = last.filter(|why| !why.contains("not supported")).unwrap_or(&other);
                    format!("is not a regular expression that gpufleet reads: {why}")
                })?))
            }
        };
        Ok(Self { engine, text: pattern.to_owned() })
    }

    /// Compiles an expression of a parameter.
    ///
    /// # Errors
    /// If it cannot be compiled: the parameter's name and the reason.
    pub fn new(name: &str, pattern: &str, breaks: LineBreaks) -> Result<Self, String> {
        Self::read(pattern, breaks).map_err(|why| format!("`{name}: {pattern}` {why}"))
    }

    /// Returns the first match that begins at a place or behind it; what it looks back at may be before it.
    ///
    /// # Errors
    /// If it takes too many steps.
    pub fn captures_at<'t>(&self, text: &'t [u8], from: usize) -> Result<Option<Captures<'_, 't>>, String> {
        let found = match &self.engine {
            Engine::Linear(regex) => regex.captures_at(text, from).map(|found| {
                let ranges = found.iter().map(|group| group.map(|group| group.range())).collect();
                (ranges, regex.capture_names().collect())
            }),
            Engine::Backtracking(regex) => {
                let found = regex.captures_from_pos(text, from).map_err(|_| {
                    format!(
                        "the regular expression `{}` takes more than {MAX_STEPS} steps on this text",
                        self.text
                    )
                })?;
                found.map(|found| {
                    let ranges = found.iter().map(|group| group.map(|group| group.range())).collect();
                    (ranges, regex.capture_names().collect())
                })
            }
        };
        Ok(found.map(|(ranges, names)| Captures { text, ranges, names }))
    }

    /// # Errors
    /// As [`Pattern::captures_at`].
    pub fn captures<'t>(&self, text: &'t [u8]) -> Result<Option<Captures<'_, 't>>, String> {
        self.captures_at(text, 0)
    }

    /// # Errors
    /// As [`Pattern::captures_at`].
    pub fn is_match(&self, text: &[u8]) -> Result<bool, String> {
        match &self.engine {
            Engine::Linear(regex) => Ok(regex.is_match(text)),
            Engine::Backtracking(_) => Ok(self.captures(text)?.is_some()),
        }
    }

    /// Returns the text with each match replaced, and how many there were.
    ///
    /// # Errors
    /// As [`Pattern::captures_at`].
    pub fn replaced(
        &self,
        text: &[u8],
        mut with: impl FnMut(&Captures<'_, '_>) -> Vec<u8>,
    ) -> Result<(Vec<u8>, usize), String> {
        let (mut out, mut count, mut copied, mut from) = (Vec::with_capacity(text.len()), 0, 0, 0);
        while from <= text.len()
            && let Some(found) = self.captures_at(text, from)?
        {
            let place = found.range();
            out.extend_from_slice(text.get(copied..place.start).unwrap_or_default());
            out.extend(with(&found));
            count += 1;
            copied = place.end;
            from = if place.is_empty() { place.end + 1 } else { place.end };
        }
        out.extend_from_slice(text.get(copied..).unwrap_or_default());
        Ok((out, count))
    }
}

/// Checks those of these parameters that are given.
pub(crate) fn check<'a>(
    parameters: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
) -> Result<(), ParamError> {
    for (name, pattern) in parameters {
        if let Some(pattern) = pattern {
            Pattern::read(pattern, LineBreaks::Plain)
                .map_err(|why| ParamError::new(name, format!("`{pattern}` {why}")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(pattern: &str, text: &[u8]) -> Vec<u8> {
        let pattern = Pattern::new("regexp", pattern, LineBreaks::Anchors).unwrap();
        pattern.replaced(text, |found| [b"<", found.get(0).unwrap(), b">"].concat()).unwrap().0
    }

    /// As Python's `re.sub` over bytes has it.
    #[test]
    fn look_around_and_references_match_as_in_python() {
        for (pattern, text, want) in [
            ("a(?=b)", "ab ac", "<a>b ac"),
            (r"^(?!\s*#)\w+", "# x\nb", "# x\n<b>"),
            ("(?<!no)exec", "noexec exec", "noexec <exec>"),
            (r"(\w)\1", "abba", "a<bb>a"),
            ("(?<=a)b?", "ab a", "a<b> a<>"),
            ("^b", "a\nb", "a\n<b>"),
            ("x*", "axb", "<>a<x><>b<>"),
        ] {
            assert_eq!(replaced(pattern, text.as_bytes()), want.as_bytes(), "{pattern}");
        }
        assert_eq!(replaced("(?<!x).$", b"\xff\xfe"), b"\xff<\xfe>", "any bytes");
    }

    #[test]
    fn one_that_never_ends_is_given_up() {
        let pattern = Pattern::new("regexp", "^(a|a(?=a)|aa)+$", LineBreaks::Plain).unwrap();
        let text = [vec![b'a'; 200], vec![b'b']].concat();
        let why = pattern.is_match(&text).unwrap_err();
        assert_eq!(
            why,
            "the regular expression `^(a|a(?=a)|aa)+$` takes more than 1000000 steps on this text"
        );
    }
}
