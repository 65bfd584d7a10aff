//! What cloud-init sets of kernel parameters: commands at boot, and files and commands at the first boot of an instance.
//!
//! Its configuration may hold secrets, so that no text of it is told but the value of the key. It is read line by line: a
//! line counts that names the key and is no comment.

use super::owners::Owner;
use crate::{
    declare::{Node, Trouble},
    world::{Entry, ReadError},
};

/// The configuration of the image, and the one that cloud-init merged from what the cloud gave this instance.
const FOLDER: &str = "/etc/cloud/cloud.cfg.d";
const FILES: [&str; 2] = ["/etc/cloud/cloud.cfg", "/var/lib/cloud/instance/cloud-config.txt"];
/// Programs that it runs at every boot.
const EVERY_BOOT: &str = "/var/lib/cloud/scripts/per-boot";

/// When a line of the configuration is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Bootcmd,
    Runcmd,
    WriteFiles,
}

impl Section {
    /// Source: cloud-init, reference/modules: `bootcmd` is of frequency always, `runcmd` and `write_files` once per instance.
    const fn then(self) -> &'static str {
        match self {
            Self::Bootcmd => "cloud-init runs that at every boot (bootcmd)",
            Self::Runcmd => {
                "cloud-init runs that at the first boot of an instance (runcmd), and of each copy of it"
            }
            Self::WriteFiles => {
                "cloud-init writes that file at the first boot of an instance (write_files), and of each copy of it"
            }
        }
    }
}

/// Returns the value after a key: `KEY=1`, `KEY = 1`, `KEY: 1`; none where the line tells none.
fn value_after(rest: &str) -> Option<String> {
    let rest = rest.trim_start().strip_prefix('=')?.trim();
    let end = rest.find(['"', '\'', ']', '#', ';', '&', '|', ',']).unwrap_or(rest.len());
    let value = rest.get(..end)?.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " \t-_.".contains(c);
    (!value.is_empty() && value.len() <= 128 && value.chars().all(is_plain)).then(|| value.to_owned())
}

/// Returns the value that a line sets a key to; the outer none if it does not name the key.
fn in_line(line: &str, key: &str) -> Option<Option<String>> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    // Interfaces may have dots, which a key with dots writes as slashes.
    let dotted: String = key
        .chars()
        .map(|c| {
            if c == '/' {
                '.'
            } else if c == '.' {
                '/'
            } else {
                c
            }
        })
        .collect();
    let name = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    for spelt in [dotted.as_str(), key] {
        for (at, _) in line.match_indices(spelt) {
            let (before, rest) = line.split_at(at);
            let rest = rest.get(spelt.len()..).unwrap_or_default();
            let begins = !before.ends_with(name) || before.ends_with("/proc/sys/");
            if begins && !rest.starts_with(name) {
                return Some(value_after(rest));
            }
        }
    }
    None
}

/// Returns the last line of a configuration that sets a key: where, and to what.
fn in_config(text: &str, key: &str) -> Option<(Section, Option<String>)> {
    let (mut section, mut found) = (None, None);
    for line in text.lines() {
        if let Some((name, _)) =
            line.split_once(':').filter(|_| line.starts_with(|c: char| c.is_ascii_alphabetic()))
        {
            section = match name {
                "bootcmd" => Some(Section::Bootcmd),
                "runcmd" => Some(Section::Runcmd),
                "write_files" => Some(Section::WriteFiles),
                _ => None,
            };
        }
        if let (Some(section), Some(value)) = (section, in_line(line, key)) {
            found = Some((section, value));
        }
    }
    found
}

/// What is said of files that cannot be read.
fn unread(paths: &[String]) -> String {
    let shown = paths.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = paths.len().saturating_sub(4);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("what cloud-init sets is not known in full: {shown}{more} cannot be read")
}

/// Reads a file; one that cannot be read is added to `unread`.
fn text(node: &Node<'_>, path: &str, unread: &mut Vec<String>) -> Result<Option<String>, Trouble> {
    match node.world.read(&node.roots.path(path)) {
        Ok(bytes) => Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        Err(ReadError::File(_)) => {
            unread.push(path.to_owned());
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn names(node: &Node<'_>, folder: &str, unread: &mut Vec<String>) -> Vec<String> {
    node.world.names(&node.roots.path(folder)).unwrap_or_else(|_| {
        unread.push(folder.to_owned());
        Vec::new()
    })
}

/// Returns what cloud-init sets a key to, and why that may not be all.
///
/// # Errors
/// If an earlier task of a prediction writes a file of it whose text is known only in the run.
pub fn read(node: &Node<'_>, key: &str) -> Result<(Vec<Owner>, Option<String>), Trouble> {
    let folder = node.roots.path("/etc/cloud");
    if !folder.is_dir() || node.world.entry(&folder.join("cloud-init.disabled"))? != Entry::Absent {
        return Ok((Vec::new(), None));
    }
    let mut lost = Vec::new();
    let drop_ins = names(node, FOLDER, &mut lost).into_iter().filter(|name| name.ends_with(".cfg"));
    let mut paths: Vec<String> = drop_ins.map(|name| format!("{FOLDER}/{name}")).collect();
    paths.extend(FILES.map(str::to_owned));
    let mut found = Vec::new();
    for path in paths {
        let Some((section, value)) = text(node, &path, &mut lost)?.and_then(|text| in_config(&text, key))
        else {
            continue;
        };
        found.push(Owner {
            who: format!("cloud-init ({path})"),
            value,
            wins: section == Section::Bootcmd,
            then: section.then(),
        });
    }
    for name in names(node, EVERY_BOOT, &mut lost) {
        let path = format!("{EVERY_BOOT}/{name}");
        // Links are run too (cloud-init, subp.py, `runparts`); folders are not.
        match node.world.follow_anywhere(&node.roots.path(&path)) {
            Ok((_, Entry::File { .. })) => {}
            Ok(_) => continue,
            Err(_) => {
                lost.push(path);
                continue;
            }
        }
        let script = text(node, &path, &mut lost)?.unwrap_or_default();
        if let Some(value) = script.lines().rev().find_map(|line| in_line(line, key)) {
            let who = format!("cloud-init ({path})");
            found.push(Owner { who, value, wins: true, then: "cloud-init runs that at every boot" });
        }
    }
    Ok((found, (!lost.is_empty()).then(|| unread(&lost))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_that_names_the_whole_key() {
        let of = |line| in_line(line, "net/core/rmem_max");
        let one = || Some(Some("1".to_owned()));
        for line in [
            "  - sysctl -w net.core.rmem_max=1",
            "  - [sysctl, -w, net.core.rmem_max=1]",
            "  - [ sh, -c, \"sysctl -q net.core.rmem_max=1 && true\" ]",
            "      net.core.rmem_max = 1",
            "net/core/rmem_max=1",
        ] {
            assert_eq!(of(line), one(), "{line}");
        }
        for line in ["  - echo 1 > /proc/sys/net/core/rmem_max", "- sysctl net.core.rmem_max=$(secret)"] {
            assert_eq!(of(line), Some(None), "{line}");
        }
        for line in ["# net.core.rmem_max=1", "net.core.rmem_max_x=1", "x.net.core.rmem_max=1", "y: 2"] {
            assert_eq!(of(line), None, "{line}");
        }
        assert_eq!(
            in_line("net.ipv4.conf.eth0/100.rp_filter=2", "net/ipv4/conf/eth0.100/rp_filter"),
            Some(Some("2".to_owned()))
        );
    }

    #[test]
    fn the_section_tells_when_it_is_done() {
        let text = "#cloud-config\nusers:\n  - net.core.rmem_max=3\nbootcmd:\n - sysctl net.core.rmem_max=1\nruncmd: []\n";
        assert_eq!(in_config(text, "net/core/rmem_max"), Some((Section::Bootcmd, Some("1".to_owned()))));
        let files = "write_files:\n- path: /etc/sysctl.d/9.conf\n  content: |\n    vm.swappiness=5\n";
        assert_eq!(in_config(files, "vm/swappiness"), Some((Section::WriteFiles, Some("5".to_owned()))));
        assert_eq!(in_config(files, "vm/swap"), None);
    }
}
