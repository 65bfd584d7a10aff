//! Where CPUs, memory and devices of a node are.
//!
//! Only what the node says of itself; what follows from it is judged by who asks.

use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;

/// One reading of a node. What could not be read is left out, with a sentence in `errors`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Topology {
    /// The hypervisor or container; none on bare metal. A hypervisor decides what of the hardware's places is told.
    pub virtualization: Option<String>,
    /// CPUs that are switched on.
    pub online: CpuList,
    /// CPUs that services may use: those of process 1.
    pub usable: Option<CpuList>,
    /// CPUs that the scheduler leaves alone (`isolcpus=`).
    pub isolated: CpuList,
    pub sockets: Vec<Socket>,
    pub numa: Vec<NumaNode>,
    /// In the order of their PCI addresses.
    pub devices: Vec<Device>,
    pub errors: Vec<String>,
}

impl Topology {
    /// Returns it without what differs between machines of one kind: the UUIDs of GPUs.
    #[must_use]
    pub fn of_the_kind(mut self) -> Self {
        for device in &mut self.devices {
            if let What::Gpu(gpu) = &mut device.what {
                gpu.uuid = None;
            }
        }
        self
    }

    /// NUMA nodes that have CPUs; others are memory of devices.
    pub fn cpu_nodes(&self) -> impl Iterator<Item = &NumaNode> {
        self.numa.iter().filter(|node| !node.cpus.is_empty())
    }

    /// Returns the NUMA node of a device that has CPUs: where a device is on a node without, the nearest one by the
    /// firmware. `None` if nobody tells.
    pub fn node_of(&self, device: &Device) -> Option<&NumaNode> {
        let mut with_cpus = self.cpu_nodes();
        // With one node there is nothing to tell, and kernels say -1.
        if let (Some(only), None) = (with_cpus.next(), with_cpus.next()) {
            return Some(only);
        }
        let node = self.numa.iter().find(|node| Some(node.id) == device.numa_node)?;
        if !node.cpus.is_empty() {
            return Some(node);
        }
        let distance = |to: &NumaNode| {
            let at = self.numa.iter().position(|node| node.id == to.id)?;
            node.distances.get(at).copied()
        };
        self.cpu_nodes().filter(|to| distance(to).is_some()).min_by_key(|to| distance(to))
    }

    /// Returns the CPUs near a device that services may use; none if nobody tells.
    pub fn cpus_near(&self, device: &Device) -> CpuList {
        let usable = self.usable.as_ref().unwrap_or(&self.online);
        self.node_of(device).map(|node| node.cpus.common(usable)).unwrap_or_default()
    }

    /// Returns the cores of these CPUs with the numbers that Slurm gives them: through the sockets, in the order of the
    /// CPUs.
    ///
    /// Source: gres.conf(5), `Cores`: an abstract index, which counts cores and not threads.
    pub fn slurm_cores(&self, cpus: &CpuList) -> CpuList {
        let cores = (0..).zip(self.sockets.iter().flat_map(|socket| &socket.cores));
        cores.filter(|(_, core)| core.is_subset(cpus)).map(|(number, _)| number).collect()
    }
}

/// A processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// As the firmware numbers it.
    pub id: u32,
    /// The hardware threads of each core, in the order of their first ones.
    pub cores: Vec<CpuList>,
}

/// A NUMA node. One without CPUs is memory of a device, such as that of a GPU on Grace Hopper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaNode {
    pub id: u32,
    pub cpus: CpuList,
    pub memory_mib: Option<u64>,
    /// Distances to all nodes in their order, by the firmware; 10 is the node itself.
    pub distances: Vec<u32>,
}

/// A PCI device that data of GPUs comes from or goes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// PCI address as sysfs writes it, such as `0000:5d:00.0`.
    pub address: String,
    pub what: What,
    /// `None`: the firmware does not tell, which is usual in virtual machines.
    pub numa_node: Option<u32>,
    /// CPUs that are near. With an unknown node these are all CPUs, and say nothing.
    pub local_cpus: Option<CpuList>,
    /// The host bridge, such as `pci0000:5d`.
    pub root: Option<String>,
    /// PCI ports between the host bridge and the device, that of the host bridge first.
    #[serde(default)]
    pub ports: Vec<String>,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum What {
    Gpu(Gpu),
    Network(Network),
    Nvme {
        /// Controllers, such as `nvme0`.
        names: Vec<String>,
    },
    NvSwitch,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// NVML's index, where NVML answers.
    pub index: Option<u32>,
    /// The number in `/dev/nvidia0`.
    pub minor: Option<u32>,
    pub uuid: Option<String>,
    pub model: Option<String>,
    /// Whether MIG is on; then programs get instances, and not the GPU.
    pub mig: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Such as `eth0`.
    pub interfaces: Vec<String>,
    /// RDMA devices, such as `mlx5_0`.
    pub rdma: Vec<RdmaPort>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RdmaPort {
    pub device: String,
    pub port: u32,
    /// Such as `ACTIVE`.
    pub state: Option<String>,
    /// In Gbit/s.
    pub rate_gbps: Option<f64>,
    /// `InfiniBand` or `Ethernet`.
    pub layer: Option<String>,
}
