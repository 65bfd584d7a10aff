//! What systemd-networkd and NetworkManager set of `net.*` when they set up an interface.
//!
//! Which file they use for an interface, they tell in /run. Of keys for all interfaces, each file may set one.

use super::owners::Owner;
use crate::{
    declare::{Node, Trouble},
    tasks::{
        ini, knobs, layered,
        network_interface::{FOLDERS, owners as interfaces},
    },
};

const NETWORKD: &str = "systemd-networkd sets it whenever it sets up an interface";
const DISABLED: &str = "net/ipv6/conf/IF/disable_ipv6";
const MANAGER: &str = "NetworkManager sets it whenever it brings an interface up";
/// Settings of `[Network]` and what they set of an interface, where they are a flag or a number. Source:
/// systemd.network(5); systemd, src/network/networkd-sysctl.c.
const SETTINGS: [(&str, &str); 11] = [
    ("IPv4Forwarding", "net/ipv4/conf/IF/forwarding"),
    ("IPv6Forwarding", "net/ipv6/conf/IF/forwarding"),
    ("IPv4AcceptLocal", "net/ipv4/conf/IF/accept_local"),
    ("IPv4RouteLocalnet", "net/ipv4/conf/IF/route_localnet"),
    ("IPv4ProxyARP", "net/ipv4/conf/IF/proxy_arp"),
    ("IPv4ReversePathFilter", "net/ipv4/conf/IF/rp_filter"),
    ("IPv6ProxyNDP", "net/ipv6/conf/IF/proxy_ndp"),
    ("IPv6PrivacyExtensions", "net/ipv6/conf/IF/use_tempaddr"),
    ("IPv6DuplicateAddressDetection", "net/ipv6/conf/IF/dad_transmits"),
    ("IPv6HopLimit", "net/ipv6/conf/IF/hop_limit"),
    ("IPv6MTUBytes", "net/ipv6/conf/IF/mtu"),
];

/// Returns a value as the kernel has it; none for one that only systemd can tell.
fn number(value: &str) -> Option<String> {
    match value {
        "yes" | "true" | "on" | "1" | "strict" | "prefer-public" => Some("1".to_owned()),
        "no" | "false" | "off" | "0" => Some("0".to_owned()),
        "loose" => Some("2".to_owned()),
        number if number.bytes().all(|byte| byte.is_ascii_digit()) && !number.is_empty() => {
            Some(number.to_owned())
        }
        _ => None,
    }
}

/// Returns the interface of a key, and the key with `IF` in its place.
fn interface_of(key: &str) -> Option<(&str, String)> {
    let mut parts: Vec<&str> = key.split('/').collect();
    let place = parts.get_mut(3).filter(|_| key.starts_with("net/"))?;
    let interface = std::mem::replace(place, "IF");
    Some((interface, parts.join("/")))
}

fn owner(who: String, value: Option<String>, then: &'static str) -> Owner {
    Owner { who, value, wins: true, then }
}

/// Whether a `.network` file gives addresses or routes of IPv6, for which systemd-networkd leaves IPv6 on. Source: systemd,
/// src/network/networkd-link.c, `link_ipv6_enabled`; networkd-network.c, `network_has_static_ipv6_configurations`.
fn has_ipv6(text: &str) -> bool {
    const KEYS: [&str; 6] = ["Address", "Gateway", "Destination", "Prefix", "Route", "IPv6ProxyNDPAddress"];
    let value = |line: &str| {
        let (key, value) = line.trim().split_once('=')?;
        KEYS.contains(&key.trim_end()).then(|| value.contains(':'))
    };
    text.lines().filter_map(value).any(|is_six| is_six)
}

/// Returns what a `.network` file makes of a key of its interface.
fn in_network(text: &str, key: &str) -> Option<Option<String>> {
    let network = |name: &str| ini::value(text, "Network", name);
    match key {
        // The kernel's own handling of router advertisements is always off then (networkd-sysctl.c,
        // `link_set_ipv6_accept_ra`).
        "net/ipv6/conf/IF/accept_ra" => return Some(Some("0".to_owned())),
        "net/ipv6/conf/IF/use_tempaddr" => match network("IPv6PrivacyExtensions") {
            Some("yes" | "true" | "on" | "1") => return Some(Some("2".to_owned())),
            Some("kernel") => return None,
            _ => {}
        },
        DISABLED => {
            let value = network("LinkLocalAddressing")?;
            return Some(Some(
                if matches!(value, "ipv6" | "yes" | "true" | "on") { "0" } else { "1" }.to_owned(),
            ));
        }
        _ => {}
    }
    let (name, _) = SETTINGS.iter().find(|(_, sets)| *sets == key)?;
    Some(number(network(name)?))
}

/// Whether `IPForward=` turns this key on; it is of all interfaces. Source: systemd.network(5) before 256.
fn forwards(value: &str, key: &str) -> bool {
    match key {
        "net/ipv4/ip_forward" | "net/ipv4/conf/all/forwarding" => {
            matches!(value, "yes" | "true" | "1" | "on" | "ipv4")
        }
        "net/ipv6/conf/all/forwarding" => matches!(value, "yes" | "true" | "1" | "on" | "ipv6"),
        _ => false,
    }
}

fn networkd(
    node: &Node<'_>,
    key: &str,
    index: Option<&str>,
    place: Option<&str>,
) -> Result<Option<Owner>, Trouble> {
    if let (Some(index), Some(place)) = (index, place) {
        let files = interfaces::networkd_files(node, index)?;
        let mut found = files.iter().rev().find_map(|(path, text)| Some((path, in_network(text, place)?)));
        if let Some((_, value)) = &mut found
            && place == DISABLED
            && files.iter().any(|(_, text)| has_ipv6(text))
        {
            *value = Some("0".to_owned());
        }
        return Ok(found.map(|(path, value)| owner(format!("systemd-networkd ({path})"), value, NETWORKD)));
    }
    if !super::owners::starts(node, "systemd-networkd.service")? {
        return Ok(None);
    }
    for path in layered::files(node, &FOLDERS, ".network")? {
        let bytes = node.world.read(&node.roots.path(&path))?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        if ini::value(&text, "Network", "IPForward").is_some_and(|value| forwards(value, key)) {
            let who = format!("systemd-networkd ({path}, IPForward=)");
            return Ok(Some(owner(who, Some("1".to_owned()), NETWORKD)));
        }
    }
    let bytes = node.world.read(&node.roots.path("/etc/systemd/networkd.conf"))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let name = match key {
        "net/ipv4/ip_forward" | "net/ipv4/conf/all/forwarding" => "IPv4Forwarding",
        "net/ipv6/conf/all/forwarding" => "IPv6Forwarding",
        _ => return Ok(None),
    };
    let value = ini::value(&text, "Network", name);
    Ok(value.map(|value| {
        owner(format!("systemd-networkd (/etc/systemd/networkd.conf, {name}=)"), number(value), NETWORKD)
    }))
}

/// Source: nm-settings-keyfile(5); NetworkManager, src/core/devices/nm-device.c.
fn in_connection(text: &str, key: &str) -> Option<Option<String>> {
    let method = |section| ini::value(text, section, "method");
    match key {
        // It handles router advertisements itself.
        "net/ipv6/conf/IF/accept_ra" if !matches!(method("ipv6"), Some("ignore" | "disabled")) => {
            Some(Some("0".to_owned()))
        }
        DISABLED => match method("ipv6") {
            Some("disabled") => Some(Some("1".to_owned())),
            Some("ignore") => None,
            _ => Some(Some("0".to_owned())),
        },
        "net/ipv6/conf/IF/use_tempaddr" => {
            let value = ini::value(text, "ipv6", "ip6-privacy").filter(|value| *value != "-1")?;
            Some(number(value))
        }
        "net/ipv6/conf/IF/mtu" => Some(number(ini::value(text, "ipv6", "mtu").filter(|mtu| *mtu != "0")?)),
        "net/ipv4/ip_forward" if method("ipv4") == Some("shared") => Some(Some("1".to_owned())),
        "net/ipv6/conf/all/forwarding" if method("ipv6") == Some("shared") => Some(Some("1".to_owned())),
        _ => None,
    }
}

fn manager(
    node: &Node<'_>,
    key: &str,
    index: Option<&str>,
    place: Option<&str>,
) -> Result<Option<Owner>, Trouble> {
    let told = |(path, text): (String, String), key: &str| {
        in_connection(&text, key).map(|value| owner(format!("NetworkManager ({path})"), value, MANAGER))
    };
    if let (Some(index), Some(place)) = (index, place) {
        return Ok(interfaces::connection(node, index)?.and_then(|file| told(file, place)));
    }
    if !super::owners::starts(node, "NetworkManager.service")? {
        return Ok(None);
    }
    let sets = interfaces::connections(node, |text| in_connection(text, key).is_some())?;
    Ok(sets.into_iter().find_map(|file| told(file, key)))
}

/// Returns the programs for networks that set a key below `net`.
///
/// # Errors
/// If one of their files cannot be read.
pub fn read(node: &Node<'_>, key: &str) -> Result<Vec<Owner>, Trouble> {
    if !key.starts_with("net/") {
        return Ok(Vec::new());
    }
    let one = interface_of(key).filter(|(interface, _)| !matches!(*interface, "all" | "default" | "lo"));
    let index = match &one {
        // Names with a slash lead elsewhere, and the kernel has none.
        Some((interface, _)) if !interface.starts_with('.') => {
            knobs::value(node, &format!("/sys/class/net/{interface}/ifindex"))?
        }
        _ => None,
    };
    if one.is_some() && index.is_none() {
        return Ok(Vec::new());
    }
    let place = one.as_ref().map(|(_, place)| place.as_str());
    let all = [networkd(node, key, index.as_deref(), place)?, manager(node, key, index.as_deref(), place)?];
    Ok(all.into_iter().flatten().collect())
}
