//! The MIG geometry of the device: profiles, placements, capacity. Available with MIG off too, as on the real device.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstancePlacement_st, nvmlComputeInstanceProfileInfo_st, nvmlComputeInstanceProfileInfo_v2_st,
    nvmlComputeInstanceProfileInfo_v3_st, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_st,
    nvmlGpuInstanceProfileInfo_st, nvmlGpuInstanceProfileInfo_v2_st, nvmlGpuInstanceProfileInfo_v3_st,
};

use super::instances::read_instance;
use super::session::{Call, read};
use super::{check_version, fixed_text, put, put_list, version_of};
use crate::model::Profile;
use crate::placement;
use crate::transitions::code;

/// Number of profile indexes in NVML of driver 580; higher ones are invalid.
const PROFILE_COUNT: u32 = 17;

fn profile_by_enum<'a>(call: &Call<'a>, index: u32) -> Result<&'a Profile, u32> {
    call.whole()?;
    if index >= PROFILE_COUNT {
        return Err(code::INVALID_ARGUMENT);
    }
    call.gpu.spec().profile_by_enum(index).ok_or(code::NOT_SUPPORTED)
}

fn profile_by_id<'a>(call: &Call<'a>, id: u32) -> Result<&'a Profile, u32> {
    call.whole()?;
    call.gpu.spec().profile_by_id(id).ok_or(code::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    profile: c_uint,
    out: *mut nvmlGpuInstanceProfileInfo_st,
) -> u32 {
    read("nvmlDeviceGetGpuInstanceProfileInfo", device, |call| {
        let p = profile_by_enum(call, profile)?;
        let info = nvmlGpuInstanceProfileInfo_st {
            id: p.id,
            isP2pSupported: 0,
            sliceCount: p.slices,
            instanceCount: p.max_count,
            multiprocessorCount: p.multiprocessors,
            copyEngineCount: p.copy_engines,
            decoderCount: p.decoders,
            encoderCount: p.encoders,
            jpegCount: p.jpegs,
            ofaCount: p.ofas,
            memorySizeMB: p.memory_mib,
        };
        // SAFETY: NVML's own contract for this structure.
        unsafe { put(out, info) }
    })
}

/// # Safety
/// `out` is null or valid for the structure that its version word announces.
unsafe fn put_profile(out: *mut nvmlGpuInstanceProfileInfo_v2_st, p: &Profile) -> Result<(), u32> {
    let name = fixed_text(&format!("MIG {}", p.name));
    // SAFETY: the caller's promise; the word decides which structure is written.
    unsafe {
        if check_version(out, 2).is_ok() {
            return put(
                out,
                nvmlGpuInstanceProfileInfo_v2_st {
                    version: version_of::<nvmlGpuInstanceProfileInfo_v2_st>(2),
                    id: p.id,
                    isP2pSupported: 0,
                    sliceCount: p.slices,
                    instanceCount: p.max_count,
                    multiprocessorCount: p.multiprocessors,
                    copyEngineCount: p.copy_engines,
                    decoderCount: p.decoders,
                    encoderCount: p.encoders,
                    jpegCount: p.jpegs,
                    ofaCount: p.ofas,
                    memorySizeMB: p.memory_mib,
                    name,
                },
            );
        }
        let out = out.cast::<nvmlGpuInstanceProfileInfo_v3_st>();
        check_version(out, 3)?;
        put(
            out,
            nvmlGpuInstanceProfileInfo_v3_st {
                version: version_of::<nvmlGpuInstanceProfileInfo_v3_st>(3),
                id: p.id,
                sliceCount: p.slices,
                instanceCount: p.max_count,
                multiprocessorCount: p.multiprocessors,
                copyEngineCount: p.copy_engines,
                decoderCount: p.decoders,
                encoderCount: p.encoders,
                jpegCount: p.jpegs,
                ofaCount: p.ofas,
                memorySizeMB: p.memory_mib,
                name,
                capabilities: 0,
            },
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: nvmlDevice_t,
    profile: c_uint,
    out: *mut nvmlGpuInstanceProfileInfo_v2_st,
) -> u32 {
    read("nvmlDeviceGetGpuInstanceProfileInfoV", device, |call| {
        // SAFETY: NVML's own contract for this structure.
        unsafe { put_profile(out, profile_by_enum(call, profile)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
    device: nvmlDevice_t,
    id: c_uint,
    out: *mut nvmlGpuInstanceProfileInfo_v2_st,
) -> u32 {
    read("nvmlDeviceGetGpuInstanceProfileInfoByIdV", device, |call| {
        // SAFETY: NVML's own contract for this structure.
        unsafe { put_profile(out, profile_by_id(call, id)?) }
    })
}

/// Every placement of a profile, occupied or not.
macro_rules! possible_placements {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            profile_id: c_uint,
            out: *mut nvmlGpuInstancePlacement_st,
            count: *mut c_uint,
        ) -> u32 {
            read(stringify!($name), device, |call| {
                let profile = profile_by_id(call, profile_id)?;
                if count.is_null() {
                    return Err(code::INVALID_ARGUMENT);
                }
                let all: Vec<nvmlGpuInstancePlacement_st> = profile
                    .starts
                    .iter()
                    .map(|start| nvmlGpuInstancePlacement_st { start: *start, size: profile.size })
                    .collect();
                // Not `put_list`: without an array, this call returns the number of placements and success.
                // SAFETY: NVML's own contract for count and array.
                unsafe {
                    if out.is_null() {
                        return put(count, all.len() as c_uint);
                    }
                    put_list(count, out, &all)
                }
            })
        }
    )*};
}

possible_placements! { nvmlDeviceGetGpuInstancePossiblePlacements nvmlDeviceGetGpuInstancePossiblePlacements_v2 }

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: nvmlDevice_t,
    profile_id: c_uint,
    out: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetGpuInstanceRemainingCapacity", device, |call| {
        if !call.gpu.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        let profile = profile_by_id(call, profile_id)?;
        let left = placement::remaining(call.gpu.spec(), &call.gpu.instances, profile);
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, left) }
    })
}

/// A compute instance profile inside one GPU instance: its compute slices and how often it fits an empty one.
fn compute_profile(slices: u32, profile: c_uint, engine: c_uint) -> Result<(u32, u32), u32> {
    // 8 profiles and one kind of engine profile are known to the API.
    if profile > 7 || engine > 0 {
        return Err(code::INVALID_ARGUMENT);
    }
    let size = placement::compute_profile_slices(profile).ok_or(code::NOT_SUPPORTED)?;
    if size > slices {
        return Err(code::NOT_SUPPORTED);
    }
    Ok((size, placement::compute_starts(slices, size).len() as u32))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    engine: c_uint,
    out: *mut nvmlComputeInstanceProfileInfo_st,
) -> u32 {
    read_instance("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, |_, _, p| {
        let (size, count) = compute_profile(p.slices, profile, engine)?;
        let info = nvmlComputeInstanceProfileInfo_st {
            id: profile,
            sliceCount: size,
            instanceCount: count,
            multiprocessorCount: p.multiprocessors * size / p.slices,
            sharedCopyEngineCount: p.copy_engines,
            sharedDecoderCount: p.decoders,
            sharedEncoderCount: p.encoders,
            sharedJpegCount: p.jpegs,
            sharedOfaCount: p.ofas,
        };
        // SAFETY: NVML's own contract for this structure.
        unsafe { put(out, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    engine: c_uint,
    out: *mut nvmlComputeInstanceProfileInfo_v2_st,
) -> u32 {
    read_instance("nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance, |_, _, p| {
        let (size, count) = compute_profile(p.slices, profile, engine)?;
        let name =
            if size == p.slices { format!("MIG {}", p.name) } else { format!("MIG {size}c.{}", p.name) };
        // SAFETY: NVML's own contract: the version word tells which structure this is.
        unsafe {
            if check_version(out, 2).is_ok() {
                return put(
                    out,
                    nvmlComputeInstanceProfileInfo_v2_st {
                        version: version_of::<nvmlComputeInstanceProfileInfo_v2_st>(2),
                        id: profile,
                        sliceCount: size,
                        instanceCount: count,
                        multiprocessorCount: p.multiprocessors * size / p.slices,
                        sharedCopyEngineCount: p.copy_engines,
                        sharedDecoderCount: p.decoders,
                        sharedEncoderCount: p.encoders,
                        sharedJpegCount: p.jpegs,
                        sharedOfaCount: p.ofas,
                        name: fixed_text(&name),
                    },
                );
            }
            let out = out.cast::<nvmlComputeInstanceProfileInfo_v3_st>();
            check_version(out, 3)?;
            put(
                out,
                nvmlComputeInstanceProfileInfo_v3_st {
                    version: version_of::<nvmlComputeInstanceProfileInfo_v3_st>(3),
                    id: profile,
                    sliceCount: size,
                    instanceCount: count,
                    multiprocessorCount: p.multiprocessors * size / p.slices,
                    sharedCopyEngineCount: p.copy_engines,
                    sharedDecoderCount: p.decoders,
                    sharedEncoderCount: p.encoders,
                    sharedJpegCount: p.jpegs,
                    sharedOfaCount: p.ofas,
                    name: fixed_text(&name),
                    capabilities: 0,
                },
            )
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    out: *mut c_uint,
) -> u32 {
    read_instance("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", instance, |_, gi, p| {
        let (size, _) = compute_profile(p.slices, profile, 0)?;
        let left = placement::compute_starts(p.slices, size)
            .into_iter()
            .filter(|start| placement::compute_fits(p.slices, &gi.compute_instances, size, *start))
            .count();
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, left as c_uint) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    out: *mut nvmlComputeInstancePlacement_st,
    count: *mut c_uint,
) -> u32 {
    read_instance("nvmlGpuInstanceGetComputeInstancePossiblePlacements", instance, |_, _, p| {
        let (size, _) = compute_profile(p.slices, profile, 0)?;
        let all: Vec<nvmlComputeInstancePlacement_st> = placement::compute_starts(p.slices, size)
            .into_iter()
            .map(|start| nvmlComputeInstancePlacement_st { start, size })
            .collect();
        // SAFETY: NVML's own contract for count and array.
        unsafe {
            if out.is_null() {
                return put(count, all.len() as c_uint);
            }
            put_list(count, out, &all)
        }
    })
}
