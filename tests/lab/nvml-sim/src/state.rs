//! The state of a simulated machine, as stored in its state file.
//!
//! Owns its structure and initial values. [`crate::transitions`] changes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{Model, ModelKey, Reading};

/// A current value, and the pending one that the next reset or reboot makes current.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    pub current: bool,
    pub pending: bool,
}

impl Staged {
    pub fn settled(value: bool) -> Self {
        Self { current: value, pending: value }
    }

    pub fn is_pending(self) -> bool {
        self.current != self.pending
    }
}

/// A whole simulated machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    /// New after every reboot, as `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// How often the machine has been started.
    pub boots: u32,
    /// Where the device files are; `/dev` on a node.
    pub device_dir: String,
    pub driver_loaded: bool,
    /// Version of the library on disk.
    pub library_version: String,
    /// Version of the loaded kernel module; if it differs from the library's, NVML returns 18.
    pub module_version: String,
    /// Whether the loaded kernel module is the proprietary one.
    #[serde(default)]
    pub proprietary: bool,
    /// In-kernel users of the driver's display module, which prevent resets on Ampere.
    pub nvidia_drm_refs: u32,
    /// Whether it is a virtual machine with GPUs by pass-through, which must reboot for a reset.
    pub passthrough: bool,
    /// GPUs that the driver was told to leave alone.
    #[serde(default)]
    pub excluded_gpus: u32,
    /// NVSwitches on the PCI bus, at most 16; seen from the next boot on.
    #[serde(default)]
    pub nvswitches: u32,
    /// Whether confidential computing is on.
    #[serde(default)]
    pub confidential: bool,
    /// Whether the GPUs accept work under it; lost with the driver.
    #[serde(default)]
    pub confidential_ready: bool,
    /// CUDA version that the library says; the recorded one without it.
    #[serde(default)]
    pub cuda_version: Option<u32>,
    pub gpus: Vec<Gpu>,
}

/// One simulated GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Minor number: N of `/dev/nvidiaN`.
    pub minor: u32,
    pub model: ModelKey,
    pub uuid: String,
    pub serial: String,
    pub bus: Bus,
    pub ecc: Staged,
    pub mig: Staged,
    pub instances: Vec<GpuInstance>,
    /// The flag that NVML reads; it does not say whether the daemon or the kernel holds the device.
    pub persistence: bool,
    pub power_limit_mw: u32,
    /// Limit of its module of GPU and CPU, if it is on one.
    #[serde(default)]
    pub module_limit_mw: Option<u32>,
    pub locked_graphics_mhz: Option<(u32, u32)>,
    pub locked_memory_mhz: Option<(u32, u32)>,
    /// Application clocks as (memory, graphics), if set.
    pub application_mhz: Option<(u32, u32)>,
    pub compute_mode: u32,
    pub accounting: bool,
    pub draining: bool,
    /// Whether it has fallen off the bus: every call on it returns 15 until a reboot.
    pub lost: bool,
    pub health: Health,
    /// Processes with a compute context on the GPU; dead ones do not count.
    pub clients: Vec<Client>,
    /// How often the GPU has been reset since its creation.
    pub resets: u32,
    /// How often the driver initialised it again since its creation; each time its count of energy begins anew.
    #[serde(default)]
    pub initialisations: u32,
}

/// A PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bus {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

impl Bus {
    /// Returns sysfs' form: `0000:1b:00.0`.
    pub fn sysfs(self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }

    /// Returns NVML's form: `00000000:1B:00.0`.
    pub fn nvml(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    pub id: u32,
    pub profile_id: u32,
    pub start: u32,
    pub size: u32,
    pub compute_instances: Vec<ComputeInstance>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    pub id: u32,
    pub profile_id: u32,
    pub start: u32,
    pub size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// In the process namespace of the machine.
    pub pid: u32,
    pub memory_mib: u64,
    /// The GPU instance that it runs on, under MIG.
    pub gpu_instance: Option<u32>,
    /// When it began, in microseconds since 1970.
    #[serde(default)]
    pub since_us: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub remapped_correctable: u32,
    pub remapped_uncorrectable: u32,
    pub remap_pending: bool,
    pub remap_failed: bool,
    pub volatile_correctable: u64,
    pub volatile_uncorrectable: u64,
    pub aggregate_correctable: u64,
    pub aggregate_uncorrectable: u64,
    /// 0 none, 1 reset, 2 reboot, 3 drain peer to peer, 4 drain and reset (NVML field 230).
    pub recovery_action: u32,
    /// Memory that is in use without a process, in MiB.
    #[serde(default)]
    pub held_mib: u64,
    /// Answers that differ from the recording, by getter; see [`crate::defect`].
    #[serde(default)]
    pub broken: BTreeMap<String, Reading>,
}

pub const DRIVER_VERSION: &str = "580.159.04";

/// PCI bus numbers of an eight-GPU board, as HGX machines have them.
const BUSES: [u32; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];

impl Machine {
    /// Creates a machine as delivered: persistence off, ECC on, MIG off, default limits.
    pub fn new(name: &str, models: &[ModelKey], boot_id: String) -> Self {
        let gpus = models.iter().enumerate().map(|(i, model)| Gpu::new(name, i as u32, *model)).collect();
        Self {
            name: name.to_owned(),
            boot_id,
            boots: 1,
            device_dir: "/dev".to_owned(),
            driver_loaded: true,
            library_version: DRIVER_VERSION.to_owned(),
            module_version: DRIVER_VERSION.to_owned(),
            proprietary: false,
            nvidia_drm_refs: 0,
            passthrough: false,
            excluded_gpus: 0,
            nvswitches: 0,
            confidential: false,
            confidential_ready: false,
            cuda_version: None,
            gpus,
        }
    }
}

impl Gpu {
    fn new(machine: &str, minor: u32, model: ModelKey) -> Self {
        let bus = match BUSES.get(minor as usize) {
            Some(bus) => Bus { domain: 0, bus: *bus, device: 0 },
            None => Bus { domain: 1, bus: minor, device: 0 },
        };
        let seed = name_hash(&format!("{machine}/{minor}"));
        Self {
            minor,
            model,
            uuid: format!("GPU-{}", uuid::Uuid::from_u128(seed)),
            serial: format!("165{:010}", (seed >> 64) as u64 % 10_000_000_000),
            bus,
            ecc: Staged::settled(true),
            mig: Staged::settled(false),
            instances: Vec::new(),
            persistence: false,
            power_limit_mw: model.model().power_mw.2,
            module_limit_mw: None,
            locked_graphics_mhz: None,
            locked_memory_mhz: None,
            application_mhz: None,
            compute_mode: 0,
            accounting: false,
            draining: false,
            lost: false,
            health: Health::default(),
            clients: Vec::new(),
            resets: 0,
            initialisations: 0,
        }
    }

    /// The energy used since the last initialisation, in millijoules: less after each, so that a test can tell.
    pub fn energy_mj(&self) -> u64 {
        self.spec().number("nvmlDeviceGetTotalEnergyConsumption") >> self.initialisations.min(63)
    }

    pub fn spec(&self) -> &'static Model {
        self.model.model()
    }

    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    /// Returns every MIG device as (GPU instance, compute instance), in the order of
    /// `nvmlDeviceGetMigDeviceHandleByIndex`.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.instances.iter().flat_map(|gi| gi.compute_instances.iter().map(move |ci| (gi, ci)))
    }

    /// Returns the UUID of a MIG device, which depends on the place of its instance.
    pub fn mig_uuid(&self, gpu_instance: u32, compute_instance: u32) -> String {
        let seed = name_hash(&format!("{}/{gpu_instance}/{compute_instance}", self.uuid));
        format!("MIG-{}", uuid::Uuid::from_u128(seed))
    }
}

/// Returns a stable 128-bit hash of a text (FNV-1a, then mixed), so that a node with the same name has the same GPUs.
pub fn name_hash(text: &str) -> u128 {
    let hash = text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    // Mixed, because names that differ only in their last character would differ in few digits.
    (0..3).fold(hash, |x, _| {
        let x = (x ^ (x >> 67)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        x ^ (x >> 61)
    })
}
