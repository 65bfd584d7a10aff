//! Lines of other people's text files: what is not edited stays byte for byte, line ends included.

/// What becomes of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    Keep,
    Remove,
    /// Another line, without its end.
    Set(String),
}

impl Edit {
    /// Removes a line if so, and keeps it otherwise.
    pub const fn remove_if(gone: bool) -> Self {
        if gone { Self::Remove } else { Self::Keep }
    }
}

/// Returns the text with each line as `edit` says, which gets its number from 0 and the line without its end. A line that is
/// set keeps the end that was there.
pub fn edited(text: &str, mut edit: impl FnMut(usize, &str) -> Edit) -> String {
    let mut out = String::with_capacity(text.len() + 80);
    for (at, whole) in text.split_inclusive('\n').enumerate() {
        let line = whole.strip_suffix('\n').map_or(whole, |line| line.strip_suffix('\r').unwrap_or(line));
        match edit(at, line) {
            Edit::Keep => out.push_str(whole),
            Edit::Remove => {}
            Edit::Set(new) => {
                out.push_str(&new);
                out.push_str(if whole.ends_with("\r\n") { "\r\n" } else { "\n" });
            }
        }
    }
    out
}

/// Adds a line at the end, with the end that the line before it has.
pub fn append(text: &mut String, line: &str) {
    let end =
        if text.trim_end_matches(|c| !matches!(c, '\r' | '\n')).ends_with("\r\n") { "\r\n" } else { "\n" };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push_str(end);
    }
    text.push_str(line);
    text.push_str(end);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ends_of_lines_stay() {
        let edit = |at, line: &str| match line {
            "b" => Edit::Set("B".to_owned()),
            line => Edit::remove_if(at == 0 && line == "x"),
        };
        assert_eq!(edited("x\r\na\r\nb\r\nc", edit), "a\r\nB\r\nc");
        assert_eq!(edited("x\nb", edit), "B\n");
        for (text, want) in
            [("", "l\n"), ("a", "a\nl\n"), ("a\r\n", "a\r\nl\r\n"), ("a\r\nb", "a\r\nb\r\nl\r\n")]
        {
            let mut text = text.to_owned();
            append(&mut text, "l");
            assert_eq!(text, want);
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_byte_equal(text in "[a\r\n]{0,20}") {
            prop_assert_eq!(edited(&text, |_, _| Edit::Keep), text);
        }
    }
}
