//! Memory of NUMA nodes, with their huge pages of every size.

use std::{collections::BTreeMap, fs};

use super::knobs;
use crate::declare::{Node, Trouble};

pub const NODES: &str = "/sys/devices/system/node";

/// Memory of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaMemory {
    /// In KiB; `None` if the kernel does not tell.
    pub total_kib: Option<u64>,
    /// Free memory and what the kernel gives up for it (cache of files, slabs), in KiB.
    pub available_kib: Option<u64>,
    /// Number of huge pages by their size in KiB, sizes without pages too.
    pub pages: BTreeMap<u64, u64>,
}

/// Returns the values in KiB of a text such as /proc/meminfo, or that of a NUMA node.
fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(name)?;
        rest.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok()
    })
}

/// Reads a value of /proc/meminfo, in KiB; none if the kernel does not tell.
///
/// # Errors
/// If the file cannot be read.
pub fn of_all(node: &Node<'_>, name: &str) -> Result<Option<u64>, Trouble> {
    let bytes = crate::os::files::read_bounded(&node.roots.proc("meminfo"), 1 << 20)?.unwrap_or_default();
    Ok(kib(&String::from_utf8_lossy(&bytes), name))
}

/// Reads a NUMA node; pages are as earlier tasks of a prediction assume them, and so is what is available.
///
/// # Errors
/// If a file cannot be read, or holds no number.
pub fn read(node: &Node<'_>, id: u32) -> Result<NumaMemory, Trouble> {
    let folder = format!("{NODES}/node{id}");
    let text = knobs::value(node, &format!("{folder}/meminfo"))?.unwrap_or_default();
    let cache: u64 =
        ["Active(file)", "Inactive(file)", "SReclaimable"].iter().filter_map(|name| kib(&text, name)).sum();
    let mut memory = NumaMemory {
        total_kib: kib(&text, "MemTotal"),
        available_kib: kib(&text, "MemFree").map(|free| free.saturating_add(cache)),
        pages: BTreeMap::new(),
    };
    for entry in fs::read_dir(node.roots.path(format!("{folder}/hugepages"))).into_iter().flatten().flatten()
    {
        let name = entry.file_name();
        let size =
            name.to_str().and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok());
        let Some(size): Option<u64> = size else { continue };
        let path = format!("{folder}/hugepages/hugepages-{size}kB/nr_hugepages");
        let number = |text: Option<String>| {
            let parsed = text.as_ref().and_then(|text| text.parse::<u64>().ok());
            parsed.ok_or_else(|| Trouble::io(format!("{path} holds no number")))
        };
        let (now, assumed) = (number(knobs::value(node, &path)?)?, number(knobs::assumed(node, &path)?)?);
        if let Some(available) = &mut memory.available_kib {
            *available = available
                .saturating_add(now.saturating_mul(size))
                .saturating_sub(assumed.saturating_mul(size));
        }
        memory.pages.insert(size, assumed);
    }
    Ok(memory)
}
