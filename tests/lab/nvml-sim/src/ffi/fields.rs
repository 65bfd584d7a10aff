//! Many readings in one call: `nvmlDeviceGetFieldValues`, with a return code for each, and the utilization domains.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_st, nvmlGpuDynamicPstatesInfo_st,
    nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1, nvmlValue_st,
};

use super::put;
use super::recorded::{number, recorded};
use super::session::{Call, read};
use crate::model::Reading;
use crate::transitions::code;

/// First field id that driver 580 does not know.
const FIELD_END: u32 = 274;

enum Number {
    Unsigned(u32),
    Long(u64),
    Signed(i32),
}

/// Returns the answer of a defect or the recorded one, with the type that the real driver gives it.
fn recorded_field(call: &Call<'_>, id: u32, scope: u32) -> Option<Result<Number, u32>> {
    let value = match call.gpu.answer(&format!("nvmlDeviceGetFieldValues({id})"))? {
        Reading::Ok(value) => value.as_i64().unwrap_or(0),
        Reading::Err(code) => return Some(Err(*code)),
    };
    Some(match id {
        // By link.
        160..=168
            if !matches!(
                call.gpu.spec().reading(&format!("nvmlDeviceGetNvLinkState({scope})")),
                Some(Reading::Ok(_))
            ) =>
        {
            Err(code::NOT_SUPPORTED)
        }
        193..=196 => Ok(Number::Signed(value as i32)),
        74 | 160..=163 | 269..=273 => Ok(Number::Long(value.cast_unsigned())),
        _ => Ok(Number::Unsigned(value as u32)),
    })
}

fn field(call: &Call<'_>, id: u32, scope: u32) -> Result<Number, u32> {
    use Number::{Long, Unsigned};
    let gpu = call.gpu;
    let (low, high, default) = gpu.spec().power_mw;
    let health = &gpu.health;
    if let Some(answer) = recorded_field(call, id, scope) {
        return answer;
    }
    match id {
        1 => Ok(Unsigned(gpu.ecc.current.into())),
        2 => Ok(Unsigned(gpu.ecc.pending.into())),
        3 => Ok(Long(health.volatile_correctable)),
        4 => Ok(Long(health.volatile_uncorrectable)),
        5 => Ok(Long(health.aggregate_correctable)),
        6 => Ok(Long(health.aggregate_uncorrectable)),
        83 => Ok(Long(gpu.spec().number("nvmlDeviceGetTotalEnergyConsumption"))),
        142 => Ok(Unsigned(health.remapped_correctable)),
        143 => Ok(Unsigned(health.remapped_uncorrectable)),
        144 => Ok(Unsigned(health.remap_pending.into())),
        145 => Ok(Unsigned(health.remap_failed.into())),
        // Scope 1 is the module, which only Grace boards have.
        185..=191 if scope == 1 => Err(code::NOT_SUPPORTED),
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
            (item.valueType, item.nvmlReturn, item.value) = match field(call, item.fieldId, item.scopeId) {
                Ok(Number::Unsigned(value)) => (1, code::SUCCESS, nvmlValue_st { uiVal: value }),
                Ok(Number::Signed(value)) => (5, code::SUCCESS, nvmlValue_st { siVal: value }),
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
