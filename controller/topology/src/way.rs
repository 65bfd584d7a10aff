//! How far two devices are from each other.

use gpufleet_protocol::topology::Device;

/// What data between two devices crosses, the nearest first. The names of `nvidia-smi topo -m` are in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// At most one PCIe switch (PIX).
    OneSwitch,
    /// Several PCIe switches, but no host bridge (PXB).
    Switches,
    /// A PCIe host bridge (PHB).
    HostBridge,
    /// Host bridges of one NUMA node (NODE).
    Node,
    /// The link between NUMA nodes (SYS).
    System,
    /// The firmware does not tell enough.
    Unknown,
}

impl Way {
    /// Returns the way between two devices.
    pub fn between(one: &Device, other: &Device) -> Self {
        let roots = one.root.as_deref().zip(other.root.as_deref());
        let Some((root, other_root)) = roots else { return Self::Unknown };
        if root == other_root {
            let common = one.ports.iter().zip(&other.ports).take_while(|(a, b)| a == b).count();
            // Below the last common port there is one port of its switch for each device.
            let below = (one.ports.len() - common).max(other.ports.len() - common);
            return match (common, below) {
                (0, _) => Self::HostBridge,
                (_, 0 | 1) => Self::OneSwitch,
                _ => Self::Switches,
            };
        }
        match (one.numa_node, other.numa_node) {
            (Some(node), Some(other)) if node == other => Self::Node,
            (Some(_), Some(_)) => Self::System,
            _ => Self::Unknown,
        }
    }

    /// Returns the word of `nvidia-smi topo -m`.
    pub const fn short(self) -> &'static str {
        match self {
            Self::OneSwitch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
            Self::Unknown => "unknown",
        }
    }

    pub const fn words(self) -> &'static str {
        match self {
            Self::OneSwitch => "same switch",
            Self::Switches => "over switches",
            Self::HostBridge => "over the host bridge",
            Self::Node => "same NUMA node",
            Self::System => "another NUMA node",
            Self::Unknown => "unknown",
        }
    }

    /// Whether data stays off the processors.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::OneSwitch | Self::Switches)
    }
}
