//! Which interfaces carry the connection to the node.
//!
//! By the default routes, by the routes to those who are connected to sshd, and by the addresses at which they are. An
//! interface below another one, such as that of a bond, carries what the other one does. Where more than one could, all do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{exists, file, link::Told};
use crate::{
    declare::{Node, Trouble},
    os::files,
    tasks::tool,
};

/// Largest table that is read, in bytes: a node with many containers has thousands of connections.
const LARGEST: u64 = 16 * 1024 * 1024;
/// Largest answer of `ip`, in bytes.
const ANSWER: usize = 8 * 1024 * 1024;
/// The port of sshd, unless its own variable names another one.
const SSH: u16 = 22;
/// Most interfaces on top of each other: a VLAN of a bridge of a bond.
const DEEPEST: usize = 8;
/// Most processes from the helper up to sshd, and most open files of each.
const ANCESTORS: usize = 32;
const OPEN_FILES: usize = 4096;
/// Most connections of the helper's own.
const OWN: usize = 16;

/// The way to the node.
#[derive(Debug, Default)]
pub struct Way {
    /// Interfaces with the reason of each.
    pub interfaces: BTreeMap<String, String>,
    /// Why it cannot be told, or not to its end.
    pub untold: Option<String>,
    /// Those that have to be followed to a card. Not those of others' connections, which may come from a container here.
    ours: BTreeSet<String>,
}

/// A route of the main table; addresses of IPv4 are mapped into IPv6, so that both are compared alike.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    interface: String,
    network: u128,
    bits: u32,
}

/// An established connection of sshd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    local: u128,
    remote: u128,
    /// Whether it is that of this helper.
    own: bool,
}

const MAPPED: u128 = 0xffff_0000_0000;

const fn mask(bits: u32) -> u128 {
    match bits {
        0 => 0,
        _ => u128::MAX << (128 - if bits > 128 { 128 } else { bits }),
    }
}

/// Returns an address of IPv4 as `/proc/net` writes it: a number in the byte order of the host.
fn v4(hex: &str) -> Option<u128> {
    let number = u32::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 8)?;
    Some(MAPPED | u128::from(u32::from_be_bytes(number.to_ne_bytes())))
}

/// Returns an address as `/proc/net/tcp` and `tcp6` write it: words of 32 bits in the byte order of the host.
fn of_socket(hex: &str) -> Option<u128> {
    if hex.len() == 8 {
        return v4(hex);
    }
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut address = 0;
    for at in (0..32).step_by(8) {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        address = address << 32 | u128::from(u32::from_be_bytes(word.to_ne_bytes()));
    }
    Some(address)
}

/// Reads a line of `/proc/net/route`.
fn route(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [interface, network, _, _, _, _, _, bits, ..] = fields[..] else { return None };
    let bits = u32::from_str_radix(bits, 16).ok()?.count_ones();
    Some(Route { interface: interface.to_owned(), network: v4(network)?, bits: 96 + bits })
}

/// Reads a line of `/proc/net/ipv6_route`, whose addresses are in the byte order of the network.
fn route_v6(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (network, bits) = (fields.first()?, fields.get(1)?);
    let interface = fields.last().filter(|name| **name != "lo")?;
    Some(Route {
        interface: (*interface).to_owned(),
        network: u128::from_str_radix(network, 16).ok()?,
        bits: u32::from_str_radix(bits, 16).ok()?,
    })
}

/// Returns an address as programs write it.
fn number(text: &str) -> Option<u128> {
    Some(match text.parse().ok()? {
        IpAddr::V4(v4) => MAPPED | u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    })
}

fn text(address: u128) -> String {
    match u32::try_from(address ^ MAPPED) {
        Ok(v4) => Ipv4Addr::from(v4).to_string(),
        Err(_) => Ipv6Addr::from(address).to_string(),
    }
}

fn is_loopback(address: u128) -> bool {
    address == 1 || (address & mask(104)) == (MAPPED | 0x7f00_0000)
}

/// Reads a line of `ip -o route`: one route for each next hop. Source: ip-route(8).
fn hops(line: &str, is_v4: bool) -> Vec<Route> {
    const NOWHERE: [&str; 5] = ["unreachable", "blackhole", "prohibit", "throw", "local"];
    let mut words = line.split_whitespace().peekable();
    let _ = words.next_if(|word| *word == "unicast");
    let Some(to) = words.next().filter(|word| !NOWHERE.contains(word)) else { return Vec::new() };
    let (network, bits) = match to.split_once('/') {
        Some((network, bits)) => (number(network), bits.parse().ok()),
        None if to == "default" => (Some(if is_v4 { MAPPED } else { 0 }), Some(0)),
        None => (number(to), Some(if is_v4 { 32 } else { 128 })),
    };
    let Some((network, bits)) = network.zip(bits) else { return Vec::new() };
    let bits: u32 = if is_v4 { 96 + bits } else { bits };
    devices(words).into_iter().map(|name| Route { interface: name.to_owned(), network, bits }).collect()
}

/// Returns the interfaces that words of `ip` name.
fn devices<'t>(mut words: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if word == "dev" {
            found.extend(words.next());
        }
    }
    found
}

/// Reads a line of `ip -o addr`: an interface and its address.
fn address(line: &str) -> Option<(u128, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, name, "inet" | "inet6", address, ..] = fields[..] else { return None };
    Some((number(address.split('/').next()?)?, name.to_owned()))
}

/// Returns what `ip` answers; empty where there is none, or it does not know.
fn ip(node: &Node<'_>, arguments: &[&str]) -> Result<String, Trouble> {
    let Some(program) = node.roots.tool("ip") else { return Ok(String::new()) };
    let done = tool::ask(node, &tool::run(node, program).args(arguments).limit(ANSWER))?;
    Ok(done.stdout())
}

/// Reads a connection of sshd: to its port, or by a socket of a process above this one. Source: proc(5); state 01 is
/// established.
fn connection(line: &str, port: u16, sockets: &BTreeSet<String>) -> Option<Connection> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, "01", ..] = fields[..] else { return None };
    let (near, at) = local.split_once(':')?;
    let own = fields.get(9).is_some_and(|inode| sockets.contains(*inode));
    if !own && u16::from_str_radix(at, 16).ok()? != port {
        return None;
    }
    Some(Connection { local: of_socket(near)?, remote: of_socket(remote.split_once(':')?.0)?, own })
}

/// Returns the inodes of the sockets of this process and of those above it: sudo drops sshd's variable, and sshd may listen
/// at any port. The first process of the node is none of the connection.
fn sockets(node: &Node<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut process = "self".to_owned();
    for _ in 0..ANCESTORS {
        let open = fs::read_dir(node.roots.proc(&format!("{process}/fd"))).into_iter().flatten().flatten();
        found.extend(open.take(OPEN_FILES).filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        }));
        let stat = files::read_bounded(&node.roots.proc(&format!("{process}/stat")), 64 * 1024);
        let stat = String::from_utf8_lossy(&stat.ok().flatten().unwrap_or_default()).into_owned();
        // From the last parenthesis, because a name may have any text.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
        match parent.and_then(|parent| parent.parse::<u32>().ok()) {
            Some(parent) if parent > 1 => process = parent.to_string(),
            _ => break,
        }
    }
    found
}

fn table(node: &Node<'_>, name: &str) -> Result<String, Trouble> {
    let bytes = files::read_bounded(&node.roots.proc(name), LARGEST)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the routes of the main tables. The kernel's file shows one next hop of IPv4 only; `ip` shows all.
fn routes(node: &Node<'_>) -> Result<Vec<Route>, Trouble> {
    let (v4, v6) = (table(node, "net/route")?, table(node, "net/ipv6_route")?);
    let mut all: Vec<Route> =
        v4.lines().skip(1).filter_map(route).chain(v6.lines().filter_map(route_v6)).collect();
    for (family, is_v4) in [("-4", true), ("-6", false)] {
        let told = ip(node, &[family, "-o", "route", "show"])?;
        all.extend(told.lines().flat_map(|line| hops(line, is_v4)));
    }
    all.retain(|route| route.interface != "lo");
    Ok(all)
}

/// Returns the interfaces of the narrowest routes to an address: all of them, because which one is taken is not known.
fn towards(routes: &[Route], address: u128) -> BTreeSet<&str> {
    let near = |route: &&Route| address & mask(route.bits) == route.network & mask(route.bits);
    // Those of IPv6 with fewer bits than a mapped prefix would match an address of IPv4 too.
    let same = |route: &&Route| (route.network >> 32 == 0xffff) == (address >> 32 == 0xffff);
    let all: Vec<&Route> = routes.iter().filter(same).filter(near).collect();
    let most = all.iter().map(|route| route.bits).max();
    all.into_iter().filter(|route| Some(route.bits) == most).map(|route| route.interface.as_str()).collect()
}

/// Returns the way to the node.
///
/// # Errors
/// If a table of the kernel cannot be read, or `ip` does not answer in time.
pub fn way(node: &Node<'_>) -> Result<Way, Trouble> {
    // Of another root, such as that of a rehearsal, the variable is of no use.
    let own = std::env::var("SSH_CONNECTION").ok().filter(|_| node.roots.is_real());
    found(node, &own.unwrap_or_default())
}

/// `variable` is that of sshd: address and port of the client, address and port of the node.
fn found(node: &Node<'_>, variable: &str) -> Result<Way, Trouble> {
    let routes = routes(node)?;
    let mut way = Way::default();
    let default = |route: &&Route| match route.network {
        MAPPED => route.bits == 96,
        network => network == 0 && route.bits == 0,
    };
    for route in routes.iter().filter(default) {
        way.interfaces.insert(route.interface.clone(), "the default route uses it".to_owned());
        way.ours.insert(route.interface.clone());
    }
    let words: Vec<&str> = variable.split(' ').collect();
    let port = words.get(3).and_then(|port| port.parse().ok()).unwrap_or(SSH);
    let (tcp, tcp6, sockets) = (table(node, "net/tcp")?, table(node, "net/tcp6")?, sockets(node));
    let lines = tcp.lines().chain(tcp6.lines());
    let mut connections: Vec<Connection> =
        lines.filter_map(|line| connection(line, port, &sockets)).collect();
    if let [remote, _, local, ..] = words[..] {
        // The zone of a link-local address is the interface.
        let plain = |text: &str| number(text.split('%').next().unwrap_or_default());
        if let Some((remote, local)) = plain(remote).zip(plain(local)) {
            connections.push(Connection { local, remote, own: true });
        }
    }
    way.follow(node, &routes, &connections)?;
    way.go_below(node)?;
    if way.interfaces.is_empty() && way.untold.is_none() {
        way.untold = Some("nothing tells which interface carries this connection".to_owned());
    }
    Ok(way)
}

impl Way {
    fn follow(
        &mut self,
        node: &Node<'_>,
        routes: &[Route],
        connections: &[Connection],
    ) -> Result<(), Trouble> {
        if connections.is_empty() {
            return Ok(());
        }
        let told = ip(node, &["-o", "addr", "show"])?;
        let addresses: Vec<(u128, String)> = told.lines().filter_map(address).collect();
        // A job that goes on by itself has no process of sshd above it: any of them may be ours.
        let is_known = connections.iter().any(|connection| connection.own);
        for Connection { local, remote, own } in connections {
            if is_loopback(*local) {
                if *own {
                    let why = format!(
                        "this connection comes from the node itself ({}), by a tunnel",
                        text(*remote)
                    );
                    self.untold = Some(why);
                }
                continue;
            }
            let mut names = towards(routes, *remote);
            let at: BTreeSet<&str> =
                addresses.iter().filter(|(at, _)| at == local).map(|(_, name)| name.as_str()).collect();
            for name in &at {
                if carries(node, name)? {
                    names.insert(name);
                }
            }
            if at.is_empty() {
                names.extend(towards(routes, *local));
            }
            for name in names {
                let why = || "an SSH connection to this node goes through it".to_owned();
                self.interfaces.entry(name.to_owned()).or_insert_with(why);
                if *own || !is_known {
                    self.ours.insert(name.to_owned());
                }
            }
        }
        // Rules may choose another table for it.
        for Connection { local, remote, .. } in connections.iter().filter(|found| found.own).take(OWN) {
            let chosen = ip(node, &["-o", "route", "get", &text(*remote), "from", &text(*local)])?;
            for name in devices(chosen.split_whitespace()).into_iter().filter(|name| *name != "lo") {
                let why = || "this connection goes through it".to_owned();
                self.interfaces.entry(name.to_owned()).or_insert_with(why);
                self.ours.insert(name.to_owned());
            }
        }
        Ok(())
    }

    /// Adds what the interfaces are made of.
    fn go_below(&mut self, node: &Node<'_>) -> Result<(), Trouble> {
        let mut above: Vec<String> = self.interfaces.keys().cloned().collect();
        for _ in 0..DEEPEST {
            let mut below = Vec::new();
            for name in &above {
                let lower = lower(node, name);
                let is_told = !lower.is_empty()
                    || ["device", "bonding", "bridge"].iter().any(|below| exists(node, &file(name, below)));
                let is_ours = self.ours.contains(name);
                if !is_told && is_ours {
                    let sort = Told::read(node, name)?.sort;
                    let sort = sort.map_or_else(String::new, |sort| format!(" ({sort})"));
                    self.untold.get_or_insert_with(|| {
                        format!(
                            "{name}{sort} carries the connection, and nothing tells which cards carry {name}"
                        )
                    });
                }
                for lower in lower {
                    if is_ours {
                        self.ours.insert(lower.clone());
                    }
                    if !self.interfaces.contains_key(&lower) {
                        let why = format!("{name} uses it, and carries the connection");
                        self.interfaces.insert(lower.clone(), why);
                        below.push(lower);
                    }
                }
            }
            above = below;
        }
        Ok(())
    }
}

/// Whether an interface with an address carries anything: an address of the node as such is at `lo`, or at an interface of
/// the sort `dummy`.
fn carries(node: &Node<'_>, name: &str) -> Result<bool, Trouble> {
    Ok(name != "lo" && Told::read(node, name)?.sort.as_deref() != Some("dummy"))
}

/// Returns the interfaces that one is made of.
fn lower(node: &Node<'_>, name: &str) -> Vec<String> {
    let folder = node.roots.path(format!("/sys/class/net/{name}"));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("lower_").map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn connections_are_followed_to_the_card() {
        let bench = Bench::new();
        let told = || -> Vec<String> {
            bench.node(|node| way(node).unwrap().interfaces.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(told(), Vec::<String>::new());
        bench.write(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             bond0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n\
             eth5\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\n\
             eth6\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\n",
        );
        for name in ["lower_eth0", "lower_eth1"] {
            std::fs::create_dir_all(bench.path(&format!("sys/class/net/bond0/{name}"))).unwrap();
        }
        assert_eq!(told(), ["bond0", "eth0", "eth1"]);
        // 10.1.0.5 is connected to port 22.
        bench.write(
            "proc/net/tcp",
            "  sl\n 0: 0100010A:0016 0500010A:C001 01 x\n 1: 0100000A:1000 0500000A:C001 01 x\n",
        );
        assert_eq!(told(), ["bond0", "eth0", "eth1", "eth6"]);
        bench.write(
            "proc/net/ipv6_route",
            "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 0 0 0 0 0 ib0\n\
             00000000000000000000000000000000 00 00000000000000000000000000000000 00 0 0 0 0 0 lo\n",
        );
        bench.write(
            "proc/net/tcp6",
            " 0: 000000FD000000000000000001000000:0016 000000FD000000000000000002000000:D001 01 x\n",
        );
        assert_eq!(told(), ["bond0", "eth0", "eth1", "eth6", "ib0"]);
        assert_eq!(of_socket("0000000000000000FFFF00000500010A"), v4("0500010A"));
    }

    /// As `ip` does it, with the answers in files.
    const IP: &str = "#!/bin/sh\nhere=$(dirname \"$0\")/../../ip\ncase $* in\n\
                      '-4 -o route show') cat $here/v4 2>/dev/null;;\n-6*) cat $here/v6 2>/dev/null;;\n\
                      '-o addr show') cat $here/addr 2>/dev/null;;\n*' get '*) cat $here/get 2>/dev/null;;\n\
                      '-d -j link show dev ovs0') echo '[{\"linkinfo\":{\"info_kind\":\"openvswitch\"}}]';;\n\
                      '-d -j link show dev any0') echo '[{\"linkinfo\":{\"info_kind\":\"dummy\"}}]';;\nesac\nexit 0\n";

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/sbin/ip", IP);
        for name in ["eth0", "eth1", "eth2", "eth3", "eth4"] {
            std::fs::create_dir_all(bench.path(&format!("sys/class/net/{name}/device"))).unwrap();
        }
        bench
    }

    fn told(bench: &Bench, variable: &str) -> (Vec<String>, Option<String>) {
        let way = bench.node(|node| found(node, variable).unwrap());
        (way.interfaces.into_keys().collect(), way.untold)
    }

    #[test]
    fn all_hops_and_equal_routes_are_of_the_way() {
        let bench = bench();
        bench.write(
            "ip/v4",
            "default proto bgp metric 20 \\\tnexthop via 10.0.0.1 dev eth0 weight 1 \\\tnexthop via 10.0.1.1 dev eth1 weight 1 \n\
             10.9.0.0/16 via 10.0.2.1 dev eth2 metric 10\n10.9.0.0/16 via 10.0.3.1 dev eth3 metric 20\n\
             10.0.0.0/8 dev eth4 scope link\nunreachable 10.8.0.0/16 dev eth4\n",
        );
        assert_eq!(told(&bench, ""), (vec!["eth0".to_owned(), "eth1".to_owned()], None));
        let (names, untold) = told(&bench, "10.9.0.7 50000 192.168.7.7 2222");
        assert_eq!((names.join(" ").as_str(), untold), ("eth0 eth1 eth2 eth3", None));
        let route = |line: &str, is_v4| hops(line, is_v4).first().map(|route| (route.network, route.bits));
        assert_eq!(route("default via fe80::1 dev eth0 metric 1024 pref medium", false), Some((0, 0)));
        assert_eq!(route("fd00::/64 dev eth0 proto kernel", false), Some((0xfd00 << 112, 64)));
        assert_eq!(route("10.0.0.5 dev eth0", true), Some((MAPPED | 0x0a00_0005, 128)));
        assert_eq!(text(MAPPED | 0x0a00_0005), "10.0.0.5");
        assert_eq!((text(0xfd00 << 112), is_loopback(1)), ("fd00::".to_owned(), true));
        assert!(number("127.0.0.9").is_some_and(is_loopback) && !number("10.0.0.1").is_some_and(is_loopback));
    }

    #[test]
    fn the_socket_of_sshd_is_found_among_the_processes_above() {
        let bench = bench();
        bench.write("ip/v4", "default via 10.0.0.1 dev eth0\n");
        bench.write(
            "ip/addr",
            "2: eth3    inet 10.3.0.1/24 brd 10.3.0.255 scope global eth3\\       valid_lft forever\n",
        );
        // 10.3.0.1 port 2222, with 10.0.0.5.
        bench.write(
            "proc/net/tcp",
            "  sl\n 0: 0100030A:08AE 0500000A:C001 01 0:0 0:0 0 0 0 777 1\n 1: 0100040A:08AE 0500000A:C001 01 0:0 0:0 0 0 0 778 1\n",
        );
        bench.write("proc/self/stat", "30 (gpufleet) S 20 1 1\n");
        bench.write("proc/20/stat", "20 (su) do) S 10 1 1\n");
        bench.write("proc/10/stat", "10 (sshd) S 1 1 1\n");
        assert_eq!(told(&bench, "").0, ["eth0"]);
        std::fs::create_dir_all(bench.path("proc/10/fd")).unwrap();
        std::os::unix::fs::symlink("socket:[777]", bench.path("proc/10/fd/4")).unwrap();
        assert_eq!(told(&bench, "").0, ["eth0", "eth3"]);
        // A rule sends the answers another way.
        bench.write("ip/get", "10.0.0.5 from 10.3.0.1 via 10.3.0.254 dev eth4 table 7 uid 0 \\    cache \n");
        assert_eq!(told(&bench, "").0, ["eth0", "eth3", "eth4"]);
    }

    #[test]
    fn a_way_that_cannot_be_followed_is_untold() {
        let bench = bench();
        let default = |name: &str| bench.write("ip/v4", &format!("default via 10.0.0.1 dev {name}\n"));
        default("eth0");
        assert_eq!(told(&bench, "").1, None);
        // 10.7.0.9, a container here, has a connection too.
        bench.write("ip/v4", "default via 10.0.0.1 dev eth0\n10.7.0.9 dev cali7 scope link\n");
        bench.write("proc/net/tcp", "  sl\n 0: 0100030A:0016 0900070A:C001 01 0:0 0:0 0 0 0 9 1\n");
        assert!(told(&bench, "").1.unwrap().starts_with("cali7 carries"));
        let (names, untold) = told(&bench, "10.9.0.7 50000 10.3.0.1 22");
        assert_eq!((names.join(" ").as_str(), untold), ("cali7 eth0", None));
        std::fs::remove_file(bench.path("proc/net/tcp")).unwrap();
        bench.write("ip/addr", "2: any0    inet 10.3.0.1/32 scope global any0\n");
        assert_eq!(told(&bench, "10.9.0.7 50000 10.3.0.1 22"), (vec!["eth0".to_owned()], None));
        let tunnel = told(&bench, "127.0.0.1 50000 127.0.0.1 22").1.unwrap();
        assert!(tunnel.starts_with("this connection comes from the node itself (127.0.0.1)"), "{tunnel}");
        default("ovs0");
        std::fs::create_dir_all(bench.path("sys/class/net/ovs0")).unwrap();
        let untold = told(&bench, "").1.unwrap();
        assert_eq!(
            untold,
            "ovs0 (openvswitch) carries the connection, and nothing tells which cards carry ovs0"
        );
        std::fs::create_dir_all(bench.path("sys/class/net/ovs0/bridge")).unwrap();
        assert_eq!(told(&bench, "").1, None);
    }
}
