//! The files in which boot loaders keep the kernel command line, and how each is read. Pure but for the reading of
//! files.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use gpufleet_protocol::tasks::KernelCmdline;

use super::{
    defaults, refused,
    shell::{Value, Variables},
    systemd_boot::{self, Loader},
    words,
};
use crate::{
    declare::{Node, Trouble},
    world::{Entry, ReadError},
};

/// Name of the drop-in that adds words if the distribution reads `/etc/default/grub.d`.
const DROP_IN: &str = "99-gpufleet.cfg";
const ENTRIES: [&str; 3] = ["/boot/loader/entries", "/boot/efi/loader/entries", "/efi/loader/entries"];
const ENVIRONMENTS: [&str; 2] = ["/boot/grub2/grubenv", "/boot/grub/grubenv"];

/// The format of a file with words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/etc/default/grub` or a drop-in: shell assignments.
    GrubDefaults,
    /// `/etc/kernel/cmdline`: one line of words.
    Plain,
    /// A Boot Loader Specification entry with an `options` line.
    Entry,
    /// `kernelopts` of GRUB's environment block, used by the entries of RHEL 8.
    Environment,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub kind: Kind,
    pub text: String,
}

/// All sources of the next boot's command line.
#[derive(Debug, Default)]
pub struct Sources {
    pub files: Vec<Source>,
    /// The drop-in for lacking words; `None` if they go into `/etc/default/grub` itself.
    pub drop_in: Option<PathBuf>,
    /// Lines of the generated `grub.cfg` that are derived from the other files, with GRUB's variables replaced.
    pub generated: Vec<String>,
    /// The generated files, with their text.
    pub generated_files: Vec<(PathBuf, String)>,
    /// Whether GRUB reads entries of the Boot Loader Specification; then its `grub.cfg` holds no command line.
    pub entries_count: bool,
    /// Whether `/bin/sh` is dash.
    pub dash: bool,
    /// Words that tuned adds at boot, and the file that declares them.
    pub tuned: Option<(PathBuf, Vec<String>)>,
    /// All entries of the Boot Loader Specification, those without options of their own too.
    pub entries: Vec<Source>,
    /// GRUB's variables when it reads an entry.
    pub variables: HashMap<String, String>,
    /// What systemd-boot goes by, if that started the node.
    pub loader: Option<Loader>,
}

/// Returns the text of a file.
///
/// # Errors
/// If it cannot be read.
pub fn text(node: &Node<'_>, path: &Path) -> Result<Option<String>, Trouble> {
    match node.world.read(path) {
        Ok(bytes) => Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        Err(ReadError::Foreseen(_)) => Err(Trouble::Possible),
        Err(ReadError::File(error)) => Err(error.into()),
    }
}

/// Whether the distribution's `grub-mkconfig` reads `/etc/default/grub.d`; without such a program, whether the folder
/// exists.
fn reads_drop_ins(node: &Node<'_>) -> Result<bool, Trouble> {
    for name in ["grub-mkconfig", "grub2-mkconfig"] {
        let Some(path) = node.roots.tool(name) else { continue };
        // Skipped: a program of this size is no script, so its content does not tell what it reads.
        if let Err(ReadError::File(error)) = node.world.read(&path)
            && error.source.kind() == io::ErrorKind::FileTooLarge
        {
            continue;
        }
        if let Some(script) = text(node, &path)? {
            return Ok(script.contains("default/grub.d"));
        }
    }
    Ok(true)
}

fn is_dash(node: &Node<'_>) -> Result<bool, Trouble> {
    let (path, _) = node.world.follow(&node.roots.path("/bin/sh"))?;
    Ok(path.file_name().is_some_and(|name| name == "dash"))
}

/// Reads all sources.
///
/// # Errors
/// If one cannot be read, or gpufleet can change none.
pub fn read(node: &Node<'_>) -> Result<Sources, Trouble> {
    if let Some(why) = refused::why(node)? {
        return Err(Trouble::invalid(why));
    }
    let loader = systemd_boot::read(node)?;
    let mut sources = Sources { dash: is_dash(node)?, loader, ..Sources::default() };
    read_environment(node, &mut sources)?;
    let grub = node.roots.etc("default/grub");
    if let Some(found) = text(node, &grub)? {
        sources.files.push(Source { path: grub, kind: Kind::GrubDefaults, text: found });
        read_drop_ins(node, &mut sources)?;
        read_generated(node, &mut sources)?;
    }
    read_tuned(node, &mut sources)?;
    let plain = node.roots.etc("kernel/cmdline");
    if let Some(found) = text(node, &plain)? {
        sources.files.push(Source { path: plain, kind: Kind::Plain, text: found });
    }
    let mut borrowed = false;
    for folder in ENTRIES {
        let folder = node.roots.path(folder);
        for name in node.world.names(&folder)?.iter().filter(|name| name.ends_with(".conf")) {
            let path = folder.join(name);
            let Some(found) = text(node, &path)? else { continue };
            let entry = Source { path, kind: Kind::Entry, text: found };
            sources.entries.push(entry.clone());
            if has_own_options(&entry.text) {
                sources.files.push(entry);
            } else {
                borrowed |=
                    entry.text.lines().filter_map(option_line).any(|options| options.contains("$kernelopts"));
            }
        }
    }
    if borrowed && let Some(options) = sources.variables.get("kernelopts") {
        for path in ENVIRONMENTS.map(|path| node.roots.path(path)) {
            if text(node, &path)?.is_some() {
                sources.files.push(Source { path, kind: Kind::Environment, text: options.clone() });
                break;
            }
        }
    }
    Ok(sources)
}

/// Reads GRUB's environment block: lines of names and values, padded with `#` to 1024 bytes.
fn read_environment(node: &Node<'_>, sources: &mut Sources) -> Result<(), Trouble> {
    for path in ENVIRONMENTS {
        let found = text(node, &node.roots.path(path))?.unwrap_or_default();
        let pairs =
            found.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        sources.variables.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    Ok(())
}

fn read_drop_ins(node: &Node<'_>, sources: &mut Sources) -> Result<(), Trouble> {
    let folder = node.roots.etc("default/grub.d");
    if !matches!(node.world.follow(&folder)?.1, Entry::Directory { .. }) || !reads_drop_ins(node)? {
        return Ok(());
    }
    sources.drop_in = Some(folder.join(DROP_IN));
    for name in node.world.names(&folder)?.iter().filter(|name| name.ends_with(".cfg")) {
        let path = folder.join(name);
        if let Some(found) = text(node, &path)? {
            sources.files.push(Source { path, kind: Kind::GrubDefaults, text: found });
        }
    }
    Ok(())
}

fn read_generated(node: &Node<'_>, sources: &mut Sources) -> Result<(), Trouble> {
    let mut paths = vec![node.roots.path("/boot/grub/grub.cfg"), node.roots.path("/boot/grub2/grub.cfg")];
    // RHEL 8 and older keep the whole grub.cfg on the EFI system partition.
    let vendors = node.roots.path("/boot/efi/EFI");
    paths.extend(node.world.names(&vendors)?.iter().map(|name| vendors.join(name).join("grub.cfg")));
    for path in paths {
        let Some(found) = text(node, &path)? else { continue };
        sources.variables.extend(found.lines().filter_map(set_line));
        sources.entries_count |= found.lines().any(|line| line.trim() == "blscfg");
        let lines = kernel_lines(&found);
        if lines.is_empty() && sources.generated_files.iter().any(|(known, _)| known != &path) {
            continue;
        }
        sources.generated.extend(lines.iter().map(|line| line.text.to_owned()));
        sources.generated_files.push((path, found));
    }
    let variables = &sources.variables;
    for line in &mut sources.generated {
        *line = resolved(&words::split(line), variables).join(" ");
    }
    Ok(())
}

/// Reads what tuned adds by `$tuned_params`. Source: tuned, `plugin_bootloader`: /etc/tuned/bootcmdline is sourced by
/// /etc/grub.d/00_tuned, and its value is kept in GRUB's environment for entries.
fn read_tuned(node: &Node<'_>, sources: &mut Sources) -> Result<(), Trouble> {
    let path = node.roots.etc("tuned/bootcmdline");
    if let Some(found) = text(node, &path)? {
        let mut variables = Variables::of(sources.dash);
        variables.read(&path.display().to_string(), &found);
        match variables.get("TUNED_BOOT_CMDLINE") {
            Value::Known(value) => sources.tuned = Some((path, words::split(&value))),
            Value::Unknown(why) => return Err(Trouble::io(why)),
        }
    } else if let Some(value) = sources.variables.get("tuned_params") {
        sources.tuned = Some((path, words::split(value)));
    }
    Ok(())
}

/// Parses `set NAME="value"` of a `grub.cfg`, outside of functions and conditions.
fn set_line(line: &str) -> Option<(String, String)> {
    let (name, value) = line.strip_prefix("set ")?.split_once('=')?;
    Some((name.to_owned(), value.trim().trim_matches(['"', '\'']).to_owned()))
}

/// Replaces GRUB's variables; an unset one stays as it is.
pub fn resolved(words: &[String], variables: &HashMap<String, String>) -> Vec<String> {
    let value = |word: &String| {
        let name = word.strip_prefix('$')?;
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        Some(words::split(variables.get(name)?))
    };
    words.iter().flat_map(|word| value(word).unwrap_or_else(|| vec![word.clone()])).collect()
}

/// A line of a `grub.cfg` that boots a kernel with the command line of the defaults.
struct KernelLine<'a> {
    number: usize,
    text: &'a str,
}

/// Returns the lines that are derived from `/etc/default/grub` as a whole.
///
/// Without memory testers, which have no root, recovery entries, which lack `GRUB_CMDLINE_LINUX_DEFAULT`, and sections
/// of other systems or people.
fn kernel_lines(text: &str) -> Vec<KernelLine<'_>> {
    let mut ours = true;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(script) = line.strip_prefix("### BEGIN ").and_then(|rest| rest.strip_suffix(" ###")) {
            let name = script.rsplit('/').next().unwrap_or_default();
            ours = name.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').starts_with("linux");
            continue;
        }
        let text = line.trim();
        let words = words::split(text);
        let boots = matches!(words.first().map(String::as_str), Some("linux" | "linux16" | "linuxefi"));
        let has_root = words.iter().any(|word| word.starts_with("root="));
        let recovers = words.iter().any(|word| matches!(word.as_str(), "single" | "recovery"));
        if ours && boots && has_root && !recovers {
            found.push(KernelLine { number, text });
        }
    }
    found
}

/// Returns a `grub.cfg` as the generator will write it, for predictions: with the declared kernel lines.
pub fn regenerated(task: &KernelCmdline, text: &str) -> String {
    let numbers: Vec<usize> = kernel_lines(text).iter().map(|line| line.number).collect();
    let line = |(number, line): (usize, &str)| {
        if !numbers.contains(&number) {
            return format!("{line}\n");
        }
        let trimmed = line.trim_start();
        let indent = line.get(..line.len() - trimmed.len()).unwrap_or_default();
        format!("{indent}{}\n", words::edited(task, &words::split(trimmed)).join(" "))
    };
    text.lines().enumerate().map(line).collect()
}

fn option_line(line: &str) -> Option<&str> {
    line.strip_prefix("options").filter(|rest| rest.starts_with([' ', '\t'])).map(str::trim)
}

/// Whether entries have options of their own, and not those of GRUB's environment.
fn has_own_options(text: &str) -> bool {
    text.lines().filter_map(option_line).any(|options| !options.contains("$kernelopts"))
}

impl Sources {
    /// Returns the words of GRUB's defaults and of tuned.
    ///
    /// # Errors
    /// If only a shell could tell.
    pub fn grub_words(&self, files: &[Source]) -> Result<Vec<String>, String> {
        let words = defaults::total(files, self.dash)?;
        Ok(self.with_tuned(&words))
    }

    /// Adds what tuned will add at the next boot, and GRUB's other variables.
    fn with_tuned(&self, words: &[String]) -> Vec<String> {
        let mut variables = self.variables.clone();
        if let Some((_, words)) = &self.tuned {
            variables.insert("tuned_params".to_owned(), words.join(" "));
        }
        resolved(words, &variables)
    }

    /// Returns the words of a file that is no shell file, with variables replaced.
    pub fn words_of(&self, file: &Source) -> Vec<String> {
        self.with_tuned(&file.words())
    }
}

impl Source {
    /// Returns the words of a file that is no shell file, as written.
    fn words(&self) -> Vec<String> {
        match self.kind {
            Kind::GrubDefaults => Vec::new(),
            Kind::Plain | Kind::Environment => words::split(&self.text),
            Kind::Entry => self.text.lines().filter_map(option_line).flat_map(words::split).collect(),
        }
    }

    /// Returns a file that is no shell file with the declared words.
    pub fn edited(&self, task: &KernelCmdline) -> String {
        match self.kind {
            Kind::GrubDefaults => self.text.clone(),
            Kind::Plain | Kind::Environment => {
                let now = words::split(&self.text);
                let then = words::edited(task, &now);
                let end = if self.kind == Kind::Plain { "\n" } else { "" };
                if then == now { self.text.clone() } else { format!("{}{end}", then.join(" ")) }
            }
            Kind::Entry => self.each_line(|line| {
                let now = words::split(option_line(line)?);
                let then = words::edited(task, &now);
                (then != now).then(|| format!("options {}", then.join(" ")))
            }),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn adding(words: &[&str]) -> KernelCmdline {
        KernelCmdline { add: words.iter().map(|word| (*word).to_owned()).collect(), remove: Vec::new() }
    }

    #[test]
    fn entries_and_plain_lines() {
        let entry = Source {
            path: "/e".into(),
            kind: Kind::Entry,
            text: "title X\noptions root=/a quiet $tuned_params\nlinux /v\n".into(),
        };
        assert_eq!(
            entry.edited(&adding(&["iommu=pt"])),
            "title X\noptions root=/a quiet $tuned_params iommu=pt\nlinux /v\n"
        );
        let plain = Source { path: "/p".into(), kind: Kind::Plain, text: "root=/a\n".into() };
        assert_eq!(plain.edited(&adding(&["iommu=pt"])), "root=/a iommu=pt\n");
        assert!(!has_own_options("options $kernelopts $tuned_params\n"));
    }

    /// Written by grub-mkconfig 2.06-13+deb12u2 of Debian 12 with memtest86+ 6.10-4, tuned 2.20 and a missing disk.
    const RECORDED: &str = include_str!("recorded/debian-12-tuned.cfg");

    #[test]
    fn only_entries_that_follow_from_the_defaults_count() {
        let lines = kernel_lines(RECORDED);
        assert_eq!(lines.len(), 3, "one for the newest kernel, and one for each of two kernels");
        let all = RECORDED.lines().filter(|line| line.trim_start().starts_with("linux")).count();
        assert_eq!(all, 3 + 2 + 2, "two recovery entries and two of memtest86+ are there");
        assert!(lines.iter().all(|line| line.text.ends_with("quiet iommu=pt $tuned_params")));
        let task = adding(&["a=1"]);
        let then = regenerated(&task, RECORDED);
        assert_eq!(then.lines().filter(|line| line.ends_with(" a=1")).count(), 3);
        let variables = RECORDED.lines().filter_map(set_line).collect();
        let resolved = resolved(&words::split(lines[0].text), &variables).join(" ");
        assert!(resolved.ends_with("quiet iommu=pt skew_tick=1 nohz=on"), "{resolved}");
    }

    #[test]
    fn other_systems_and_hand_written_entries_are_left_alone() {
        let text = "### BEGIN /etc/grub.d/10_linux ###\n\tlinux /v root=/a ro x\n### END /etc/grub.d/10_linux ###\n\
                    ### BEGIN /etc/grub.d/30_os-prober ###\nlinux /w root=/b\n### END /etc/grub.d/30_os-prober ###\n\
                    ### BEGIN /etc/grub.d/40_custom ###\nlinux /w root=/c\n### END /etc/grub.d/40_custom ###\n";
        let found: Vec<&str> = kernel_lines(text).iter().map(|line| line.text).collect();
        assert_eq!(found, ["linux /v root=/a ro x"]);
    }
}
