//! Regular expressions in Python's syntax.
//!
//! Owns which engine runs a pattern: the linear one if possible; the backtracking one, with a limit on its steps,
//! only for patterns with look-around or backreferences.

use std::ops::Range;

use regex::{Regex, RegexBuilder};

use super::{Call, Filter, Test};
use crate::template::bounds;
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("regex_replace", regex_replace),
    ("regex_search", regex_search),
    ("regex_findall", |call| {
        let pattern =
            compile(&call.text_arg(0, "regex")?, call.flag(2, "ignorecase"), call.flag(1, "multiline"))?;
        let text = call.python_text();
        let one = |found: &Groups| {
            let group = |index: usize| Value::from(part(&text, found, index).unwrap_or_default());
            match found.len() {
                1 => group(0),
                2 => group(1),
                count => Value::list((1..count).map(group).collect()),
            }
        };
        Ok(Value::list(pattern.all(&text, 0)?.iter().map(one).collect()))
    }),
    ("regex_escape", |call| {
        let special =
            match call.get(0, "re_type").map_or_else(|| "python".to_owned(), Value::to_text).as_str() {
                "python" => "()[]{}?*+-|^$\\.&~# \t\n\r\u{b}\u{c}",
                "posix_basic" => "].[^$*\\",
                other => {
                    return Err(format!("there is no kind `{other}`; there are `python` and `posix_basic`"));
                }
            };
        let mut out = String::new();
        for c in call.python_text().chars() {
            if special.contains(c) {
                out.push('\\');
            }
            out.push(c);
        }
        Ok(out.into())
    }),
];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("match", |call| Ok(tested(call)?.is_some_and(|(start, _)| start == 0))),
    ("search", |call| Ok(tested(call)?.is_some())),
    ("regex", |call| {
        let kind = call.get(3, "match_type").map_or_else(|| "search".to_owned(), Value::to_text);
        match kind.as_str() {
            "search" => Ok(tested(call)?.is_some()),
            "match" => Ok(tested(call)?.is_some_and(|(start, _)| start == 0)),
            "fullmatch" => {
                let pattern = format!("^(?:{})$", call.text_arg(0, "pattern")?);
                let text = call.text()?;
                let found = compile(&pattern, call.flag(1, "ignorecase"), false)?.whole(&text)?;
                Ok(found == Some(0..text.len()))
            }
            other => Err(format!("there is no kind of match `{other}`; there are search, match, fullmatch")),
        }
    }),
];

fn tested(call: &Call) -> Result<Option<(usize, usize)>, String> {
    let pattern = call.get(0, "pattern").map_or_else(String::new, Value::to_text);
    let pattern = compile(&pattern, call.flag(1, "ignorecase"), call.flag(2, "multiline"))?;
    Ok(pattern.whole(&call.text()?)?.map(|found| (found.start, found.end)))
}

/// Whether an expression matches somewhere in a text, as Python's `re.search`.
///
/// # Errors
/// If the expression is invalid, or takes too many steps.
pub fn is_found(pattern: &str, text: &str) -> Result<bool, String> {
    Ok(compile(pattern, false, false)?.whole(text)?.is_some())
}

/// Largest number of backtracking steps of one match.
const MAX_STEPS: usize = 1_000_000;

enum Pattern {
    Plain(Regex),
    Backtracking(Box<fancy_regex::Regex>),
}

/// The ranges of a match and its groups; the match itself is the first.
type Groups = Vec<Option<Range<usize>>>;

fn part<'t>(text: &'t str, groups: &Groups, index: usize) -> Option<&'t str> {
    text.get(groups.get(index)?.clone()?)
}

impl Pattern {
    fn whole(&self, text: &str) -> Result<Option<Range<usize>>, String> {
        match self {
            Self::Plain(pattern) => Ok(pattern.find(text).map(|found| found.range())),
            Self::Backtracking(_) => {
                Ok(self.all(text, 1)?.into_iter().next().and_then(|groups| groups.into_iter().next()?))
            }
        }
    }

    /// Returns the first `limit` matches, or all of them for 0.
    fn all(&self, text: &str, limit: usize) -> Result<Vec<Groups>, String> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        match self {
            Self::Plain(pattern) => {
                let groups = |found: regex::Captures<'_>| {
                    found.iter().map(|group| group.map(|group| group.range())).collect()
                };
                Ok(pattern.captures_iter(text).take(limit).map(groups).collect())
            }
            Self::Backtracking(pattern) => {
                let mut out = Vec::new();
                for found in pattern.captures_iter(text).take(limit) {
                    let found =
                        found.map_err(|_| "the regular expression takes too many steps".to_owned())?;
                    out.push(found.iter().map(|group| group.map(|group| group.range())).collect());
                }
                Ok(out)
            }
        }
    }

    /// Returns the names of the groups, the match itself included.
    fn names(&self) -> Vec<Option<&str>> {
        match self {
            Self::Plain(pattern) => pattern.capture_names().collect(),
            Self::Backtracking(pattern) => pattern.capture_names().collect(),
        }
    }
}

fn compile(pattern: &str, ignore_case: bool, multi_line: bool) -> Result<Pattern, String> {
    let source = python_syntax(pattern);
    let plain = RegexBuilder::new(&source)
        .case_insensitive(ignore_case)
        .multi_line(multi_line)
        .size_limit(1 << 20)
        .build();
    match plain {
        Ok(plain) => Ok(Pattern::Plain(plain)),
        Err(regex::Error::CompiledTooBig(_)) => Err("the regular expression is too large".to_owned()),
        Err(_) => fancy_regex::RegexBuilder::new(&source)
            .case_insensitive(ignore_case)
            .multi_line(multi_line)
            .backtrack_limit(MAX_STEPS)
            .delegate_size_limit(1 << 20)
            .build()
            .map(|pattern| Pattern::Backtracking(Box::new(pattern)))
            .map_err(|_| "it is not a regular expression".to_owned()),
    }
}

/// Converts Python's syntax to the regex crate's where they differ: `\Z`, a lone `{`, `[` in a class, `\<`.
fn python_syntax(pattern: &str) -> String {
    let chars: Vec<char> = pattern.chars().collect();
    let mut out = String::with_capacity(pattern.len() + 4);
    let mut class = None;
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        match (c, class) {
            ('\\', _) => {
                match chars.get(at + 1) {
                    Some('Z') if class.is_none() => out.push_str("\\z"),
                    Some(c @ ('<' | '>')) => out.push(*c),
                    Some(c) => out.extend(['\\', *c]),
                    None => out.push('\\'),
                }
                at += 1;
            }
            ('[', None) => {
                out.push('[');
                if chars.get(at + 1) == Some(&'^') {
                    out.push('^');
                    at += 1;
                }
                class = Some(at + 1);
            }
            (']', Some(start)) if at > start => {
                out.push(']');
                class = None;
            }
            ('[' | '&' | '~', Some(_)) => out.extend(['\\', c]),
            (']', Some(_)) => out.push_str("\\]"),
            ('{', None) => {
                let inner: String = chars.iter().skip(at + 1).take_while(|c| **c != '}').collect();
                let counted = chars.get(at + 1 + inner.chars().count()).is_some()
                    && inner.starts_with(|c: char| c.is_ascii_digit() || c == ',')
                    && inner.chars().all(|c| c.is_ascii_digit() || c == ',');
                match (counted, inner.strip_prefix(',')) {
                    (true, Some(_)) => out.push_str("{0"),
                    (true, None) => out.push('{'),
                    (false, _) => out.push_str("\\{"),
                }
            }
            _ => out.push(c),
        }
        at += 1;
    }
    out
}

enum Piece {
    Text(String),
    Group(usize),
}

/// Parses a replacement with `\1`, `\g<name>` and escapes.
fn replacement(text: &str, names: &[Option<&str>]) -> Result<Vec<Piece>, String> {
    let mut pieces = vec![Piece::Text(String::new())];
    let group = |name: &str, pieces: &mut Vec<Piece>| {
        let index = match name.parse::<usize>() {
            Ok(index) => Some(index).filter(|index| *index < names.len()),
            Err(_) => names.iter().position(|found| *found == Some(name)),
        };
        let index = index.ok_or_else(|| format!("the pattern has no group `{name}`"))?;
        pieces.push(Piece::Group(index));
        pieces.push(Piece::Text(String::new()));
        Ok::<_, String>(())
    };
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let mut letter = Some(c);
        if c == '\\' {
            letter = match chars.next() {
                Some('g') if chars.next_if_eq(&'<').is_some() => {
                    let name: String = chars.by_ref().take_while(|c| *c != '>').collect();
                    group(&name, &mut pieces)?;
                    None
                }
                Some('0') => Some('\0'),
                Some(first) if first.is_ascii_digit() => {
                    let mut name = first.to_string();
                    name.extend(chars.next_if(char::is_ascii_digit));
                    group(&name, &mut pieces)?;
                    None
                }
                Some('n') => Some('\n'),
                Some('t') => Some('\t'),
                Some('r') => Some('\r'),
                Some('a') => Some('\u{7}'),
                Some('b') => Some('\u{8}'),
                Some('f') => Some('\u{c}'),
                Some('v') => Some('\u{b}'),
                Some('\\') => Some('\\'),
                Some(other) if other.is_ascii_alphabetic() => {
                    return Err(format!("`\\{other}` means nothing in a replacement"));
                }
                Some(other) => {
                    if let Some(Piece::Text(text)) = pieces.last_mut() {
                        text.push('\\');
                    }
                    Some(other)
                }
                None => return Err("the replacement ends with a single backslash".to_owned()),
            };
        }
        if let (Some(letter), Some(Piece::Text(text))) = (letter, pieces.last_mut()) {
            text.push(letter);
        }
    }
    Ok(pieces)
}

fn regex_replace(call: &Call) -> Result<Value, String> {
    let given = |index, name: &str| call.get(index, name).map_or_else(String::new, Value::to_text);
    let pattern = compile(&given(0, "pattern"), call.flag(2, "ignorecase"), call.flag(3, "multiline"))?;
    let pieces = replacement(&given(1, "replacement"), &pattern.names())?;
    let limit = call.size(4, "count")?.unwrap_or(0);
    let text = call.python_text();
    let matches = pattern.all(&text, limit)?;
    let count = matches.len();
    let (mut out, mut copied) = (String::new(), 0);
    for found in &matches {
        bounds::room(out.len())?;
        let Some(Some(whole)) = found.first() else { continue };
        out.push_str(text.get(copied..whole.start).unwrap_or_default());
        copied = whole.end;
        for piece in &pieces {
            out.push_str(match piece {
                Piece::Text(text) => text,
                Piece::Group(index) => part(&text, found, *index).unwrap_or_default(),
            });
            bounds::room(out.len())?;
        }
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    match call.size(5, "mandatory_count")? {
        Some(wanted) if wanted != 0 && wanted != count => {
            Err(format!("the pattern has to match {wanted} times, and matches {count} times"))
        }
        _ => Ok(out.into()),
    }
}

fn regex_search(call: &Call) -> Result<Value, String> {
    let pattern = compile(
        &call.text_arg(0, "regex")?,
        call.named("ignorecase").is_some_and(Value::truthy),
        call.named("multiline").is_some_and(Value::truthy),
    )?;
    let mut wanted = Vec::new();
    for arg in call.args.iter().skip(2).map(Value::to_text) {
        let name = arg
            .strip_prefix("\\g<")
            .and_then(|rest| rest.strip_suffix('>'))
            .or_else(|| arg.strip_prefix('\\').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
            .ok_or("behind the pattern come groups, as `'\\1'` or `'\\g<name>'`")?;
        wanted.push(name.to_owned());
    }
    let text = call.python_text();
    let Some(found) = pattern.all(&text, 1)?.into_iter().next() else { return Ok(Value::Null) };
    if wanted.is_empty() {
        return Ok(part(&text, &found, 0).unwrap_or_default().into());
    }
    let names = pattern.names();
    let group = |name: &String| {
        let index = match name.parse::<usize>() {
            Ok(index) => Some(index).filter(|index| *index < found.len()),
            Err(_) => names.iter().position(|known| *known == Some(name.as_str())),
        };
        let index = index.ok_or_else(|| format!("the pattern has no group `{name}`"))?;
        Ok::<_, String>(part(&text, &found, index).map_or(Value::Null, Value::from))
    };
    Ok(Value::list(wanted.iter().map(group).collect::<Result<_, _>>()?))
}
