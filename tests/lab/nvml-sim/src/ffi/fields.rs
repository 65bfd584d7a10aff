//! Many readings in one call: `nvmlDeviceGetFieldValues`, with a return code for each, and the utilization domains.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_st, nvmlGpuDynamicPstatesInfo_st,
    nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1, nvmlValue_st,
};

use super::put;
use super::recorded::{number, recorded};
use super::session::{Call, read};
use crate::transitions::code;

/// First field id that driver 580 does not know.
const FIELD_END: u32 = 274;

enum Number {
    Unsigned(u32),
    Long(u64),
}

fn field(call: &Call<'_>, id: u32) -> Result<Number, u32> {
    use Number::{Long, Unsigned};
    let gpu = call.gpu;
    let (low, high, default) = gpu.spec().power_mw;
    let health = &gpu.health;
    match id {
        1 => Ok(Unsigned(gpu.ecc.current.into())),
        2 => Ok(Unsigned(gpu.ecc.pending.into())),
        3 => Ok(Long(health.volatile_correctable)),
        4 => Ok(Long(health.volatile_uncorrectable)),
        5 => Ok(Long(health.aggregate_correctable)),
        6 => Ok(Long(health.aggregate_uncorrectable)),
        82 => Ok(Unsigned(44)),
        83 => Ok(Long(gpu.spec().number("nvmlDeviceGetTotalEnergyConsumption"))),
        142 => Ok(Unsigned(health.remapped_correctable)),
        143 => Ok(Unsigned(health.remapped_uncorrectable)),
        144 => Ok(Unsigned(health.remap_pending.into())),
        145 => Ok(Unsigned(health.remap_failed.into())),
        185 | 186 => Ok(Unsigned(gpu.spec().number("nvmlDeviceGetPowerUsage") as u32)),
        187 => Ok(Unsigned(low)),
        188 => Ok(Unsigned(high)),
        189 => Ok(Unsigned(default)),
        190 | 191 => Ok(Unsigned(gpu.power_limit_mw)),
        230 => Ok(Unsigned(health.recovery_action)),
        FIELD_END.. => Err(code::INVALID_ARGUMENT),
        _ => Err(code::NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_st,
) -> u32 {
    read("nvmlDeviceGetFieldValues", device, |call| {
        if values.is_null() || count < 0 {
            return Err(code::INVALID_ARGUMENT);
        }
        for slot in 0..count as usize {
            // SAFETY: NVML's own contract: the array has `count` items.
            let item = unsafe { &mut *values.add(slot) };
            (item.valueType, item.nvmlReturn, item.value) = match field(call, item.fieldId) {
                Ok(Number::Unsigned(value)) => (1, code::SUCCESS, nvmlValue_st { uiVal: value }),
                Ok(Number::Long(value)) => (3, code::SUCCESS, nvmlValue_st { ullVal: value }),
                Err(code) => (1, code, nvmlValue_st { ullVal: 0 }),
            };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDynamicPstatesInfo(
    device: nvmlDevice_t,
    out: *mut nvmlGpuDynamicPstatesInfo_st,
) -> u32 {
    read("nvmlDeviceGetDynamicPstatesInfo", device, |call| {
        call.whole()?;
        let domains = recorded(call, "nvmlDeviceGetDynamicPstatesInfo")?
            .get("utilization")
            .cloned()
            .unwrap_or_default();
        let utilization = std::array::from_fn(|index| nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1 {
            bIsPresent: domains.get(index).and_then(|d| d.get("bIsPresent")).map_or(0, number) as u32,
            percentage: 0,
            incThreshold: 0,
            decThreshold: 0,
        });
        // SAFETY: NVML's own contract for this structure.
        unsafe { put(out, nvmlGpuDynamicPstatesInfo_st { flags: 0, utilization }) }
    })
}
