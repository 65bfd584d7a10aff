//! Makes foreign text safe to show and to copy.
//!
//! Owns what must not reach a terminal or a page unchanged: control characters, characters that are invisible or change
//! how others look (bidirectional marks, zero width), and those that no XML may have (U+FFFE, U+FFFF). They become JSON
//! escapes (`\u001b`), so that a JSON document keeps its meaning. All text from nodes, other users or names goes through
//! here where it is shown; a writer to a terminal applies [`guarded`] once more. Must not know what a text is about.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character is a control character, is invisible, or changes how other characters look.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

fn escape(c: char, out: &mut String) {
    let mut units = [0; 2];
    for unit in c.encode_utf16(&mut units) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(|c| is_hidden(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) && !keep(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Returns the text as one line of visible characters: line breaks are escaped too.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Returns the text with visible characters, line breaks and tabs only.
///
/// The caller must make sure that no line can be mistaken for one of gpufleet's own.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    let keep = |c| matches!(c, '\n' | '\t');
    if text.contains("\r\n") {
        return Cow::Owned(escaped(&text.replace("\r\n", "\n"), keep).into_owned());
    }
    escaped(text, keep)
}

/// Returns a JSON document with visible characters only, and with the same meaning.
pub fn visible_json(document: &str) -> Cow<'_, str> {
    // Outside of strings, JSON has no other control characters than line breaks and tabs.
    visible_lines(document)
}

/// Returns a value as an indented JSON document of visible characters.
///
/// # Errors
/// Those of the writer.
pub fn json_document(value: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|document| visible_json(&document).into_owned())
}

/// Returns a value as one line of JSON of visible characters, with its line break.
///
/// # Errors
/// Those of the writer.
pub fn json_line(value: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(|line| format!("{}\n", visible_json(&line)))
}

/// Formats a value in a template of a page: escapes it, and shows hidden characters.
///
/// # Errors
/// Those of minijinja's own formatter.
pub fn escape_visible(
    out: &mut minijinja::Output<'_>,
    state: &mut minijinja::State<'_, '_>,
    value: &minijinja::Value,
) -> Result<(), minijinja::Error> {
    // Not for safe values, which are gpufleet's own markup or JSON.
    match value.as_str().filter(|text| !value.is_safe() && text.contains(is_hidden)) {
        Some(text) => {
            let shown = minijinja::Value::from(visible_lines(text).as_ref());
            minijinja::escape_formatter(out, state, &shown)
        }
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// Returns a text with nothing but visible characters, line breaks, tabs and, if `color`, colours.
///
/// This is the last step before a terminal. It sees no fields, so it cannot tell gpufleet's lines from foreign ones:
/// that is the task of [`visible`].
pub fn guarded(text: &str, color: bool) -> Cow<'_, str> {
    let keep = |c| matches!(c, '\n' | '\t');
    if !color {
        return escaped(text, keep);
    }
    if !text.contains(|c| is_hidden(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, sequence) = rest.split_at(at);
        out.push_str(&escaped(before, keep));
        let length = color_length(sequence);
        let (sequence, behind) = sequence.split_at(length.unwrap_or(1));
        out.push_str(&if length.is_some() { Cow::Borrowed(sequence) } else { visible(sequence) });
        rest = behind;
    }
    out.push_str(&escaped(rest, keep));
    Cow::Owned(out)
}

/// Returns the length in bytes of the colour sequence that a text begins with: `ESC [ 1 ; 31 m`.
fn color_length(text: &str) -> Option<usize> {
    let inside = text.strip_prefix("\u{1b}[")?;
    let end = inside.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    inside.get(end..)?.starts_with('m').then_some(end + 3)
}

/// Returns the text without colour sequences.
pub fn without_colors(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, sequence) = rest.split_at(at);
        out.push_str(before);
        let length = color_length(sequence);
        if length.is_none() {
            out.push('\u{1b}');
        }
        rest = sequence.get(length.unwrap_or(1)..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Returns a command for a person to copy, quoted so that a shell reads exactly these words and does nothing else.
pub fn command_line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| command_word(word.as_ref())).collect();
    words.join(" ")
}

/// Returns one word of [`command_line`].
pub fn command_word(word: &str) -> String {
    if !word.contains(is_hidden) {
        // `shell_words` leaves these signs unquoted, but an interactive bash expands them to several words or to
        // another command.
        return match word.contains(['{', '}', '!', '^']) {
            true => format!("'{}'", word.replace('\'', r"'\''")),
            false => shell_words::quote(word).into_owned(),
        };
    }
    // In plain quotes, the hidden characters would be pasted into a terminal unchanged.
    let mut out = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if is_hidden(c) => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\x{byte:02x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_seen_becomes_an_escape() {
        assert_eq!(
            visible("a\u{1b}[2J\u{9b}\u{202e}\n\u{200b}\u{e0041}é"),
            "a\\u001b[2J\\u009b\\u202e\\u000a\\u200b\\udb40\\udc41é"
        );
        assert_eq!(visible_lines("a\r\n\tb\rc"), "a\n\tb\\u000dc");
        assert_eq!(visible("plain ✗ …"), "plain ✗ …");
    }

    #[test]
    fn colours_pass_only_where_they_are_wanted() {
        let text = "\u{1b}[1;31mred\u{1b}[0m \u{1b}]0;title\u{7}\u{1b}[2J\u{1b}";
        assert_eq!(guarded(text, true), "\u{1b}[1;31mred\u{1b}[0m \\u001b]0;title\\u0007\\u001b[2J\\u001b");
        assert_eq!(guarded(text, false), visible(text));
        assert_eq!(without_colors(text), "red \u{1b}]0;title\u{7}\u{1b}[2J\u{1b}");
    }

    #[test]
    fn commands_are_quoted() {
        assert_eq!(command_line(["run", "a b", "gpu[1,2]", "$(x)"]), "run 'a b' 'gpu[1,2]' '$(x)'");
        assert_eq!(command_word("a\u{1b}'b\n"), "$'a\\x1b\\'b\\x0a'");
        assert_eq!(
            command_line(["gpu{1,2}", "all:!gpu001", "^a^b", "it's {x}"]),
            r"'gpu{1,2}' 'all:!gpu001' '^a^b' 'it'\''s {x}'"
        );
    }

    /// Commands whose arguments need no quotes: ids of runs, and names that Kubernetes or Slurm has checked. None of
    /// these can hold a character that is special to a shell.
    const CHECKED: [&str; 13] = [
        "gpufleet resume {",
        "gpufleet report {",
        "gpufleet pause {",
        "gpufleet abort {",
        "gpufleet adopt PLAYBOOK --run {",
        "scontrol show node {",
        "kubectl describe node {",
        "kubectl get node {",
        "kubectl label node {",
        "kubectl uncordon {",
        "kubectl get pod",
        "kubectl delete pod",
        "kubectl -n {",
    ];

    #[test]
    fn nothing_else_quotes_commands_for_people() {
        let shown = regex::Regex::new(
            r"`((gpufleet|ssh[a-z-]*|ch(mod|own)|kubectl|scontrol|systemctl|mv|rm|cp|mkdir) [^`]*\{[^`]*)`",
        )
        .unwrap();
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut folders = vec![source.join("src"), source.join("language/src")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                let name = path.strip_prefix(&source).unwrap().display().to_string();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                if !name.ends_with(".rs") || name.contains("tests") || name == "language/src/visible.rs" {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
                for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
                    let own =
                        ["shell_words::quote", "to_string_pretty("].iter().any(|word| line.contains(word));
                    let bare = shown.captures_iter(line).map(|found| found[1].to_owned());
                    let bare = bare.filter(|command| !CHECKED.iter().any(|known| command.starts_with(known)));
                    found.extend(
                        own.then(|| line.to_owned())
                            .into_iter()
                            .chain(bare)
                            .map(|what| format!("{name}: {what}")),
                    );
                }
            }
        }
        assert!(
            found.is_empty(),
            "these have to go through `command_line`, `command_word` or `json_document`: {found:#?}"
        );
    }

    #[test]
    fn documents_keep_their_meaning_and_show_all() {
        let value = serde_json::json!({"a\u{9b}31m": ["\u{202e}gnp", "tab\t\n", "\u{e0041}", "plain ü"]});
        for text in [json_document(&value).unwrap(), json_line(&value).unwrap()] {
            assert!(!text.contains(|c| is_hidden(c) && c != '\n'), "{text:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
        assert_eq!(json_line(&value).unwrap().lines().count(), 1);
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left(text in "(\\PC|[\\x00-\\x1f\\x7f-\\u{9f}\\u{200b}-\\u{202e}]|\x1b\\[[0-9;]{0,3}m){0,40}") {
            prop_assert!(!visible(&text).contains(is_hidden));
            prop_assert!(!visible_lines(&text).contains(|c| is_hidden(c) && c != '\n' && c != '\t'));
            let plain = without_colors(&guarded(&text, true));
            prop_assert!(!plain.contains(|c| is_hidden(c) && c != '\n' && c != '\t'), "{plain:?}");
        }

        #[test]
        fn a_json_document_stays_the_same(text in "(\\PC|[\\x00-\\x1f\\x7f-\\u{9f}\\u{200b}-\\u{202e}\\u{e0041}]){0,40}") {
            let value = serde_json::json!({ "a": text, text.clone(): 1 });
            for document in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let shown = visible_json(&document);
                prop_assert!(!shown.contains(|c| is_hidden(c) && c != '\n'));
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&shown).unwrap(), &value);
            }
        }

        #[test]
        fn a_shell_reads_the_words(words in proptest::collection::vec("([ -~]|[\\x01-\\x1f\\x7f]|[é\\u{202e}]){0,12}", 1..5)) {
            let line = format!("printf '%s\\0' {}", command_line(&words));
            prop_assert!(!line.contains(is_hidden));
            let out = std::process::Command::new("bash").args(["-c", &line]).output().unwrap();
            let read: Vec<String> = String::from_utf8(out.stdout).unwrap().split_terminator('\0').map(str::to_owned).collect();
            prop_assert_eq!(read, words);
        }
    }
}
