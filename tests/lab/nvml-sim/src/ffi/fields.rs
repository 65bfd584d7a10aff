//! Many readings in one call: `nvmlDeviceGetFieldValues`, with a return code for each, and the utilization domains.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_st, nvmlGpuDynamicPstatesInfo_st,
    nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1, nvmlSample_st, nvmlValue_st,
};

use super::put;
use super::recorded::{number, recorded};
use super::session::{Call, read};
use crate::model::Reading;
use crate::transitions::{MODULE_MW, code};

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
        83 => Ok(Long(gpu.energy_mj())),
        142 => Ok(Unsigned(health.remapped_correctable)),
        143 => Ok(Unsigned(health.remapped_uncorrectable)),
        144 => Ok(Unsigned(health.remap_pending.into())),
        145 => Ok(Unsigned(health.remap_failed.into())),
        // Scope 1 is the module, which only Grace boards have.
        187..=190 | 192 if scope == 1 => match (gpu.module_limit_mw, id) {
            (None, _) => Err(code::NOT_SUPPORTED),
            (Some(_), 187) => Ok(Unsigned(MODULE_MW.0)),
            (Some(_), 188 | 189) => Ok(Unsigned(MODULE_MW.1)),
            (Some(limit), _) => Ok(Unsigned(limit)),
        },
        185..=192 if scope == 1 => Err(code::NOT_SUPPORTED),
        185 | 186 => Ok(Unsigned(gpu.spec().number("nvmlDeviceGetPowerUsage") as u32)),
        187 => Ok(Unsigned(low)),
        188 => Ok(Unsigned(high)),
        189 => Ok(Unsigned(default)),
        190 | 192 => Ok(Unsigned(gpu.power_limit_mw)),
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

/// Samples that the driver keeps of the utilisation: 71 in 14 s. Source: an H100 with driver 580.159.04.
const SAMPLES: u64 = 71;
const SAMPLE_US: u64 = 200_000;

/// In samples of GPU utilisation, so many of five are what the GPU shows and the others are zero: work that waits.
const BUSY_FIFTHS: &str = "nvmlDeviceGetSamples.busy_fifths";

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: c_uint,
    since_us: c_ulonglong,
    value_type: *mut c_uint,
    count: *mut c_uint,
    samples: *mut nvmlSample_st,
) -> u32 {
    const NVML_GPU_UTILIZATION_SAMPLES: c_uint = 1;
    read("nvmlDeviceGetSamples", device, |call| {
        call.whole()?;
        if count.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        if kind != NVML_GPU_UTILIZATION_SAMPLES || call.gpu.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        let busy = super::devices::busy(call);
        let since = call.gpu.clients.iter().map(|client| client.since_us).min().unwrap_or(0);
        let fifths = call.gpu.broken(BUSY_FIFTHS).unwrap_or(5);
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        let newest = now_us / SAMPLE_US * SAMPLE_US;
        let taken: Vec<nvmlSample_st> = (0..SAMPLES)
            .map(|back| newest - (SAMPLES - 1 - back) * SAMPLE_US)
            .filter(|at| *at > since_us)
            .map(|at| nvmlSample_st {
                timeStamp: at,
                sampleValue: nvmlValue_st {
                    uiVal: if at >= since && at / SAMPLE_US % 5 < fifths { busy } else { 0 },
                },
            })
            .collect();
        // SAFETY: NVML's own contract for these pointers; without a buffer only the number is asked for.
        unsafe {
            put(value_type, 1)?;
            if !samples.is_null() {
                if (*count as usize) < taken.len() {
                    return Err(code::INSUFFICIENT_SIZE);
                }
                for (slot, sample) in taken.iter().enumerate() {
                    samples.add(slot).write(*sample);
                }
            }
            put(count, taken.len() as c_uint)
        }
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
