//! The lines of modprobe.d, as kmod reads them: over all folders, with continuation lines.
//!
//! Source: modprobe.d(5), and kmod's libkmod-config.c. Files of all folders are read in the order of their names; of files
//! with the same name, only that of the first folder is. Options of all lines are handed to the kernel in this order,
//! and of two values it keeps the later one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    declare::{Node, Trouble},
    os::lines::{Edit, edited},
    tasks::kernel_cmdline::split,
    world::Entry,
};

pub const OPTIONS: &str = "/etc/modprobe.d";
/// The folders, the first one that counts first.
const FOLDERS: [&str; 5] =
    [OPTIONS, "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];

/// Returns a module's name for comparisons, in which `-` and `_` are equal.
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the lines of a text; one that ends with `\` goes on in the next.
fn lines(text: &str) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        match all.last_mut().filter(|_| goes_on) {
            Some(last) => last.push(line),
            None => all.push(vec![line]),
        }
        goes_on = line.ends_with('\\');
    }
    all
}

fn joined(parts: &[&str]) -> String {
    parts.iter().map(|part| part.strip_suffix('\\').unwrap_or(part)).collect()
}

/// Returns the lines of a text, those that go on as one.
pub fn whole_lines(text: &str) -> Vec<String> {
    lines(text).iter().map(|parts| joined(parts)).collect()
}

/// Returns the text of each file that counts, by its name, with where it is.
///
/// What is no file, such as a link to `/dev/null`, hides its namesakes and says nothing. A folder is none for kmod.
///
/// # Errors
/// If a file or a folder cannot be read.
pub fn files(node: &Node<'_>) -> Result<Files, Trouble> {
    let mut files = BTreeMap::new();
    for folder in FOLDERS.map(|folder| node.roots.path(folder)) {
        for file in node.world.names(&folder)? {
            if file.starts_with('.') || !file.ends_with(".conf") || files.contains_key(&file) {
                continue;
            }
            let path = folder.join(&file);
            let text = match node.world.follow_anywhere(&path)?.1 {
                Entry::Directory { .. } => continue,
                Entry::File { .. } => node.world.read(&path)?.unwrap_or_default(),
                Entry::Absent | Entry::Link { .. } | Entry::Other { .. } => Vec::new(),
            };
            // kmod goes by bytes, and a comment may be in any encoding.
            files.insert(file, (path, String::from_utf8_lossy(&text).into_owned()));
        }
    }
    Ok(files)
}

/// Returns the options for a module in one line.
fn options_of(line: &str, name: &str) -> Option<String> {
    let mut words = split(line).into_iter();
    let ours = words.next().as_deref() == Some("options")
        && words.next().is_some_and(|module| canonical(&module) == name);
    ours.then(|| words.collect::<Vec<_>>().join(" "))
}

/// Returns the options for a module in a text, one entry for each line of options; `name` is canonical.
pub fn options(text: &str, name: &str) -> Vec<String> {
    lines(text).iter().filter_map(|parts| options_of(&joined(parts), name)).collect()
}

/// Whether a text has commented-out options of a module.
pub fn had_options(text: &str, name: &str) -> bool {
    let line =
        |parts: &Vec<&str>| joined(parts).strip_prefix('#').and_then(|line| options_of(line, name)).is_some();
    lines(text).iter().any(line)
}

/// Returns the text with the options of a module commented out.
pub fn without_options(text: &str, name: &str) -> String {
    let is_ours = |parts: &Vec<&str>| vec![options_of(&joined(parts), name).is_some(); parts.len()];
    let ours: Vec<bool> = lines(text).iter().flat_map(is_ours).collect();
    edited(text, |at, line| match ours.get(at) {
        Some(true) => Edit::Set(format!("#{line}")),
        _ => Edit::Keep,
    })
}

/// An option that a file outside of /etc sets to another value than declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub path: PathBuf,
    /// As there, such as `NVreg_X=0`.
    pub option: String,
    /// Whether it comes after the declared one, and so counts.
    pub wins: bool,
}

/// The files that count, by their names, each with where it is and its text.
pub type Files = BTreeMap<String, (PathBuf, String)>;

/// Returns where files of other folders set declared options otherwise. `own` is the file in /etc with the declared ones; it
/// hides files of the same name.
pub fn foreign(node: &Node<'_>, files: &Files, name: &str, own: &Path, declared: &str) -> Vec<Foreign> {
    let own = own.file_name().unwrap_or_default();
    let option = |word: &str| canonical(word.split('=').next().unwrap_or(word));
    let mut found = Vec::new();
    let in_etc = node.roots.path(OPTIONS);
    // Another one of the same name in /etc hides it as well.
    for (file, (path, text)) in files {
        if own == file.as_str() || path.starts_with(&in_etc) {
            continue;
        }
        for word in options(text, name).iter().flat_map(|line| split(line)) {
            let other = |wanted: &String| option(wanted) == option(&word) && *wanted != word;
            if split(declared).iter().any(other) {
                let wins = own < file.as_str();
                found.push(Foreign { path: path.clone(), option: word, wins });
            }
        }
    }
    found
}

/// Returns the file that one in /etc, which is not there yet, would hide.
pub fn hidden_by(files: &Files, own: &Path) -> Option<PathBuf> {
    let (path, _) = files.get(own.file_name()?.to_str()?)?;
    Some(path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn a_line_goes_on_after_a_backslash() {
        let text = "options nvidia A=1 \\\n  B=2\n# options nvidia C=1 \\\n D=2\noptions nvidia-x A=1\nblacklist nouveau\n";
        assert_eq!(options(text, "nvidia"), ["A=1 B=2"]);
        let without = "#options nvidia A=1 \\\n#  B=2\n# options nvidia C=1 \\\n D=2\noptions nvidia-x A=1\nblacklist nouveau\n";
        assert_eq!(without_options(text, "nvidia"), without);
        assert_eq!(options(without, "nvidia"), Vec::<String>::new());
        assert!(had_options(without, "nvidia") && !had_options(text, "nvidia_x"));
    }

    #[test]
    fn the_file_with_the_later_name_wins_and_one_in_etc_hides_its_namesakes() {
        let bench = Bench::new();
        bench.write("usr/lib/modprobe.d/nvidia-a.conf", "options nvidia NVreg_X=0 NVreg_Y=2\n");
        bench.write("run/modprobe.d/zz.conf", "options nvidia \\\n NVreg_X=2\n");
        bench.write("usr/lib/modprobe.d/zz.conf", "options nvidia NVreg_X=3\n");
        bench.write("lib/modprobe.d/hidden.conf", "options nvidia NVreg_X=4\n");
        bench.write("etc/modprobe.d/hidden.conf", "");
        bench.write("usr/lib/modprobe.d/nvidia.conf", "options nvidia NVreg_X=5\n");
        let own = bench.path("etc/modprobe.d/nvidia.conf");
        bench.node(|node| {
            let read = files(node).unwrap();
            let of = |path: &str, option: &str, wins| Foreign {
                path: bench.path(path),
                option: option.to_owned(),
                wins,
            };
            assert_eq!(
                foreign(node, &read, "nvidia", &own, "NVreg_X=1 NVreg_Z=1"),
                [
                    of("usr/lib/modprobe.d/nvidia-a.conf", "NVreg_X=0", false),
                    of("run/modprobe.d/zz.conf", "NVreg_X=2", true),
                ]
            );
            assert_eq!(
                foreign(node, &read, "nvidia", &own, "NVreg_X=2").len(),
                1,
                "the same value is no matter"
            );
            assert_eq!(hidden_by(&read, &own), Some(bench.path("usr/lib/modprobe.d/nvidia.conf")));
            // A mask is no file to read, and hides all the same.
            std::os::unix::fs::symlink("/dev/null", bench.path("run/modprobe.d/nvidia.conf")).unwrap();
            let read = files(node).unwrap();
            assert_eq!(hidden_by(&read, &own), Some(bench.path("run/modprobe.d/nvidia.conf")));
        });
    }
}
