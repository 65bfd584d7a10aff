//! Signals: what the node says about itself, for the checks of an audit.
//!
//! Each file reads one subject; the registry in the protocol names every signal. Nothing here judges, and nothing here
//! changes the node. Invariants: what cannot be read is unknown and never absent; the size and the time of every
//! reading are bounded.

mod aer;
pub mod cgroups;
mod devices;
mod disk;
mod driver;
pub mod gpu;
mod images;
pub mod kernel_log;
pub mod network;
mod nvme;
pub mod own;
pub mod pci;
pub mod pci_config;
#[cfg(test)]
mod pci_tests;
mod pcie;
mod process;
mod system;
#[cfg(test)]
mod tests;
pub mod topology;
#[cfg(test)]
mod topology_tests;
mod tuning;
pub mod usage;

use std::{
    fs, io,
    io::Read as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    str::FromStr,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    signal::{Readings, Signal, Signals},
};
use serde_json::{Value, json};

pub use self::driver::{
    DCGM_UNITS, TAKES_PEERS, module_kind, rdma_core, switches, version_in, without_dma_buf,
};
use self::{gpu::GpuSignals, kernel_log::Resets, own::Own};
use crate::{
    deadline::Deadline,
    os::{roots::Roots, tree},
    tasks::reboot,
};

/// Largest file that is read, in bytes; the largest of the kernel's own has about 300 bytes for each mount or CPU.
const MOST_BYTES: u64 = 1024 * 1024;
/// Largest number of names of a folder.
const MOST_NAMES: usize = 65_536;

/// A value, `None` if the node lacks it, or why it cannot be read.
type Found<T> = Result<Option<T>, String>;
/// A reading and its name in the registry.
type Named = (&'static str, Signal);

/// What is read, and within which time.
pub struct Reader<'a> {
    pub roots: &'a Roots,
    pub deadline: &'a Deadline,
}

/// Reads everything. Never fails: what cannot be read is unknown.
///
/// `resets` is when gpufleet reset GPUs in this boot; `gpus` reads what NVML tells.
pub fn read(
    reader: &Reader<'_>,
    resets: &Resets,
    own: &Own<'_>,
    gpus: impl FnOnce() -> GpuSignals,
) -> Signals {
    let begun = cpu_time();
    let roots = reader.roots;
    let (boot, driver) = (reboot::boot_id(roots), load_of_driver(roots));
    let processes = process::scan(reader);
    let units = system::units(reader);
    let log = kernel_log::read(roots, reader.deadline);
    let mut named: Vec<Named> = Vec::new();
    named.extend(driver::read(reader, &units, &processes));
    named.extend(system::read(reader, &units, &processes));
    named.extend(tuning::read(reader));
    named.extend(pcie::read(reader));
    named.extend(process::read(reader, &processes));
    let kubelet = cgroups::kubelet(reader, &processes);
    named.extend(cgroups::read(reader, &processes, &kubelet));
    named.extend(devices::read(reader, &kubelet));
    named.extend(images::read(reader, &cgroups::docker_words(reader, &processes), &kubelet));
    named.extend(disk::read(reader));
    named.extend(nvme::read(reader));
    let (ports, of_network) = network::read(reader);
    named.extend(of_network);
    let (records, dropped) = log.records(resets);
    let log_from = match &log.gap {
        None => "complete",
        Some(gap) if gap.whole => "none",
        Some(_) => "partial",
    };
    named.extend([
        ("log_from", log_from.into()),
        ("records_dropped", dropped.into()),
        ("nfs_hung_servers", signal(log.hung_servers().map(Some))),
    ]);
    let mut gpu = gpus();
    for one in &mut gpu.gpus {
        let errors = aer::read(reader, &one.readings);
        one.readings.extend(errors.into_iter().map(|(name, signal)| (name.to_owned(), signal)));
    }
    let (boot_end, driver_end) = (reboot::boot_id(roots), load_of_driver(roots));
    named.extend([
        ("boot_id_start", signal(boot.clone().ok_or_else(no_boot_id).map(Some))),
        ("boot_id_end", signal(boot_end.clone().ok_or_else(no_boot_id).map(Some))),
        ("driver_load_start", signal(driver)),
        ("driver_load_end", signal(driver_end)),
    ]);
    let uptime_s = uptime(reader);
    named.push(("uptime_s", signal(uptime_s.clone())));
    let mut node: Readings = named.into_iter().map(|(name, signal)| (name.to_owned(), signal)).collect();
    node.extend(gpu.node);
    let disks = disk::disks(reader);
    let cpu_ms = cpu_time().saturating_sub(begun);
    // Last and not counted: what a user's command costs, or how long it takes, is not the audit's.
    node.extend(own::read(reader, own));
    Signals {
        boot_id: boot.filter(|boot| Some(boot) == boot_end.as_ref()),
        uptime_s: uptime_s.ok().flatten().unwrap_or_default(),
        node,
        gpus: gpu.gpus,
        disks,
        ports,
        records,
        cpu_ms,
    }
}

/// Returns the outcome of `health_info`.
pub fn outcome(signals: &Signals) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data.insert("signals".to_owned(), json!(signals));
    outcome
}

fn no_boot_id() -> String {
    "the kernel does not tell its boot id".to_owned()
}

/// Returns a mark that differs for every load of the driver: the kernel numbers the folders of sysfs upwards.
fn load_of_driver(roots: &Roots) -> Found<String> {
    match fs::metadata(roots.path("/sys/module/nvidia")) {
        Ok(folder) => Ok(Some(folder.ino().to_string())),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(format!("/sys/module/nvidia: {error}")),
    }
}

fn uptime(reader: &Reader<'_>) -> Found<u64> {
    reader.parsed("/proc/uptime", |text| text.split(['.', ' ']).next()?.parse().ok())
}

/// Returns the CPU time of this process and of the children that it waited for, in milliseconds.
#[expect(unsafe_code, reason = "getrusage writes to a structure that it is given")]
fn cpu_time() -> u64 {
    let of = |who: i32| {
        // SAFETY: all-zero bytes are a valid `rusage`, which consists of integers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for writes during the call, and `who` is a constant of the call.
        let done = unsafe { libc::getrusage(who, &raw mut usage) };
        let micros = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
        if done == 0 { micros(usage.ru_utime) + micros(usage.ru_stime) } else { 0 }
    };
    u64::try_from((of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)) / 1000).unwrap_or_default()
}

fn signal<T: Into<Value>>(found: Found<T>) -> Signal {
    match found {
        Ok(Some(value)) => value.into().into(),
        Ok(None) => Signal::Absent,
        Err(why) => Signal::Unknown(why),
    }
}

/// Rounds to four decimals.
fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

/// Waits for the answer of a thread that may be left behind, until it is time to stop.
fn answer<T>(receiver: &Receiver<T>, deadline: &Deadline) -> Option<T> {
    /// How soon a cancelled operation notices.
    const TICK: Duration = Duration::from_millis(100);
    while deadline.stop().is_none() {
        match receiver.recv_timeout(deadline.remaining().min(TICK)) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl Reader<'_> {
    /// Reads a file of the kernel or of root.
    fn text(&self, path: &str) -> Found<String> {
        let told = |error: io::Error| match error {
            error if is_missing(&error) => Ok(None),
            error => Err(format!("{path}: {error}")),
        };
        let place = self.roots.path(path);
        // Before it is opened, because some devices act on that alone.
        match fs::metadata(&place) {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return Err(format!("{path}: it is no regular file")),
            Err(error) => return told(error),
        }
        // Without waiting for the other end of a pipe.
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let file = match fs::File::options().read(true).custom_flags(flags).open(place) {
            Ok(file) => file,
            Err(error) => return told(error),
        };
        let mut bytes = Vec::new();
        match file.take(MOST_BYTES + 1).read_to_end(&mut bytes) {
            Ok(count) if count as u64 > MOST_BYTES => {
                Err(format!("{path}: it has more than {} KiB", MOST_BYTES / 1024))
            }
            Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) => told(error),
        }
    }

    /// Reads a file that a daemon's settings name: through no link that another user can change.
    fn named(&self, path: &str) -> Found<String> {
        if !path.starts_with('/') {
            return Err(format!("{path}: it is no absolute path"));
        }
        let spot = match tree::followed(&self.roots.path(path)) {
            Ok(spot) => spot,
            Err(error) if is_missing(&error.source) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        match spot.look().map_err(|error| error.to_string())? {
            None => return Ok(None),
            Some(meta) if !meta.is_file() => return Err(format!("{path}: it is no regular file")),
            Some(_) => {}
        }
        let mut bytes = Vec::new();
        let file = spot.open().map_err(|error| error.to_string())?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("{path}: {error}"))?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(format!("{path}: it has more than {} KiB", MOST_BYTES / 1024));
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Returns the names in a folder that a daemon's settings name, as [`Self::named`] does.
    fn names_of(&self, folder: &str) -> Result<Vec<String>, String> {
        if !folder.starts_with('/') {
            return Err(format!("{folder}: it is no absolute path"));
        }
        let dir = tree::dir_if_any(&self.roots.path(folder)).map_err(|error| error.to_string())?;
        let names = dir.map(|dir| dir.names()).transpose().map_err(|error| error.to_string())?;
        Ok(names.unwrap_or_default().iter().map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn parsed<T>(&self, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Found<T> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        let parsed = parse(text.trim());
        parsed.map(Some).ok_or_else(|| format!("{path}: its content is not what the kernel writes"))
    }

    fn number<T: FromStr>(&self, path: &str) -> Found<T> {
        self.parsed(path, |text| text.parse().ok())
    }

    /// Returns a text of one line of at most 4 KiB.
    fn line(&self, path: &str) -> Found<String> {
        self.parsed(path, |text| {
            (text.len() <= 4096 && !text.contains(char::is_control) && !text.is_empty())
                .then(|| text.to_owned())
        })
    }

    /// Whether there is anything at a path.
    fn exists(&self, path: &str) -> Result<bool, String> {
        match fs::symlink_metadata(self.roots.path(path)) {
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(format!("{path}: {error}")),
        }
    }

    /// Returns the names in a folder of the kernel.
    fn names(&self, folder: &str) -> Found<Vec<String>> {
        let entries = match fs::read_dir(self.roots.path(folder)) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(format!("{folder}: {error}")),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| format!("{folder}: {error}"))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
            if names.len() > MOST_NAMES {
                return Err(format!("{folder}: it has more than {MOST_NAMES} entries"));
            }
        }
        Ok(Some(names))
    }
}
