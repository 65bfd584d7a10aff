//! Files of NVIDIA's mig-parted: named configurations, each a list of specs for some of a node's GPUs.
//!
//! Owns the format (version v1), also inside a ConfigMap of Kubernetes. Refuses what mig-parted takes without meaning it: a
//! filter that is no device id matches nothing there, silently. Source: the README and examples of NVIDIA/mig-parted 0.15.

mod read;
#[cfg(test)]
mod tests;

pub(crate) use read::profile as check_profile;

use gpufleet_language::diagnostic::Span;

use crate::{
    families::{Family, families},
    layout::{Counts, LayoutError, fit},
};

/// PCI vendor id of NVIDIA.
pub const NVIDIA: u16 = 0x10de;

/// All configurations of a file.
#[derive(Clone, Debug)]
pub struct PartedFile {
    pub configs: Vec<Config>,
}

/// One configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub specs: Vec<Spec>,
    pub span: Span,
}

/// What some GPUs of the node get.
#[derive(Clone, Debug)]
pub struct Spec {
    pub devices: Devices,
    /// One of them has to match; all GPUs do if there is none.
    pub filters: Vec<Filter>,
    pub enabled: bool,
    pub instances: Counts,
    pub span: Span,
}

/// GPUs by their index on the node, whatever the filters say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    All,
    Indexes(Vec<u32>),
}

/// A kind of board, by its PCI ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    pub device: PciId,
    pub subsystem: Option<PciId>,
}

/// A PCI id as mig-parted and NVML write it: `0xDDDDVVVV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    pub device: u16,
    pub vendor: u16,
}

impl std::fmt::Display for PciId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x{:04X}{:04X}", self.device, self.vendor)
    }
}

/// A GPU of a node, as a spec sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// On its node.
    pub index: u32,
    pub device: PciId,
    pub subsystem: Option<PciId>,
}

impl Spec {
    pub fn is_for(&self, board: Board) -> bool {
        let meant = match &self.devices {
            Devices::All => true,
            Devices::Indexes(indexes) => indexes.contains(&board.index),
        };
        let matches = |filter: &Filter| {
            filter.device == board.device
                && filter.subsystem.is_none_or(|wanted| board.subsystem == Some(wanted))
        };
        meant && (self.filters.is_empty() || self.filters.iter().any(matches))
    }

    /// Returns the families that it is for: those of its filters, or all.
    pub fn families(&self) -> Vec<&'static Family> {
        let is_meant = |family: &&Family| {
            let of_family = |filter: &Filter| {
                filter.device.vendor == NVIDIA && family.device_ids.contains(&filter.device.device)
            };
            self.filters.is_empty() || self.filters.iter().any(of_family)
        };
        families().iter().filter(is_meant).collect()
    }

    /// Returns the families that it fits, and why it does not fit the others that it is for.
    pub fn fits(&self) -> (Vec<&'static Family>, Vec<(&'static Family, LayoutError)>) {
        let (mut fitting, mut others) = (Vec::new(), Vec::new());
        for family in self.families() {
            match fit(family, &self.instances) {
                Ok(_) => fitting.push(family),
                Err(why) => others.push((family, why)),
            }
        }
        (fitting, others)
    }
}

impl Config {
    /// Returns the spec that a GPU gets. mig-parted carries all out in turn, so that the last one stands.
    pub fn spec_for(&self, board: Board) -> Option<&Spec> {
        self.specs.iter().rev().find(|spec| spec.is_for(board))
    }
}

impl PartedFile {
    pub fn config(&self, name: &str) -> Option<&Config> {
        self.configs.iter().find(|config| config.name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.configs.iter().map(|config| config.name.as_str())
    }
}
