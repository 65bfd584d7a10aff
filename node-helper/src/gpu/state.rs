//! The state of a node's GPUs, and of what belongs to them, at one moment.
//!
//! Owns the pure data that plans are made from, and its conversion from a reading. It does no I/O; how a state changes
//! is [`super::after`].

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::{
    Subject,
    message::GpuClient,
    mig::{Filled, Inner, Slot},
    nvml::{
        Code, Confidential, DrainedGpu, GpuReading, MigProfile, ModulePower, Placement, Reading, Snapshot,
        Staged,
    },
    tasks::PciId,
};
use serde::{Deserialize, Serialize};

use super::{
    boot_commands::SetsPersistence,
    kept::Kept,
    mps::Seat,
    persistenced::{Repair, Start},
};
use crate::health::lacks;

/// `nvmlDeviceArchitecture_t`, ordered by age; unknown newer ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture(pub u32);

impl Architecture {
    pub const AMPERE: Self = Self(7);
    pub const HOPPER: Self = Self(9);
    /// Source: nvml.h, `NVML_DEVICE_ARCH_UNKNOWN`; it stands for one that cannot be read, too.
    pub const UNKNOWN: Self = Self(u32::MAX);

    /// Whether it is known, so that what depends on it is no guess.
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// Whether the MIG mode changes at once, and is lost when the driver is unloaded.
    ///
    /// Source: NVIDIA MIG User Guide r580: Ampere keeps the mode in the InfoROM and needs a reset, Hopper and later do
    /// neither. An architecture without a name in the header is newer than Hopper; of an unknown one nobody says so.
    pub fn has_volatile_mig(self) -> bool {
        self.is_known() && self >= Self::HOPPER
    }

    /// Returns NVIDIA's name.
    pub fn name(self) -> String {
        match self.0 {
            2 => "Kepler".to_owned(),
            3 => "Maxwell".to_owned(),
            4 => "Pascal".to_owned(),
            5 => "Volta".to_owned(),
            6 => "Turing".to_owned(),
            7 => "Ampere".to_owned(),
            8 => "Ada".to_owned(),
            9 => "Hopper".to_owned(),
            10 => "Blackwell".to_owned(),
            _ if !self.is_known() => "unknown".to_owned(),
            other => format!("architecture {other}"),
        }
    }
}

/// The known state of a clock lock, for which NVML has no getter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    /// There is no valid record.
    Unknown,
    /// Unlocked by gpufleet.
    Free,
    /// We locked it between these.
    Locked {
        #[serde(rename = "low")]
        low_mhz: u32,
        #[serde(rename = "high")]
        high_mhz: u32,
    },
}

/// A compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// `None` for a predicted one.
    pub id: Option<u32>,
    pub inner: Inner,
    /// Of its MIG device; `None` if the driver does not tell.
    pub uuid: Option<String>,
}

impl Compute {
    /// Returns one that is to be made. What stands for the UUID is none that any driver gives.
    pub fn predicted(gpu: &str, placement: Placement, inner: Inner) -> Self {
        let uuid = format!("MIG-new/{gpu}/{}/{}", placement.start, inner.start);
        Self { id: None, inner, uuid: Some(uuid) }
    }
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// `None` for a predicted instance.
    pub id: Option<u32>,
    pub profile_id: u32,
    pub placement: Placement,
    pub computes: Vec<Compute>,
}

impl Instance {
    pub fn slot(&self) -> Slot {
        Slot { placement: self.placement, profile_id: self.profile_id }
    }

    /// Returns it as layouts have it.
    pub fn filled(&self) -> Filled {
        let mut computes: Vec<Inner> = self.computes.iter().map(|compute| compute.inner).collect();
        computes.sort_unstable();
        Filled { slot: self.slot(), computes }
    }
}

/// The PCI ids of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    pub device: PciId,
    pub subsystem: Option<PciId>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    /// As sysfs writes it.
    pub pci: String,
    pub minor: Option<u32>,
    pub name: String,
    pub architecture: Architecture,
    pub persistence: Reading<bool>,
    pub ecc: Reading<Staged>,
    /// Errors since the driver was loaded.
    pub uncorrected: Reading<u64>,
    pub corrected: Reading<u64>,
    pub mig: Reading<Staged>,
    pub profiles: Reading<Vec<MigProfile>>,
    pub instances: Reading<Vec<Instance>>,
    /// Requested limit.
    pub power_mw: Reading<u32>,
    pub power_default_mw: Reading<u32>,
    pub power_range_mw: Reading<(u32, u32)>,
    pub module_power: Reading<ModulePower>,
    /// Since the driver initialised it, in millijoules.
    pub energy_mj: Reading<u64>,
    pub compute_mode: Reading<u32>,
    pub accounting: Reading<bool>,
    /// Number of ended processes that accounting remembers.
    pub accounting_buffer: Reading<u32>,
    /// What the driver asks for, as a number of [`recovery`](gpufleet_protocol::nvml::recovery).
    pub recovery_action: Reading<u32>,
    /// Whether memory rows wait for a reset to be replaced.
    pub rows_pending: Reading<bool>,
    pub graphics: Lock,
    pub memory: Lock,
    /// What the clocks are now.
    pub graphics_mhz: Reading<u32>,
    pub memory_mhz: Reading<u32>,
    pub graphics_clocks_mhz: Reading<Vec<u32>>,
    pub memory_clocks_mhz: Reading<Vec<u32>>,
    /// Whether the kernel can reset the device.
    pub resettable: bool,
    /// Number of its active NVLinks.
    pub nvlinks: Reading<u32>,
    /// `None` if sysfs does not tell.
    pub board: Option<Board>,
}

/// A systemd unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    pub exists: bool,
    pub active: bool,
    pub enabled: bool,
}

/// The CUDA MPS control daemons of gpufleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mps {
    /// Path of `nvidia-cuda-mps-control`, if it is installed.
    pub program: Option<String>,
    /// Those that have a unit or left something behind.
    pub daemons: BTreeMap<Seat, Daemon>,
    /// Users that a task names and this node does not have.
    pub no_users: BTreeSet<String>,
}

impl Mps {
    /// Returns the daemon of a seat; one that was never there is stopped.
    pub fn daemon(&self, seat: &Seat) -> Daemon {
        self.daemons.get(seat).cloned().unwrap_or_default()
    }
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Daemon {
    pub unit: Unit,
    /// The text of its unit file.
    pub unit_text: Option<String>,
    /// Whether a control daemon answers on the pipe.
    pub answers: bool,
    /// Whether there is a pipe directory with a socket on which no daemon answers.
    pub stale: bool,
    /// Default share of threads, in percent.
    pub percentage: Option<u32>,
    /// Number of its servers, which keep the limits that they were started with.
    pub servers: usize,
}

/// What the plan needs to know of the machine beside the GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    pub persistenced: Unit,
    /// Why its unit cannot start.
    pub persistenced_fault: Option<String>,
    /// What has to be repaired before it can.
    pub persistenced_repairs: Vec<Repair>,
    pub persistenced_start: Start,
    /// Units of others that set it at each boot.
    pub persistence_setters: Vec<SetsPersistence>,
    /// Units of the driver that failed and that systemd is about to start again. They do not count as active.
    pub restarting: Vec<&'static str>,
    /// Whether the fabric manager runs.
    pub fabric_manager: bool,
    /// Number of NVSwitches; `None` if unknown.
    pub switches: Option<u32>,
    /// Whether the daemon runs that shares GPU memory between nodes.
    pub imex: bool,
    pub mps: Mps,
    /// Running units that hold GPUs, in stop order.
    pub client_units: Vec<String>,
    /// Whether `nvidia-cdi-refresh.service` exists.
    pub cdi_refresh: bool,
}

impl Host {
    /// Whether a boot starts the persistence daemon. A unit without [Install] that runs was started by something that starts
    /// it at the next boot too, such as a rule of udev.
    pub const fn starts_persistenced(&self) -> bool {
        let unit = self.persistenced;
        unit.enabled || unit.active && self.persistenced_start.is_static
    }
}

/// What holds the GPUs and the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holding {
    /// Processes that work on GPUs.
    pub clients: Vec<GpuClient>,
    /// Services of the driver, and those that gpufleet stops itself; both keep GPUs open.
    pub services: Vec<GpuClient>,
    /// Kernel modules in use, with their use count.
    pub modules: Vec<(String, u32)>,
    /// What could not be read, one sentence each.
    pub unknown: Vec<String>,
    /// The helper's user, if not root.
    pub not_root: Option<u32>,
}

impl Holding {
    /// Whether another process keeps a GPU awake; `services` is whether those that gpufleet stops count.
    pub fn holds(&self, index: u32, services: bool) -> bool {
        let holds = |client: &GpuClient| client.gpus.contains(&index);
        services && self.services.iter().any(holds) || self.clients.iter().any(holds)
    }
}

/// The GPUs and the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub gpus: Vec<Gpu>,
    /// GPUs that the driver lists but cannot read, by index.
    pub unreadable: Vec<(u32, Code)>,
    /// GPUs of which nothing can be read, because they are drained.
    pub drained: Vec<Hidden>,
    /// Drained GPUs that come back in a prediction: only the run knows their state.
    pub returning: Vec<DrainedGpu>,
    pub confidential: Reading<Confidential>,
    /// Whether confidential GPUs accept work.
    pub confidential_ready: Reading<bool>,
    pub host: Host,
    /// From the first reading of a run; later readings leave it empty.
    pub holding: Holding,
    /// What the next boot sets.
    pub kept: Kept,
}

/// A drained GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Hidden {
    pub gpu: DrainedGpu,
    /// Its state, where a prediction drains it.
    pub known: Option<Box<Gpu>>,
}

impl From<&Gpu> for DrainedGpu {
    fn from(gpu: &Gpu) -> Self {
        Self {
            index: gpu.index,
            pci: gpu.pci.clone(),
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            minor: gpu.minor,
        }
    }
}

/// The recorded clock locks of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locks {
    pub graphics: Lock,
    pub memory: Lock,
}

/// What sysfs says of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Whether the kernel can reset it.
    pub resettable: bool,
    pub board: Option<Board>,
}

impl Locks {
    pub const UNKNOWN: Self = Self { graphics: Lock::Unknown, memory: Lock::Unknown };
}

impl Gpu {
    /// Converts a reading, with the recorded locks and what sysfs says of the device.
    pub fn read(reading: &GpuReading, locks: Locks, device: Device) -> Self {
        Self {
            index: reading.index,
            uuid: reading.uuid.clone(),
            pci: reading.pci.clone().unwrap_or_default(),
            minor: reading.minor.ok(),
            name: reading.name.clone().unwrap_or_default(),
            architecture: reading.architecture.map_or(Architecture::UNKNOWN, Architecture),
            persistence: reading.persistence,
            ecc: reading.ecc,
            uncorrected: reading.ecc_uncorrected,
            corrected: reading.ecc_corrected,
            mig: reading.mig,
            profiles: reading.profiles.clone(),
            instances: reading.instances.as_ref().map_err(|code| *code).map(|found| {
                found
                    .iter()
                    .map(|instance| Instance {
                        id: Some(instance.id),
                        profile_id: instance.profile_id,
                        placement: instance.placement,
                        computes: instance
                            .compute_instances
                            .iter()
                            .map(|compute| Compute {
                                id: Some(compute.id),
                                inner: Inner { start: compute.start, size: compute.slices },
                                uuid: compute.uuid.clone(),
                            })
                            .collect(),
                    })
                    .collect()
            }),
            power_mw: reading.power_limit_mw,
            power_default_mw: reading.power_default_mw,
            power_range_mw: reading.power_range_mw,
            module_power: reading.module_power,
            energy_mj: reading.energy_mj,
            compute_mode: reading.compute_mode,
            accounting: reading.accounting,
            accounting_buffer: reading.accounting_buffer,
            recovery_action: reading.recovery_action,
            rows_pending: reading.remapped_rows.map(|rows| rows.pending),
            graphics: locks.graphics,
            memory: locks.memory,
            graphics_mhz: reading.graphics_clock_mhz,
            memory_mhz: reading.memory_clock_mhz,
            graphics_clocks_mhz: reading.supported_graphics_clocks_mhz.clone(),
            memory_clocks_mhz: reading.supported_memory_clocks_mhz.clone(),
            resettable: device.resettable,
            board: device.board,
            nvlinks: reading.active_nvlinks,
        }
    }

    /// Whether NVLinks connect it with other GPUs. Unknown counts as so.
    pub fn has_peers(&self) -> bool {
        match self.nvlinks {
            Ok(count) => count > 0,
            Err(code) => !lacks(code),
        }
    }

    /// Returns the uncorrected and the corrected memory errors that it counted since the driver was loaded.
    ///
    /// # Errors
    /// If they cannot be read; a GPU without counters has none.
    pub fn errors(&self) -> Result<(u64, u64), Code> {
        let count = |reading: Reading<u64>| match reading {
            Err(code) if lacks(code) => Ok(0),
            other => other,
        };
        Ok((count(self.uncorrected)?, count(self.corrected)?))
    }

    /// Says which memory errors it counted, or that this cannot be read, and what clears the counters; nothing of a GPU
    /// without counters or errors.
    pub fn counted(&self, cleared_by: &str) -> Option<String> {
        let label = self.label();
        match self.errors() {
            Ok((0, 0)) => None,
            Ok((uncorrected, corrected)) => Some(format!(
                "{label} counted {uncorrected} uncorrected and {corrected} corrected memory errors since the driver was \
                 loaded, which the {cleared_by} clears from its counters"
            )),
            Err(code) => Some(format!(
                "{label}: the memory errors that it counted since the driver was loaded cannot be read ({code}), and the \
                 {cleared_by} clears its counters"
            )),
        }
    }

    /// What a change of it is about.
    pub fn subject(&self) -> Subject {
        Subject::Gpu { index: self.index, uuid: self.uuid.clone() }
    }

    /// `GPU 0`, as messages name it.
    pub fn label(&self) -> String {
        format!("GPU {}", self.index)
    }

    pub fn profile(&self, id: u32) -> Option<&MigProfile> {
        self.profiles.as_ref().ok()?.iter().find(|profile| profile.id == id)
    }

    /// Returns the compute slices of a profile.
    pub fn slices(&self, profile_id: u32) -> Option<u32> {
        self.profile(profile_id).map(|profile| profile.slices)
    }

    /// Returns the present instances; none while MIG is off.
    pub fn present(&self) -> &[Instance] {
        self.instances.as_deref().unwrap_or_default()
    }

    /// Whether the current MIG mode is on.
    pub fn mig_on(&self) -> bool {
        self.mig.is_ok_and(|mode| mode.current)
    }

    /// Returns the present instances as layouts have them.
    pub fn filled(&self) -> Vec<Filled> {
        self.present().iter().map(Instance::filled).collect()
    }
}

impl State {
    /// Converts a snapshot.
    pub fn read(
        snapshot: &Snapshot,
        host: Host,
        mut locks: impl FnMut(&GpuReading) -> Locks,
        mut device: impl FnMut(&str) -> Device,
    ) -> Self {
        let mut gpus: Vec<Gpu> = snapshot
            .gpus
            .iter()
            .map(|reading| {
                let pci = reading.pci.clone().unwrap_or_default();
                Gpu::read(reading, locks(reading), device(&pci))
            })
            .collect();
        gpus.sort_by_key(|gpu| gpu.index);
        Self {
            gpus,
            unreadable: snapshot.unreadable.clone(),
            drained: snapshot.drained.iter().map(|gpu| Hidden { gpu: gpu.clone(), known: None }).collect(),
            returning: Vec::new(),
            confidential: snapshot.confidential,
            confidential_ready: snapshot.confidential_ready,
            host,
            holding: Holding::default(),
            kept: Kept::default(),
        }
    }

    /// Whether the driver has no GPU, not even one that it hides.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
            && self.unreadable.is_empty()
            && self.drained.is_empty()
            && self.returning.is_empty()
    }

    pub fn gpu(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// Returns the GPU of a device, and the compute instance if it is a MIG device.
    pub fn device(&self, uuid: &str) -> Option<(&Gpu, Option<(&Instance, &Compute)>)> {
        self.gpus.iter().find_map(|gpu| {
            if gpu.uuid == uuid {
                return Some((gpu, None));
            }
            let mut inside =
                gpu.present().iter().flat_map(|one| one.computes.iter().map(move |compute| (one, compute)));
            let found = inside.find(|(_, compute)| compute.uuid.as_deref() == Some(uuid))?;
            Some((gpu, Some(found)))
        })
    }

    pub fn gpu_mut(&mut self, uuid: &str) -> Option<&mut Gpu> {
        self.gpus.iter_mut().find(|gpu| gpu.uuid == uuid)
    }
}
