//! A node for other programs.

use gpufleet_protocol::{cpus::CpuList, topology::Topology};
use serde::Serialize;

use crate::{
    advice::advice,
    near::{gres, near},
};

/// One node: what it says of itself, and what follows from that.
#[derive(Debug, Serialize)]
pub struct NodeDocument<'a> {
    pub node: &'a str,
    pub topology: &'a Topology,
    pub gpus: Vec<GpuDocument>,
    /// Lines of Slurm's gres.conf.
    pub gres: Vec<String>,
    pub advice: Vec<AdviceDocument>,
}

#[derive(Debug, Serialize)]
pub struct GpuDocument {
    /// NVML's index; null where NVML does not answer.
    pub index: Option<u32>,
    pub address: String,
    /// Null where the firmware does not tell; then `cpus`, `cores` and `numactl` say nothing either.
    pub numa_node: Option<u32>,
    pub cpus: CpuList,
    /// As Slurm numbers them.
    pub slurm_cores: CpuList,
    pub nearest_cards: Vec<CardDocument>,
    pub numactl: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct CardDocument {
    pub name: String,
    /// As `nvidia-smi topo -m` names it: PIX, PXB, PHB, NODE or SYS.
    pub way: &'static str,
}

#[derive(Debug, Serialize)]
pub struct AdviceDocument {
    /// `wrong`, `unknown` or `note`.
    pub weight: &'static str,
    pub what: String,
    pub next: Option<String>,
}

/// Returns the document of a node.
pub fn document<'a>(node: &'a str, topology: &'a Topology) -> NodeDocument<'a> {
    let gpus = near(topology);
    let advice = advice(topology, &gpus).into_iter();
    let advice =
        advice.map(|one| AdviceDocument { weight: one.weight.word(), what: one.what, next: one.next });
    let card = |card: &crate::near::Card| CardDocument { name: card.name.clone(), way: card.way.short() };
    NodeDocument {
        node,
        topology,
        gres: gres(node, &gpus),
        advice: advice.collect(),
        gpus: gpus
            .iter()
            .map(|near| GpuDocument {
                index: near.gpu.index,
                address: near.device.address.clone(),
                numa_node: near.node.map(|node| node.id),
                cpus: near.cpus.clone(),
                slurm_cores: near.cores.clone(),
                nearest_cards: near.cards.iter().map(card).collect(),
                numactl: near.numactl(),
            })
            .collect(),
    }
}
