//! A simulated node behind the [`Machine`] trait, for tests of whole runs.
//!
//! Its behaviour is written from the documentation and not from `after`, so that each checks the other. Any effect can
//! be made to fail.

mod board;
mod mps_daemon;
mod profiles;
mod setter;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use gpufleet_protocol::{
    message::GpuClient,
    nvml::{
        Code, ComputeInstance, Confidential, GpuDevices, GpuInstance, GpuReading, Health, HealthReading,
        MigDevice, Placement, Reading, Setting, Snapshot, Staged,
    },
};

pub use self::{board::SimGpu, mps_daemon::SimMps};
use super::{
    boot_commands::SetsPersistence,
    clients::{Holder, Scan},
    kept::Kept,
    machine::{BootMark, Machine, ResetError, UnitAction},
    mps::Seat,
    persistenced::{Repair, Start},
    state::{Daemon, Device, Host, Mps, Unit},
    worker::{NoHealth, NvmlError, SetAnswer, SetError},
};
use crate::{deadline::Deadline, keep, os::roots::Roots, world::World};

#[derive(Clone, Debug)]
pub struct Sim {
    pub gpus: Vec<SimGpu>,
    pub persistenced: Unit,
    pub persistenced_fault: Option<String>,
    /// Without them the unit does not start.
    pub persistenced_repairs: Vec<Repair>,
    pub persistenced_start: Start,
    pub persistence_setters: Vec<SetsPersistence>,
    pub mps: SimMps,
    /// Daemons of devices, by UUID.
    pub device_mps: BTreeMap<String, SimMps>,
    /// Users of the node.
    pub users: Vec<String>,
    /// What the next boot sets.
    pub kept: Kept,
    /// Where to read that, if not from `kept`.
    pub roots: Option<Roots>,
    /// Units that hold every GPU, and whether they run.
    pub units: BTreeMap<String, bool>,
    pub boot: u32,
    pub daemon_starts: u32,
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
    /// A reload of systemd would take GPUs from a container.
    pub no_reload: bool,
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
            persistenced_repairs: Vec::new(),
            persistenced_start: Start::default(),
            persistence_setters: Vec::new(),
            mps: SimMps::default(),
            device_mps: BTreeMap::new(),
            users: vec!["triton".to_owned()],
            kept: Kept::Nothing,
            roots: None,
            units: BTreeMap::from([
                ("nvidia-dcgm.service".to_owned(), true),
                ("nvsm.service".to_owned(), false),
            ]),
            boot: 1,
            daemon_starts: 0,
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
            no_reload: false,
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
        self.daemon_starts += 1;
        self.open = false;
        self.confidential = self.confidential.map(|(enabled, _)| (enabled, false));
        // A static unit is Ubuntu's, which a rule of udev starts.
        let daemon = self.persistenced.enabled || self.persistenced_start.is_static;
        self.persistenced.active = daemon;
        for gpu in &mut self.gpus {
            gpu.reset();
            gpu.forget();
            if gpu.hopper {
                gpu.mig = Staged::settled(false);
            }
            gpu.persistence = daemon && !self.persistenced_start.off;
            gpu.drained = false;
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

    /// Resets GPUs by hand: what holds them is stopped meanwhile and runs again after it.
    pub fn foreign_reset(&mut self) {
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.client.is_none()) {
            gpu.reset();
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
    /// Restarts the persistence daemon by hand: for a moment nothing but other holders keeps the GPUs awake.
    pub fn restart_persistenced(&mut self) {
        let deadline = Deadline::after(std::time::Duration::from_secs(60));
        let stopped = self.unit("nvidia-persistenced.service", UnitAction::Stop, &deadline);
        self.get().sleep();
        let started = self.unit("nvidia-persistenced.service", UnitAction::Start, &deadline);
        assert_eq!((stopped, started), (Ok(()), Ok(())));
    }

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
            gpus: sim.gpus.iter().filter(|gpu| !gpu.lost && !gpu.drained).map(SimGpu::reading).collect(),
            unreadable: sim
                .gpus
                .iter()
                .filter(|gpu| gpu.lost)
                .map(|gpu| (gpu.index, Code::GPU_IS_LOST))
                .collect(),
            drained: sim.gpus.iter().filter(|gpu| gpu.drained).map(SimGpu::hidden).collect(),
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

    fn lately(&mut self, deadline: &Deadline) -> Result<Health, NoHealth> {
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

    fn drain_states(
        &mut self,
        pcis: &[String],
        _deadline: &Deadline,
    ) -> Result<Vec<Reading<bool>>, NvmlError> {
        let mut sim = self.get();
        sim.open = true;
        let state = |pci: &String| {
            let gpu = sim.gpus.iter().find(|gpu| gpu.pci() == *pci);
            gpu.map_or(Err(Code::NOT_FOUND), |gpu| Ok(gpu.drained))
        };
        Ok(pcis.iter().map(state).collect())
    }

    fn drain(&mut self, pci: &str, on: bool, _deadline: &Deadline) -> Result<(), SetError> {
        let mut sim = self.get();
        sim.open = true;
        let call = "nvmlDeviceModifyDrainState".to_owned();
        if !sim.effect(format!("{} {pci}", if on { "drain" } else { "undrain" })) {
            return Err(SetError::Refused { call, code: Code::UNKNOWN });
        }
        let gpu = sim.gpus.iter_mut().find(|gpu| gpu.pci() == pci).unwrap();
        if on && gpu.persistence {
            return Err(SetError::Refused { call, code: Code::IN_USE });
        }
        gpu.drained = on;
        Ok(())
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
            persistenced_fault: sim.persistenced_fault.clone(),
            persistenced_repairs: (sim.persistenced_repairs.iter())
                .filter(|repair| !sim.persistenced.active || repair.is_done_while_it_runs())
                .cloned()
                .collect(),
            persistenced_start: sim.persistenced_start,
            persistence_setters: sim.persistence_setters.clone(),
            restarting: Vec::new(),
            fabric_manager: sim.fabric_manager,
            switches: Some(sim.switches),
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
        let sim = self.get();
        let keeper = sim.persistenced.active.then(|| format!("daemon-{}", sim.daemon_starts));
        let boot_id = format!("boot-{}", sim.boot);
        BootMark { boot_id, driver: "580".to_owned(), keeper: keeper.unwrap_or_default() }
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
        if unit == "nvidia-persistenced.service"
            && action == UnitAction::Start
            && !sim.persistenced_repairs.iter().all(Repair::is_done_while_it_runs)
        {
            return Err(format!("systemctl start {unit}: exit status 1"));
        }
        match (unit, action) {
            ("nvidia-persistenced.service", UnitAction::Start | UnitAction::Stop) => {
                let on = action == UnitAction::Start;
                if sim.persistenced.active != on {
                    sim.persistenced.active = on;
                    sim.daemon_starts += u32::from(on);
                    let on = on && !sim.persistenced_start.off;
                    for gpu in &mut sim.gpus {
                        gpu.persistence = on;
                    }
                }
            }
            // systemctl has no error for it.
            ("nvidia-persistenced.service", UnitAction::Enable) if sim.persistenced_start.is_static => {}
            ("nvidia-persistenced.service", _) => {
                sim.persistenced.enabled = matches!(action, UnitAction::Enable | UnitAction::Want);
            }
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
                    UnitAction::Enable | UnitAction::Disable | UnitAction::Want => {
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

    fn repair_persistenced(&mut self, repair: &Repair, _deadline: &Deadline) -> Result<(), String> {
        let mut sim = self.get();
        if !sim.effect(format!("repair {repair:?}")) {
            return Err("read-only file system".to_owned());
        }
        sim.persistenced_repairs.retain(|other| other != repair);
        let start = &mut sim.persistenced_start;
        match repair {
            Repair::Start { command, .. } => {
                (start.has_drop_in, start.off) = (true, start.off && command.is_none());
            }
            // The unit that has no [Install] is Ubuntu's, which says so itself.
            Repair::NoStart => (start.has_drop_in, start.off) = (false, start.is_static),
            Repair::Folder { .. } | Repair::Leftover { .. } | Repair::Failures => {}
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

    fn may_reload(&mut self) -> Result<(), String> {
        if self.get().no_reload { Err("`systemctl daemon-reload` was not run".to_owned()) } else { Ok(()) }
    }

    fn write_mps_unit(
        &mut self,
        seat: &Seat,
        text: Option<&str>,
        _deadline: &Deadline,
    ) -> Result<(), String> {
        self.may_reload()?;
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

    fn kept(&mut self, world: &World) -> Kept {
        let sim = self.get();
        sim.roots.as_ref().map_or_else(|| sim.kept.clone(), |roots| keep::at_boot(roots, world))
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
