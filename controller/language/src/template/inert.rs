//! Whether what a node said would be read by a shell of this machine.
//!
//! A line is rendered twice: as it is, and with a mark in place of every character of the node that is not plain. Where
//! marks stand outside of single quotes, or the two lines differ in more than the marks, a shell would read the node's
//! words. Must not know who renders what.
//!
//! Why not a check of the text alone: what a person wrote for a shell may hold anything, and both meet in one line.

use std::cell::Cell;
use std::sync::Arc;

use super::value::{Dict, Value};

/// Of the private use area: no filter changes its case, and no text that is well holds it.
const MARK: char = '\u{f8f0}';
/// What may stand in single quotes without ending them, as the filter `quote` writes it.
const QUOTED: &str = r#"(?:[^']|'"'"')*"#;

/// Why a line is not run.
pub const REFUSED: &str =
    "something that a node said goes into it, with characters that a shell acts on; put `| quote` behind it";

/// What is being rendered on this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rendering {
    #[default]
    Anything,
    /// A line for a shell.
    Line,
    /// The same line, of variables that are [`masked`].
    Masked,
}

thread_local! {
    static RENDERING: Cell<Rendering> = const { Cell::new(Rendering::Anything) };
}

struct Back(Rendering);

impl Drop for Back {
    fn drop(&mut self) {
        RENDERING.set(self.0);
    }
}

fn rendering<T>(what: Rendering, act: impl FnOnce() -> T) -> T {
    let _back = Back(RENDERING.replace(what));
    act()
}

/// Renders a line for a shell: the filter `quote` puts everything into quotes that is not plain.
pub fn line<T>(act: impl FnOnce() -> T) -> T {
    rendering(Rendering::Line, act)
}

/// Renders the same line once more, of variables that are [`masked`].
pub fn masked_line<T>(act: impl FnOnce() -> T) -> T {
    rendering(Rendering::Masked, act)
}

/// Whether a masked line is being rendered.
pub(super) fn is_masked() -> bool {
    RENDERING.get() == Rendering::Masked
}

/// What stands for what a marked line would print.
pub(super) fn mark() -> Value {
    Value::str(MARK.to_string())
}

/// The same variables, with a mark in place of every character in their texts that is not plain.
pub fn masked(dict: &Arc<Dict>) -> Arc<Dict> {
    Arc::new(dict.iter().map(|(key, value)| (Arc::<str>::from(mask(key)), mask_value(value))).collect())
}

fn mask_value(value: &Value) -> Value {
    match value {
        Value::Str(text) => Value::str(mask(text)),
        Value::List(list) => Value::list(list.items().iter().map(mask_value).collect()),
        Value::Map(dict) => Value::Map(masked(dict)),
        Value::Secret(value) => Value::Secret(Arc::new(mask_value(value))),
        other => other.clone(),
    }
}

/// Why `%` and `+` are not plain: encodings are made of them.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-/:@,".contains(c)
}

/// As long as the text, so that a slice, a pattern or a word of it has what is left of both.
fn mask(text: &str) -> String {
    // Why the first hyphen: a program would take the text for an option.
    let shown = |(place, c)| if is_plain(c) && (place, c) != (0, '-') { c } else { MARK };
    text.chars().enumerate().map(shown).collect()
}

/// Whether the filter `quote` has to quote this text in a line; `None` where nothing but a text is rendered.
pub(super) fn wants_quotes(text: &str) -> Option<bool> {
    let plain = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    (RENDERING.get() != Rendering::Anything).then_some(!plain)
}

/// What a filter makes of characters that are not there before it. Nobody can tell then whose they are, so that they count
/// as the node's.
pub(super) fn decoded(from: &str, decode: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    match RENDERING.get() {
        Rendering::Masked if is_marked(from) => Ok(MARK.to_string()),
        Rendering::Masked => decode().map(|text| mask(&text)),
        Rendering::Anything | Rendering::Line => decode(),
    }
}

/// Whether a text has marks, which no quotes of a representation may hide: the real text may have other quotes.
pub(super) fn is_marked(text: &str) -> bool {
    RENDERING.get() == Rendering::Masked && text.contains(MARK)
}

/// Whether a character is a mark, which stays what it is where others are written as numbers.
pub(super) fn is_mark(c: char) -> bool {
    RENDERING.get() == Rendering::Masked && c == MARK
}

/// Whether a shell reads nothing in a line that a node said: the line as it is, and as it is with [`masked`] variables.
pub fn is_inert(line: &str, masked: &str) -> bool {
    if !masked.contains(MARK) {
        return line == masked;
    }
    let pieces = masked.split(MARK).filter(|piece| !piece.is_empty()).map(regex::escape);
    let mut pattern = pieces.collect::<Vec<_>>().join(QUOTED);
    for (at_end, marked) in [(false, masked.starts_with(MARK)), (true, masked.ends_with(MARK))] {
        match (marked, at_end) {
            (true, true) => pattern.push_str(QUOTED),
            (true, false) => pattern.insert_str(0, QUOTED),
            (false, _) => {}
        }
    }
    // Why any match is a proof: in each of them what is the node's stands in single quotes that it does not end.
    marks_are_quoted(masked)
        && regex::Regex::new(&format!("(?s)^{pattern}$")).is_ok_and(|pattern| pattern.is_match(line))
}

/// Where a shell is in a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Words,
    Single,
    Double,
    Comment,
}

/// Whether every mark of a line stands in single quotes, as a POSIX shell reads it.
fn marks_are_quoted(line: &str) -> bool {
    let (mut state, mut before) = (In::Words, '\n');
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let next = chars.peek().copied().unwrap_or_default();
        if c == MARK && state != In::Single {
            return false;
        }
        match (state, c) {
            (In::Single, '\'') | (In::Double, '"') | (In::Comment, '\n') => state = In::Words,
            (In::Single | In::Comment, _) => {}
            (In::Words | In::Double, '\\') => {
                if chars.next() == Some(MARK) {
                    return false;
                }
            }
            (In::Words, '\'') => state = In::Single,
            (In::Words, '"') => state = In::Double,
            (In::Words, '#') if before.is_whitespace() || ";&|()".contains(before) => state = In::Comment,
            // Why nothing behind these: other rules hold for quotes in there.
            (In::Words | In::Double, '`') => return !chars.any(|c| c == MARK),
            (In::Double, '$') if matches!(next, '(' | '{') => return !chars.any(|c| c == MARK),
            (In::Words, '$') if matches!(next, '\'' | '"') => return !chars.any(|c| c == MARK),
            (In::Words, '(' | '<') if next == c => return !chars.any(|c| c == MARK),
            (In::Words | In::Double, _) => {}
        }
        before = c;
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::template::{Scope, resolve};

    /// The line that a template gives with this fact, where a shell reads nothing of it.
    fn inert(template: &str, said: &str) -> Option<String> {
        let facts: Arc<Dict> = Arc::new([(Arc::<str>::from("h"), Value::str(said))].into_iter().collect());
        let render =
            |facts| resolve(&Value::text(template), &Scope::new(vec![facts])).map(|line| line.to_text());
        let real = line(|| render(Arc::clone(&facts))).ok()?;
        let shown = masked_line(|| render(masked(&facts))).ok()?;
        is_inert(&real, &shown).then_some(real)
    }

    #[test]
    fn no_filter_takes_the_mark_off_what_it_keeps() {
        let bad = "gpu001$(x)";
        for template in [
            "{{ h }}",
            "bmc{{ h[3:] }}",
            "{{ h | regex_search('[0-9].*') }}",
            "{{ h | regex_replace('^gpu', '') }}",
            "{{ h.split('1') | last }}",
            "{{ h | replace('gpu', '') }}",
            "{{ h if '$' in h else 'none' }}",
            "{{ [h] }}",
            "{{ {'a': h} | to_json }}",
            "\"{{ h }}\"",
            "{{ h | urlencode | urldecode }}",
            "{{ h | b64encode | b64decode }}",
            "true # don't {{ h }}",
            "cat <<END\ndon't {{ h }}\nEND",
            "echo `echo '{{ h }}'`",
            "echo \"$(echo 'a\"b')\" {{ h | quote }}",
            "echo $(( '{{ h }}' ))",
            "echo $'\\'{{ h }}'",
            "echo \\'{{ h }}\\'",
        ] {
            assert_eq!(inert(template, bad), None, "{template}");
        }
        // `JCh4KQ` and `JCh4KSAg` are plain, and what they mean is not.
        for (said, template) in [
            ("JCh4KSAg", "{{ h | b64decode }}"),
            ("JCh4KQ==", "{{ h | b64decode | trim }}"),
            ("JTI0", "{{ h | b64decode | urldecode }}"),
            ("36", "{{ '%c' % (h | int) }}"),
            ("'; id; '", "'{{ h }}'"),
            ("'; id; '", "echo '{{ h | upper }}' 'b'"),
            ("'", "echo '{{ h }}' 'a; id'"),
            ("-rf", "rm {{ h }}"),
        ] {
            assert_eq!(inert(template, said), None, "{template}: {said}");
        }
    }

    #[test]
    fn what_a_shell_reads_nothing_of_is_taken_as_it_is() {
        for (said, template, line) in [
            ("gpu001", "bmc{{ h[3:] }} power", "bmc001 power"),
            ("gpu001.example.com", "{{ h.split('.') | first }}", "gpu001"),
            ("gpu 1", "{{ h[3:] | quote }}", "' 1'"),
            ("a+b=c", "{{ h | quote }}", "'a+b=c'"),
            ("it's $(x)", "a {{ h | quote }} 'b c'", "a 'it'\"'\"'s $(x)' 'b c'"),
            ("it's", "{{ [h] | to_json | quote }}", "'[\"it'\"'\"'s\"]'"),
            ("$(x)", "echo '{{ h }}' # {{ h | length }}", "echo '$(x)' # 4"),
            ("JCh4KQ==", "{{ h | b64decode | trim | quote }}", "'$(x)'"),
            ("$(x)", "if true; then $(echo '{{ h }}'); fi", "if true; then $(echo '$(x)'); fi"),
            ("-rf", "rm -- {{ h | quote }}", "rm -- '-rf'"),
        ] {
            assert_eq!(inert(template, said).as_deref(), Some(line), "{template}");
        }
    }

    proptest! {
        /// Whatever stands in quotes is one word of the shell, and that word is what the node said.
        #[test]
        fn what_is_quoted_is_one_word(said in "[ -~]{0,12}") {
            let line = inert("x {{ h | quote }} y", &said).expect("`quote` makes all of it inert");
            let word = line.strip_prefix("x ").and_then(|line| line.strip_suffix(" y")).unwrap();
            let word = match word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')) {
                Some(quoted) => quoted.replace("'\"'\"'", "'"),
                None => word.to_owned(),
            };
            prop_assert_eq!(word, said);
        }

        #[test]
        fn what_people_quote_is_inert_as_long_as_no_quote_is_in_it(said in "[ -~]{0,12}") {
            let expected = !said.contains('\'');
            prop_assert_eq!(inert("x '{{ h }}' y", &said).is_some(), expected);
        }

        #[test]
        fn what_stands_bare_is_plain(said in "[ -~]{0,12}") {
            if inert("x {{ h }} y", &said).is_some() {
                prop_assert!(said.chars().all(is_plain), "{}", said);
            }
        }
    }
}
