//! Getters of a device's activity: error counters, clocks, processes, topology.

use std::ffi::{c_uint, c_ulong, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccErrorCounts_st, nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t,
    nvmlProcessInfo_v1_st, nvmlProcessInfo_v2_st, nvmlViolationTime_st,
};

use super::handles::{self, Target};
use super::recorded::{at_index, recorded};
use super::session::{Call, read};
use super::{check_version, put, put_list};
use crate::transitions::code;

fn ecc_count(call: &Call<'_>, kind: c_uint, counter: c_uint) -> Result<u64, u32> {
    call.whole()?;
    if !call.gpu.ecc.current {
        return Err(code::NOT_SUPPORTED);
    }
    let health = &call.gpu.health;
    match (kind, counter) {
        (0, 0) => Ok(health.volatile_correctable),
        (1, 0) => Ok(health.volatile_uncorrectable),
        (0, 1) => Ok(health.aggregate_correctable),
        (1, 1) => Ok(health.aggregate_uncorrectable),
        _ => Err(code::INVALID_ARGUMENT),
    }
}

/// Returns the errors in SRAM, which the totals count too.
fn sram_count(call: &Call<'_>, kind: c_uint, counter: c_uint) -> u64 {
    let part = |name| call.gpu.part("nvmlDeviceGetSramEccErrorStatus", name);
    match (kind, counter) {
        (1, 0) => part("volatileUncSecDed"),
        (1, 1) => part("aggregateUncSecDed"),
        _ => 0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    kind: c_uint,
    counter: c_uint,
    out: *mut c_ulonglong,
) -> u32 {
    read("nvmlDeviceGetTotalEccErrors", device, |call| {
        let total = ecc_count(call, kind, counter)? + sram_count(call, kind, counter);
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, total) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDetailedEccErrors(
    device: nvmlDevice_t,
    kind: c_uint,
    counter: c_uint,
    out: *mut nvmlEccErrorCounts_st,
) -> u32 {
    read("nvmlDeviceGetDetailedEccErrors", device, |call| {
        let memory = ecc_count(call, kind, counter)?;
        // SAFETY: NVML's own contract for this structure.
        unsafe {
            put(out, nvmlEccErrorCounts_st { l1Cache: 0, l2Cache: 0, deviceMemory: memory, registerFile: 0 })
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    kind: c_uint,
    counter: c_uint,
    location: c_uint,
    out: *mut c_ulonglong,
) -> u32 {
    read("nvmlDeviceGetMemoryErrorCounter", device, |call| {
        let key = format!("nvmlDeviceGetMemoryErrorCounter(type={kind},counter={counter},loc={location})");
        recorded(call, &key).map_err(|code| if location > 7 { code::INVALID_ARGUMENT } else { code })?;
        let total = ecc_count(call, kind, counter)?;
        // Location 2 is the device memory, 7 the SRAM.
        let count = match location {
            2 => total,
            7 => sram_count(call, kind, counter),
            _ => 0,
        };
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, count) }
    })
}

/// Writes the addresses of retired pages, which a defect makes up, and returns how many there are.
///
/// # Safety
/// As NVML's own contract: `count` is null or valid, and `addresses` for `*count` items.
unsafe fn retired(
    call: &Call<'_>,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
) -> Result<usize, u32> {
    let pages = at_index(call, "nvmlDeviceGetRetiredPages", &[cause])?;
    let all: Vec<c_ulonglong> = (0..pages).map(|page| (page + 1) << 16).collect();
    // SAFETY: the caller's promise.
    unsafe { put_list(count, addresses, &all)? };
    Ok(all.len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
) -> u32 {
    read("nvmlDeviceGetRetiredPages", device, |call| {
        // SAFETY: NVML's own contract.
        unsafe { retired(call, cause, count, addresses) }.map(|_| ())
    })
}

/// As above, with the Unix time of each: now.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
    times: *mut c_ulonglong,
) -> u32 {
    read("nvmlDeviceGetRetiredPages_v2", device, |call| {
        // SAFETY: NVML's own contract.
        let pages = unsafe { retired(call, cause, count, addresses) }?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        if times.is_null() && pages > 0 {
            return Err(code::INVALID_ARGUMENT);
        }
        for page in 0..pages {
            // SAFETY: as long as `addresses`, by NVML's own contract.
            unsafe { times.add(page).write(now) };
        }
        Ok(())
    })
}

macro_rules! clocks {
    ($($name:ident = |$call:ident, $kind:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, $kind: c_uint, out: *mut c_uint) -> u32 {
            read(stringify!($name), device, |$call| {
                $call.whole()?;
                let value: c_uint = $body;
                // SAFETY: NVML's own contract for this pointer.
                unsafe { put(out, value) }
            })
        }
    )*};
}

clocks! {
    nvmlDeviceGetClockInfo = |call, kind| clock_now(call, kind)?;
    nvmlDeviceGetApplicationsClock = |call, kind| application_clock(call, kind)?;
    nvmlDeviceGetMaxCustomerBoostClock = |call, kind| at_index(call, "nvmlDeviceGetMaxClockInfo", &[kind])? as c_uint;
}

/// Returns the clock: an idle GPU runs at its lowest one, or at the lower end of a locked range.
fn clock_now(call: &Call<'_>, kind: c_uint) -> Result<c_uint, u32> {
    // Graphics and multiprocessors have one clock.
    let read = if kind == 0 { 1 } else { kind };
    let idle = at_index(call, "nvmlDeviceGetClockInfo", &[read])? as c_uint;
    match (kind, call.gpu.locked_graphics_mhz) {
        (0 | 1, Some((low, high))) if low > 1 => Ok(idle.clamp(low, high)),
        _ => Ok(idle),
    }
}

fn application_clock(call: &Call<'_>, kind: c_uint) -> Result<c_uint, u32> {
    match (kind, call.gpu.application_mhz) {
        (0 | 1, Some((_, graphics))) => Ok(graphics),
        (2, Some((memory, _))) => Ok(memory),
        _ => Ok(at_index(call, "nvmlDeviceGetApplicationsClock", &[kind])? as c_uint),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClock(
    device: nvmlDevice_t,
    kind: c_uint,
    id: c_uint,
    out: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetClock", device, |call| {
        call.whole()?;
        // 0 current, 1 application target, 2 application default, 3 customer boost.
        let value = match id {
            0 => clock_now(call, kind)?,
            1 => application_clock(call, kind)?,
            2 => at_index(call, "nvmlDeviceGetDefaultApplicationsClock", &[kind])? as c_uint,
            3 => at_index(call, "nvmlDeviceGetMaxClockInfo", &[kind])? as c_uint,
            _ => return Err(code::INVALID_ARGUMENT),
        };
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, value) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    device: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetSupportedMemoryClocks", device, |call| {
        call.whole()?;
        // SAFETY: NVML's own contract for count and array.
        unsafe { put_list(count, out, &call.gpu.spec().memory_clocks_mhz) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: nvmlDevice_t,
    memory_mhz: c_uint,
    count: *mut c_uint,
    out: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetSupportedGraphicsClocks", device, |call| {
        call.whole()?;
        let model = call.gpu.spec();
        if !model.memory_clocks_mhz.contains(&memory_mhz) {
            return Err(code::NOT_FOUND);
        }
        // SAFETY: NVML's own contract for count and array.
        unsafe { put_list(count, out, &model.graphics_clocks()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedPerformanceStates(
    device: nvmlDevice_t,
    out: *mut c_uint,
    size: c_uint,
) -> u32 {
    read("nvmlDeviceGetSupportedPerformanceStates", device, |call| {
        call.whole()?;
        let value = recorded(call, "nvmlDeviceGetSupportedPerformanceStates")?;
        if out.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        for slot in 0..size as usize / size_of::<c_uint>() {
            // 32: no further state.
            let state = value.get(slot).and_then(|v| v.as_u64()).unwrap_or(32) as c_uint;
            // SAFETY: within the `size` bytes of the caller's buffer.
            unsafe { out.add(slot).write(state) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetViolationStatus(
    device: nvmlDevice_t,
    _policy: c_uint,
    out: *mut nvmlViolationTime_st,
) -> u32 {
    read("nvmlDeviceGetViolationStatus", device, |_| unsafe {
        // SAFETY: NVML's own contract for this structure.
        put(out, nvmlViolationTime_st { referenceTime: 0, violationTime: 0 })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPcieThroughput(
    device: nvmlDevice_t,
    _counter: c_uint,
    out: *mut c_uint,
) -> u32 {
    // SAFETY: NVML's own contract for this pointer.
    read("nvmlDeviceGetPcieThroughput", device, |_| unsafe { put(out, 600) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEncoderStats(
    device: nvmlDevice_t,
    sessions: *mut c_uint,
    fps: *mut c_uint,
    latency: *mut c_uint,
) -> u32 {
    // SAFETY: NVML's own contract for these pointers.
    read("nvmlDeviceGetEncoderStats", device, |_| unsafe {
        put(sessions, 0)?;
        put(fps, 0)?;
        put(latency, 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    out: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetTopologyCommonAncestor", first, |call| {
        let other = handles::device(call.machine, second)?.gpu();
        // 0 same board, 40 same NUMA node, 50 across the system.
        let level = match (other == call.index, other / 4 == call.index / 4) {
            (true, _) => 0,
            (_, true) => 40,
            _ => 50,
        };
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, level) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, out: *mut c_ulong) -> u32 {
    read("nvmlDeviceGetCpuAffinity", device, |call| {
        call.whole()?;
        if out.is_null() || words == 0 {
            return Err(code::INVALID_ARGUMENT);
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        for word in 0..words as usize {
            let bits = cpus.saturating_sub(word * 64).min(64);
            let mask = if bits == 64 { c_ulong::MAX } else { (1 << bits) - 1 };
            // SAFETY: within the `words` words of the caller's array.
            unsafe { out.add(word).write(mask) };
        }
        Ok(())
    })
}

/// Returns live processes with work on the device.
fn working_clients(call: &Call<'_>) -> Vec<nvmlProcessInfo_v2_st> {
    let alive = call.users().computing;
    call.gpu
        .clients
        .iter()
        .filter(|client| alive.contains(&client.pid))
        .filter(|client| match call.target {
            Target::Gpu(_) => true,
            Target::Mig { gpu_instance, .. } => client.gpu_instance == Some(gpu_instance),
        })
        .map(|client| nvmlProcessInfo_v2_st {
            pid: client.pid,
            usedGpuMemory: client.memory_mib << 20,
            gpuInstanceId: client.gpu_instance.unwrap_or(u32::MAX),
            computeInstanceId: client.gpu_instance.map_or(u32::MAX, |_| 0),
        })
        .collect()
}

macro_rules! processes {
    ($($name:ident($type:ty) = |$client:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, count: *mut c_uint, out: *mut $type) -> u32 {
            read(stringify!($name), device, |call| {
                let list: Vec<$type> = working_clients(call).into_iter().map(|$client| $body).collect();
                // SAFETY: NVML's own contract for count and array.
                unsafe { put_list(count, out, &list) }
            })
        }
    )*};
}

processes! {
    nvmlDeviceGetComputeRunningProcesses(nvmlProcessInfo_v1_st) = |c| nvmlProcessInfo_v1_st { pid: c.pid, usedGpuMemory: c.usedGpuMemory };
    nvmlDeviceGetComputeRunningProcesses_v2(nvmlProcessInfo_v2_st) = |c| c;
    nvmlDeviceGetComputeRunningProcesses_v3(nvmlProcessInfo_v2_st) = |c| c;
}

/// Lists that are always empty here.
macro_rules! empty_lists {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: nvmlDevice_t, count: *mut c_uint, _out: *mut u8) -> u32 {
            // SAFETY: NVML's own contract for this pointer.
            read(stringify!($name), device, |_| unsafe { put(count, 0) })
        }
    )*};
}

empty_lists! {
    nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetGraphicsRunningProcesses_v2
    nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetMPSComputeRunningProcesses
    nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlDeviceGetMPSComputeRunningProcesses_v3
    nvmlDeviceGetAccountingPids nvmlDeviceGetEncoderSessions nvmlDeviceGetFBCSessions
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_v1_t,
) -> u32 {
    read("nvmlDeviceGetRunningProcessDetailList", device, |call| {
        let details: Vec<nvmlProcessDetail_v1_t> = working_clients(call)
            .into_iter()
            .map(|client| nvmlProcessDetail_v1_t {
                pid: client.pid,
                usedGpuMemory: client.usedGpuMemory,
                gpuInstanceId: client.gpuInstanceId,
                computeInstanceId: client.computeInstanceId,
                usedGpuCcProtectedMemory: 0,
            })
            .collect();
        // SAFETY: NVML's own contract for this structure and its array.
        unsafe {
            check_version(list, 1)?;
            put_list(&raw mut (*list).numProcArrayEntries, (*list).procArray, &details)
        }
    })
}
