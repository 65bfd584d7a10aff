//! Moves files that were unpacked aside to their places, with the result of unpacking there.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::Format;
use crate::{
    declare::{Node, Trouble},
    os::{
        files::{At, FileError, Ownership},
        tree::{Dir, Spot},
    },
};

/// What happens to existing paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Replace,
    /// Directories stay as they are; files are replaced.
    KeepDirectories,
    KeepNewer,
    Keep,
    /// They stay, and that is an error.
    Refuse,
}

/// The task's rules for existing paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub existing: Existing,
    /// An option that requires unpacking in place, because the program must see existing files.
    pub in_place: Option<String>,
}

#[derive(Clone, Copy)]
enum Means {
    Rule(Existing),
    InPlace,
}

/// Long options of GNU tar, and how many letters make each unique.
const LONG: [(&str, usize, Means); 7] = [
    ("skip-old-files", 2, Means::Rule(Existing::Keep)),
    ("keep-old-files", 6, Means::Rule(Existing::Refuse)),
    ("keep-newer-files", 6, Means::Rule(Existing::KeepNewer)),
    ("no-overwrite-dir", 4, Means::Rule(Existing::KeepDirectories)),
    ("keep-directory-symlink", 6, Means::InPlace),
    ("backup", 2, Means::InPlace),
    ("recursive-unlink", 9, Means::InPlace),
];

/// Letters after which the rest of the word is a value, in tar and in unzip.
const VALUES: [&str; 2] = ["bCFfgHIKLNTVX", "dPx"];

fn letters(format: Format, word: &str) -> impl Iterator<Item = Means> {
    let (values, tar) = match format {
        Format::Tar => (VALUES[0], true),
        Format::Zip => (VALUES[1], false),
    };
    let own = word.chars().take_while(|letter| !values.contains(*letter));
    own.filter_map(move |letter| match (tar, letter) {
        (true, 'k') => Some(Means::Rule(Existing::Refuse)),
        (false, 'n') => Some(Means::Rule(Existing::Keep)),
        (false, 'u') => Some(Means::Rule(Existing::KeepNewer)),
        (false, 'f' | 'B') => Some(Means::InPlace),
        _ => None,
    })
}

impl Rules {
    /// Parses the options of a task; the last one wins, as in the programs.
    pub fn read(format: Format, keep_newer: bool, options: &[String]) -> Self {
        let existing = if keep_newer { Existing::KeepNewer } else { Existing::Replace };
        let mut rules = Self { existing, in_place: None };
        for option in options {
            let long = option.strip_prefix("--").filter(|_| format == Format::Tar);
            let meant: Vec<Means> = match (long, option.strip_prefix('-')) {
                (Some(long), _) => {
                    let name = long.split('=').next().unwrap_or(long);
                    let is =
                        |known: &&(&str, usize, Means)| known.0.starts_with(name) && name.len() >= known.1;
                    LONG.iter().find(is).map(|known| known.2).into_iter().collect()
                }
                (None, Some(word)) => letters(format, word).collect(),
                (None, None) => Vec::new(),
            };
            for means in meant {
                match means {
                    Means::Rule(existing) => rules.existing = existing,
                    Means::InPlace => rules.in_place = Some(option.clone()),
                }
            }
        }
        rules
    }

    /// Whether paths may permanently differ from the archive.
    pub fn protects(&self) -> bool {
        self.existing != Existing::Replace
    }
}

/// Returns the directories below the destination whose owner, mode and times the archive sets. Other directories are
/// only created for their files, and `unzip` does not change existing ones.
pub fn directories(format: Format, members: &[String]) -> BTreeSet<PathBuf> {
    let named = |member: &&String| format == Format::Tar && member.ends_with('/');
    let path = |member: &String| Path::new(member).components().filter(normal).collect();
    fn normal(component: &std::path::Component<'_>) -> bool {
        matches!(component, std::path::Component::Normal(_))
    }
    members.iter().filter(named).map(path).collect()
}

/// A directory of unpacked files that is being moved to its place.
pub struct Merge<'a> {
    pub existing: Existing,
    pub directories: BTreeSet<PathBuf>,
    pub node: &'a Node<'a>,
    /// Existing paths that were kept although the archive has them.
    pub kept: Vec<PathBuf>,
}

impl Merge<'_> {
    /// Moves everything from one directory to another; `below` is the path of both below the destination.
    ///
    /// # Errors
    /// If something cannot be moved; what was moved before stays.
    pub fn merge(&mut self, from: &Dir, to: &Dir, below: &Path) -> Result<(), Trouble> {
        for name in from.names()? {
            self.node.check_time()?;
            let (source, place, path) = (from.spot(&name), to.spot(&name), below.join(&name));
            let Some(meta) = source.look()? else { continue };
            match place.look()? {
                Some(there) if meta.is_dir() && there.is_dir() => {
                    self.merge(&source.enter()?, &place.enter()?, &path)?;
                    self.settle(&source, &place, &path)?;
                    continue;
                }
                Some(there)
                    if self.existing == Existing::KeepNewer
                        && !meta.is_dir()
                        && there.mtime() >= meta.mtime() =>
                {
                    continue;
                }
                Some(_) if matches!(self.existing, Existing::Keep | Existing::Refuse) => {
                    self.kept.push(path);
                    continue;
                }
                Some(there) if meta.is_dir() && !there.is_dir() => {
                    place.remove().at("replace", place.path())?;
                }
                _ => {}
            }
            source.rename(&place).map_err(|error| match error.raw_os_error() {
                Some(libc::EXDEV) => Trouble::invalid(format!(
                    "{} is on another file system than {}, and other users may write there: nothing can be moved into \
                     it safely; unpack with that directory as `dest`",
                    to.path().display(),
                    from.path().display()
                )),
                _ => FileError::new("make", place.path(), error).into(),
            })?;
        }
        Ok(())
    }

    /// Applies the archive's attributes to an existing directory.
    pub fn settle(&self, source: &Spot, place: &Spot, path: &Path) -> Result<(), FileError> {
        if self.existing == Existing::Replace && self.directories.contains(path) {
            like(source, place)?;
        }
        Ok(())
    }
}

/// Copies owner, mode and times to another directory.
fn like(from: &Spot, to: &Spot) -> Result<(), FileError> {
    let Some(meta) = from.look()? else { return Ok(()) };
    to.own_as(
        true,
        false,
        Ownership { uid: Some(meta.uid()), gid: Some(meta.gid()), mode: Some(meta.mode() & 0o7777) },
    )?;
    let time = |seconds, nanoseconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    to.touch(&rustix::fs::Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_the_programs_read_them() {
        let read = |format, words: &str| {
            let options: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            let rules = Rules::read(format, false, &options);
            (rules.existing, rules.in_place)
        };
        for (words, wanted) in [
            ("", Existing::Replace),
            ("--strip-components=1 -p", Existing::Replace),
            ("--skip-old-files", Existing::Keep),
            ("--skip-old", Existing::Keep),
            ("-pk", Existing::Refuse),
            ("--keep-old-files", Existing::Refuse),
            ("-C keys -Ckeys", Existing::Replace),
            ("-k --keep-newer-files", Existing::KeepNewer),
            ("--no-overwrite-dir", Existing::KeepDirectories),
        ] {
            assert_eq!(read(Format::Tar, words), (wanted, None), "{words}");
        }
        for (words, wanted) in [
            ("-n", Existing::Keep),
            ("-jn", Existing::Keep),
            ("-u", Existing::KeepNewer),
            ("-dn", Existing::Replace),
        ] {
            assert_eq!(read(Format::Zip, words), (wanted, None), "{words}");
        }
        assert_eq!(read(Format::Tar, "--backup=numbered").1.as_deref(), Some("--backup=numbered"));
        assert_eq!(read(Format::Zip, "-B").1.as_deref(), Some("-B"));
        assert_eq!(Rules::read(Format::Tar, true, &[]).existing, Existing::KeepNewer);
    }

    #[test]
    fn only_a_tar_archive_says_something_of_directories() {
        let members: Vec<String> = ["./", "./app/", "lib/x", "/etc/d/"].map(str::to_owned).into();
        let wanted: BTreeSet<PathBuf> = ["", "app", "etc/d"].map(PathBuf::from).into();
        assert_eq!(directories(Format::Tar, &members), wanted);
        assert_eq!(directories(Format::Zip, &members), BTreeSet::new());
    }
}
