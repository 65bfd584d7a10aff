//! The file of systemd-udevd that sets an interface whenever it appears (systemd.link(5)).
//!
//! Only the first file that matches counts, so that a new one has to repeat what the one before it did: without its
//! `NamePolicy=` the interface would get another name at the next boot.

use std::collections::BTreeMap;

use gpufleet_protocol::tasks::NetworkInterface;

use super::Key;
use crate::{
    declare::{Node, Trouble},
    os::files,
    tasks::{edits::Present, ini, started, tool},
    world::{Content, Entry},
};

/// Folders of such files, and of those of systemd-networkd; of files with the same name, the first folder's counts.
pub const FOLDERS: [&str; 4] = [
    "/etc/systemd/network",
    "/run/systemd/network",
    "/usr/local/lib/systemd/network",
    "/usr/lib/systemd/network",
];
const DEFAULT: &str = "99-default.link";
const BASE: &str = "# In place of ";
/// Before the names of what tasks have set, to tell it from what is repeated.
const OWN: &str = "# Sets ";
const LARGEST: u64 = 256 * 1024;

/// What udev knows of an interface.
#[derive(Debug, Default)]
pub struct Known {
    /// Its place, such as `pci-0000:3b:00.0`.
    path: Option<String>,
    driver: Option<String>,
    /// The file that counted when it appeared.
    applied: Option<String>,
}

impl Known {
    /// # Errors
    /// If the record of udev cannot be read.
    pub fn read(node: &Node<'_>, index: &str) -> Result<Self, Trouble> {
        let path = node.roots.path(format!("/run/udev/data/n{index}"));
        let bytes = files::read_bounded(&path, LARGEST)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let value = |name: &str| ini::plain(&text, &format!("E:{name}")).map(str::to_owned);
        Ok(Self {
            path: value("ID_PATH"),
            driver: value("ID_NET_DRIVER"),
            applied: value("ID_NET_LINK_FILE"),
        })
    }
}

impl Known {
    /// # Errors
    /// If udev does not tell its place.
    pub fn path(&self, interface: &str) -> Result<&str, Trouble> {
        self.path.as_deref().ok_or_else(|| {
            Trouble::missing(format!(
                "udev tells no place (ID_PATH) of {interface}, so that no file can name it at boot; does udev run here?"
            ))
        })
    }

    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }
}

/// The file of an interface, as it is and as it is to be.
#[derive(Debug)]
pub struct LinkFile {
    pub file: Present,
    pub text: String,
    /// The text of the file that counts without this one.
    pub base: String,
    /// A file of the administrator that no longer counts.
    pub shadows: Option<String>,
    /// The file that counted at the boot although this one was there.
    pub ignored: Option<String>,
}

/// The oldest systemd that knows a setting. Source: systemd.link(5), "Added in version".
const fn since(key: Key) -> u32 {
    match key {
        Key::Mtu => 211,
        Key::Channels => 239,
        Key::RingRx | Key::RingTx => 244,
        Key::Pause => 246,
        // A rule of udev sets these.
        Key::Fec | Key::Pfc | Key::Trust => 0,
    }
}

/// Returns the lines of a setting.
fn lines(key: Key, value: &str) -> Vec<(&'static str, String)> {
    match key {
        Key::Mtu => vec![("MTUBytes", value.to_owned())],
        Key::RingRx => vec![("RxBufferSize", value.to_owned())],
        Key::RingTx => vec![("TxBufferSize", value.to_owned())],
        Key::Channels => vec![("CombinedChannels", value.to_owned())],
        Key::Pause => {
            let flag = if value == "on" { "yes" } else { "no" };
            vec![
                ("RxFlowControl", flag.to_owned()),
                ("TxFlowControl", flag.to_owned()),
                ("AutoNegotiationFlowControl", "no".to_owned()),
            ]
        }
        Key::Fec | Key::Pfc | Key::Trust => Vec::new(),
    }
}

/// Returns the name by which our file tells that it sets a key.
fn name_of(key: Key) -> &'static str {
    lines(key, "").first().map_or("", |(name, _)| *name)
}

/// Returns what earlier tasks have put into our file, without what it repeats.
fn own_values(text: &str) -> BTreeMap<Key, String> {
    let names = text.lines().find_map(|line| line.strip_prefix(OWN)).unwrap_or_default();
    let own = |key: &Key| key.in_link_file() && names.split(' ').any(|name| name == name_of(*key));
    Key::ALL.into_iter().filter(own).filter_map(|key| Some((key, value_in(text, key)?))).collect()
}

/// Returns what a text sets a key to, in the words of the task.
pub fn value_in(text: &str, key: Key) -> Option<String> {
    let value = ini::value(text, "Link", name_of(key))?;
    Some(match key {
        Key::Pause if matches!(value, "yes" | "true" | "1" | "on") => "on".to_owned(),
        Key::Pause => "off".to_owned(),
        Key::Mtu => ini::size(value).map_or_else(|| value.to_owned(), |bytes| bytes.to_string()),
        _ => value.to_owned(),
    })
}

/// Builds the file: what it matches, what the file before it says, and the settings.
fn built(base: Option<&(String, String)>, matches: &[(&str, &str)], sets: &BTreeMap<Key, String>) -> String {
    let names: Vec<&str> = sets.keys().map(|key| name_of(*key)).collect();
    let mut text = format!("# Written by gpufleet.\n{OWN}{}\n", names.join(" "));
    if let Some((path, _)) = base {
        text.push_str(&format!("{BASE}{path}, whose other settings are repeated here.\n"));
    }
    text.push_str("[Match]\n");
    matches.iter().for_each(|(name, value)| text.push_str(&format!("{name}={value}\n")));
    text.push_str("\n[Link]\n");
    let ours: Vec<(&str, String)> = sets.iter().flat_map(|(key, value)| lines(*key, value)).collect();
    let content = base.map_or("", |(_, content)| content.as_str());
    for (name, value) in ini::section(content, "Link") {
        if !ours.iter().any(|(own, _)| *own == name) {
            text.push_str(&format!("{name}={value}\n"));
        }
    }
    ours.iter().for_each(|(name, value)| text.push_str(&format!("{name}={value}\n")));
    let virtual_functions = ini::section(content, "SR-IOV");
    if !virtual_functions.is_empty() {
        text.push_str("\n[SR-IOV]\n");
        virtual_functions.iter().for_each(|(name, value)| text.push_str(&format!("{name}={value}\n")));
    }
    text
}

/// Returns the path and the content of the file that counts besides ours, with its drop-ins.
fn base(node: &Node<'_>, applied: Option<&str>) -> Result<Option<(String, String)>, Trouble> {
    let names = applied.and_then(|path| path.rsplit('/').next()).into_iter().chain([DEFAULT]);
    'names: for name in names.filter(|name| name.ends_with(".link")) {
        for folder in FOLDERS {
            let path = format!("{folder}/{name}");
            // A link to /dev/null masks files of that name in later folders.
            if let Entry::Other { .. } = node.world.follow(&node.roots.path(&path))?.1 {
                continue 'names;
            }
            // Often a link of udev's package.
            let Some(bytes) = node.world.read(&node.roots.path(&path))? else { continue };
            let mut text = String::from_utf8_lossy(&bytes).into_owned();
            text.push('\n');
            let mut drop_ins = BTreeMap::new();
            for folder in FOLDERS {
                let below = format!("{folder}/{name}.d");
                for file in node.world.names(&node.roots.path(&below))? {
                    if file.ends_with(".conf") {
                        drop_ins.entry(file.clone()).or_insert_with(|| format!("{below}/{file}"));
                    }
                }
            }
            for path in drop_ins.into_values() {
                let bytes = node.world.read(&node.roots.path(path))?.unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(&bytes));
                text.push('\n');
            }
            return Ok(Some((path, text)));
        }
    }
    Ok(None)
}

/// Returns the version of systemd's udev.
fn version(node: &Node<'_>) -> Result<u32, Trouble> {
    let program = tool::find(node, "udevadm", "without udev no file sets interfaces at boot")?;
    let done = tool::ask(node, &tool::run(node, program).arg("--version"))?;
    let text = done.stdout();
    let number: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    number.parse().map_err(|_| Trouble::io(done.complaint("udevadm --version")))
}

impl LinkFile {
    /// Returns the text that counts at boot as it is.
    ///
    /// # Errors
    /// If our file is not UTF-8.
    pub fn counts(&self) -> Result<&str, Trouble> {
        match &self.file.bytes {
            Some(_) => self.file.text(),
            None => Ok(&self.base),
        }
    }

    /// Reads the file of an interface, and what it is to be: `sets`, and what earlier tasks put there.
    ///
    /// # Errors
    /// If it cannot be read, no file can name the interface, or this systemd does not know a setting.
    pub fn read(
        node: &Node<'_>,
        interface: &str,
        known: &Known,
        sets: &BTreeMap<Key, String>,
        address: Option<&str>,
    ) -> Result<Self, Trouble> {
        let path = known.path(interface)?;
        let own = NetworkInterface::file_of(interface);
        let shown = format!("{}/{own}", NetworkInterface::FOLDER);
        let file = Present::read(node, &shown)?;
        let now = file.text()?.to_owned();
        let is_own = |path: &&str| path.rsplit('/').next() == Some(own.as_str());
        let noted = now.lines().find_map(|line| line.strip_prefix(BASE)?.split(',').next());
        let applied = known.applied.as_deref();
        let before = applied.filter(|path| !is_own(path)).or(noted);
        if let Some(first) =
            before.filter(|path| path.rsplit('/').next().is_some_and(|name| name < own.as_str()))
        {
            return Err(Trouble::invalid(format!(
                "{first} comes before {shown}, and only the first file that matches counts; give it a later name"
            )));
        }
        let base = base(node, before)?;
        let mut all = own_values(&now);
        all.extend(sets.clone());
        let has = version(node)?;
        let needed = all
            .keys()
            .map(|key| (since(*key), key.shown()))
            .chain(address.map(|_| (245, "cards with several ports")));
        if let Some((needed, what)) = needed.max().filter(|(needed, _)| *needed > has) {
            return Err(Trouble::invalid(format!(
                "systemd {has} does not set {what} at boot, systemd {needed} and later do; where NetworkManager runs, a \
                 connection of it can (nm-settings(5), ethtool), and with the same value there it is set here"
            )));
        }
        let mut matches = vec![("Path", path)];
        // What is made of the card, such as the ports of virtual functions, has the same place.
        matches.extend(known.driver.as_deref().map(|driver| ("Driver", driver)));
        matches.extend(address.map(|address| ("PermanentMACAddress", address)));
        let text = built(base.as_ref(), &matches, &all);
        // One that a prediction assumes is newer than the boot.
        let is_there = matches!(node.world.entry(&file.place)?, Entry::File { content: Content::On(_), .. });
        let ignored = match applied.filter(|path| !is_own(path) && is_there) {
            Some(path) if started::precede_boot(node, std::slice::from_ref(&file.place))? => {
                Some(path.to_owned())
            }
            _ => None,
        };
        let (path, base) = base.unwrap_or_default();
        let shadows = Some(path).filter(|path| path.starts_with("/etc/"));
        Ok(Self { file, text, base, shadows, ignored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_repeats_the_one_before_it() {
        let base = "[Match]\nOriginalName=*\n\n[Link]\nNamePolicy=keep kernel database onboard slot path\n\
                    MTUBytes=1500\n[SR-IOV]\nVirtualFunction=0\n";
        let sets = BTreeMap::from([(Key::Mtu, "9000".to_owned()), (Key::Pause, "off".to_owned())]);
        let text = built(
            Some(&("/usr/lib/systemd/network/99-default.link".to_owned(), base.to_owned())),
            &[("Path", "pci-0000:3b:00.0")],
            &sets,
        );
        assert_eq!(
            text,
            "# Written by gpufleet.\n# Sets RxFlowControl MTUBytes\n\
             # In place of /usr/lib/systemd/network/99-default.link, whose other settings are repeated here.\n\
             [Match]\nPath=pci-0000:3b:00.0\n\n[Link]\nNamePolicy=keep kernel database onboard slot path\nRxFlowControl=no\n\
             TxFlowControl=no\nAutoNegotiationFlowControl=no\nMTUBytes=9000\n\n[SR-IOV]\nVirtualFunction=0\n"
        );
        assert_eq!(value_in(&text, Key::Mtu).as_deref(), Some("9000"));
        assert_eq!(value_in(&text, Key::Pause).as_deref(), Some("off"));
        assert_eq!(value_in(&text, Key::RingRx), None);
        assert_eq!(own_values(&text), sets);
        assert_eq!(own_values(base), BTreeMap::new());
    }
}
