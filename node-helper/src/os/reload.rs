//! What has to be true before systemd reads its units again.
//!
//! systemd then sets the device rules of all units anew, from what it was told when each was made. A container loses its
//! GPUs if its runtime gave them past systemd, as the legacy mode of nvidia-container-toolkit does, or by a name in
//! `/dev/char` that is not there (NVIDIA/nvidia-container-toolkit#48). So [`before`] makes these names, as
//! `nvidia-ctk system create-dev-char-symlinks` does, and refuses a reload that a running container would pay for.
//! A plan asks [`foreseen`], which makes nothing. Invariant: what is running is never ended here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use gpufleet_protocol::glob::Glob;
use rustix::{
    fs::{AtFlags, FileType, StatxFlags},
    io::Errno,
};

use super::{
    files::{self, At, FileError},
    roots::Roots,
    tree,
};

/// Directories with further device files of the driver.
const FOLDERS: [&str; 2] = ["nvidia-caps", "nvidia-caps-imex-channels"];
const DEV: &str = "/dev";
/// Where there are device files: GPU Operator's container of the driver keeps its own.
const PLACES: [&str; 2] = [DEV, "/run/nvidia/driver/dev"];
/// Verbs of `systemctl` after which systemd reads its units: the others than the first two change links (systemctl(1),
/// `--no-reload`).
const VERBS: [&str; 13] = [
    "daemon-reload",
    "daemon-reexec",
    "enable",
    "disable",
    "reenable",
    "preset",
    "mask",
    "unmask",
    "link",
    "revert",
    "add-wants",
    "add-requires",
    "set-default",
];
/// Largest file of systemd that is read here; a scope of a container has a few hundred bytes.
const MOST: u64 = 1 << 20;

/// Why systemd was not told to read its units.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Loss(Loss),
    #[error(
        "`systemctl {verb}` was not run, because nobody can tell whether it would take GPUs from running containers: {why}; drain \
         the node first"
    )]
    Unknown { verb: String, why: String },
}

impl Refusal {
    /// Returns the same answer to another verb.
    #[must_use]
    pub fn to(mut self, other: &str) -> Self {
        match &mut self {
            Self::Loss(Loss { verb, .. }) | Self::Unknown { verb, .. } => other.clone_into(verb),
        }
        self
    }
}

/// A reload that would take GPUs from containers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`systemctl {verb}` was not run, because systemd would take {} from what runs in {}: its rules there do not name \
     these devices (NVIDIA/nvidia-container-toolkit#48){}; drain the node first, or give containers their GPUs by CDI",
    listed(.devices), listed(.units), .links.as_ref().map_or(String::new(), |why| format!(", and {why}"))
)]
pub struct Loss {
    verb: String,
    devices: BTreeSet<String>,
    units: BTreeSet<String>,
    /// Why a name in `/dev/char` could not be made.
    links: Option<String>,
}

fn listed(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().map(String::as_str).take(4).collect();
    match names.len().saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The major and the minor number of a device.
type Number = (u32, u32);

fn number(device: u64) -> Number {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// A character device of the driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    /// One of [`PLACES`].
    place: &'static str,
    /// Below that.
    name: String,
    number: Number,
    /// The file system of the file itself, by which mountinfo names it.
    system: Number,
}

/// What is known of the driver's devices.
struct Known<'a> {
    devices: &'a [Device],
    /// Drivers of character devices with their major numbers; several share one.
    drivers: Vec<(u32, String)>,
    /// Those whose name in `/dev/char` could not be made.
    unlinked: BTreeSet<Number>,
}

impl Known<'_> {
    fn has(&self, number: Number) -> bool {
        let ours = |(major, driver): &(u32, String)| *major == number.0 && driver.starts_with("nvidia");
        self.drivers.iter().any(ours) || self.devices.iter().any(|device| device.number == number)
    }

    fn is_empty(&self) -> bool {
        self.devices.is_empty() && !self.drivers.iter().any(|(_, driver)| driver.starts_with("nvidia"))
    }

    fn name(&self, number: Number) -> String {
        match self.devices.iter().find(|device| device.number == number) {
            Some(device) => format!("{DEV}/{}", device.name),
            None => format!("{DEV}/char/{}:{}", number.0, number.1),
        }
    }

    /// Whether a name of a rule, after `char-`, is for this major number (systemd, `bpf_devices_allow_list_major`).
    fn drives(&self, name: &str, major: u32) -> bool {
        if let Ok(named) = name.parse::<u32>() {
            return named == major;
        }
        let glob = Glob::of_shell(name);
        name == "*" || self.drivers.iter().any(|(own, driver)| *own == major && glob.matches(driver))
    }

    /// Returns the device that a line of mountinfo mounts. The target tells nothing, because a container may have a file
    /// of its own by that name.
    fn mounted(&self, line: &str) -> Option<Number> {
        let (mount, system) = line.split_once(" - ")?;
        let fields: Vec<&str> = mount.split(' ').collect();
        let [_, _, home, root, target, ..] = fields.as_slice() else { return None };
        let (major, minor) = home.split_once(':')?;
        let home = (major.parse().ok()?, minor.parse().ok()?);
        let root = root.strip_suffix("//deleted").unwrap_or(root);
        let is_file = |device: &&Device| {
            let folder = root.strip_suffix(device.name.as_str());
            device.system == home && folder.is_some_and(|folder| folder.ends_with('/'))
        };
        if !self.devices.is_empty() {
            return self.devices.iter().find(is_file).map(|device| device.number);
        }
        // No file is known to compare it with, so a name where device files are is taken for the device.
        let name = target
            .strip_prefix("/dev/nvidia")
            .filter(|_| ["devtmpfs", "tmpfs"].contains(&system.split(' ').next().unwrap_or_default()))?;
        let (major, _) = self
            .drivers
            .iter()
            .find(|(_, driver)| ["nvidia", "nvidia-frontend", "nvidiactl"].contains(&driver.as_str()))?;
        // Their numbers are fixed (nvidia-modprobe, `NV_CTL_DEVICE_FILE`).
        let minor = if name == "ctl" { 255 } else { name.parse().ok()? };
        Some((*major, minor))
    }

    /// Returns the devices that a process was given: mounted into its container, as the legacy mode does, or open.
    fn given(&self, process: &Path) -> Result<BTreeSet<Number>, FileError> {
        let (mountinfo, fd) = (process.join("mountinfo"), process.join("fd"));
        let mounts = of_process(fs::read(&mountinfo)).at("read", &mountinfo)?.unwrap_or_default();
        let files = of_process(fs::read_dir(&fd)).at("read", &fd)?.into_iter().flatten().flatten();
        let open = files.filter_map(|file| in_use(&file.path()));
        // A container may mount a path in any encoding.
        let mounted = String::from_utf8_lossy(&mounts);
        let mounted = mounted.lines().filter_map(|line| self.mounted(line));
        Ok(mounted.chain(open.filter(|open| self.has(*open))).collect())
    }
}

/// Takes a process that has ended for one that says nothing; of one that nobody has waited for yet, the kernel answers
/// EINVAL (fs/proc_namespace.c).
fn of_process<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) => {
            let gone = [Errno::NOENT, Errno::SRCH, Errno::INVAL].map(Errno::raw_os_error);
            if error.raw_os_error().is_some_and(|code| gone.contains(&code)) { Ok(None) } else { Err(error) }
        }
    }
}

/// Returns the numbers of a character device that is open by this link in `/proc/PID/fd`.
fn in_use(file: &Path) -> Option<Number> {
    // One that is open as a path only (O_PATH) has neither bit. That needs no right to the device: a container may make
    // and open one so to stop all reloads.
    if fs::symlink_metadata(file).ok()?.mode() & 0o600 == 0 {
        return None;
    }
    // Without asking a server, which may hang.
    let found = rustix::fs::statx(rustix::fs::CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::CharacterDevice).then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// Prepares the node for a verb of `systemctl`; does nothing for one that lets systemd read no units.
///
/// # Errors
/// If a container would lose GPUs, or nobody can tell.
pub fn before(verb: &str, roots: &Roots) -> Result<(), Refusal> {
    if !reads_units(verb) {
        return Ok(());
    }
    check(verb, roots, &all_devices(roots), true)
}

/// Whether systemd reads its units after this verb of `systemctl`.
pub fn reads_units(verb: &str) -> bool {
    VERBS.contains(&verb)
}

/// Returns what [`before`] would answer to a reload now; makes nothing. That the names in `/dev/char` can be made is
/// taken for granted.
///
/// # Errors
/// As [`before`].
pub fn foreseen(roots: &Roots) -> Result<(), Refusal> {
    check("daemon-reload", roots, &all_devices(roots), false)
}

fn all_devices(roots: &Roots) -> Vec<Device> {
    PLACES.into_iter().flat_map(|place| devices(place, roots)).collect()
}

fn check(verb: &str, roots: &Roots, devices: &[Device], links: bool) -> Result<(), Refusal> {
    match loss(verb, roots, devices, links) {
        Ok(None) => Ok(()),
        Ok(Some(loss)) => Err(Refusal::Loss(loss)),
        Err(error) => Err(Refusal::Unknown { verb: verb.to_owned(), why: error.to_string() }),
    }
}

/// Makes the names of the driver's devices in `/dev/char`, for a reload that others make.
///
/// # Errors
/// If one cannot be made; the others are.
pub fn make_names(roots: &Roots) -> Result<(), FileError> {
    let folder = roots.path("/dev/char");
    let mut numbers = BTreeSet::new();
    let devices = all_devices(roots);
    let made: Vec<Result<(), FileError>> = devices
        .iter()
        .filter(|device| numbers.insert(device.number))
        .map(|device| link(&folder, device))
        .collect();
    made.into_iter().collect()
}

/// Returns what a reload would cost that scripts of packages make, which ask nobody; `None` if it costs nothing once the
/// names in `/dev/char` are made. Writes nothing.
pub fn at_stake(roots: &Roots) -> Option<String> {
    at_stake_of(roots, &all_devices(roots))
}

fn at_stake_of(roots: &Roots, devices: &[Device]) -> Option<String> {
    const SCRIPTS: &str = "scripts of packages have systemd read its units again";
    match loss("daemon-reload", roots, devices, false) {
        Ok(None) => None,
        Ok(Some(loss)) => Some(format!(
            "{SCRIPTS}, which would take {} from what runs in {}, whose rules do not name these devices \
             (NVIDIA/nvidia-container-toolkit#48); containers that get their GPUs by CDI keep them",
            listed(&loss.devices),
            listed(&loss.units)
        )),
        Err(error) => Some(format!(
            "{SCRIPTS}, and nobody can tell whether that would take GPUs from running containers: {error}"
        )),
    }
}

/// What a reload would take. `makes`: whether the names in `/dev/char` are made before, or only assumed.
fn loss(verb: &str, roots: &Roots, devices: &[Device], makes: bool) -> Result<Option<Loss>, FileError> {
    let mut known = Known { devices, drivers: drivers(roots)?, unlinked: BTreeSet::new() };
    if known.is_empty() {
        return Ok(None);
    }
    let mut links = None;
    let mut linked = BTreeSet::new();
    for device in devices.iter().filter(|_| makes) {
        if linked.insert(device.number)
            && let Err(error) = link(&roots.path("/dev/char"), device)
        {
            known.unlinked.insert(device.number);
            links = Some(error.to_string());
        }
    }
    let mut loss = Loss { verb: verb.to_owned(), devices: BTreeSet::new(), units: BTreeSet::new(), links };
    let mut scopes = scopes(&roots.path("/run/systemd/transient"))?;
    scopes.retain(|_, rules| rules.limit());
    if scopes.is_empty() {
        return Ok(None);
    }
    let processes = roots.proc("");
    for entry in fs::read_dir(&processes).at("read", &processes)?.flatten() {
        if entry.file_name().to_str().is_none_or(|name| name.parse::<u32>().is_err()) {
            continue;
        }
        let process = entry.path();
        let cgroup = process.join("cgroup");
        let cgroup = of_process(fs::read(&cgroup)).at("read", &cgroup)?.unwrap_or_default();
        let cgroup = String::from_utf8_lossy(&cgroup);
        let Some((unit, rules)) =
            cgroup.lines().flat_map(|line| line.split('/')).find_map(|part| scopes.get_key_value(part))
        else {
            continue;
        };
        for device in known.given(&process)?.into_iter().filter(|device| !rules.allow(*device, &known)) {
            loss.devices.insert(known.name(device));
            loss.units.insert(unit.clone());
        }
    }
    Ok((!loss.units.is_empty()).then_some(loss))
}

fn devices(place: &'static str, roots: &Roots) -> Vec<Device> {
    let dev = roots.path(place);
    let inside = |folder: &Path, prefix: &str| -> Vec<Device> {
        let device = |entry: fs::DirEntry| {
            let name = entry
                .file_name()
                .into_string()
                .ok()
                .filter(|name| name.starts_with("nvidia") || !prefix.is_empty())?;
            let meta = entry.metadata().ok().filter(|meta| meta.file_type().is_char_device())?;
            let name = format!("{prefix}{name}");
            Some(Device { place, name, number: number(meta.rdev()), system: number(meta.dev()) })
        };
        fs::read_dir(folder).into_iter().flatten().flatten().filter_map(device).collect()
    };
    let mut found = inside(&dev, "");
    found.extend(FOLDERS.iter().flat_map(|folder| inside(&dev.join(folder), &format!("{folder}/"))));
    found.sort();
    found
}

/// Makes the name of a device by its number; one that leads elsewhere is of a driver that was loaded before.
fn link(folder: &Path, device: &Device) -> Result<(), FileError> {
    let Device { place, name, number: (major, minor), .. } = device;
    let spot = tree::make_dirs(folder)?.spot(format!("{major}:{minor}"));
    let wanted = match *place {
        DEV => PathBuf::from(format!("../{name}")),
        place => PathBuf::from(format!("../..{place}/{name}")),
    };
    match spot.look()? {
        None => {}
        Some(meta) if !meta.is_symlink() => return Ok(()),
        Some(_) => {
            let leads_there = |meta: fs::Metadata| number(meta.rdev()) == device.number;
            if spot.target()? == wanted || fs::metadata(spot.path()).is_ok_and(leads_there) {
                return Ok(());
            }
            spot.remove().at("remove", spot.path())?;
        }
    }
    spot.link_to(&wanted).at("make", spot.path())
}

/// What systemd was told about the devices of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    policy: String,
    /// What is allowed, and whether that is to read and to write.
    allowed: Vec<(String, bool)>,
}

impl Rules {
    fn read(&mut self, text: &str) {
        for line in text.lines() {
            match line.trim().split_once('=') {
                Some(("DevicePolicy", policy)) => policy.trim().clone_into(&mut self.policy),
                // An empty one takes back the former ones (systemd.unit(5)).
                Some(("DeviceAllow", "")) => self.allowed.clear(),
                Some(("DeviceAllow", rule)) => {
                    let mut words = rule.split_whitespace();
                    let Some(what) = words.next() else { continue };
                    // runc lets every container make each device (`char-* m`), which opens none. One rule has to have
                    // both rights, as the kernel is asked for both at once.
                    let rights = words.next().unwrap_or("rwm");
                    self.allowed.push((what.to_owned(), rights.contains('r') && rights.contains('w')));
                }
                _ => {}
            }
        }
    }

    /// Whether there is anything that the unit may not use (systemd.resource-control(5), `DevicePolicy=`).
    fn limit(&self) -> bool {
        matches!(self.policy.as_str(), "strict" | "closed") || !self.allowed.is_empty()
    }

    fn allow(&self, device: Number, known: &Known<'_>) -> bool {
        let number = format!("{DEV}/char/{}:{}", device.0, device.1);
        let is_file = |file: &Device, rule: &str| {
            file.number == device && file.place == DEV && rule.strip_prefix("/dev/") == Some(&file.name)
        };
        self.allowed.iter().filter(|(_, usable)| *usable).any(|(rule, _)| {
            let by_number = *rule == number && !known.unlinked.contains(&device);
            by_number
                || rule.strip_prefix("char-").is_some_and(|driver| known.drives(driver, device.0))
                || known.devices.iter().any(|file| is_file(file, rule))
        })
    }
}

/// Returns the names in a folder; none if it is not there.
fn names(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(FileError::new("read", folder, error)),
    }
}

/// Returns the rules of units that a program made, as each container's is. A unit that has ended meanwhile has none.
fn scopes(folder: &Path) -> Result<BTreeMap<String, Rules>, FileError> {
    let mut found: BTreeMap<String, Rules> = BTreeMap::new();
    let mut entries = names(folder)?;
    // The unit itself comes before its drop-ins.
    entries.sort();
    for path in entries {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let unit = name.strip_suffix(".d").unwrap_or(name);
        if !unit.ends_with(".scope") {
            continue;
        }
        let mut files = if unit == name { vec![path.clone()] } else { names(&path)? };
        files.sort();
        let rules = found.entry(unit.to_owned()).or_default();
        for file in files {
            let text = files::read_bounded(&file, MOST)?.unwrap_or_default();
            rules.read(&String::from_utf8_lossy(&text));
        }
    }
    Ok(found)
}

/// Returns the drivers of character devices with their major numbers.
fn drivers(roots: &Roots) -> Result<Vec<(u32, String)>, FileError> {
    let text = files::read_bounded(&roots.proc("devices"), MOST)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().skip_while(|line| !line.starts_with("Character")).skip(1);
    let driver = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        Some((major.parse().ok()?, name.to_owned()))
    };
    Ok(lines.map_while(driver).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tasks::testing::Bench;

    const DEVTMPFS: Number = (0, 6);
    const CTL: Number = (195, 255);

    fn device(name: &str, number: Number) -> Device {
        Device { place: DEV, name: name.to_owned(), number, system: DEVTMPFS }
    }

    fn gpus() -> Vec<Device> {
        let caps = device("nvidia-caps/nvidia-cap1", (236, 1));
        vec![caps, device("nvidia0", (195, 0)), device("nvidiactl", CTL)]
    }

    /// The unit of a container as systemd 249 keeps what runc 1.1 tells it for docker, with these rules first. The rule
    /// of `c *:* m` is of runc's own list.
    fn docker(first: &str) -> String {
        format!(
            "# This is a transient unit file, created programmatically via the systemd API. Do not edit.\n[Unit]\n\
             Description=libcontainer container ab\n\n[Scope]\nSlice=system.slice\nDelegate=yes\nMemoryAccounting=yes\n\
             CPUAccounting=yes\nIOAccounting=yes\nTasksAccounting=yes\n\n[Unit]\nDefaultDependencies=no\n\n[Scope]\n\
             DevicePolicy=strict\nDeviceAllow=\nDeviceAllow=\n{first}DeviceAllow=char-136 rwm\n\
             DeviceAllow=/dev/char/10:200 rwm\nDeviceAllow=/dev/char/5:2 rwm\nDeviceAllow=/dev/char/5:1 rwm\n\
             DeviceAllow=/dev/char/5:0 rwm\nDeviceAllow=/dev/char/1:9 rwm\nDeviceAllow=/dev/char/1:8 rwm\n\
             DeviceAllow=/dev/char/1:7 rwm\nDeviceAllow=/dev/char/1:5 rwm\nDeviceAllow=/dev/char/1:3 rwm\n\
             DeviceAllow=char-* m\nDeviceAllow=block-* m\n"
        )
    }

    /// Mounts of a container; those of the legacy mode follow what every container has.
    fn mounts(bench: &Bench, legacy: bool) {
        let every = "812 655 0:61 / / rw,relatime master:245 - overlay overlay rw,lowerdir=/l/A\n\
                     814 812 0:65 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755\n\
                     815 814 0:66 / /dev/pts rw,nosuid,noexec - devpts devpts rw,gid=5\n\
                     818 814 0:64 / /dev/mqueue rw - mqueue mqueue rw\n";
        let given = "840 814 0:6 /nvidiactl /dev/nvidiactl ro,nosuid,noexec master:2 - devtmpfs udev rw,mode=755\n\
                     841 814 0:6 /nvidia0 /dev/nvidia0 ro,nosuid,noexec master:2 - devtmpfs udev rw,mode=755\n\
                     842 812 0:22 /driver/nvidia/gpus /proc/driver/nvidia/gpus ro - proc proc rw\n";
        bench.write("proc/77/mountinfo", &format!("{every}{}", if legacy { given } else { "" }));
    }

    /// A container of docker that has GPUs by the legacy mode, with this unit.
    fn container(bench: &Bench, unit: &str) {
        bench.write("run/systemd/transient/docker-ab.scope", unit);
        bench.write(
            "proc/devices",
            "Character devices:\n  1 mem\n136 pts\n195 nvidia\n195 nvidiactl\n236 nvidia-caps\n\nBlock devices:\n  8 sd\n",
        );
        bench.write("proc/77/cgroup", "0::/system.slice/docker-ab.scope\n");
        mounts(bench, true);
    }

    /// Gives the process a file that is open.
    fn open(bench: &Bench, target: &Path) {
        let _ = fs::remove_dir_all(bench.path("proc/77/fd"));
        fs::create_dir_all(bench.path("proc/77/fd")).unwrap();
        symlink(target, bench.path("proc/77/fd/9")).unwrap();
    }

    fn reload(bench: &Bench, devices: &[Device]) -> Result<(), String> {
        check("daemon-reload", &bench.roots, devices, true).map_err(|loss| loss.to_string())
    }

    #[track_caller]
    fn takes(bench: &Bench, devices: &[Device], taken: &str) {
        let loss = reload(bench, devices).unwrap_err();
        assert!(loss.contains(&format!("would take {taken} from what runs in docker-ab.scope:")), "{loss}");
    }

    #[test]
    fn a_plan_foresees_a_refusal_and_makes_nothing() {
        use gpufleet_protocol::{OpStatus, message::Mode, tasks::UnitSettings};
        let bench = Bench::new();
        container(&bench, &docker(""));
        let before = bench.snapshot();
        let foreseen = check("daemon-reload", &bench.roots, &gpus(), false).unwrap_err().to("enable");
        assert!(
            foreseen.to_string().starts_with("`systemctl enable` was not run, because systemd would take")
        );
        assert_eq!(crate::tasks::testing::changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        // Each kind that reloads says so, in the words of its run.
        bench.script(
            "usr/bin/systemctl",
            "#!/bin/sh\ncase $* in *show*) printf 'Id=cron.service\nLoadState=loaded\n';; esac\n",
        );
        let task: UnitSettings = serde_json::from_value(serde_json::json!({
            "unit": "cron.service", "settings": {"Service": {"LimitMEMLOCK": "infinity"}}
        }))
        .unwrap();
        let planned = bench.run(&task, Mode::Predict);
        let failed = bench.run(&task, Mode::Apply);
        let OpStatus::Failed { message, .. } = &failed.status else { panic!("{failed:?}") };
        assert!(message.starts_with("`systemctl daemon-reload` was not run"), "{message}");
        assert!(
            planned.warnings.contains(&format!("as the node is now, the run is refused: {message}")),
            "{planned:?}"
        );
        // Not after a boot, which has ended the container.
        bench.forget();
        bench.activate(gpufleet_protocol::Disruption::Reboot);
        let booted = bench.run(&task, Mode::Predict);
        assert!(!booted.warnings.iter().any(|line| line.contains("was not run")), "{booted:?}");
    }

    #[test]
    fn a_node_is_asked_once_and_answers_each_verb() {
        let bench = Bench::new();
        container(&bench, &docker(""));
        let ask = || bench.overlay.reload_refused(|| foreseen(&bench.roots).err());
        let first = ask();
        assert!(first.is_some());
        fs::remove_dir_all(bench.path("proc/77")).unwrap();
        assert_eq!(ask(), first);
        bench.forget();
        assert_eq!(ask(), None);
    }

    #[test]
    fn names_by_number_are_made_and_old_ones_mended() {
        let bench = Bench::new();
        fs::create_dir_all(bench.path("dev/char")).unwrap();
        symlink("../nvidia-uvm", bench.path("dev/char/236:1")).unwrap();
        symlink("../null", bench.path("dev/char/1:3")).unwrap();
        let mut devices = gpus();
        let place = PLACES[1];
        devices.push(Device { place, ..device("nvidia0", (195, 0)) });
        devices.push(Device { place, ..device("nvidia1", (195, 1)) });
        for _ in 0..2 {
            reload(&bench, &devices).unwrap();
            for (number, name) in [
                ("195:0", "../nvidia0"),
                ("195:1", "../../run/nvidia/driver/dev/nvidia1"),
                ("195:255", "../nvidiactl"),
                ("236:1", "../nvidia-caps/nvidia-cap1"),
                ("1:3", "../null"),
            ] {
                assert_eq!(fs::read_link(bench.path("dev/char").join(number)).unwrap(), Path::new(name));
            }
        }
    }

    #[test]
    fn what_scripts_of_packages_would_cost_is_told_and_nothing_is_made() {
        let bench = Bench::new();
        container(&bench, &docker(""));
        let told = at_stake_of(&bench.roots, &gpus()).unwrap();
        assert!(
            told.contains("would take /dev/nvidia0, /dev/nvidiactl from what runs in docker-ab.scope"),
            "{told}"
        );
        assert!(!bench.path("dev/char").exists());
        // Whose rules name the devices by their numbers: the names are made before, and nothing is lost.
        container(&bench, &docker("DeviceAllow=/dev/char/195:0 rwm\nDeviceAllow=/dev/char/195:255 rwm\n"));
        assert_eq!(at_stake_of(&bench.roots, &gpus()), None);
        assert_eq!(at_stake_of(&Bench::new().roots, &[]), None, "without a driver there is nothing to lose");
    }

    #[test]
    fn what_cannot_be_read_refuses_a_reload() {
        let bench = Bench::new();
        container(&bench, &docker("DeviceAllow=char-195 rwm\n"));
        // A process that has ended, and a mount whose name is in another encoding.
        bench.write("proc/78/cgroup", "0::/system.slice/docker-ab.scope\n");
        let mut mounts = bench.read("proc/77/mountinfo").into_bytes();
        mounts.extend(b"850 812 0:70 / /data/caf\xe9 rw - ext4 /dev/sda rw\n");
        fs::write(bench.path("proc/77/mountinfo"), &mounts).unwrap();
        assert_eq!(reload(&bench, &gpus()), Ok(()));
        container(&bench, &docker(""));
        fs::write(bench.path("proc/77/mountinfo"), mounts).unwrap();
        takes(&bench, &gpus(), "/dev/nvidia0, /dev/nvidiactl");
        let unit = bench.path("run/systemd/transient/docker-ab.scope");
        fs::write(&unit, vec![b'#'; usize::try_from(MOST).unwrap() + 1]).unwrap();
        let refused = reload(&bench, &gpus()).unwrap_err();
        assert!(
            refused.starts_with("`systemctl daemon-reload` was not run, because nobody can tell whether it")
                && refused.contains("docker-ab.scope"),
            "{refused}"
        );
    }

    #[test]
    fn only_character_devices_of_the_driver_get_a_name() {
        let bench = Bench::new();
        bench.write("dev/nvidia0", "");
        bench.write("dev/nvidia-caps/nvidia-cap1", "");
        bench.write("run/nvidia/driver/dev/nvidia0", "");
        before("daemon-reload", &bench.roots).unwrap();
        assert!(!bench.path("dev/char").exists());
    }

    #[test]
    fn a_plain_container_refuses_no_reload() {
        let bench = Bench::new();
        container(&bench, &docker(""));
        mounts(&bench, false);
        open(&bench, Path::new("/dev/null"));
        assert_eq!(reload(&bench, &gpus()), Ok(()));
    }

    #[test]
    fn a_container_that_has_gpus_past_systemd_refuses_a_reload() {
        let bench = Bench::new();
        container(&bench, &docker(""));
        assert_eq!(
            reload(&bench, &gpus()).unwrap_err(),
            "`systemctl daemon-reload` was not run, because systemd would take /dev/nvidia0, /dev/nvidiactl from what runs \
             in docker-ab.scope: its rules there do not name these devices (NVIDIA/nvidia-container-toolkit#48); drain the \
             node first, or give containers their GPUs by CDI"
        );
        // So do older ones, which name the driver of pts, and the rules of an update, which replace those of the unit.
        container(&bench, &docker("DeviceAllow=char-pts rwm\n"));
        takes(&bench, &gpus(), "/dev/nvidia0, /dev/nvidiactl");
        container(&bench, &docker("DeviceAllow=char-195 rwm\n"));
        assert_eq!(reload(&bench, &gpus()), Ok(()));
        bench.write(
            "run/systemd/transient/docker-ab.scope.d/50-DeviceAllow.conf",
            "# This is a drop-in unit file extension, created via \"systemctl set-property\"\n\
             # or an equivalent operation. Do not edit.\n[Scope]\nDeviceAllow=\nDeviceAllow=char-* m\n",
        );
        takes(&bench, &gpus(), "/dev/nvidia0, /dev/nvidiactl");
    }

    #[test]
    fn a_container_whose_rules_name_its_gpus_refuses_no_reload() {
        let bench = Bench::new();
        for rules in [
            // CDI and `--device`.
            "DeviceAllow=/dev/char/195:255 rwm\nDeviceAllow=/dev/char/195:0 rwm\n",
            // crun tells one rule after the other, and systemd writes the list each time.
            "DeviceAllow=/dev/char/195:0 rw\nDeviceAllow=\nDeviceAllow=/dev/char/195:255 rw\n\
             DeviceAllow=/dev/char/195:0 rw\n",
            "DeviceAllow=/dev/nvidia0\nDeviceAllow=/dev/nvidiactl rwm\n",
            // `--device-cgroup-rule='c 195:* rwm'`, before and after systemd 240.
            "DeviceAllow=char-nvidia rwm\n",
            "DeviceAllow=char-nvidiactl rw\n",
            "DeviceAllow=char-195 rwm\n",
            "DeviceAllow=char-nvid*a rw\n",
            "DeviceAllow=char-* rwm\n",
        ] {
            container(&bench, &docker(rules));
            assert_eq!(reload(&bench, &gpus()), Ok(()), "{rules}");
        }
        for rules in [
            "DeviceAllow=/dev/char/195:0 m\nDeviceAllow=/dev/char/195:255 rwm\n",
            "DeviceAllow=/dev/char/195:0 r\nDeviceAllow=/dev/char/195:0 w\nDeviceAllow=/dev/char/195:255 rwm\n",
            "DeviceAllow=/dev/char/195:255 rwm\nDeviceAllow=/dev/block/195:0 rwm\nDeviceAllow=block-195 rwm\n",
            "DeviceAllow=/dev/char/195:255 rwm\nDeviceAllow=char-19 rwm\nDeviceAllow=char-nvidia-* rwm\n",
        ] {
            container(&bench, &docker(rules));
            takes(&bench, &gpus(), "/dev/nvidia0");
        }
    }

    #[test]
    fn a_privileged_container_refuses_no_reload() {
        let bench = Bench::new();
        container(&bench, "[Scope]\nSlice=system.slice\nDelegate=yes\nDevicePolicy=auto\nDeviceAllow=\n");
        open(&bench, Path::new("/dev/null"));
        let opened = device("nvidia1", (1, 3));
        assert_eq!(reload(&bench, &[gpus(), vec![opened]].concat()), Ok(()));
        // Nor one that runc tells nothing about devices.
        container(&bench, "[Scope]\nSlice=system.slice\nDelegate=yes\n");
        assert_eq!(reload(&bench, &gpus()), Ok(()));
    }

    #[test]
    fn a_device_that_is_open_counts_and_a_file_with_its_name_does_not() {
        let bench = Bench::new();
        container(&bench, &docker("").replace("DeviceAllow=/dev/char/1:3 rwm\n", ""));
        mounts(&bench, false);
        let opened = device("nvidia0", (1, 3));
        open(&bench, Path::new("/dev/null"));
        takes(&bench, std::slice::from_ref(&opened), "/dev/nvidia0");
        // Files of the container: one that it opened, and one that is mounted there.
        bench.write("dev/nvidia0", "");
        open(&bench, &bench.path("dev/nvidia0"));
        bench.write(
            "proc/77/mountinfo",
            "814 812 0:65 /nvidia0 /dev/nvidia0 rw - tmpfs tmpfs rw\n\
             815 812 0:6 /no-nvidia0 /dev/nvidia0 rw - devtmpfs udev rw\n\
             816 812 8:1 /var/lib/x/nvidia0 /dev/nvidia0 rw - ext4 /dev/sda1 rw\n",
        );
        assert_eq!(reload(&bench, &[opened]), Ok(()));
    }

    #[test]
    fn a_device_that_is_open_as_a_path_only_is_not_in_use() {
        use std::os::fd::AsRawFd as _;
        let open = |flags| {
            let file = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).unwrap();
            in_use(&Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))
        };
        assert_eq!(open(rustix::fs::OFlags::RDWR), Some((1, 3)));
        assert_eq!(open(rustix::fs::OFlags::PATH), None);
    }

    #[test]
    fn device_files_of_the_drivers_container_count() {
        let bench = Bench::new();
        container(&bench, &docker(""));
        let own = Device { place: PLACES[1], system: (0, 91), ..device("nvidia0", (195, 0)) };
        bench.write("proc/77/mountinfo", "841 814 0:91 /nvidia0 /dev/nvidia0 ro - tmpfs tmpfs rw,mode=755\n");
        takes(&bench, &[own], "/dev/nvidia0");
    }

    #[test]
    fn devices_whose_files_are_not_found_are_known_by_their_numbers() {
        let bench = Bench::new();
        container(&bench, &docker(""));
        takes(&bench, &[], "/dev/char/195:0, /dev/char/195:255");
        container(&bench, &docker("DeviceAllow=char-195 rw\n"));
        assert_eq!(reload(&bench, &[]), Ok(()));
        // By their driver where they are open.
        container(&bench, &docker("").replace("DeviceAllow=/dev/char/1:3 rwm\n", ""));
        mounts(&bench, false);
        bench.write("proc/devices", "Character devices:\n  1 nvidia-uvm\n\nBlock devices:\n  8 sd\n");
        open(&bench, Path::new("/dev/null"));
        takes(&bench, &[], "/dev/char/1:3");
        // A node without the driver.
        bench.write("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n");
        assert_eq!(reload(&bench, &[]), Ok(()));
    }

    #[test]
    fn a_rule_by_number_does_not_count_where_its_name_cannot_be_made() {
        let bench = Bench::new();
        container(&bench, &docker("DeviceAllow=/dev/char/195:0 rw\n"));
        bench.write("dev/char", "no folder");
        let loss = reload(&bench, &[device("nvidia0", (195, 0))]).unwrap_err();
        assert!(loss.contains("take /dev/nvidia0 from what runs in docker-ab.scope"), "{loss}");
        assert!(loss.contains(", and cannot make "), "{loss}");
    }
}
