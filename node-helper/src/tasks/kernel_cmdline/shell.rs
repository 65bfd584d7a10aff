//! The part of the shell language that can be read without a shell: assignments of words, with variables. Pure.
//!
//! `/etc/default/grub` is a program. Anything but a plain assignment, and every value that a shell would have to
//! compute, is [`Value::Unknown`] with its place: it is never guessed, and never empty.

use std::{collections::HashMap, ops::Range};

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Known(String),
    /// Only a shell could tell; the text says why, with file and line.
    Unknown(String),
}

/// One command of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Assignment(Assignment),
    /// Any other command.
    Other {
        line: usize,
        text: Range<usize>,
    },
}

/// `NAME=word` or `NAME+=word`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The line of the command's first character, from 1.
    pub line: usize,
    pub name: String,
    pub appends: bool,
    /// The word as written, with its quotes.
    pub word: Range<usize>,
}

/// Returns the end of the word at `at`, or `None` if a quote or bracket is not closed.
fn word_end(text: &str, at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = at;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' => break,
            b'\\' => at += 2,
            b'\'' => at = closing(bytes, at + 1, b'\'')?,
            b'"' => at = double_quoted(bytes, at + 1)?,
            b'`' => at = closing_escaped(bytes, at + 1, b'`')?,
            b'$' => at = dollar(bytes, at)?,
            _ => at += 1,
        }
    }
    (at <= bytes.len()).then_some(at)
}

fn closing(bytes: &[u8], from: usize, end: u8) -> Option<usize> {
    bytes.get(from..)?.iter().position(|byte| *byte == end).map(|at| from + at + 1)
}

fn closing_escaped(bytes: &[u8], from: usize, end: u8) -> Option<usize> {
    let mut at = from;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            byte if *byte == end => return Some(at + 1),
            _ => at += 1,
        }
    }
}

fn double_quoted(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            b'`' => at = closing_escaped(bytes, at + 1, b'`')?,
            b'$' => at = dollar(bytes, at)?,
            _ => at += 1,
        }
    }
}

/// Whether a word is one pair of double quotes and its content.
pub fn is_one_quote(raw: &str) -> bool {
    raw.starts_with('"') && double_quoted(raw.as_bytes(), 1) == Some(raw.len())
}

/// Returns the position after the `$` of `$NAME`, or after `${…}` or `$(…)`.
pub fn dollar(bytes: &[u8], from: usize) -> Option<usize> {
    let (open, close) = match bytes.get(from + 1) {
        Some(b'{') => (b'{', b'}'),
        Some(b'(') => (b'(', b')'),
        _ => return Some(from + 1),
    };
    let (mut at, mut depth) = (from + 2, 1);
    while depth > 0 {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'\'' if open == b'(' => at = closing(bytes, at + 1, b'\'')?,
            b'"' => at = double_quoted(bytes, at + 1)?,
            byte => {
                depth += i32::from(*byte == open) - i32::from(*byte == close);
                at += 1;
            }
        }
    }
    Some(at)
}

/// Returns a word without escaped line breaks, which a shell removes first.
pub fn joined(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let (mut single, mut double) = (false, false);
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if !single => match chars.next() {
                Some('\n') => {}
                next => out.extend([Some(c), next].into_iter().flatten()),
            },
            _ => {
                single ^= c == '\'' && !double;
                double ^= c == '"' && !single;
                out.push(c);
            }
        }
    }
    out
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the name, whether it appends, and where the value begins.
fn assigned(word: &str) -> Option<(&str, bool, usize)> {
    let at = word.find('=')?;
    let name = word.get(..at)?;
    let (name, appends) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    is_name(name).then_some((name, appends, at + 1))
}

/// Returns the commands of a file in order. A command inside of `if`, loops and functions, after `&&` or `||`, or in a
/// process of its own (`|`, `&`) is [`Command::Other`].
pub fn commands(text: &str) -> Vec<Command> {
    let bytes = text.as_bytes();
    let mut commands = Vec::new();
    let (mut at, mut nesting) = (0, Vec::new());
    let mut conditional = false;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'|' => (at, conditional) = (at + 1, true),
            b'&' if bytes.get(at + 1) == Some(&b'&') => (at, conditional) = (at + 2, true),
            b' ' | b'\t' | b'\n' | b'\r' | b';' | b'&' => at += 1,
            b'\\' if bytes.get(at + 1) == Some(&b'\n') => at += 2,
            b'#' => at = line_end(bytes, at),
            _ => {
                let (begin, line) = (at, 1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count());
                let mut words: Vec<Range<usize>> = Vec::new();
                let whole = loop {
                    match bytes.get(at) {
                        None | Some(b'\n' | b';' | b'&' | b'|') => break true,
                        Some(b' ' | b'\t' | b'\r') => at += 1,
                        Some(b'\\') if bytes.get(at + 1) == Some(&b'\n') => at += 2,
                        Some(b'#') => at = line_end(bytes, at),
                        // Stops, because the lines of a here-document are no commands.
                        Some(b'<') if bytes.get(at + 1) == Some(&b'<') => break false,
                        Some(b'<' | b'>') => {
                            words.push(at..at + 1);
                            at += 1;
                            at += usize::from(matches!(bytes.get(at), Some(b'>' | b'&' | b'|')));
                        }
                        Some(_) => match word_end(text, at) {
                            Some(end) => {
                                words.push(at..end);
                                at = end;
                            }
                            None => break false,
                        },
                    }
                };
                if !whole {
                    // The whole rest, because the intended end of the quote or document is unknown.
                    commands.push(Command::Other { line, text: begin..bytes.len() });
                    return commands;
                }
                let alone = |byte: u8| bytes.get(at) == Some(&byte) && bytes.get(at + 1) != Some(&byte);
                let sure =
                    !std::mem::take(&mut conditional) && nesting.is_empty() && !alone(b'|') && !alone(b'&');
                push(text, line, begin..at, &words, sure, &mut commands);
                nest(&words.iter().map(|range| word_of(text, range)).collect::<Vec<_>>(), &mut nesting);
            }
        }
    }
    commands
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    closing(bytes, from, b'\n').map_or(bytes.len(), |at| at - 1)
}

fn word_of<'a>(text: &'a str, range: &Range<usize>) -> &'a str {
    text.get(range.clone()).unwrap_or_default()
}

/// Whether it is a shell word that may stand before a command.
fn is_leading(word: &str) -> bool {
    matches!(word, "then" | "else" | "elif" | "do" | "!" | "time")
}

/// Adds one command; `sure` if the shell itself always executes it.
fn push(
    text: &str,
    line: usize,
    place: Range<usize>,
    words: &[Range<usize>],
    sure: bool,
    commands: &mut Vec<Command>,
) {
    let word = |range: &Range<usize>| word_of(text, range);
    let skip = usize::from(matches!(words.first().map(word), Some("export" | "readonly")));
    let values = words.get(skip..).unwrap_or_default();
    let all: Option<Vec<(&str, bool, usize)>> = values.iter().map(|range| assigned(word(range))).collect();
    match all.filter(|all| sure && !all.is_empty()) {
        Some(all) => commands.extend(all.into_iter().zip(values).map(|((name, appends, value), range)| {
            let word = range.start + value..range.end;
            Command::Assignment(Assignment { line, name: name.to_owned(), appends, word })
        })),
        None => commands.push(Command::Other { line, text: place }),
    }
}

/// A construct that contains commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nest {
    Brackets,
    /// `if`, loops, `case`, functions and `{`.
    Other,
}

/// Tracks the constructs that a command opens and closes.
fn nest(words: &[&str], nesting: &mut Vec<Nest>) {
    let mut words = words.iter().copied().skip_while(|word| is_leading(word));
    let first = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    let is_plain = |word: &str| !word.contains(['(', '\\', '\'', '"', '`', '$']);
    let last = rest.last().copied().unwrap_or(first);
    if first.strip_prefix('(').is_some_and(|inner| inner.strip_suffix(')').is_some_and(is_plain)) {
        // `(true)`, or `(a)` of a `case`.
        return;
    }
    let is_function = first == "function"
        || first.ends_with("()")
        || rest.first().is_some_and(|next| next.starts_with('('));
    match first {
        "fi" | "done" | "esac" | "}" => _ = nesting.pop(),
        "if" | "for" | "while" | "until" | "case" | "{" => nesting.push(Nest::Other),
        _ if first.starts_with('(') => nesting.push(Nest::Brackets),
        // Only then, because the body of a function may begin on a later line.
        _ if is_function && rest.iter().any(|word| matches!(*word, "{" | "(")) => nesting.push(Nest::Other),
        _ => {}
    }
    // Not every bracket, because `a)` of a `case` closes nothing.
    let closes = last.strip_suffix(')').is_some_and(is_plain);
    if closes && nesting.last() == Some(&Nest::Brackets) {
        nesting.pop();
    }
}

/// The variables after files were read in order by one shell.
#[derive(Debug, Default)]
pub struct Variables {
    values: HashMap<String, Value>,
    /// Why nothing is known any more: a file was read that cannot be followed.
    lost: Option<String>,
    /// Whether `/bin/sh` is dash, where `+=` is part of a program's name.
    dash: bool,
}

impl Variables {
    /// Creates an empty set; `dash` is whether the shell is dash.
    pub fn of(dash: bool) -> Self {
        Self { dash, ..Self::default() }
    }

    /// Reads a file; `name` is for messages.
    pub fn read(&mut self, name: &str, text: &str) {
        for command in commands(text) {
            match command {
                Command::Assignment(assignment) => self.assign(name, text, &assignment),
                Command::Other { line, text: range } => {
                    let text = text.get(range).unwrap_or_default();
                    self.foreign(&format!("{name}:{line}"), text);
                }
            }
        }
    }

    fn assign(&mut self, name: &str, text: &str, assignment: &Assignment) {
        let place = format!("{name}:{}", assignment.line);
        let raw = text.get(assignment.word.clone()).unwrap_or_default();
        let mut value = self.expand(raw, &place);
        if assignment.appends {
            value = match (self.dash, self.get(&assignment.name), value) {
                (true, ..) => Value::Unknown(format!("{place}: /bin/sh is dash, which has no `+=`")),
                (false, Value::Known(now), Value::Known(more)) => Value::Known(now + &more),
                (false, Value::Unknown(why), _) | (false, _, Value::Unknown(why)) => Value::Unknown(why),
            };
        }
        self.values.insert(assignment.name.clone(), value);
    }

    /// Handles a command that is no assignment: what it may set becomes unknown.
    fn foreign(&mut self, place: &str, text: &str) {
        let shown: String = text.lines().next().unwrap_or_default().chars().take(60).collect();
        let why = format!("{place}: what `{shown}` does only a shell knows");
        let is_opening = |word: &&str| is_leading(word) || matches!(*word, "{" | "(");
        let first = text.split_whitespace().find(|word| !is_opening(word)).unwrap_or_default();
        // Commands that end the file too, because what comes after is only read in some cases.
        if matches!(first, "." | "source" | "eval" | "return" | "exit") {
            self.lost = Some(why);
            return;
        }
        let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for name in names.filter(|name| is_name(name)) {
            self.values.insert(name.to_owned(), Value::Unknown(why.clone()));
        }
    }

    /// Returns the value of a variable; empty if it is not set.
    pub fn get(&self, name: &str) -> Value {
        match (&self.lost, self.values.get(name)) {
            (Some(why), _) => Value::Unknown(why.clone()),
            (None, Some(value)) => value.clone(),
            (None, None) => Value::Known(String::new()),
        }
    }

    /// Returns the value that a shell would give a word.
    pub fn expand(&self, raw: &str, place: &str) -> Value {
        match self.text(&joined(raw), place) {
            Ok(text) => Value::Known(text),
            Err(why) => Value::Unknown(why),
        }
    }

    fn text(&self, raw: &str, place: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = raw;
        let mut quoted = false;
        while let Some(c) = rest.chars().next() {
            let after = rest.get(c.len_utf8()..).unwrap_or_default();
            rest = match c {
                '\'' if !quoted => {
                    let (inner, after) = after.split_once('\'').unwrap_or((after, ""));
                    out.push_str(inner);
                    after
                }
                '"' => {
                    quoted = !quoted;
                    after
                }
                '\\' => {
                    let next = after.chars().next();
                    match next {
                        Some(next) if !quoted || matches!(next, '$' | '`' | '"' | '\\') => out.push(next),
                        Some(next) => out.extend(['\\', next]),
                        None => out.push('\\'),
                    }
                    after.get(next.map_or(0, char::len_utf8)..).unwrap_or_default()
                }
                '`' => return Err(format!("{place}: what `{raw}` gives only a shell knows")),
                '$' => {
                    let (value, after) = self.variable(after, raw, place)?;
                    out.push_str(&value);
                    after
                }
                c => {
                    out.push(c);
                    after
                }
            };
        }
        Ok(out)
    }

    /// Returns the value of the variable after a `$`, and the remaining text.
    fn variable<'a>(&self, rest: &'a str, raw: &str, place: &str) -> Result<(String, &'a str), String> {
        let unknown = || format!("{place}: what `{raw}` gives only a shell knows");
        if let Some(inner) = rest.strip_prefix('{') {
            let end = dollar(format!("${rest}").as_bytes(), 0).ok_or_else(unknown)?;
            // The end counts the `$` and the bracket, which are not in `inner`.
            let (inner, after) = inner
                .split_at_checked(end.saturating_sub(3))
                .and_then(|(inner, after)| Some((inner, after.strip_prefix('}')?)))
                .ok_or_else(unknown)?;
            let name =
                inner.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
            let operation = inner.get(name.len()..).unwrap_or_default();
            if !is_name(name) {
                return Err(unknown());
            }
            let value = self.known(name, &unknown)?;
            let set = self.values.contains_key(name);
            let other = |prefix: &str| self.text(operation.get(prefix.len()..).unwrap_or_default(), place);
            let value = match operation {
                "" => value,
                _ if operation.starts_with(":+") => {
                    if value.is_empty() {
                        String::new()
                    } else {
                        other(":+")?
                    }
                }
                _ if operation.starts_with(":-") => {
                    if value.is_empty() {
                        other(":-")?
                    } else {
                        value
                    }
                }
                _ if operation.starts_with('+') => {
                    if set {
                        other("+")?
                    } else {
                        String::new()
                    }
                }
                _ if operation.starts_with('-') => {
                    if set {
                        value
                    } else {
                        other("-")?
                    }
                }
                _ => return Err(unknown()),
            };
            return Ok((value, after));
        }
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        match name {
            "" if rest.starts_with(['(', '@', '*', '#', '?', '$', '!', '-', '\'']) => Err(unknown()),
            "" => Ok(("$".to_owned(), rest)),
            name if !is_name(name) => Err(unknown()),
            name => Ok((self.known(name, &unknown)?, after)),
        }
    }

    /// Returns the value of a variable of this file. An unset one may come from the caller's environment.
    fn known(&self, name: &str, unknown: &impl Fn() -> String) -> Result<String, String> {
        match self.get(name) {
            Value::Unknown(why) => Err(why),
            Value::Known(_) if !self.values.contains_key(name) && !name.starts_with("GRUB_") => {
                Err(unknown())
            }
            Value::Known(value) => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(text: &str) -> Value {
        let mut variables = Variables::default();
        variables.read("/g", text);
        variables.get("A")
    }

    fn known(text: &str) -> String {
        match value(text) {
            Value::Known(value) => value,
            Value::Unknown(why) => panic!("{text}: {why}"),
        }
    }

    #[test]
    fn plain_assignments_are_read_as_a_shell_does() {
        for (text, expected) in [
            ("A=quiet", "quiet"),
            ("A=quiet # a note\n", "quiet"),
            ("  export A='a b' ; B=1", "a b"),
            ("A=\"a \\\n b\"", "a  b"),
            ("A=a\\ b'c d'\"e\"", "a bc de"),
            ("A=\"x=\\\"y z\\\" \\$tuned_params\"", "x=\"y z\" $tuned_params"),
            ("A=q\nA=\"${A:+$A }\\$tuned_params\"", "q $tuned_params"),
            ("A=\nA=\"${A:+$A }\\$tuned_params\"", "$tuned_params"),
            ("GRUB_B=b\nA=\"$GRUB_B ${GRUB_B} ${GRUB_C:-c} ${GRUB_B:-d}\"", "b b c b"),
            ("A=a\nA+=' b'", "a b"),
            ("# A=no\nB=$(date)\nC=`x`\nA=1", "1"),
            ("if [ -e /x ]; then\n  B=2\nfi\nA=1", "1"),
            ("case $1 in\n  a)\n    B=2\n    ;;\n  (b) B=3;;\nesac\nA=1", "1"),
            ("case $1 in a) B=2;; esac\nA=1", "1"),
            ("(cd /x && pwd)\nA=1", "1"),
            ("(\n  B=$(date)\n)\nA=1", "1"),
            ("b()\n{\n  B=1\n}\nA=1", "1"),
            ("b () {\n  B=1\n}\nA=1", "1"),
            ("esac\nA=1", "1"),
            ("[ -e /x ] && echo x 2>&1\nA=1", "1"),
            ("A=1 && B=2", "1"),
            ("", ""),
        ] {
            assert_eq!(known(text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_shell_computes_is_unknown_with_its_place() {
        for (text, why) in [
            (
                "A=\"quiet\"\nA=\"root=$(findmnt /)\"",
                "/g:2: what `\"root=$(findmnt /)\"` gives only a shell knows",
            ),
            ("A=`cat /x`", "/g:1: what ``cat /x`` gives only a shell knows"),
            ("A=\"$FROM_OUTSIDE x\"", "/g:1: what `\"$FROM_OUTSIDE x\"` gives only a shell knows"),
            ("B=$(date)\nA=$B", "/g:1: what `$(date)` gives only a shell knows"),
            ("A=1\n. /etc/other", "/g:2: what `. /etc/other` does only a shell knows"),
            ("A=1\nif [ -e /x ]; then\n  A=2\nfi", "/g:3: what `A=2` does only a shell knows"),
            ("A=1\nif true; then A=2; fi", "/g:2: what `then A=2` does only a shell knows"),
            ("A=1\n[ -d /x ] && A=2", "/g:2: what `A=2` does only a shell knows"),
            ("A=1\n[ -d /x ] ||\n  A=2", "/g:3: what `A=2` does only a shell knows"),
            ("A=1\n[ -d /x ] && B=1 || A=2", "/g:2: what `A=2` does only a shell knows"),
            ("A=1\ntrue | A=2", "/g:2: what `A=2` does only a shell knows"),
            ("A=1 | true", "/g:1: what `A=1 ` does only a shell knows"),
            ("A=1 &\n", "/g:1: what `A=1 ` does only a shell knows"),
            ("A=1\ncase $1 in\n  a)\n    A=2\n    ;;\nesac", "/g:4: what `A=2` does only a shell knows"),
            ("case $1 in\n  a) A=2;;\n  b) A=3;;\nesac", "/g:3: what `b) A=3` does only a shell knows"),
            ("(\n  B=$(date)\n  A=1\n)", "/g:3: what `A=1` does only a shell knows"),
            ("b () {\n  A=1\n}", "/g:2: what `A=1` does only a shell knows"),
            ("A=1\ncat << E\nA=2\nE", "/g:2: what `cat << E` does only a shell knows"),
            ("A=1\nif true; then . /etc/other; fi", "/g:2: what `then . /etc/other` does only a shell knows"),
            ("A=1\n[ -e /x ] || return\nA=2", "/g:2: what `return` does only a shell knows"),
            ("A=1 printenv", "/g:1: what `A=1 printenv` does only a shell knows"),
            ("A=\"never closed", "/g:1: what `A=\"never closed` does only a shell knows"),
            ("A=${A%x}", "/g:1: what `${A%x}` gives only a shell knows"),
        ] {
            assert_eq!(value(text), Value::Unknown(why.to_owned()), "{text}");
        }
        let mut dash = Variables::of(true);
        dash.read("/g", "A=a\nA+=b\n");
        assert_eq!(dash.get("A"), Value::Unknown("/g:2: /bin/sh is dash, which has no `+=`".to_owned()));
    }

    proptest! {
        #[test]
        fn nothing_panics_and_words_are_where_they_say(text in "([A-C]\\+?=|[a-z \"'$`\\\\(){};#\n]|\\$\\{A:[+-]|\\PC){0,40}") {
            let mut variables = Variables::default();
            variables.read("/g", &text);
            for command in commands(&text) {
                if let Command::Assignment(assignment) = command {
                    prop_assert!(text.get(assignment.word).is_some());
                }
            }
        }
    }

    /// Every known value equals that of the real shell.
    #[test]
    fn values_are_those_of_the_real_shell() {
        let pieces = [
            "a",
            " ",
            "\"",
            "'",
            "$A",
            "${A}",
            "${A:+x }",
            "${A:-y}",
            "\\$t",
            "\\\\",
            "\\\n",
            "b=1",
            "${GRUB_N:-z}",
        ];
        let mut seed = 7u64;
        let mut agreed = 0;
        for _ in 0..400 {
            let mut text = "A='p q'\nA=".to_owned();
            for _ in 0..5 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = usize::try_from(seed >> 33).unwrap() % pieces.len();
                text.push_str(pieces[at]);
            }
            let Value::Known(ours) = value(&text) else { continue };
            let shell = std::process::Command::new("/bin/sh")
                .args(["-c", &format!("{text}\nprintf '%s' \"$A\"")])
                .env_clear()
                .output()
                .unwrap();
            assert!(shell.status.success(), "{text}: {shell:?}");
            assert_eq!(ours, String::from_utf8_lossy(&shell.stdout), "{text}");
            agreed += 1;
        }
        assert!(agreed > 50, "only {agreed} values could be compared");
    }
}
