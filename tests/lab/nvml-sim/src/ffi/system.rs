//! Calls without a device: start and end, versions, confidential computing, error texts.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlConfComputeGetKeyRotationThresholdInfo_st, nvmlConfComputeSystemCaps_st,
    nvmlConfComputeSystemState_st, nvmlSystemConfComputeSettings_v1_t, nvmlSystemDriverBranchInfo_v1_t,
};

use serde_json::json;

use super::session::{ask, change_machine, init, shutdown};
use super::{check_version, fixed_text, put, put_text, version_of};
use crate::model::{Model, ModelKey};
use crate::state::Machine;
use crate::transitions::code;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    init("nvmlInit")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    init("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    init("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    shutdown()
}

/// Returns the text of a return code, as in the real library.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"vGPU ECC not supported",
        23 => c"Insufficient Resources",
        24 => c"Frequency not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"System is not in ready state",
        28 => c"GPU not found",
        29 => c"Invalid state",
        _ => c"Unknown Error",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> u32 {
    // SAFETY: NVML's own contract for this buffer.
    ask("nvmlSystemGetDriverVersion", |machine| unsafe { put_text(out, length, &machine.module_version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) -> u32 {
    // Without `ask`, because the real function works before nvmlInit too.
    let version = super::session::store()
        .read()
        .map_or_else(|_| crate::state::DRIVER_VERSION.to_owned(), |machine| machine.library_version.clone());
    // SAFETY: NVML's own contract for this buffer.
    match unsafe { put_text(out, length, &format!("13.{version}")) } {
        Ok(()) => code::SUCCESS,
        Err(code) => code,
    }
}

fn first_model(machine: &Machine) -> &'static Model {
    machine.gpus.first().map_or(ModelKey::H100, |gpu| gpu.model).model()
}

macro_rules! cuda_version {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(out: *mut c_int) -> u32 {
            // SAFETY: NVML's own contract for this pointer.
            ask(stringify!($name), |machine| unsafe {
                let recorded = || first_model(machine).number("nvmlSystemGetCudaDriverVersion") as c_int;
                put(out, machine.cuda_version.map_or_else(recorded, u32::cast_signed))
            })
        }
    )*};
}

cuda_version! { nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2 }

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverBranch(
    info: *mut nvmlSystemDriverBranchInfo_v1_t,
    _length: c_uint,
) -> u32 {
    // SAFETY: NVML's own contract for this structure.
    ask("nvmlSystemGetDriverBranch", |_| unsafe {
        check_version(info, 1)?;
        (*info).branch = fixed_text("r582_49");
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGetExcludedDeviceCount(count: *mut c_uint) -> u32 {
    // SAFETY: NVML's own contract for this pointer.
    ask("nvmlGetExcludedDeviceCount", |machine| unsafe { put(count, machine.excluded_gpus) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetHicVersion(count: *mut c_uint, _entries: *mut u8) -> u32 {
    // SAFETY: NVML's own contract for this pointer.
    ask("nvmlSystemGetHicVersion", |_| unsafe { put(count, 0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNvlinkBwMode(mode: *mut c_uint) -> u32 {
    // SAFETY: NVML's own contract for this pointer.
    ask("nvmlSystemGetNvlinkBwMode", |_| unsafe { put(mode, 0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, out: *mut c_char, length: c_uint) -> u32 {
    ask("nvmlSystemGetProcessName", |_| {
        let name = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| code::NOT_FOUND)?;
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        // SAFETY: NVML's own contract for this buffer.
        unsafe { put_text(out, length, &String::from_utf8_lossy(name)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetConfComputeCapabilities(out: *mut nvmlConfComputeSystemCaps_st) -> u32 {
    // SAFETY: NVML's own contract for this structure.
    ask("nvmlSystemGetConfComputeCapabilities", |machine| unsafe {
        let field = |name| first_model(machine).field("nvmlSystemGetConfComputeCapabilities", name) as c_uint;
        put(out, nvmlConfComputeSystemCaps_st { cpuCaps: field("cpuCaps"), gpusCaps: field("gpusCaps") })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetConfComputeState(out: *mut nvmlConfComputeSystemState_st) -> u32 {
    // SAFETY: NVML's own contract for this structure.
    ask("nvmlSystemGetConfComputeState", |machine| unsafe {
        let feature = machine.confidential.into();
        put(out, nvmlConfComputeSystemState_st { environment: 0, ccFeature: feature, devToolsMode: 0 })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetConfComputeSettings(out: *mut nvmlSystemConfComputeSettings_v1_t) -> u32 {
    // SAFETY: NVML's own contract for this structure.
    ask("nvmlSystemGetConfComputeSettings", |machine| unsafe {
        check_version(out, 1)?;
        put(
            out,
            nvmlSystemConfComputeSettings_v1_t {
                version: version_of::<nvmlSystemConfComputeSettings_v1_t>(1),
                environment: 0,
                ccFeature: machine.confidential.into(),
                devToolsMode: 0,
                multiGpuMode: 0,
            },
        )
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetConfComputeGpusReadyState(out: *mut c_uint) -> u32 {
    // SAFETY: NVML's own contract for this pointer.
    ask("nvmlSystemGetConfComputeGpusReadyState", |machine| unsafe {
        put(out, machine.confidential_ready.into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemSetConfComputeGpusReadyState(ready: c_uint) -> u32 {
    change_machine("nvmlSystemSetConfComputeGpusReadyState", json!({"ready": ready}), |machine| {
        if !machine.confidential {
            return Err(code::NOT_SUPPORTED);
        }
        machine.confidential_ready = match ready {
            0 => false,
            1 => true,
            _ => return Err(code::INVALID_ARGUMENT),
        };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetConfComputeKeyRotationThresholdInfo(
    out: *mut nvmlConfComputeGetKeyRotationThresholdInfo_st,
) -> u32 {
    // SAFETY: NVML's own contract for this structure.
    ask("nvmlSystemGetConfComputeKeyRotationThresholdInfo", |_| unsafe {
        check_version(out, 1)?;
        (*out).attackerAdvantage = 60;
        Ok(())
    })
}
