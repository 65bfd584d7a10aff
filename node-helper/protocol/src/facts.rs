//! Hardware and software facts of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One reading of a node. What could not be read is `None`, or has an entry in `errors`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub hostname: String,
    pub boot_id: Option<String>,
    pub kernel: String,
    /// Machine architecture as `uname -m` prints it.
    pub arch: String,
    pub os: OsFacts,
    pub cpus: u32,
    pub numa_nodes: u32,
    pub memory_mib: u64,
    pub uptime_s: u64,
    pub cmdline: String,
    /// `systemd` or the name of process 1.
    pub init: String,
    pub virtualization: Option<String>,
    /// IPv4 address of the default route, if there is one.
    pub address: Option<String>,
    pub gpu: GpuSystem,
    /// Further facts that playbooks use.
    #[serde(default)]
    pub machine: MachineFacts,
    /// What could not be read, one sentence each.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// Facts that playbooks use under Ansible's names; what could not be read is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineFacts {
    pub id: Option<String>,
    /// The kernel's build, as `uname -v` prints it.
    pub kernel_build: String,
    /// The user who reads the facts.
    pub user: UserFacts,
    /// Variables of that user's environment without secrets: names, folders, language.
    pub environment: BTreeMap<String, String>,
    /// When they were read, in microseconds since 1970.
    pub time_us: i64,
    /// Name of the time zone, such as `Europe/Berlin`.
    pub zone: Option<String>,
    /// `apt`, `dnf`, `zypper`, …
    pub package_manager: Option<String>,
    /// The firmware's texts about board and product, by their names in /sys/class/dmi/id.
    pub firmware: BTreeMap<String, String>,
    pub memory: MemoryFacts,
    pub processors: ProcessorFacts,
    pub interfaces: Vec<InterfaceFacts>,
    /// Interface and gateway of the default route.
    pub default_route: Option<(String, String)>,
    pub name_servers: Vec<String>,
    pub search_domains: Vec<String>,
    pub mounts: Vec<MountFacts>,
    /// Over 1, 5 and 15 minutes.
    pub load: Option<(f64, f64, f64)>,
    pub selinux: bool,
    pub apparmor: bool,
    pub fips: bool,
    /// Contents of the files in /etc/ansible/facts.d, by their names.
    pub local: serde_json::Map<String, serde_json::Value>,
    /// Path and version of Python, such as `3.12.3`.
    pub python: Option<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserFacts {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub comment: String,
    pub home: String,
    pub shell: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryFacts {
    #[serde(rename = "free")]
    pub free_mib: u64,
    /// Free memory, and caches that can be released at once.
    #[serde(rename = "available")]
    pub available_mib: u64,
    #[serde(rename = "swap_total")]
    pub swap_total_mib: u64,
    #[serde(rename = "swap_free")]
    pub swap_free_mib: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessorFacts {
    pub vendor: String,
    pub model: String,
    pub sockets: u32,
    pub cores_per_socket: u32,
    pub threads_per_core: u32,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceFacts {
    pub name: String,
    pub mac: Option<String>,
    pub mtu: Option<u32>,
    pub up: bool,
    /// Address and prefix length.
    pub ipv4: Vec<(String, u8)>,
    pub ipv6: Vec<(String, u8)>,
}

/// A mounted file system on a device or a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountFacts {
    pub device: String,
    pub mount: String,
    pub fstype: String,
    pub options: String,
    #[serde(rename = "size_total")]
    pub size_total_bytes: u64,
    #[serde(rename = "size_available")]
    pub size_available_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsFacts {
    /// `ID` of os-release, such as `ubuntu`.
    pub id: String,
    pub version: String,
    pub pretty: String,
    /// `VERSION_CODENAME`, such as `noble`.
    #[serde(default)]
    pub codename: String,
    /// The content of /etc/debian_version, if it exists: only this has point releases.
    #[serde(default)]
    pub debian_version: Option<String>,
    /// `ID_LIKE`, split.
    pub like: Vec<String>,
}

/// The GPUs of a node and their driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSystem {
    pub state: GpuSystemState,
    /// Version of the loaded kernel module.
    pub module_version: Option<String>,
    /// Version of the user-space library.
    pub driver_version: Option<String>,
    /// Highest CUDA version that the driver supports, such as `13.0`.
    pub cuda_version: Option<String>,
    /// Number of NVIDIA display or 3D controllers on the PCI bus, all of which should be found.
    pub pci_count: u32,
    pub gpus: Vec<GpuFacts>,
}

/// Whether the GPUs could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum GpuSystemState {
    /// Not asked.
    #[default]
    NotRead,
    Ok,
    /// No NVIDIA GPU on the bus.
    NoGpu,
    NoDriver {
        detail: String,
    },
    /// Library and module differ: the driver was upgraded while the old module is loaded (NVML code 18).
    VersionMismatch {
        detail: String,
    },
    /// NVML did not answer within its deadline; the worker was killed.
    Hung {
        detail: String,
    },
    Crashed {
        detail: String,
    },
    /// The worker cannot run here, for example without glibc.
    NoWorker {
        detail: String,
    },
    Failed {
        detail: String,
    },
}

impl GpuSystemState {
    /// Returns why the GPUs could not be read, where somebody said so.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::NotRead | Self::Ok | Self::NoGpu => None,
            Self::NoDriver { detail }
            | Self::VersionMismatch { detail }
            | Self::Hung { detail }
            | Self::Crashed { detail }
            | Self::NoWorker { detail }
            | Self::Failed { detail } => Some(detail),
        }
    }
}

/// One GPU. `None` means not supported, or not readable here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    pub index: u32,
    pub uuid: String,
    /// PCI address as sysfs writes it, such as `0000:5d:00.0`.
    pub pci: String,
    /// N of `/dev/nvidiaN`.
    #[serde(default)]
    pub minor: Option<u32>,
    pub name: String,
    /// `Ampere`, `Hopper`, …
    pub architecture: String,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: Option<String>,
    pub memory_mib: Option<u64>,
    pub vbios: Option<String>,
    pub serial: Option<String>,
    pub board_part: Option<String>,
    pub persistence: Option<bool>,
    pub ecc_current: Option<bool>,
    pub ecc_pending: Option<bool>,
    pub mig_current: Option<bool>,
    pub mig_pending: Option<bool>,
    pub mig_layout: Vec<MigInstance>,
    pub power_limit_mw: Option<u64>,
    pub power_default_mw: Option<u64>,
    pub power_min_mw: Option<u64>,
    pub power_max_mw: Option<u64>,
    pub power_enforced_mw: Option<u64>,
    /// `default`, `exclusive_process` or `prohibited`.
    pub compute_mode: Option<String>,
    pub graphics_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    pub max_graphics_clock_mhz: Option<u32>,
    pub max_memory_clock_mhz: Option<u32>,
    pub temperature_c: Option<u32>,
    pub pcie_generation: Option<u32>,
    pub pcie_width: Option<u32>,
    /// Whether the driver hides it from programs that start, and so from whoever reads these facts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// What could not be read, one sentence each.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// One GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MigInstance {
    /// Name such as `3g.40gb`.
    pub profile: String,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Id of the GPU instance.
    pub id: u32,
    /// Compute instances in it; 0 is an orphan.
    pub compute_instances: u32,
}
