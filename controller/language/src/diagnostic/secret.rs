//! Keeps secrets out of excerpts.

pub use gpufleet_protocol::looks_secret;

use super::SourceFile;

/// Returns `line` with the value of its first secret key replaced, and the character from which it is; `None` without
/// one.
///
/// The rest of the line is hidden too, as one line does not tell where a value ends.
pub(super) fn mask_line(line: &str, hides: impl Fn(&str) -> bool) -> Option<(String, usize)> {
    let chars: Vec<char> = line.chars().collect();
    let mut start = 0;
    for (index, c) in chars.iter().enumerate() {
        match c {
            ':' | '=' => {
                let key: String = chars[start..index].iter().collect();
                let key = key.trim_matches(|c: char| c.is_whitespace() || "\"'-{[,?".contains(c));
                if hides(key) {
                    let value = index + 1 + chars[index + 1..].iter().take_while(|c| **c == ' ').count();
                    if value < chars.len() {
                        let mut masked: String = chars[..value].iter().collect();
                        masked.push_str("********");
                        return Some((masked, value));
                    }
                }
                start = index + 1;
            }
            ' ' | ',' | '{' | '[' | '\t' => start = index + 1,
            _ => {}
        }
    }
    None
}

/// Whether line `number` (from 1) lies inside the value of a secret key that is written on a line above it.
pub(super) fn inside_secret(source: &SourceFile, number: u32) -> bool {
    let lines: Vec<&str> = source.text().split('\n').take(number as usize).collect();
    let Some((line, above)) = lines.split_last() else { return false };
    let mut indent = indent_of(line);
    for line in above.iter().rev() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        // The dash of a list item counts as indentation of the key behind it.
        let key_indent = line.chars().take_while(|c| *c == ' ' || *c == '\t' || *c == '-').count();
        if key_indent < indent {
            let key = line.trim_start_matches([' ', '\t', '-']).split(':').next().unwrap_or_default();
            if line.contains(':') && source.hides(key.trim_matches(['"', '\''])) {
                return true;
            }
            indent = indent.min(indent_of(line));
        } else if indent_of(line) < indent {
            indent = indent_of(line);
        }
        if indent == 0 {
            return false;
        }
    }
    false
}

fn indent_of(line: &str) -> usize {
    line.chars().take_while(|c| *c == ' ' || *c == '\t').count()
}
