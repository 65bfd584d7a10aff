//! Parameters of the GPU kinds, and which GPUs they are for.

mod accounting;
mod beside;
mod clocks;
mod compute_mode;
mod confidential;
mod drain_state;
mod ecc;
mod hardware;
mod mig;
mod mps;
mod persistence;
mod power;
mod reset;

use serde::{Deserialize, Serialize};

pub use accounting::{AccountingMode, GpuAccounting};
pub use beside::{Beside, BesideKind};
pub use clocks::{ClockRange, GpuClocks};
pub use compute_mode::{ComputeModeName, GpuComputeMode};
pub use confidential::{ConfidentialMode, GpuConfidentialCompute};
pub use drain_state::{DrainStateName, GpuDrainState};
pub use ecc::{EccMode, GpuEcc};
pub use hardware::{Belief, GpuKind, Hardware, Lasts};
pub use mig::{
    GpuMig, MigConfigFile, MigFilter, MigLayout, MigMode, MigPlacement, MigSpec, MigStrategy, PciId,
};
pub use mps::{GpuMps, MpsScope, MpsState};
pub use persistence::{GpuPersistence, PersistenceMode};
pub use power::{GpuPower, PowerScope};
pub use reset::{GpuReset, ResetWhen};

/// The GPUs that a task applies to: all if empty, otherwise the union of the entries.
pub type GpuSelector = Vec<GpuSelectorItem>;

/// Whether a newer task applies to the same GPUs, or to all.
fn covers(newer: &GpuSelector, older: &GpuSelector) -> bool {
    newer.is_empty() || newer == older
}

/// One entry of `gpus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "Scalar", into = "Scalar")]
pub enum GpuSelectorItem {
    /// Index in PCI order.
    Index(u32),
    /// UUID (`GPU-…`), PCI address (`0000:5d:00.0`) or a part of the product name (`H100`).
    Text(String),
}

impl GpuSelectorItem {
    /// Whether it means the GPU with this index, UUID, PCI address (as sysfs writes it) and product name.
    pub fn means(&self, index: u32, uuid: &str, pci: &str, name: &str) -> bool {
        match self {
            Self::Index(wanted) => index == *wanted,
            Self::Text(text) => {
                uuid.eq_ignore_ascii_case(text)
                    || normal_pci(text).is_some_and(|wanted| wanted == pci)
                    || name.to_ascii_lowercase().contains(&text.to_ascii_lowercase())
            }
        }
    }
}

/// Normalises a PCI address as NVML (`00000000:5D:00.0`), sysfs or people (`5d:00.0`) write it.
fn normal_pci(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (rest, function) = lower.rsplit_once('.')?;
    let parts: Vec<&str> = rest.split(':').collect();
    let (domain, bus, device) = match parts.as_slice() {
        [domain, bus, device] => (u32::from_str_radix(domain, 16).ok()?, *bus, *device),
        [bus, device] => (0, *bus, *device),
        _ => return None,
    };
    let (bus, device) = (u32::from_str_radix(bus, 16).ok()?, u32::from_str_radix(device, 16).ok()?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

/// A number or text, the way both are written in YAML.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "an index, a UUID, a PCI address or a part of a product name")]
enum Scalar {
    Number(u32),
    Text(String),
}

impl From<Scalar> for GpuSelectorItem {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Number(index) => Self::Index(index),
            Scalar::Text(text) => text.trim().parse().map_or(Self::Text(text), Self::Index),
        }
    }
}

impl From<GpuSelectorItem> for Scalar {
    fn from(item: GpuSelectorItem) -> Self {
        match item {
            GpuSelectorItem::Index(index) => Self::Number(index),
            GpuSelectorItem::Text(text) => Self::Text(text),
        }
    }
}
