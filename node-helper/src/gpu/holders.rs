//! Who holds GPUs now, for plans that end work on them without touching the GPUs themselves.

use std::{collections::BTreeMap, ffi::OsString, fs};

use gpufleet_protocol::{Blocker, message::GpuClient};

use super::{
    blockers::{next_for, unknown},
    clients::{self, Places},
    idle,
};
use crate::os::roots::Roots;

/// Returns the GPU of each number in `/dev/nvidiaN`, as the driver tells without NVML: it counts by PCI address.
fn minors(roots: &Roots) -> BTreeMap<u32, u32> {
    let folder = roots.proc("driver/nvidia/gpus");
    let mut names: Vec<_> =
        fs::read_dir(&folder).into_iter().flatten().flatten().map(|one| one.file_name()).collect();
    names.sort();
    let minor = |name: &OsString| {
        let text = fs::read_to_string(folder.join(name).join("information")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse::<u32>().ok())
    };
    (0..).zip(&names).filter_map(|(index, name)| Some((minor(name)?, index))).collect()
}

/// Returns the processes that hold GPUs now, for a plan that ends their work without touching the GPUs themselves.
pub fn holders(roots: &Roots) -> Vec<Blocker> {
    let places = Places { proc: roots.proc(""), etc: roots.etc("") };
    let scan = clients::scan(&places, &[std::process::id()], &[], &minors(roots), None);
    let all: Vec<&GpuClient> = scan.workloads().collect();
    let named =
        all.iter().take(idle::NAMED).map(|client| Blocker::new(idle::sentence(client), next_for(client)));
    let more = all.len().saturating_sub(idle::NAMED);
    let more = (more > 0).then(|| {
        Blocker::new(format!("{more} more processes hold GPUs"), "drain the node, or end them before")
    });
    named.chain(more).chain(scan.unknown.iter().map(unknown)).collect()
}
