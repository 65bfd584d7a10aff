//! What sort of system a node is: its distribution, and whether its files outlive a boot.

use std::path::Path;

use super::mount::fstab::Mounted;
use crate::declare::{Node, Trouble};

/// Returns a field of os-release(5), such as `ID`.
///
/// # Errors
/// If the file is there and cannot be read.
pub fn os_release(node: &Node<'_>, field: &str) -> Result<Option<String>, Trouble> {
    for path in ["/etc/os-release", "/usr/lib/os-release"] {
        let Some(bytes) = node.world.read(&node.roots.path(path))? else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let value = text.lines().find_map(|line| line.trim().strip_prefix(field)?.strip_prefix('='));
        return Ok(value.map(|value| value.trim_matches(['"', '\'']).to_owned()));
    }
    Ok(None)
}

/// Returns the type of the file system in memory that holds a folder, so that what is written there ends with the boot.
///
/// An overlay is in memory if its upper folder is. Source: kernel, filesystems/overlayfs and filesystems/ramfs.
pub fn in_memory(node: &Node<'_>, folder: &str) -> Option<String> {
    let text = std::fs::read_to_string(node.roots.proc("self/mountinfo")).ok()?;
    // The last of several mounts on a path is the one that is seen.
    let holds = |folder: &str| {
        let under = |line: &&str| {
            Mounted::parse(line).is_some_and(|mounted| Path::new(folder).starts_with(&mounted.path))
        };
        let lines = text.lines().filter(under);
        lines.max_by_key(|line| Mounted::parse(line).map_or(0, |mounted| mounted.path.len()))
    };
    let memory = |line: &str| {
        let fstype = Mounted::parse(line)?.fstype;
        matches!(fstype.as_str(), "tmpfs" | "ramfs" | "rootfs").then_some(fstype)
    };
    let line = holds(folder)?;
    if Mounted::parse(line)?.fstype != "overlay" {
        return memory(line);
    }
    let upper = line.rsplit(' ').next()?.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
    // A path that is not there is one of another namespace, as in containers.
    if !node.roots.path(upper).is_dir() {
        return None;
    }
    memory(holds(upper)?).map(|fstype| format!("overlay on {fstype}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn folders_in_memory_are_known() {
        let bench = Bench::new();
        let told = |text: &str| {
            bench.write("proc/self/mountinfo", text);
            bench.node(|node| in_memory(node, "/etc"))
        };
        assert_eq!(told("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /run rw - tmpfs tmpfs rw\n"), None);
        assert_eq!(told("1 0 0:1 / / rw - rootfs rootfs rw\n"), Some("rootfs".to_owned()));
        let overlay =
            "1 0 0:1 / / rw - overlay overlay rw,lowerdir=/ro,upperdir=/media/rw/up,workdir=/media/rw/w\n";
        assert_eq!(told(overlay), None, "the upper folder is not seen, as in a container");
        let seen = format!("{overlay}2 1 0:5 / /media/rw rw - tmpfs tmpfs rw\n");
        assert_eq!(told(&seen), None, "the path is one of another namespace");
        std::fs::create_dir_all(bench.path("media/rw/up")).unwrap();
        assert_eq!(told(&seen), Some("overlay on tmpfs".to_owned()));
        bench.write("usr/lib/os-release", "NAME=\"X\"\nID=\"sl-micro\"\n");
        assert_eq!(bench.node(|node| os_release(node, "ID").unwrap()).as_deref(), Some("sl-micro"));
    }
}
