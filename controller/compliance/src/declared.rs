//! What can be declared of a node, for checks to compare with: `declared.NAME` in rules.

use crate::vocabulary::Kind;

/// A value that a baseline may declare.
#[derive(Debug)]
pub struct Declared {
    pub name: &'static str,
    pub kind: Kind,
    /// The unit, or what the words or numbers are; empty where nothing is to be said.
    pub unit: &'static str,
    /// One sentence.
    pub meaning: &'static str,
}

const fn entry(name: &'static str, kind: Kind, unit: &'static str, meaning: &'static str) -> Declared {
    Declared { name, kind, unit, meaning }
}

use Kind::{Bool, Flag, List, Number, Text};

/// Every value that can be declared, by name.
pub static DECLARED: &[Declared] = &[
    entry("accounting", Flag, "", "Whether the driver keeps accounts of processes."),
    entry("cc", Flag, "", "Whether confidential computing is on."),
    entry("cc_devtools", Flag, "", "Whether confidential computing may run in its developer mode."),
    entry("clique", Number, "", "The clique of the NVLink fabric that the GPUs belong to."),
    entry("clock_mhz", Number, "MHz", "The SM clock that GPUs are locked to."),
    entry("cluster_uuid", Text, "UUID", "The cluster of the NVLink fabric that the GPUs belong to."),
    entry(
        "cmdline",
        List,
        "`iommu=pt`",
        "The words that the kernel's command line has, in any order; none with a password or a key.",
    ),
    entry(
        "compute_mode",
        Number,
        "0 default, 2 prohibited, 3 exclusive process",
        "Who may open a context on a GPU.",
    ),
    entry("cpus", Number, "", "How many logical processors are online."),
    entry("cuda", Number, "major * 1,000 + minor * 10: 12080", "The CUDA version that jobs need."),
    entry("dcgm", Bool, "", "Whether the DCGM host engine runs on the node."),
    entry("driver_version", Text, "`580`, `580.159.04`, `>=570, <600`", "The version of the NVIDIA driver."),
    entry("ecc", Flag, "", "Whether ECC is on."),
    entry(
        "eth",
        List,
        "`eno1:up`, `eno1:speed=25000` (Mb/s), `eno1:mtu=9000`",
        "What holds for interfaces of Ethernet, as the signal `eth_links` says it.",
    ),
    entry("excluded", Number, "", "How many GPUs are excluded from the driver on purpose."),
    entry("fabric", Bool, "", "Whether the GPUs belong to an NVLink fabric with switches."),
    entry("gpu_count", Number, "", "How many GPUs the node has."),
    entry("gpu_uuids", List, "UUIDs", "The boards that belong into the node."),
    entry("gpudirect", Bool, "", "Whether network cards reach the memory of GPUs by themselves."),
    entry("gsp", Flag, "", "Whether the GPUs run the GSP firmware."),
    entry("hugepages", List, "as the signal `hugepages_total`", "The huge pages that are reserved, by size."),
    entry(
        "ib_layer",
        Text,
        "InfiniBand, Ethernet",
        "The link layer of the RDMA ports that `ib_ports` counts.",
    ),
    entry(
        "ib_ports",
        Number,
        "",
        "How many RDMA ports are up, at `ib_rate` and on `ib_layer` where these are declared.",
    ),
    entry("ib_rate", Number, "Gb/s", "The least rate of the RDMA ports that `ib_ports` counts."),
    entry(
        "image_roots",
        List,
        "folders behind links",
        "The folders that container runtimes keep images in, on disks of their own.",
    ),
    entry("imex", Bool, "", "Whether the node belongs to an IMEX domain."),
    entry("kernel", Text, "`6.8`, `>=6.8.0-45`", "The release of the running kernel."),
    entry(
        "mem_clock_mhz",
        Number,
        "MHz",
        "The memory clock that GPUs are locked to; `nvidia-smi -q` shows a deferred lock as `Deferred Clocks`.",
    ),
    entry(
        "memlock",
        Text,
        "unlimited",
        "How much memory slurmd and containerd may lock, and with them jobs.",
    ),
    entry("memory_gib", Number, "GiB", "How much memory the host has."),
    entry("mig", Flag, "", "Whether MIG is on."),
    entry("mig_layout", List, "as the signal `mig_layout`", "The MIG instances of each GPU."),
    entry("module_kind", Text, "open, proprietary", "Which flavour of the kernel module runs."),
    entry("mps", Bool, "", "Whether the MPS daemon runs."),
    entry("nic_fw", List, "", "The versions of the network cards' firmware that are right."),
    entry("numa_balancing", Number, "0, 1", "Whether the kernel moves pages between NUMA nodes."),
    entry("nvlink_mbps", Number, "MB/s", "The speed of each NVLink."),
    entry("nvlinks", Number, "", "How many NVLinks of each GPU are up."),
    entry("nvme", Number, "", "How many NVMe controllers the node has."),
    entry("persistence", Text, "daemon, legacy", "What keeps the driver loaded."),
    entry("power_w", Number, "W", "The power limit of each GPU."),
    entry("products", Number, "", "How many different products of GPU are in the node."),
    entry("profile", Text, "benchmark", "What the node is used for, where checks depend on it."),
    entry("runtime", Text, "docker, containerd, crio", "The container runtime that the node uses."),
    entry("swap", Bool, "", "Whether the node swaps."),
    entry("swappiness", Number, "0 to 200", "The highest `vm.swappiness`."),
    entry("thp", List, "always, madvise, never", "The settings of transparent huge pages that are right."),
    entry("vbios", List, "", "The versions of the VBIOS that are right."),
];

/// Returns what can be declared under a name.
pub fn lookup(name: &str) -> Option<&'static Declared> {
    DECLARED.iter().find(|known| known.name == name)
}

/// Returns the names of everything that can be declared, for suggestions.
pub fn names() -> impl Iterator<Item = &'static str> {
    DECLARED.iter().map(|known| known.name)
}
