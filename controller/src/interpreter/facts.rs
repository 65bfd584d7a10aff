//! Facts of a node as variables, under the names that Ansible gives them.
//!
//! Pure: the same facts give the same variables, on this machine and on any other, so that a resumed run sees the same.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use gpufleet_protocol::facts::{Facts, InterfaceFacts, MachineFacts, OsFacts};
use gpufleet_protocol::{OpOutcome, op::FactsRequest};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value as Json, json};

use crate::{
    playbook::is_fact,
    template::{Dict, Value},
};

/// The variables of a host that come from its facts: `ansible_…`, `ansible_facts` and `gpufleet_facts`.
pub fn fact_vars(facts: &Facts) -> Dict {
    let mut names = named(facts);
    let mut vars = Map::new();
    for (name, value) in &names {
        vars.insert(format!("ansible_{name}"), value.clone());
    }
    names.insert("gather_subset".to_owned(), json!(["all"]));
    names.insert("module_setup".to_owned(), json!(true));
    vars.insert("ansible_facts".to_owned(), Json::Object(names));
    vars.insert("gpufleet_facts".to_owned(), serde_json::to_value(facts).unwrap_or_default());
    Dict::literal(&vars)
}

/// As [`fact_vars`]; what a prediction cannot know yet of them is unknown.
pub fn predicted_fact_vars(facts: &Facts, outcome: &mut OpOutcome) -> Dict {
    let mut vars = fact_vars(facts);
    let foreseen = outcome.data.remove(FactsRequest::FORESEEN).unwrap_or_default();
    for name in foreseen.as_array().into_iter().flatten().filter_map(Json::as_str) {
        vars.insert(format!("ansible_{name}").as_str(), Value::Unknown);
        if let Some(Value::Map(all)) = vars.get("ansible_facts") {
            let mut all = (**all).clone();
            all.insert(name, Value::Unknown);
            vars.insert("ansible_facts", Value::Map(Arc::new(all)));
        }
    }
    vars
}

fn named(facts: &Facts) -> Map<String, Json> {
    let mut names = Map::new();
    let mut put = |all: Json| {
        if let Json::Object(all) = all {
            names.extend(all);
        }
    };
    put(system(facts));
    put(distribution(&facts.os));
    put(machine(facts));
    put(user(&facts.machine));
    put(python(&facts.machine));
    put(network(facts));
    put(json!({ "date_time": date_time(&facts.machine).unwrap_or_default() }));
    names
}

fn system(facts: &Facts) -> Json {
    let (short, domain) = facts.hostname.split_once('.').unwrap_or((&facts.hostname, ""));
    let (one, every) = cmdline(&facts.cmdline);
    let (kind, role) = virtualization(facts.virtualization.as_deref());
    let switched = |on: bool| if on { "enabled" } else { "disabled" };
    let machine = &facts.machine;
    json!({
        "hostname": short,
        "nodename": facts.hostname,
        "fqdn": facts.hostname,
        "domain": domain,
        "kernel": facts.kernel,
        "kernel_version": machine.kernel_build,
        "architecture": facts.arch,
        "machine": facts.arch,
        "userspace_architecture": facts.arch,
        "userspace_bits": "64",
        "system": "Linux",
        "cmdline": one,
        "proc_cmdline": every,
        "uptime_seconds": facts.uptime_s,
        "service_mgr": facts.init,
        "pkg_mgr": machine.package_manager.as_deref().unwrap_or("unknown"),
        "virtualization_type": kind,
        "virtualization_role": role,
        "machine_id": machine.id.as_deref().unwrap_or_default(),
        "selinux": { "status": switched(machine.selinux) },
        "apparmor": { "status": switched(machine.apparmor) },
        "fips": machine.fips,
        "loadavg": machine.load.map(|(one, five, fifteen)| json!({ "1m": one, "5m": five, "15m": fifteen })),
        "local": machine.local,
    })
}

/// What Ansible tells of the Python that its modules run in; nothing where the node has none.
fn python(machine: &MachineFacts) -> Json {
    let Some((path, version)) = &machine.python else { return json!({}) };
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u64>().unwrap_or(0));
    let [major, minor, micro] = [(); 3].map(|()| numbers.next().unwrap_or(0));
    json!({
        "python_version": version,
        "python": {
            "executable": path,
            "has_sslcontext": true,
            "type": "cpython",
            "version": { "major": major, "minor": minor, "micro": micro, "releaselevel": "final", "serial": 0 },
            "version_info": [major, minor, micro, "final", 0],
        },
    })
}

/// The kernel's command line: each name with its last value, and each with all of them.
fn cmdline(text: &str) -> (Json, Json) {
    let (mut last, mut all) = (Map::new(), Map::new());
    for word in text.split_whitespace() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, json!(value)),
            None => (word, json!(true)),
        };
        last.insert(name.to_owned(), value.clone());
        match all.get_mut(name) {
            None => _ = all.insert(name.to_owned(), value),
            Some(Json::Array(values)) => values.push(value),
            Some(one) => *one = json!([one.clone(), value]),
        }
    }
    (Json::Object(last), Json::Object(all))
}

/// Type and role.
///
/// Source: lib/ansible/module_utils/facts/virtual/linux.py of ansible-core 2.19.
fn virtualization(found: Option<&str>) -> (&str, &'static str) {
    let kind = match found {
        None => return ("NA", "NA"),
        Some("amazon" | "google" | "qemu" | "unknown") => "kvm",
        Some("oracle") => "virtualbox",
        Some("microsoft") => "VirtualPC",
        Some("vmware") => "VMware",
        Some("systemd-nspawn") => "container",
        Some(other) => other,
    };
    (kind, "guest")
}

fn family(id: &str) -> Option<&'static str> {
    Some(match id {
        "ubuntu" | "debian" => "Debian",
        "rhel" | "centos" | "rocky" | "almalinux" | "fedora" | "ol" | "amzn" => "RedHat",
        "sles" | "opensuse" | "opensuse-leap" => "Suse",
        _ => return None,
    })
}

fn distribution(os: &OsFacts) -> Json {
    let family = family(&os.id).or_else(|| os.like.iter().find_map(|id| family(id))).unwrap_or("Linux");
    let name = match os.id.as_str() {
        "ubuntu" => "Ubuntu",
        "debian" => "Debian",
        "rhel" => "RedHat",
        "centos" => "CentOS",
        "rocky" => "Rocky",
        "almalinux" => "AlmaLinux",
        "fedora" => "Fedora",
        "ol" => "OracleLinux",
        "amzn" => "Amazon",
        "sles" => "SLES",
        "opensuse-leap" => "openSUSE Leap",
        other => other,
    };
    // Why: os-release of Debian has no point releases. `trixie/sid` is no version.
    let point = os
        .debian_version
        .as_deref()
        .filter(|text| os.id == "debian" && text.starts_with(|c: char| c.is_ascii_digit()));
    let version = point.unwrap_or(&os.version);
    let (major, minor) = version.split_once('.').unwrap_or((version, ""));
    let lsb_major = os.version.split('.').next().unwrap_or_default();
    json!({
        "distribution": name,
        "distribution_version": version,
        "distribution_major_version": major,
        "distribution_minor_version": minor,
        "distribution_release": if os.codename.is_empty() { "NA" } else { &os.codename },
        "os_family": family,
        "lsb": {
            "id": name,
            "codename": os.codename,
            "release": os.version,
            "major_release": lsb_major,
            "description": os.pretty,
        },
    })
}

fn machine(facts: &Facts) -> Json {
    let MachineFacts { memory, processors, firmware, mounts, .. } = &facts.machine;
    let total = facts.memory_mib;
    let mounts: Vec<Json> = mounts
        .iter()
        .map(|mount| {
            json!({
                "mount": mount.mount,
                "device": mount.device,
                "fstype": mount.fstype,
                "options": mount.options,
                "size_total": mount.size_total_bytes,
                "size_available": mount.size_available_bytes,
                "dump": 0,
                "passno": 0,
            })
        })
        .collect();
    let mut names = Map::new();
    for (ours, theirs) in FIRMWARE {
        let value = firmware.get(*ours).map_or("NA", String::as_str);
        names.insert((*theirs).to_owned(), json!(value));
    }
    let rest = json!({
        "memtotal_mb": total,
        "memfree_mb": memory.free_mib,
        "swaptotal_mb": memory.swap_total_mib,
        "swapfree_mb": memory.swap_free_mib,
        "memory_mb": {
            "real": { "total": total, "free": memory.free_mib, "used": total.saturating_sub(memory.free_mib) },
            "nocache": { "free": memory.available_mib, "used": total.saturating_sub(memory.available_mib) },
            "swap": {
                "total": memory.swap_total_mib,
                "free": memory.swap_free_mib,
                "used": memory.swap_total_mib.saturating_sub(memory.swap_free_mib),
                "cached": 0,
            },
        },
        "processor": ["0", processors.vendor, processors.model],
        "processor_count": processors.sockets,
        "processor_cores": processors.cores_per_socket,
        "processor_threads_per_core": processors.threads_per_core,
        "processor_vcpus": facts.cpus,
        "processor_nproc": facts.cpus,
        "mounts": mounts,
    });
    if let Json::Object(rest) = rest {
        names.extend(rest);
    }
    Json::Object(names)
}

/// Names below /sys/class/dmi/id, and Ansible's.
const FIRMWARE: &[(&str, &str)] = &[
    ("bios_date", "bios_date"),
    ("bios_vendor", "bios_vendor"),
    ("bios_version", "bios_version"),
    ("board_asset_tag", "board_asset_tag"),
    ("board_name", "board_name"),
    ("board_serial", "board_serial"),
    ("board_vendor", "board_vendor"),
    ("board_version", "board_version"),
    ("chassis_asset_tag", "chassis_asset_tag"),
    ("chassis_serial", "chassis_serial"),
    ("chassis_vendor", "chassis_vendor"),
    ("chassis_version", "chassis_version"),
    ("product_name", "product_name"),
    ("product_serial", "product_serial"),
    ("product_uuid", "product_uuid"),
    ("product_version", "product_version"),
    ("sys_vendor", "system_vendor"),
];

fn user(machine: &MachineFacts) -> Json {
    let user = &machine.user;
    json!({
        "user_id": user.name,
        "user_uid": user.uid,
        "user_gid": user.gid,
        "user_gecos": user.comment,
        "user_dir": user.home,
        "user_shell": user.shell,
        "real_user_id": user.uid,
        "effective_user_id": user.uid,
        "real_group_id": user.gid,
        "effective_group_id": user.gid,
        "env": machine.environment,
    })
}

fn network(facts: &Facts) -> Json {
    let machine = &facts.machine;
    let mut names = Map::new();
    let list: Vec<&str> = machine.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    names.insert("interfaces".to_owned(), json!(list));
    let outside = |address: &&String| !address.starts_with("127.") && *address != "::1";
    let all = |of: fn(&InterfaceFacts) -> &Vec<(String, u8)>| -> Vec<&String> {
        machine.interfaces.iter().flat_map(of).map(|(address, _)| address).filter(outside).collect()
    };
    let (four, six) = (all(|interface| &interface.ipv4), all(|interface| &interface.ipv6));
    names.insert("all_ipv4_addresses".to_owned(), json!(four));
    names.insert("all_ipv6_addresses".to_owned(), json!(six));
    names.insert("default_ipv4".to_owned(), default_ipv4(facts));
    let mut dns = Map::new();
    for (name, values) in [("nameservers", &machine.name_servers), ("search", &machine.search_domains)] {
        if !values.is_empty() {
            dns.insert(name.to_owned(), json!(values));
        }
    }
    names.insert("dns".to_owned(), Json::Object(dns));
    for interface in &machine.interfaces {
        let name = interface.name.replace(['-', ':'], "_");
        // Why: an interface may be called `host` or `user`, and must not take the place of a connection's variable.
        if is_fact(&format!("ansible_{name}")) {
            names.entry(name).or_insert_with(|| one_interface(interface));
        }
    }
    Json::Object(names)
}

fn one_interface(interface: &InterfaceFacts) -> Json {
    let mut found = link(interface);
    found.insert("device".to_owned(), json!(interface.name));
    found.insert("active".to_owned(), json!(interface.up));
    if let Some((address, prefix)) = interface.ipv4.first() {
        found.insert("ipv4".to_owned(), Json::Object(ipv4(address, *prefix)));
    }
    if !interface.ipv6.is_empty() {
        let six: Vec<Json> = interface
            .ipv6
            .iter()
            .map(|(address, prefix)| json!({ "address": address, "prefix": prefix.to_string(), "scope": scope(address) }))
            .collect();
        found.insert("ipv6".to_owned(), json!(six));
    }
    Json::Object(found)
}

fn scope(address: &str) -> &'static str {
    match address {
        "::1" => "host",
        link if link.starts_with("fe80:") => "link",
        _ => "global",
    }
}

fn link(interface: &InterfaceFacts) -> Map<String, Json> {
    let mut found = Map::new();
    if let Some(mac) = &interface.mac {
        found.insert("macaddress".to_owned(), json!(mac));
    }
    if let Some(mtu) = interface.mtu {
        found.insert("mtu".to_owned(), json!(mtu));
    }
    let kind = match interface.mac.as_deref().map(str::len) {
        None => "loopback",
        // Why: an InfiniBand address has 20 bytes.
        Some(59) => "infiniband",
        Some(_) => "ether",
    };
    found.insert("type".to_owned(), json!(kind));
    found
}

fn ipv4(address: &str, prefix: u8) -> Map<String, Json> {
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
    let own = address.parse::<Ipv4Addr>().map_or(0, u32::from);
    let text = |number: u32| json!(Ipv4Addr::from(number).to_string());
    let is_loopback = address.starts_with("127.");
    Map::from_iter([
        ("address".to_owned(), json!(address)),
        ("netmask".to_owned(), text(mask)),
        ("network".to_owned(), text(own & mask)),
        ("broadcast".to_owned(), if is_loopback { json!("") } else { text(own | !mask) }),
        ("prefix".to_owned(), json!(prefix.to_string())),
    ])
}

/// Address and interface of the default route; empty without one.
fn default_ipv4(facts: &Facts) -> Json {
    let Some(address) = &facts.address else { return json!({}) };
    let mut found = Map::from_iter([("address".to_owned(), json!(address))]);
    let has = |interface: &&InterfaceFacts| interface.ipv4.iter().any(|(own, _)| own == address);
    if let Some(interface) = facts.machine.interfaces.iter().find(has) {
        let prefix = interface.ipv4.iter().find(|(own, _)| own == address).map_or(32, |(_, prefix)| *prefix);
        found.extend(ipv4(address, prefix));
        found.extend(link(interface));
        found.insert("interface".to_owned(), json!(interface.name));
        found.insert("alias".to_owned(), json!(interface.name));
    }
    if let Some((_, gateway)) = &facts.machine.default_route {
        found.insert("gateway".to_owned(), json!(gateway));
    }
    Json::Object(found)
}

/// The moment at which the facts were read; none where that is not known.
fn date_time(machine: &MachineFacts) -> Option<Json> {
    let at = Timestamp::from_microsecond(machine.time_us).ok().filter(|_| machine.time_us > 0)?;
    let zone = machine.zone.as_deref().and_then(|name| TimeZone::get(name).ok()).unwrap_or(TimeZone::UTC);
    let (local, utc) = (at.to_zoned(zone.clone()), at.to_zoned(TimeZone::UTC));
    // Why looked for: Ansible gives the zone's second name, whatever time of the year it is.
    let half = jiff::SignedDuration::from_hours(24 * 182);
    let summer =
        [at, at + half].into_iter().map(|at| zone.to_offset_info(at)).find(|info| info.dst().is_dst());
    let second_name =
        summer.map_or_else(|| local.strftime("%Z").to_string(), |info| info.abbreviation().to_owned());
    let mut found: BTreeMap<&str, String> = [
        ("date", "%Y-%m-%d"),
        ("day", "%d"),
        ("hour", "%H"),
        ("iso8601_basic", "%Y%m%dT%H%M%S%6f"),
        ("iso8601_basic_short", "%Y%m%dT%H%M%S"),
        ("minute", "%M"),
        ("month", "%m"),
        ("second", "%S"),
        ("time", "%H:%M:%S"),
        ("tz", "%Z"),
        ("tz_offset", "%z"),
        ("weekday", "%A"),
        ("weekday_number", "%w"),
        ("weeknumber", "%W"),
        ("year", "%Y"),
    ]
    .into_iter()
    .map(|(name, format)| (name, local.strftime(format).to_string()))
    .collect();
    found.insert("iso8601", utc.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    found.insert("iso8601_micro", utc.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
    found.insert("epoch", at.as_second().to_string());
    found.insert("epoch_int", at.as_second().to_string());
    found.insert("tz_dst", second_name);
    Some(json!(found))
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::facts::UserFacts;

    use super::*;

    fn facts() -> Facts {
        let machine = MachineFacts {
            user: UserFacts { name: "root".to_owned(), home: "/root".to_owned(), ..UserFacts::default() },
            environment: BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]),
            time_us: 1_795_319_549_370_780,
            interfaces: vec![InterfaceFacts {
                name: "br-1".to_owned(),
                mac: Some("02:fc:00:00:00:01".to_owned()),
                mtu: Some(1400),
                up: true,
                ipv4: vec![("192.0.2.2".to_owned(), 24)],
                ipv6: vec![("fe80::1".to_owned(), 64)],
            }],
            default_route: Some(("br-1".to_owned(), "192.0.2.1".to_owned())),
            ..MachineFacts::default()
        };
        let os = OsFacts {
            id: "debian".to_owned(),
            version: "12".to_owned(),
            codename: "bookworm".to_owned(),
            debian_version: Some("12.11".to_owned()),
            ..OsFacts::default()
        };
        let (address, cmdline) =
            (Some("192.0.2.2".to_owned()), "quiet console=ttyS0 console=tty0".to_owned());
        Facts { os, address, cmdline, machine, ..Facts::default() }
    }

    fn get(names: &Map<String, Json>, name: &str) -> Json {
        names.get(name).cloned().unwrap_or_default()
    }

    #[test]
    fn every_name_is_known_to_the_check_of_playbooks() {
        for name in named(&facts()).keys() {
            assert!(is_fact(&format!("ansible_{name}")), "{name}");
        }
    }

    #[test]
    fn an_interface_takes_no_other_place() {
        let mut odd = facts();
        odd.machine.interfaces[0].name = "user".to_owned();
        assert_eq!(get(&named(&odd), "user"), Json::Null);
    }

    /// The texts are those of ansible-core 2.19 for the same moment.
    #[test]
    fn the_moment_has_all_its_names() {
        let names = named(&facts());
        assert_eq!(
            get(&names, "date_time"),
            json!({
                "date": "2026-11-22", "day": "22", "epoch": "1795319549", "epoch_int": "1795319549", "hour": "03",
                "iso8601": "2026-11-22T03:52:29Z", "iso8601_basic": "20261122T035229370780",
                "iso8601_basic_short": "20261122T035229", "iso8601_micro": "2026-11-22T03:52:29.370780Z",
                "minute": "52", "month": "11", "second": "29", "time": "03:52:29", "tz": "UTC", "tz_dst": "UTC",
                "tz_offset": "+0000", "weekday": "Sunday", "weekday_number": "0", "weeknumber": "46", "year": "2026"
            })
        );
        let mut there = facts();
        there.machine.zone = Some("Europe/Berlin".to_owned());
        let moment = get(&named(&there), "date_time");
        for (name, text) in [("hour", "04"), ("tz", "CET"), ("tz_dst", "CEST"), ("tz_offset", "+0100")] {
            assert_eq!(moment.get(name), Some(&json!(text)), "{name}");
        }
        assert_eq!(get(&named(&Facts::default()), "date_time"), Json::Null);
    }

    #[test]
    fn addresses_are_those_of_the_default_route() {
        let names = named(&facts());
        assert_eq!(
            get(&names, "default_ipv4"),
            json!({
                "address": "192.0.2.2", "alias": "br-1", "broadcast": "192.0.2.255", "gateway": "192.0.2.1",
                "interface": "br-1", "macaddress": "02:fc:00:00:00:01", "mtu": 1400, "netmask": "255.255.255.0",
                "network": "192.0.2.0", "prefix": "24", "type": "ether"
            })
        );
        let own = get(&names, "br_1");
        assert_eq!(own.pointer("/ipv6/0/scope"), Some(&json!("link")));
        assert_eq!(get(&names, "all_ipv4_addresses"), json!(["192.0.2.2"]));
        assert_eq!(get(&named(&Facts::default()), "default_ipv4"), json!({}));
    }

    #[test]
    fn releases_and_users_are_named() {
        let names = named(&facts());
        for (name, value) in [
            ("distribution", json!("Debian")),
            ("distribution_version", json!("12.11")),
            ("distribution_major_version", json!("12")),
            ("distribution_release", json!("bookworm")),
            ("user_id", json!("root")),
            ("env", json!({"HOME": "/root"})),
            ("virtualization_type", json!("NA")),
            ("cmdline", json!({"quiet": true, "console": "tty0"})),
            ("proc_cmdline", json!({"quiet": true, "console": ["ttyS0", "tty0"]})),
        ] {
            assert_eq!(get(&names, name), value, "{name}");
        }
    }

    #[test]
    fn a_machine_has_all_that_ansible_tells_of_it() {
        use gpufleet_protocol::facts::{MemoryFacts, MountFacts, ProcessorFacts};
        let mut there = facts();
        there.hostname = "n1.example.org".to_owned();
        (there.kernel, there.arch, there.init) =
            ("6.8.0".to_owned(), "x86_64".to_owned(), "systemd".to_owned());
        (there.memory_mib, there.cpus, there.uptime_s) = (1000, 8, 77);
        let machine = &mut there.machine;
        machine.memory =
            MemoryFacts { free_mib: 100, available_mib: 300, swap_total_mib: 50, swap_free_mib: 20 };
        machine.processors = ProcessorFacts {
            vendor: "V".to_owned(),
            model: "M".to_owned(),
            sockets: 2,
            cores_per_socket: 2,
            threads_per_core: 2,
        };
        machine.firmware = BTreeMap::from([("sys_vendor".to_owned(), "NVIDIA".to_owned())]);
        machine.mounts = vec![MountFacts {
            device: "/dev/sda1".to_owned(),
            mount: "/".to_owned(),
            fstype: "ext4".to_owned(),
            options: "rw".to_owned(),
            size_total_bytes: 9,
            size_available_bytes: 4,
        }];
        machine.load = Some((0.5, 0.25, 0.125));
        (machine.selinux, machine.apparmor, machine.fips) = (true, false, true);
        machine.local.insert("rack".to_owned(), json!({"row": 3}));
        machine.python = Some(("/usr/bin/python3".to_owned(), "3.12.3".to_owned()));
        let names = named(&there);
        for (name, value) in [
            ("hostname", json!("n1")),
            ("fqdn", json!("n1.example.org")),
            ("domain", json!("example.org")),
            (
                "memory_mb",
                json!({
                    "real": {"total": 1000, "free": 100, "used": 900},
                    "nocache": {"free": 300, "used": 700},
                    "swap": {"total": 50, "free": 20, "used": 30, "cached": 0},
                }),
            ),
            ("processor", json!(["0", "V", "M"])),
            ("processor_count", json!(2)),
            ("processor_vcpus", json!(8)),
            ("system_vendor", json!("NVIDIA")),
            ("bios_date", json!("NA")),
            (
                "mounts",
                json!([{
                    "mount": "/", "device": "/dev/sda1", "fstype": "ext4", "options": "rw", "size_total": 9,
                    "size_available": 4, "dump": 0, "passno": 0,
                }]),
            ),
            ("loadavg", json!({"1m": 0.5, "5m": 0.25, "15m": 0.125})),
            ("selinux", json!({"status": "enabled"})),
            ("apparmor", json!({"status": "disabled"})),
            ("fips", json!(true)),
            ("local", json!({"rack": {"row": 3}})),
            ("python_version", json!("3.12.3")),
            ("uptime_seconds", json!(77)),
            ("user_uid", json!(0)),
            ("user_dir", json!("/root")),
            ("dns", json!({})),
        ] {
            assert_eq!(get(&names, name), value, "{name}");
        }
    }

    #[test]
    fn every_interface_is_told_as_it_is() {
        let interface = |name: &str, mac: Option<&str>, four: &[(&str, u8)], six: &[(&str, u8)]| {
            let owned = |list: &[(&str, u8)]| list.iter().map(|(a, p)| ((*a).to_owned(), *p)).collect();
            InterfaceFacts {
                name: name.to_owned(),
                mac: mac.map(ToOwned::to_owned),
                mtu: Some(9000),
                up: name != "ib0",
                ipv4: owned(four),
                ipv6: owned(six),
            }
        };
        let mut there = facts();
        let guid = ["00"; 20].join(":");
        there.machine.interfaces = vec![
            interface("lo", None, &[("127.0.0.1", 8)], &[("::1", 128)]),
            interface(
                "eth0",
                Some("02:00:00:00:00:01"),
                &[("10.0.0.9", 16), ("192.0.2.2", 26)],
                &[("2001:db8::2", 64), ("fe80::2", 64)],
            ),
            interface("ib0", Some(&guid), &[], &[]),
            interface("eth1", Some("02:00:00:00:00:02"), &[("10.8.0.1", 0)], &[]),
        ];
        (there.machine.name_servers, there.machine.search_domains) =
            (vec!["192.0.2.53".to_owned()], vec!["example.org".to_owned()]);
        let names = named(&there);
        let four = |address: &str, netmask: &str, network: &str, broadcast: &str, prefix: &str| json!({"address": address, "netmask": netmask, "network": network, "broadcast": broadcast, "prefix": prefix});
        for (name, value) in [
            ("interfaces", json!(["lo", "eth0", "ib0", "eth1"])),
            ("all_ipv4_addresses", json!(["10.0.0.9", "192.0.2.2", "10.8.0.1"])),
            ("all_ipv6_addresses", json!(["2001:db8::2", "fe80::2"])),
            ("dns", json!({"nameservers": ["192.0.2.53"], "search": ["example.org"]})),
            (
                "lo",
                json!({
                    "device": "lo", "active": true, "mtu": 9000, "type": "loopback",
                    "ipv4": four("127.0.0.1", "255.0.0.0", "127.0.0.0", "", "8"),
                    "ipv6": [{"address": "::1", "prefix": "128", "scope": "host"}],
                }),
            ),
            (
                "eth0",
                json!({
                    "device": "eth0", "active": true, "mtu": 9000, "type": "ether", "macaddress": "02:00:00:00:00:01",
                    "ipv4": four("10.0.0.9", "255.255.0.0", "10.0.0.0", "10.0.255.255", "16"),
                    "ipv6": [
                        {"address": "2001:db8::2", "prefix": "64", "scope": "global"},
                        {"address": "fe80::2", "prefix": "64", "scope": "link"},
                    ],
                }),
            ),
            (
                "ib0",
                json!({"device": "ib0", "active": false, "mtu": 9000, "type": "infiniband", "macaddress": guid}),
            ),
            (
                "eth1",
                json!({
                    "device": "eth1", "active": true, "mtu": 9000, "type": "ether", "macaddress": "02:00:00:00:00:02",
                    "ipv4": four("10.8.0.1", "0.0.0.0", "0.0.0.0", "255.255.255.255", "0"),
                }),
            ),
            (
                "default_ipv4",
                json!({
                    "address": "192.0.2.2", "alias": "eth0", "broadcast": "192.0.2.63", "gateway": "192.0.2.1",
                    "interface": "eth0", "macaddress": "02:00:00:00:00:01", "mtu": 9000, "netmask": "255.255.255.192",
                    "network": "192.0.2.0", "prefix": "26", "type": "ether",
                }),
            ),
        ] {
            assert_eq!(get(&names, name), value, "{name}");
        }
        there.machine.interfaces.pop();
        there.machine.interfaces.remove(1);
        assert_eq!(
            get(&named(&there), "default_ipv4"),
            json!({"address": "192.0.2.2", "gateway": "192.0.2.1"})
        );
    }

    #[test]
    fn virtual_machines_have_ansibles_names() {
        let kind = |found: Option<&str>| {
            let names = named(&Facts { virtualization: found.map(ToOwned::to_owned), ..Facts::default() });
            let text = |name: &str| get(&names, name).as_str().unwrap_or_default().to_owned();
            (text("virtualization_type"), text("virtualization_role"))
        };
        for (found, name) in [
            ("amazon", "kvm"),
            ("qemu", "kvm"),
            ("oracle", "virtualbox"),
            ("microsoft", "VirtualPC"),
            ("vmware", "VMware"),
            ("systemd-nspawn", "container"),
            ("docker", "docker"),
        ] {
            assert_eq!(kind(Some(found)), (name.to_owned(), "guest".to_owned()));
        }
        assert_eq!(kind(None), ("NA".to_owned(), "NA".to_owned()));
    }

    #[test]
    fn releases_are_those_of_the_distribution() {
        let told = |id: &str, version: &str, debian: Option<&str>| {
            let os = OsFacts {
                id: id.to_owned(),
                version: version.to_owned(),
                debian_version: debian.map(ToOwned::to_owned),
                ..OsFacts::default()
            };
            let names = named(&Facts { os, ..Facts::default() });
            [
                "os_family",
                "distribution",
                "distribution_version",
                "distribution_major_version",
                "distribution_minor_version",
                "distribution_release",
            ]
            .map(|name| get(&names, name).as_str().unwrap_or_default().to_owned())
            .join(" ")
        };
        assert_eq!(told("debian", "13", Some("trixie/sid")), "Debian Debian 13 13  NA");
        assert_eq!(told("debian", "12", Some("12.11")), "Debian Debian 12.11 12 11 NA");
        assert_eq!(told("ubuntu", "24.04", Some("13.1")), "Debian Ubuntu 24.04 24 04 NA");
        for (id, name) in
            [("centos", "CentOS"), ("almalinux", "AlmaLinux"), ("fedora", "Fedora"), ("ol", "OracleLinux")]
        {
            assert_eq!(told(id, "9", None), format!("RedHat {name} 9 9  NA"));
        }
        assert_eq!(told("opensuse", "15.6", None), "Suse opensuse 15.6 15 6 NA");
    }

    #[test]
    fn summer_has_its_own_name() {
        let zone = |name: &str, time_us: i64| {
            let machine = MachineFacts { zone: Some(name.to_owned()), time_us, ..MachineFacts::default() };
            let moment = get(&named(&Facts { machine, ..Facts::default() }), "date_time");
            ["tz", "tz_dst", "tz_offset", "hour", "epoch"]
                .map(|name| moment[name].as_str().unwrap_or_default().to_owned())
                .join(" ")
        };
        let summer = 1_782_000_000_000_000;
        assert_eq!(zone("Europe/Berlin", summer), "CEST CEST +0200 02 1782000000");
        assert_eq!(zone("Asia/Tokyo", summer), "JST JST +0900 09 1782000000");
        assert_eq!(zone("No/Where", summer), "UTC UTC +0000 00 1782000000");
        assert_eq!(zone("Europe/Berlin", 0), "    ");
    }
}
