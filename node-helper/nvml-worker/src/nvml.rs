//! A thin safe face of libnvidia-ml.so.1: all unsafe code of the worker.
//!
//! Every function here is one NVML call (or one call repeated for a growing buffer). Results are values or the bare
//! return code. A symbol that the driver's library lacks answers [`Code::FUNCTION_NOT_FOUND`], as NVML itself would.
//! It decides nothing: which calls make a reading or a setting is the business of the modules beside it.
//!
//! Why not `nvml-wrapper`: 0.13 has no calls for GPU instances, returns empty placements, hides the activation status
//! of the MIG mode and loses codes of 23 and above.

#![expect(unsafe_code, reason = "this module is the one place that calls into a C library")]

use std::{
    ffi::{c_char, c_uint, c_ulonglong},
    fs::File,
    os::fd::FromRawFd,
};

use gpufleet_protocol::nvml::{Code, Placement, Reading, RemappedRows, Staged};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_st, nvmlComputeInstanceProfileInfo_st,
    nvmlDevice_t, nvmlFieldValue_st, nvmlGpuInstance_t, nvmlGpuInstanceInfo_st, nvmlGpuInstancePlacement_st,
    nvmlGpuInstanceProfileInfo_st, nvmlGpuInstanceProfileInfo_v2_st, nvmlMemory_st, nvmlPciInfo_st,
    nvmlProcessInfo_v1_st, nvmlProcessInfo_v2_st,
};

/// Long enough for every string that NVML gives (its largest constant is 96).
const TEXT: usize = 128;
/// More instances than any GPU has slices.
const MANY: usize = 64;
/// Clock domains: `nvmlClockType_t`.
pub const CLOCK_GRAPHICS: c_uint = 0;
pub const CLOCK_MEMORY: c_uint = 2;

/// Places where drivers put the library when the loader does not know it.
const FALLBACKS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/libnvidia-ml.so.1",
    "/usr/lib/nvidia/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
];

/// Calls a function of the library if it has it.
macro_rules! call {
    ($nvml:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match &$nvml.lib.$function {
            // SAFETY: the signature is nvml.h's, made by bindgen; every pointer handed over points to a live local of
            // the type and length that the call documents, and handles come from this library in this process.
            Ok(function) => check(unsafe { function($($argument),*) }),
            Err(_) => Err(Code::FUNCTION_NOT_FOUND),
        }
    };
}

/// Reads one number through a pointer.
macro_rules! number {
    ($nvml:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let mut value: c_uint = 0;
        call!($nvml, $function($($argument,)* &raw mut value)).map(|()| value)
    }};
}

/// Reads one string.
macro_rules! text {
    ($nvml:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let mut buffer: [c_char; TEXT] = [0; TEXT];
        call!($nvml, $function($($argument,)* buffer.as_mut_ptr(), TEXT as c_uint)).map(|()| string(&buffer))
    }};
}

fn check(code: c_uint) -> Reading<()> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

fn string(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()))
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The version word of a versioned struct: its size, and the version in the top byte.
fn version_word<T>(version: u32) -> c_uint {
    (size_of::<T>() as c_uint) | (version << 24)
}

/// Structs of plain numbers, for which all zeroes are a value.
trait Plain: Sized {
    fn zeroed() -> Self {
        // SAFETY: implementors are C structs of integers, integer arrays and raw pointers only; zero is valid for each.
        unsafe { std::mem::zeroed() }
    }
}
impl Plain for nvmlPciInfo_st {}
impl Plain for nvmlMemory_st {}
impl Plain for nvmlProcessInfo_v1_st {}
impl Plain for nvmlProcessInfo_v2_st {}
impl Plain for nvmlGpuInstanceProfileInfo_st {}
impl Plain for nvmlGpuInstanceProfileInfo_v2_st {}
impl Plain for nvmlGpuInstancePlacement_st {}
impl Plain for nvmlGpuInstanceInfo_st {}
impl Plain for nvmlComputeInstanceProfileInfo_st {}
impl Plain for nvmlComputeInstanceInfo_st {}

/// A GPU, valid until its mode changes or NVML is shut down.
#[derive(Clone, Copy)]
pub struct Device(nvmlDevice_t);
/// A GPU instance of a [`Device`].
#[derive(Clone, Copy)]
pub struct Instance(nvmlGpuInstance_t);
/// A compute instance of an [`Instance`].
#[derive(Clone, Copy)]
pub struct Compute(nvmlComputeInstance_t);

/// What a profile query gives; the name only where the driver tells it.
pub struct ProfileInfo {
    pub id: u32,
    pub slices: u32,
    pub max_count: u32,
    pub memory_mib: u64,
    pub name: Option<String>,
}

pub struct InstanceInfo {
    pub id: u32,
    pub profile_id: u32,
    pub placement: Placement,
}

pub struct ComputeProfile {
    pub id: u32,
    pub slices: u32,
}

pub struct ComputeInfo {
    pub id: u32,
    pub profile_id: u32,
    pub size: u32,
}

pub struct ProcessInfo {
    pub pid: u32,
    pub memory_bytes: Option<u64>,
    pub gpu_instance: Option<u32>,
}

/// The loaded and initialised library.
pub struct Nvml {
    lib: NvmlLib,
}

/// Why there is no [`Nvml`].
pub enum OpenError {
    NoLibrary(String),
    Init(Code),
}

impl Nvml {
    /// Loads and initialises the library.
    ///
    /// # Errors
    /// No library, or what `nvmlInit` answered.
    pub fn open() -> Result<Self, OpenError> {
        let nvml = Self { lib: load().map_err(OpenError::NoLibrary)? };
        call!(nvml, nvmlInit_v2()).map_err(OpenError::Init)?;
        Ok(nvml)
    }

    pub fn shutdown(&self) {
        let _ = call!(self, nvmlShutdown());
    }

    pub fn driver_version(&self) -> Reading<String> {
        text!(self, nvmlSystemGetDriverVersion())
    }

    pub fn nvml_version(&self) -> Reading<String> {
        text!(self, nvmlSystemGetNVMLVersion())
    }

    pub fn cuda_version(&self) -> Reading<u32> {
        let mut version = 0;
        call!(self, nvmlSystemGetCudaDriverVersion_v2(&raw mut version))?;
        u32::try_from(version).map_err(|_| Code::UNKNOWN)
    }

    pub fn device_count(&self) -> Reading<u32> {
        number!(self, nvmlDeviceGetCount_v2())
    }

    pub fn device(&self, index: u32) -> Reading<Device> {
        let mut device: nvmlDevice_t = std::ptr::null_mut();
        call!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)).map(|()| Device(device))
    }

    pub fn uuid(&self, device: Device) -> Reading<String> {
        text!(self, nvmlDeviceGetUUID(device.0))
    }

    pub fn name(&self, device: Device) -> Reading<String> {
        text!(self, nvmlDeviceGetName(device.0))
    }

    pub fn vbios(&self, device: Device) -> Reading<String> {
        text!(self, nvmlDeviceGetVbiosVersion(device.0))
    }

    pub fn serial(&self, device: Device) -> Reading<String> {
        text!(self, nvmlDeviceGetSerial(device.0))
    }

    pub fn board_part(&self, device: Device) -> Reading<String> {
        text!(self, nvmlDeviceGetBoardPartNumber(device.0))
    }

    fn pci_info(&self, device: Device) -> Reading<nvmlPciInfo_st> {
        let mut info = nvmlPciInfo_st::zeroed();
        call!(self, nvmlDeviceGetPciInfo_v3(device.0, &raw mut info)).map(|()| info)
    }

    /// PCI address as sysfs writes it; NVML counts only function 0.
    pub fn pci(&self, device: Device) -> Reading<String> {
        let info = self.pci_info(device)?;
        Ok(format!("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device))
    }

    pub fn minor(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetMinorNumber(device.0))
    }

    pub fn architecture(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetArchitecture(device.0))
    }

    pub fn compute_capability(&self, device: Device) -> Reading<(u32, u32)> {
        let (mut major, mut minor) = (0, 0);
        call!(self, nvmlDeviceGetCudaComputeCapability(device.0, &raw mut major, &raw mut minor))?;
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }

    /// The whole memory of the GPU, in bytes.
    pub fn memory_bytes(&self, device: Device) -> Reading<u64> {
        let mut info = nvmlMemory_st::zeroed();
        call!(self, nvmlDeviceGetMemoryInfo(device.0, &raw mut info)).map(|()| info.total)
    }

    pub fn persistence(&self, device: Device) -> Reading<bool> {
        number!(self, nvmlDeviceGetPersistenceMode(device.0)).map(|mode| mode != 0)
    }

    pub fn set_persistence(&self, device: Device, on: bool) -> Reading<()> {
        call!(self, nvmlDeviceSetPersistenceMode(device.0, c_uint::from(on)))
    }

    pub fn ecc(&self, device: Device) -> Reading<Staged> {
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        call!(self, nvmlDeviceGetEccMode(device.0, &raw mut current, &raw mut pending))?;
        Ok(Staged { current: current != 0, pending: pending != 0 })
    }

    /// Source: nvml.h, `nvmlMemoryErrorType_t` 1 is uncorrected, `nvmlEccCounterType_t` 0 is volatile.
    pub fn ecc_uncorrected(&self, device: Device) -> Reading<u64> {
        let mut count: c_ulonglong = 0;
        call!(self, nvmlDeviceGetTotalEccErrors(device.0, 1, 0, &raw mut count))?;
        Ok(count)
    }

    /// `NVML_MEMORY_LOCATION_SRAM` is 7.
    pub fn ecc_uncorrected_sram(&self, device: Device) -> Reading<u64> {
        let mut count: c_ulonglong = 0;
        call!(self, nvmlDeviceGetMemoryErrorCounter(device.0, 1, 0, 7, &raw mut count))?;
        Ok(count)
    }

    /// Field 230, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
    pub fn recovery_action(&self, device: Device) -> Reading<u32> {
        // SAFETY: a C structure of numbers, for which zeroes are values.
        let mut field: nvmlFieldValue_st = unsafe { std::mem::zeroed() };
        field.fieldId = 230;
        // Why a type that NVML does not have: success with nothing written would read as "none" (a batch of fields did
        // so on drivers of 580).
        field.valueType = u32::MAX;
        field.nvmlReturn = Code::UNKNOWN.0;
        call!(self, nvmlDeviceGetFieldValues(device.0, 1, &raw mut field))?;
        check(field.nvmlReturn)?;
        // SAFETY: the type says which member was written. Source: nvml.h, `nvmlValueType_t`.
        match field.valueType {
            1 => Ok(unsafe { field.value.uiVal }),
            2 | 3 => u32::try_from(unsafe { field.value.ullVal }).map_err(|_| Code::UNKNOWN),
            5 => u32::try_from(unsafe { field.value.siVal }).map_err(|_| Code::UNKNOWN),
            _ => Err(Code::UNKNOWN),
        }
    }

    pub fn remapped_rows(&self, device: Device) -> Reading<RemappedRows> {
        let (mut correctable, mut uncorrectable): (c_uint, c_uint) = (0, 0);
        let (mut pending, mut failed): (c_uint, c_uint) = (0, 0);
        call!(
            self,
            nvmlDeviceGetRemappedRows(
                device.0,
                &raw mut correctable,
                &raw mut uncorrectable,
                &raw mut pending,
                &raw mut failed,
            )
        )?;
        Ok(RemappedRows { uncorrectable, pending: pending != 0, failed: failed != 0 })
    }

    pub fn set_ecc(&self, device: Device, on: bool) -> Reading<()> {
        call!(self, nvmlDeviceSetEccMode(device.0, c_uint::from(on)))
    }

    pub fn mig(&self, device: Device) -> Reading<Staged> {
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        call!(self, nvmlDeviceGetMigMode(device.0, &raw mut current, &raw mut pending))?;
        Ok(Staged { current: current != 0, pending: pending != 0 })
    }

    /// Gives the activation status; the request itself succeeded then.
    pub fn set_mig(&self, device: Device, on: bool) -> Reading<Code> {
        let mut activation: c_uint = 0;
        call!(self, nvmlDeviceSetMigMode(device.0, c_uint::from(on), &raw mut activation))?;
        Ok(Code(activation))
    }

    pub fn power_limit(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetPowerManagementLimit(device.0))
    }

    pub fn power_default(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetPowerManagementDefaultLimit(device.0))
    }

    pub fn power_enforced(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetEnforcedPowerLimit(device.0))
    }

    pub fn power_range(&self, device: Device) -> Reading<(u32, u32)> {
        let (mut low, mut high): (c_uint, c_uint) = (0, 0);
        call!(self, nvmlDeviceGetPowerManagementLimitConstraints(device.0, &raw mut low, &raw mut high))?;
        Ok((low, high))
    }

    pub fn set_power_limit(&self, device: Device, milliwatts: u32) -> Reading<()> {
        call!(self, nvmlDeviceSetPowerManagementLimit(device.0, milliwatts))
    }

    pub fn compute_mode(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetComputeMode(device.0))
    }

    pub fn set_compute_mode(&self, device: Device, mode: u32) -> Reading<()> {
        call!(self, nvmlDeviceSetComputeMode(device.0, mode))
    }

    /// Clock of a domain in MHz.
    pub fn clock(&self, device: Device, domain: c_uint) -> Reading<u32> {
        number!(self, nvmlDeviceGetClockInfo(device.0, domain))
    }

    pub fn max_clock(&self, device: Device, domain: c_uint) -> Reading<u32> {
        number!(self, nvmlDeviceGetMaxClockInfo(device.0, domain))
    }

    pub fn supported_memory_clocks(&self, device: Device) -> Reading<Vec<u32>> {
        growing(0u32, |count, clocks| {
            call!(self, nvmlDeviceGetSupportedMemoryClocks(device.0, count, clocks))
        })
    }

    pub fn supported_graphics_clocks(&self, device: Device, memory_mhz: u32) -> Reading<Vec<u32>> {
        growing(0u32, |count, clocks| {
            call!(self, nvmlDeviceGetSupportedGraphicsClocks(device.0, memory_mhz, count, clocks))
        })
    }

    pub fn lock_graphics(&self, device: Device, low: u32, high: u32) -> Reading<()> {
        call!(self, nvmlDeviceSetGpuLockedClocks(device.0, low, high))
    }

    pub fn unlock_graphics(&self, device: Device) -> Reading<()> {
        call!(self, nvmlDeviceResetGpuLockedClocks(device.0))
    }

    pub fn lock_memory(&self, device: Device, low: u32, high: u32) -> Reading<()> {
        call!(self, nvmlDeviceSetMemoryLockedClocks(device.0, low, high))
    }

    pub fn unlock_memory(&self, device: Device) -> Reading<()> {
        call!(self, nvmlDeviceResetMemoryLockedClocks(device.0))
    }

    /// Temperature of the chip in degrees Celsius.
    pub fn temperature(&self, device: Device) -> Reading<u32> {
        const NVML_TEMPERATURE_GPU: c_uint = 0;
        number!(self, nvmlDeviceGetTemperature(device.0, NVML_TEMPERATURE_GPU))
    }

    pub fn pcie_generation(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetCurrPcieLinkGeneration(device.0))
    }

    pub fn pcie_width(&self, device: Device) -> Reading<u32> {
        number!(self, nvmlDeviceGetCurrPcieLinkWidth(device.0))
    }

    pub fn nvlink_active(&self, device: Device, link: u32) -> Reading<bool> {
        number!(self, nvmlDeviceGetNvLinkState(device.0, link)).map(|state| state != 0)
    }

    /// Refuses new clients of the GPU, or admits them again.
    pub fn set_drain(&self, device: Device, on: bool) -> Reading<()> {
        let mut info = self.pci_info(device)?;
        call!(self, nvmlDeviceModifyDrainState(&raw mut info, c_uint::from(on)))
    }

    /// A profile by NVML's enum value, which is not the id that create calls take.
    pub fn profile(&self, device: Device, number: u32) -> Reading<ProfileInfo> {
        let mut info = nvmlGpuInstanceProfileInfo_v2_st::zeroed();
        info.version = version_word::<nvmlGpuInstanceProfileInfo_v2_st>(2);
        match call!(self, nvmlDeviceGetGpuInstanceProfileInfoV(device.0, number, &raw mut info)) {
            Ok(()) => Ok(ProfileInfo {
                id: info.id,
                slices: info.sliceCount,
                max_count: info.instanceCount,
                memory_mib: info.memorySizeMB,
                name: Some(string(&info.name)).filter(|name| !name.is_empty()),
            }),
            Err(Code::FUNCTION_NOT_FOUND | Code::ARGUMENT_VERSION_MISMATCH) => {
                self.profile_v1(device, number)
            }
            Err(code) => Err(code),
        }
    }

    fn profile_v1(&self, device: Device, number: u32) -> Reading<ProfileInfo> {
        let mut info = nvmlGpuInstanceProfileInfo_st::zeroed();
        call!(self, nvmlDeviceGetGpuInstanceProfileInfo(device.0, number, &raw mut info))?;
        Ok(ProfileInfo {
            id: info.id,
            slices: info.sliceCount,
            max_count: info.instanceCount,
            memory_mib: info.memorySizeMB,
            name: None,
        })
    }

    pub fn placements(&self, device: Device, profile_id: u32) -> Reading<Vec<Placement>> {
        let found = growing(nvmlGpuInstancePlacement_st::zeroed(), |count, places| {
            match call!(
                self,
                nvmlDeviceGetGpuInstancePossiblePlacements_v2(device.0, profile_id, places, count)
            ) {
                Err(Code::FUNCTION_NOT_FOUND) => {
                    call!(
                        self,
                        nvmlDeviceGetGpuInstancePossiblePlacements(device.0, profile_id, places, count)
                    )
                }
                other => other,
            }
        })?;
        Ok(found.iter().map(|place| Placement { start: place.start, size: place.size }).collect())
    }

    pub fn instances(&self, device: Device, profile_id: u32) -> Reading<Vec<Instance>> {
        let mut found: [nvmlGpuInstance_t; MANY] = [std::ptr::null_mut(); MANY];
        let mut count = MANY as c_uint;
        call!(self, nvmlDeviceGetGpuInstances(device.0, profile_id, found.as_mut_ptr(), &raw mut count))?;
        Ok(found.iter().take(count as usize).map(|instance| Instance(*instance)).collect())
    }

    pub fn instance(&self, device: Device, id: u32) -> Reading<Instance> {
        let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
        call!(self, nvmlDeviceGetGpuInstanceById(device.0, id, &raw mut instance))
            .map(|()| Instance(instance))
    }

    pub fn instance_info(&self, instance: Instance) -> Reading<InstanceInfo> {
        let mut info = nvmlGpuInstanceInfo_st::zeroed();
        call!(self, nvmlGpuInstanceGetInfo(instance.0, &raw mut info))?;
        Ok(InstanceInfo {
            id: info.id,
            profile_id: info.profileId,
            placement: Placement { start: info.placement.start, size: info.placement.size },
        })
    }

    pub fn create_instance(&self, device: Device, profile_id: u32, place: Placement) -> Reading<Instance> {
        let place = nvmlGpuInstancePlacement_st { start: place.start, size: place.size };
        let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
        call!(
            self,
            nvmlDeviceCreateGpuInstanceWithPlacement(
                device.0,
                profile_id,
                &raw const place,
                &raw mut instance
            )
        )?;
        Ok(Instance(instance))
    }

    pub fn destroy_instance(&self, instance: Instance) -> Reading<()> {
        call!(self, nvmlGpuInstanceDestroy(instance.0))
    }

    /// A compute instance profile by NVML's enum value, with the shared engine profile.
    pub fn compute_profile(&self, instance: Instance, number: u32) -> Reading<ComputeProfile> {
        let mut info = nvmlComputeInstanceProfileInfo_st::zeroed();
        call!(self, nvmlGpuInstanceGetComputeInstanceProfileInfo(instance.0, number, 0, &raw mut info))?;
        Ok(ComputeProfile { id: info.id, slices: info.sliceCount })
    }

    pub fn computes(&self, instance: Instance, profile_id: u32) -> Reading<Vec<Compute>> {
        let mut found: [nvmlComputeInstance_t; MANY] = [std::ptr::null_mut(); MANY];
        let mut count = MANY as c_uint;
        call!(
            self,
            nvmlGpuInstanceGetComputeInstances(instance.0, profile_id, found.as_mut_ptr(), &raw mut count)
        )?;
        Ok(found.iter().take(count as usize).map(|compute| Compute(*compute)).collect())
    }

    pub fn compute(&self, instance: Instance, id: u32) -> Reading<Compute> {
        let mut compute: nvmlComputeInstance_t = std::ptr::null_mut();
        call!(self, nvmlGpuInstanceGetComputeInstanceById(instance.0, id, &raw mut compute))?;
        Ok(Compute(compute))
    }

    pub fn compute_info(&self, compute: Compute) -> Reading<ComputeInfo> {
        let mut info = nvmlComputeInstanceInfo_st::zeroed();
        call!(self, nvmlComputeInstanceGetInfo_v2(compute.0, &raw mut info))?;
        Ok(ComputeInfo { id: info.id, profile_id: info.profileId, size: info.placement.size })
    }

    pub fn create_compute(&self, instance: Instance, profile_id: u32) -> Reading<Compute> {
        let mut compute: nvmlComputeInstance_t = std::ptr::null_mut();
        call!(self, nvmlGpuInstanceCreateComputeInstance(instance.0, profile_id, &raw mut compute))?;
        Ok(Compute(compute))
    }

    pub fn destroy_compute(&self, compute: Compute) -> Reading<()> {
        call!(self, nvmlComputeInstanceDestroy(compute.0))
    }

    /// Processes with a compute or graphics context.
    pub fn processes(&self, device: Device) -> Reading<Vec<ProcessInfo>> {
        let mut all = self.compute_processes(device)?;
        let graphics = growing(nvmlProcessInfo_v2_st::zeroed(), |count, infos| {
            call!(self, nvmlDeviceGetGraphicsRunningProcesses_v3(device.0, count, infos))
        });
        for process in graphics.unwrap_or_default().iter().map(process) {
            if all.iter().all(|known| known.pid != process.pid) {
                all.push(process);
            }
        }
        Ok(all)
    }

    fn compute_processes(&self, device: Device) -> Reading<Vec<ProcessInfo>> {
        let newest = growing(nvmlProcessInfo_v2_st::zeroed(), |count, infos| {
            call!(self, nvmlDeviceGetComputeRunningProcesses_v3(device.0, count, infos))
        });
        let newer = match newest {
            Err(Code::FUNCTION_NOT_FOUND) => growing(nvmlProcessInfo_v2_st::zeroed(), |count, infos| {
                call!(self, nvmlDeviceGetComputeRunningProcesses_v2(device.0, count, infos))
            }),
            other => other,
        };
        match newer {
            Ok(found) => Ok(found.iter().map(process).collect()),
            Err(Code::FUNCTION_NOT_FOUND) => {
                let old = growing(nvmlProcessInfo_v1_st::zeroed(), |count, infos| {
                    call!(self, nvmlDeviceGetComputeRunningProcesses(device.0, count, infos))
                })?;
                Ok(old
                    .iter()
                    .map(|info| ProcessInfo {
                        pid: info.pid,
                        memory_bytes: known(info.usedGpuMemory),
                        gpu_instance: None,
                    })
                    .collect())
            }
            Err(code) => Err(code),
        }
    }
}

/// NVML's "not available" is the largest number.
fn known(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}

fn process(info: &nvmlProcessInfo_v2_st) -> ProcessInfo {
    ProcessInfo {
        pid: info.pid,
        memory_bytes: known(info.usedGpuMemory),
        gpu_instance: (info.gpuInstanceId != u32::MAX).then_some(info.gpuInstanceId),
    }
}

/// Calls with a buffer that grows until everything fits; the list may grow between two calls.
fn growing<T: Clone>(empty: T, mut read: impl FnMut(*mut c_uint, *mut T) -> Reading<()>) -> Reading<Vec<T>> {
    let mut room = 128usize;
    for _ in 0..6 {
        let mut buffer = vec![empty.clone(); room];
        let mut count = room as c_uint;
        match read(&raw mut count, buffer.as_mut_ptr()) {
            Ok(()) => {
                buffer.truncate(count as usize);
                return Ok(buffer);
            }
            Err(Code::INSUFFICIENT_SIZE) => room = (count as usize).max(room) + 64,
            Err(code) => return Err(code),
        }
    }
    Err(Code::INSUFFICIENT_SIZE)
}

fn load() -> Result<NvmlLib, String> {
    let mut complaint: Option<String> = None;
    for path in std::iter::once(&"libnvidia-ml.so.1").chain(FALLBACKS) {
        let by_name = !path.contains('/');
        if !by_name && !std::path::Path::new(path).exists() {
            continue;
        }
        // SAFETY: loading runs the initialisers of NVIDIA's library, which is what this process is for.
        match unsafe { NvmlLib::new(path) } {
            Ok(lib) => return Ok(lib),
            // Why: a library that is there and does not load says more than "not found".
            Err(error) if !by_name || complaint.is_none() => complaint = Some(with_causes(&error)),
            Err(_) => {}
        }
    }
    Err(complaint.unwrap_or_else(|| "libnvidia-ml.so.1 was not found".to_owned()))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Takes standard output away from everybody else: what the driver's library prints goes to standard error.
///
/// # Errors
/// The descriptors cannot be duplicated.
pub fn own_stdout() -> std::io::Result<File> {
    // SAFETY: plain system calls on the standard descriptors; the new one is owned by the file alone.
    unsafe {
        let kept = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        if kept < 0 || libc::dup2(2, 1) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(kept))
    }
}

/// Forbids core dumps of this process and that others of its user trace it, as the helper does for itself.
pub fn forbid_dumps() {
    // SAFETY: plain system calls; the structure is read only while the second one lasts.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    }
}

/// Ends the process without the exit handlers of the driver's library, which may hang.
pub fn leave(code: i32) -> ! {
    // SAFETY: _exit takes a number and never returns.
    unsafe { libc::_exit(code) }
}
