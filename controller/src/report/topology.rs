//! Where the devices of a node are, as the page draws it.

use gpufleet_protocol::topology::Topology;
use gpufleet_topology::{Drawing, advice, near};
use serde::Serialize;

use crate::event::TaskReport;

/// The name of the kind, and of its data.
const KIND: &str = "topology_info";
const DATA: &str = "topology";
/// More devices, processors and NUMA nodes than a helper of ours tells.
const MOST: usize = 1024;
const MOST_CORES: usize = 8192;

/// Returns what a `topology_info` of this node read.
pub(super) fn of(report: &TaskReport) -> Option<Topology> {
    if report.kind != KIND || report.delegated_to.is_some() {
        return None;
    }
    let topology: Topology = serde_json::from_value(report.data.get(DATA)?.clone()).ok()?;
    let cores: usize = topology.sockets.iter().map(|socket| socket.cores.len()).sum();
    let most = topology.devices.len().max(topology.numa.len()).max(topology.sockets.len());
    if most > MOST || cores > MOST_CORES || topology.errors.len() > MOST {
        return None;
    }
    // Nodes that are alike share a picture.
    Some(topology.of_the_kind())
}

/// A picture with what is to be said of it.
#[derive(Debug, Serialize)]
pub(super) struct Places {
    drawing: Drawing,
    /// `wrong`, `unknown` or `note`; what; what to do about it.
    advice: Vec<(&'static str, String, Option<String>)>,
    /// The command that keeps a process near each GPU.
    bindings: Vec<(String, String)>,
}

impl Places {
    pub(super) fn of(topology: &Topology) -> Self {
        let gpus = near(topology);
        Self {
            drawing: Drawing::of("", topology),
            advice: advice(topology, &gpus)
                .into_iter()
                .map(|one| (one.weight.word(), one.what, one.next))
                .collect(),
            bindings: gpus.iter().filter_map(|near| Some((near.label(), near.numactl()?))).collect(),
        }
    }
}
