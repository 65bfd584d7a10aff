//! What turns swap on at boot: lines of fstab, units that generators make, and services.

use std::{collections::HashMap, path::PathBuf};

use crate::{
    declare::{Node, Trouble},
    tasks::{
        mount::fstab::Line,
        systemd::{ask, parse},
    },
};

/// In front of a line of fstab that was commented out.
const MARK: &str = "# gpufleet swap: ";
/// Services that make and turn on swap by themselves: of zram-tools, Ubuntu's zram-config, dphys-swapfile, swapspace and
/// systemd-swap.
const SERVICES: [&str; 5] = [
    "dphys-swapfile.service",
    "swapspace.service",
    "systemd-swap.service",
    "zram-config.service",
    "zramswap.service",
];

/// A unit that turns swap on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub name: String,
    /// Who made it.
    pub why: String,
    /// Whether a mask has room: not where the unit's own file is in its place.
    pub can_mask: bool,
}

/// Units that have to do with swap.
#[derive(Debug, Default)]
pub struct Units {
    /// Those that a boot would start, and that are to be masked.
    pub starting: Vec<Unit>,
    /// Those of our record, each with whether it is masked.
    pub ours: Vec<(String, bool)>,
}

/// What a boot turns on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// As /proc/swaps has it, links followed.
    Path(String),
    /// A service whose areas nobody knows before.
    Unknown,
}

/// Returns the path that an entry of fstab, or a link of udev, leads to.
fn resolved(node: &Node<'_>, spec: &str) -> Result<Target, Trouble> {
    const TAGS: [(&str, &str); 4] = [
        ("UUID=", "by-uuid"),
        ("LABEL=", "by-label"),
        ("PARTUUID=", "by-partuuid"),
        ("PARTLABEL=", "by-partlabel"),
    ];
    let by_tag = TAGS.iter().find_map(|(tag, folder)| {
        let value = spec.strip_prefix(tag)?.trim_matches('"');
        Some(format!("/dev/disk/{folder}/{value}"))
    });
    let path = by_tag.unwrap_or_else(|| spec.to_owned());
    if !path.starts_with('/') {
        return Ok(Target::Unknown);
    }
    let (place, _) = node.world.follow_anywhere(&node.roots.path(&path))?;
    let root = node.roots.path("/");
    let inside = place.strip_prefix(&root).map(|rest| PathBuf::from("/").join(rest));
    Ok(Target::Path(inside.unwrap_or(place).display().to_string()))
}

/// Returns the path of a unit such as `dev-disk-by\x2dpartuuid-7.swap`. Source: systemd.unit(5), systemd-escape(1).
fn path_of_unit(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.strip_suffix(".swap")?.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.strip_prefix(b"x").and_then(|code| code.get(..2));
        match (first, code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok())) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(if *first == b'-' { b'/' } else { *first });
                rest = after;
            }
        }
    }
    Some(format!("/{}", String::from_utf8(bytes).ok()?))
}

/// Returns what these lines of fstab and these units turn on.
///
/// # Errors
/// If a link cannot be followed.
pub fn targets(node: &Node<'_>, fstab: &str, units: &[(String, bool)]) -> Result<Vec<Target>, Trouble> {
    let lines = entries(fstab).filter_map(Line::parse).map(|line| Some(line.src));
    let units = units.iter().map(|(name, _)| path_of_unit(name));
    lines.chain(units).map(|path| path.map_or(Ok(Target::Unknown), |path| resolved(node, &path))).collect()
}

fn is_entry(line: &str) -> bool {
    Line::parse(line)
        .is_some_and(|line| line.fstype == "swap" && !line.opts.split(',').any(|option| option == "noauto"))
}

/// Returns the lines of fstab that turn swap on at boot.
pub fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| is_entry(line))
}

/// Returns the lines that we commented out, as they were.
pub fn marked(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix(MARK)).filter(|line| is_entry(line))
}

fn each_line(text: &str, line: impl Fn(&str) -> String) -> String {
    let mut new: String = text.lines().map(|old| line(old) + "\n").collect();
    if !text.ends_with('\n') {
        new.pop();
    }
    new
}

pub fn commented(text: &str) -> String {
    each_line(text, |line| if is_entry(line) { format!("{MARK}{line}") } else { line.to_owned() })
}

pub fn restored(text: &str) -> String {
    each_line(text, |line| match line.strip_prefix(MARK) {
        Some(ours) if is_entry(ours) => ours.to_owned(),
        _ => line.to_owned(),
    })
}

/// Returns the units of the record.
pub fn recorded(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '-']))
}

/// Returns the record with these units too.
pub fn with_record(text: &str, units: &[String]) -> String {
    let mut all: Vec<&str> = recorded(text).chain(units.iter().map(String::as_str)).collect();
    all.sort_unstable();
    all.dedup();
    let lines: String = all.iter().map(|unit| format!("{unit}\n")).collect();
    format!("# Units that gpufleet masked: `swap`.\n{lines}")
}

fn judge(node: &Node<'_>, unit: &HashMap<String, String>) -> Option<Unit> {
    let get = |name: &str| unit.get(name).map_or("", String::as_str);
    let (name, fragment, source) = (get("Id"), get("FragmentPath"), get("SourcePath"));
    let is_masked = node.world.unit(name).map_or_else(
        || get("LoadState") == "masked" || get("UnitFileState").starts_with("masked"),
        |view| view.file_state == "masked",
    );
    // Without a file it only shows what the kernel swaps to.
    if is_masked || get("LoadState") != "loaded" || fragment.is_empty() || source == "/etc/fstab" {
        return None;
    }
    let starts = match name.ends_with(".swap") {
        // Whether swap.target wants a unit of a generator is decided by the generator.
        true => {
            let pulled = ["WantedBy", "RequiredBy"].map(get);
            !matches!(get("UnitFileState"), "disabled" | "static")
                || pulled.iter().any(|by| by.split_whitespace().any(|unit| unit == "swap.target"))
        }
        false => get("UnitFileState") == "enabled" || get("ActiveState") == "active",
    };
    let why = if name.contains("zram") || source.contains("zram") {
        "zram-generator or a zram service makes it"
    } else if fragment.starts_with("/run/systemd/generator") {
        "a generator of systemd makes it at boot, from the partition table or the like"
    } else {
        "a unit of its own turns swap on"
    };
    let can_mask = !fragment.starts_with("/etc/systemd/system/");
    starts.then(|| Unit { name: name.to_owned(), why: why.to_owned(), can_mask })
}

/// Reads the units that a boot would start, and of the recorded ones whether each is masked.
///
/// # Errors
/// If systemd does not answer.
pub fn units(node: &Node<'_>, systemctl: &PathBuf, recorded: &[&str]) -> Result<Units, Trouble> {
    let wanted =
        "--property=Id,LoadState,ActiveState,UnitFileState,FragmentPath,SourcePath,WantedBy,RequiredBy";
    let mut arguments = vec!["show", wanted, "--", "*.swap"];
    arguments.extend(SERVICES);
    arguments.extend(recorded);
    let done = ask(node, systemctl, &arguments)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("systemctl show")));
    }
    let text = done.stdout();
    let mut starting: Vec<Unit> = Vec::new();
    let mut masked: HashMap<String, bool> = HashMap::new();
    for unit in text.split("\n\n").map(parse) {
        let Some(name) = unit.get("Id") else { continue };
        let assumed = node.world.unit(name).map(|view| view.file_state == "masked");
        let is_masked = unit.get("LoadState").is_some_and(|state| state == "masked");
        masked.insert(name.clone(), assumed.unwrap_or(is_masked));
        let found = judge(node, &unit).filter(|one| !starting.iter().any(|known| known.name == one.name));
        starting.extend(found);
    }
    starting.sort_by(|a, b| a.name.cmp(&b.name));
    let ours =
        recorded.iter().map(|name| ((*name).to_owned(), masked.get(*name).copied().unwrap_or_default()));
    Ok(Units { starting, ours: ours.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_lines_come_back() {
        let text = "UUID=1 / ext4 defaults 0 1\n/swap.img none swap sw 0 0\n# /old none swap sw 0 0\n/b none swap noauto 0 0";
        let off = commented(text);
        assert_eq!(
            off,
            "UUID=1 / ext4 defaults 0 1\n# gpufleet swap: /swap.img none swap sw 0 0\n# /old none swap sw 0 0\n/b none swap noauto 0 0"
        );
        assert_eq!(commented(&off), off);
        assert_eq!(restored(&off), text);
        assert_eq!(restored(text), text);
        assert_eq!(marked(&off).collect::<Vec<_>>(), ["/swap.img none swap sw 0 0"]);
    }

    #[test]
    fn a_unit_is_named_by_its_path() {
        let path = |name| path_of_unit(name);
        assert_eq!(path("dev-disk-by\\x2dpartuuid-7.swap").as_deref(), Some("/dev/disk/by-partuuid/7"));
        assert_eq!(path("dev-zram0.swap").as_deref(), Some("/dev/zram0"));
        assert_eq!((path("zramswap.service"), path("a\\x.swap").as_deref()), (None, Some("/a\\x")));
    }

    #[test]
    fn the_record_has_each_unit_once() {
        let one = with_record("", &["b.swap".to_owned()]);
        let two = with_record(&one, &["a.swap".to_owned(), "b.swap".to_owned()]);
        assert_eq!(recorded(&two).collect::<Vec<_>>(), ["a.swap", "b.swap"]);
    }
}
