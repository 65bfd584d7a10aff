//! Interfaces, addresses and routes from /proc and /sys.
//!
//! /proc/net/fib_trie lists IPv4 addresses without their interface, which is found by the routes to their networks.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
};

use gpufleet_protocol::facts::InterfaceFacts;

use crate::os::roots::Roots;

/// Nodes have a dozen; containers can create thousands.
const MOST: usize = 64;

/// One line of /proc/net/route.
struct Route<'a> {
    interface: &'a str,
    network: u32,
    gateway: u32,
    mask: u32,
}

impl<'a> Route<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, network, gateway, _, _, _, _, mask, ..] = fields[..] else { return None };
        // The kernel writes the bytes of the network address as a number in host byte order.
        let number = |hex: &str| {
            u32::from_str_radix(hex, 16).ok().map(|number| u32::from_be_bytes(number.to_ne_bytes()))
        };
        Some(Self { interface, network: number(network)?, gateway: number(gateway)?, mask: number(mask)? })
    }
}

/// Returns all interfaces, and name and gateway of the default route.
pub(super) fn read(roots: &Roots) -> (Vec<InterfaceFacts>, Option<(String, String)>) {
    let proc = |below: &str| fs::read_to_string(roots.proc(below)).unwrap_or_default();
    let (table, trie, six) = (proc("net/route"), proc("net/fib_trie"), proc("net/if_inet6"));
    let routes: Vec<Route<'_>> = table.lines().skip(1).filter_map(Route::parse).collect();
    let local = local_addresses(&trie);
    let folder = roots.path("/sys/class/net");
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("mtu").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.truncate(MOST);
    let interfaces = names
        .into_iter()
        .map(|name| {
            let text = |file: &str| {
                let text = fs::read_to_string(folder.join(&name).join(file)).ok()?;
                Some(text.trim().to_owned()).filter(|text| !text.is_empty())
            };
            let flags =
                text("flags").and_then(|hex| u32::from_str_radix(hex.trim_start_matches("0x"), 16).ok());
            InterfaceFacts {
                mac: text("address").filter(|mac| mac != "00:00:00:00:00:00"),
                mtu: text("mtu").and_then(|mtu| mtu.parse().ok()),
                up: flags.is_some_and(|flags| flags & 1 == 1),
                ipv4: addresses(&name, &local, &routes),
                ipv6: addresses_v6(&name, &six),
                name,
            }
        })
        .collect();
    let default = routes.iter().find(|route| route.network == 0 && route.mask == 0 && route.gateway != 0);
    let default =
        default.map(|route| (route.interface.to_owned(), Ipv4Addr::from(route.gateway).to_string()));
    (interfaces, default)
}

/// Returns the machine's own addresses.
///
/// Source: net/ipv4/fib_trie.c, `fib_trie_seq_show`: a leaf line, then a line `/32 host LOCAL`.
fn local_addresses(trie: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut leaf = None;
    for line in trie.lines() {
        let line = line.trim();
        match line.strip_prefix("|-- ") {
            Some(address) => leaf = address.parse::<Ipv4Addr>().ok(),
            None if line == "/32 host LOCAL" => found.extend(leaf.map(u32::from)),
            None => {}
        }
    }
    found
}

fn addresses(name: &str, local: &BTreeSet<u32>, routes: &[Route<'_>]) -> Vec<(String, u8)> {
    if name == "lo" {
        let own = local.iter().filter(|address| Ipv4Addr::from(**address).is_loopback());
        return own.map(|address| (Ipv4Addr::from(*address).to_string(), 8)).collect();
    }
    let near = |address: &u32| {
        let to = routes.iter().filter(|route| route.gateway == 0 && route.mask != 0);
        to.filter(|route| address & route.mask == route.network).max_by_key(|route| route.mask)
    };
    let own = local.iter().filter_map(|address| Some((address, near(address)?)));
    own.filter(|(_, route)| route.interface == name)
        .map(|(address, route)| {
            (Ipv4Addr::from(*address).to_string(), u8::try_from(route.mask.count_ones()).unwrap_or(32))
        })
        .collect()
}

fn addresses_v6(name: &str, table: &str) -> Vec<(String, u8)> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, prefix, _, _, interface] = fields[..] else { return None };
        let address = Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?);
        (interface == name).then_some((address.to_string(), u8::from_str_radix(prefix, 16).ok()?))
    };
    table.lines().filter_map(of).collect()
}

/// Returns name servers and search domains of resolv.conf.
pub(super) fn resolver(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut servers, mut search) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => servers.extend(words.map(str::to_owned).take(1)),
            Some("search") => search = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    (servers, search)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn interfaces_have_their_addresses() {
        let bench = Bench::new();
        for (name, mac) in [("eth0", "02:fc:00:00:00:01"), ("lo", "00:00:00:00:00:00"), ("ib0", "80:00")] {
            bench.write(&format!("sys/class/net/{name}/mtu"), "1400\n");
            bench.write(&format!("sys/class/net/{name}/address"), &format!("{mac}\n"));
            bench.write(&format!("sys/class/net/{name}/flags"), "0x1003\n");
        }
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let route = |interface: &str, to: [u8; 4], over: [u8; 4], mask: [u8; 4]| {
            let hex = |bytes| format!("{:08X}", u32::from_ne_bytes(bytes));
            format!("{interface}\t{}\t{}\t0003\t0\t0\t0\t{}\t0\t0\t0\n", hex(to), hex(over), hex(mask))
        };
        let table = format!(
            "{head}{}{}{}",
            route("eth0", [0; 4], [192, 0, 2, 1], [0; 4]),
            route("eth0", [192, 0, 2, 0], [0; 4], [255, 255, 255, 0]),
            route("ib0", [10, 1, 0, 0], [0; 4], [255, 255, 0, 0]),
        );
        bench.write("proc/net/route", &table);
        bench.write(
            "proc/net/fib_trie",
            "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.0\n        /24 link UNICAST\n     \
             |-- 192.0.2.2\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n",
        );
        bench.write("proc/net/if_inet6", "fe8000000000000000fc00fffe000001 02 40 20 80     eth0\n");
        let (interfaces, default) = read(&bench.roots);
        let names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["eth0", "ib0", "lo"]);
        let [eth0, ib0, lo] = &interfaces[..] else { panic!() };
        assert_eq!(eth0.ipv4, [("192.0.2.2".to_owned(), 24)]);
        assert_eq!(eth0.ipv6, [("fe80::fc:ff:fe00:1".to_owned(), 64)]);
        assert_eq!((eth0.mtu, eth0.up), (Some(1400), true));
        assert_eq!(ib0.ipv4, [("10.1.2.3".to_owned(), 16)]);
        assert_eq!((lo.ipv4.clone(), lo.mac.clone()), (vec![("127.0.0.1".to_owned(), 8)], None));
        assert_eq!(default, Some(("eth0".to_owned(), "192.0.2.1".to_owned())));
    }

    #[test]
    fn name_servers_are_read() {
        let (servers, search) =
            resolver("# c\nnameserver 10.0.0.53\nnameserver ::1\nsearch a.example b.example\n");
        assert_eq!(servers, ["10.0.0.53", "::1"]);
        assert_eq!(search, ["a.example", "b.example"]);
    }
}
