//! Where boot loaders keep the kernel command line, and how each of these files is read and edited. Pure but for
//! the reading of files.

use std::path::{Path, PathBuf};

use gpufleet_protocol::tasks::KernelCmdline;

use super::words;
use crate::{
    declare::{Node, Trouble},
    world::ReadError,
};

/// Name of the drop-in that adds words where the distribution reads `/etc/default/grub.d`.
const DROP_IN: &str = "99-gpufleet.cfg";
const VARIABLES: [&str; 2] = ["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"];

/// A file with words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/etc/default/grub` or a file that it is followed by: shell assignments.
    GrubDefaults,
    /// `/etc/kernel/cmdline`: one line of words.
    Plain,
    /// A Boot Loader Specification entry with an `options` line.
    Entry,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub kind: Kind,
    pub text: String,
}

/// All that the next boot's command line comes from.
#[derive(Debug, Default)]
pub struct Sources {
    pub files: Vec<Source>,
    /// The drop-in to be written when words are lacking; `None` where they go into `/etc/default/grub` itself.
    pub drop_in: Option<PathBuf>,
    /// Lines of the generated `grub.cfg` that boot a kernel; they follow from the other files.
    pub generated: Vec<String>,
    /// The generated files themselves, with their text.
    pub generated_files: Vec<(PathBuf, String)>,
}

fn text(node: &Node<'_>, path: &Path) -> Result<Option<String>, Trouble> {
    match node.world.read(path) {
        Ok(bytes) => Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        Err(ReadError::Foreseen(_)) => Err(Trouble::Possible),
        Err(ReadError::File(error)) => Err(error.into()),
    }
}

/// Reads every source there is.
///
/// # Errors
/// One of them cannot be read.
pub fn read(node: &Node<'_>) -> Result<Sources, Trouble> {
    let mut sources = Sources::default();
    let grub = node.roots.etc("default/grub");
    if let Some(found) = text(node, &grub)? {
        sources.files.push(Source { path: grub, kind: Kind::GrubDefaults, text: found });
        let folder = node.roots.etc("default/grub.d");
        if matches!(node.world.follow(&folder)?.1, crate::world::Entry::Directory { .. }) {
            sources.drop_in = Some(folder.join(DROP_IN));
            for name in node.world.names(&folder)?.iter().filter(|name| name.ends_with(".cfg")) {
                let path = folder.join(name);
                if let Some(found) = text(node, &path)? {
                    sources.files.push(Source { path, kind: Kind::GrubDefaults, text: found });
                }
            }
        }
        for path in ["/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"] {
            let path = node.roots.path(path);
            if let Some(found) = text(node, &path)? {
                let boots = |line: &&str| boots_kernel(line);
                sources.generated.extend(found.lines().map(str::trim).filter(boots).map(str::to_owned));
                sources.generated_files.push((path, found));
            }
        }
    }
    let plain = node.roots.etc("kernel/cmdline");
    if let Some(found) = text(node, &plain)? {
        sources.files.push(Source { path: plain, kind: Kind::Plain, text: found });
    }
    for folder in ["/boot/loader/entries", "/boot/efi/loader/entries", "/efi/loader/entries"] {
        let folder = node.roots.path(folder);
        for name in node.world.names(&folder)?.iter().filter(|name| name.ends_with(".conf")) {
            let path = folder.join(name);
            if let Some(found) = text(node, &path)?.filter(|found| has_own_options(found)) {
                sources.files.push(Source { path, kind: Kind::Entry, text: found });
            }
        }
    }
    Ok(sources)
}

/// Whether a line of a `grub.cfg`, without its indentation, boots a kernel.
fn boots_kernel(line: &str) -> bool {
    ["linux ", "linux\t", "linux16 ", "linuxefi "].iter().any(|word| line.starts_with(word))
}

/// What the generator will make of a `grub.cfg`, for predictions: its kernel lines as declared.
pub fn regenerated(task: &KernelCmdline, text: &str) -> String {
    let line = |line: &str| {
        let trimmed = line.trim_start();
        if !boots_kernel(trimmed) {
            return format!("{line}\n");
        }
        let indent = line.get(..line.len() - trimmed.len()).unwrap_or_default();
        let words = words::edited(task, &words::split(trimmed));
        format!("{indent}{}\n", words.join(" "))
    };
    text.lines().map(line).collect()
}

fn option_line(line: &str) -> Option<&str> {
    line.strip_prefix("options").filter(|rest| rest.starts_with([' ', '\t'])).map(str::trim)
}

/// Entries whose options are variables of GRUB follow from `/etc/default/grub`.
fn has_own_options(text: &str) -> bool {
    text.lines().filter_map(option_line).any(|options| !options.contains("$kernelopts"))
}

/// Name and raw value of an assignment to one of the two variables, and whether it appends.
fn assignment(line: &str) -> Option<(&'static str, &str, bool)> {
    let line = line.trim_start();
    let line = line.strip_prefix("export ").unwrap_or(line);
    // The longer name first, because the shorter is its beginning.
    let name = VARIABLES.iter().rev().find(|name| {
        line.strip_prefix(**name).is_some_and(|rest| rest.starts_with('=') || rest.starts_with("+="))
    })?;
    let rest = line.get(name.len()..)?;
    let appends = rest.starts_with("+=");
    let raw = rest.trim_start_matches('+').strip_prefix('=')?;
    Some((name, raw.trim_end(), appends))
}

/// The text inside the quotes of a value, the quote, and what follows.
fn unquoted(raw: &str) -> (&str, &'static str, &str) {
    for quote in ["\"", "'"] {
        if let Some(inner) = raw.strip_prefix(quote) {
            let mut escaped = false;
            for (at, c) in inner.char_indices() {
                if c.to_string() == quote && !escaped {
                    let (value, rest) = inner.split_at_checked(at).unwrap_or((inner, ""));
                    return (value, quote, rest.get(1..).unwrap_or_default());
                }
                escaped = c == '\\' && !escaped;
            }
            return (inner, quote, "");
        }
    }
    let end = raw.find([' ', '\t', '#', ';']).unwrap_or(raw.len());
    let (value, rest) = raw.split_at_checked(end).unwrap_or((raw, ""));
    (value, "", rest)
}

fn is_reference(word: &str, name: &str) -> bool {
    word == format!("${name}") || word == format!("${{{name}}}")
}

/// The words that the assignments of all GRUB defaults amount to, read in order.
pub fn grub_words(files: &[Source]) -> Vec<String> {
    let mut values: [Vec<String>; 2] = [Vec::new(), Vec::new()];
    for file in files.iter().filter(|file| file.kind == Kind::GrubDefaults) {
        for (name, raw, appends) in file.text.lines().filter_map(assignment) {
            let mut now = Vec::new();
            let (value, ..) = unquoted(raw);
            for word in words::split(&value.replace("\\\"", "\"")) {
                match VARIABLES.iter().zip(&values).find(|(name, _)| is_reference(&word, name)) {
                    Some((_, value)) => now.extend(value.iter().cloned()),
                    None => now.push(word),
                }
            }
            if let Some((_, value)) = VARIABLES.iter().zip(&mut values).find(|(known, _)| **known == name) {
                if appends {
                    value.extend(now);
                } else {
                    *value = now;
                }
            }
        }
    }
    values.concat()
}

impl Source {
    /// The words that this file gives by itself.
    pub fn words(&self) -> Vec<String> {
        match self.kind {
            Kind::GrubDefaults => grub_words(std::slice::from_ref(self)),
            Kind::Plain => words::split(&self.text),
            Kind::Entry => self.text.lines().filter_map(option_line).flat_map(words::split).collect(),
        }
    }

    /// The file with unwanted words gone and, if `adds`, lacking ones added.
    pub fn edited(&self, task: &KernelCmdline, adds: bool) -> String {
        let pruned = KernelCmdline { add: Vec::new(), remove: task.remove.clone() };
        let edit = |now: &[String], adds: bool| -> Vec<String> {
            if adds {
                return words::edited(task, now);
            }
            // Other values of a key that is to be added go everywhere, or the last one would win.
            let kept: Vec<String> = now.iter().filter(|word| !words::unwanted(task, word)).cloned().collect();
            words::edited(&pruned, &kept)
        };
        match self.kind {
            Kind::Plain => {
                let now = words::split(&self.text);
                let then = edit(&now, adds);
                if then == now { self.text.clone() } else { format!("{}\n", then.join(" ")) }
            }
            Kind::Entry => self.each_line(|line| {
                let now = words::split(option_line(line)?);
                let then = edit(&now, adds);
                (then != now).then(|| format!("options {}", then.join(" ")))
            }),
            Kind::GrubDefaults => {
                let target = self.text.lines().filter_map(assignment).any(|(name, ..)| name == VARIABLES[0]);
                let edited = self.each_line(|line| {
                    let (name, raw, appends) = assignment(line)?;
                    let (value, quote, rest) = unquoted(raw);
                    let now = words::split(&value.replace("\\\"", "\""));
                    let then = edit(&now, adds && name == VARIABLES[0]);
                    if then == now {
                        return None;
                    }
                    let quote = if quote.is_empty() { "\"" } else { quote };
                    let value = then.join(" ");
                    let value = if quote == "\"" { value.replace('"', "\\\"") } else { value };
                    let operator = if appends { "+=" } else { "=" };
                    Some(format!("{name}{operator}{quote}{value}{quote}{rest}"))
                });
                if adds && !target && !task.add.is_empty() {
                    let line_break = if edited.is_empty() || edited.ends_with('\n') { "" } else { "\n" };
                    return format!("{edited}{line_break}{}=\"{}\"\n", VARIABLES[0], task.add.join(" "));
                }
                edited
            }
        }
    }

    fn each_line(&self, edit: impl Fn(&str) -> Option<String>) -> String {
        let mut out = String::with_capacity(self.text.len() + 64);
        for line in self.text.split_inclusive('\n') {
            let bare = line.trim_end_matches(['\n', '\r']);
            match edit(bare) {
                Some(new) => {
                    out.push_str(&new);
                    out.push_str(line.get(bare.len()..).unwrap_or_default());
                }
                None => out.push_str(line),
            }
        }
        out
    }
}

/// The drop-in with the words that the other files lack.
pub fn drop_in(words: &[&String]) -> String {
    let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
    let name = VARIABLES[0];
    format!("# Written by gpufleet.\n{name}=\"${{{name}}} {}\"\n", words.join(" "))
}

/// The words that a file of ours adds already.
pub fn drop_in_words(source: &Source) -> Vec<String> {
    source.words().into_iter().filter(|word| !word.starts_with('$')).collect()
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

    #[test]
    fn assignments_are_read_in_order_with_references() {
        let files = [
            grub("GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet splash\"\nGRUB_CMDLINE_LINUX=\"\"\n"),
            grub("GRUB_CMDLINE_LINUX_DEFAULT='console=ttyS0'\n"),
            grub("GRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} iommu=pt\"\nGRUB_CMDLINE_LINUX+=\" a=1\"\n"),
        ];
        assert_eq!(grub_words(&files), ["iommu=pt", "a=1", "console=ttyS0"]);
    }

    #[test]
    fn editing_keeps_the_rest_of_the_file() {
        let file = grub(
            "# GRUB_CMDLINE_LINUX=\"x\"\nGRUB_CMDLINE_LINUX=\"iommu=off crashkernel=1G\" # note\nGRUB_X=1\n",
        );
        let edited = file.edited(&adding(&["iommu=pt"]), true);
        assert_eq!(
            edited,
            "# GRUB_CMDLINE_LINUX=\"x\"\nGRUB_CMDLINE_LINUX=\"crashkernel=1G iommu=pt\" # note\nGRUB_X=1\n"
        );
        assert_eq!(grub("GRUB_X=1").edited(&adding(&["a"]), true), "GRUB_X=1\nGRUB_CMDLINE_LINUX=\"a\"\n");
        assert_eq!(
            grub("GRUB_CMDLINE_LINUX=a\n").edited(&adding(&["b"]), true),
            "GRUB_CMDLINE_LINUX=\"a b\"\n"
        );
    }

    #[test]
    fn entries_and_plain_lines() {
        let entry = Source {
            path: "/e".into(),
            kind: Kind::Entry,
            text: "title X\noptions root=/a quiet\nlinux /v\n".into(),
        };
        assert_eq!(
            entry.edited(&adding(&["iommu=pt"]), true),
            "title X\noptions root=/a quiet iommu=pt\nlinux /v\n"
        );
        let plain = Source { path: "/p".into(), kind: Kind::Plain, text: "root=/a\n".into() };
        assert_eq!(plain.edited(&adding(&["iommu=pt"]), true), "root=/a iommu=pt\n");
        assert!(!has_own_options("options $kernelopts $tuned_params\n"));
    }

    proptest! {
        #[test]
        fn editing_defaults_converges_and_keeps_other_lines(
            lines in proptest::collection::vec("(GRUB_CMDLINE_LINUX(_DEFAULT)?=(\"[a-c ]{0,6}( k=1)?\"|'[ab]?'|a|)|GRUB_TIMEOUT=5|# x|)", 0..6)
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let task = KernelCmdline { add: vec!["k=2".into(), "new".into()], remove: vec!["a".into()] };
            let once = Source { text: grub(&text).edited(&task, true), ..grub("") };
            let words = grub_words(std::slice::from_ref(&once));
            prop_assert!(words::lacking(&task, &words).is_empty(), "{} -> {}", text, once.text);
            prop_assert!(!words.iter().any(|word| words::unwanted(&task, word)));
            prop_assert_eq!(once.edited(&task, true), once.text.clone());
            let others = |text: &str| text.lines().filter(|line| assignment(line).is_none()).map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(others(&once.text), others(&text));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,60}") {
            let _ = grub(&format!("GRUB_CMDLINE_LINUX={text}")).edited(&adding(&["a"]), true);
        }
    }
}
