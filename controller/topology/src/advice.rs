//! What of a node's places is wrong, or nobody knows.

use std::collections::BTreeSet;

use gpufleet_protocol::{
    cpus::CpuList,
    topology::{Topology, What},
};

use crate::{
    near::{Near, card_name, has_rdma},
    way::Way,
};

/// How much something matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// It costs speed, and can be changed.
    Wrong,
    /// Nobody can tell whether it is right.
    Unknown,
    /// Good to know.
    Note,
}

impl Weight {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Unknown => "unknown",
            Self::Note => "note",
        }
    }
}

/// One thing that a person who knows the machine would say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    pub weight: Weight,
    pub what: String,
    /// What to do about it.
    pub next: Option<String>,
}

/// Returns what there is to say, what matters most first.
pub fn advice(topology: &Topology, gpus: &[Near<'_>]) -> Vec<Advice> {
    let mut said = Said::default();
    for error in &topology.errors {
        said.unknown(format!("not read: {error}"), None);
    }
    unknown_places(topology, gpus, &mut said);
    cards(topology, gpus, &mut said);
    processors(topology, gpus, &mut said);
    said.0.sort_by_key(|advice| advice.weight);
    said.0
}

#[derive(Default)]
struct Said(Vec<Advice>);

impl Said {
    fn wrong(&mut self, what: String, next: &str) {
        self.0.push(Advice { weight: Weight::Wrong, what, next: Some(next.to_owned()) });
    }

    fn unknown(&mut self, what: String, next: Option<&str>) {
        self.0.push(Advice { weight: Weight::Unknown, what, next: next.map(str::to_owned) });
    }

    fn note(&mut self, what: String) {
        self.0.push(Advice { weight: Weight::Note, what, next: None });
    }
}

/// Names GPUs in short: `GPU 0-3,5`.
fn names<'a>(gpus: impl Iterator<Item = &'a Near<'a>>) -> Option<String> {
    let (mut indexes, mut others) = (Vec::new(), Vec::new());
    for near in gpus {
        match near.gpu.index {
            Some(index) => indexes.push(index),
            None => others.push(near.device.address.clone()),
        }
    }
    let indexes: CpuList = indexes.into_iter().collect();
    let list = (!indexes.is_empty()).then(|| indexes.to_string()).into_iter().chain(others);
    let text = list.collect::<Vec<_>>().join(", ");
    (!text.is_empty()).then(|| format!("GPU {text}"))
}

fn unknown_places(topology: &Topology, gpus: &[Near<'_>], said: &mut Said) {
    let Some(lost) = names(gpus.iter().filter(|near| near.node.is_none())) else { return };
    if topology.numa.is_empty() {
        said.unknown(
            format!("the kernel tells no NUMA nodes, so that nobody knows what is near {lost}"),
            None,
        );
        return;
    }
    let what = format!("the firmware does not tell the NUMA node of {lost}: the kernel says -1");
    let next = match &topology.virtualization {
        Some(name) => format!(
            "{name}: the host has to give the guest its NUMA nodes and put each device on one (vNUMA); a guess is no better than none"
        ),
        None => "look for the setting of NUMA or of PCIe affinity in the firmware, and for an update of it"
            .to_owned(),
    };
    said.unknown(what, Some(&next));
}

fn cards(topology: &Topology, gpus: &[Near<'_>], said: &mut Said) {
    if !topology.devices.iter().any(has_rdma) {
        return;
    }
    if let Some(far) = names(gpus.iter().filter(|near| near.cards.iter().any(|card| card.way == Way::System)))
    {
        said.wrong(
            format!("{far}: no RDMA card is on the same NUMA node, so that all its traffic crosses the processors' link"),
            "move a card to a slot of that socket, or keep such jobs on the GPUs that have one",
        );
    }
    let is_direct = |near: &&Near<'_>| near.cards.iter().any(|card| card.way.is_direct());
    let told = |near: &&Near<'_>| !near.cards.is_empty();
    let (direct, other): (Vec<_>, Vec<_>) = gpus.iter().filter(told).partition(is_direct);
    let near_only = other.into_iter().filter(|near| near.cards.iter().all(|card| card.way != Way::System));
    if let (false, Some(without)) = (direct.is_empty(), names(near_only)) {
        said.wrong(
            format!("{without}: no RDMA card is behind the same PCIe switch, as it is for the other GPUs"),
            "look whether a card is missing or in another slot than on its sisters",
        );
    }
    let with_gpu: BTreeSet<u32> = gpus.iter().filter_map(|near| Some(near.node?.id)).collect();
    let idle: Vec<String> = topology
        .devices
        .iter()
        .filter(|device| has_rdma(device))
        .filter(|device| topology.node_of(device).is_some_and(|node| !with_gpu.contains(&node.id)))
        .filter_map(card_name)
        .collect();
    if !idle.is_empty() && !with_gpu.is_empty() {
        said.note(format!("{} on a NUMA node without GPUs", list_are(&idle)));
    }
}

fn list_are(names: &[String]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

fn processors(topology: &Topology, gpus: &[Near<'_>], said: &mut Said) {
    let with_cpus: Vec<_> = topology.cpu_nodes().collect();
    for node in &with_cpus {
        if node.memory_mib == Some(0) {
            said.wrong(
                format!("NUMA node {} has CPUs and no memory", node.id),
                "look for missing or failed memory modules of that socket",
            );
        }
    }
    let bound = gpus.iter().filter(|near| near.node.is_some() && near.cpus.is_empty());
    if let (Some(names), Some(usable)) = (names(bound), &topology.usable) {
        said.wrong(
            format!("{names}: services may use the CPUs {usable} only, and none of them is near"),
            "look at CPUAffinity in /etc/systemd/system.conf, and at isolcpus",
        );
    }
    if !topology.isolated.is_empty() {
        said.note(format!("the scheduler leaves the CPUs {} alone (isolcpus)", topology.isolated));
    }
    if with_cpus.len() > topology.sockets.len() && !topology.sockets.is_empty() {
        said.note(format!(
            "{} NUMA nodes in {} sockets: the firmware splits sockets (SNC or NPS), so near means a part of one",
            with_cpus.len(),
            topology.sockets.len()
        ));
    }
    let nodes: BTreeSet<u32> = gpus.iter().filter_map(|near| Some(near.node?.id)).collect();
    if with_cpus.len() > 1
        && gpus.len() > 1
        && nodes.len() == 1
        && gpus.iter().all(|near| near.node.is_some())
    {
        said.note("all GPUs are on one NUMA node; work on the others is far from them".to_owned());
    }
    if let Some(names) = names(gpus.iter().filter(|near| near.gpu.mig == Some(true))) {
        said.note(format!("{names}: MIG is on, and only `AutoDetect=nvml` of Slurm knows the instances"));
    }
    let switches = topology.devices.iter().filter(|device| matches!(device.what, What::NvSwitch)).count();
    if switches > 0 {
        said.note(format!("GPUs reach each other over {switches} NVSwitches, whatever their PCIe place"));
    }
}
