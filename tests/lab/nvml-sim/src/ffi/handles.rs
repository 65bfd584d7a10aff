//! Handles as numbers of distinct ranges; none is ever dereferenced.

use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t};

use crate::state::Machine;
use crate::transitions::code;

const GPU: usize = 0x10_0000_0000;
const MIG_DEVICE: usize = 0x20_0000_0000;
const GPU_INSTANCE: usize = 0x30_0000_0000;
const COMPUTE_INSTANCE: usize = 0x40_0000_0000;
const KIND: usize = 0xff_0000_0000;

/// What a device handle refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Gpu(usize),
    Mig { gpu: usize, gpu_instance: u32, compute_instance: u32 },
}

impl Target {
    pub(super) fn gpu(self) -> usize {
        match self {
            Self::Gpu(gpu) | Self::Mig { gpu, .. } => gpu,
        }
    }
}

pub(super) fn gpu_handle(index: usize) -> nvmlDevice_t {
    (GPU | (index + 1) << 16) as nvmlDevice_t
}

pub(super) fn mig_handle(gpu: usize, gpu_instance: u32, compute_instance: u32) -> nvmlDevice_t {
    (MIG_DEVICE | place(gpu, gpu_instance, compute_instance)) as nvmlDevice_t
}

pub(super) fn gpu_instance_handle(gpu: usize, id: u32) -> nvmlGpuInstance_t {
    (GPU_INSTANCE | place(gpu, id, 0)) as nvmlGpuInstance_t
}

pub(super) fn compute_instance_handle(gpu: usize, gi: u32, id: u32) -> nvmlComputeInstance_t {
    (COMPUTE_INSTANCE | place(gpu, gi, id)) as nvmlComputeInstance_t
}

fn place(gpu: usize, gi: u32, ci: u32) -> usize {
    (gpu + 1) << 16 | ((gi as usize) & 0xff) << 8 | ((ci as usize) & 0xff)
}

fn unplace(handle: usize, kind: usize) -> Option<(usize, u32, u32)> {
    if handle & KIND != kind {
        return None;
    }
    let gpu = ((handle >> 16) & 0xffff).checked_sub(1)?;
    Some((gpu, ((handle >> 8) & 0xff) as u32, (handle & 0xff) as u32))
}

/// Returns the device of a handle, if it still exists.
pub(super) fn device(machine: &Machine, handle: nvmlDevice_t) -> Result<Target, u32> {
    let handle = handle as usize;
    if let Some((gpu, _, _)) = unplace(handle, GPU) {
        return if gpu < machine.gpus.len() { Ok(Target::Gpu(gpu)) } else { Err(code::INVALID_ARGUMENT) };
    }
    let (gpu, gi, ci) = unplace(handle, MIG_DEVICE).ok_or(code::INVALID_ARGUMENT)?;
    machine
        .gpus
        .get(gpu)
        .and_then(|gpu| gpu.mig_devices().find(|(g, c)| g.id == gi && c.id == ci))
        .ok_or(code::INVALID_ARGUMENT)?;
    Ok(Target::Mig { gpu, gpu_instance: gi, compute_instance: ci })
}

/// Returns GPU index and instance id of a GPU instance handle, whether or not the instance still exists.
pub(super) fn gpu_instance(handle: nvmlGpuInstance_t) -> Option<(usize, u32)> {
    unplace(handle as usize, GPU_INSTANCE).map(|(gpu, gi, _)| (gpu, gi))
}

/// Returns GPU index, GPU instance and compute instance of a compute instance handle.
pub(super) fn compute_instance(handle: nvmlComputeInstance_t) -> Option<(usize, u32, u32)> {
    unplace(handle as usize, COMPUTE_INSTANCE)
}
