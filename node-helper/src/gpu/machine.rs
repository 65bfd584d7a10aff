//! Everything that the GPU code does on a node, as a trait that a simulated node can implement.
//!
//! [`super::host::RealMachine`] implements it for a real node.

use std::collections::BTreeMap;

use gpufleet_protocol::nvml::{GpuDevices, Health, Reading, Setting, Snapshot};

use super::{
    clients::Scan,
    kept::Kept,
    mps::Seat,
    persistenced::Repair,
    state::{Device, Host},
    worker::{NoHealth, NvmlError, SetAnswer, SetError},
};
use crate::{deadline::Deadline, world::World};

/// An action on a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitAction {
    Start,
    Stop,
    Enable,
    Disable,
    /// Lets a boot start a unit whose file has no [Install], so that enabling it does nothing.
    Want,
}

impl UnitAction {
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::Want => "add-wants",
        }
    }
}

/// Why a reset failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    /// A process or module holds the GPU.
    #[error("{0}")]
    InUse(String),
    /// This machine cannot reset the GPU, as with a virtual machine.
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    Failed(String),
}

/// The boot, the load of the driver and the daemon that keeps it awake: a recorded value belongs to all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BootMark {
    pub boot_id: String,
    /// Differs for every load of the kernel module.
    pub driver: String,
    /// Differs for every start of the persistence daemon; empty without one. While it does not run, the driver may have let
    /// a GPU go, and has forgotten its locks then.
    #[serde(default)]
    pub keeper: String,
}

/// A node, as the GPU code uses it.
pub trait Machine: Send {
    /// # Errors
    /// If NVML cannot be read.
    fn snapshot(&mut self, deadline: &Deadline) -> Result<Snapshot, NvmlError>;

    /// Reads each GPU and MIG device as containers are given it.
    ///
    /// # Errors
    /// If NVML cannot be read.
    fn devices(&mut self, deadline: &Deadline) -> Result<Vec<GpuDevices>, NvmlError>;

    /// Reads what the checks of an audit need; `deep` takes tens of milliseconds for each GPU.
    ///
    /// # Errors
    /// If NVML cannot be read.
    fn health(&mut self, deep: bool, deadline: &Deadline) -> Result<Health, NoHealth>;

    /// Reads the same, and what each GPU did within the last `window_s` seconds.
    ///
    /// # Errors
    /// If NVML cannot be read.
    fn lately(&mut self, deadline: &Deadline) -> Result<Health, NoHealth>;

    /// # Errors
    /// If NVML refuses the setting, or cannot be asked.
    fn set(&mut self, uuid: &str, setting: Setting, deadline: &Deadline) -> Result<SetAnswer, SetError>;

    /// Reads whether GPUs are drained, by PCI address and in the same order.
    ///
    /// # Errors
    /// If NVML cannot be asked.
    fn drain_states(&mut self, pcis: &[String], deadline: &Deadline)
    -> Result<Vec<Reading<bool>>, NvmlError>;

    /// Drains the GPU at a PCI address, or ends that.
    ///
    /// # Errors
    /// If NVML refuses it, or cannot be asked.
    fn drain(&mut self, pci: &str, on: bool, deadline: &Deadline) -> Result<(), SetError>;

    /// Ends the NVML worker, which holds every GPU while it lives.
    fn release(&mut self);

    /// Reads the units and the MPS daemon.
    fn host(&mut self, deadline: &Deadline) -> Host;

    /// Returns what sysfs says of the GPU at this PCI address.
    fn device(&mut self, pci: &str) -> Device;

    fn boot_mark(&mut self) -> BootMark;

    /// Returns the end of the kernel's log, in microseconds of this boot.
    fn log_end(&mut self) -> Option<u64>;

    /// # Errors
    /// The message of systemd.
    fn unit(&mut self, unit: &str, action: UnitAction, deadline: &Deadline) -> Result<(), String>;

    /// Repairs what keeps the persistence daemon from starting.
    ///
    /// # Errors
    /// If it cannot be repaired; nothing is written where systemd may not reload.
    fn repair_persistenced(&mut self, repair: &Repair, deadline: &Deadline) -> Result<(), String>;

    /// Resets GPUs together, by PCI address.
    ///
    /// # Errors
    /// The message of `nvidia-smi`.
    fn reset(&mut self, pcis: &[String], deadline: &Deadline) -> Result<(), ResetError>;

    /// Returns the processes that hold GPUs, without gpufleet's own.
    fn scan(&mut self, minors: &BTreeMap<u32, u32>, snapshot: Option<&Snapshot>) -> Scan;

    /// Returns kernel modules that hold the driver, such as `nvidia_drm`, with their use counts.
    fn module_holders(&mut self) -> Vec<(String, u32)>;

    /// Whether systemd may read its units again: asked before what is of no use without that.
    ///
    /// # Errors
    /// If a container would lose GPUs.
    fn may_reload(&mut self) -> Result<(), String>;

    /// Writes or removes the unit file of an MPS daemon, and reloads systemd.
    ///
    /// # Errors
    /// If systemd may not reload, with the file as it was, or if the file cannot be written.
    fn write_mps_unit(&mut self, seat: &Seat, text: Option<&str>, deadline: &Deadline) -> Result<(), String>;

    /// Ends an MPS daemon that runs outside of the unit, and removes a stale pipe directory.
    ///
    /// # Errors
    /// If it does not end.
    fn quit_mps(&mut self, seat: &Seat, deadline: &Deadline) -> Result<(), String>;

    /// Tells a running MPS daemon its limits.
    ///
    /// # Errors
    /// If it does not take them.
    fn tell_mps(&mut self, seat: &Seat, limits: &[String], deadline: &Deadline) -> Result<(), String>;

    /// Whether the node has this user, in a prediction too.
    fn has_user(&mut self, name: &str, world: &World) -> bool;

    /// Returns what the next boot sets, in a prediction too.
    fn kept(&mut self, world: &World) -> Kept;

    /// Returns the number of NVIDIA GPUs on the PCI bus.
    fn pci_count(&mut self) -> u32;

    /// Returns the number of NVSwitches of this node.
    fn nvswitches(&mut self) -> u32;

    /// Returns the helper's user if it is not root, and so may not change GPUs.
    fn not_root(&mut self) -> Option<u32>;

    /// Returns the version of the loaded kernel module.
    fn module_version(&mut self) -> Option<String>;
}
