//! Parameters of `topology_info`, which reads where a node's devices are.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading};
use crate::{
    Disruption,
    operation::{Effect, Needs, Operation, paths, undeclared},
};

/// Reads where GPUs, network cards, NVMe drives, CPUs and memory of the node are: sockets, NUMA nodes, PCI switches.
/// `register` gets it as `topology`; the report of the run draws it. `gpufleet topology` shows the same.
///
/// It reads sysfs and procfs, and asks NVML for the indexes of GPUs. It needs no root and changes nothing. A place that
/// the firmware does not tell is null, which is usual in virtual machines: the kernel says -1 there. Sources: the
/// kernel's `Documentation/ABI/testing/sysfs-bus-pci` and `sysfs-devices-node`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TopologyInfo {}

impl Kind for TopologyInfo {
    const INFO: KindInfo = KindInfo {
        name: "topology_info",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Reads where GPUs, network cards, NVMe drives, CPUs and memory are.",
        example: "topology_info: {}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl Operation for TopologyInfo {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}
