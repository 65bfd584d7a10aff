//! One reading of everything that facts and plans need.
//!
//! Only reads. Nothing depends on a product name: what a GPU has is what its getters return.

use gpufleet_protocol::nvml::{
    Code, ComputeInstance, GpuDevices, GpuInstance, GpuProcess, GpuReading, MigDevice, MigProfile, Reading,
    Snapshot,
};

use crate::nvml::{CLOCK_GRAPHICS, CLOCK_MEMORY, Device, Errors, Instance, Nvml, ProfileInfo, Since};

/// Bound of profile numbers, which end at the first `INVALID_ARGUMENT`; driver 580 has 17 (SEMANTICS of nvml.h).
const MOST_PROFILES: u32 = 64;
const MOST_COMPUTE_PROFILES: u32 = 16;
pub const MOST_LINKS: u32 = 36;

pub fn read(nvml: &Nvml) -> Snapshot {
    let mut gpus = Vec::new();
    let mut unreadable = Vec::new();
    match nvml.device_count() {
        Ok(count) => {
            for index in 0..count {
                match found(nvml, index) {
                    Ok((device, uuid)) => gpus.push(gpu(nvml, index, device, uuid, Profiles::Always)),
                    Err(code) => unreadable.push((index, code)),
                }
            }
        }
        Err(code) => unreadable.push((0, code)),
    }
    Snapshot {
        driver_version: nvml.driver_version(),
        nvml_version: nvml.nvml_version(),
        cuda_version: nvml.cuda_version(),
        confidential: nvml.confidential(),
        confidential_ready: nvml.confidential_ready(),
        gpus,
        unreadable,
        drained: Vec::new(),
    }
}

/// Reads each GPU and MIG device as containers are given it.
pub fn devices(nvml: &Nvml) -> Reading<Vec<GpuDevices>> {
    (0..nvml.device_count()?)
        .map(|index| {
            let device = match nvml.device(index) {
                Ok(device) => device,
                Err(code) => {
                    return Ok(GpuDevices { index, uuid: Err(code), mig: false, devices: Err(code) });
                }
            };
            let mig = match nvml.mig(device) {
                Ok(mode) => Ok(mode.current),
                Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => Ok(false),
                Err(code) => Err(code),
            };
            let devices = match mig {
                Ok(false) => Ok(Vec::new()),
                Ok(true) => mig_devices(nvml, device),
                Err(code) => Err(code),
            };
            Ok(GpuDevices { index, uuid: nvml.uuid(device), mig: mig == Ok(true), devices })
        })
        .collect()
}

fn mig_devices(nvml: &Nvml, device: Device) -> Reading<Vec<MigDevice>> {
    let mut all = Vec::new();
    for index in 0..nvml.most_mig_devices(device)? {
        let device = match nvml.mig_device(device, index) {
            Ok(device) => device,
            Err(Code::NOT_FOUND) => continue,
            Err(code) => return Err(code),
        };
        all.push(MigDevice {
            uuid: nvml.uuid(device)?,
            gpu_instance: nvml.gpu_instance_of(device)?,
            compute_instance: nvml.compute_instance_of(device)?,
        });
    }
    Ok(all)
}

/// Returns the handle and the UUID of a GPU.
pub fn found(nvml: &Nvml, index: u32) -> Reading<(Device, String)> {
    nvml.device(index).and_then(|device| Ok((device, nvml.uuid(device)?)))
}

/// When MIG profiles are read. They take 7 ms of CPU for each GPU, every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiles {
    Always,
    WhileMigIsOn,
}

pub fn gpu(nvml: &Nvml, index: u32, device: Device, uuid: String, wanted: Profiles) -> GpuReading {
    let memory_bytes = nvml.memory_bytes(device);
    let mig = nvml.mig(device);
    let profiles = match (wanted, mig) {
        (Profiles::WhileMigIsOn, Ok(mode)) if !mode.current => Ok(Vec::new()),
        (Profiles::WhileMigIsOn, Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND)) => Ok(Vec::new()),
        _ => profiles(nvml, device, memory_bytes),
    };
    let instances = match (&mig, &profiles) {
        (Ok(mode), Ok(profiles)) if mode.current => instances(nvml, device, profiles),
        (Ok(_), Err(code)) if mig.is_ok_and(|mode| mode.current) => Err(*code),
        _ => Ok(Vec::new()),
    };
    let supported_memory = nvml.supported_memory_clocks(device);
    let supported_graphics = supported_memory.clone().and_then(|clocks| {
        let highest = clocks.into_iter().max().ok_or(Code::NOT_FOUND)?;
        nvml.supported_graphics_clocks(device, highest)
    });
    GpuReading {
        index,
        uuid,
        pci: nvml.pci(device),
        minor: nvml.minor(device),
        name: nvml.name(device),
        architecture: nvml.architecture(device),
        compute_capability: nvml.compute_capability(device),
        memory_bytes,
        vbios: nvml.vbios(device),
        serial: nvml.serial(device),
        board_part: nvml.board_part(device),
        persistence: nvml.persistence(device),
        ecc: nvml.ecc(device),
        ecc_uncorrected: nvml.ecc_errors(device, Errors::Uncorrected, Since::Load),
        ecc_corrected: nvml.ecc_errors(device, Errors::Corrected, Since::Load),
        ecc_uncorrected_sram: nvml.sram_errors(device, Errors::Uncorrected),
        recovery_action: nvml.recovery_action(device),
        remapped_rows: nvml.remapped_rows(device),
        mig,
        power_limit_mw: nvml.power_limit(device),
        power_default_mw: nvml.power_default(device),
        power_range_mw: nvml.power_range(device),
        power_enforced_mw: nvml.power_enforced(device),
        energy_mj: nvml.energy(device),
        module_power: nvml.module_power(device),
        compute_mode: nvml.compute_mode(device),
        accounting: nvml.accounting(device),
        accounting_buffer: nvml.accounting_buffer(device),
        graphics_clock_mhz: nvml.clock(device, CLOCK_GRAPHICS),
        memory_clock_mhz: nvml.clock(device, CLOCK_MEMORY),
        max_graphics_clock_mhz: nvml.max_clock(device, CLOCK_GRAPHICS),
        max_memory_clock_mhz: nvml.max_clock(device, CLOCK_MEMORY),
        supported_memory_clocks_mhz: supported_memory,
        supported_graphics_clocks_mhz: supported_graphics,
        temperature_c: nvml.temperature(device),
        pcie_generation: nvml.pcie_generation(device),
        pcie_width: nvml.pcie_width(device),
        active_nvlinks: active_links(nvml, device),
        profiles,
        instances,
        processes: nvml.processes(device).map(|found| {
            found
                .into_iter()
                .map(|process| GpuProcess {
                    pid: process.pid,
                    memory_bytes: process.memory_bytes,
                    gpu_instance: process.gpu_instance,
                })
                .collect()
        }),
    }
}

/// Counts active links. Past the last link NVML returns `INVALID_ARGUMENT`, and a card without links returns
/// `NOT_SUPPORTED` for each.
fn active_links(nvml: &Nvml, device: Device) -> Reading<u32> {
    let mut active = 0;
    for link in 0..MOST_LINKS {
        match nvml.nvlink_active(device, link) {
            Ok(up) => active += u32::from(up),
            Err(Code::NOT_SUPPORTED) if link > 0 => {}
            Err(Code::NOT_SUPPORTED | Code::INVALID_ARGUMENT) => break,
            Err(code) => return Err(code),
        }
    }
    Ok(active)
}

fn profiles(nvml: &Nvml, device: Device, memory: Reading<u64>) -> Reading<Vec<MigProfile>> {
    let mut found: Vec<MigProfile> = Vec::new();
    for number in 0..MOST_PROFILES {
        match nvml.profile(device, number) {
            Ok(info) if found.iter().any(|known| known.id == info.id) => {}
            Ok(info) => found.push(MigProfile {
                id: info.id,
                name: name(&info, memory),
                slices: info.slices,
                max_count: info.max_count,
                memory_mib: info.memory_mib,
                placements: nvml.placements(device, info.id).map(|mut places| {
                    places.sort_unstable();
                    places.dedup();
                    places
                }),
            }),
            Err(Code::NOT_SUPPORTED) => {}
            // Drivers before 450 do not know MIG.
            Err(Code::INVALID_ARGUMENT | Code::FUNCTION_NOT_FOUND) => break,
            Err(code) => return Err(code),
        }
    }
    Ok(found)
}

fn name(info: &ProfileInfo, memory: Reading<u64>) -> String {
    match &info.name {
        Some(name) => name.strip_prefix("MIG ").unwrap_or(name).to_owned(),
        None => computed_name(info.slices, info.memory_mib, memory.unwrap_or(0)),
    }
}

/// Returns the name that NVIDIA's tools use: memory rounded to eighths of the GPU's. Source: go-nvlib.
fn computed_name(slices: u32, memory_mib: u64, total_bytes: u64) -> String {
    let total_mib = (total_bytes / (1024 * 1024)).max(1);
    let eighths = (memory_mib * 8).div_ceil(total_mib).min(8);
    let total_gib = total_mib.div_ceil(1024);
    let gigabytes = (eighths * total_gib + 4) / 8;
    format!("{slices}g.{gigabytes}gb")
}

fn instances(nvml: &Nvml, device: Device, profiles: &[MigProfile]) -> Reading<Vec<GpuInstance>> {
    let mut all = Vec::new();
    for profile in profiles {
        let found = match nvml.instances(device, profile.id) {
            Ok(found) => found,
            // A profile may be listed but not usable in the present mode.
            Err(Code::NOT_SUPPORTED | Code::INVALID_ARGUMENT) => continue,
            Err(code) => return Err(code),
        };
        for instance in found {
            let info = nvml.instance_info(instance)?;
            all.push(GpuInstance {
                id: info.id,
                profile_id: info.profile_id,
                placement: info.placement,
                compute_instances: computes(nvml, instance)?,
            });
        }
    }
    all.sort_by_key(|instance| instance.placement);
    all.dedup_by_key(|instance| instance.id);
    if all.iter().any(|instance| !instance.compute_instances.is_empty()) {
        // What the driver does not tell is left out: only a daemon of MPS for an instance needs it.
        for (instance, compute, uuid) in nvml.mig_devices(device).unwrap_or_default() {
            let mut inside = all.iter_mut().filter(|one| one.id == instance);
            let found = inside.find_map(|one| one.compute_instances.iter_mut().find(|one| one.id == compute));
            if let Some(found) = found {
                found.uuid = Some(uuid);
            }
        }
    }
    Ok(all)
}

fn computes(nvml: &Nvml, instance: Instance) -> Reading<Vec<ComputeInstance>> {
    let mut all: Vec<ComputeInstance> = Vec::new();
    for number in 0..MOST_COMPUTE_PROFILES {
        let profile = match nvml.compute_profile(instance, number) {
            Ok(profile) => profile,
            Err(Code::NOT_SUPPORTED) => continue,
            Err(Code::INVALID_ARGUMENT) => break,
            Err(code) => return Err(code),
        };
        let found = match nvml.computes(instance, profile.id) {
            Ok(found) => found,
            Err(Code::NOT_SUPPORTED | Code::INVALID_ARGUMENT) => continue,
            Err(code) => return Err(code),
        };
        for compute in found {
            let info = nvml.compute_info(compute)?;
            if all.iter().all(|known| known.id != info.id) {
                let slices = if info.profile_id == profile.id { profile.slices } else { info.size };
                all.push(ComputeInstance {
                    id: info.id,
                    profile_id: info.profile_id,
                    start: info.start,
                    slices,
                    uuid: None,
                });
            }
        }
    }
    all.sort_by_key(|compute| compute.id);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nvidias_tools() {
        // Memory of the profiles, as reported by an H100 80GB HBM3 and an H200.
        let h100 = 85_520_809_984;
        for (slices, mib, expected) in
            [(1, 9984, "1g.10gb"), (1, 20096, "1g.20gb"), (3, 40448, "3g.40gb"), (7, 81152, "7g.80gb")]
        {
            assert_eq!(computed_name(slices, mib, h100), expected);
        }
    }
}
