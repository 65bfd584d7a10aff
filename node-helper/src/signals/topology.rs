//! Where CPUs, memory and devices are, from sysfs and procfs; NVML only adds the indexes of GPUs.
//!
//! Nothing below `/proc/driver/nvidia/gpus` is read: a hung driver never answers there. Invariant: a place that the
//! firmware does not tell is none, and never node 0.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    cpus::CpuList,
    facts::{GpuSystem, GpuSystemState},
    topology::{Device, Gpu, Network, NumaNode, Socket, Topology, What},
};
use serde_json::json;

use super::{Found, Reader, network, pci};
use crate::facts;

const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";
/// More devices of interest than any machine has; a server with 16 GPUs has about 60.
const MOST_DEVICES: usize = 512;
const MOST_CPUS: usize = 8192;
/// PCI vendor of NVIDIA.
const NVIDIA: u32 = 0x10de;

/// What cannot be read, one sentence each.
#[derive(Default)]
struct Gaps(Vec<String>);

impl Gaps {
    fn take<T: Default>(&mut self, found: Result<T, String>) -> T {
        found.unwrap_or_else(|why| {
            // One broken folder would say the same of each of its files.
            if self.0.len() < 32 {
                self.0.push(why);
            }
            T::default()
        })
    }
}

/// Reads everything. Never fails: what cannot be read is left out, and said.
pub fn read(reader: &Reader<'_>, gpus: impl FnOnce() -> GpuSystem) -> Topology {
    let mut gaps = Gaps::default();
    let list = |path: &str| reader.parsed(path, |text| text.parse::<CpuList>().ok());
    let online = gaps.take(list(&format!("{CPU}/online"))).unwrap_or_default();
    let isolated = gaps.take(list(&format!("{CPU}/isolated"))).unwrap_or_default();
    let usable = gaps.take(reader.parsed("/proc/1/status", |text| {
        text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()
    }));
    let sockets = gaps.take(sockets(reader, &online));
    let numa = gaps.take(numa(reader));
    let mut devices = devices(reader, &mut gaps);
    if devices.iter().any(|device| matches!(device.what, What::Gpu(_))) {
        name_gpus(&mut devices, gpus(), &mut gaps);
    }
    Topology {
        virtualization: facts::virtualization(reader.roots),
        online,
        usable,
        isolated,
        sockets,
        numa,
        devices,
        errors: gaps.0,
    }
}

/// Returns the outcome of `topology_info`.
pub fn outcome(topology: &Topology) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data.insert("topology".to_owned(), json!(topology));
    outcome
}

/// Returns the processors with their cores; none where the kernel does not tell.
fn sockets(reader: &Reader<'_>, online: &CpuList) -> Result<Vec<Socket>, String> {
    if online.len() > MOST_CPUS {
        return Err(format!("{CPU}/online: it lists more than {MOST_CPUS} CPUs"));
    }
    let mut sockets: BTreeMap<u32, Vec<CpuList>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for cpu in online.iter() {
        if seen.contains(&cpu) {
            continue;
        }
        let file = |name: &str| format!("{CPU}/cpu{cpu}/topology/{name}");
        let siblings = reader.parsed(&file("thread_siblings_list"), |text| text.parse::<CpuList>().ok())?;
        let package = reader.number::<i64>(&file("physical_package_id"))?;
        let Some((cpus, package)) = siblings.zip(package) else { return Ok(Vec::new()) };
        seen.extend(cpus.iter());
        // A kernel that knows no sockets says -1.
        sockets.entry(u32::try_from(package).unwrap_or_default()).or_default().push(cpus);
    }
    Ok(sockets.into_iter().map(|(id, cores)| Socket { id, cores }).collect())
}

/// Returns the NUMA nodes; none where the kernel knows no NUMA.
fn numa(reader: &Reader<'_>) -> Result<Vec<NumaNode>, String> {
    let online = reader.parsed(&format!("{NODE}/online"), |text| text.parse::<CpuList>().ok())?;
    let mut nodes = Vec::new();
    for id in online.unwrap_or_default().iter().take(MOST_DEVICES) {
        let file = |name: &str| format!("{NODE}/node{id}/{name}");
        let cpus = reader.parsed(&file("cpulist"), |text| text.parse::<CpuList>().ok())?;
        let memory_mib = reader.parsed(&file("meminfo"), |text| {
            let line = text.lines().find(|line| line.contains("MemTotal:"))?;
            let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
            Some(kib / 1024)
        })?;
        let distances = reader.parsed(&file("distance"), |text| {
            text.split_whitespace().take(MOST_DEVICES).map(|number| number.parse().ok()).collect()
        })?;
        nodes.push(NumaNode {
            id,
            cpus: cpus.unwrap_or_default(),
            memory_mib,
            distances: distances.unwrap_or_default(),
        });
    }
    Ok(nodes)
}

/// Returns GPUs, network cards, NVMe drives and NVSwitches, in the order of their addresses; indexes of GPUs are not asked.
///
/// # Errors
/// If one of them cannot be read, such as a GPU that fell off the bus.
pub fn places(reader: &Reader<'_>) -> Result<Vec<Device>, String> {
    let mut gaps = Gaps::default();
    let found = devices(reader, &mut gaps);
    match gaps.0.into_iter().next() {
        Some(why) => Err(why),
        None => Ok(found),
    }
}

/// Returns GPUs, network cards, NVMe drives and NVSwitches, in the order of their addresses. One that cannot be read,
/// such as a GPU that fell off the bus, does not hide the others.
fn devices(reader: &Reader<'_>, gaps: &mut Gaps) -> Vec<Device> {
    let mut addresses = gaps.take(reader.names("/sys/bus/pci/devices")).unwrap_or_default();
    addresses.retain(|name| pci::is_address(name));
    addresses.sort_unstable();
    let mut devices = Vec::new();
    for address in addresses {
        if devices.len() == MOST_DEVICES {
            gaps.take::<()>(Err(format!("the PCI bus has more than {MOST_DEVICES} devices of interest")));
            break;
        }
        devices.extend(gaps.take(device(reader, &address)));
    }
    devices
}

/// Returns a device; `None` if it is of no interest.
fn device(reader: &Reader<'_>, address: &str) -> Found<Device> {
    let Some(what) = what(reader, address)? else { return Ok(None) };
    let numa_node = reader.number::<i64>(&pci::file(address, "numa_node"))?;
    let local_cpus =
        reader.parsed(&pci::file(address, "local_cpulist"), |text| text.parse::<CpuList>().ok())?;
    let (root, ports) = pci::place(reader, address)?;
    Ok(Some(Device {
        numa_node: numa_node.and_then(|node| u32::try_from(node).ok()),
        local_cpus,
        root,
        ports,
        what,
        address: address.to_owned(),
    }))
}

/// Returns what a device is; `None` for one that is of no interest.
fn what(reader: &Reader<'_>, address: &str) -> Found<What> {
    let hex = |name: &str| {
        reader
            .parsed(&pci::file(address, name), |text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok())
    };
    let Some(class) = hex("class")? else { return Ok(None) };
    let nvidia = || Ok::<_, String>(hex("vendor")? == Some(NVIDIA));
    // Source: PCI Code and ID Assignment Specification: base class and subclass.
    Ok(match class >> 8 {
        0x0300 | 0x0302 if nvidia()? => Some(What::Gpu(Gpu::default())),
        0x0680 if nvidia()? => Some(What::NvSwitch),
        0x0108 => Some(What::Nvme { names: names(reader, address, "nvme")? }),
        // Ethernet and InfiniBand. A virtual function shares the place of its card.
        0x0200 | 0x0207 if !reader.exists(&pci::file(address, "physfn"))? => {
            let rdma = names(reader, address, "infiniband")?;
            let mut ports = Vec::new();
            for name in rdma {
                ports.extend(network::ports_of(reader, &name)?);
            }
            Some(What::Network(Network { interfaces: names(reader, address, "net")?, rdma: ports }))
        }
        _ => None,
    })
}

/// Returns what the kernel calls a device in a class.
fn names(reader: &Reader<'_>, address: &str, class: &str) -> Result<Vec<String>, String> {
    let mut found = reader.names(&pci::file(address, class))?;
    if found.is_none() {
        // Virtio puts a device of its own between the card and its interface.
        let below = reader.names(&pci::file(address, ""))?.unwrap_or_default();
        if let Some(virtio) = below.iter().find(|name| name.starts_with("virtio")) {
            found = reader.names(&pci::file(address, &format!("{virtio}/{class}")))?;
        }
    }
    let mut names = found.unwrap_or_default();
    names.retain(|name| network::is_name(name));
    names.sort_unstable();
    names.truncate(16);
    Ok(names)
}

fn name_gpus(devices: &mut [Device], system: GpuSystem, gaps: &mut Gaps) {
    if system.state != GpuSystemState::Ok {
        let detail = system.state.detail().unwrap_or("the driver was not asked");
        gaps.0.push(format!("indexes and UUIDs of GPUs are not known: {detail}"));
        return;
    }
    let by_address: BTreeMap<String, _> = system.gpus.into_iter().map(|gpu| (gpu.pci.clone(), gpu)).collect();
    for device in devices {
        let What::Gpu(gpu) = &mut device.what else { continue };
        match by_address.get(&device.address) {
            Some(facts) => {
                *gpu = Gpu {
                    index: Some(facts.index),
                    minor: facts.minor,
                    uuid: Some(facts.uuid.clone()).filter(|uuid| !uuid.is_empty()),
                    model: Some(facts.name.clone()).filter(|name| !name.is_empty()),
                    mig: facts.mig_current,
                };
            }
            None => gaps.0.push(format!("NVML does not know the GPU at {}", device.address)),
        }
    }
}
