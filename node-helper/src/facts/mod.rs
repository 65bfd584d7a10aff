//! Facts of the operating system; those of GPUs come from the GPU module.
//!
//! What cannot be read is left out and named in `errors`; no failed reading fails the whole.

pub mod local;
pub(crate) mod machine;
mod network;

use std::{collections::HashMap, fs, path::Path};

use gpufleet_protocol::facts::{Facts, OsFacts};

use crate::{os::roots::Roots, tasks::reboot};

struct Reader<'a> {
    roots: &'a Roots,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn text(&mut self, path: &Path) -> Option<String> {
        match fs::read(path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(error) => {
                self.errors.push(format!("cannot read {}: {error}", path.display()));
                None
            }
        }
    }

    fn proc(&mut self, below: &str) -> Option<String> {
        let path = self.roots.proc(below);
        self.text(&path)
    }
}

/// Reads all facts but those of GPUs.
pub fn read(roots: &Roots) -> Facts {
    let mut reader = Reader { roots, errors: Vec::new() };
    let names = rustix::system::uname();
    let hostname = roots.host_name().unwrap_or_else(|| names.nodename().to_string_lossy().into_owned());
    let kernel = match fs::read_to_string(roots.proc("sys/kernel/osrelease")) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => names.release().to_string_lossy().into_owned(),
    };
    let os = os_release(&mut reader);
    let memory_mib =
        reader.proc("meminfo").and_then(|text| memory_kib(&text)).map_or(0, |memory| memory / 1024);
    let uptime_s = reader
        .proc("uptime")
        .and_then(|text| text.split(['.', ' ']).next()?.parse().ok())
        .unwrap_or_default();
    let cmdline = reader.proc("cmdline").unwrap_or_default();
    let boot_id = reboot::boot_id(roots);
    if boot_id.is_none() {
        reader.errors.push("the kernel does not tell its boot id".to_owned());
    }
    let numa = fs::read_to_string(roots.path("/sys/devices/system/node/online"));
    let cpus = fs::read_to_string(roots.path("/sys/devices/system/cpu/online"));
    let cpuinfo =
        || fs::read_to_string(roots.proc("cpuinfo")).map(|text| processors(&text)).unwrap_or_default();
    Facts {
        hostname,
        boot_id,
        kernel,
        arch: names.machine().to_string_lossy().into_owned(),
        os,
        cpus: cpus.map_or_else(|_| cpuinfo(), |text| count(&text)),
        numa_nodes: numa.map_or(1, |text| count(&text)),
        memory_mib,
        uptime_s,
        cmdline,
        init: init(roots),
        virtualization: virtualization(roots),
        address: address(roots),
        gpu: Default::default(),
        machine: machine::read(roots),
        errors: reader.errors,
    }
}

fn os_release(reader: &mut Reader<'_>) -> OsFacts {
    let (etc, usr) = (reader.roots.etc("os-release"), reader.roots.path("/usr/lib/os-release"));
    let Some(text) = fs::read_to_string(etc).ok().or_else(|| reader.text(&usr)) else {
        return OsFacts::default();
    };
    let debian_version = fs::read_to_string(reader.roots.etc("debian_version")).ok();
    OsFacts { debian_version: debian_version.map(|text| text.trim().to_owned()), ..parse_os_release(&text) }
}

fn parse_os_release(text: &str) -> OsFacts {
    let fields: HashMap<&str, String> = text
        .lines()
        .filter_map(|line| line.trim().split_once('='))
        .map(|(name, value)| (name, value.trim_matches(['"', '\'']).replace('\\', "")))
        .collect();
    let get = |name: &str| fields.get(name).cloned().unwrap_or_default();
    OsFacts {
        id: get("ID"),
        version: get("VERSION_ID"),
        pretty: get("PRETTY_NAME"),
        codename: get("VERSION_CODENAME"),
        debian_version: None,
        like: get("ID_LIKE").split_whitespace().map(str::to_owned).collect(),
    }
}

/// Returns the size of the memory by `/proc/meminfo`, in KiB.
pub fn memory_kib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn processors(text: &str) -> u32 {
    let count = text.lines().filter(|line| line.starts_with("processor")).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns how many numbers a list such as `0-3,8` has.
pub fn count(list: &str) -> u32 {
    list.trim()
        .split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((first, last)) => {
                let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                Some(last.checked_sub(first)? + 1)
            }
            None => part.parse::<u32>().ok().map(|_| 1),
        })
        .fold(0, u32::saturating_add)
}

fn init(roots: &Roots) -> String {
    if roots.path("/run/systemd/system").is_dir() {
        return "systemd".to_owned();
    }
    let name = fs::read_to_string(roots.proc("1/comm")).unwrap_or_default();
    if name.trim().is_empty() { "unknown".to_owned() } else { name.trim().to_owned() }
}

/// Returns the hypervisor or container, by the marks that systemd-detect-virt checks first.
pub(crate) fn virtualization(roots: &Roots) -> Option<String> {
    let read = |path: &str| fs::read_to_string(roots.path(path)).unwrap_or_default();
    if let Some(container) = read("/run/systemd/container").lines().next() {
        return Some(container.to_owned());
    }
    if roots.path("/.dockerenv").exists() {
        return Some("docker".to_owned());
    }
    if roots.path("/run/.containerenv").exists() {
        return Some("podman".to_owned());
    }
    let product = format!(
        "{} {}",
        read("/sys/class/dmi/id/sys_vendor").trim(),
        read("/sys/class/dmi/id/product_name").trim()
    );
    let marks = [
        ("KVM", "kvm"),
        ("QEMU", "qemu"),
        ("OpenStack", "kvm"),
        ("Amazon EC2", "amazon"),
        ("Google Compute Engine", "google"),
        ("VMware", "vmware"),
        ("VirtualBox", "oracle"),
        ("Microsoft Corporation Virtual", "microsoft"),
        ("Xen", "xen"),
        ("Bochs", "bochs"),
    ];
    if let Some((_, name)) = marks.iter().find(|(mark, _)| product.contains(mark)) {
        // A cloud's bare-metal instance has the cloud's name too, but no hypervisor bit.
        let hypervisor = read("/proc/cpuinfo").contains(" hypervisor");
        return hypervisor.then(|| (*name).to_owned());
    }
    read("/proc/cpuinfo").contains(" hypervisor").then(|| "unknown".to_owned())
}

/// Returns the IPv4 address that the kernel would use for the default route.
fn address(roots: &Roots) -> Option<String> {
    let routes = fs::read_to_string(roots.proc("net/route")).ok()?;
    let has_default = routes.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some("00000000"));
    if !has_default || !roots.is_real() {
        return None;
    }
    // Connecting a datagram socket sends nothing; it only makes the kernel choose a route.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then(|| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn facts_of_a_node() {
        let bench = Bench::new();
        bench.write(
            "etc/os-release",
            "ID=ubuntu\nVERSION_ID=\"24.04\"\nPRETTY_NAME=\"Ubuntu 24.04 LTS\"\nID_LIKE=debian\n",
        );
        bench.write("proc/meminfo", "MemTotal:       2113406 kB\nMemFree: 1 kB\n");
        bench.write("proc/uptime", "12345.67 1.0\n");
        bench.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt\n");
        bench.write("proc/sys/kernel/hostname", "gpu001\n");
        bench.write("proc/sys/kernel/random/boot_id", "b-1\n");
        bench.write("sys/devices/system/node/online", "0-1\n");
        bench.write("sys/devices/system/cpu/online", "0-63,128-191\n");
        std::fs::create_dir_all(bench.path("run/systemd/system")).unwrap();
        let facts = read(&bench.roots);
        assert_eq!((facts.hostname.as_str(), facts.memory_mib, facts.uptime_s), ("gpu001", 2063, 12345));
        assert_eq!((facts.cpus, facts.numa_nodes, facts.init.as_str()), (128, 2, "systemd"));
        assert_eq!(
            (facts.os.id.as_str(), facts.os.version.as_str(), facts.os.like),
            ("ubuntu", "24.04", vec!["debian".to_owned()])
        );
        assert_eq!(facts.cmdline, "BOOT_IMAGE=/vmlinuz iommu=pt");
        assert_eq!(facts.errors, Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let facts = read(&Bench::new().roots);
        assert!(facts.errors.iter().any(|error| error.contains("meminfo")), "{:?}", facts.errors);
    }
}
