//! Setters of a device. Each is logged, needs root, and returns what NVML documents.

use std::ffi::c_uint;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlPciInfo_st, nvmlPowerValue_v2_t};
use serde_json::json;

use super::session::{change, change_at, store};
use super::{check_version, put};
use crate::state::Bus;
use crate::transitions::{MODULE_MW, code};

fn flag(value: c_uint) -> Result<bool, u32> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(code::INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetPersistenceMode(device: nvmlDevice_t, mode: c_uint) -> u32 {
    change("nvmlDeviceSetPersistenceMode", device, json!({"mode": mode}), |gpu, _| {
        gpu.persistence = flag(mode)?;
        tell_daemon(gpu.minor, gpu.persistence);
        Ok(())
    })
}

/// Notifies a running persistence daemon, which then opens or closes the device.
fn tell_daemon(minor: u32, persistence: bool) {
    if std::env::var_os("GPUSIM_STATE").is_some() {
        return;
    }
    let Ok(mut socket) = UnixStream::connect("/run/nvidia-persistenced/socket") else { return };
    let _ = socket.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = socket.write_all(format!("set {minor} {}\n", u8::from(persistence)).as_bytes());
    let mut answer = String::new();
    let _ = BufReader::new(socket).read_line(&mut answer);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetEccMode(device: nvmlDevice_t, mode: c_uint) -> u32 {
    change("nvmlDeviceSetEccMode", device, json!({"mode": mode}), |gpu, _| {
        gpu.set_ecc(flag(mode)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetMigMode(
    device: nvmlDevice_t,
    mode: c_uint,
    activation: *mut c_uint,
) -> u32 {
    let mut status = code::SUCCESS;
    let answer = change("nvmlDeviceSetMigMode", device, json!({"mode": mode}), |gpu, context| {
        if activation.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        status = gpu.set_mig_mode(flag(mode)?, &context.users, context.drm_refs, context.passthrough);
        Ok(())
    });
    if answer == code::SUCCESS {
        // SAFETY: NVML's own contract for this pointer; a null one was refused.
        let _ = unsafe { put(activation, status) };
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetPowerManagementLimit(device: nvmlDevice_t, limit_mw: c_uint) -> u32 {
    change("nvmlDeviceSetPowerManagementLimit", device, json!({"limit_mw": limit_mw}), |gpu, _| {
        match gpu.set_power_limit(limit_mw) {
            code::SUCCESS => Ok(()),
            code => Err(code),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetPowerManagementLimit_v2(
    device: nvmlDevice_t,
    value: *mut nvmlPowerValue_v2_t,
) -> u32 {
    // SAFETY: NVML's own contract for this structure.
    let checked = unsafe { check_version(value, 2).map(|()| ((*value).powerScope, (*value).powerValueMw)) };
    let args = json!({
        "scope": checked.ok().map(|(scope, _)| scope),
        "limit_mw": checked.ok().map(|(_, limit)| limit),
    });
    change("nvmlDeviceSetPowerManagementLimit_v2", device, args, |gpu, _| {
        let (scope, limit) = checked?;
        // 0 is the GPU, 1 the module, 2 the memory, which no board lets anybody limit.
        match (scope, gpu.module_limit_mw.is_some()) {
            (0, _) => {}
            (1, true) if !(MODULE_MW.0..=MODULE_MW.1).contains(&limit) => return Err(code::INVALID_ARGUMENT),
            (1, true) => {
                gpu.module_limit_mw = Some(limit);
                return Ok(());
            }
            _ => return Err(code::NOT_SUPPORTED),
        }
        match gpu.set_power_limit(limit) {
            code::SUCCESS => Ok(()),
            code => Err(code),
        }
    })
}

macro_rules! range_setter {
    ($($name:ident = $method:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, low: c_uint, high: c_uint) -> u32 {
            change(stringify!($name), device, json!({"min_mhz": low, "max_mhz": high}), |gpu, _| {
                match gpu.$method(low, high) {
                    code::SUCCESS => Ok(()),
                    code => Err(code),
                }
            })
        }
    )*};
}

range_setter! {
    nvmlDeviceSetGpuLockedClocks = lock_graphics;
    nvmlDeviceSetMemoryLockedClocks = lock_memory;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceResetGpuLockedClocks(device: nvmlDevice_t) -> u32 {
    change("nvmlDeviceResetGpuLockedClocks", device, json!({}), |gpu, _| {
        gpu.locked_graphics_mhz = None;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceResetMemoryLockedClocks(device: nvmlDevice_t) -> u32 {
    change("nvmlDeviceResetMemoryLockedClocks", device, json!({}), |gpu, _| {
        gpu.locked_memory_mhz = None;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetApplicationsClocks(
    device: nvmlDevice_t,
    memory: c_uint,
    graphics: c_uint,
) -> u32 {
    let args = json!({"memory_mhz": memory, "graphics_mhz": graphics});
    change("nvmlDeviceSetApplicationsClocks", device, args, |gpu, _| {
        let model = gpu.spec();
        if !model.memory_clocks_mhz.contains(&memory) || !model.graphics_clocks().contains(&graphics) {
            return Err(code::INVALID_ARGUMENT);
        }
        gpu.application_mhz = Some((memory, graphics));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceResetApplicationsClocks(device: nvmlDevice_t) -> u32 {
    change("nvmlDeviceResetApplicationsClocks", device, json!({}), |gpu, _| {
        gpu.application_mhz = None;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: c_uint) -> u32 {
    change("nvmlDeviceSetComputeMode", device, json!({"mode": mode}), |gpu, _| {
        // 0 default, 2 prohibited, 3 exclusive process; 1 (exclusive thread) was removed.
        match mode {
            1 => Err(code::NOT_SUPPORTED),
            0 | 2 | 3 if gpu.mig.current && mode != 0 => Err(code::NOT_SUPPORTED),
            0 | 2 | 3 => {
                gpu.compute_mode = mode;
                Ok(())
            }
            _ => Err(code::INVALID_ARGUMENT),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetAccountingMode(device: nvmlDevice_t, mode: c_uint) -> u32 {
    change("nvmlDeviceSetAccountingMode", device, json!({"mode": mode}), |gpu, _| {
        if gpu.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        gpu.accounting = flag(mode)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceClearAccountingPids(device: nvmlDevice_t) -> u32 {
    change("nvmlDeviceClearAccountingPids", device, json!({}), |_, _| Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceClearEccErrorCounts(device: nvmlDevice_t, counter: c_uint) -> u32 {
    change("nvmlDeviceClearEccErrorCounts", device, json!({"counter": counter}), |gpu, _| match counter {
        0 => {
            gpu.health.volatile_correctable = 0;
            gpu.health.volatile_uncorrectable = 0;
            Ok(())
        }
        // Aggregate counters of Ampere and later cannot be cleared.
        1 => Err(code::NOT_SUPPORTED),
        _ => Err(code::INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceModifyDrainState(pci: *mut nvmlPciInfo_st, state: c_uint) -> u32 {
    let bus = if pci.is_null() {
        None
    } else {
        // SAFETY: not null; NVML's own contract for this structure.
        Some(unsafe { Bus { domain: (*pci).domain, bus: (*pci).bus, device: (*pci).device } })
    };
    let index =
        bus.and_then(|bus| store().read().ok().and_then(|m| m.gpus.iter().position(|gpu| gpu.bus == bus)));
    change_at("nvmlDeviceModifyDrainState", index, json!({"state": state}), |gpu, _| {
        // Draining needs persistence off, because otherwise the driver itself keeps the device open.
        if state == 1 && gpu.persistence {
            return Err(code::IN_USE);
        }
        gpu.draining = flag(state)?;
        Ok(())
    })
}

/// Setters that this generation of GPUs, or this machine, does not support: logged, then refused.
macro_rules! unsupported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t) -> u32 {
            change(stringify!($name), device, json!({}), |_, _| Err(code::NOT_SUPPORTED))
        }
    )*};
}

unsupported! {
    nvmlDeviceSetAPIRestriction nvmlDeviceSetAutoBoostedClocksEnabled nvmlDeviceSetClockOffsets
    nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetCpuAffinity nvmlDeviceClearCpuAffinity
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled nvmlDeviceSetDefaultFanSpeed_v2 nvmlDeviceSetDramEncryptionMode
    nvmlDeviceSetDriverModel nvmlDeviceSetFanControlPolicy nvmlDeviceSetFanSpeed_v2 nvmlDeviceSetGpcClkVfOffset
    nvmlDeviceSetGpuOperationMode nvmlDeviceSetHostname_v1 nvmlDeviceSetMemClkVfOffset nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetPowerMizerMode_v1 nvmlDeviceSetTemperatureThreshold nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState nvmlDeviceSetVirtualizationMode
    nvmlDevicePowerSmoothingActivatePresetProfile nvmlDevicePowerSmoothingSetState
    nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles nvmlDeviceClearFieldValues
    nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
}
