//! Formats durations, counts and foreign text for one line.

use crate::visible::{visible, visible_lines};

/// Formats seconds as `02:41` or `1:02:41`.
pub fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes:02}:{seconds:02}")
    }
}

/// Formats seconds as `45s`, `20m`, `2h 50m`, `1d 4h`.
pub fn length(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (size, unit) in units {
        if left >= size {
            parts.push(format!("{}{unit}", left / size));
            left %= size;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

/// Cuts a text to `width` columns, with `…` if anything is missing.
pub fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
    out.truncate(out.trim_end().len());
    out.push('…');
    out
}

/// Returns a node's text as one line: line breaks become spaces, other invisible characters escapes.
///
/// A node's text must not move the cursor of the administrator's terminal, nor begin a line there.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for part in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&visible(part));
    }
    out
}

/// Returns a node's output for a place without indentation. If one of its lines could be taken for gpufleet's own,
/// all of it is indented.
pub(super) fn clean_block(text: &str) -> String {
    let text = visible_lines(text);
    if !text.lines().any(looks_like_ours) {
        return text.into_owned();
    }
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Whether a line looks like the beginning of an answer, a result or a message of gpufleet.
pub(super) fn looks_like_ours(line: &str) -> bool {
    const WORDS: [&str; 24] = [
        "ok:",
        "changed:",
        "failed:",
        "fatal:",
        "skipping:",
        "possible:",
        "included:",
        "rebooting:",
        "rebooted:",
        "power cycled:",
        "scheduler:",
        "...ignoring",
        "[WARNING]",
        "[INFO]",
        "[ERROR]",
        "PLAY ",
        "TASK ",
        "RUNNING HANDLER ",
        "error:",
        "warning:",
        "note:",
        "help:",
        "✗",
        "Proceed?",
    ];
    if WORDS.iter().any(|word| line.starts_with(word)) || line.contains(" : ok=") {
        return true;
    }
    // Such as `gpu001 | rc=0 >>` and `gpu[001-003] (3 nodes) | rc=0 >>`.
    let Some((label, _)) = line.split_once(" | ") else { return false };
    let (name, count) = label.split_once(" (").map_or((label, ""), |(name, rest)| (name, rest));
    !name.is_empty() && !name.contains(char::is_whitespace) && (count.is_empty() || count.ends_with(')'))
}

/// A moment on every screen: `2026-11-28 03:12 +01:00`. Machine formats have RFC 3339, pages say that theirs are UTC.
pub fn moment(at: jiff::Timestamp, zone: &jiff::tz::TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M %:z").to_string()
}

/// Wraps words into lines of at most `width` columns; a longer word stays whole.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_read_like_a_clock() {
        assert_eq!([clock(0), clock(161), clock(3761)], ["00:00", "02:41", "1:02:41"]);
    }

    #[test]
    fn lengths_read_as_they_are_written() {
        let lengths = [0, 45, 1200, 10_200, 86_400, 100_801].map(length);
        assert_eq!(lengths, ["0s", "45s", "20m", "2h 50m", "1d", "1d 4h 1s"]);
    }

    #[test]
    fn foreign_text_cannot_move_the_cursor() {
        assert_eq!(clean("a\x1b[2Jb\r\n  c\t\u{7}d\u{9b}31m"), "a\\u001b[2Jb c \\u0007d\\u009b31m");
        assert_eq!(clean_block("a\x1b[2J\n\tb\r\n"), "a\\u001b[2J\n\tb\n");
    }

    #[test]
    fn foreign_lines_cannot_be_taken_for_ours() {
        for line in [
            "ok: [gpu002]",
            "gpu002 | rc=0 >>",
            "gpu[001-003] (3 nodes) | rc=0 >>",
            "gpu002 : ok=3 changed=0",
            "TASK [x] ***",
            "error: no such file",
        ] {
            assert_eq!(clean_block(&format!("a\n{line}\n")), format!("    a\n    {line}\n"));
        }
        for line in
            ["| GPU  Name | Memory |", "up 3 days, 2 users | load", " ok: indented", "Filesystem 1K-blocks"]
        {
            assert_eq!(clean_block(line), line);
        }
    }

    proptest! {
        #[test]
        fn clipped_text_fits(text in "\\PC{0,80}", width in 1_usize..60) {
            prop_assert!(clip(&text, width).chars().count() <= width);
        }
    }
}
