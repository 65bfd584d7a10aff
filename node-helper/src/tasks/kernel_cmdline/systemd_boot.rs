//! The entry that systemd-boot starts next, by its variables, its configuration and its order of entries.
//!
//! It is known only of the systemd-boot that started this node: that one tells its version (LoaderInfo). One before 250
//! sorts otherwise. Source: systemd, src/boot/efi/boot.c (`config_select_default_entry`, `boot_entry_compare`); Boot Loader
//! Interface; UAPI.1 and UAPI.10.

use std::cmp::Ordering;

use gpufleet_protocol::glob::Glob;

use super::sources::{Source, text};
use crate::{
    declare::{Node, Trouble},
    os::files,
};

const VARIABLES: &str = "/sys/firmware/efi/efivars";
const VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Where the EFI system partition is mounted.
const PARTITIONS: [&str; 3] = ["/efi", "/boot/efi", "/boot"];
/// Largest variable that is read, in bytes.
const LARGEST: u64 = 4096;
/// The oldest version with this order.
const OLDEST: u32 = 250;

/// What systemd-boot goes by.
#[derive(Debug, Default)]
pub struct Loader {
    /// The entry of the next boot only.
    once: Option<String>,
    /// The default: a name or a pattern.
    default: Option<String>,
}

fn variable(node: &Node<'_>, name: &str) -> Result<Option<String>, Trouble> {
    let path = node.roots.path(format!("{VARIABLES}/{name}-{VENDOR}"));
    let Some(bytes) = files::read_bounded(&path, LARGEST)? else { return Ok(None) };
    // Attributes come first.
    let units = bytes.get(4..).unwrap_or_default().chunks_exact(2).map(|pair| match pair {
        [low, high] => u16::from_le_bytes([*low, *high]),
        _ => 0,
    });
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    Ok(Some(String::from_utf16_lossy(&units)).filter(|text| !text.is_empty()))
}

/// Returns `default` of loader.conf; the last line counts.
fn configured(text: &str) -> Option<String> {
    let value = |line: &str| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        (name == "default").then(|| value.trim().to_owned())
    };
    text.lines().filter_map(value).next_back()
}

/// Returns what systemd-boot goes by; none if another boot loader started this node, or an old one.
///
/// # Errors
/// If its variables or its configuration cannot be read.
pub fn read(node: &Node<'_>) -> Result<Option<Loader>, Trouble> {
    let info = variable(node, "LoaderInfo")?.unwrap_or_default();
    let version = info.strip_prefix("systemd-boot ").unwrap_or_default();
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    if digits.parse::<u32>().ok().is_none_or(|version| version < OLDEST) {
        return Ok(None);
    }
    let mut default = variable(node, "LoaderEntryDefault")?;
    for partition in PARTITIONS {
        if default.is_none() {
            let path = node.roots.path(format!("{partition}/loader/loader.conf"));
            default = text(node, &path)?.and_then(|text| configured(&text));
        }
    }
    if default.as_deref() == Some("@saved") {
        default = variable(node, "LoaderEntryLastBooted")?;
    }
    Ok(Some(Loader { once: variable(node, "LoaderEntryOneShot")?, default }))
}

/// An entry as systemd-boot sees it.
#[derive(Debug)]
struct Item<'a> {
    /// The name of its file without the count of tries.
    id: String,
    left: Option<u32>,
    done: u32,
    text: &'a str,
}

/// Returns the value of a key of an entry.
fn value<'t>(text: &'t str, key: &str) -> &'t str {
    let value = |line: &'t str| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        (name == key).then(|| value.trim())
    };
    text.lines().filter_map(value).next_back().unwrap_or_default()
}

impl<'a> Item<'a> {
    fn of(entry: &'a Source) -> Option<Self> {
        let stem = entry.path.file_name()?.to_str()?.strip_suffix(".conf")?;
        let counted = stem.rsplit_once('+').and_then(|(name, tries)| {
            let (left, done) = tries.split_once('-').unwrap_or((tries, "0"));
            Some((name, left.parse().ok()?, done.parse().ok()?))
        });
        let (name, left, done) =
            counted.map_or((stem, None, 0), |(name, left, done)| (name, Some(left), done));
        Some(Self { id: format!("{name}.conf"), left, done, text: &entry.text })
    }

    fn compare(&self, other: &Self) -> Ordering {
        let failed = |item: &Self| item.left == Some(0);
        let key = |item: &Self| value(item.text, "sort-key").to_owned();
        let (own, its) = (key(self), key(other));
        let mut order = failed(self).cmp(&failed(other)).then(own.is_empty().cmp(&its.is_empty()));
        if !own.is_empty() && !its.is_empty() {
            order = order
                .then_with(|| own.cmp(&its))
                .then_with(|| value(self.text, "machine-id").cmp(value(other.text, "machine-id")))
                .then_with(|| versions(value(other.text, "version"), value(self.text, "version")));
        }
        order.then_with(|| versions(&other.id, &self.id)).then_with(|| match (self.left, other.left) {
            (Some(own), Some(its)) => its.cmp(&own).then(self.done.cmp(&other.done)),
            _ => Ordering::Equal,
        })
    }

    /// Returns the release of its kernel: kernel-install names the folder after it.
    fn release(&self) -> Option<String> {
        let path = value(self.text, "linux");
        let begins = |name: &&str| name.starts_with(|c: char| c.is_ascii_digit());
        let folder = path.rsplit('/').nth(1).filter(begins);
        let version = Some(value(self.text, "version")).filter(begins);
        super::menu::release(path.rsplit('/').next()?).or(folder).or(version).map(str::to_owned)
    }
}

/// Compares versions. Source: UAPI.10, as systemd's `strverscmp_improved` does.
fn versions(one: &str, other: &str) -> Ordering {
    let valid = |c: &char| c.is_ascii_alphanumeric() || "~-^.".contains(*c);
    let (one, other): (Vec<char>, Vec<char>) =
        (one.chars().filter(valid).collect(), other.chars().filter(valid).collect());
    let (mut a, mut b) = (one.as_slice(), other.as_slice());
    loop {
        let (first, second) = (a.first().copied(), b.first().copied());
        for separator in ['~', '-', '^', '.'] {
            // Only `~` comes before the end of a text.
            if separator != '~' && (first.is_none() || second.is_none()) {
                return first.is_some().cmp(&second.is_some());
            }
            if first == Some(separator) || second == Some(separator) {
                let order = (first != Some(separator)).cmp(&(second != Some(separator)));
                if order != Ordering::Equal {
                    return order;
                }
                break;
            }
        }
        if let (Some('~' | '-' | '^' | '.'), Some(_)) = (first, second) {
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
            continue;
        }
        let is_number = [first, second].into_iter().flatten().any(|c| c.is_ascii_digit());
        let run = |text: &[char]| {
            let is_of = |c: &&char| if is_number { c.is_ascii_digit() } else { c.is_ascii_alphabetic() };
            text.iter().take_while(is_of).count()
        };
        let (own, its) = (a.split_at(run(a)), b.split_at(run(b)));
        let order = match is_number {
            true => {
                let digits =
                    |run: &[char]| run.iter().skip_while(|c| **c == '0').copied().collect::<Vec<_>>();
                let (x, y) = (digits(own.0), digits(its.0));
                own.0.is_empty().cmp(&its.0.is_empty()).reverse().then(x.len().cmp(&y.len())).then(x.cmp(&y))
            }
            false => own.0.cmp(its.0),
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (own.1, its.1);
    }
}

/// Returns the release of the kernel that the next boot starts; none if that cannot be known.
pub fn next_kernel(loader: &Loader, entries: &[Source]) -> Option<String> {
    let mut items: Vec<Item<'_>> = entries.iter().filter_map(Item::of).collect();
    items.sort_by(Item::compare);
    if let Some(once) = &loader.once {
        // One of the loader's own entries, such as `auto-efi-shell`, starts no kernel of these.
        return items.iter().find(|item| item.id.eq_ignore_ascii_case(once))?.release();
    }
    if let Some(default) = &loader.default {
        let glob = Glob::of_shell(&default.to_ascii_lowercase());
        if let Some(item) = items.iter().find(|item| glob.matches(&item.id.to_ascii_lowercase())) {
            return item.release();
        }
        if default.starts_with(['@', 'a']) && (default.starts_with('@') || default.starts_with("auto-")) {
            return None;
        }
    }
    items.first()?.release()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use super::*;
    use crate::tasks::{
        kernel_cmdline::sources::{self, Kind},
        testing::Bench,
    };

    fn entry(name: &str, text: &str) -> Source {
        Source {
            path: format!("/boot/loader/entries/{name}").into(),
            kind: Kind::Entry,
            text: text.to_owned(),
        }
    }

    fn of(version: &str) -> String {
        format!("title Debian\nversion    {version}\nsort-key   debian\nlinux      /deb/{version}/linux\n")
    }

    #[test]
    fn versions_are_in_the_order_of_systemd() {
        // Source: UAPI.10, examples.
        let ascending = [
            "122.1",
            "123~rc1-1",
            "123",
            "123-a",
            "123-a.1",
            "123-1",
            "123-1.1",
            "123^post1",
            "123.a-1",
            "123.1-1",
            "123a-1",
            "124-1",
        ];
        for pair in ascending.windows(2) {
            let [one, other] = pair else { continue };
            assert_eq!(versions(one, other), Ordering::Less, "{one} {other}");
            assert_eq!(versions(other, one), Ordering::Greater, "{one} {other}");
        }
        for (one, other) in [("6.1.0-9-amd64", "6.1.0-13-amd64"), ("6.9", "6.10"), ("009", "10")] {
            assert_eq!(versions(one, other), Ordering::Less, "{one} {other}");
        }
        assert_eq!(versions("5.14.0-1.el9", "5.14.0-1.el9"), Ordering::Equal);
    }

    #[test]
    fn the_newest_entry_is_next_unless_something_says_otherwise() {
        let entries = [
            entry("deb-6.1.0-9.conf", &of("6.1.0-9")),
            entry("deb-6.1.0-13.conf", &of("6.1.0-13")),
            entry("deb-6.1.0-20+0-3.conf", &of("6.1.0-20")),
            entry("old-7.0.conf", "title x\nlinux /vmlinuz-7.0\n"),
        ];
        let next = |once: Option<&str>, default: Option<&str>| {
            let loader = Loader { once: once.map(str::to_owned), default: default.map(str::to_owned) };
            next_kernel(&loader, &entries)
        };
        assert_eq!(next(None, None).as_deref(), Some("6.1.0-13"), "the one with no tries left comes last");
        assert_eq!(next(None, Some("deb-6.1.0-9.conf")).as_deref(), Some("6.1.0-9"));
        assert_eq!(next(None, Some("deb-*")).as_deref(), Some("6.1.0-13"));
        assert_eq!(next(None, Some("nobody.conf")).as_deref(), Some("6.1.0-13"));
        assert_eq!(next(Some("old-7.0.conf"), Some("deb-*")).as_deref(), Some("7.0"));
        assert_eq!(next(Some("auto-efi-shell"), None), None);
        assert_eq!(next(None, Some("auto-osx")), None);
    }

    fn set(bench: &Bench, name: &str, text: &str) {
        let units = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes);
        let bytes: Vec<u8> = [7, 0, 0, 0].into_iter().chain(units).collect();
        let path = bench.path(&format!("sys/firmware/efi/efivars/{name}-{VENDOR}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// With entries by the real kernel-install.
    #[test]
    fn entries_of_kernel_install_are_read() {
        let plugin = "/usr/lib/kernel/install.d/90-loaderentry.install";
        assert!(
            Path::new(plugin).exists() && Command::new("kernel-install").arg("--version").output().is_ok(),
            "this test needs kernel-install with {plugin}: tests/scripts/setup.sh installs it (Debian's package systemd)"
        );
        let bench = Bench::new();
        for (name, text) in [
            ("conf/cmdline", "root=UUID=x ro quiet\n"),
            ("conf/entry-token", "deb\n"),
            ("conf/install.conf", "layout=bls\n"),
            ("vmlinuz", "kernel"),
            ("boot/deb/x", ""),
        ] {
            bench.write(name, text);
        }
        for version in ["6.1.0-13-amd64", "6.1.0-9-amd64"] {
            let done = Command::new("kernel-install")
                .args(["add", version])
                .arg(bench.path("vmlinuz"))
                .env("BOOT_ROOT", bench.path("boot"))
                .env("MACHINE_ID", "0123456789abcdef0123456789abcdef")
                .env("KERNEL_INSTALL_CONF_ROOT", bench.path("conf"))
                .env("KERNEL_INSTALL_PLUGINS", plugin)
                .output()
                .unwrap();
            assert!(done.status.success(), "{done:?}");
        }
        let next = || {
            bench.node(|node| {
                let found = sources::read(node).unwrap();
                assert_eq!(found.entries.len(), 2);
                let words: Vec<Vec<String>> = found.files.iter().map(|file| found.words_of(file)).collect();
                assert!(words.iter().all(|words| words.join(" ") == "root=UUID=x ro quiet"), "{words:?}");
                super::super::menu::next_kernel(&found)
            })
        };
        assert_eq!(next(), None, "nothing tells which boot loader starts this node");
        set(&bench, "LoaderInfo", "systemd-boot 249.11");
        assert_eq!(next(), None, "it sorts otherwise");
        set(&bench, "LoaderInfo", "systemd-boot 252.39-1~deb12u2");
        assert_eq!(next().as_deref(), Some("6.1.0-13-amd64"));
        bench.write("boot/loader/loader.conf", "timeout 3\ndefault deb-6.1.0-9-*\n");
        assert_eq!(next().as_deref(), Some("6.1.0-9-amd64"));
        set(&bench, "LoaderEntryDefault", "deb-6.1.0-13-amd64.conf");
        assert_eq!(next().as_deref(), Some("6.1.0-13-amd64"));
        set(&bench, "LoaderEntryOneShot", "deb-6.1.0-9-amd64.conf");
        assert_eq!(next().as_deref(), Some("6.1.0-9-amd64"));
        set(&bench, "LoaderInfo", "GRUB 2.12");
        assert_eq!(next(), None);
    }
}
