//! Facts of a machine under Ansible's names: user, time, firmware, memory, file systems.
//!
//! None of them is needed to bring a node to its state, so what cannot be read is left out without a message.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::facts::{MachineFacts, MemoryFacts, MountFacts, ProcessorFacts, UserFacts};

use super::{local, network};
use crate::os::{roots::Roots, users::Account};

/// Variables that identify user and session. No others, because they may hold secrets, and facts go into reports.
const ENVIRONMENT: [&str; 14] = [
    "HOME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "MAIL",
    "PATH",
    "PWD",
    "SHELL",
    "SUDO_GID",
    "SUDO_UID",
    "SUDO_USER",
    "TERM",
    "TZ",
    "USER",
];
/// Only the entries that have a name in Ansible.
const FIRMWARE: [&str; 17] = [
    "bios_date",
    "bios_vendor",
    "bios_version",
    "board_asset_tag",
    "board_name",
    "board_serial",
    "board_vendor",
    "board_version",
    "chassis_asset_tag",
    "chassis_serial",
    "chassis_vendor",
    "chassis_version",
    "product_name",
    "product_serial",
    "product_uuid",
    "product_version",
    "sys_vendor",
];
/// In the order of Ansible's search.
const PACKAGE_MANAGERS: [(&str, &str); 8] = [
    ("/usr/bin/dnf5", "dnf5"),
    ("/usr/bin/dnf-3", "dnf"),
    ("/usr/bin/dnf", "dnf"),
    ("/usr/bin/yum", "yum"),
    ("/usr/bin/apt-get", "apt"),
    ("/usr/bin/zypper", "zypper"),
    ("/usr/bin/pacman", "pacman"),
    ("/sbin/apk", "apk"),
];
/// Nodes have a handful; containers can create thousands.
const MOST_MOUNTS: usize = 64;

pub(super) fn read(roots: &Roots) -> MachineFacts {
    let proc = |below: &str| fs::read_to_string(roots.proc(below)).unwrap_or_default();
    let (name_servers, search_domains) =
        network::resolver(&fs::read_to_string(roots.etc("resolv.conf")).unwrap_or_default());
    let (interfaces, default_route) = network::read(roots);
    MachineFacts {
        id: line(roots, "/etc/machine-id"),
        kernel_build: rustix::system::uname().version().to_string_lossy().into_owned(),
        user: user(roots),
        environment: ENVIRONMENT
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect(),
        time_us: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
        zone: zone(roots),
        package_manager: package_manager(roots).map(str::to_owned),
        firmware: firmware(roots),
        memory: memory(&proc("meminfo")),
        processors: processors(&proc("cpuinfo")),
        interfaces,
        default_route,
        name_servers,
        search_domains,
        mounts: mounts(roots, &proc("self/mounts")),
        load: load(&proc("loadavg")),
        selinux: roots.path("/sys/fs/selinux/enforce").exists(),
        apparmor: roots.path("/sys/kernel/security/apparmor").exists(),
        fips: proc("sys/crypto/fips_enabled").trim() == "1",
        local: local::read(roots),
        python: local::python(roots),
    }
}

/// Returns the name of the package manager. Debian's own wins there, as in Ansible: dnf can be installed beside it.
fn package_manager(roots: &Roots) -> Option<&'static str> {
    let there = |path: &str| roots.path(path).exists();
    if there("/etc/debian_version") && there("/usr/bin/apt-get") {
        return Some("apt");
    }
    PACKAGE_MANAGERS.iter().find(|(path, _)| there(path)).map(|(_, name)| *name)
}

fn line(roots: &Roots, path: &str) -> Option<String> {
    let text = fs::read_to_string(roots.path(path)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn user(roots: &Roots) -> UserFacts {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let passwd = fs::read_to_string(roots.etc("passwd")).unwrap_or_default();
    match passwd.lines().filter_map(Account::parse).find(|account| account.uid == uid) {
        // Without the account's group, as a process may have another one.
        Some(Account { name, comment, home, shell, .. }) => {
            UserFacts { name, uid, gid, comment, home, shell }
        }
        None => UserFacts { name: uid.to_string(), uid, gid, ..UserFacts::default() },
    }
}

/// Returns the zone's name, from the target of /etc/localtime, or from /etc/timezone.
fn zone(roots: &Roots) -> Option<String> {
    let link = fs::read_link(roots.etc("localtime")).ok();
    let name = link.and_then(|path| Some(path.to_str()?.split_once("zoneinfo/")?.1.to_owned()));
    name.or_else(|| line(roots, "/etc/timezone"))
}

fn firmware(roots: &Roots) -> BTreeMap<String, String> {
    let read = |name: &&str| Some(((*name).to_owned(), line(roots, &format!("/sys/class/dmi/id/{name}"))?));
    FIRMWARE.iter().filter_map(read).collect()
}

fn memory(text: &str) -> MemoryFacts {
    let mib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() / 1024
    };
    MemoryFacts {
        free_mib: mib("MemFree"),
        available_mib: mib("MemAvailable"),
        swap_total_mib: mib("SwapTotal"),
        swap_free_mib: mib("SwapFree"),
    }
}

fn processors(text: &str) -> ProcessorFacts {
    let of = |line: &str| {
        line.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
    };
    let lines: Vec<(String, String)> = text.lines().filter_map(of).collect();
    let first = |name: &str| lines.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let number = |name: &str| first(name).and_then(|text| text.parse::<u32>().ok());
    let sockets: BTreeSet<&String> =
        lines.iter().filter(|(key, _)| key == "physical id").map(|(_, value)| value).collect();
    let cores = number("cpu cores").unwrap_or(1).max(1);
    ProcessorFacts {
        vendor: first("vendor_id").unwrap_or_default(),
        model: first("model name").unwrap_or_default(),
        sockets: u32::try_from(sockets.len()).unwrap_or(u32::MAX).max(1),
        cores_per_socket: cores,
        threads_per_core: (number("siblings").unwrap_or(cores) / cores).max(1),
    }
}

fn load(text: &str) -> Option<(f64, f64, f64)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse::<f64>().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// Returns file systems on a device or a server, as Ansible lists them.
fn mounts(roots: &Roots, text: &str) -> Vec<MountFacts> {
    let mut found = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [device, mount, fstype, options, ..] = fields[..] else { continue };
        if fstype == "none" || !(device.starts_with('/') || device.contains(":/")) {
            continue;
        }
        let mount = unescaped(mount);
        // Sizes of local file systems only, because an unreachable server would block.
        let sizes =
            is_local(device, fstype).then(|| rustix::fs::statvfs(&*roots.path(&mount)).ok()).flatten();
        found.push(MountFacts {
            device: unescaped(device),
            mount,
            fstype: fstype.to_owned(),
            options: options.to_owned(),
            size_total_bytes: sizes.as_ref().map_or(0, |sizes| sizes.f_blocks.saturating_mul(sizes.f_frsize)),
            size_available_bytes: sizes
                .as_ref()
                .map_or(0, |sizes| sizes.f_bavail.saturating_mul(sizes.f_frsize)),
        });
        if found.len() == MOST_MOUNTS {
            break;
        }
    }
    found
}

/// Whether a file system is on a device of this machine, so that asking it waits for no server and no other process.
pub(crate) fn is_local(device: &str, fstype: &str) -> bool {
    // Windows shares begin with two slashes; a FUSE file system or an automount point may name any path as its source.
    let elsewhere = fstype == "gpfs" || fstype == "autofs" || fstype.starts_with("fuse");
    device.starts_with('/') && !device.starts_with("//") && !elsewhere
}

/// Decodes blanks in names, which the kernel writes as octal numbers.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn a_machine_is_read() {
        let bench = Bench::new();
        bench.write("etc/machine-id", "3d12\n");
        bench.write("etc/timezone", "Europe/Berlin\n");
        bench.write(
            "etc/passwd",
            &format!("me:x:{}:7:Me:/home/me:/bin/zsh\n", rustix::process::getuid().as_raw()),
        );
        bench.write(
            "proc/meminfo",
            "MemTotal: 4096 kB\nMemFree:  2048 kB\nMemAvailable: 3072 kB\nSwapTotal: 1024 kB\n",
        );
        bench.write(
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon: 8480\nphysical id\t: 0\nsiblings\t: 4\ncpu cores\t: 2\n\n\
             processor\t: 1\nphysical id\t: 1\nsiblings\t: 4\ncpu cores\t: 2\n",
        );
        bench.write("proc/loadavg", "0.10 0.20 1.50 1/2 3\n");
        bench.write(
            "proc/self/mounts",
            "/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\nnas:/x /a\\040b nfs4 rw 0 0\n//nas/y /c cifs rw 0 0\n\
             /a:/b /d fuse.mergerfs rw 0 0\n",
        );
        fs::create_dir_all(bench.path("c")).unwrap();
        fs::create_dir_all(bench.path("d")).unwrap();
        bench.write("sys/class/dmi/id/product_name", "DGX H100\n");
        bench.write("usr/bin/apt-get", "");
        let facts = read(&bench.roots);
        assert_eq!((facts.id.as_deref(), facts.zone.as_deref()), (Some("3d12"), Some("Europe/Berlin")));
        assert_eq!((facts.user.name.as_str(), facts.user.shell.as_str()), ("me", "/bin/zsh"));
        assert_eq!(
            facts.memory,
            MemoryFacts { free_mib: 2, available_mib: 3, swap_total_mib: 1, swap_free_mib: 0 }
        );
        let processors = &facts.processors;
        assert_eq!((processors.sockets, processors.cores_per_socket, processors.threads_per_core), (2, 2, 2));
        assert_eq!(processors.model, "Xeon: 8480");
        assert_eq!(facts.load, Some((0.1, 0.2, 1.5)));
        let mounts: Vec<(&str, &str)> =
            facts.mounts.iter().map(|mount| (mount.device.as_str(), mount.mount.as_str())).collect();
        assert_eq!(mounts, [("/dev/vda", "/"), ("nas:/x", "/a b"), ("//nas/y", "/c"), ("/a:/b", "/d")]);
        let asked: Vec<bool> = facts.mounts.iter().map(|mount| mount.size_total_bytes > 0).collect();
        assert_eq!(asked, [true, false, false, false], "no server is asked, and no other process");
        assert_eq!(facts.firmware.get("product_name").map(String::as_str), Some("DGX H100"));
        assert_eq!(facts.package_manager.as_deref(), Some("apt"));
        assert!(facts.time_us > 1_700_000_000_000_000);
        assert!(facts.environment.keys().all(|name| ENVIRONMENT.contains(&name.as_str())));
    }

    #[test]
    fn dnf_beside_apt_is_not_the_package_manager_of_debian() {
        let bench = Bench::new();
        bench.write("usr/bin/dnf", "");
        bench.write("usr/bin/apt-get", "");
        assert_eq!(package_manager(&bench.roots), Some("dnf"));
        bench.write("etc/debian_version", "12.11\n");
        assert_eq!(package_manager(&bench.roots), Some("apt"));
    }

    #[test]
    fn a_machine_that_tells_nothing_is_read_too() {
        let facts = read(&Bench::new().roots);
        assert_eq!(
            (facts.id, facts.load, facts.mounts, facts.package_manager),
            (None, None, Vec::new(), None)
        );
    }
}
