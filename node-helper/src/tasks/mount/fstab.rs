//! Parses and edits the text of /etc/fstab and of mountinfo.

use crate::os::lines::{self, Edit};

/// Escapes blanks of a field as octal numbers, as in fstab(5).
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' => out.push_str("\\040"),
            '\t' => out.push_str("\\011"),
            '\n' => out.push_str("\\012"),
            '\\' => out.push_str("\\134"),
            other => out.push(other),
        }
    }
    out
}

/// Decodes the octal numbers of a field.
pub fn unescaped(field: &str) -> String {
    let mut out: Vec<u8> = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(rest.get(..at).unwrap_or_default().as_bytes());
        let digits = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) => {
                out.push(byte);
                rest = rest.get(at + 4..).unwrap_or_default();
            }
            None => {
                out.push(b'\\');
                rest = rest.get(at + 1..).unwrap_or_default();
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&out).into_owned()
}

/// One line of fstab, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub src: String,
    pub path: String,
    pub fstype: String,
    pub opts: String,
    pub dump: String,
    pub passno: String,
}

impl Line {
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.starts_with('#') {
            return None;
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let field = |at: usize| fields.get(at).map(|field| unescaped(field));
        let rest = |at: usize| fields.get(at).filter(|field| !field.starts_with('#')).unwrap_or(&"0");
        Some(Self {
            src: field(0)?,
            path: field(1)?,
            fstype: field(2)?,
            opts: field(3)?,
            dump: (*rest(4)).to_owned(),
            passno: (*rest(5)).to_owned(),
        })
    }

    pub fn text(&self) -> String {
        let Self { src, path, fstype, opts, dump, passno } = self;
        format!("{} {} {} {} {dump} {passno}", escaped(src), escaped(path), escaped(fstype), escaped(opts))
    }

    /// Whether the line is about this mount. Swap has no path, so its source decides.
    pub fn same_mount(&self, path: &str, src: Option<&str>) -> bool {
        let slim =
            |path: &str| if path == "/" { path.to_owned() } else { path.trim_end_matches('/').to_owned() };
        if self.fstype == "swap" || path == "none" {
            return self.path == path && src.is_some_and(|src| src == self.src);
        }
        slim(&self.path) == slim(path)
    }
}

/// Returns the text with one line for a mount, or without any; other lines stay as they are.
pub fn edited(text: &str, path: &str, src: Option<&str>, wanted: Option<&Line>) -> String {
    let mut written = false;
    let mut out = lines::edited(text, |_, line| {
        let found = Line::parse(line).filter(|found| found.same_mount(path, src));
        match (found, wanted) {
            (None, _) => Edit::Keep,
            (Some(found), Some(wanted)) if !written => {
                written = true;
                if found == *wanted { Edit::Keep } else { Edit::Set(wanted.text()) }
            }
            (Some(_), _) => Edit::Remove,
        }
    });
    if let (Some(wanted), false) = (wanted, written) {
        lines::append(&mut out, &wanted.text());
    }
    out
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub path: String,
    /// The directory of the file system that is shown there; not `/` for a bind mount of a part.
    pub root: String,
    pub fstype: String,
    pub source: String,
    /// Options of this mount, and those of the file system, which has the same wherever it is mounted.
    pub options: String,
    pub of_file_system: String,
}

impl Mounted {
    /// Parses a line of mountinfo (proc_pid_mountinfo(5)).
    pub fn parse(line: &str) -> Option<Self> {
        let (first, last) = line.split_once(" - ")?;
        let fields: Vec<&str> = first.split(' ').collect();
        let mut last = last.split(' ');
        Some(Self {
            root: unescaped(fields.get(3)?),
            path: unescaped(fields.get(4)?),
            fstype: last.next()?.to_owned(),
            source: unescaped(last.next()?),
            options: unescaped(fields.get(5)?),
            of_file_system: unescaped(last.next().unwrap_or_default()),
        })
    }

    /// Returns the number of the device (`8:1`) in a line of mountinfo, and whether the mount and the file system itself
    /// are read-only. The kernel makes the latter so when a disk fails, and leaves the mount as it was.
    pub fn read_only(line: &str) -> Option<(&str, bool, bool)> {
        let (first, last) = line.split_once(" - ")?;
        let mut fields = first.split(' ');
        let is = |options: &str| options.split(',').any(|option| option == "ro");
        Some((fields.nth(2)?, is(fields.nth(2)?), is(last.split(' ').nth(2)?)))
    }

    /// Formats a line for [`Mounted::parse`].
    pub fn line(&self) -> String {
        let [root, path, source, options, of_file_system] =
            [&self.root, &self.path, &self.source, &self.options, &self.of_file_system]
                .map(|text| escaped(text));
        format!("0 0 0:0 {root} {path} {options} - {} {source} {of_file_system}\n", self.fstype)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fields_come_back(text in "[ -~\t\u{e9}]{0,20}") {
            prop_assert_eq!(unescaped(&escaped(&text)), text);
        }

        #[test]
        fn an_edit_is_done_once(lines in proptest::collection::vec("(#? ?[a-b] /[a-c] ext4 defaults|/x|)", 0..6), path in "/[a-c]", there in any::<bool>()) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let line = Line { src: "s".into(), path: path.clone(), fstype: "xfs".into(), opts: "rw".into(), dump: "0".into(), passno: "0".into() };
            let wanted = there.then_some(&line);
            let once = edited(&text, &path, Some("s"), wanted);
            prop_assert_eq!(edited(&once, &path, Some("s"), wanted), once.clone());
            let ours = once.lines().filter_map(Line::parse).filter(|line| line.path == path).count();
            prop_assert_eq!(ours, usize::from(there));
        }
    }
}
