//! A simulated node behind the [`Machine`] trait, for tests of whole runs.
//!
//! Its behaviour is written from the documentation and not from `after`, so that each checks the other. Any effect can
//! be made to fail.

mod mps_daemon;
mod profiles;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use gpufleet_protocol::{
    message::GpuClient,
    nvml::{
        Code, ComputeInstance, Confidential, GpuDevices, GpuInstance, GpuProcess, GpuReading, Health,
        HealthReading, MigDevice, MigProfile, Placement, Reading, RemappedRows, Setting, Snapshot, Staged,
    },
    tasks::PciId,
};

pub use self::mps_daemon::SimMps;
use self::profiles::h100;
use super::{
    clients::{Holder, Scan},
    machine::{BootMark, Machine, ResetError, UnitAction},
    mps::Seat,
    state::{Board, Daemon, Device, Host, Mps, Unit},
    worker::{NoHealth, NvmlError, SetAnswer, SetError},
};
use crate::{deadline::Deadline, world::World};

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
    pub graphics: Option<(u32, u32)>,
    pub memory: Option<(u32, u32)>,
    pub compute_mode: u32,
    pub accounting: bool,
    pub resettable: bool,
    pub nvlinks: u32,
    pub client: Option<u32>,
    /// The unit that the client belongs to.
    pub client_unit: Option<String>,
    pub lost: bool,
    pub uncorrected: u64,
    pub corrected: u64,
    pub uncorrected_sram: u64,
    pub recovery_action: Reading<u32>,
    pub architecture: Option<u32>,
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
            graphics: None,
            memory: None,
            compute_mode: 0,
            accounting: false,
            resettable: true,
            nvlinks: 0,
            client: None,
            client_unit: None,
            lost: false,
            uncorrected: 0,
            corrected: 0,
            uncorrected_sram: 0,
            recovery_action: Ok(0),
            architecture: None,
            refuses_counters: false,
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

    fn slices(&self, id: u32) -> u32 {
        self.profiles.iter().find(|profile| profile.id == id).unwrap().slices
    }

    fn add(&mut self, profile_id: u32, placement: Placement) -> u32 {
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

    fn forget(&mut self) {
        self.power_mw = 700_000;
        (self.graphics, self.memory, self.compute_mode) = (None, None, 0);
        self.accounting = false;
    }

    fn reset(&mut self) {
        self.ecc.current = self.ecc.pending;
        self.mig.current = self.mig.pending;
        self.instances.clear();
        (self.graphics, self.memory) = (None, None);
        (self.uncorrected, self.corrected) = (0, 0);
        if self.recovery_action == Ok(1) {
            self.recovery_action = Ok(0);
        }
        if let Ok(rows) = &mut self.rows {
            rows.pending = false;
        }
    }

    fn set(&mut self, setting: &Setting, held: bool) -> Result<SetAnswer, Code> {
        match *setting {
            Setting::Persistence(on) => self.persistence = on,
            Setting::Ecc(on) if self.has_ecc => self.ecc.pending = on,
            Setting::Ecc(_) => return Err(Code::NOT_SUPPORTED),
            Setting::MigMode(on) => {
                self.mig.pending = on;
                if self.mig.current != on {
                    let busy = self.client.is_some()
                        || !self.instances.is_empty()
                        || !self.hopper && (held || self.persistence);
                    if busy {
                        return Ok(SetAnswer::MigMode { activation: Code::IN_USE });
                    }
                    if !self.hopper {
                        self.reset();
                    }
                    self.mig.current = on;
                    self.accounting &= !on;
                }
                return Ok(SetAnswer::MigMode { activation: Code::SUCCESS });
            }
            Setting::PowerLimit { milliwatts } if (200_000..=700_000).contains(&milliwatts) => {
                self.power_mw = milliwatts
            }
            Setting::PowerLimit { .. } => return Err(Code::INVALID_ARGUMENT),
            Setting::LockGraphics { low_mhz, high_mhz } => self.graphics = Some((low_mhz, high_mhz)),
            Setting::UnlockGraphics => self.graphics = None,
            Setting::LockMemory { .. } if self.hopper => return Err(Code::NOT_SUPPORTED),
            Setting::LockMemory { low_mhz, high_mhz } => self.memory = Some((low_mhz, high_mhz)),
            Setting::UnlockMemory => self.memory = None,
            Setting::ComputeMode(mode) => self.compute_mode = mode,
            Setting::CreateGpuInstance { profile_id, placement } => {
                if !self.mig.current {
                    return Err(Code::NOT_SUPPORTED);
                }
                let legal = self
                    .profiles
                    .iter()
                    .any(|p| p.id == profile_id && p.placements.as_ref().unwrap().contains(&placement));
                if !legal {
                    return Err(Code::INVALID_ARGUMENT);
                }
                let end = |place: Placement| place.start + place.size;
                let overlaps = |other: &GpuInstance| {
                    other.placement.start < end(placement) && placement.start < end(other.placement)
                };
                if self.instances.iter().any(overlaps) {
                    return Err(Code::INSUFFICIENT_RESOURCES);
                }
                return Ok(SetAnswer::Created { id: self.add(profile_id, placement) });
            }
            Setting::CreateComputeInstance { gpu_instance, part } => {
                let at = self.instances.iter().position(|i| i.id == gpu_instance).ok_or(Code::NOT_FOUND)?;
                let slices = self.slices(self.instances[at].profile_id);
                let computes = &mut self.instances[at].compute_instances;
                let (start, size) = part.map_or((0, slices), |part| (part.start, part.size));
                if size > slices || start % size.next_power_of_two() != 0 || start + size > slices {
                    return Err(Code::INVALID_ARGUMENT);
                }
                let overlaps = |other: &ComputeInstance| {
                    other.start < start + size && start < other.start + other.slices
                };
                if computes.iter().any(overlaps) {
                    return Err(Code::INSUFFICIENT_RESOURCES);
                }
                let id = (0..).find(|id| computes.iter().all(|compute| compute.id != *id)).unwrap();
                self.made += 1;
                let uuid = Some(format!("MIG-{}-{gpu_instance}-{id}-{}", self.index, self.made));
                computes.push(ComputeInstance { id, profile_id: size, start, slices: size, uuid });
                computes.sort_by_key(|compute| compute.id);
                return Ok(SetAnswer::Created { id });
            }
            Setting::DestroyComputeInstance { gpu_instance, compute_instance } => {
                if self.client.is_some() {
                    return Err(Code::IN_USE);
                }
                let at = self.instances.iter().position(|i| i.id == gpu_instance).ok_or(Code::NOT_FOUND)?;
                self.instances[at].compute_instances.retain(|compute| compute.id != compute_instance);
            }
            Setting::DestroyGpuInstance { gpu_instance } => {
                let at = self.instances.iter().position(|i| i.id == gpu_instance).ok_or(Code::NOT_FOUND)?;
                if !self.instances[at].compute_instances.is_empty() {
                    return Err(Code::IN_USE);
                }
                self.instances.remove(at);
            }
            Setting::Accounting(_) if self.mig.current => return Err(Code::NOT_SUPPORTED),
            Setting::Accounting(on) => self.accounting = on,
            Setting::Drain(_) | Setting::ConfidentialReady(_) => {}
        }
        Ok(SetAnswer::Done)
    }

    fn reading(&self) -> GpuReading {
        let clocks: Vec<u32> = (0..110).map(|step| 345 + 15 * step).collect();
        GpuReading {
            index: self.index,
            uuid: self.uuid(),
            pci: Ok(format!("0000:{:02x}:00.0", 0x1b + self.index)),
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
            ecc_uncorrected: match self.has_ecc && !self.refuses_counters {
                true => Ok(self.uncorrected),
                false => Err(Code::NOT_SUPPORTED),
            },
            ecc_corrected: match self.has_ecc && !self.refuses_counters {
                true => Ok(self.corrected),
                false => Err(Code::NOT_SUPPORTED),
            },
            ecc_uncorrected_sram: match self.has_ecc && !self.refuses_counters {
                true => Ok(self.uncorrected_sram),
                false => Err(Code::NOT_SUPPORTED),
            },
            recovery_action: self.recovery_action,
            remapped_rows: self.rows,
            mig: Ok(self.mig),
            power_limit_mw: Ok(self.power_mw),
            power_default_mw: Ok(700_000),
            power_range_mw: Ok((200_000, 700_000)),
            power_enforced_mw: Ok(self.power_mw),
            compute_mode: Ok(self.compute_mode),
            accounting: Ok(self.accounting),
            accounting_buffer: Ok(4000),
            graphics_clock_mhz: Ok(345),
            memory_clock_mhz: Ok(2619),
            max_graphics_clock_mhz: Ok(1980),
            max_memory_clock_mhz: Ok(2619),
            supported_memory_clocks_mhz: Ok(vec![2619, 1593]),
            supported_graphics_clocks_mhz: Ok(clocks),
            temperature_c: Ok(30),
            pcie_generation: Ok(5),
            pcie_width: Ok(16),
            active_nvlinks: Ok(self.nvlinks),
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

#[derive(Clone, Debug)]
pub struct Sim {
    pub gpus: Vec<SimGpu>,
    pub persistenced: Unit,
    pub persistenced_fault: Option<String>,
    pub mps: SimMps,
    /// Daemons of devices, by UUID.
    pub device_mps: BTreeMap<String, SimMps>,
    /// Users of the node.
    pub users: Vec<String>,
    /// Units that hold every GPU, and whether they run.
    pub units: BTreeMap<String, bool>,
    pub boot: u32,
    pub open: bool,
    /// Use counts of nvidia_drm and nvidia_peermem.
    pub drm: u32,
    pub peermem: u32,
    /// Number of scans of all processes' open files.
    pub scans: usize,
    /// Number of NVML snapshots.
    pub snapshots: usize,
    /// End of the kernel's log, in microseconds.
    pub log: u64,
    /// The helper's user, if not root.
    pub not_root: Option<u32>,
    pub fabric_manager: bool,
    pub switches: u32,
    /// Whether confidential computing is on, and the GPUs ready; `None` where the node has no such thing.
    pub confidential: Option<(bool, bool)>,
    /// The number of scans after which a reader's NVML worker ends.
    pub reader: Option<u32>,
    /// A unit that systemd refuses to start.
    pub will_not_start: Option<String>,
    pub no_reset: bool,
    /// Setters that return success and do nothing.
    pub lies: Option<fn(&Setting) -> bool>,
    /// Everything that changed the node.
    pub effects: Vec<String>,
    /// Number of effects that succeed before one fails.
    pub fuse: Option<usize>,
    pub broken: Option<NvmlError>,
}

impl Sim {
    pub fn new(gpus: Vec<SimGpu>) -> Self {
        Self {
            gpus,
            persistenced: Unit { exists: true, active: false, enabled: false },
            persistenced_fault: None,
            mps: SimMps::default(),
            device_mps: BTreeMap::new(),
            users: vec!["triton".to_owned()],
            units: BTreeMap::from([
                ("nvidia-dcgm.service".to_owned(), true),
                ("nvsm.service".to_owned(), false),
            ]),
            boot: 1,
            open: false,
            drm: 0,
            peermem: 0,
            scans: 0,
            snapshots: 0,
            log: 1_000_000,
            not_root: None,
            fabric_manager: true,
            switches: 0,
            confidential: None,
            reader: None,
            will_not_start: None,
            no_reset: false,
            lies: None,
            effects: Vec::new(),
            fuse: None,
            broken: None,
        }
    }

    pub fn reboot(&mut self) {
        self.boot += 1;
        self.open = false;
        self.confidential = self.confidential.map(|(enabled, _)| (enabled, false));
        self.persistenced.active = self.persistenced.enabled;
        for gpu in &mut self.gpus {
            gpu.reset();
            gpu.forget();
            if gpu.hopper {
                gpu.mig = Staged::settled(false);
            }
            gpu.persistence = self.persistenced.enabled;
            (gpu.client, gpu.client_unit) = (None, None);
        }
        let there: Vec<String> = self.gpus.iter().flat_map(SimGpu::devices).collect();
        self.mps.run(self.mps.unit.enabled);
        for (uuid, daemon) in &mut self.device_mps {
            daemon.run(daemon.unit.enabled && there.contains(uuid));
        }
    }

    fn daemon(&mut self, seat: &Seat) -> &mut SimMps {
        match seat {
            Seat::Node => &mut self.mps,
            Seat::Device(uuid) => self.device_mps.entry(uuid.clone()).or_default(),
        }
    }

    fn effect(&mut self, text: String) -> bool {
        if let Some(left) = &mut self.fuse {
            if *left == 0 {
                self.fuse = None;
                return false;
            }
            *left -= 1;
        }
        self.effects.push(text);
        true
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            self.sleep();
        }
    }

    /// Makes GPUs without holders forget their values.
    fn sleep(&mut self) {
        let held = self.open || self.units.values().any(|running| *running);
        for gpu in self.gpus.iter_mut().filter(|gpu| !gpu.persistence && gpu.client.is_none() && !held) {
            gpu.forget();
        }
    }

    /// Starts or stops a unit from outside.
    pub fn set_unit(&mut self, unit: &str, active: bool) {
        if let Some(running) = self.units.get_mut(unit) {
            *running = active;
        }
        self.end_clients(|gpu| !active && gpu.client_unit.as_deref() == Some(unit));
    }

    /// Ends clients.
    pub fn end_clients(&mut self, which: impl Fn(&SimGpu) -> bool) {
        for gpu in self.gpus.iter_mut().filter(|gpu| which(gpu)) {
            (gpu.client, gpu.client_unit) = (None, None);
        }
        self.sleep();
    }
}

/// A handle to a simulated node, which clones share.
#[derive(Clone, Debug)]
pub struct SimMachine(pub Arc<Mutex<Sim>>);

impl SimMachine {
    pub fn new(sim: Sim) -> Self {
        Self(Arc::new(Mutex::new(sim)))
    }

    pub fn get(&self) -> MutexGuard<'_, Sim> {
        self.0.lock().unwrap()
    }
}

impl Machine for SimMachine {
    fn snapshot(&mut self, _deadline: &Deadline) -> Result<Snapshot, NvmlError> {
        let mut sim = self.get();
        sim.snapshots += 1;
        if let Some(error) = &sim.broken {
            return Err(error.clone());
        }
        sim.open = true;
        Ok(Snapshot {
            driver_version: Ok("580.159.04".to_owned()),
            nvml_version: Ok("13".to_owned()),
            cuda_version: Ok(13000),
            confidential: sim
                .confidential
                .map(|(enabled, _)| Confidential { enabled, devtools: false })
                .ok_or(Code::NOT_SUPPORTED),
            confidential_ready: sim.confidential.map(|(_, ready)| ready).ok_or(Code::NOT_SUPPORTED),
            gpus: sim.gpus.iter().filter(|gpu| !gpu.lost).map(SimGpu::reading).collect(),
            unreadable: sim
                .gpus
                .iter()
                .filter(|gpu| gpu.lost)
                .map(|gpu| (gpu.index, Code::GPU_IS_LOST))
                .collect(),
        })
    }

    fn devices(&mut self, deadline: &Deadline) -> Result<Vec<GpuDevices>, NvmlError> {
        let of_gpu = |gpu: &GpuReading| {
            let instances = gpu.instances.clone().unwrap_or_default();
            let devices = instances.iter().flat_map(|instance| {
                instance.compute_instances.iter().map(|compute| MigDevice {
                    uuid: format!("MIG-{}-{}-{}", gpu.uuid, instance.id, compute.id),
                    gpu_instance: instance.id,
                    compute_instance: compute.id,
                })
            });
            GpuDevices {
                index: gpu.index,
                uuid: Ok(gpu.uuid.clone()),
                mig: gpu.mig.is_ok_and(|mode| mode.current),
                devices: Ok(devices.collect()),
            }
        };
        Ok(self.snapshot(deadline)?.gpus.iter().map(of_gpu).collect())
    }

    fn health(&mut self, _deep: bool, deadline: &Deadline) -> Result<Health, NoHealth> {
        let snapshot = self.snapshot(deadline)?;
        let gpus = snapshot.gpus.iter().map(|_| HealthReading::none(Code::NOT_SUPPORTED)).collect();
        Ok(Health { count: Ok(u32::try_from(snapshot.gpus.len()).unwrap()), excluded: Ok(0), snapshot, gpus })
    }

    fn lately(&mut self, _window_s: u32, deadline: &Deadline) -> Result<Health, NoHealth> {
        self.health(false, deadline)
    }

    fn set(&mut self, uuid: &str, setting: Setting, _deadline: &Deadline) -> Result<SetAnswer, SetError> {
        let mut sim = self.get();
        sim.open = true;
        let call = format!("{setting:?}");
        if !sim.effect(format!("{uuid} {call}")) {
            return Err(SetError::Refused { call, code: Code::UNKNOWN });
        }
        if sim.lies.is_some_and(|lies| lies(&setting)) {
            return Ok(SetAnswer::Done);
        }
        if let (Setting::ConfidentialReady(on), Some((_, ready))) = (&setting, &mut sim.confidential) {
            *ready = *on;
        }
        let held = sim.units.values().any(|running| *running);
        let gpu = sim.gpus.iter_mut().find(|gpu| gpu.uuid() == uuid).unwrap();
        gpu.set(&setting, held).map_err(|code| SetError::Refused { call, code })
    }

    fn release(&mut self) {
        self.get().close();
    }

    fn host(&mut self, _deadline: &Deadline) -> Host {
        let sim = self.get();
        let mut client_units: Vec<String> =
            sim.units.iter().filter(|(_, running)| **running).map(|(unit, _)| unit.clone()).collect();
        let read = |sim: &SimMps| Daemon {
            unit: sim.unit,
            unit_text: sim.text.clone(),
            answers: sim.running.is_some(),
            stale: sim.stale,
            percentage: sim.running,
            servers: sim.servers,
        };
        let devices = sim.device_mps.iter().map(|(uuid, mps)| (Seat::Device(uuid.clone()), read(mps)));
        let mut daemons: BTreeMap<Seat, Daemon> = devices.collect();
        if sim.mps != SimMps::default() {
            daemons.insert(Seat::Node, read(&sim.mps));
        }
        for (seat, _) in daemons.iter().rev().filter(|(_, daemon)| daemon.unit.active) {
            client_units.insert(0, seat.unit());
        }
        Host {
            persistenced: sim.persistenced,
            persistenced_fault: sim.persistenced_fault.clone().filter(|_| !sim.persistenced.active),
            fabric_manager: sim.fabric_manager,
            imex: false,
            mps: Mps {
                program: Some("/usr/bin/nvidia-cuda-mps-control".to_owned()),
                daemons,
                ..Mps::default()
            },
            client_units,
            cdi_refresh: true,
        }
    }

    fn device(&mut self, pci: &str) -> Device {
        let sim = self.get();
        let gpu = sim.gpus.iter().find(|gpu| gpu.reading().pci.as_deref() == Ok(pci));
        gpu.map_or_else(Device::default, |gpu| Device { resettable: gpu.resettable, board: gpu.board })
    }

    fn boot_mark(&mut self) -> BootMark {
        BootMark { boot_id: format!("boot-{}", self.get().boot), driver: "580".to_owned() }
    }

    fn log_end(&mut self) -> Option<u64> {
        Some(self.get().log)
    }

    fn unit(&mut self, unit: &str, action: UnitAction, _deadline: &Deadline) -> Result<(), String> {
        let mut sim = self.get();
        if !sim.effect(format!("{} {unit}", action.verb())) {
            return Err(format!("systemctl {} {unit}: exit status 1", action.verb()));
        }
        if action == UnitAction::Start && sim.will_not_start.as_deref() == Some(unit) {
            return Err(format!("systemctl start {unit}: exit status 1"));
        }
        match (unit, action) {
            ("nvidia-persistenced.service", UnitAction::Start | UnitAction::Stop) => {
                let on = action == UnitAction::Start;
                if sim.persistenced.active != on {
                    sim.persistenced.active = on;
                    for gpu in &mut sim.gpus {
                        gpu.persistence = on;
                    }
                }
            }
            ("nvidia-persistenced.service", _) => sim.persistenced.enabled = action == UnitAction::Enable,
            (unit, action) if Seat::of_unit(unit).is_some() => {
                let seat = Seat::of_unit(unit).unwrap();
                if let (Seat::Device(uuid), UnitAction::Start) = (&seat, action)
                    && !sim.gpus.iter().flat_map(SimGpu::devices).any(|there| there == *uuid)
                {
                    return Err(format!("systemctl start {unit}: exit status 1"));
                }
                let daemon = sim.daemon(&seat);
                match action {
                    UnitAction::Start | UnitAction::Stop => daemon.run(action == UnitAction::Start),
                    UnitAction::Enable | UnitAction::Disable => {
                        daemon.unit.enabled = action == UnitAction::Enable
                    }
                }
            }
            ("nvidia-cdi-refresh.service", _) => {}
            ("nvidia-fabricmanager.service", action) => sim.fabric_manager = action == UnitAction::Start,
            (other, action) => {
                *sim.units.get_mut(other).unwrap() = action == UnitAction::Start;
            }
        }
        Ok(())
    }

    fn reset(&mut self, pcis: &[String], _deadline: &Deadline) -> Result<(), ResetError> {
        let mut sim = self.get();
        if !sim.effect(format!("reset {}", pcis.join(","))) {
            return Err(ResetError::Failed("nvidia-smi --gpu-reset: exit status 255".to_owned()));
        }
        if sim.no_reset {
            return Err(ResetError::Unsupported("Not Supported".to_owned()));
        }
        let held = sim.open
            || sim.reader.is_some()
            || sim.units.values().any(|running| *running)
            || sim.mps.running.is_some()
            || sim.device_mps.values().any(|daemon| daemon.running.is_some());
        let module = sim.drm > 0 || sim.peermem > 0;
        // The kernel's messages about the reset itself.
        sim.log += 500_000;
        for gpu in sim.gpus.iter_mut().filter(|gpu| pcis.contains(gpu.reading().pci.as_ref().unwrap())) {
            if held || module && !gpu.hopper || gpu.persistence || gpu.client.is_some() {
                return Err(ResetError::InUse("In use by another client".to_owned()));
            }
            gpu.reset();
        }
        Ok(())
    }

    fn scan(&mut self, _minors: &BTreeMap<u32, u32>, _snapshot: Option<&Snapshot>) -> Scan {
        let mut sim = self.get();
        sim.scans += 1;
        let holder = |pid: u32, gpus: Vec<u32>, unit: Option<&String>, service| Holder {
            client: GpuClient {
                pid,
                command: "train".to_owned(),
                user: "ana".to_owned(),
                gpus,
                unit: unit.cloned(),
            },
            service,
            reader: false,
            open: true,
        };
        let client =
            |gpu: &SimGpu| Some(holder(gpu.client?, vec![gpu.index], gpu.client_unit.as_ref(), false));
        let mut holders: Vec<Holder> = sim.gpus.iter().filter_map(client).collect();
        let all: Vec<u32> = sim.gpus.iter().map(|gpu| gpu.index).collect();
        let running = sim.units.iter().filter(|(_, running)| **running);
        holders.extend(running.map(|(unit, _)| holder(7, all.clone(), Some(unit), true)));
        if let Some(left) = sim.reader {
            holders.push(Holder { reader: true, ..holder(8, vec![0], None, true) });
            sim.reader = left.checked_sub(1);
        }
        Scan { holders, ..Scan::default() }
    }

    fn module_holders(&mut self) -> Vec<(String, u32)> {
        let sim = self.get();
        let all = [("nvidia_drm", sim.drm), ("nvidia_peermem", sim.peermem)];
        all.iter().filter(|(_, refs)| *refs > 0).map(|(name, refs)| ((*name).to_owned(), *refs)).collect()
    }

    fn write_mps_unit(
        &mut self,
        seat: &Seat,
        text: Option<&str>,
        _deadline: &Deadline,
    ) -> Result<(), String> {
        let mut sim = self.get();
        let verb = if text.is_some() { "write" } else { "remove" };
        if !sim.effect(format!("{verb} {}", seat.unit())) {
            return Err("no space left".to_owned());
        }
        let daemon = sim.daemon(seat);
        daemon.text = text.map(str::to_owned);
        daemon.unit.exists = text.is_some();
        if let (Seat::Device(uuid), None) = (seat, text) {
            assert!(daemon.running.is_none() && !daemon.unit.enabled, "removed while it runs");
            sim.device_mps.remove(uuid);
        }
        Ok(())
    }

    fn quit_mps(&mut self, seat: &Seat, _deadline: &Deadline) -> Result<(), String> {
        let mut sim = self.get();
        if !sim.effect(format!("quit {}", seat.unit())) {
            return Err("it does not quit".to_owned());
        }
        let daemon = sim.daemon(seat);
        (daemon.running, daemon.stale) = (None, false);
        Ok(())
    }

    fn tell_mps(&mut self, seat: &Seat, limits: &[String], _deadline: &Deadline) -> Result<(), String> {
        let mut sim = self.get();
        if !sim.effect(format!("tell {}: {}", seat.unit(), limits.join("; "))) {
            return Err("it does not answer".to_owned());
        }
        let daemon = sim.daemon(seat);
        assert!(daemon.running.is_some(), "told while it does not run");
        let share = |line: &String| line.strip_prefix("set_default_active_thread_percentage ")?.parse().ok();
        daemon.running = limits.iter().find_map(share).or(daemon.running);
        Ok(())
    }

    fn has_user(&mut self, name: &str, _world: &World) -> bool {
        self.get().users.iter().any(|user| user == name)
    }

    fn pci_count(&mut self) -> u32 {
        u32::try_from(self.get().gpus.len()).unwrap()
    }

    fn nvswitches(&mut self) -> u32 {
        self.get().switches
    }

    fn not_root(&mut self) -> Option<u32> {
        self.get().not_root
    }

    fn module_version(&mut self) -> Option<String> {
        Some("580.159.04".to_owned())
    }
}
