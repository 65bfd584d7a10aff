//! What belongs to each GPU: CPUs, cores as Slurm counts them, network cards.

use gpufleet_protocol::{
    cpus::CpuList,
    slurm::{self, Offer},
    topology::{Device, Gpu, NumaNode, Topology, What},
};

use crate::way::Way;

/// A network card near a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    pub name: String,
    pub way: Way,
}

/// A GPU and what is near it.
#[derive(Clone, Debug, PartialEq)]
pub struct Near<'a> {
    pub device: &'a Device,
    pub gpu: &'a Gpu,
    /// The NUMA node with the CPUs near the GPU; `None` if nobody tells.
    pub node: Option<&'a NumaNode>,
    /// The CPUs of it that services may use.
    pub cpus: CpuList,
    /// The cores of these CPUs, as Slurm numbers them.
    pub cores: CpuList,
    /// The nearest network cards, all as near as each other; those for RDMA where there are any.
    pub cards: Vec<Card>,
}

impl Near<'_> {
    /// Returns `GPU 3`, or the address where NVML gives no index.
    pub fn label(&self) -> String {
        match self.gpu.index {
            Some(index) => format!("GPU {index}"),
            None => format!("GPU {}", self.device.address),
        }
    }

    /// Returns the command that keeps a process near the GPU.
    pub fn numactl(&self) -> Option<String> {
        let node = self.node?;
        if self.cpus.is_empty() {
            return None;
        }
        let id = node.id;
        let memory = if node.memory_mib == Some(0) { String::new() } else { format!(" --membind={id}") };
        // Where services may not use all CPUs of the node, numactl would fail for the rest.
        if node.cpus == self.cpus {
            Some(format!("numactl --cpunodebind={id}{memory}"))
        } else {
            Some(format!("numactl --physcpubind={}{memory}", self.cpus))
        }
    }
}

/// Returns the GPUs by NVML's index, with what is near them.
pub fn near(topology: &Topology) -> Vec<Near<'_>> {
    let mut all: Vec<Near<'_>> = topology
        .devices
        .iter()
        .filter_map(|device| {
            let What::Gpu(gpu) = &device.what else { return None };
            let (node, cpus) = (topology.node_of(device), topology.cpus_near(device));
            let cores = topology.slurm_cores(&cpus);
            Some(Near { device, gpu, node, cores, cards: cards(topology, device), cpus })
        })
        .collect();
    all.sort_by_key(|near| (near.gpu.index.unwrap_or(u32::MAX), near.device.address.clone()));
    all
}

/// Returns the names of a network card: of its RDMA devices, or of its interfaces.
pub(crate) fn card_name(device: &Device) -> Option<String> {
    let What::Network(network) = &device.what else { return None };
    let mut names: Vec<&str> = network.rdma.iter().map(|port| port.device.as_str()).collect();
    names.dedup();
    if names.is_empty() {
        names = network.interfaces.iter().map(String::as_str).collect();
    }
    Some(if names.is_empty() { device.address.clone() } else { names.join(" ") })
}

pub(crate) fn has_rdma(device: &Device) -> bool {
    matches!(&device.what, What::Network(network) if !network.rdma.is_empty())
}

fn cards(topology: &Topology, gpu: &Device) -> Vec<Card> {
    let any_rdma = topology.devices.iter().any(has_rdma);
    // A hypervisor's host bridge says nothing about the real one.
    let told = |way: Way| match way {
        Way::HostBridge if topology.virtualization.is_some() => Way::Unknown,
        way => way,
    };
    let cards: Vec<Card> = topology
        .devices
        .iter()
        .filter(|device| !any_rdma || has_rdma(device))
        .filter_map(|device| Some(Card { name: card_name(device)?, way: told(Way::between(gpu, device)) }))
        .collect();
    let nearest = cards.iter().map(|card| card.way).min();
    cards.into_iter().filter(|card| Some(card.way) == nearest && card.way != Way::Unknown).collect()
}

/// Returns the lines of Slurm's gres.conf for the GPUs of a node, with their cores; GPUs with the same cores share one.
/// A GPU with MIG has none, because only AutoDetect knows its instances, nor has one whose minor number is not known.
pub fn gres(host: &str, gpus: &[Near<'_>]) -> Vec<String> {
    let whole = gpus.iter().filter(|near| near.gpu.mig != Some(true));
    let offers: Vec<Offer> = whole.filter_map(|near| Offer::of(near.gpu, near.cores.clone())).collect();
    slurm::lines(&offers).into_iter().map(|line| format!("NodeName={host} {line}")).collect()
}
