//! The facts of GPUs, from one snapshot.

use gpufleet_protocol::{
    facts::{GpuFacts, GpuSystem, GpuSystemState, MigInstance},
    nvml::{Code, GpuReading, Reading, Snapshot},
};

use super::state::Architecture;

/// Returns the facts of readable GPUs.
pub fn system(snapshot: &Snapshot, pci_count: u32, module_version: Option<String>) -> GpuSystem {
    let mut gpus: Vec<GpuFacts> = snapshot.gpus.iter().map(gpu).collect();
    gpus.extend(snapshot.unreadable.iter().map(|(index, code)| GpuFacts {
        index: *index,
        errors: vec![format!("GPU {index} cannot be read: {code}")],
        ..GpuFacts::default()
    }));
    gpus.extend(snapshot.drained.iter().map(|gpu| GpuFacts {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        pci: gpu.pci.clone(),
        name: gpu.name.clone(),
        drained: true,
        errors: vec!["it is drained, so that only its address can be read".to_owned()],
        ..GpuFacts::default()
    }));
    gpus.sort_by_key(|gpu| gpu.index);
    GpuSystem {
        state: GpuSystemState::Ok,
        module_version,
        driver_version: snapshot.driver_version.clone().ok(),
        cuda_version: snapshot
            .cuda_version
            .ok()
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        pci_count,
        gpus,
    }
}

/// Returns the facts if GPUs could not be read.
pub fn unread(state: GpuSystemState, pci_count: u32, module_version: Option<String>) -> GpuSystem {
    let state = match state {
        // A machine without an NVIDIA device needs no driver.
        GpuSystemState::NoDriver { .. } if pci_count == 0 => GpuSystemState::NoGpu,
        other => other,
    };
    GpuSystem { state, module_version, pci_count, ..GpuSystem::default() }
}

/// Returns the name of an `nvmlComputeMode_t`.
pub fn compute_mode_name(mode: u32) -> String {
    match mode {
        0 => "default".to_owned(),
        1 => "exclusive_thread".to_owned(),
        2 => "prohibited".to_owned(),
        3 => "exclusive_process".to_owned(),
        other => format!("mode {other}"),
    }
}

/// Collects errors of readings; an unsupported value is no error.
struct Taken<'a>(&'a mut Vec<String>);

impl Taken<'_> {
    fn take<T: Clone>(&mut self, what: &str, reading: &Reading<T>) -> Option<T> {
        match reading {
            Ok(value) => Some(value.clone()),
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => None,
            Err(code) => {
                self.0.push(format!("{what} cannot be read: {code}"));
                None
            }
        }
    }
}

fn gpu(reading: &GpuReading) -> GpuFacts {
    let mut errors = Vec::new();
    let mut of = Taken(&mut errors);
    let ecc = of.take("ECC mode", &reading.ecc);
    let mig = of.take("MIG mode", &reading.mig);
    let range = of.take("power limits", &reading.power_range_mw);
    let profiles = of.take("MIG profiles", &reading.profiles).unwrap_or_default();
    let name_of = |id: u32| {
        profiles
            .iter()
            .find(|profile| profile.id == id)
            .map_or_else(|| format!("profile {id}"), |p| p.name.clone())
    };
    let mig_layout = of
        .take("MIG instances", &reading.instances)
        .unwrap_or_default()
        .iter()
        .map(|instance| MigInstance {
            profile: name_of(instance.profile_id),
            start: instance.placement.start,
            size: instance.placement.size,
            id: instance.id,
            compute_instances: u32::try_from(instance.compute_instances.len()).unwrap_or(u32::MAX),
        })
        .collect();
    let (major_minor, memory) = (
        of.take("compute capability", &reading.compute_capability),
        of.take("memory", &reading.memory_bytes),
    );
    let mut facts = GpuFacts {
        index: reading.index,
        uuid: reading.uuid.clone(),
        pci: of.take("PCI address", &reading.pci).unwrap_or_default(),
        minor: of.take("minor number", &reading.minor),
        name: of.take("name", &reading.name).unwrap_or_default(),
        architecture: of
            .take("architecture", &reading.architecture)
            .map_or_else(|| "unknown".to_owned(), |number| Architecture(number).name()),
        compute_capability: major_minor.map(|(major, minor)| format!("{major}.{minor}")),
        memory_mib: memory.map(|bytes| bytes / (1024 * 1024)),
        vbios: of.take("VBIOS version", &reading.vbios),
        serial: of.take("serial number", &reading.serial),
        board_part: of.take("board part number", &reading.board_part),
        persistence: of.take("persistence mode", &reading.persistence),
        ecc_current: ecc.map(|mode| mode.current),
        ecc_pending: ecc.map(|mode| mode.pending),
        mig_current: mig.map(|mode| mode.current),
        mig_pending: mig.map(|mode| mode.pending),
        mig_layout,
        power_limit_mw: of.take("power limit", &reading.power_limit_mw).map(u64::from),
        power_default_mw: of.take("default power limit", &reading.power_default_mw).map(u64::from),
        power_min_mw: range.map(|(low, _)| u64::from(low)),
        power_max_mw: range.map(|(_, high)| u64::from(high)),
        power_enforced_mw: of.take("enforced power limit", &reading.power_enforced_mw).map(u64::from),
        compute_mode: of.take("compute mode", &reading.compute_mode).map(compute_mode_name),
        graphics_clock_mhz: of.take("graphics clock", &reading.graphics_clock_mhz),
        memory_clock_mhz: of.take("memory clock", &reading.memory_clock_mhz),
        max_graphics_clock_mhz: of.take("highest graphics clock", &reading.max_graphics_clock_mhz),
        max_memory_clock_mhz: of.take("highest memory clock", &reading.max_memory_clock_mhz),
        temperature_c: of.take("temperature", &reading.temperature_c),
        pcie_generation: of.take("PCIe generation", &reading.pcie_generation),
        pcie_width: of.take("PCIe width", &reading.pcie_width),
        drained: false,
        errors: Vec::new(),
    };
    facts.errors = errors;
    facts
}
