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

fn check(verb: &str, roots: &Roots, devices: &[Device], makes: bool) -> Result<(), Refusal> {
    match loss(verb, roots, devices, makes) {
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
    let failed = link_all(&all_devices(roots), roots);
    failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Makes the name of each device, and returns those of which it cannot be made.
fn link_all(devices: &[Device], roots: &Roots) -> Vec<(Number, FileError)> {
    let folder = roots.path("/dev/char");
    let mut linked = BTreeSet::new();
    let each = devices.iter().filter(|device| linked.insert(device.number));
    each.filter_map(|device| Some((device.number, link(&folder, device).err()?))).collect()
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
    let unlinked = if makes { link_all(devices, roots) } else { Vec::new() };
    for (number, error) in unlinked {
        known.unlinked.insert(number);
        links = Some(error.to_string());
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
#[path = "reload_tests.rs"]
mod tests;
