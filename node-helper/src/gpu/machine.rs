//! Everything that the GPU side does to a node, behind one trait, so that a simulated device can stand in.
//!
//! Owns nothing but the vocabulary; [`super::host::RealMachine`] does the work on a real node.

use std::collections::BTreeMap;

use gpufleet_protocol::nvml::{Setting, Snapshot};

use super::{
    clients::Scan,
    state::Host,
    worker::{NvmlError, SetAnswer, SetError},
};
use crate::deadline::Deadline;

/// What a unit is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitAction {
    Start,
    Stop,
    Enable,
    Disable,
}

impl UnitAction {
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }
}

/// Why a reset did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    /// Something holds the GPU.
    #[error("{0}")]
    InUse(String),
    /// This machine cannot reset it, such as a virtual machine.
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    Failed(String),
}

/// Which boot and which load of the driver a recorded value belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BootMark {
    pub boot_id: String,
    /// Another one after every load of the kernel module.
    pub driver: String,
}

/// A node as the GPU side sees it.
pub trait Machine: Send {
    /// # Errors
    /// NVML cannot be read.
    fn snapshot(&mut self, deadline: &Deadline) -> Result<Snapshot, NvmlError>;

    /// # Errors
    /// NVML refuses the setting, or cannot be asked.
    fn set(&mut self, uuid: &str, setting: Setting, deadline: &Deadline) -> Result<SetAnswer, SetError>;

    /// Ends the NVML worker, which holds every GPU as long as it lives.
    fn release(&mut self);

    /// Units and the MPS daemon.
    fn host(&mut self, deadline: &Deadline) -> Host;

    /// Whether the kernel can reset the device at this PCI address.
    fn resettable(&mut self, pci: &str) -> bool;

    fn boot_mark(&mut self) -> BootMark;

    /// Where the kernel's log ends, in microseconds of this boot.
    fn log_end(&mut self) -> Option<u64>;

    /// # Errors
    /// What systemd said.
    fn unit(&mut self, unit: &str, action: UnitAction, deadline: &Deadline) -> Result<(), String>;

    /// Resets GPUs together, by PCI address.
    ///
    /// # Errors
    /// What `nvidia-smi` said.
    fn reset(&mut self, pcis: &[String], deadline: &Deadline) -> Result<(), ResetError>;

    /// Who holds GPUs; our own processes left out.
    fn scan(&mut self, minors: &BTreeMap<u32, u32>, snapshot: Option<&Snapshot>) -> Scan;

    /// Modules of the kernel that hold the driver with their use count, such as `nvidia_drm`.
    fn module_holders(&mut self) -> Vec<(String, u32)>;

    /// Writes the unit file of the MPS daemon, or removes it, and tells systemd.
    ///
    /// # Errors
    /// The file cannot be written.
    fn write_mps_unit(&mut self, text: Option<&str>, deadline: &Deadline) -> Result<(), String>;

    /// Ends an MPS daemon that runs outside of the unit, and removes a stale pipe directory.
    ///
    /// # Errors
    /// It does not end.
    fn quit_mps(&mut self, deadline: &Deadline) -> Result<(), String>;

    /// NVIDIA GPUs on the PCI bus.
    fn pci_count(&mut self) -> u32;

    /// NVSwitches of this node.
    fn nvswitches(&mut self) -> u32;

    /// The user that we are, where that is not root and so may set nothing.
    fn not_root(&mut self) -> Option<u32>;

    /// Version of the loaded kernel module.
    fn module_version(&mut self) -> Option<String>;
}
