//! Messages between the supervisor and the NVML worker.
//!
//! Frames as on the SSH channel ([`crate::frame`]), with one JSON message each, over the worker's stdin and stdout.
//! Every request gets exactly one answer with its id. GPUs are identified by UUID, because handles and indexes may
//! change with a mode. Both sides come from one file, so the messages need no versions.

use serde::{Deserialize, Serialize};

/// An NVML return code as a number, because newer drivers have codes that no enum here contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

impl Code {
    pub const SUCCESS: Self = Self(0);
    pub const INVALID_ARGUMENT: Self = Self(2);
    pub const NOT_SUPPORTED: Self = Self(3);
    pub const NO_PERMISSION: Self = Self(4);
    pub const NOT_FOUND: Self = Self(6);
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    pub const TIMEOUT: Self = Self(10);
    pub const LIBRARY_NOT_FOUND: Self = Self(12);
    pub const FUNCTION_NOT_FOUND: Self = Self(13);
    pub const CORRUPTED_INFOROM: Self = Self(14);
    pub const GPU_IS_LOST: Self = Self(15);
    pub const RESET_REQUIRED: Self = Self(16);
    pub const VERSION_MISMATCH: Self = Self(18);
    pub const IN_USE: Self = Self(19);
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub const UNKNOWN: Self = Self(999);

    /// Returns what the code means to an operator. Source: nvml.h, `nvmlReturn_t`.
    pub const fn meaning(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "NVML is not initialised",
            2 => "invalid argument",
            3 => "not supported on this GPU",
            4 => "no permission",
            6 => "not found",
            7 => "the buffer is too small",
            8 => "an external power cable is not attached",
            9 => "the NVIDIA driver is not loaded",
            10 => "the driver's time was up",
            11 => "an interrupt of the GPU is blocked",
            12 => "the NVML library was not found",
            13 => "this driver does not have the function",
            14 => "the InfoROM is corrupted",
            15 => "the GPU has fallen off the bus or is not accessible",
            16 => "the GPU needs a reset",
            17 => "the operating system or a cgroup blocks the GPU",
            18 => "library and kernel module are of different driver versions",
            19 => "the GPU is in use",
            20 => "out of memory",
            21 => "no data",
            22 => "not possible while ECC is enabled on a virtual GPU",
            23 => "the GPU lacks the resources, such as free MIG slices",
            24 => "the frequency is not supported",
            25 => "the version of an argument is not supported by this driver",
            26 => "deprecated",
            27 => "not ready",
            28 => "the GPU was not found",
            29 => "not possible in the present state",
            30 => "this kind of reset is not supported",
            _ => "unknown error",
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (NVML code {})", self.meaning(), self.0)
    }
}

/// A value, or the code that NVML returned instead.
pub type Reading<T> = Result<T, Code>;

/// A request with the id that its answer has too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub id: u64,
    pub request: Ask,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", content = "with")]
pub enum Ask {
    /// Shows that the worker can run here; does not load NVML.
    Hello,
    /// Reads everything that facts and plans need, of all GPUs.
    Snapshot,
    /// Reads a snapshot, and what only the checks of an audit need. `deep` also reads what takes tens of milliseconds
    /// for each GPU.
    Health {
        deep: bool,
    },
    /// Reads what containers are given: each GPU and MIG device with its UUID.
    Devices,
    /// Reads what [`Ask::Health`] does, and [`Lately`] of each GPU; answered by [`Answer::Health`].
    Lately,
    Set {
        uuid: String,
        setting: Setting,
    },
    /// Reads whether GPUs at PCI addresses, as sysfs writes them, are drained; answered by [`Answer::DrainStates`] in
    /// the same order. By address, because a process that starts after the drain sees no such GPU.
    DrainStates {
        pcis: Vec<String>,
    },
    /// Drains the GPU at a PCI address, or ends that.
    Drain {
        pci: String,
        on: bool,
    },
}

/// One setter call, or a fixed sequence of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "setting", content = "value")]
pub enum Setting {
    Persistence(bool),
    /// Written as pending.
    Ecc(bool),
    /// Answered by [`Answer::MigMode`].
    MigMode(bool),
    PowerLimit {
        milliwatts: u32,
    },
    /// Of the module of GPU and CPU.
    ModulePowerLimit {
        milliwatts: u32,
    },
    LockGraphics {
        low_mhz: u32,
        high_mhz: u32,
    },
    UnlockGraphics,
    LockMemory {
        low_mhz: u32,
        high_mhz: u32,
    },
    UnlockMemory,
    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    ComputeMode(u32),
    /// Answered by [`Answer::Created`] with the id of the GPU instance.
    CreateGpuInstance {
        profile_id: u32,
        placement: Placement,
    },
    /// One compute instance. Answered by [`Answer::Created`].
    CreateComputeInstance {
        gpu_instance: u32,
        /// Its compute slices, and the first of them; `None` for the full size of the GPU instance.
        part: Option<crate::mig::Inner>,
    },
    DestroyComputeInstance {
        gpu_instance: u32,
        compute_instance: u32,
    },
    DestroyGpuInstance {
        gpu_instance: u32,
    },
    Accounting(bool),
    /// Lets confidential GPUs accept work, on the whole node.
    ConfidentialReady(bool),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    pub id: u64,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer", content = "with")]
pub enum Answer {
    Hello {
        pid: u32,
    },
    Snapshot(Box<Snapshot>),
    Health(Box<Health>),
    Devices(Vec<GpuDevices>),
    /// libnvidia-ml.so.1 could not be loaded: where it was searched, and the loader's message.
    NoLibrary {
        detail: String,
    },
    /// `nvmlInit` failed.
    InitFailed {
        code: Code,
        /// Driver version that the library belongs to, if it tells without `nvmlInit`.
        #[serde(default)]
        library: Option<String>,
    },
    Done,
    DrainStates(Vec<Reading<bool>>),
    /// Both results of `nvmlDeviceSetMigMode`: the request was accepted, and the state of its activation.
    MigMode {
        activation: Code,
    },
    Created {
        id: u32,
    },
    /// A call failed; `call` is its name in NVML.
    Failed {
        call: String,
        code: Code,
    },
}

/// One reading of all GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Driver version of the user-space library.
    pub driver_version: Reading<String>,
    pub nvml_version: Reading<String>,
    /// Major version times 1000 plus minor version times 10.
    pub cuda_version: Reading<u32>,
    pub confidential: Reading<Confidential>,
    /// Whether confidential GPUs accept work; also false where the feature is off.
    pub confidential_ready: Reading<bool>,
    /// Where GPUs are drained, indexes count those too, so that the others keep theirs.
    pub gpus: Vec<GpuReading>,
    /// Indexes for which the driver gives no handle, or no UUID.
    pub unreadable: Vec<(u32, Code)>,
    /// GPUs that the driver hides from this process because they are drained. The worker leaves it empty.
    #[serde(default)]
    pub drained: Vec<DrainedGpu>,
}

impl Snapshot {
    /// Returns how many GPUs the driver has, drained ones included.
    pub fn present(&self) -> u64 {
        (self.gpus.len() + self.drained.len()) as u64
    }
}

/// A drained GPU, as the driver's folder in `/proc` and sysfs describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainedGpu {
    pub index: u32,
    /// As sysfs writes it: `0000:5d:00.0`.
    pub pci: String,
    /// Empty if the driver does not tell.
    pub uuid: String,
    pub name: String,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
}

/// A value now and after the next activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Staged {
    pub current: bool,
    pub pending: bool,
}

impl Staged {
    pub const fn settled(value: bool) -> Self {
        Self { current: value, pending: value }
    }
}

/// Returns what `GpuReading::recovery_action` requires; `None` for nothing. An unknown number never means nothing.
///
/// Source: nvml.h, `nvmlDeviceGpuRecoveryAction_t` (580), and 6 and 7 of cuda-python's newer copy of it.
pub const fn recovery(action: u32) -> Option<&'static str> {
    match action {
        0 => None,
        1 => Some("a reset of the GPU"),
        2 => Some("a reboot of the node"),
        3 => Some("that peer-to-peer work ends"),
        4 => Some("that jobs end, and then a reset of the GPU"),
        5 => Some("a look at the IMEX domain"),
        6 => Some("a reset of the PCIe bus"),
        7 => Some("a reboot of the node"),
        _ => Some("something that gpufleet does not know"),
    }
}

/// The power limit of a module of GPU and CPU, in milliwatts. Source: nvml.h, `NVML_POWER_SCOPE_MODULE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModulePower {
    /// Requested limit.
    pub limit_mw: u32,
    pub default_mw: u32,
    pub low_mw: u32,
    pub high_mw: u32,
}

/// Memory rows that the GPU has replaced. Source: nvml.h, `nvmlDeviceGetRemappedRows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Rows replaced for errors that ECC corrected.
    pub correctable: u32,
    /// Rows replaced for errors that it could not correct.
    pub uncorrectable: u32,
    /// Whether a row waits for a reset of the GPU.
    pub pending: bool,
    /// Whether a row could not be replaced, which is permanent.
    pub failed: bool,
}

/// NVML's data about one GPU. Every field is a value, or the code that NVML returned instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReading {
    pub index: u32,
    pub uuid: String,
    /// As sysfs writes it: `0000:5d:00.0`.
    pub pci: Reading<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Reading<u32>,
    pub name: Reading<String>,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: Reading<u32>,
    pub compute_capability: Reading<(u32, u32)>,
    pub memory_bytes: Reading<u64>,
    pub vbios: Reading<String>,
    pub serial: Reading<String>,
    pub board_part: Reading<String>,
    pub persistence: Reading<bool>,
    pub ecc: Reading<Staged>,
    /// Uncorrected memory errors since the driver was loaded or the GPU was reset.
    pub ecc_uncorrected: Reading<u64>,
    /// Those that were corrected.
    pub ecc_corrected: Reading<u64>,
    /// Those of them in SRAM, which may affect other programs than the one that met them.
    pub ecc_uncorrected_sram: Reading<u64>,
    /// The action that the driver requires: 0 is none, see [`recovery`]. Not available in drivers before 550.
    pub recovery_action: Reading<u32>,
    /// Not supported before Ampere, nor while MIG instances exist.
    pub remapped_rows: Reading<RemappedRows>,
    pub mig: Reading<Staged>,
    pub power_limit_mw: Reading<u32>,
    pub power_default_mw: Reading<u32>,
    /// Lowest and highest limit.
    pub power_range_mw: Reading<(u32, u32)>,
    pub power_enforced_mw: Reading<u32>,
    /// Energy used, in millijoules, counted since the driver last initialised the GPU.
    /// Source: nvml.h, nvmlDeviceGetTotalEnergyConsumption.
    #[serde(default = "not_read")]
    pub energy_mj: Reading<u64>,
    /// Of the module of GPU and CPU; not supported on other boards.
    pub module_power: Reading<ModulePower>,
    /// `nvmlComputeMode_t`.
    pub compute_mode: Reading<u32>,
    pub accounting: Reading<bool>,
    /// Number of ended processes that accounting remembers.
    pub accounting_buffer: Reading<u32>,
    pub graphics_clock_mhz: Reading<u32>,
    pub memory_clock_mhz: Reading<u32>,
    pub max_graphics_clock_mhz: Reading<u32>,
    pub max_memory_clock_mhz: Reading<u32>,
    pub supported_memory_clocks_mhz: Reading<Vec<u32>>,
    /// Clocks for the highest memory clock.
    pub supported_graphics_clocks_mhz: Reading<Vec<u32>>,
    pub temperature_c: Reading<u32>,
    pub pcie_generation: Reading<u32>,
    pub pcie_width: Reading<u32>,
    /// Number of NVLinks that are up.
    pub active_nvlinks: Reading<u32>,
    /// Empty on a GPU without MIG support, and in a reading of [`Health`] while MIG is off.
    pub profiles: Reading<Vec<MigProfile>>,
    pub instances: Reading<Vec<GpuInstance>>,
    pub processes: Reading<Vec<GpuProcess>>,
}

/// What older readings lack.
fn not_read<T>() -> Reading<T> {
    Err(Code::NOT_SUPPORTED)
}

/// A GPU instance profile as reported by the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigProfile {
    /// The id for create calls, which is not NVML's profile enum.
    pub id: u32,
    /// Name without `MIG `, such as `3g.40gb`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    pub max_count: u32,
    pub memory_mib: u64,
    pub placements: Reading<Vec<Placement>>,
}

/// `size` memory slices from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    pub id: u32,
    pub profile_id: u32,
    pub placement: Placement,
    pub compute_instances: Vec<ComputeInstance>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    pub id: u32,
    pub profile_id: u32,
    /// The first compute slice in its GPU instance.
    pub start: u32,
    /// Compute slices of its profile.
    pub slices: u32,
    /// Of its MIG device; `None` if the driver does not tell.
    #[serde(default)]
    pub uuid: Option<String>,
}

/// A GPU as containers are given it. The answer to [`Ask::Devices`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDevices {
    pub index: u32,
    pub uuid: Reading<String>,
    /// Whether its MIG mode is on now.
    pub mig: bool,
    /// Its MIG devices; empty while MIG is off.
    pub devices: Reading<Vec<MigDevice>>,
}

/// A MIG device: a compute instance, as containers are given it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    pub uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    pub memory_bytes: Option<u64>,
    pub gpu_instance: Option<u32>,
}

/// The answer to [`Ask::Health`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    pub snapshot: Snapshot,
    /// `nvmlDeviceGetCount_v2`.
    pub count: Reading<u32>,
    /// GPUs that a registry key of the driver keeps out.
    pub excluded: Reading<u32>,
    /// One for each of the snapshot's GPUs, in the same order.
    pub gpus: Vec<HealthReading>,
}

impl Health {
    /// Returns both readings of each GPU.
    pub fn pairs(&self) -> impl Iterator<Item = (&GpuReading, &HealthReading)> {
        self.snapshot.gpus.iter().zip(&self.gpus)
    }
}

/// Confidential computing. Source: nvml.h, `nvmlSystemGetConfComputeState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confidential {
    pub enabled: bool,
    /// Debugging is allowed, which ends the protection.
    pub devtools: bool,
}

/// What the checks need of one GPU and the snapshot lacks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthReading {
    pub memory: MemoryHealth,
    pub modes: Modes,
    pub fabric: Reading<Fabric>,
    /// `NOT_SUPPORTED` without NVLink.
    pub nvlinks: Reading<NvLinks>,
    pub work: Work,
    /// Not asked by [`Ask::Lately`], because it doubles the CPU time of a reading.
    pub board: Option<Board>,
    /// Asked for a deep reading only.
    pub deep: Option<Deep>,
    /// Asked for by [`Ask::Lately`] only.
    pub lately: Option<Lately>,
}

impl HealthReading {
    /// Returns a reading without values: all of tier 1 failed with this code.
    pub fn none(code: Code) -> Self {
        let memory = MemoryHealth {
            ecc_default: Err(code),
            corrected_sram: Err(code),
            corrected_total: Err(code),
            uncorrected_total: Err(code),
            sram: Err(code),
            row_banks: Err(code),
            retired_single: Err(code),
            retired_double: Err(code),
            retired_pending: Err(code),
            repair: Err(code),
            unrepairable: Err(code),
        };
        let modes = Modes {
            gsp: Err(code),
            gsp_version: Err(code),
            inforom: Err(code),
            drain: Err(code),
            performance_state: Err(code),
            clock_reasons: Err(code),
        };
        let work = Work {
            gpu_percent: Err(code),
            memory_percent: Err(code),
            sm_clock_mhz: Err(code),
            memory: Err(code),
            mps_pids: Err(code),
        };
        Self {
            memory,
            modes,
            fabric: Err(code),
            nvlinks: Err(code),
            work,
            board: None,
            deep: None,
            lately: None,
        }
    }
}

/// Errors of a GPU's memory, and what was repaired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryHealth {
    /// ECC mode as delivered.
    pub ecc_default: Reading<bool>,
    /// Corrected errors in SRAM since the driver was loaded.
    pub corrected_sram: Reading<u64>,
    /// Corrected errors over the life of the board.
    pub corrected_total: Reading<u64>,
    /// Uncorrected errors over the life of the board.
    pub uncorrected_total: Reading<u64>,
    pub sram: Reading<SramErrors>,
    pub row_banks: Reading<RowBanks>,
    /// Pages retired for repeated corrected errors; not supported from Ampere on, which remaps rows.
    pub retired_single: Reading<u32>,
    /// Unix times of the pages that were retired for an uncorrected error.
    pub retired_double: Reading<Vec<u64>>,
    pub retired_pending: Reading<bool>,
    pub repair: Reading<Repair>,
    /// Whether memory failed that no repair can replace.
    pub unrepairable: Reading<bool>,
}

/// Uncorrected errors in SRAM, parity and double-bit errors together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SramErrors {
    /// Since the driver was loaded.
    pub uncorrected: u64,
    /// Over the life of the board.
    pub uncorrected_total: u64,
    /// Corrected over the life of the board.
    pub corrected_total: u64,
    /// Whether NVIDIA's threshold for a replacement is exceeded.
    pub threshold_exceeded: bool,
}

/// Numbers of memory banks by how many spare rows they have left. Source: nvml.h, `nvmlDeviceGetRowRemapperHistogram`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowBanks {
    pub max: u32,
    pub high: u32,
    pub partial: u32,
    pub low: u32,
    pub none: u32,
}

/// Repairs that the next reset makes. Source: nvml.h, `nvmlDeviceGetRepairStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    pub channel_pending: bool,
    pub tpc_pending: bool,
}

/// Modes, firmware and state of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Modes {
    pub gsp: Reading<Gsp>,
    pub gsp_version: Reading<String>,
    /// InfoROM image version.
    pub inforom: Reading<String>,
    /// Whether the GPU refuses new clients.
    pub drain: Reading<bool>,
    /// 0 is the fastest state, 15 the slowest.
    pub performance_state: Reading<u32>,
    /// `nvmlClocksEventReasons`: why clocks are not at their highest. Bit 0x1 is an idle GPU.
    pub clock_reasons: Reading<u64>,
}

/// Whether the GPU system processor runs the driver's firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gsp {
    pub enabled: bool,
    pub default: bool,
}

/// The registration of a GPU with its NVLink fabric. Source: nvml.h, `nvmlGpuFabricInfo_v3_t`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// Means something in state 3 only.
    pub status: Code,
    pub clique: u32,
    /// Written as a UUID; all zero within one node.
    pub cluster: String,
    /// Two-bit fields, in which 1 is true and 2 is false. Not in version 1 of the structure.
    pub health_mask: Reading<u32>,
    /// 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity. Version 3 of the structure only.
    pub health_summary: Reading<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinks {
    /// Links whose state can be read.
    pub count: u32,
    pub active: u32,
}

/// Use of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// In percent, over the last sampling period; not supported with MIG.
    pub gpu_percent: Reading<u32>,
    pub memory_percent: Reading<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Reading<u32>,
    /// Without the driver's reserve.
    pub memory: Reading<MemoryUse>,
    /// Clients of the MPS server.
    pub mps_pids: Reading<Vec<u32>>,
}

/// What one GPU did within the last seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lately {
    pub power_draw_mw: Reading<u32>,
    /// The samples that the driver keeps of its use: microseconds since 1970, and percent. Not supported with MIG.
    pub samples: Reading<Vec<(u64, u64)>>,
}

/// In bytes. Source: nvml.h, `nvmlMemory_v2_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    pub total: u64,
    pub used: u64,
}

/// Power, heat and connections of one board.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Board {
    pub power_draw_mw: Reading<u32>,
    /// A Grace module's draw; not supported on other boards.
    pub module_draw_mw: Reading<u64>,
    pub module_limit_mw: Reading<u64>,
    pub heat: Heat,
    pub slowed: Slowed,
    pub pcie: Pcie,
    /// `NOT_SUPPORTED` without fans.
    pub fans: Reading<Vec<Fan>>,
    /// `NOT_SUPPORTED` without a link to a CPU of the same module.
    pub c2c: Reading<NvLinks>,
}

/// In degrees Celsius.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Distance to the temperature at which clocks are slowed.
    pub margin: Reading<i32>,
    /// The margin at which the hardware slows clocks; negative from Hopper on.
    pub slowdown_margin: Reading<i32>,
    pub memory: Reading<u32>,
    pub memory_max: Reading<u32>,
}

/// Time with slowed clocks since the driver was loaded, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slowed {
    pub software_power: Reading<u64>,
    pub software_thermal: Reading<u64>,
    pub hardware_thermal: Reading<u64>,
    pub power_brake: Reading<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pcie {
    /// Highest generation of GPU and slot together.
    pub generation_max: Reading<u32>,
    /// Highest generation of the GPU alone.
    pub generation_gpu: Reading<u32>,
    pub width_max: Reading<u32>,
    pub replays: Reading<u32>,
    /// Recoveries of the link since the driver was loaded.
    pub recoveries: Reading<u64>,
}

/// In percent of the highest speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fan {
    pub speed: Reading<u32>,
    pub target: Reading<u32>,
}

/// What takes tens of milliseconds for each GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deep {
    /// Result of `nvmlDeviceValidateInforom`.
    pub inforom: Code,
    /// `NOT_SUPPORTED` without NVLink.
    pub links: Reading<LinkDetail>,
}

/// Over all NVLinks of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkDetail {
    /// Speed of the slowest and of the fastest link, in MB/s.
    pub speeds: Reading<(u64, u64)>,
    pub replays: Reading<u64>,
    pub recoveries: Reading<u64>,
    /// Bit error rate of the worst link after correction; Blackwell and later.
    pub effective_error_rate: Reading<f64>,
    pub symbol_error_rate: Reading<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_survive_the_wire() {
        let answer = Answered {
            id: 3,
            answer: Answer::Snapshot(Box::new(Snapshot {
                driver_version: Ok("580.159.04".to_owned()),
                nvml_version: Err(Code::FUNCTION_NOT_FOUND),
                cuda_version: Ok(13000),
                confidential: Ok(Confidential { enabled: true, devtools: false }),
                confidential_ready: Err(Code::FUNCTION_NOT_FOUND),
                gpus: Vec::new(),
                unreadable: vec![(1, Code::GPU_IS_LOST)],
                drained: Vec::new(),
            })),
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answered>(&text).unwrap(), answer);
    }

    #[test]
    fn codes_that_no_header_knows_keep_their_number() {
        assert_eq!(Code(4711).to_string(), "unknown error (NVML code 4711)");
        assert_eq!(Code::IN_USE.to_string(), "the GPU is in use (NVML code 19)");
    }
}
