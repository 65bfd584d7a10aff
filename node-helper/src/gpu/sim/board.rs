//! A simulated GPU.

use gpufleet_protocol::{
    nvml::{
        Code, ComputeInstance, DrainedGpu, GpuInstance, GpuProcess, GpuReading, MigProfile, ModulePower,
        Placement, Reading, RemappedRows, Staged,
    },
    tasks::PciId,
};

use super::profiles::h100;
use crate::gpu::state::Board;

#[derive(Clone, Debug, PartialEq)]
pub struct SimGpu {
    pub index: u32,
    pub hopper: bool,
    pub has_ecc: bool,
    pub ecc: Staged,
    pub mig: Staged,
    pub profiles: Vec<MigProfile>,
    pub instances: Vec<GpuInstance>,
    pub persistence: bool,
    pub power_mw: u32,
    /// Used since it was initialised.
    pub energy_mj: u64,
    /// Of its module, if it is one with a CPU: from 400 W to 1000 W, which is the default.
    pub module_mw: Option<u32>,
    pub graphics: Option<(u32, u32)>,
    pub memory: Option<(u32, u32)>,
    pub compute_mode: u32,
    pub accounting: bool,
    pub resettable: bool,
    pub nvlinks: Reading<u32>,
    pub client: Option<u32>,
    /// The unit that the client belongs to.
    pub client_unit: Option<String>,
    pub lost: bool,
    pub drained: bool,
    pub uncorrected: u64,
    pub corrected: u64,
    pub uncorrected_sram: u64,
    pub recovery_action: Reading<u32>,
    pub architecture: Option<u32>,
    /// Why its supported clocks cannot be read.
    pub clocks_fail: Option<Code>,
    /// Why its counters cannot be read.
    pub counters_fail: Option<Code>,
    /// Device handles refuse to read counters while there are MIG instances.
    pub refuses_counters: bool,
    pub rows: Reading<RemappedRows>,
    pub board: Option<Board>,
    /// Number of compute instances that were made, each of which has a UUID of its own.
    pub made: u32,
}

impl SimGpu {
    /// Returns the UUIDs of the GPU and its MIG devices.
    pub fn devices(&self) -> Vec<String> {
        let computes = self.instances.iter().flat_map(|one| &one.compute_instances);
        computes.filter_map(|one| one.uuid.clone()).chain([self.uuid()]).collect()
    }

    pub fn new(index: u32, hopper: bool) -> Self {
        Self {
            index,
            hopper,
            has_ecc: true,
            ecc: Staged::settled(true),
            mig: Staged::settled(false),
            profiles: h100(),
            instances: Vec::new(),
            persistence: false,
            power_mw: 700_000,
            energy_mj: 1_000_000,
            module_mw: None,
            graphics: None,
            memory: None,
            compute_mode: 0,
            accounting: false,
            resettable: true,
            nvlinks: Ok(0),
            client: None,
            client_unit: None,
            lost: false,
            drained: false,
            uncorrected: 0,
            corrected: 0,
            uncorrected_sram: 0,
            recovery_action: Ok(0),
            architecture: None,
            refuses_counters: false,
            counters_fail: None,
            clocks_fail: None,
            rows: Ok(RemappedRows::default()),
            made: 0,
            board: Some(Board {
                device: PciId { device: if hopper { 0x2330 } else { 0x20b2 }, vendor: 0x10de },
                subsystem: Some(PciId { device: 0x16c1, vendor: 0x10de }),
            }),
        }
    }

    pub fn uuid(&self) -> String {
        format!("GPU-{}", self.index)
    }

    pub fn with_instances(mut self, instances: &[(u32, u32, u32)]) -> Self {
        self.mig = Staged::settled(true);
        for (profile_id, start, size) in instances {
            self.add(*profile_id, Placement { start: *start, size: *size });
            let slices = self.slices(*profile_id);
            let last = self.instances.last_mut().unwrap();
            let uuid = Some(format!("MIG-{}-{}-0-old", self.index, last.id));
            last.compute_instances.push(ComputeInstance { id: 0, profile_id: 0, start: 0, slices, uuid });
        }
        self
    }

    pub(super) fn slices(&self, id: u32) -> u32 {
        self.profiles.iter().find(|profile| profile.id == id).unwrap().slices
    }

    pub(super) fn add(&mut self, profile_id: u32, placement: Placement) -> u32 {
        let id = (1..).find(|id| self.instances.iter().all(|instance| instance.id != *id)).unwrap();
        self.instances.push(GpuInstance { id, profile_id, placement, compute_instances: Vec::new() });
        id
    }

    /// Returns profile names by place, with `!` for one without compute instance, and the places and sizes of parts.
    pub fn layout(&self) -> Vec<String> {
        let mut all: Vec<(u32, String)> = self
            .instances
            .iter()
            .map(|instance| {
                let profile = self.profiles.iter().find(|profile| profile.id == instance.profile_id).unwrap();
                let parts = instance.compute_instances.iter().filter(|part| part.slices != profile.slices);
                let parts: Vec<String> = parts.map(|one| format!("{}c@{}", one.slices, one.start)).collect();
                let mark = match (instance.compute_instances.is_empty(), parts.as_slice()) {
                    (true, _) => "!".to_owned(),
                    (false, []) => String::new(),
                    (false, parts) => format!("({})", parts.join(",")),
                };
                (instance.placement.start, format!("{}@{}{mark}", profile.name, instance.placement.start))
            })
            .collect();
        all.sort();
        all.into_iter().map(|(_, text)| text).collect()
    }

    pub(in crate::gpu) fn forget(&mut self) {
        self.energy_mj = 0;
        self.power_mw = 700_000;
        self.module_mw = self.module_mw.map(|_| 1_000_000);
        (self.graphics, self.memory, self.compute_mode) = (None, None, 0);
        self.accounting = false;
    }

    pub(in crate::gpu) fn reset(&mut self) {
        self.ecc.current = self.ecc.pending;
        self.mig.current = self.mig.pending;
        self.instances.clear();
        self.energy_mj = 0;
        (self.graphics, self.memory) = (None, None);
        (self.uncorrected, self.corrected) = (0, 0);
        if self.recovery_action == Ok(1) {
            self.recovery_action = Ok(0);
        }
        if let Ok(rows) = &mut self.rows {
            rows.pending = false;
        }
    }

    pub(super) fn pci(&self) -> String {
        format!("0000:{:02x}:00.0", 0x1b + self.index)
    }

    pub(super) fn hidden(&self) -> DrainedGpu {
        let GpuReading { uuid, name, .. } = self.reading();
        let name = name.unwrap_or_default();
        DrainedGpu { index: self.index, pci: self.pci(), uuid, name, minor: Some(self.index) }
    }

    pub(super) fn counter(&self, count: u64) -> Reading<u64> {
        match (self.counters_fail, self.has_ecc && !self.refuses_counters) {
            (Some(code), _) => Err(code),
            (None, true) => Ok(count),
            (None, false) => Err(Code::NOT_SUPPORTED),
        }
    }

    pub(super) fn reading(&self) -> GpuReading {
        let clocks: Vec<u32> = (0..110).map(|step| 345 + 15 * step).collect();
        GpuReading {
            index: self.index,
            uuid: self.uuid(),
            pci: Ok(self.pci()),
            minor: Ok(self.index),
            name: Ok(if self.hopper { "NVIDIA H100 80GB HBM3" } else { "NVIDIA A100-SXM4-80GB" }.to_owned()),
            architecture: Ok(self.architecture.unwrap_or(if self.hopper { 9 } else { 7 })),
            compute_capability: Ok(if self.hopper { (9, 0) } else { (8, 0) }),
            memory_bytes: Ok(85_520_809_984),
            vbios: Ok("96.00".to_owned()),
            serial: Err(Code::NOT_SUPPORTED),
            board_part: Err(Code::NOT_SUPPORTED),
            persistence: Ok(self.persistence),
            ecc: if self.has_ecc { Ok(self.ecc) } else { Err(Code::NOT_SUPPORTED) },
            ecc_uncorrected: self.counter(self.uncorrected),
            ecc_corrected: self.counter(self.corrected),
            ecc_uncorrected_sram: self.counter(self.uncorrected_sram),
            recovery_action: self.recovery_action,
            remapped_rows: self.rows,
            mig: Ok(self.mig),
            power_limit_mw: Ok(self.power_mw),
            power_default_mw: Ok(700_000),
            power_range_mw: Ok((200_000, 700_000)),
            power_enforced_mw: Ok(self.power_mw),
            energy_mj: Ok(self.energy_mj),
            module_power: self.module_mw.ok_or(Code::NOT_SUPPORTED).map(|limit_mw| ModulePower {
                limit_mw,
                default_mw: 1_000_000,
                low_mw: 400_000,
                high_mw: 1_000_000,
            }),
            compute_mode: Ok(self.compute_mode),
            accounting: Ok(self.accounting),
            accounting_buffer: Ok(4000),
            graphics_clock_mhz: Ok(self.graphics.map_or(1410, |(low, high)| 1410.clamp(low, high))),
            memory_clock_mhz: Ok(2619),
            max_graphics_clock_mhz: Ok(1980),
            max_memory_clock_mhz: Ok(2619),
            supported_memory_clocks_mhz: self.clocks_fail.map_or(Ok(vec![2619, 1593]), Err),
            supported_graphics_clocks_mhz: self.clocks_fail.map_or(Ok(clocks), Err),
            temperature_c: Ok(30),
            pcie_generation: Ok(5),
            pcie_width: Ok(16),
            active_nvlinks: self.nvlinks,
            profiles: Ok(self.profiles.clone()),
            instances: Ok(if self.mig.current { self.instances.clone() } else { Vec::new() }),
            processes: Ok(self
                .client
                .iter()
                .map(|pid| GpuProcess { pid: *pid, memory_bytes: None, gpu_instance: None })
                .collect()),
        }
    }
}
