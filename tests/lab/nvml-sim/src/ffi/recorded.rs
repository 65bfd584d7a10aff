//! Getters of fixed properties of the model, which return what was recorded on the real device.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use serde_json::Value;

use super::session::{Call, read};
use super::{put, put_text};
use crate::model::Reading;
use crate::transitions::code;

/// Returns the answer of a defect, else the recorded one; a getter without one is not supported.
pub(super) fn recorded<'a>(call: &Call<'a>, name: &str) -> Result<&'a Value, u32> {
    match call.gpu.answer(name) {
        Some(Reading::Ok(value)) => Ok(value),
        Some(Reading::Err(code)) => Err(*code),
        None => Err(code::NOT_SUPPORTED),
    }
}

pub(super) fn number(value: &Value) -> u64 {
    // Some getters with one output were recorded as a list of one.
    let value = value.get(0).unwrap_or(value);
    value.as_u64().or_else(|| value.as_i64().map(|n| n as u64)).unwrap_or(0)
}

macro_rules! numbers {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut c_uint) -> u32 {
            read(stringify!($name), device, |call| {
                call.whole()?;
                let value = recorded(call, stringify!($name))?;
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put(out, number(value) as c_uint) }
            })
        }
    )*};
}

macro_rules! long_numbers {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut c_ulonglong) -> u32 {
            read(stringify!($name), device, |call| {
                call.whole()?;
                let value = recorded(call, stringify!($name))?;
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put(out, number(value)) }
            })
        }
    )*};
}

macro_rules! pairs {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, first: *mut c_uint, second: *mut c_uint) -> u32 {
            read(stringify!($name), device, |call| {
                call.whole()?;
                recorded(call, stringify!($name))?;
                let item = |index| call.gpu.part(stringify!($name), index) as c_uint;
                // SAFETY: NVML's own contract for these pointers.
                unsafe {
                    put(first, item("0"))?;
                    put(second, item("1"))
                }
            })
        }
    )*};
}

macro_rules! texts {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> u32 {
            read(stringify!($name), device, |call| {
                call.whole()?;
                let value = recorded(call, stringify!($name))?;
                // SAFETY: NVML's own contract for this buffer.
                unsafe { put_text(out, length, value.as_str().unwrap_or_default()) }
            })
        }
    )*};
}

/// A getter with one number as its argument; recorded as `name(argument)`.
macro_rules! by_index {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, index: c_uint, out: *mut c_uint) -> u32 {
            read(stringify!($name), device, |call| {
                call.whole()?;
                let value = at_index(call, stringify!($name), &[index])?;
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put(out, value as c_uint) }
            })
        }
    )*};
}

/// Returns the recorded answer of a getter with arguments; others than the recorded ones are invalid.
pub(super) fn at_index(call: &Call<'_>, name: &str, arguments: &[u32]) -> Result<u64, u32> {
    let text = arguments.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    match call.gpu.answer(&format!("{name}({text})")) {
        Some(Reading::Ok(value)) => Ok(number(value)),
        Some(Reading::Err(code)) => Err(*code),
        None => Err(code::INVALID_ARGUMENT),
    }
}

numbers! {
    nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetArchitecture
    nvmlDeviceGetBrand nvmlDeviceGetBusType nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth
    nvmlDeviceGetDefaultEccMode nvmlDeviceGetDisplayActive nvmlDeviceGetDisplayMode nvmlDeviceGetFanSpeed
    nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetGpuMaxPcieLinkGeneration nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetIrqNum nvmlDeviceGetMaxPcieLinkGeneration
    nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetMultiGpuBoard nvmlDeviceGetNumFans nvmlDeviceGetNumGpuCores nvmlDeviceGetNumaNodeId
    nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetPcieReplayCounter nvmlDeviceGetPcieSpeed
    nvmlDeviceGetPerformanceState nvmlDeviceGetPowerManagementMode nvmlDeviceGetPowerSource
    nvmlDeviceGetPowerState nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetVgpuHeterogeneousMode
    nvmlDeviceGetClkMonStatus nvmlDeviceGetNvlinkBwMode
}

long_numbers! {
    nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
    nvmlDeviceGetSupportedEventTypes
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, out: *mut c_ulonglong) -> u32 {
    read("nvmlDeviceGetTotalEnergyConsumption", device, |call| {
        call.whole()?;
        recorded(call, "nvmlDeviceGetTotalEnergyConsumption")?;
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, call.gpu.energy_mj()) }
    })
}

pairs! {
    nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetDecoderUtilization nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2 nvmlDeviceGetEncoderUtilization nvmlDeviceGetGpcClkMinMaxVfOffset
    nvmlDeviceGetGpuOperationMode nvmlDeviceGetGspFirmwareMode nvmlDeviceGetJpgUtilization
    nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetOfaUtilization
}

texts! {
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetInforomImageVersion nvmlDeviceGetVbiosVersion
}

/// The firmware comes with the loaded driver. This getter takes no length: nvml.h promises at most 64 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGspFirmwareVersion(device: nvmlDevice_t, out: *mut c_char) -> u32 {
    read("nvmlDeviceGetGspFirmwareVersion", device, |call| {
        call.whole()?;
        recorded(call, "nvmlDeviceGetGspFirmwareVersion")?;
        let version = match call.gpu.health.broken.get("nvmlDeviceGetGspFirmwareVersion") {
            Some(Reading::Ok(Value::String(other))) => other,
            _ => &call.machine.module_version,
        };
        // SAFETY: NVML's own contract for this buffer.
        unsafe { put_text(out, 64, version) }
    })
}

by_index! {
    nvmlDeviceGetTemperatureThreshold nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkVersion
    nvmlDeviceGetAPIRestriction nvmlDeviceGetMaxClockInfo nvmlDeviceGetDefaultApplicationsClock
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    out: *mut c_ulonglong,
) -> u32 {
    read("nvmlDeviceGetNvLinkErrorCounter", device, |call| {
        call.whole()?;
        let value = at_index(call, "nvmlDeviceGetNvLinkErrorCounter", &[link, counter])?;
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, value) }
    })
}
