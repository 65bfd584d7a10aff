//! Setter calls; a failure names its call.

use gpufleet_protocol::{
    mig::Inner,
    nvml::{Answer, Code, Reading, Setting},
};

use crate::nvml::{Compute, Device, Instance, Nvml};

const MOST_COMPUTE_PROFILES: u32 = 16;

/// A failed call: its name and NVML's code.
struct Failure(&'static str, Code);

/// Adds the name of the call to a result.
trait Named<T> {
    fn of(self, call: &'static str) -> Result<T, Failure>;
}

impl<T> Named<T> for Reading<T> {
    fn of(self, call: &'static str) -> Result<T, Failure> {
        self.map_err(|code| Failure(call, code))
    }
}

pub fn apply(nvml: &Nvml, uuid: &str, setting: &Setting) -> Answer {
    match device(nvml, uuid).and_then(|device| set(nvml, device, setting)) {
        Ok(answer) => answer,
        Err(Failure(call, code)) => Answer::Failed { call: call.to_owned(), code },
    }
}

/// Drains the GPU at a PCI address, or ends that.
pub fn drain(nvml: &Nvml, pci: &str, on: bool) -> Answer {
    match nvml.set_drain(pci, on) {
        Ok(()) => Answer::Done,
        Err(code) => Answer::Failed { call: "nvmlDeviceModifyDrainState".to_owned(), code },
    }
}

/// Returns the handle, looked up for each setting because a change of mode invalidates handles.
fn device(nvml: &Nvml, uuid: &str) -> Result<Device, Failure> {
    for index in 0..nvml.device_count().of("nvmlDeviceGetCount")? {
        if let Ok(device) = nvml.device(index)
            && nvml.uuid(device).is_ok_and(|found| found == uuid)
        {
            return Ok(device);
        }
    }
    Err(Failure("nvmlDeviceGetHandleByUUID", Code::NOT_FOUND))
}

fn set(nvml: &Nvml, device: Device, setting: &Setting) -> Result<Answer, Failure> {
    match *setting {
        Setting::Persistence(on) => nvml.set_persistence(device, on).of("nvmlDeviceSetPersistenceMode")?,
        Setting::Ecc(on) => nvml.set_ecc(device, on).of("nvmlDeviceSetEccMode")?,
        Setting::MigMode(on) => {
            let activation = nvml.set_mig(device, on).of("nvmlDeviceSetMigMode")?;
            return Ok(Answer::MigMode { activation });
        }
        Setting::PowerLimit { milliwatts } => {
            nvml.set_power_limit(device, milliwatts).of("nvmlDeviceSetPowerManagementLimit")?;
        }
        Setting::ModulePowerLimit { milliwatts } => {
            nvml.set_module_limit(device, milliwatts).of("nvmlDeviceSetPowerManagementLimit_v2")?;
        }
        Setting::LockGraphics { low_mhz, high_mhz } => {
            nvml.lock_graphics(device, low_mhz, high_mhz).of("nvmlDeviceSetGpuLockedClocks")?;
        }
        Setting::UnlockGraphics => nvml.unlock_graphics(device).of("nvmlDeviceResetGpuLockedClocks")?,
        Setting::LockMemory { low_mhz, high_mhz } => {
            nvml.lock_memory(device, low_mhz, high_mhz).of("nvmlDeviceSetMemoryLockedClocks")?;
        }
        Setting::UnlockMemory => nvml.unlock_memory(device).of("nvmlDeviceResetMemoryLockedClocks")?,
        Setting::ComputeMode(mode) => nvml.set_compute_mode(device, mode).of("nvmlDeviceSetComputeMode")?,
        Setting::CreateGpuInstance { profile_id, placement } => {
            let call = "nvmlDeviceCreateGpuInstanceWithPlacement";
            let instance = nvml.create_instance(device, profile_id, placement).of(call)?;
            let id = nvml.instance_info(instance).of("nvmlGpuInstanceGetInfo")?.id;
            return Ok(Answer::Created { id });
        }
        Setting::CreateComputeInstance { gpu_instance, part } => {
            let instance = nvml.instance(device, gpu_instance).of("nvmlDeviceGetGpuInstanceById")?;
            let id = match part {
                None => create_whole(nvml, device, instance)?,
                Some(part) => create_part(nvml, instance, part)?,
            };
            return Ok(Answer::Created { id });
        }
        Setting::DestroyComputeInstance { gpu_instance, compute_instance } => {
            let instance = nvml.instance(device, gpu_instance).of("nvmlDeviceGetGpuInstanceById")?;
            let compute =
                nvml.compute(instance, compute_instance).of("nvmlGpuInstanceGetComputeInstanceById")?;
            nvml.destroy_compute(compute).of("nvmlComputeInstanceDestroy")?;
        }
        Setting::DestroyGpuInstance { gpu_instance } => {
            let instance = nvml.instance(device, gpu_instance).of("nvmlDeviceGetGpuInstanceById")?;
            nvml.destroy_instance(instance).of("nvmlGpuInstanceDestroy")?;
        }
        Setting::Accounting(on) => nvml.set_accounting(device, on).of("nvmlDeviceSetAccountingMode")?,
        Setting::ConfidentialReady(on) => {
            nvml.set_confidential_ready(on).of("nvmlSystemSetConfComputeGpusReadyState")?;
        }
    }
    Ok(Answer::Done)
}

/// Creates a compute instance of the profile with all slices of the GPU instance; of two such profiles the first, which
/// shares no fewer engines.
fn create_whole(nvml: &Nvml, device: Device, instance: Instance) -> Result<u32, Failure> {
    let info = nvml.instance_info(instance).of("nvmlGpuInstanceGetInfo")?;
    let mut slices = None;
    for number in 0..64 {
        match nvml.profile(device, number) {
            Ok(profile) if profile.id == info.profile_id => {
                slices = Some(profile.slices);
                break;
            }
            Ok(_) | Err(Code::NOT_SUPPORTED) => {}
            Err(_) => break,
        }
    }
    let call = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
    let mut best: Option<(u32, u32)> = None;
    for number in 0..MOST_COMPUTE_PROFILES {
        match nvml.compute_profile(instance, number) {
            Ok(profile) if slices.is_none_or(|all| profile.slices <= all) => {
                if best.is_none_or(|(_, most)| profile.slices > most) {
                    best = Some((profile.id, profile.slices));
                }
            }
            Ok(_) | Err(Code::NOT_SUPPORTED) => {}
            Err(Code::INVALID_ARGUMENT) => break,
            Err(code) => return Err(Failure(call, code)),
        }
    }
    let (profile, _) = best.ok_or(Failure(call, Code::NOT_SUPPORTED))?;
    new_id(nvml, nvml.create_compute(instance, profile))
}

/// Creates a compute instance that is a part of its GPU instance; of two profiles of a size the first, as above.
fn create_part(nvml: &Nvml, instance: Instance, part: Inner) -> Result<u32, Failure> {
    let call = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
    let mut found = None;
    for number in 0..MOST_COMPUTE_PROFILES {
        match nvml.compute_profile(instance, number) {
            Ok(profile) if profile.slices == part.size => {
                found = Some(profile.id);
                break;
            }
            Ok(_) | Err(Code::NOT_SUPPORTED) => {}
            Err(Code::INVALID_ARGUMENT) => break,
            Err(code) => return Err(Failure(call, code)),
        }
    }
    let profile = found.ok_or(Failure(call, Code::NOT_SUPPORTED))?;
    let made = match nvml.create_compute_at(instance, profile, part.start, part.size) {
        // Only the size is declared, and the driver tells the possible places only now.
        Err(Code::INVALID_ARGUMENT | Code::FUNCTION_NOT_FOUND | Code::NOT_SUPPORTED) => {
            nvml.create_compute(instance, profile)
        }
        made => made,
    };
    new_id(nvml, made)
}

fn new_id(nvml: &Nvml, made: Reading<Compute>) -> Result<u32, Failure> {
    let compute = made.of("nvmlGpuInstanceCreateComputeInstance")?;
    Ok(nvml.compute_info(compute).of("nvmlComputeInstanceGetInfo")?.id)
}
