//! A node's devices in the order in which they are drawn: NUMA nodes, host bridges and switches, devices.

use std::collections::BTreeMap;

use gpufleet_language::visible::visible;
use gpufleet_protocol::{
    cpus::CpuList,
    topology::{Device, NumaNode, RdmaPort, Topology, What},
};

use crate::near::card_name;

/// A NUMA node with its CPUs, or what has no known place.
pub(crate) struct Section<'a> {
    pub node: Option<&'a NumaNode>,
    pub groups: Vec<Group<'a>>,
}

/// Devices behind one switch, or at one host bridge.
pub(crate) struct Group<'a> {
    pub label: String,
    pub devices: Vec<&'a Device>,
}

/// How a device is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Gpu,
    Card,
    Drive,
    Switch,
}

pub(crate) struct Drawn {
    pub sort: Sort,
    pub name: String,
    pub address: String,
    pub detail: String,
}

/// Returns the sections: NUMA nodes in their order, then what has no known place.
pub(crate) fn sections(topology: &Topology) -> Vec<Section<'_>> {
    let mut nodes: Vec<Option<&NumaNode>> = topology.cpu_nodes().map(Some).collect();
    nodes.push(None);
    let section = |node: Option<&'_ NumaNode>| {
        let id = node.map(|node| node.id);
        let here = |device: &&Device| topology.node_of(device).map(|node| node.id) == id;
        groups(topology.devices.iter().filter(here))
    };
    let all = nodes.into_iter().map(|node| Section { groups: section(node), node });
    all.filter(|section| section.node.is_some() || !section.groups.is_empty()).collect()
}

fn groups<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<Group<'a>> {
    let mut by_place: BTreeMap<(Option<&str>, Option<&str>), Vec<&Device>> = BTreeMap::new();
    for device in devices {
        // The last port is the device's own; a port above it belongs to a switch.
        let switch = device.ports.iter().rev().nth(1);
        by_place.entry((device.root.as_deref(), switch.map(String::as_str))).or_default().push(device);
    }
    let label = |(root, switch): (Option<&str>, Option<&str>)| match (root, switch) {
        (Some(root), Some(switch)) => format!("{root}, switch {switch}"),
        (Some(root), None) => root.to_owned(),
        (None, _) => "place on the bus unknown".to_owned(),
    };
    let group = |(place, mut devices): (_, Vec<&'a Device>)| {
        // Stable: what people look for first, then the order of the bus.
        devices.sort_by_key(|device| !matches!(device.what, What::Gpu(_)));
        Group { label: visible(&label(place)).into(), devices }
    };
    by_place.into_iter().map(group).collect()
}

/// Returns what a line or a box says of a device.
pub(crate) fn drawn(device: &Device) -> Drawn {
    let (sort, name, detail) = match &device.what {
        What::Gpu(gpu) => {
            let name = gpu.index.map_or_else(|| "GPU ?".to_owned(), |index| format!("GPU {index}"));
            (Sort::Gpu, name, gpu.model.clone().unwrap_or_default())
        }
        What::Network(network) => {
            let name = card_name(device).unwrap_or_default();
            let mut parts: Vec<String> = network.rdma.iter().map(port).collect();
            parts.dedup();
            parts.extend(network.interfaces.iter().filter(|interface| **interface != name).cloned());
            (Sort::Card, name, parts.join(", "))
        }
        What::Nvme { names } if names.is_empty() => (Sort::Drive, "NVMe".to_owned(), String::new()),
        What::Nvme { names } => (Sort::Drive, names.join(" "), String::new()),
        What::NvSwitch => (Sort::Switch, "NVSwitch".to_owned(), String::new()),
    };
    let shown = |text: &str| visible(text).into_owned();
    Drawn { sort, name: shown(&name), address: shown(&device.address), detail: shown(&detail) }
}

/// `InfiniBand 400 Gbit/s`, with the state where it is not up.
fn port(port: &RdmaPort) -> String {
    let mut words = Vec::new();
    words.extend(port.layer.clone());
    words.extend(port.rate_gbps.map(|rate| format!("{rate} Gbit/s")));
    words.extend(port.state.clone().filter(|state| state != "ACTIVE"));
    words.join(" ")
}

/// Returns `NUMA 0`, its socket, CPUs and memory.
pub(crate) fn heading(topology: &Topology, node: Option<&NumaNode>) -> (String, String) {
    let Some(node) = node else {
        return ("place unknown".to_owned(), "the firmware does not tell".to_owned());
    };
    let is_on =
        |cores: &[CpuList]| cores.iter().any(|core| core.first().is_some_and(|cpu| node.cpus.contains(cpu)));
    let sockets: Vec<String> = topology
        .sockets
        .iter()
        .filter(|socket| is_on(&socket.cores))
        .map(|socket| format!("socket {}", socket.id))
        .collect();
    let memory = node.memory_mib.map_or_else(|| "memory unknown".to_owned(), memory);
    let mut parts = sockets;
    parts.push(format!("CPUs {}", node.cpus));
    parts.push(memory);
    (format!("NUMA {}", node.id), parts.join(" · "))
}

pub(crate) fn memory(mib: u64) -> String {
    if mib >= 1024 { format!("{} GiB", (mib + 512) / 1024) } else { format!("{mib} MiB") }
}

/// Returns what a node is made of, in one line.
pub(crate) fn summary(topology: &Topology) -> String {
    let count = |what: fn(&What) -> bool| topology.devices.iter().filter(|device| what(&device.what)).count();
    let cores: usize = topology.sockets.iter().map(|socket| socket.cores.len()).sum();
    let nodes = topology.cpu_nodes().count();
    let parts = [
        (topology.sockets.len(), "socket", "sockets"),
        (cores, "core", "cores"),
        (topology.online.len(), "CPU", "CPUs"),
        (nodes, "NUMA node", "NUMA nodes"),
        (count(|what| matches!(what, What::Gpu(_))), "GPU", "GPUs"),
        (count(|what| matches!(what, What::Network(_))), "network card", "network cards"),
        (count(|what| matches!(what, What::Nvme { .. })), "NVMe drive", "NVMe drives"),
    ];
    let words = parts.into_iter().filter(|(count, ..)| *count > 0);
    let words = words.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }));
    let mut words: Vec<String> = words.collect();
    words.extend(topology.virtualization.as_deref().map(|name| format!("under {}", visible(name))));
    words.join(" · ")
}

/// Returns a sentence about memory without CPUs, such as that of GPUs on Grace.
pub(crate) fn memory_only(topology: &Topology) -> Option<String> {
    let nodes: Vec<&NumaNode> = topology.numa.iter().filter(|node| node.cpus.is_empty()).collect();
    if nodes.is_empty() {
        return None;
    }
    let ids: CpuList = nodes.iter().map(|node| node.id).collect();
    let sum = nodes.iter().filter_map(|node| node.memory_mib).sum();
    Some(format!("NUMA {ids}: memory without CPUs, {} together, as GPUs of Grace have it", memory(sum)))
}
