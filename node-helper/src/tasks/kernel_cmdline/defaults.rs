//! `/etc/default/grub` and its drop-ins: the words that their assignments result in, and edits of single words that
//! keep everything else. Pure.

use gpufleet_protocol::tasks::KernelCmdline;

use super::{
    shell::{self, Command, Value, Variables},
    sources::{Kind, Source},
    words,
};

/// The variables that `10_linux` writes into an entry, in its order; recovery entries lack the second.
pub const VARIABLES: [&str; 2] = ["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"];

/// Marks a word with variables, which is kept as written.
const OPAQUE: char = '\0';

/// Returns the words that the assignments of all GRUB defaults result in, read in order.
///
/// # Errors
/// If only a shell could tell, with reason and place.
pub fn total(files: &[Source], dash: bool) -> Result<Vec<String>, String> {
    let mut variables = Variables::of(dash);
    for file in files.iter().filter(|file| file.kind == Kind::GrubDefaults) {
        variables.read(&file.path.display().to_string(), &file.text);
    }
    let mut all = Vec::new();
    for name in VARIABLES {
        match variables.get(name) {
            Value::Known(value) => all.extend(words::split(&value)),
            Value::Unknown(why) => return Err(why),
        }
    }
    Ok(all)
}

/// Splits a value into its quote, and each word's meaning and spelling.
fn taken_apart(raw: &str) -> Option<(char, Vec<(String, String)>)> {
    let single = raw.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\''));
    let double = raw.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
    if let Some(inner) = single.filter(|inner| !inner.contains('\'')) {
        return Some(('\'', words::split(inner).into_iter().map(|word| (word.clone(), word)).collect()));
    }
    if let Some(inner) = double.filter(|_| shell::is_one_quote(raw)) {
        let found = raw_words(inner).into_iter().map(|word| {
            // Without variables, because a word that needs one is opaque.
            let meant = Variables::default().expand(&format!("\"{word}\""), "");
            match meant {
                Value::Known(meant) if !has_variable(&word) => (meant, word),
                _ => (format!("{OPAQUE}{word}"), word),
            }
        });
        return Some(('"', found.collect()));
    }
    if raw.contains(['\'', '"', '$', '`', '\\']) {
        return None;
    }
    Some(('"', words::split(raw).into_iter().map(|word| (word.clone(), word)).collect()))
}

/// Whether a shell would substitute something in a double-quoted word.
fn has_variable(word: &str) -> bool {
    let mut escaped = false;
    word.chars().any(|c| {
        let found = !escaped && matches!(c, '$' | '`');
        escaped = c == '\\' && !escaped;
        found
    })
}

/// Splits the inside of double quotes at spaces outside of `${…}`, `$(…)` and the kernel's own quotes.
fn raw_words(inner: &str) -> Vec<String> {
    // With quotes, because outside of them a `'` would open a quote.
    let joined = shell::joined(&format!("\"{inner}\""));
    let inner = joined.get(1..joined.len().saturating_sub(1)).unwrap_or_default();
    let (mut found, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut at = 0;
    while let Some(c) = inner.get(at..).and_then(|rest| rest.chars().next()) {
        let mut end = at + c.len_utf8();
        match c {
            '\\' => {
                let next = inner.get(end..).and_then(|rest| rest.chars().next());
                quoted ^= next == Some('"');
                end += next.map_or(0, char::len_utf8);
            }
            '$' => end = shell::dollar(inner.as_bytes(), at).unwrap_or(end),
            _ => {}
        }
        let piece = inner.get(at..end).unwrap_or_default();
        if c.is_whitespace() && !quoted {
            if !word.is_empty() {
                found.push(std::mem::take(&mut word));
            }
        } else {
            word.push_str(piece);
        }
        at = end;
    }
    if !word.is_empty() {
        found.push(word);
    }
    found
}

fn escaped(word: &str) -> String {
    word.chars()
        .flat_map(|c| matches!(c, '"' | '\\' | '$' | '`').then_some('\\').into_iter().chain([c]))
        .collect()
}

/// Returns a value with changed words; `None` if they stay the same.
///
/// # Errors
/// If the words must change, but the value's spelling cannot be split.
fn edited_value(raw: &str, edit: &dyn Fn(&[String]) -> Vec<String>) -> Result<Option<String>, ()> {
    let Some((quote, parts)) = taken_apart(raw) else {
        return match Variables::default().expand(raw, "") {
            Value::Known(value) if !has_variable(raw) => {
                let now = words::split(&value);
                let then = edit(&now);
                Ok((then != now).then(|| format!("\"{}\"", escaped(&then.join(" ")))))
            }
            _ => Err(()),
        };
    };
    let now: Vec<String> = parts.iter().map(|(meant, _)| meant.clone()).collect();
    let then = edit(&now);
    if then == now {
        return Ok(None);
    }
    let written = |word: &String| match parts.iter().find(|(meant, _)| meant == word) {
        Some((_, raw)) => raw.clone(),
        None if quote == '"' => escaped(word),
        None => word.clone(),
    };
    let words: Vec<String> = then.iter().map(written).collect();
    Ok(Some(format!("{quote}{}{quote}", words.join(" "))))
}

/// Returns the file with the words of each of its assignments changed.
///
/// # Errors
/// If a value must change but cannot be split, with its place.
pub fn edited(file: &Source, edit: &dyn Fn(&[String]) -> Vec<String>) -> Result<String, String> {
    let mut out = String::with_capacity(file.text.len() + 64);
    let mut copied = 0;
    for command in shell::commands(&file.text) {
        let Command::Assignment(found) = command else { continue };
        if !VARIABLES.contains(&found.name.as_str()) {
            continue;
        }
        let raw = file.text.get(found.word.clone()).unwrap_or_default();
        let new = edited_value(raw, edit).map_err(|()| {
            format!(
                "{}:{}: the words of `{raw}` cannot be changed by a program; write them out there",
                file.path.display(),
                found.line
            )
        })?;
        if let Some(new) = new {
            out.push_str(file.text.get(copied..found.word.start).unwrap_or_default());
            out.push_str(&new);
            copied = found.word.end;
        }
    }
    out.push_str(file.text.get(copied..).unwrap_or_default());
    Ok(out)
}

/// Returns the file with the words of `task.add` in its last assignment of `GRUB_CMDLINE_LINUX`, or in a new one.
pub fn with_words(file: &Source, task: &KernelCmdline) -> String {
    let last = shell::commands(&file.text).into_iter().rev().find_map(|command| match command {
        Command::Assignment(found) if found.name == VARIABLES[0] => Some(found.word),
        _ => None,
    });
    if let Some(place) = last.clone() {
        let raw = file.text.get(place.clone()).unwrap_or_default();
        if let Ok(Some(new)) = edited_value(raw, &|words| words::completed(task, words)) {
            let (before, behind) = (file.text.get(..place.start), file.text.get(place.end..));
            return format!("{}{new}{}", before.unwrap_or_default(), behind.unwrap_or_default());
        }
    }
    let line_break = if file.text.is_empty() || file.text.ends_with('\n') { "" } else { "\n" };
    let name = VARIABLES[0];
    let earlier = last.map_or_else(String::new, |_| format!("${{{name}}} "));
    format!("{}{line_break}{name}=\"{earlier}{}\"\n", file.text, task.add.join(" "))
}

/// Returns the drop-in with the words that the other files lack.
pub fn drop_in(words: &[String]) -> String {
    let name = VARIABLES[0];
    format!("# Written by gpufleet.\n{name}=\"${{{name}}} {}\"\n", words.join(" "))
}

/// Returns the words that gpufleet's drop-in already adds.
pub fn drop_in_words(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for command in shell::commands(&file.text) {
        if let Command::Assignment(assignment) = command
            && let Some((_, parts)) = taken_apart(file.text.get(assignment.word).unwrap_or_default())
        {
            found.extend(parts.into_iter().map(|(meant, _)| meant).filter(|word| !word.starts_with(OPAQUE)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grub(text: &str) -> Source {
        Source { path: "/etc/default/grub".into(), kind: Kind::GrubDefaults, text: text.into() }
    }

    fn adding(words: &[&str]) -> KernelCmdline {
        KernelCmdline { add: words.iter().map(|word| (*word).to_owned()).collect(), remove: Vec::new() }
    }

    fn words_of(text: &str) -> Vec<String> {
        total(&[grub(text)], false).unwrap()
    }

    #[test]
    fn assignments_are_read_in_order_with_references() {
        let files = [
            grub("GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet splash\"\nGRUB_CMDLINE_LINUX=\"\"\n"),
            grub("GRUB_CMDLINE_LINUX_DEFAULT='console=ttyS0'\n"),
            grub("GRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} iommu=pt\"\nGRUB_CMDLINE_LINUX+=\" a=1\"\n"),
        ];
        assert_eq!(total(&files, false).unwrap(), ["iommu=pt", "a=1", "console=ttyS0"]);
        assert_eq!(
            total(&files, true).unwrap_err(),
            "/etc/default/grub:2: /bin/sh is dash, which has no `+=`"
        );
    }

    #[test]
    fn the_line_of_tuned_hides_no_word_and_keeps_its_form() {
        let text = "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet iommu=pt\"\n\
                    GRUB_CMDLINE_LINUX_DEFAULT=\"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params\"\n";
        assert_eq!(words_of(text), ["quiet", "iommu=pt", "$tuned_params"]);
        let without: &dyn Fn(&[String]) -> Vec<String> =
            &|words| words.iter().filter(|word| *word != "quiet").cloned().collect();
        assert_eq!(edited(&grub(text), without).unwrap(), text.replace("quiet ", ""));
        let more: &dyn Fn(&[String]) -> Vec<String> =
            &|words| words.iter().cloned().chain(["a=\"x y\"".to_owned()]).collect();
        let edited = edited(&grub(text.lines().nth(1).unwrap()), more).unwrap();
        assert_eq!(
            edited,
            "GRUB_CMDLINE_LINUX_DEFAULT=\"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params a=\\\"x y\\\"\""
        );
    }

    #[test]
    fn editing_keeps_the_rest_of_the_file() {
        let file = grub(
            "# GRUB_CMDLINE_LINUX=\"x\"\nGRUB_CMDLINE_LINUX=\"iommu=off crashkernel=1G\" # note\nGRUB_X=1\n",
        );
        let task = adding(&["iommu=pt"]);
        let text = edited(&file, &|words| words::pruned(&task, words, words)).unwrap();
        assert_eq!(
            with_words(&grub(&text), &task),
            "# GRUB_CMDLINE_LINUX=\"x\"\nGRUB_CMDLINE_LINUX=\"crashkernel=1G iommu=pt\" # note\nGRUB_X=1\n"
        );
        assert_eq!(with_words(&grub("GRUB_X=1"), &adding(&["a"])), "GRUB_X=1\nGRUB_CMDLINE_LINUX=\"a\"\n");
        assert_eq!(
            with_words(&grub("GRUB_CMDLINE_LINUX=a\n"), &adding(&["b"])),
            "GRUB_CMDLINE_LINUX=\"a b\"\n"
        );
        assert_eq!(
            with_words(&grub("GRUB_CMDLINE_LINUX=a'b'$GRUB_X\n"), &adding(&["c"])),
            "GRUB_CMDLINE_LINUX=a'b'$GRUB_X\nGRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} c\"\n"
        );
        assert_eq!(
            with_words(&grub("GRUB_CMDLINE_LINUX=\"a \\\n  b\"\n"), &adding(&["c"])),
            "GRUB_CMDLINE_LINUX=\"a b c\"\n"
        );
        let odd = edited(&grub("\nGRUB_CMDLINE_LINUX=a$X\n"), &|_| Vec::new());
        assert_eq!(
            odd.unwrap_err(),
            "/etc/default/grub:2: the words of `a$X` cannot be changed by a program; write them out there"
        );
    }

    proptest! {
        #[test]
        fn editing_defaults_converges_and_keeps_other_lines(
            lines in proptest::collection::vec("(GRUB_CMDLINE_LINUX(_DEFAULT)?=(\"[a-c ]{0,6}( k=1)?\"|'[ab]?'|a|\"\\$\\{GRUB_CMDLINE_LINUX\\} b\")|GRUB_TIMEOUT=5|# x|)", 0..6)
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let task = KernelCmdline { add: vec!["k=2".into(), "new".into()], remove: vec!["a".into()] };
            let whole = words_of(&text);
            let pruned = edited(&grub(&text), &|words| words::pruned(&task, words, &whole)).unwrap();
            let once = with_words(&grub(&pruned), &task);
            let judged = words::judged(&task, &words_of(&once));
            prop_assert!(judged.is_right(), "{} -> {}: {:?}", text, once, judged);
            let others = |text: &str| text.lines().filter(|line| !line.starts_with("GRUB_CMDLINE")).map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(others(&once), others(&text));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,60}") {
            let file = grub(&format!("GRUB_CMDLINE_LINUX={text}"));
            let _ = edited(&file, &|words| words.iter().rev().cloned().collect());
            let _ = (with_words(&file, &adding(&["a"])), drop_in_words(&file));
        }
    }
}
