//! Getters of a device that depend on its state or identity.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_st, nvmlC2cModeInfo_v1_t, nvmlConfComputeMemSizeInfo_st, nvmlDevice_t,
    nvmlDeviceAddressingMode_v1_t, nvmlDeviceAttributes_st, nvmlDeviceCapabilities_v1_t,
    nvmlDeviceCurrentClockFreqs_v1_t, nvmlDevicePerfModes_v1_t, nvmlEccSramErrorStatus_v1_t, nvmlFBCStats_st,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlMarginTemperature_v1_t,
    nvmlMemory_st, nvmlMemory_v2_st, nvmlPciInfo_st, nvmlPciInfoExt_v1_t, nvmlPdi_v1_t,
    nvmlPlatformInfo_v2_t, nvmlRepairStatus_v1_t, nvmlRowRemapperHistogramValues_st, nvmlTemperature_v1_t,
    nvmlUtilization_st,
};

use super::handles::{self, Target};
use super::recorded::{number, recorded};
use super::session::{Call, ask, read, visible};
use super::{check_version, fixed_text, put, put_text, version_of};
use crate::model::Reading;
use crate::state::{Bus, Gpu, name_hash};
use crate::transitions::code;

macro_rules! getter {
    ($($name:ident($out:ident: $type:ty) = |$call:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, $out: *mut $type) -> u32 {
            read(stringify!($name), device, |$call| {
                let value: $type = $body;
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put($out, value) }
            })
        }
    )*};
}

getter! {
    nvmlDeviceGetIndex(out: c_uint) = |call| {
        call.whole()?;
        visible(call.machine).iter().position(|index| *index == call.index).unwrap_or(call.index) as c_uint
    };
    nvmlDeviceGetMinorNumber(out: c_uint) = |call| { call.whole()?; call.gpu.minor };
    nvmlDeviceGetBoardId(out: c_uint) = |call| call.gpu.bus.bus << 8 | call.gpu.bus.device;
    nvmlDeviceGetModuleId(out: c_uint) = |call| module_id(call);
    nvmlDeviceGetPersistenceMode(out: c_uint) = |call| { call.whole()?; call.gpu.persistence.into() };
    nvmlDeviceGetComputeMode(out: c_uint) = |call| call.gpu.compute_mode;
    nvmlDeviceGetAccountingMode(out: c_uint) = |call| call.gpu.accounting.into();
    nvmlDeviceGetVirtualizationMode(out: c_uint) = |call| call.machine.passthrough.into();
    nvmlDeviceGetPowerUsage(out: c_uint) = |call| { call.whole()?; power_usage(call.gpu) };
    nvmlDeviceGetPowerManagementLimit(out: c_uint) = |call| { call.whole()?; call.gpu.power_limit_mw };
    nvmlDeviceGetEnforcedPowerLimit(out: c_uint) = |call| {
        call.whole()?;
        call.gpu.broken("nvmlDeviceGetEnforcedPowerLimit").map_or(call.gpu.power_limit_mw, |limit| limit as c_uint)
    };
    nvmlDeviceGetPowerManagementDefaultLimit(out: c_uint) = |call| { call.whole()?; call.gpu.spec().power_mw.2 };
    nvmlDeviceGetMaxMigDeviceCount(out: c_uint) = |call| {
        call.whole()?;
        if call.gpu.mig.current { call.gpu.spec().compute_slices } else { 0 }
    };
    nvmlDeviceIsMigDeviceHandle(out: c_uint) = |call| matches!(call.target, Target::Mig { .. }).into();
    nvmlDeviceGetGpuInstanceId(out: c_uint) = |call| match call.target {
        Target::Mig { gpu_instance, .. } => gpu_instance,
        Target::Gpu(_) => return Err(code::INVALID_ARGUMENT),
    };
    nvmlDeviceGetComputeInstanceId(out: c_uint) = |call| match call.target {
        Target::Mig { compute_instance, .. } => compute_instance,
        Target::Gpu(_) => return Err(code::INVALID_ARGUMENT),
    };
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(out: nvmlDevice_t) = |call| match call.target {
        Target::Mig { gpu, .. } => handles::gpu_handle(gpu),
        Target::Gpu(_) => return Err(code::INVALID_ARGUMENT),
    };
    nvmlDeviceGetCurrentClocksEventReasons(out: c_ulonglong) = |call| event_reasons(call);
    nvmlDeviceGetCurrentClocksThrottleReasons(out: c_ulonglong) = |call| event_reasons(call);
    nvmlDeviceGetUtilizationRates(out: nvmlUtilization_st) = |call| {
        call.whole()?;
        let busy = busy(call);
        nvmlUtilization_st { gpu: busy, memory: busy / 2 }
    };
    nvmlDeviceGetBAR1MemoryInfo(out: nvmlBAR1Memory_st) = |call| {
        let field = |name| call.gpu.spec().field("nvmlDeviceGetBAR1MemoryInfo", name);
        nvmlBAR1Memory_st { bar1Total: field("bar1Total"), bar1Free: field("bar1Free"), bar1Used: field("bar1Used") }
    };
    nvmlDeviceGetMemoryInfo(out: nvmlMemory_st) = |call| {
        let memory = memory(call);
        nvmlMemory_st { total: memory.total, free: memory.total - memory.used, used: memory.used }
    };
    nvmlDeviceGetConfComputeMemSizeInfo(out: nvmlConfComputeMemSizeInfo_st) = |call| {
        let field = |name| call.gpu.spec().field("nvmlDeviceGetConfComputeMemSizeInfo", name);
        nvmlConfComputeMemSizeInfo_st {
            protectedMemSizeKib: field("protectedMemSizeKib"),
            unprotectedMemSizeKib: field("unprotectedMemSizeKib"),
        }
    };
    nvmlDeviceGetConfComputeProtectedMemoryUsage(out: nvmlMemory_st) = |_call| nvmlMemory_st { total: 0, free: 0, used: 0 };
    nvmlDeviceGetFBCStats(out: nvmlFBCStats_st) = |_call| nvmlFBCStats_st { sessionsCount: 0, averageFPS: 0, averageLatency: 0 };
    nvmlDeviceGetC2cModeInfoV(out: nvmlC2cModeInfo_v1_t) = |call| nvmlC2cModeInfo_v1_t {
        isC2cEnabled: call.gpu.part("nvmlDeviceGetC2cModeInfoV", "isC2cEnabled") as c_uint,
    };
    nvmlDeviceGetRowRemapperHistogram(out: nvmlRowRemapperHistogramValues_st) = |call| {
        call.whole()?;
        let field = |name| call.gpu.part("nvmlDeviceGetRowRemapperHistogram", name) as c_uint;
        nvmlRowRemapperHistogramValues_st {
            max: field("max"), high: field("high"), partial: field("partial"), low: field("low"), none: field("none"),
        }
    };
    nvmlDeviceGetGpuFabricInfo(out: nvmlGpuFabricInfo_t) = |call| {
        call.whole()?;
        let info = fabric(call)?;
        let nvmlGpuFabricInfo_v3_t { clusterUuid, status, cliqueId, state, .. } = info;
        nvmlGpuFabricInfo_t { clusterUuid, status, cliqueId, state }
    };
    nvmlDeviceGetPciInfo(out: nvmlPciInfo_st) = |call| pci_info(call.gpu);
    nvmlDeviceGetPciInfo_v2(out: nvmlPciInfo_st) = |call| pci_info(call.gpu);
    nvmlDeviceGetPciInfo_v3(out: nvmlPciInfo_st) = |call| pci_info(call.gpu);
    nvmlDeviceGetAttributes_v2(out: nvmlDeviceAttributes_st) = |call| attributes(call)?;
    nvmlDeviceGetAttributes(out: nvmlDeviceAttributes_st) = |call| attributes(call)?;
}

fn module_id(call: &Call<'_>) -> c_uint {
    let first = call.gpu.spec().number("nvmlDeviceGetModuleId") as c_uint;
    (first.saturating_sub(1) + call.gpu.minor) % 8 + 1
}

fn working(call: &Call<'_>) -> bool {
    !call.gpu.clients.is_empty() && !call.users().computing.is_empty()
}

/// Returns how busy the GPU is, in percent.
pub(super) fn busy(call: &Call<'_>) -> c_uint {
    let getter = "nvmlDeviceGetUtilizationRates";
    match call.gpu.broken(&format!("{getter}.gpu")) {
        Some(percent) => percent as c_uint,
        None if working(call) => 97,
        None => call.gpu.part(getter, "gpu") as c_uint,
    }
}

fn power_usage(gpu: &Gpu) -> c_uint {
    let getter = "nvmlDeviceGetPowerUsage";
    gpu.broken(getter).unwrap_or_else(|| gpu.spec().number(getter)) as c_uint
}

fn event_reasons(call: &Call<'_>) -> c_ulonglong {
    call.gpu.broken("nvmlDeviceGetCurrentClocksEventReasons").unwrap_or_else(|| (!working(call)).into())
}

struct Memory {
    total: u64,
    reserved: u64,
    used: u64,
}

fn memory(call: &Call<'_>) -> Memory {
    let field = |name| call.gpu.spec().field("nvmlDeviceGetMemoryInfo", name);
    let work = |instance: Option<u32>| -> u64 {
        let clients = call.gpu.clients.iter().filter(|c| instance.is_none() || c.gpu_instance == instance);
        clients.map(|client| client.memory_mib << 20).sum()
    };
    match call.target {
        Target::Gpu(_) => {
            let total = call.gpu.broken("nvmlDeviceGetMemoryInfo.total_mib");
            let total = total.map_or_else(|| field("total"), |mib| mib << 20);
            let reserved = field("used");
            let held = call.gpu.health.held_mib << 20;
            Memory { total, reserved, used: (reserved + work(None) + held).min(total) }
        }
        Target::Mig { gpu_instance, .. } => {
            let profile = call
                .gpu
                .instance(gpu_instance)
                .and_then(|instance| call.gpu.spec().profile_by_id(instance.profile_id));
            let total = profile.map_or(0, |profile| profile.memory_mib << 20);
            Memory { total, reserved: 0, used: work(Some(gpu_instance)).min(total) }
        }
    }
}

fn pci_info(gpu: &Gpu) -> nvmlPciInfo_st {
    let field = |name| gpu.spec().field("nvmlDeviceGetPciInfo_v3", name) as c_uint;
    let Bus { domain, bus, device } = gpu.bus;
    nvmlPciInfo_st {
        busIdLegacy: fixed_text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: field("pciDeviceId"),
        pciSubSystemId: field("pciSubSystemId"),
        busId: fixed_text(&gpu.bus.nvml()),
    }
}

/// Returns the newest version of the structure; the older ones are its beginning.
fn fabric(call: &Call<'_>) -> Result<nvmlGpuFabricInfo_v3_t, u32> {
    let getter = "nvmlDeviceGetGpuFabricInfoV";
    recorded(call, getter)?;
    let part = |name| call.gpu.part(getter, name) as c_uint;
    Ok(nvmlGpuFabricInfo_v3_t {
        version: version_of::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: [0; 16],
        status: part("status"),
        cliqueId: part("cliqueId"),
        state: part("state") as u8,
        healthMask: part("healthMask"),
        healthSummary: part("healthSummary") as u8,
    })
}

fn attributes(call: &Call<'_>) -> Result<nvmlDeviceAttributes_st, u32> {
    let Target::Mig { gpu_instance, compute_instance, .. } = call.target else {
        return Err(code::NOT_SUPPORTED);
    };
    let instance = call.gpu.instance(gpu_instance).ok_or(code::NOT_FOUND)?;
    let compute =
        instance.compute_instances.iter().find(|ci| ci.id == compute_instance).ok_or(code::NOT_FOUND)?;
    let profile = call.gpu.spec().profile_by_id(instance.profile_id).ok_or(code::NOT_FOUND)?;
    Ok(nvmlDeviceAttributes_st {
        multiprocessorCount: profile.multiprocessors * compute.size / profile.slices.max(1),
        sharedCopyEngineCount: profile.copy_engines,
        sharedDecoderCount: profile.decoders,
        sharedEncoderCount: profile.encoders,
        sharedJpegCount: profile.jpegs,
        sharedOfaCount: profile.ofas,
        gpuInstanceSliceCount: profile.slices,
        computeInstanceSliceCount: compute.size,
        memorySizeMB: profile.memory_mib,
    })
}

macro_rules! count {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(out: *mut c_uint) -> u32 {
            // SAFETY: NVML's own contract for this pointer.
            ask(stringify!($name), |machine| unsafe { put(out, visible(machine).len() as c_uint) })
        }
    )*};
}

count! { nvmlDeviceGetCount nvmlDeviceGetCount_v2 }

macro_rules! handle_by_index {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(index: c_uint, out: *mut nvmlDevice_t) -> u32 {
            ask(stringify!($name), |machine| {
                let index = *visible(machine).get(index as usize).ok_or(code::INVALID_ARGUMENT)?;
                let gpu = machine.gpus.get(index).ok_or(code::INVALID_ARGUMENT)?;
                if gpu.lost {
                    return Err(code::GPU_IS_LOST);
                }
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put(out, handles::gpu_handle(index)) }
            })
        }
    )*};
}

handle_by_index! { nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2 }

/// A getter that finds a device by a text.
macro_rules! handle_by_text {
    ($($name:ident($found:expr))*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(text: *const c_char, out: *mut nvmlDevice_t) -> u32 {
            ask(stringify!($name), |machine| {
                if text.is_null() {
                    return Err(code::INVALID_ARGUMENT);
                }
                // SAFETY: not null; NVML's contract is a text with a final zero.
                let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
                let find: fn(&Gpu, &str) -> bool = $found;
                let seen = visible(machine);
                for (index, gpu) in machine.gpus.iter().enumerate().filter(|(index, _)| seen.contains(index)) {
                    if find(gpu, &text) {
                        // SAFETY: NVML's own contract for this pointer.
                        return unsafe { put(out, handles::gpu_handle(index)) };
                    }
                    for (gi, ci) in gpu.mig_devices() {
                        if gpu.mig_uuid(gi.id, ci.id) == text {
                            // SAFETY: as above.
                            return unsafe { put(out, handles::mig_handle(index, gi.id, ci.id)) };
                        }
                    }
                }
                Err(code::NOT_FOUND)
            })
        }
    )*};
}

handle_by_text! {
    nvmlDeviceGetHandleByUUID(|gpu, text| gpu.uuid == text)
    nvmlDeviceGetHandleBySerial(|gpu, text| gpu.serial == text)
    nvmlDeviceGetHandleByPciBusId(same_bus)
    nvmlDeviceGetHandleByPciBusId_v2(same_bus)
}

fn same_bus(gpu: &Gpu, text: &str) -> bool {
    gpu.bus.nvml().eq_ignore_ascii_case(text) || gpu.bus.sysfs().eq_ignore_ascii_case(text)
}

macro_rules! text_getter {
    ($($name:ident = |$call:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> u32 {
            read(stringify!($name), device, |$call| {
                let text: String = $body;
                // SAFETY: NVML's own contract for this buffer.
                unsafe { put_text(out, length, &text) }
            })
        }
    )*};
}

text_getter! {
    nvmlDeviceGetUUID = |call| match call.target {
        Target::Gpu(_) => call.gpu.uuid.clone(),
        Target::Mig { gpu_instance, compute_instance, .. } => call.gpu.mig_uuid(gpu_instance, compute_instance),
    };
    nvmlDeviceGetName = |call| match call.target {
        Target::Gpu(_) => match call.gpu.answer("nvmlDeviceGetName") {
            Some(Reading::Ok(name)) => name.as_str().unwrap_or_default().to_owned(),
            _ => call.gpu.spec().name().to_owned(),
        },
        Target::Mig { gpu_instance, .. } => {
            let profile = call.gpu.instance(gpu_instance).and_then(|i| call.gpu.spec().profile_by_id(i.profile_id));
            format!("{} MIG {}", call.gpu.spec().name(), profile.map_or("", |p| &p.name))
        }
    };
    nvmlDeviceGetSerial = |call| { call.whole()?; call.gpu.serial.clone() };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetInforomVersion(
    device: nvmlDevice_t,
    object: c_uint,
    out: *mut c_char,
    length: c_uint,
) -> u32 {
    read("nvmlDeviceGetInforomVersion", device, |call| {
        call.whole()?;
        // 0 OEM, 1 ECC, 2 power: as in `nvidia-smi -q` on the same machine.
        let text = match object {
            0 => "2.1",
            1 => "7.16",
            2 => return Err(code::NOT_SUPPORTED),
            _ => return Err(code::INVALID_ARGUMENT),
        };
        // SAFETY: NVML's own contract for this buffer.
        unsafe { put_text(out, length, text) }
    })
}

macro_rules! pair_getter {
    ($($name:ident = |$call:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, first: *mut c_uint, second: *mut c_uint) -> u32 {
            read(stringify!($name), device, |$call| {
                $call.whole()?;
                let (a, b): (c_uint, c_uint) = $body;
                // SAFETY: NVML's own contract for these pointers.
                unsafe {
                    put(first, a)?;
                    put(second, b)
                }
            })
        }
    )*};
}

pair_getter! {
    nvmlDeviceGetEccMode = |call| (call.gpu.ecc.current.into(), call.gpu.ecc.pending.into());
    nvmlDeviceGetMigMode = |call| (call.gpu.mig.current.into(), call.gpu.mig.pending.into());
    nvmlDeviceGetPowerManagementLimitConstraints = |call| {
        let (low, high, _) = call.gpu.spec().power_mw;
        (low, high)
    };
    nvmlDeviceGetCudaComputeCapability = |call| {
        let value = recorded(call, "nvmlDeviceGetCudaComputeCapability")?;
        let item = |index: usize| value.get(index).and_then(|v| v.as_u64()).unwrap_or(0) as c_uint;
        (item(0), item(1))
    };
}

/// A getter of a versioned structure: checks the version word and writes the rest.
macro_rules! versioned {
    ($($name:ident($out:ident: $type:ty, $version:literal) = |$call:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, $out: *mut $type) -> u32 {
            read(stringify!($name), device, |$call| {
                $call.whole()?;
                // SAFETY: NVML's own contract for this structure.
                unsafe { check_version($out, $version)? };
                let version = version_of::<$type>($version);
                let build = $body;
                let value: Result<$type, u32> = build(version);
                // SAFETY: as above.
                unsafe { put($out, value?) }
            })
        }
    )*};
}

versioned! {
    nvmlDeviceGetMemoryInfo_v2(out: nvmlMemory_v2_st, 2) = |call| |version| {
        let memory = memory(call);
        Ok(nvmlMemory_v2_st {
            version,
            total: memory.total,
            reserved: memory.reserved,
            free: memory.total - memory.used,
            used: memory.used - memory.reserved,
        })
    };
    nvmlDeviceGetPdi(out: nvmlPdi_v1_t, 1) = |call| |version| {
        Ok(nvmlPdi_v1_t { version, value: name_hash(&call.gpu.uuid) as u64 })
    };
    nvmlDeviceGetAddressingMode(out: nvmlDeviceAddressingMode_v1_t, 1) = |call| |version| {
        recorded(call, "nvmlDeviceGetAddressingMode")?;
        Ok(nvmlDeviceAddressingMode_v1_t { version, value: 0 })
    };
    nvmlDeviceGetRepairStatus(out: nvmlRepairStatus_v1_t, 1) = |call| |version| {
        recorded(call, "nvmlDeviceGetRepairStatus")?;
        let part = |index| call.gpu.part("nvmlDeviceGetRepairStatus", index) as c_uint;
        Ok(nvmlRepairStatus_v1_t { version, bChannelRepairPending: part("0"), bTpcRepairPending: part("1") })
    };
    nvmlDeviceGetMarginTemperature(out: nvmlMarginTemperature_v1_t, 1) = |call| |version| {
        let margin = recorded(call, "nvmlDeviceGetMarginTemperature")?;
        Ok(nvmlMarginTemperature_v1_t { version, marginTemperature: margin.as_i64().unwrap_or(0) as c_int })
    };
    nvmlDeviceGetCapabilities(out: nvmlDeviceCapabilities_v1_t, 1) = |_call| |version| {
        Ok(nvmlDeviceCapabilities_v1_t { version, capMask: 0 })
    };
    nvmlDeviceGetCurrentClockFreqs(out: nvmlDeviceCurrentClockFreqs_v1_t, 1) = |call| |version| {
        let text = recorded(call, "nvmlDeviceGetCurrentClockFreqs")?.as_str().unwrap_or_default();
        Ok(nvmlDeviceCurrentClockFreqs_v1_t { version, str_: fixed_text(text) })
    };
    nvmlDeviceGetPerformanceModes(out: nvmlDevicePerfModes_v1_t, 1) = |call| |version| {
        let text = recorded(call, "nvmlDeviceGetPerformanceModes")?.as_str().unwrap_or_default();
        Ok(nvmlDevicePerfModes_v1_t { version, str_: fixed_text(text) })
    };
    nvmlDeviceGetPlatformInfo(out: nvmlPlatformInfo_v2_t, 2) = |call| |version| {
        Ok(nvmlPlatformInfo_v2_t {
            version,
            ibGuid: [0; 16],
            chassisSerialNumber: [0; 16],
            slotNumber: 0,
            trayIndex: 0,
            hostId: 0,
            peerType: 0,
            moduleId: module_id(call) as u8,
        })
    };
    nvmlDeviceGetSramEccErrorStatus(out: nvmlEccSramErrorStatus_v1_t, 1) = |call| |version| {
        if !call.gpu.ecc.current {
            return Err(code::NOT_SUPPORTED);
        }
        let part = |name| call.gpu.part("nvmlDeviceGetSramEccErrorStatus", name);
        Ok(nvmlEccSramErrorStatus_v1_t {
            version,
            aggregateUncParity: 0,
            aggregateUncSecDed: part("aggregateUncSecDed"),
            aggregateCor: 0,
            volatileUncParity: 0,
            volatileUncSecDed: part("volatileUncSecDed"),
            volatileCor: 0,
            aggregateUncBucketL2: part("aggregateUncSecDed"),
            aggregateUncBucketSm: 0,
            aggregateUncBucketPcie: 0,
            aggregateUncBucketMcu: 0,
            aggregateUncBucketOther: 0,
            bThresholdExceeded: part("bThresholdExceeded") as c_uint,
        })
    };
    nvmlDeviceGetPciInfoExt(out: nvmlPciInfoExt_v1_t, 1) = |call| |version| {
        let info = pci_info(call.gpu);
        Ok(nvmlPciInfoExt_v1_t {
            version,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            pciDeviceId: info.pciDeviceId,
            pciSubSystemId: info.pciSubSystemId,
            baseClass: 3,
            subClass: 2,
            busId: info.busId,
        })
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    out: *mut nvmlGpuFabricInfo_v2_t,
) -> u32 {
    read("nvmlDeviceGetGpuFabricInfoV", device, |call| {
        call.whole()?;
        let newest = fabric(call)?;
        let nvmlGpuFabricInfo_v3_t { clusterUuid, status, cliqueId, state, healthMask, .. } = newest;
        let version = version_of::<nvmlGpuFabricInfo_v2_t>(2);
        // SAFETY: NVML's own contract: the version word tells which structure this is.
        unsafe {
            if check_version(out, 2).is_ok() {
                let older =
                    nvmlGpuFabricInfo_v2_t { version, clusterUuid, status, cliqueId, state, healthMask };
                return put(out, older);
            }
            let out = out.cast::<nvmlGpuFabricInfo_v3_t>();
            check_version(out, 3)?;
            put(out, newest)
        }
    })
}

fn temperature(call: &Call<'_>) -> u64 {
    call.gpu.broken("nvmlDeviceGetTemperature(0)").unwrap_or(36)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, out: *mut nvmlTemperature_v1_t) -> u32 {
    read("nvmlDeviceGetTemperatureV", device, |call| {
        call.whole()?;
        // SAFETY: NVML's own contract for this structure.
        unsafe {
            check_version(out, 1)?;
            if (*out).sensorType != 0 {
                return Err(code::INVALID_ARGUMENT);
            }
            (*out).temperature = temperature(call) as c_int;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: c_uint, out: *mut c_uint) -> u32 {
    read("nvmlDeviceGetTemperature", device, |call| {
        call.whole()?;
        if sensor != 0 {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, temperature(call) as c_uint) }
    })
}

/// A getter of one fan; there are as many as `nvmlDeviceGetNumFans` says.
macro_rules! fan_getter {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, fan: c_uint, out: *mut c_uint) -> u32 {
            read(stringify!($name), device, |call| {
                call.whole()?;
                if u64::from(fan) >= number(recorded(call, "nvmlDeviceGetNumFans")?) {
                    return Err(code::INVALID_ARGUMENT);
                }
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put(out, call.gpu.broken(stringify!($name)).unwrap_or(30) as c_uint) }
            })
        }
    )*};
}

fan_getter! { nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetTargetFanSpeed }

/// Answers with the code of a defect.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceValidateInforom(device: nvmlDevice_t) -> u32 {
    read("nvmlDeviceValidateInforom", device, |call| {
        call.whole()?;
        match call.gpu.broken("nvmlDeviceValidateInforom").unwrap_or(0) {
            0 => Ok(()),
            code => Err(code as u32),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFanSpeedRPM(device: nvmlDevice_t, _info: *mut c_uint) -> u32 {
    read("nvmlDeviceGetFanSpeedRPM", device, |_| Err(code::INVALID_ARGUMENT))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetLastBBXFlushTime(
    device: nvmlDevice_t,
    _time: *mut c_ulonglong,
    _duration: *mut c_ulong,
) -> u32 {
    read("nvmlDeviceGetLastBBXFlushTime", device, |call| {
        recorded(call, "nvmlDeviceGetLastBBXFlushTime").map(|_| ())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUnrepairableMemoryFlag_v1(
    device: nvmlDevice_t,
    out: *mut [c_uint; 2],
) -> u32 {
    read("nvmlDeviceGetUnrepairableMemoryFlag_v1", device, |call| {
        call.whole()?;
        // SAFETY: NVML's own contract: a version word and one number.
        unsafe {
            check_version(out, 1)?;
            (*out)[1] = number(recorded(call, "nvmlDeviceGetUnrepairableMemoryFlag_v1")?) as c_uint;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetConfComputeGpuCertificate(device: nvmlDevice_t, _out: *mut u8) -> u32 {
    read("nvmlDeviceGetConfComputeGpuCertificate", device, |_| Err(code::UNKNOWN))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetRemappedRows", device, |call| {
        call.whole()?;
        if !call.gpu.instances.is_empty() {
            return Err(code::NOT_SUPPORTED);
        }
        let health = &call.gpu.health;
        // SAFETY: NVML's own contract for these pointers.
        unsafe {
            put(correctable, health.remapped_correctable)?;
            put(uncorrectable, health.remapped_uncorrectable)?;
            put(pending, health.remap_pending.into())?;
            put(failed, health.remap_failed.into())
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceQueryDrainState(pci: *mut nvmlPciInfo_st, out: *mut c_uint) -> u32 {
    ask("nvmlDeviceQueryDrainState", |machine| {
        if pci.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: not null; NVML's own contract for this structure.
        let (domain, bus, device) = unsafe { ((*pci).domain, (*pci).bus, (*pci).device) };
        let gpu =
            machine.gpus.iter().find(|gpu| gpu.bus == Bus { domain, bus, device }).ok_or(code::NOT_FOUND)?;
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, gpu.draining.into()) }
    })
}
