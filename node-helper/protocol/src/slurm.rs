//! What Slurm is told of a node's GPUs: the same on the node and in what the controller draws.

use std::collections::BTreeMap;

use crate::{
    cpus::CpuList,
    topology::{Gpu, Topology, What},
};

/// A GPU as a line of gres.conf has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number in `/dev/nvidia0`.
    pub minor: u32,
    pub kind: Option<String>,
    /// The cores near it, as Slurm numbers them; none if nobody tells.
    pub cores: CpuList,
}

impl Offer {
    /// Returns what a GPU is offered as; `None` if its minor number is not known.
    pub fn of(gpu: &Gpu, cores: CpuList) -> Option<Self> {
        Some(Self { minor: gpu.minor?, kind: gpu.model.as_deref().and_then(kind), cores })
    }
}

/// Returns the GPUs of a node, by their minor numbers; `None` if the number of one is not known.
pub fn offers(topology: &Topology) -> Option<Vec<Offer>> {
    let mut all = Vec::new();
    for device in &topology.devices {
        let What::Gpu(gpu) = &device.what else { continue };
        all.push(Offer::of(gpu, topology.slurm_cores(&topology.cpus_near(device)))?);
    }
    all.sort_by_key(|offer| offer.minor);
    Some(all)
}

/// Returns `h100` of `NVIDIA H100 80GB HBM3`.
pub fn kind(model: &str) -> Option<String> {
    let word = model
        .split([' ', '-', '_'])
        .find(|word| word.bytes().any(|byte| byte.is_ascii_digit()))
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric()))?;
    Some(word.to_lowercase())
}

/// Returns lines of gres.conf, without the node: GPUs of the same type with the same cores share one.
pub fn lines<'a>(offers: impl IntoIterator<Item = &'a Offer>) -> Vec<String> {
    let mut groups: BTreeMap<(Option<&str>, String), Vec<u32>> = BTreeMap::new();
    for offer in offers {
        groups.entry((offer.kind.as_deref(), offer.cores.to_string())).or_default().push(offer.minor);
    }
    let mut lines: Vec<(u32, String)> = groups
        .into_iter()
        .map(|((kind, cores), minors)| {
            let first = minors.iter().min().copied().unwrap_or_default();
            let minors: CpuList = minors.into_iter().collect();
            let numbers = match minors.to_string() {
                list if list.contains(['-', ',']) => format!("[{list}]"),
                one => one,
            };
            let kind = kind.map(|kind| format!(" Type={kind}")).unwrap_or_default();
            let cores = if cores.is_empty() { cores } else { format!(" Cores={cores}") };
            (first, format!("Name=gpu{kind} File=/dev/nvidia{numbers}{cores}"))
        })
        .collect();
    lines.sort_unstable();
    lines.into_iter().map(|(_, line)| line).collect()
}
