//! Signals of file systems and of the disks below them.
//!
//! Asks local file systems only: a question to a server that is gone, or to a process that hangs, is never answered.

use gpufleet_protocol::signal::{Readings, Signal, SubjectReadings};

use super::{Found, Named, Reader, rounded, signal};
use crate::{
    facts::machine::is_local,
    tasks::mount::fstab::{Line, Mounted},
};

/// Mount points that a node stops working without.
const PLACES: [&str; 6] = ["/", "/var", "/tmp", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet"];
/// File systems of this machine that name no device.
const WITHOUT_DEVICE: [&str; 4] = ["zfs", "btrfs", "tmpfs", "overlay"];
/// File systems that are written to. Images such as squashfs are always read-only.
const WRITTEN: [&str; 7] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat"];
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

pub fn read(reader: &Reader<'_>) -> Vec<Named> {
    vec![
        ("ro_unexpected", signal(ro_unexpected(reader))),
        ("md_degraded", signal(md_degraded(reader))),
        ("nvme_count", signal(nvme_count(reader))),
    ]
}

/// Reads the file systems at [`PLACES`], in this order. Without a list of mounts there is the root alone, unknown.
pub fn disks(reader: &Reader<'_>) -> Vec<SubjectReadings> {
    match mountinfo(reader) {
        Ok(text) => {
            let mounts: Vec<Mounted> = text.lines().filter_map(Mounted::parse).collect();
            let read = |place: &&str| {
                // The last mount covers those before it.
                let mounted = mounts.iter().rfind(|mounted| mounted.path == *place)?;
                Some(subject(place, usage(reader, mounted, &mounts)))
            };
            PLACES.iter().filter_map(read).collect()
        }
        Err(why) => vec![subject("/", Err(why))],
    }
}

pub fn mountinfo(reader: &Reader<'_>) -> Result<String, String> {
    const PATH: &str = "/proc/self/mountinfo";
    reader.text(PATH)?.ok_or_else(|| format!("{PATH}: there is no such file"))
}

/// The size of a file system and what is used of it.
pub struct Usage {
    pub used_ratio: Option<f64>,
    pub inode_used_ratio: Option<f64>,
    /// The part that no user but root can have more of: what the kubelet takes for used.
    pub taken_ratio: Option<f64>,
    free_gib: f64,
    size_gib: f64,
}

fn is_safe(mounted: &Mounted) -> bool {
    is_local(&mounted.source, &mounted.fstype) || WITHOUT_DEVICE.contains(&mounted.fstype.as_str())
}

/// Reads how full a file system is.
///
/// # Errors
/// If it, or one above it, may not answer.
pub fn usage(reader: &Reader<'_>, mounted: &Mounted, all: &[Mounted]) -> Result<Usage, String> {
    let place = mounted.path.as_str();
    let above =
        |other: &&Mounted| gpufleet_protocol::operation::is_below(place, &other.path) || *other == mounted;
    if let Some(other) = all.iter().filter(above).find(|mounted| !is_safe(mounted)) {
        return Err(format!("{} is a {} and may not answer", other.path, other.fstype));
    }
    let sizes =
        rustix::fs::statvfs(&*reader.roots.path(place)).map_err(|error| format!("{place}: {error}"))?;
    let ratio = |free: u64, all: u64| (all > 0).then(|| rounded(1.0 - free as f64 / all as f64));
    let gib = |blocks: u64| rounded(blocks as f64 * sizes.f_frsize as f64 / GIB);
    Ok(Usage {
        used_ratio: ratio(sizes.f_bfree, sizes.f_blocks),
        inode_used_ratio: ratio(sizes.f_ffree, sizes.f_files),
        taken_ratio: ratio(sizes.f_bavail, sizes.f_blocks),
        free_gib: gib(sizes.f_bfree),
        size_gib: gib(sizes.f_blocks),
    })
}

fn subject(place: &str, usage: Result<Usage, String>) -> SubjectReadings {
    let of = |take: fn(&Usage) -> Option<f64>| signal(usage.as_ref().map(take).map_err(Clone::clone));
    let readings: [(&str, Signal); 4] = [
        ("disk_used_ratio", of(|usage| usage.used_ratio)),
        ("inode_used_ratio", of(|usage| usage.inode_used_ratio)),
        ("disk_free_gib", of(|usage| Some(usage.free_gib))),
        ("disk_size_gib", of(|usage| Some(usage.size_gib))),
    ];
    let readings: Readings = readings.map(|(name, signal)| (name.to_owned(), signal)).into();
    SubjectReadings { id: place.to_owned(), label: place.to_owned(), readings }
}

/// Counts file systems that are read-only although their mount, or fstab, says that they are not.
fn ro_unexpected(reader: &Reader<'_>) -> Found<usize> {
    let text = mountinfo(reader)?;
    let fstab = reader.text("/etc/fstab")?.unwrap_or_default();
    let fstab: Vec<Line> = fstab.lines().filter_map(Line::parse).collect();
    let writable = |path: &str| {
        let line = fstab.iter().find(|line| line.same_mount(path, None));
        line.is_some_and(|line| !line.opts.split(',').any(|option| option == "ro"))
    };
    let mut devices: Vec<&str> = Vec::new();
    for line in text.lines() {
        let (Some(mounted), Some((device, mount, whole))) = (Mounted::parse(line), Mounted::read_only(line))
        else {
            continue;
        };
        let written =
            WRITTEN.contains(&mounted.fstype.as_str()) && is_local(&mounted.source, &mounted.fstype);
        if written && whole && (!mount || writable(&mounted.path)) {
            devices.push(device);
        }
    }
    devices.sort_unstable();
    devices.dedup();
    Ok(Some(devices.len()))
}

/// Counts md arrays that lack a disk; a machine without such arrays has none.
fn md_degraded(reader: &Reader<'_>) -> Found<u32> {
    let blocks = reader.names("/sys/block")?.ok_or("/sys/block: there is no such folder")?;
    let mut degraded = None;
    for name in blocks.iter().filter(|name| name.starts_with("md")) {
        // Arrays without redundancy have no such file.
        if let Some(count) = reader.number::<u32>(&format!("/sys/block/{name}/md/degraded"))? {
            degraded = Some(degraded.unwrap_or(0) + u32::from(count > 0));
        }
    }
    Ok(degraded)
}

fn nvme_count(reader: &Reader<'_>) -> Found<usize> {
    match reader.names("/sys/class/nvme")? {
        Some(names) => Ok(Some(names.len())),
        None if reader.exists("/sys/class")? => Ok(Some(0)),
        None => Err("/sys/class: there is no such folder".to_owned()),
    }
}
