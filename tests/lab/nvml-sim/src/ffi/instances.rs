//! GPU and compute instances: listing, creating, destroying, and the handles of MIG devices.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_st, nvmlComputeInstancePlacement_st, nvmlDevice_t,
    nvmlGpuInstance_t, nvmlGpuInstanceInfo_st, nvmlGpuInstancePlacement_st,
};
use serde_json::json;

use super::session::{Call, change, change_at, read};
use super::{Answer, handles, put, put_list};
use crate::model::Profile;
use crate::state::GpuInstance;
use crate::transitions::code;

/// A getter of an existing GPU instance.
pub(super) fn read_instance(
    name: &'static str,
    handle: nvmlGpuInstance_t,
    body: impl FnOnce(&Call<'_>, &GpuInstance, &Profile) -> Answer,
) -> u32 {
    let place = handles::gpu_instance(handle);
    let device = handles::gpu_handle(place.map_or(usize::from(u16::MAX) - 1, |(gpu, _)| gpu));
    read(name, device, |call| {
        let id = place.map(|(_, id)| id).ok_or(code::INVALID_ARGUMENT)?;
        let instance = call.gpu.instance(id).ok_or(code::INVALID_ARGUMENT)?;
        let profile = call.gpu.spec().profile_by_id(instance.profile_id).ok_or(code::UNKNOWN)?;
        body(call, instance, profile)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> u32 {
    read("nvmlDeviceGetMigDeviceHandleByIndex", device, |call| {
        call.whole()?;
        if !call.gpu.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        if index >= call.gpu.spec().compute_slices {
            return Err(code::INVALID_ARGUMENT);
        }
        let (gi, ci) = call.gpu.mig_devices().nth(index as usize).ok_or(code::NOT_FOUND)?;
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, handles::mig_handle(call.index, gi.id, ci.id)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    device: nvmlDevice_t,
    profile_id: c_uint,
    out: *mut nvmlGpuInstance_t,
    count: *mut c_uint,
) -> u32 {
    read("nvmlDeviceGetGpuInstances", device, |call| {
        call.whole()?;
        if !call.gpu.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        call.gpu.spec().profile_by_id(profile_id).ok_or(code::INVALID_ARGUMENT)?;
        let list: Vec<nvmlGpuInstance_t> = call
            .gpu
            .instances
            .iter()
            .filter(|instance| instance.profile_id == profile_id)
            .map(|instance| handles::gpu_instance_handle(call.index, instance.id))
            .collect();
        // The count is only written here: this call takes it for output, and the array has room for every instance.
        // SAFETY: NVML's own contract for count and array.
        unsafe {
            put(count, list.len() as c_uint)?;
            put_list(count, out, &list)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceById(
    device: nvmlDevice_t,
    id: c_uint,
    out: *mut nvmlGpuInstance_t,
) -> u32 {
    read("nvmlDeviceGetGpuInstanceById", device, |call| {
        call.whole()?;
        if !call.gpu.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        call.gpu.instance(id).ok_or(code::NOT_FOUND)?;
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, handles::gpu_instance_handle(call.index, id)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetInfo(
    instance: nvmlGpuInstance_t,
    out: *mut nvmlGpuInstanceInfo_st,
) -> u32 {
    read_instance("nvmlGpuInstanceGetInfo", instance, |call, gi, _| {
        let info = nvmlGpuInstanceInfo_st {
            device: handles::gpu_handle(call.index),
            id: gi.id,
            profileId: gi.profile_id,
            placement: nvmlGpuInstancePlacement_st { start: gi.start, size: gi.size },
        };
        // SAFETY: NVML's own contract for this structure.
        unsafe { put(out, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstances(
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    out: *mut nvmlComputeInstance_t,
    count: *mut c_uint,
) -> u32 {
    read_instance("nvmlGpuInstanceGetComputeInstances", instance, |call, gi, _| {
        let list: Vec<nvmlComputeInstance_t> = gi
            .compute_instances
            .iter()
            .filter(|ci| ci.profile_id == profile_id)
            .map(|ci| handles::compute_instance_handle(call.index, gi.id, ci.id))
            .collect();
        // SAFETY: NVML's own contract for count and array.
        unsafe {
            put(count, list.len() as c_uint)?;
            put_list(count, out, &list)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceById(
    instance: nvmlGpuInstance_t,
    id: c_uint,
    out: *mut nvmlComputeInstance_t,
) -> u32 {
    read_instance("nvmlGpuInstanceGetComputeInstanceById", instance, |call, gi, _| {
        if !gi.compute_instances.iter().any(|ci| ci.id == id) {
            return Err(code::NOT_FOUND);
        }
        // SAFETY: NVML's own contract for this pointer.
        unsafe { put(out, handles::compute_instance_handle(call.index, gi.id, id)) }
    })
}

macro_rules! compute_instance_info {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: nvmlComputeInstance_t, out: *mut nvmlComputeInstanceInfo_st) -> u32 {
            let place = handles::compute_instance(handle);
            let instance = place.map_or(std::ptr::null_mut(), |(gpu, gi, _)| handles::gpu_instance_handle(gpu, gi));
            read_instance(stringify!($name), instance, |call, gi, _| {
                let id = place.map(|(_, _, id)| id).ok_or(code::INVALID_ARGUMENT)?;
                let ci = gi.compute_instances.iter().find(|ci| ci.id == id).ok_or(code::INVALID_ARGUMENT)?;
                let info = nvmlComputeInstanceInfo_st {
                    device: handles::gpu_handle(call.index),
                    gpuInstance: handles::gpu_instance_handle(call.index, gi.id),
                    id,
                    profileId: ci.profile_id,
                    placement: nvmlComputeInstancePlacement_st { start: ci.start, size: ci.size },
                };
                // SAFETY: NVML's own contract for this structure.
                unsafe { put(out, info) }
            })
        }
    )*};
}

compute_instance_info! { nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2 }

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceCreateGpuInstance(
    device: nvmlDevice_t,
    profile_id: c_uint,
    out: *mut nvmlGpuInstance_t,
) -> u32 {
    let args = json!({"profile_id": profile_id});
    // SAFETY: NVML's own contract for this pointer.
    unsafe { create_gpu_instance("nvmlDeviceCreateGpuInstance", device, profile_id, None, args, out) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placement: *const nvmlGpuInstancePlacement_st,
    out: *mut nvmlGpuInstance_t,
) -> u32 {
    // SAFETY: NVML's own contract for these pointers.
    unsafe {
        if placement.is_null() {
            return code::INVALID_ARGUMENT;
        }
        let (start, size) = ((*placement).start, (*placement).size);
        let args = json!({"profile_id": profile_id, "start": start, "size": size});
        create_gpu_instance(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            device,
            profile_id,
            Some((start, size)),
            args,
            out,
        )
    }
}

/// # Safety
/// `out` is null or valid for one handle.
unsafe fn create_gpu_instance(
    name: &'static str,
    device: nvmlDevice_t,
    profile_id: c_uint,
    place: Option<(u32, u32)>,
    args: serde_json::Value,
    out: *mut nvmlGpuInstance_t,
) -> u32 {
    let mut created = None;
    let answer = change(name, device, args, |gpu, _| {
        if out.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        if let Some((_, size)) = place
            && gpu.spec().profile_by_id(profile_id).is_some_and(|profile| profile.size != size)
        {
            return Err(code::INVALID_ARGUMENT);
        }
        created = Some(gpu.create_instance(profile_id, place.map(|(start, _)| start))?);
        Ok(())
    });
    // The GPU's index is in the handle, which was accepted as one of a whole GPU or of a part of it.
    let gpu = super::session::store()
        .read()
        .ok()
        .and_then(|machine| handles::device(&machine, device).ok())
        .map(handles::Target::gpu);
    match (answer, created, gpu) {
        (code::SUCCESS, Some(id), Some(gpu)) => {
            // SAFETY: the caller's promise; checked for null before the instance was made.
            unsafe { out.write(handles::gpu_instance_handle(gpu, id)) };
            code::SUCCESS
        }
        (answer, _, _) => answer,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) -> u32 {
    let place = handles::gpu_instance(instance);
    let id = place.map(|(_, id)| id);
    change_at(
        "nvmlGpuInstanceDestroy",
        place.map(|(gpu, _)| gpu),
        json!({"gpu_instance": id}),
        |gpu, context| gpu.destroy_instance(id.ok_or(code::INVALID_ARGUMENT)?, &context.users),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    out: *mut nvmlComputeInstance_t,
) -> u32 {
    // SAFETY: NVML's own contract for this pointer.
    unsafe {
        create_compute_instance("nvmlGpuInstanceCreateComputeInstance", instance, profile_id, None, out)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    placement: *const nvmlComputeInstancePlacement_st,
    out: *mut nvmlComputeInstance_t,
) -> u32 {
    // SAFETY: NVML's own contract for these pointers.
    unsafe {
        if placement.is_null() {
            return code::INVALID_ARGUMENT;
        }
        let name = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
        create_compute_instance(name, instance, profile_id, Some((*placement).start), out)
    }
}

/// # Safety
/// `out` is null or valid for one handle.
unsafe fn create_compute_instance(
    name: &'static str,
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    start: Option<u32>,
    out: *mut nvmlComputeInstance_t,
) -> u32 {
    let place = handles::gpu_instance(instance);
    let args = json!({"gpu_instance": place.map(|(_, gi)| gi), "profile_id": profile_id, "start": start});
    let mut created = None;
    let answer = change_at(name, place.map(|(gpu, _)| gpu), args, |gpu, _| {
        if out.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        let (_, gi) = place.ok_or(code::INVALID_ARGUMENT)?;
        created = Some(gpu.create_compute_instance(gi, profile_id, start)?);
        Ok(())
    });
    if let (code::SUCCESS, Some(id), Some((gpu, gi))) = (answer, created, place) {
        // SAFETY: the caller's promise; checked for null before the instance was made.
        unsafe { out.write(handles::compute_instance_handle(gpu, gi, id)) };
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlComputeInstanceDestroy(handle: nvmlComputeInstance_t) -> u32 {
    let place = handles::compute_instance(handle);
    let args = json!({"gpu_instance": place.map(|p| p.1), "compute_instance": place.map(|p| p.2)});
    change_at("nvmlComputeInstanceDestroy", place.map(|p| p.0), args, |gpu, context| {
        let (_, gi, ci) = place.ok_or(code::INVALID_ARGUMENT)?;
        gpu.destroy_compute_instance(gi, ci, &context.users)
    })
}
