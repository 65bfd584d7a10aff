//! Keeps text from nodes from being interpreted by a shell of the controller.
//!
//! A shell line is rendered twice: as it is, and with a mark in place of each character from a node that is not
//! plain. If a mark is outside of single quotes, or the two lines differ in more than the marks, a shell would
//! interpret the node's text. Must not know who renders what.
//!
//! The finished line alone is not enough: a person may write anything for a shell, and both are mixed in one line.

use std::cell::Cell;
use std::sync::Arc;

use super::value::{Dict, Value};

/// From the private use area: no filter changes its case, and no valid text holds it.
const MARK: char = '\u{f8f0}';
/// Text that does not end single quotes, as the filter `quote` writes it.
const QUOTED: &str = r#"(?:[^']|'"'"')*"#;

/// Why a line is refused.
pub const REFUSED: &str =
    "something that a node said goes into it, with characters that a shell acts on; put `| quote` behind it";

/// Why a file is not taken for a template or for variables.
pub const REFUSED_FILE: &str = "a node sent it (`fetch`), and templates in it could run anything here; take the text with \
    `lookup('file', …)`, and what it means with `| from_json` or `| from_yaml`";

/// What must not act on a node's text, and so which of its characters get a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A shell.
    Shell,
    /// The controller's file system: nothing that leads out of the folder that a person named.
    Path,
    /// Anything: every character gets one.
    All,
}

/// Why a path is refused.
pub const REFUSED_PATH: &str = "something that a node said goes into this path, and leads to another folder with `/`, `..` or \
    `~`; take a part of it, as with `| basename`, or choose the path by a condition";

/// What is being rendered on this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rendering {
    #[default]
    Anything,
    /// A shell line.
    Line,
    /// A text with [`masked`] variables.
    Masked(Guard),
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

/// Renders a shell line, in which the filter `quote` quotes everything that is not plain.
pub fn line<T>(act: impl FnOnce() -> T) -> T {
    rendering(Rendering::Line, act)
}

/// Renders a text with variables that are [`masked`] for the same guard.
pub fn masked_text<T>(guard: Guard, act: impl FnOnce() -> T) -> T {
    rendering(Rendering::Masked(guard), act)
}

/// Whether a masked text is being rendered.
pub(super) fn is_masked() -> bool {
    guard().is_some()
}

/// What the masked text that is being rendered is for; `None` if it is the text itself.
pub(super) fn guard() -> Option<Guard> {
    match RENDERING.get() {
        Rendering::Masked(guard) => Some(guard),
        Rendering::Anything | Rendering::Line => None,
    }
}

/// The output of a line that holds marks.
pub(super) fn mark() -> Value {
    Value::str(MARK.to_string())
}

/// Returns the variables with a mark in place of every character that this guard lets nobody act on. Names of variables
/// stay, as a template could not ask for them otherwise.
pub fn masked(dict: &Arc<Dict>, guard: Guard) -> Arc<Dict> {
    let name = |key: &str| if guard == Guard::Shell { mask(key, guard) } else { key.to_owned() };
    let entry = |(key, value): (&Arc<str>, &Value)| (Arc::<str>::from(name(key)), mask_value(value, guard));
    Arc::new(dict.iter().map(entry).collect())
}

fn mask_value(value: &Value, guard: Guard) -> Value {
    match value {
        Value::Str(text) => Value::str(mask(text, guard)),
        Value::List(list) => Value::list(list.items().iter().map(|item| mask_value(item, guard)).collect()),
        Value::Map(dict) => Value::Map(masked(dict, guard)),
        Value::Secret(value) => Value::Secret(Arc::new(mask_value(value, guard))),
        other => other.clone(),
    }
}

/// Whether a character needs no quotes. `%` and `+` do, as encodings use them.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-/:@,".contains(c)
}

/// Replaces characters by marks. The length stays, so that slices and patterns fit both texts.
fn mask(text: &str, guard: Guard) -> String {
    let mut before = None;
    let mut chars = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        let marked = match guard {
            // A program would take a word with a leading hyphen for an option, and a part of the text may become a word.
            Guard::Shell => !is_plain(c) || c == '-' && !before.is_some_and(char::is_alphanumeric),
            Guard::Path => match c {
                '/' | '\0' => true,
                '~' => before.is_none(),
                '.' => before == Some('.') || chars.peek() == Some(&'.'),
                _ => false,
            },
            Guard::All => true,
        };
        shown.push(if marked { MARK } else { c });
        before = Some(c);
    }
    shown
}

/// Whether a path leads out of the folder in which it is looked for.
pub fn leads_out(path: &str) -> bool {
    path.starts_with(['/', '~']) || path.contains('\0') || path.split('/').any(|part| part == "..")
}

/// Whether a node's text leads to no other folder in `path`; `masked` is the path with variables masked for
/// [`Guard::Path`].
pub fn stays_below(path: &str, masked: &str) -> bool {
    if !leads_out(path) {
        return true;
    }
    let shape = |path: &str| {
        let parts = path.split('/');
        (parts.clone().count(), parts.filter(|part| *part == "..").count(), path.starts_with(['/', '~']))
    };
    !path.contains('\0') && shape(path) == shape(masked)
}

/// Whether a text with variables that are masked for [`Guard::All`] shows that a node's text is in it.
pub fn is_said(masked: &str) -> bool {
    masked.contains(MARK)
}

/// Whether the filter `quote` must quote this text; `None` if no shell line is being rendered.
pub(super) fn wants_quotes(text: &str) -> Option<bool> {
    let plain = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    (RENDERING.get() != Rendering::Anything).then_some(!plain)
}

/// Applies a decoder. Whether its output comes from a node cannot be told, so all of it counts as the node's.
pub(super) fn decoded(from: &str, decode: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    match RENDERING.get() {
        Rendering::Masked(_) if is_marked(from) => Ok(MARK.to_string()),
        Rendering::Masked(guard) => decode().map(|text| mask(&text, guard)),
        Rendering::Anything | Rendering::Line => decode(),
    }
}

/// Returns a text that a node said, with marks if a masked text is being rendered.
pub(super) fn said(text: &str) -> String {
    guard().map_or_else(|| text.to_owned(), |guard| mask(text, guard))
}

/// Whether a text has marks. If so, a representation must not quote it, as the real text may get other quotes.
pub(super) fn is_marked(text: &str) -> bool {
    is_masked() && text.contains(MARK)
}

/// Whether a character is a mark, which must not be replaced by a number.
pub(super) fn is_mark(c: char) -> bool {
    is_masked() && c == MARK
}

/// Whether a shell interprets nothing of a node's text in `line`; `masked` is the line with [`masked`] variables.
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
    // Any match is a proof: it puts each text of the node inside single quotes that the text does not end.
    marks_are_quoted(masked)
        && regex::Regex::new(&format!("(?s)^{pattern}$")).is_ok_and(|pattern| pattern.is_match(line))
}

/// The state of a shell in a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Words,
    Single,
    Double,
    Comment,
}

/// Whether every mark of a line is inside of single quotes for a POSIX shell.
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
            // Other quoting rules hold behind these, so no mark may follow.
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

    /// Returns the line that a template gives with this fact, if a shell interprets nothing of it.
    fn inert(template: &str, said: &str) -> Option<String> {
        let facts: Arc<Dict> = Arc::new([(Arc::<str>::from("h"), Value::str(said))].into_iter().collect());
        let render =
            |facts| resolve(&Value::text(template), &Scope::new(vec![facts])).map(|line| line.to_text());
        let real = line(|| render(Arc::clone(&facts))).ok()?;
        let shown = masked_text(Guard::Shell, || render(masked(&facts, Guard::Shell))).ok()?;
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
        // `JCh4KQ` and `JCh4KSAg` are plain, but their decoded texts are not.
        for (said, template) in [
            ("JCh4KSAg", "{{ h | b64decode }}"),
            ("JCh4KQ==", "{{ h | b64decode | trim }}"),
            ("JTI0", "{{ h | b64decode | urldecode }}"),
            ("36", "{{ '%c' % (h | int) }}"),
            ("'; id; '", "'{{ h }}'"),
            ("'; id; '", "echo '{{ h | upper }}' 'b'"),
            ("'", "echo '{{ h }}' 'a; id'"),
            ("-rf", "rm {{ h }}"),
            ("x,-oevil", "ssh-keygen -F {{ h.split(',')[1] }}"),
            ("a/-evil", "ls {{ h | basename }}"),
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
        /// Any quoted text is one shell word, and that word is the text.
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
