//! Programs that set up interfaces after udev: NetworkManager, systemd-networkd (also for netplan) and ifupdown.

use super::Key;
use crate::{
    declare::{Node, Trouble},
    os::files,
    tasks::ini,
};

/// A value that another program sets whenever it sets up the interface, so that it wins at boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub key: Key,
    pub value: String,
    /// Who, and by which file.
    pub by: String,
    /// What sets another value there.
    pub instead: String,
}

const CONNECTIONS: [&str; 3] = [
    "/etc/NetworkManager/system-connections",
    "/run/NetworkManager/system-connections",
    "/usr/lib/NetworkManager/system-connections",
];
const SCRIPTS: &str = "/etc/sysconfig/network-scripts";
/// Largest file below /run that is read, in bytes.
const LARGEST: u64 = 64 * 1024;

fn text(node: &Node<'_>, path: &str) -> Result<Option<String>, Trouble> {
    let bytes = node.world.read(&node.roots.path(path))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads a file of a running program, which the next boot writes anew.
fn running(node: &Node<'_>, path: &str) -> Result<Option<String>, Trouble> {
    let bytes = files::read_bounded(&node.roots.path(path), LARGEST)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads what is claimed of an interface.
///
/// # Errors
/// If a file of these programs cannot be read.
pub(super) fn claims(node: &Node<'_>, interface: &str, index: &str) -> Result<Vec<Claim>, Trouble> {
    let mut found = networkd(node, interface, index)?;
    found.extend(network_manager(node, index)?);
    found.extend(ifupdown(node, interface)?);
    Ok(found)
}

/// Returns the files by which systemd-networkd sets up an interface, with their texts in the order in which they count;
/// none if it leaves the interface alone.
///
/// # Errors
/// If one cannot be read.
pub fn networkd_files(node: &Node<'_>, index: &str) -> Result<Vec<(String, String)>, Trouble> {
    let Some(link) = running(node, &format!("/run/systemd/netif/links/{index}"))? else {
        return Ok(Vec::new());
    };
    if ini::plain(&link, "ADMIN_STATE") == Some("unmanaged") {
        return Ok(Vec::new());
    }
    let main = ini::plain(&link, "NETWORK_FILE").into_iter();
    let drop_ins = ini::plain(&link, "NETWORK_FILE_DROPINS").unwrap_or_default();
    let mut found = Vec::new();
    for path in main.chain(drop_ins.split_whitespace()).filter(|path| path.starts_with('/')) {
        found.push((path.to_owned(), text(node, path)?.unwrap_or_default()));
    }
    Ok(found)
}

fn networkd(node: &Node<'_>, interface: &str, index: &str) -> Result<Vec<Claim>, Trouble> {
    let files = networkd_files(node, index)?;
    let found = files.iter().rev().find_map(|(path, content)| {
        Some((path, ini::value(content, "Link", "MTUBytes").and_then(ini::size)?))
    });
    Ok(found.map(|(path, bytes)| of_networkd(interface, path, bytes)).into_iter().collect())
}

fn of_networkd(interface: &str, path: &str, bytes: u64) -> Claim {
    let netplan = path.rsplit('/').next().is_some_and(|name| name.contains("netplan"));
    let (by, instead) = match netplan {
        true => (
            format!("netplan (systemd-networkd, {path})"),
            format!("`mtu` of {interface} in /etc/netplan, and `netplan apply`"),
        ),
        false => {
            (format!("systemd-networkd ({path})"), "`MTUBytes=` there, and `networkctl reload`".to_owned())
        }
    };
    Claim { key: Key::Mtu, value: bytes.to_string(), by, instead }
}

/// Returns the UUID of the connection by which NetworkManager has set up an interface.
fn connection_of(node: &Node<'_>, index: &str) -> Result<Option<String>, Trouble> {
    let device = running(node, &format!("/run/NetworkManager/devices/{index}"))?.unwrap_or_default();
    let uuid = ini::value(&device, "device", "connection-uuid").filter(|uuid| !uuid.is_empty());
    Ok(uuid.map(str::to_owned))
}

/// Returns the files of connections of NetworkManager that `is_it` takes, with their texts.
///
/// # Errors
/// If one cannot be read.
pub fn connections(node: &Node<'_>, is_it: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, Trouble> {
    let mut found = Vec::new();
    for folder in CONNECTIONS {
        for name in node.world.names(&node.roots.path(folder))? {
            let path = format!("{folder}/{name}");
            let content = text(node, &path)?.filter(|content| is_it(content));
            found.extend(content.map(|content| (path, content)));
        }
    }
    Ok(found)
}

/// Returns the file of the connection by which NetworkManager has set up an interface, with its text.
///
/// # Errors
/// If one cannot be read.
pub fn connection(node: &Node<'_>, index: &str) -> Result<Option<(String, String)>, Trouble> {
    let Some(uuid) = connection_of(node, index)? else { return Ok(None) };
    let is_it = |content: &str| ini::value(content, "connection", "uuid") == Some(uuid.as_str());
    Ok(connections(node, is_it)?.into_iter().next())
}

fn network_manager(node: &Node<'_>, index: &str) -> Result<Vec<Claim>, Trouble> {
    let Some(uuid) = connection_of(node, index)? else { return Ok(Vec::new()) };
    let uuid = uuid.as_str();
    if let Some((path, content)) = connection(node, index)? {
        return Ok(of_connection(&content, &path, uuid));
    }
    for name in node.world.names(&node.roots.path(SCRIPTS))?.iter().filter(|n| n.starts_with("ifcfg-")) {
        let path = format!("{SCRIPTS}/{name}");
        let content = text(node, &path)?.unwrap_or_default();
        if ini::plain(&content, "UUID") == Some(uuid) {
            let mtu = ini::plain(&content, "MTU").filter(|mtu| !mtu.is_empty() && *mtu != "0");
            return Ok(mtu.map(|mtu| of_manager(Key::Mtu, mtu, &path, uuid)).into_iter().collect());
        }
    }
    Ok(Vec::new())
}

fn of_manager(key: Key, value: &str, path: &str, uuid: &str) -> Claim {
    let setting = match key {
        Key::Mtu => "802-3-ethernet.mtu",
        Key::RingRx => "ethtool.ring-rx",
        Key::RingTx => "ethtool.ring-tx",
        Key::Channels => "ethtool.channels-combined",
        Key::Pause => "ethtool.pause-rx",
        Key::Fec => "ethtool.fec-mode",
        Key::Pfc | Key::Trust => "dcb.priority-flow-control",
    };
    Claim {
        key,
        value: value.to_owned(),
        by: format!("NetworkManager ({path})"),
        instead: format!(
            "`nmcli connection modify {uuid} {setting} VALUE`, and `nmcli connection up {uuid}`"
        ),
    }
}

/// Reads a connection. Source: nm-settings-keyfile(5): `ethernet` and `802-3-ethernet` are the same; 0 leaves the MTU.
fn of_connection(text: &str, path: &str, uuid: &str) -> Vec<Claim> {
    let mtu = ["ethernet", "802-3-ethernet", "infiniband"].iter().find_map(|s| ini::value(text, s, "mtu"));
    let tool = |name: &str| ini::value(text, "ethtool", name);
    let pause = match (tool("pause-rx"), tool("pause-tx")) {
        (None, None) => None,
        (rx, tx) => Some(match (rx.unwrap_or("false"), tx.unwrap_or("false")) {
            ("true" | "1", "true" | "1") => "on",
            ("true" | "1", _) => "rx",
            (_, "true" | "1") => "tx",
            _ => "off",
        }),
    };
    [
        (Key::Mtu, mtu.filter(|mtu| *mtu != "0")),
        (Key::RingRx, tool("ring-rx")),
        (Key::RingTx, tool("ring-tx")),
        (Key::Channels, tool("channels-combined")),
        (Key::Pause, pause),
        (Key::Fec, tool("fec-mode").and_then(fec)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some(of_manager(key, value?, path, uuid)))
    .collect()
}

/// Returns the error correction of `fec-mode`; several at once are no word of ours, nor is NONE (1). Source: NetworkManager,
/// src/libnm-core-public/nm-setting-ethtool.h, `NMSettingEthtoolFecMode`.
fn fec(flags: &str) -> Option<&'static str> {
    match flags {
        "2" => Some("auto"),
        "4" => Some("off"),
        "8" => Some("rs"),
        "16" => Some("baser"),
        "32" => Some("llrs"),
        _ => None,
    }
}

fn ifupdown(node: &Node<'_>, interface: &str) -> Result<Vec<Claim>, Trouble> {
    if node.roots.tool("ifup").is_none() {
        return Ok(Vec::new());
    }
    let folder = "/etc/network/interfaces.d";
    let names = node.world.names(&node.roots.path(folder))?;
    let paths = names.into_iter().map(|name| format!("{folder}/{name}"));
    for path in std::iter::once("/etc/network/interfaces".to_owned()).chain(paths) {
        let content = text(node, &path)?.unwrap_or_default();
        if let Some(mtu) = in_interfaces(&content, interface) {
            return Ok(vec![Claim {
                key: Key::Mtu,
                value: mtu.to_owned(),
                by: format!("ifupdown ({path})"),
                instead: format!("`mtu` there, and `ifup --force {interface}`"),
            }]);
        }
    }
    Ok(Vec::new())
}

/// Returns the MTU of an interface in a file of interfaces(5).
fn in_interfaces<'t>(text: &'t str, interface: &str) -> Option<&'t str> {
    let mut inside = false;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("iface") => inside = words.next() == Some(interface),
            Some("mtu") if inside => return words.next(),
            Some("auto" | "mapping" | "source" | "source-directory") => inside = false,
            Some(word) if word.starts_with("allow-") => inside = false,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_of_ifupdown_end_where_the_next_one_begins() {
        let text = "auto eth0\niface eth0 inet static\n  address 10.0.0.1/8\n  mtu 9000\nauto eth1\niface eth1 inet dhcp\n";
        assert_eq!(in_interfaces(text, "eth0"), Some("9000"));
        assert_eq!(in_interfaces(text, "eth1"), None);
    }

    #[test]
    fn a_connection_claims_what_it_names() {
        let text = "[connection]\nuuid=u\n[ethernet]\nmtu=9000\n[ethtool]\nring-rx=4096\npause-rx=false\n";
        let claims = of_connection(text, "/etc/x", "u");
        let told: Vec<_> = claims.iter().map(|claim| (claim.key, claim.value.as_str())).collect();
        assert_eq!(told, [(Key::Mtu, "9000"), (Key::RingRx, "4096"), (Key::Pause, "off")]);
        assert_eq!(of_connection("[ethernet]\nmtu=0\n", "/etc/x", "u"), []);
        let flags = ["1", "2", "4", "8", "16", "32", "12"].map(fec);
        assert_eq!(flags, [None, Some("auto"), Some("off"), Some("rs"), Some("baser"), Some("llrs"), None]);
    }
}
