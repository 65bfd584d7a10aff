//! A real node: systemd, sysfs, `nvidia-smi -r`, the MPS control program, and the NVML worker.
//!
//! Every command has a deadline. Makes no decisions.

use std::{
    collections::BTreeMap,
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use gpufleet_protocol::{
    nvml::{Ask, GpuDevices, Health, Reading, Setting, Snapshot},
    tasks::PciId,
};

use super::{
    boot_commands, bus,
    clients::{self, CLIENT_UNITS, PERSISTENCED, Places, Scan},
    drained,
    kept::Kept,
    machine::{BootMark, Machine, ResetError, UnitAction},
    mps::{self, Control, Seat},
    persistenced::{self, Repair},
    state::{Board, Daemon, Device, Host, Mps, Unit},
    worker::{NoHealth, NvmlError, SetAnswer, SetError, Worker},
};
use crate::{
    deadline::Deadline,
    keep,
    os::{
        files::{self, At, FileError, Ownership},
        reload,
        roots::Roots,
        tree,
        units::{self, UnitStatus},
        users::Users,
    },
    process::Run,
    world::World,
};

pub const FABRIC_MANAGER: &str = "nvidia-fabricmanager.service";
pub const IMEX: &str = "nvidia-imex.service";
const UNITS: &str = "/etc/systemd/system";
const CDI_REFRESH: &str = "nvidia-cdi-refresh.service";
/// Time limit of systemd for one unit; stopping DCGM takes seconds.
const UNIT_TIME: Duration = Duration::from_secs(90);
/// How long the persistence daemon waits in the driver before it counts as hanging.
const HANGS: Duration = Duration::from_secs(3);
/// Time limit of a GPU reset.
const RESET_TIME: Duration = Duration::from_secs(180);

/// The machine that the helper runs on.
#[derive(Debug)]
pub struct RealMachine {
    worker: Worker,
    places: Places,
    /// Main processes of units that gpufleet stops itself.
    service_pids: Vec<u32>,
    /// `/`, or another root in tests.
    root: PathBuf,
    /// Units are started without waiting for them.
    no_block: bool,
}

impl RealMachine {
    pub fn new(worker: Worker, no_block: bool) -> Self {
        let root = PathBuf::from("/");
        Self { worker, places: Places::default(), service_pids: Vec::new(), root, no_block }
    }

    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    fn text(&self, absolute: &str) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the root as the readers of the operating system want it.
    fn roots(&self) -> Roots {
        Roots::below(&self.root)
    }

    /// Returns the number of NVSwitches; `None` if none is found where not every place could be read.
    fn switches(&self) -> Option<u32> {
        let roots = self.roots();
        match (bus::read(&roots), bus::switch_files(&roots)) {
            (Ok(bus), Ok(files)) => Some(bus.switches.max(files)),
            (bus, files) => {
                let found = bus.map_or(0, |bus| bus.switches).max(files.unwrap_or_default());
                (found > 0).then_some(found)
            }
        }
    }

    /// Returns why there is no driver, where one of the kernel's own keeps NVIDIA's away: a missing library is not the cause then.
    fn explained(&self, error: NvmlError) -> NvmlError {
        let names = bus::kernels_own(&self.roots());
        match error {
            NvmlError::NoDriver { .. } if !names.is_empty() && self.loaded_version().is_none() => {
                NvmlError::KernelsOwn { names }
            }
            other => other,
        }
    }

    fn loaded_version(&self) -> Option<String> {
        self.text("/sys/module/nvidia/version")
            .or_else(|| version_of(&self.text("/proc/driver/nvidia/version")?).map(str::to_owned))
    }

    fn find_drained(&mut self, snapshot: &mut Snapshot, deadline: &Deadline) -> Result<(), NvmlError> {
        let roots = self.roots();
        drained::complete(snapshot, &roots, |pcis| self.worker.drain_states(pcis, deadline))
    }

    fn whole(&mut self, asked: Ask, deadline: &Deadline) -> Result<Health, NoHealth> {
        let read = self.worker.health(asked, deadline);
        let mut health = read.map_err(|why| NoHealth { error: self.explained(why.error), ..why })?;
        self.find_drained(&mut health.snapshot, deadline)?;
        Ok(health)
    }

    /// Only asked for a unit that is there, because it takes another process.
    fn persistenced(&self, unit: Unit, deadline: &Deadline) -> persistenced::Found {
        if !unit.exists {
            return persistenced::Found::default();
        }
        let said = |run: Run| {
            let finished = run.finish(&deadline.within(UNIT_TIME)).ok()?;
            finished.exit.success().then(|| finished.stdout())
        };
        let asked = Run::new("systemctl").args(["show", persistenced::ASKED, PERSISTENCED]);
        let Some(shown) = said(asked) else { return persistenced::Found::default() };
        let uid = |user: &str| said(Run::new("id").args(["-u", "--", user]))?.trim().parse().ok();
        let mut running = clients::named(&self.places, persistenced::COMM);
        // A daemon that works well waits for the driver too, as long as that initialises a GPU.
        if running.iter().any(|(_, hangs)| *hangs) {
            thread::sleep(HANGS.min(deadline.remaining()));
            let later = clients::named(&self.places, persistenced::COMM);
            running = later
                .into_iter()
                .map(|(pid, hangs)| (pid, hangs && running.contains(&(pid, true))))
                .collect();
        }
        persistenced::examine(&shown, &self.root, uid, &running)
    }

    fn mps_unit(&self, seat: &Seat) -> PathBuf {
        self.path(&format!("{UNITS}/{}", seat.unit()))
    }

    /// Returns the devices for which there is a unit of an MPS daemon.
    fn mps_seats(&self) -> Vec<Seat> {
        let entries = fs::read_dir(self.path(UNITS)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut seats: Vec<Seat> =
            names.filter_map(|name| Seat::of_unit(&name)).filter(|seat| *seat != Seat::Node).collect();
        seats.sort();
        seats
    }

    fn mps_control(
        &self,
        seat: &Seat,
        act: impl FnOnce(Control<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some(program) = find_program(mps::PROGRAM) else { return Ok(()) };
        let text = fs::read_to_string(self.mps_unit(seat)).ok();
        let user = text.as_deref().and_then(mps::user_of);
        act(Control { program: &program, root: &self.root, seat, user })
    }

    fn systemctl(&self, arguments: &[&str], deadline: &Deadline) -> Result<(), String> {
        let verb = arguments.first().copied().unwrap_or_default();
        reload::before(verb, &self.roots()).map_err(|refusal| refusal.to_string())?;
        let run = Run::new("systemctl").args(arguments).finish(&deadline.within(UNIT_TIME));
        match run {
            Ok(finished) if finished.exit.success() => Ok(()),
            Ok(finished) => Err(finished.complaint(&format!("systemctl {}", arguments.join(" ")))),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl From<&UnitStatus> for Unit {
    fn from(status: &UnitStatus) -> Self {
        Self { exists: status.exists, active: status.active, enabled: status.enabled }
    }
}

impl Machine for RealMachine {
    fn snapshot(&mut self, deadline: &Deadline) -> Result<Snapshot, NvmlError> {
        let mut snapshot = self.worker.snapshot(deadline).map_err(|error| self.explained(error))?;
        self.find_drained(&mut snapshot, deadline)?;
        Ok(snapshot)
    }

    fn devices(&mut self, deadline: &Deadline) -> Result<Vec<GpuDevices>, NvmlError> {
        self.worker.devices(deadline).map_err(|error| self.explained(error))
    }

    fn health(&mut self, deep: bool, deadline: &Deadline) -> Result<Health, NoHealth> {
        self.whole(Ask::Health { deep }, deadline)
    }

    fn lately(&mut self, deadline: &Deadline) -> Result<Health, NoHealth> {
        self.whole(Ask::Lately, deadline)
    }

    fn set(&mut self, uuid: &str, setting: Setting, deadline: &Deadline) -> Result<SetAnswer, SetError> {
        self.worker.set(uuid, setting, deadline)
    }

    fn drain_states(
        &mut self,
        pcis: &[String],
        deadline: &Deadline,
    ) -> Result<Vec<Reading<bool>>, NvmlError> {
        self.worker.drain_states(pcis.to_vec(), deadline)
    }

    fn drain(&mut self, pci: &str, on: bool, deadline: &Deadline) -> Result<(), SetError> {
        self.worker.drain(pci, on, deadline)
    }

    fn release(&mut self) {
        self.worker.close();
    }

    fn host(&mut self, deadline: &Deadline) -> Host {
        let seats = self.mps_seats();
        let of_devices: Vec<String> = seats.iter().map(Seat::unit).collect();
        let mut names = vec![PERSISTENCED, FABRIC_MANAGER, IMEX, CDI_REFRESH];
        names.extend(CLIENT_UNITS);
        names.extend(of_devices.iter().map(String::as_str));
        let units = units::show("systemctl", &names, deadline).unwrap_or_default();
        self.service_pids = units.values().map(|unit| unit.main_pid).filter(|pid| *pid > 1).collect();
        let unit = |name: &str| units.get(name).map(Unit::from).unwrap_or_default();
        let program = find_program(mps::PROGRAM);
        let mut mps =
            Mps { program: program.as_ref().map(|path| path.display().to_string()), ..Mps::default() };
        for seat in std::iter::once(Seat::Node).chain(seats) {
            let unit_text = fs::read_to_string(self.mps_unit(&seat)).ok();
            let mut daemon = Daemon { unit: unit(&seat.unit()), unit_text, ..Daemon::default() };
            if let Some(program) = &program {
                let text = daemon.unit_text.clone();
                let user = text.as_deref().and_then(mps::user_of);
                Control { program, root: &self.root, seat: &seat, user }.observe(&mut daemon, deadline);
            }
            if daemon != Daemon::default() {
                mps.daemons.insert(seat, daemon);
            }
        }
        let mut client_units: Vec<String> = (CLIENT_UNITS.iter().map(|name| (*name).to_owned()))
            .chain(of_devices)
            .filter(|name| unit(name).active)
            .collect();
        client_units.sort_by(|a, b| clients::stop_order(a).cmp(&clients::stop_order(b)));
        let restarting: Vec<&str> = [PERSISTENCED, FABRIC_MANAGER, IMEX]
            .into_iter()
            .filter(|name| units.get(*name).is_some_and(|unit| unit.restarting))
            .collect();
        let runs = |name: &str| unit(name).active && !restarting.contains(&name);
        let mut persistenced = Unit { active: runs(PERSISTENCED), ..unit(PERSISTENCED) };
        let found = self.persistenced(persistenced, deadline);
        // Looked at as well, because what systemd calls a unit with such a link depends on its version.
        persistenced.enabled |= found.start.is_static && self.path(persistenced::WANTS).is_symlink();
        Host {
            persistenced,
            persistenced_fault: found.fault,
            persistenced_repairs: found.repairs,
            persistenced_start: found.start,
            persistence_setters: boot_commands::persistence(&self.root),
            fabric_manager: runs(FABRIC_MANAGER),
            imex: runs(IMEX),
            restarting,
            switches: self.switches(),
            mps,
            client_units,
            cdi_refresh: unit(CDI_REFRESH).exists,
        }
    }

    fn device(&mut self, pci: &str) -> Device {
        let folder = format!("/sys/bus/pci/devices/{pci}");
        let id = |name: &str| {
            let text = self.text(&format!("{folder}/{name}"))?;
            u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let pair = |device: &str, vendor: &str| Some(PciId { device: id(device)?, vendor: id(vendor)? });
        let subsystem = pair("subsystem_device", "subsystem_vendor");
        Device {
            resettable: !pci.is_empty() && self.path(&format!("{folder}/reset")).exists(),
            board: pair("device", "vendor").map(|device| Board { device, subsystem }),
        }
    }

    fn boot_mark(&mut self) -> BootMark {
        let boot_id = self.text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // The inode, because the kernel numbers the folders of sysfs upwards, so that a reloaded module has another
        // one. Their times change with the page cache.
        let driver = match fs::metadata(self.path("/sys/module/nvidia")) {
            Ok(folder) => format!("{}-{}", self.module_version().unwrap_or_default(), folder.ino()),
            Err(_) => String::new(),
        };
        let daemons = clients::named(&self.places, persistenced::COMM);
        let keeper: Vec<String> =
            daemons.iter().filter_map(|(pid, _)| clients::identity(&self.places, *pid)).collect();
        BootMark { boot_id, driver, keeper: keeper.join(" ") }
    }

    fn log_end(&mut self) -> Option<u64> {
        crate::signals::kernel_log::log_end(&self.path("/dev/kmsg"))
    }

    fn unit(&mut self, unit: &str, action: UnitAction, deadline: &Deadline) -> Result<(), String> {
        match action {
            // What a MIG instance needs is not ordered after the unit that this may run in.
            UnitAction::Start if self.no_block && !Seat::of_unit(unit).is_some_and(|seat| seat.is_mig()) => {
                self.systemctl(&["start", "--no-block", unit], deadline)
            }
            UnitAction::Want => self.systemctl(&[action.verb(), "multi-user.target", unit], deadline),
            _ => self.systemctl(&[action.verb(), unit], deadline),
        }
    }

    fn repair_persistenced(&mut self, repair: &Repair, deadline: &Deadline) -> Result<(), String> {
        if let Some((path, text)) = repair.drop_in() {
            // Before the file is there: it would hide from the next run that systemd never read it.
            self.may_reload()?;
            let path = self.path(path);
            match text {
                Some(text) => {
                    let made = tree::make_dirs(path.parent().unwrap_or(&self.root)).map(drop);
                    let written =
                        made.and_then(|()| files::replace(&path, text.as_bytes(), Ownership::default()));
                    written.map_err(|error| error.to_string())?;
                }
                None => remove(&path).map_err(|error| error.to_string())?,
            }
            return self.systemctl(&["daemon-reload"], deadline);
        }
        let Repair::Leftover { path } = repair else {
            return self.systemctl(&["reset-failed", PERSISTENCED], deadline);
        };
        remove(&self.path(path)).map_err(|error| error.to_string())
    }

    fn reset(&mut self, pcis: &[String], deadline: &Deadline) -> Result<(), ResetError> {
        let run = Run::new("nvidia-smi")
            .args(["--gpu-reset", "-i"])
            .arg(pcis.join(","))
            .finish(&deadline.within(RESET_TIME));
        let finished = match run {
            Ok(finished) if finished.exit.success() => return Ok(()),
            Ok(finished) => finished,
            Err(error) => return Err(ResetError::Failed(error.to_string())),
        };
        let said = format!("{}\n{}", finished.stdout(), finished.stderr());
        let said = said.trim().replace('\n', "; ");
        let lower = said.to_ascii_lowercase();
        // By text, because nvidia-smi has no exit code for either.
        if lower.contains("in use") || lower.contains("being used") {
            Err(ResetError::InUse(said))
        } else if lower.contains("not supported")
            || lower.contains("unable to reset") && lower.contains("virtual")
        {
            Err(ResetError::Unsupported(said))
        } else {
            Err(ResetError::Failed(format!("nvidia-smi --gpu-reset: {}: {said}", finished.exit)))
        }
    }

    fn scan(&mut self, minors: &BTreeMap<u32, u32>, snapshot: Option<&Snapshot>) -> Scan {
        let mut own = self.worker.pids();
        own.push(std::process::id());
        clients::scan(&self.places, &own, &self.service_pids, minors, snapshot)
    }

    fn module_holders(&mut self) -> Vec<(String, u32)> {
        let roots = self.roots();
        let count = |name: &str| module_users(&roots, name);
        ["nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem"]
            .iter()
            .filter_map(|name| count(name).filter(|refs| *refs > 0).map(|refs| ((*name).to_owned(), refs)))
            .collect()
    }

    fn may_reload(&mut self) -> Result<(), String> {
        reload::before("daemon-reload", &self.roots()).map_err(|refusal| refusal.to_string())
    }

    fn write_mps_unit(&mut self, seat: &Seat, text: Option<&str>, deadline: &Deadline) -> Result<(), String> {
        // A file that is there is taken for what is in force.
        self.may_reload()?;
        let path = self.mps_unit(seat);
        let done = match text {
            Some(text) => files::replace(&path, text.as_bytes(), Ownership::default()),
            None => remove(&path),
        };
        done.map_err(|error| error.to_string())?;
        self.systemctl(&["daemon-reload"], deadline)
    }

    fn quit_mps(&mut self, seat: &Seat, deadline: &Deadline) -> Result<(), String> {
        self.mps_control(seat, |control| control.quit(deadline))
    }

    fn tell_mps(&mut self, seat: &Seat, limits: &[String], deadline: &Deadline) -> Result<(), String> {
        self.mps_control(seat, |control| control.tell(limits, deadline))
    }

    fn has_user(&mut self, name: &str, world: &World) -> bool {
        Users::of(&self.path("/etc")).seen_in(world).identity(name).is_ok()
    }

    fn kept(&mut self, world: &World) -> Kept {
        keep::at_boot(&self.roots(), world)
    }

    fn pci_count(&mut self) -> u32 {
        bus::read(&self.roots()).unwrap_or_default().gpus
    }

    fn nvswitches(&mut self) -> u32 {
        self.switches().unwrap_or_default()
    }

    fn not_root(&mut self) -> Option<u32> {
        let user = rustix::process::geteuid();
        (!user.is_root()).then(|| user.as_raw())
    }

    fn module_version(&mut self) -> Option<String> {
        self.loaded_version()
    }
}

/// Returns the version in `/proc/driver/nvidia/version`, whose first line is such as `NVRM version: NVIDIA UNIX x86_64
/// Kernel Module  580.159.04  …`.
pub fn version_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("Module")?;
    let dotted = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    rest.split_whitespace().find(dotted)
}

/// Returns how many use a kernel module; `None` if it is not loaded, or does not tell.
pub fn module_users(roots: &Roots, name: &str) -> Option<u32> {
    let folder = roots.path(format!("/sys/module/{name}"));
    let refs: u32 = fs::read_to_string(folder.join("refcnt")).ok()?.trim().parse().ok()?;
    // Without dependent modules, which count too and do no harm unless they are in use.
    let above = fs::read_dir(folder.join("holders")).map_or(0, |above| above.flatten().count());
    Some(refs.saturating_sub(u32::try_from(above).unwrap_or(u32::MAX)))
}

/// Finds a program on the helper's PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<(), FileError> {
    tree::spot(path).and_then(|spot| match spot.remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.at("remove", path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nvidia_display_controllers_count_as_gpus() {
        let root = tempfile::tempdir().unwrap();
        for (slot, vendor, class) in [
            ("0000:1b:00.0", "0x10de", "0x030200"),
            ("0000:1b:00.1", "0x10de", "0x040300"),
            ("0000:02:00.0", "0x10de", "0x030000"),
            ("0000:03:00.0", "0x8086", "0x030000"),
        ] {
            let folder = root.path().join("sys/bus/pci/devices").join(slot);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), vendor).unwrap();
            fs::write(folder.join("class"), class).unwrap();
        }
        fs::write(root.path().join("sys/bus/pci/devices/0000:1b:00.0/reset"), "").unwrap();
        let file = super::super::worker::WorkerFile::Path("/none".into());
        let mut machine = RealMachine::new(Worker::new(file, root.path().into()), false);
        machine.root = root.path().to_owned();
        assert_eq!(machine.pci_count(), 2);
        for (name, text) in [
            ("device", "0x2330\n"),
            ("vendor", "0x10de\n"),
            ("subsystem_device", "0x16c1\n"),
            ("subsystem_vendor", "0x10de\n"),
        ] {
            fs::write(root.path().join(format!("sys/bus/pci/devices/0000:1b:00.0/{name}")), text).unwrap();
        }
        let device = machine.device("0000:1b:00.0");
        let pci = |device| PciId { device, vendor: 0x10de };
        let board = Board { device: pci(0x2330), subsystem: Some(pci(0x16c1)) };
        assert_eq!(device, Device { resettable: true, board: Some(board) });
        assert_eq!(machine.device("0000:02:00.0"), Device::default());
    }

    #[test]
    fn a_driver_of_the_kernel_is_named_and_not_a_library() {
        let root = tempfile::tempdir().unwrap();
        let file = super::super::worker::WorkerFile::Path("/none".into());
        let mut machine = RealMachine::new(Worker::new(file, root.path().into()), false);
        machine.root = root.path().to_owned();
        let none =
            || NvmlError::NoDriver { detail: "libnvidia-ml.so.1: cannot open shared object file".to_owned() };
        assert_eq!(machine.explained(none()), none());
        fs::create_dir_all(root.path().join("sys/module/nova_core")).unwrap();
        let own = machine.explained(none());
        let says = "the kernel's own driver (nova_core) has the GPUs, and NVML does not work with it";
        assert_eq!((own.to_string().as_str(), own.is_no_driver()), (says, true));
        assert!(
            matches!(own.state(), gpufleet_protocol::facts::GpuSystemState::NoDriver { detail } if detail == says)
        );
        // NVIDIA's driver has them: the other one has none.
        fs::create_dir_all(root.path().join("sys/module/nvidia")).unwrap();
        fs::write(root.path().join("sys/module/nvidia/version"), "580.159.04\n").unwrap();
        assert_eq!(machine.explained(none()), none());
    }

    #[test]
    fn modules_count_their_users_and_not_the_modules_above_them() {
        let root = tempfile::tempdir().unwrap();
        for (module, refs, above) in
            [("nvidia_drm", 0, vec![]), ("nvidia_modeset", 3, vec!["nvidia_drm"]), ("nvidia_uvm", 1, vec![])]
        {
            let folder = root.path().join("sys/module").join(module);
            fs::create_dir_all(folder.join("holders")).unwrap();
            fs::write(folder.join("refcnt"), format!("{refs}\n")).unwrap();
            for name in above {
                fs::write(folder.join("holders").join(name), "").unwrap();
            }
        }
        let file = super::super::worker::WorkerFile::Path("/none".into());
        let mut machine = RealMachine::new(Worker::new(file, root.path().into()), false);
        machine.root = root.path().to_owned();
        assert_eq!(
            machine.module_holders(),
            [("nvidia_modeset".to_owned(), 2), ("nvidia_uvm".to_owned(), 1)]
        );
        fs::write(root.path().join("sys/module/nvidia_modeset/refcnt"), "1\n").unwrap();
        fs::write(root.path().join("sys/module/nvidia_uvm/refcnt"), "0\n").unwrap();
        assert_eq!(machine.module_holders(), []);
    }

    #[test]
    fn switches_are_found_on_the_bus_or_by_their_files() {
        let root = tempfile::tempdir().unwrap();
        let file = super::super::worker::WorkerFile::Path("/none".into());
        let mut machine = RealMachine::new(Worker::new(file, root.path().into()), false);
        machine.root = root.path().to_owned();
        assert_eq!((machine.nvswitches(), machine.switches()), (0, None), "neither place can be read");
        fs::create_dir_all(root.path().join("sys/bus")).unwrap();
        fs::create_dir_all(root.path().join("dev")).unwrap();
        assert_eq!(machine.switches(), Some(0));
        for name in ["nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch1", "nvidia0"] {
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        assert_eq!(machine.nvswitches(), 2);
        let folder = root.path().join("sys/bus/pci/devices/0000:05:00.0");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vendor"), "0x10de\n").unwrap();
        fs::write(folder.join("class"), "0x068000\n").unwrap();
        fs::remove_dir_all(root.path().join("dev")).unwrap();
        assert_eq!(machine.nvswitches(), 1);
    }

    #[test]
    fn no_unit_is_written_that_systemd_may_not_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/devices", "Character devices:\n195 nvidia\n");
        write(
            "run/systemd/transient/docker-ab.scope",
            "[Scope]\nDevicePolicy=strict\nDeviceAllow=char-* m\n",
        );
        write("proc/77/cgroup", "0::/system.slice/docker-ab.scope\n");
        write("proc/77/mountinfo", "2 1 0:6 /nvidia0 /dev/nvidia0 ro - devtmpfs udev rw\n");
        let unit = format!("etc/systemd/system/{}", Seat::Node.unit());
        write(&unit, "before");
        let file = super::super::worker::WorkerFile::Path("/none".into());
        let mut machine = RealMachine::new(Worker::new(file, root.path().into()), false);
        machine.root = root.path().to_owned();
        let deadline = Deadline::after(Duration::from_secs(5));
        for text in [Some("after"), None] {
            let refused = machine.write_mps_unit(&Seat::Node, text, &deadline).unwrap_err();
            assert!(refused.starts_with("`systemctl daemon-reload` was not run"), "{refused}");
            assert_eq!(fs::read_to_string(root.path().join(&unit)).unwrap(), "before");
        }
        let repair = Repair::Folder { user: "nvidia-persistenced".to_owned() };
        let refused = machine.repair_persistenced(&repair, &deadline).unwrap_err();
        assert!(refused.starts_with("`systemctl daemon-reload` was not run"), "{refused}");
        assert!(!machine.path(persistenced::DROP_IN).exists());
    }
}
